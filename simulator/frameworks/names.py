"""Names that no table has: which of them are harmless, and which name a misspelled one was meant to be."""

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
"""Words of names that change neither memory nor speed: `idle` unless another word of the name says that it may
(`_RELEVANT`), `surely_idle` but in a few (`_DECISIVE`), and `idle_name` for whole names whose words say nothing."""
_STARTS: Final = Path(__file__).with_name("_harmless.csv")
"""Starts of names that change neither memory nor speed in any framework, each with the reason."""
_RELEVANT: Final = re.compile(
    r"recompute|offload|parallel|precision|fp8|fp16|bf16|shard|expert|moe|lora|flash|overlap|cpu|fus|grad_dtype"
    r"|optimizer|attention|batch|seq|hidden|layers|heads|vocab|mtp|quant|chunk|checkpoint_act|activation"
    r"|checkpointing|\dbit|memory|adapter|peft|freez|compile|galore|liger"
)
"""Words that mark a flag as one that may change them whatever its other words are."""
_DECISIVE: Final = re.compile(
    r"modules|parallel|dtype|quant|(?:max|seq|block|context)_(?:[a-z]{1,12}_)?len|optim(?:izer)?_(?:name|type)"
    r"|(?:ref|reference|reward|teacher|critic|draft)_model"
)
"""The same where a word that is `surely_idle` stands beside: `modules_to_save`, `optimizer_name`, `data_max_length`."""
_CLOSE: Final = 0.9
"""Likeness from which a name is taken for a misspelling: names of flags share many words."""

_OTHER_LETTERS: Final = 3
"""Letters that only one of two names has, where they differ by a slip."""
_LETTERS_WORK: Final = 50
"""Units of work of comparing the letters of two names."""
_LIKENESS_WORK: Final = 1500
"""Units of work of comparing two names."""


def plain(name: str) -> str:
    """A flag's name as the tables spell it: no dashes in front, underscores, lower case."""
    return name.lstrip("-").replace("-", "_").lower()


def is_harmless(name: str) -> bool:
    """Whether a flag that no table has starts as those of trackers, hubs and logs do, whatever the framework.

    `_harmless.csv` lists the starts, each with its reason; a name that holds a word of memory or speed is none.
    """
    name = plain(name).rsplit(".", 1)[-1]
    return name.startswith(_harmless()) and not _RELEVANT.search(name)


@functools.cache
def _harmless() -> tuple[str, ...]:
    with _STARTS.open(encoding="utf-8", newline="") as stream:
        return tuple(line["start"] for line in csv.DictReader(stream))


def is_irrelevant(name: str) -> bool:
    """Whether a flag that no table has is one that changes neither memory nor speed."""
    name = plain(name).rsplit(".", 1)[-1]
    words = {name, *name.split("_")}
    lists = _idle_words()
    decides = _DECISIVE.search(name) is not None and not words & {"eval", "evaluation"}
    surely = name in lists["idle_name"] or (bool(words & lists["surely_idle"]) and not decides)
    return surely or (bool(words & lists["idle"]) and not _RELEVANT.search(name))


@functools.cache
def _idle_words() -> Mapping[str, frozenset[str]]:
    """The words of the table by kind."""
    with _WORDS.open(encoding="utf-8", newline="") as stream:
        rows = [(line["word"], line["kind"]) for line in csv.DictReader(stream)]
    return {kind: frozenset(word for word, own in rows if own == kind) for kind in {kind for _, kind in rows}}


def misspelled(name: str, known: Iterable[str]) -> str:
    """`, did you mean 'x'?` for a known name that differs by a slip of the hand."""
    size = len(name)
    alike = [word for word in known if 2 * min(size, len(word)) >= _CLOSE * (size + len(word))] if size <= 200 else []
    letters = _letters(name)
    near = [word for word in alike if len(letters ^ _letters(word)) <= _OTHER_LETTERS]
    charge(_LETTERS_WORK * len(alike) + _LIKENESS_WORK * (1 + len(near)))
    close = difflib.get_close_matches(name, near, n=1, cutoff=_CLOSE)
    return f", did you mean '{close[0]}'?" if close else ""


@functools.lru_cache(maxsize=20_000)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)
