"""Flag names that no table lists: whether they are harmless, and which known name a misspelled one resembles."""

from __future__ import annotations

import csv
import difflib
import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from simulator.budget import charge

_WORDS: Final = Path(__file__).with_name("_idle_words.csv")
"""Words in names of flags that change neither memory nor speed: `idle` unless `_RELEVANT` matches, `surely_idle`
unless `_DECISIVE` does, and `idle_name` for whole names."""
_STARTS: Final = Path(__file__).with_name("_harmless.csv")
"""Prefixes of names that change neither memory nor speed in any framework, each with the reason."""
_RELEVANT: Final = re.compile(
    r"recompute|offload|parallel|precision|fp8|fp16|bf16|shard|expert|moe|lora|flash|overlap|cpu|fus|grad_dtype"
    r"|optimizer|attention|batch|seq|hidden|layers|heads|vocab|mtp|quant|chunk|checkpoint_act|activation"
    r"|checkpointing|\dbit|memory|adapter|peft|freez|compile|galore|liger"
)
"""Words of flags that may change memory or speed, which outweigh `idle` words."""
_DECISIVE: Final = re.compile(
    r"modules|parallel|dtype|quant|(?:max|seq|block|context)_(?:[a-z]{1,12}_)?len|optim(?:izer)?_(?:name|type)"
    r"|(?:ref|reference|reward|teacher|critic|draft)_model"
)
"""Words that outweigh `surely_idle` words: `modules_to_save`, `optimizer_name`, `data_max_length`."""
_CLOSE: Final = 0.9
"""Smallest similarity at which a name counts as a misspelling; high, since names of flags share many words."""

_OTHER_LETTERS: Final = 3
"""Most letters that only one of two similar names may have."""
_LETTERS_WORK: Final = 50
"""Units of work of comparing the letters of two names."""
_LIKENESS_WORK: Final = 1500
"""Units of work of comparing two names."""


def plain(name: str) -> str:
    """Return a flag's name as the tables spell it: without leading dashes, with underscores, in lower case."""
    return name.lstrip("-").replace("-", "_").lower()


def is_harmless(name: str) -> bool:
    """Whether an unlisted flag begins like those of trackers, hubs and logs, in any framework.

    `_harmless.csv` lists the prefixes with their reasons; a name with a word of memory or speed never counts.
    """
    name = plain(name).rsplit(".", 1)[-1]
    return name.startswith(_harmless()) and not _RELEVANT.search(name)


@functools.cache
def _harmless() -> tuple[str, ...]:
    with _STARTS.open(encoding="utf-8", newline="") as stream:
        return tuple(line["start"] for line in csv.DictReader(stream))


def is_irrelevant(name: str) -> bool:
    """Whether an unlisted flag changes neither memory nor speed, by the words of its name."""
    name = plain(name).rsplit(".", 1)[-1]
    words = {name, *name.split("_")}
    lists = _idle_words()
    decides = _DECISIVE.search(name) is not None and not words & {"eval", "evaluation"}
    surely = name in lists["idle_name"] or (bool(words & lists["surely_idle"]) and not decides)
    return surely or (bool(words & lists["idle"]) and not _RELEVANT.search(name))


@functools.cache
def _idle_words() -> Mapping[str, frozenset[str]]:
    """Return the words of `_WORDS` by kind."""
    with _WORDS.open(encoding="utf-8", newline="") as stream:
        rows = [(line["word"], line["kind"]) for line in csv.DictReader(stream)]
    return {kind: frozenset(word for word, own in rows if own == kind) for kind in {kind for _, kind in rows}}


def misspelled(name: str, known: Iterable[str]) -> str:
    """Return `, did you mean 'x'?` for the known name that differs by a slip; empty without one."""
    size = len(name)
    sizes = {other for other in range(2 * size) if 2 * min(size, other) >= _CLOSE * (size + other)}
    alike = [word for word in known if len(word) in sizes] if size <= 200 else []
    letters = _letters(name)
    near = [word for word in alike if len(letters ^ _letters(word)) <= _OTHER_LETTERS]
    charge(_LETTERS_WORK * len(alike) + _LIKENESS_WORK * (1 + len(near)))
    close = difflib.get_close_matches(name, near, n=1, cutoff=_CLOSE)
    return f", did you mean '{close[0]}'?" if close else ""


@functools.lru_cache(maxsize=20_000)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)
