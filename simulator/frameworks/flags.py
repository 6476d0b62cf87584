"""Tables of flags: what every known flag of a framework sets, and the nearest name to one that no table lists."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, get_args

from simulator.budget import charge
from simulator.errors import LONGEST_NAME
from simulator.files import read_table
from simulator.records import Record

_WORDS: Final = "_idle_words"
"""Words in names of flags that change neither memory nor speed: `idle` unless `_RELEVANT` matches, `surely_idle`
unless `_DECISIVE` does, and `idle_name` for whole names."""
_RELEVANT: Final = re.compile(
    r"recompute|offload|parallel|precision|fp8|fp16|bf16|shard|expert|moe|lora|flash|overlap|cpu|fus|grad_dtype"
    r"|optimizer|attention|batch|seq|hidden|layers|heads|vocab|mtp|quant|chunk|checkpoint_act|activation"
    r"|checkpointing|\dbit|memory|adapter|peft|freez|compile|galore|liger|full_?(?:param|fine|tun|train)|trainable"
    r"|tune_(?:full|method|mode|type)"
)  # words of flags that may change memory or speed, which outweigh `idle` words
_DECISIVE: Final = re.compile(
    r"modules|parallel|dtype|quant|(?:max|seq|block|context)_(?:[a-z]{1,12}_)?len|optim(?:izer)?_(?:name|type)"
    r"|(?:ref|reference|reward|teacher|critic|draft)_model"
)  # words that outweigh `surely_idle` words: `modules_to_save`, `optimizer_name`, `data_max_length`
_CLOSE: Final = 0.9
"""Smallest similarity at which a name counts as a misspelling; high, since names of flags share many words."""

_OTHER_LETTERS: Final = 3  # most letters that only one of two similar names may have
_LETTERS_WORK: Final = 50  # units of work of comparing the letters of two names
_LIKENESS_WORK: Final = 1500  # units of work of comparing two names


@functools.lru_cache(maxsize=20_000)
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
    return tuple(line["start"] for line in read_table(__file__, "_harmless"))


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
    rows = [(line["word"], line["kind"]) for line in read_table(__file__, _WORDS)]
    return {kind: frozenset(word for word, own in rows if own == kind) for kind in {kind for _, kind in rows}}


def misspelled(name: str, known: FlagTable) -> str:
    """Return `, did you mean 'x'?` for the known name that differs by a slip; empty without one."""
    size = len(name)
    sizes = (other for other in range(2 * size) if 2 * min(size, other) >= _CLOSE * (size + other))
    alike = [word for other in sizes for word in known.by_size.get(other, ())] if size <= LONGEST_NAME else []
    letters = _letters(name)
    near = [word for word in alike if len(letters ^ _letters(word)) <= _OTHER_LETTERS]
    charge(_LETTERS_WORK * len(alike) + _LIKENESS_WORK * (1 + len(near)))
    close = difflib.get_close_matches(name, near, n=1, cutoff=_CLOSE)
    return f", did you mean '{close[0]}'?" if close else ""


@functools.lru_cache(maxsize=20_000)
def _letters(name: str) -> frozenset[str]:
    return frozenset(name)


FlagKind = Literal["priced", "no_effect", "not_modelled"]
"""`priced`: a reader takes it; `no_effect`: changes neither memory nor speed; `not_modelled`: changes them but is
not priced."""
FlagWeight = Literal["", "figure", "activations", "state", "length", "bound", "verdict"]
"""How much a flag that is not modelled matters: `figure` moves a figure within its interval, `activations`, `state`,
`length` and `bound` only lower activations, state, what a sample takes or the total need (what fits without it fits
with it), `verdict` may turn a verdict."""
Takes = Literal["value", "switch", "optional", "list"]
"""What follows a flag: one value, nothing, a value or nothing, or several values."""
TargetKind = Literal["layout", "option", "model", "workload"]
"""A field of `Layout`, a switch of `FrameworkProfile`, a field of `ModelSpec`, a field of `Recipe`."""
FOLDER: Final = Path(__file__).resolve().parent
"""Parent of the frameworks' folders."""
OWN_TABLE: Final = "words"
"""File name of a folder's main table, which is called by the folder's name."""
_OFF: Final = frozenset(["", "0", "false", "no", "off", "none", "null", "disable"])
ALIAS: Final = "alias:"
"""Beginning of a part of `Flag.sets` that is another flag's name."""
ANY_TEXT: Final = "*"
"""Key of `Meaning.values` for every text that is not listed."""


class Meaning(Record):
    """One thing that a flag sets, parsed from the column `sets`, whose forms CONTRIBUTING.md lists."""

    kind: TargetKind
    name: str
    """Name of the field or switch."""
    values: Mapping[str, str]
    """Value by text of the flag; empty where the text itself is the value."""
    otherwise: str | None = None
    """Value where no flag of the target sets one; None leaves the framework's default."""

    @property
    def target(self) -> str:
        """Kind and name, as in the table."""
        return f"{self.kind}.{self.name}"


class Flag(Record):
    """One flag or key of a framework."""

    about: str
    """Its meaning, the kind of setting, or what is not priced."""
    kind: Takes = "value"
    name: str = ""
    """Name with underscores, without leading dashes."""
    effect: FlagKind | Literal[""] = "priced"
    """Class of the flag; empty only between reading a new release and classifying the flag."""
    weight: FlagWeight = ""
    default: str = ""
    """Default as text; empty where the framework computes it."""
    sets: str = ""
    """Targets that the flag sets, see `Meaning`; empty where its framework's own code reads it."""
    file: str = ""
    """File that defines it in the framework."""
    first: str = ""
    """Oldest of the versions read that has it."""
    last: str = ""
    """Newest of the versions read that has it."""

    def is_off(self, text: str) -> bool:
        """Whether a text is the framework's default or switches the flag off."""
        lowered = text.strip().strip("\"'").lower()
        return self.kind != "switch" and (lowered in _OFF or lowered == self.default.lower() or self._idle(lowered))

    def _idle(self, text: str) -> bool:
        try:
            return float(text) in (0.0, float(self.default or "0"))
        except ValueError:
            return False

    def aliases(self) -> Iterator[tuple[str, str]]:
        """Yield the flags that this is another name of, each with the text after its name."""
        for part in self._parts(alias=True):
            name, _, text = part.removeprefix(ALIAS).partition("=")
            yield name, text

    def _parts(self, *, alias: bool) -> Iterator[str]:
        """Yield the parts of `sets`: either the aliases or the targets."""
        parts = (part.strip() for part in self.sets.split(";"))
        return (part for part in parts if part and part.startswith(ALIAS) == alias)

    def meanings(self) -> Iterator[Meaning]:
        """Yield the targets that the flag sets. Raises ValueError for text that is not a meaning."""
        for part in self._parts(alias=False):
            target, equals, text = part.partition("=")
            kind, _, name = target.partition(".")
            if kind not in get_args(TargetKind) or not name or bool(equals) != bool(text):
                raise ValueError(f"flag {self.name}: sets '{part}'")
            text, bar, otherwise = text.partition("|")
            values = dict(_entry(entry) for entry in text.split(",")) if text else {}
            yield Meaning(kind, name, values, otherwise if bar else None)  # type: ignore[arg-type]  # checked


def _entry(text: str) -> tuple[str, str]:
    """Return a flag's text and the value it sets; `ANY_TEXT` where no text is stated."""
    before, colon, after = text.partition(":")
    return (before.lower(), after) if colon else (ANY_TEXT, before)


class FlagTable(dict[str, Flag]):
    """Flags of one framework, or of several that a recipe may mix; the first table with a name counts."""

    def passes(self, name: str) -> bool:
        """Whether a name is a flag that changes neither memory nor speed."""
        return name in self and self[name].effect == "no_effect"

    def of(self, name: str) -> Flag | None:
        """Return the flag of a name, or the row of its longest prefix, such as `profiler.*`; None without one."""
        return self.get(name) or next((flag for start, flag in self._starts if name.startswith(start)), None)

    @functools.cached_property
    def _starts(self) -> tuple[tuple[str, Flag], ...]:
        return tuple((name[:-1], flag) for name, flag in sorted(self.items(), reverse=True) if name.endswith("*"))

    @functools.cached_property
    def by_size(self) -> Mapping[int, list[str]]:
        """Names by their length."""
        return {size: list(names) for size, names in groupby(sorted(self, key=len), len)}

    @functools.cached_property
    def meanings(self) -> Mapping[str, tuple[tuple[Flag, Meaning], ...]]:
        """For each target, the flags that set it, in the order of the tables."""
        pairs_of: dict[str, list[tuple[Flag, Meaning]]] = {}
        for flag in self.values():
            for meaning in flag.meanings():
                pairs_of.setdefault(meaning.target, []).append((flag, meaning))
        return {target: tuple(pairs) for target, pairs in pairs_of.items()}

    @functools.cached_property
    def targets_of(self) -> Mapping[str, Collection[str]]:
        """For each flag, the targets that it sets; for an empty name those that have a value without any."""
        targets: dict[str, set[str]] = {}
        for target, pairs in self.meanings.items():
            for flag, own in pairs:
                targets.setdefault(flag.name, set()).add(target)
                targets.setdefault("" if own.otherwise is not None else flag.name, set()).add(target)
        return targets

    @functools.cached_property
    def aliases(self) -> Mapping[str, tuple[tuple[Flag, str], ...]]:
        """For each flag its other names, each with the text after the flag's name in that row."""
        pairs_of: dict[str, list[tuple[Flag, str]]] = {}
        for flag in self.values():
            for name, text in flag.aliases():
                pairs_of.setdefault(name, []).append((flag, text))
        return {name: tuple(pairs) for name, pairs in pairs_of.items()}


def table_file(name: str) -> Path:
    """Return the path of a table: `words.csv` in the folder of that name, else another table of any folder."""
    own = FOLDER / name / f"{OWN_TABLE}.csv"
    return own if own.exists() else next(iter(FOLDER.glob(f"*/{name}.csv")), own)


def table_names() -> tuple[str, ...]:
    """Return the names of all tables."""
    files = FOLDER.glob("*/[!_]*.csv")
    return tuple(sorted(file.parent.name if file.stem == OWN_TABLE else file.stem for file in files))


@functools.cache
def table_of(*names: str) -> FlagTable:
    """Return the flags of several tables; a name that more than one has comes from the first."""
    if len(names) == 1:
        file = table_file(names[0])
        return FlagTable({row["name"]: _flag(row) for row in read_table(str(file), file.stem)})
    flags: dict[str, Flag] = {}
    for name in names:
        flags |= {**table_of(name), **flags}
    return FlagTable(flags)


_CALLED: Final = {"effect": "kind", "kind": "takes", "about": "what"}  # columns with another name than their field
COLUMNS: Final[Mapping[str, str]] = {
    name: _CALLED.get(name, name)
    for name in ("name", "effect", "weight", "kind", "default", "sets", "about", "file", "first", "last")
}
"""Columns of a table by field of `Flag`."""


def _flag(line: Mapping[str, str]) -> Flag:
    if line["kind"] not in get_args(FlagKind) or line["takes"] not in get_args(Takes):
        raise ValueError(f"flag {line['name']}: '{line['kind']}' and '{line['takes']}' are no class and no kind")
    return Flag(**{field: line[column] for field, column in COLUMNS.items()})  # type: ignore[arg-type]  # checked
