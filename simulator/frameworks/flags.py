"""The tables of flags and keys: for each framework its words, what each sets and what is not priced. Reads no recipe.

A row says once what a word means, and everything that reads or writes the word goes by it::

    name                        kind    takes   sets
    tensor_model_parallel_size  priced  value   layout.tensor_parallel
    model_parallel_size         priced  value   alias:tensor_model_parallel_size
    no_rope_fusion              priced  switch  option.fused_rotary=false
    normalization               priced  value   model.norm=rmsnorm:rms_norm|layer_norm
    seed                        no_effect

Names, defaults and versions come from a checkout of the framework (`tools/flag_names.py`); class and meaning come
from a person who read what the word does. `sets` is explained at `Meaning`.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

FlagKind = Literal["priced", "no_effect", "not_modelled"]
"""`priced`: a reader takes it; `no_effect`: on memory and speed; `not_modelled`: it has one that is not priced."""
FlagWeight = Literal["", "figure", "activations", "bound", "verdict"]
"""Of what is not modelled: whether it moves a figure within its interval, only lessens what the passes hold or the need
as a whole (what fits without it fits with it), or may turn a verdict."""
Takes = Literal["value", "switch", "optional", "list"]
"""What follows a flag: one value, nothing, a value or nothing, or several."""
TargetKind = Literal["layout", "option", "model", "workload"]
"""A field of `Layout`, a switch of `FrameworkProfile`, a field of `ModelSpec`, a field of `AskedRun`."""
FOLDER: Final = Path(__file__).resolve().parent
"""Where each framework has its folder."""
OWN_TABLE: Final = "words"
"""Name of the table that is called like its folder."""
_OFF: Final = frozenset(["", "0", "false", "no", "off", "none", "null", "disable"])
_ALIAS: Final = "alias:"
ANY_TEXT: Final = "*"
"""Stands in `Meaning.values` for every text that is not listed."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """One thing that a flag sets, as the column `sets` spells it.

    `layout.tensor_parallel` takes the flag's own value; a switch that is on is `true`. `option.fused_rotary=false` is
    what a flag that is on sets. `model.norm=rmsnorm:rms_norm,*:layer_norm` goes by the flag's text, in small letters or
    as a number, with `*` for all other texts: `*:*` takes them as they are, and a text with nothing behind its colon
    sets nothing. `option.gradient_dtype=true:fp32,false:bf16` goes by whether a switch is on. Behind `|` stands what
    holds where no flag of the target sets it: `option.tp_comm_overlap=true|false`. A flag that sets several things has
    them with `;` between.
    """

    kind: TargetKind
    name: str
    """Field or switch."""
    values: Mapping[str, str]
    """Value by text of the flag; empty where it is the text itself."""
    otherwise: str | None = None
    """Value where no flag of the target has one; None where the framework's default is left alone."""

    @property
    def target(self) -> str:
        """Kind and name, as the table has them."""
        return f"{self.kind}.{self.name}"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag or key of a framework."""

    about: str
    """What it is read as, what kind of setting it is, or what is not priced."""
    kind: Takes = "value"
    name: str = ""
    """With underscores, no dashes in front."""
    effect: FlagKind | Literal[""] = "priced"
    """Empty only while a new release is read, before a person has classified it."""
    weight: FlagWeight = ""
    default: str = ""
    """As text; empty where the framework computes it."""
    sets: str = ""
    """What a flag that is priced sets, see `Meaning`; empty where its framework's own code reads it."""
    file: str = ""
    """Where the framework defines it."""
    first: str = ""
    """Oldest version read that has it."""
    last: str = ""
    """Newest version read that has it."""

    def is_off(self, text: str) -> bool:
        """Whether a value is the framework's default, or says that the flag does nothing."""
        lowered = text.strip().strip("\"'").lower()
        return self.kind != "switch" and (lowered in _OFF or lowered == self.default.lower() or self._idle(lowered))

    def _idle(self, text: str) -> bool:
        try:
            return float(text) in (0.0, float(self.default or "0"))
        except ValueError:
            return False

    def aliases(self) -> Iterator[tuple[str, str]]:
        """The flags whose other name this is, each with what stands behind its name.

        `alias:x` is flag x with this one's value, `alias:x=!` its opposite, and `alias:recompute_granularity=full` that
        flag with this value.
        """
        for part in self._parts(alias=True):
            name, _, text = part.removeprefix(_ALIAS).partition("=")
            yield name, text

    def _parts(self, *, alias: bool) -> Iterator[str]:
        """What the flag sets, each alone: other names of flags, or targets."""
        parts = (part.strip() for part in self.sets.split(";"))
        return (part for part in parts if part and part.startswith(_ALIAS) == alias)

    def meanings(self) -> Iterator[Meaning]:
        """The targets that the flag sets. Raises ValueError for a text that is no meaning."""
        for part in self._parts(alias=False):
            target, equals, text = part.partition("=")
            kind, _, name = target.partition(".")
            if kind not in get_args(TargetKind) or not name or bool(equals) != bool(text):
                raise ValueError(f"flag {self.name}: sets '{part}'")
            text, bar, otherwise = text.partition("|")
            values = dict(_entry(entry) for entry in text.split(",")) if text else {}
            yield Meaning(kind, name, values, otherwise if bar else None)  # type: ignore[arg-type]  # checked


def _entry(text: str) -> tuple[str, str]:
    """A value, or a text of the flag and its value."""
    before, colon, after = text.partition(":")
    return (before.lower(), after) if colon else (ANY_TEXT, before)


class FlagTable(Mapping[str, Flag]):
    """Flags of one framework, or of several that a recipe may mix; of a name that several have, the first one's."""

    def __init__(self, flags: Mapping[str, Flag]) -> None:
        self._flags = flags

    def __getitem__(self, name: str) -> Flag:
        """A flag by its name. Raises KeyError."""
        return self._flags[name]

    def __iter__(self) -> Iterator[str]:
        """Their names."""
        return iter(self._flags)

    def __len__(self) -> int:
        """Number of flags."""
        return len(self._flags)

    def changed(self, flags: Mapping[str, Flag]) -> FlagTable:
        """The table with these flags in place of its own."""
        return FlagTable({**self._flags, **flags})

    def passes(self, name: str) -> bool:
        """Whether a name is a flag without effect on memory and speed, as far as they are modelled."""
        return name in self._flags and self._flags[name].effect == "no_effect"

    def of(self, name: str) -> Flag | None:
        """The flag of a name, or the row of all names that start so: `profiler.*`."""
        return self._flags.get(name) or next((flag for start, flag in self._starts if name.startswith(start)), None)

    @functools.cached_property
    def _starts(self) -> tuple[tuple[str, Flag], ...]:
        return tuple((name[:-1], flag) for name, flag in self._flags.items() if name.endswith("*"))

    @functools.cached_property
    def meanings(self) -> Mapping[str, tuple[tuple[Flag, Meaning], ...]]:
        """For each target the flags that set it, in the order of the tables."""
        pairs_of: dict[str, list[tuple[Flag, Meaning]]] = {}
        for flag in self._flags.values():
            for meaning in flag.meanings():
                pairs_of.setdefault(meaning.target, []).append((flag, meaning))
        return {target: tuple(pairs) for target, pairs in pairs_of.items()}

    @functools.cached_property
    def aliases(self) -> Mapping[str, tuple[tuple[Flag, str], ...]]:
        """For each flag its other names, with what stands behind the flag's name there."""
        pairs_of: dict[str, list[tuple[Flag, str]]] = {}
        for flag in self._flags.values():
            for name, text in flag.aliases():
                pairs_of.setdefault(name, []).append((flag, text))
        return {name: tuple(pairs) for name, pairs in pairs_of.items()}


def table_file(name: str) -> Path:
    """The file of a table: `words.csv` of the folder of that name, else a further table of some folder."""
    own = FOLDER / name / f"{OWN_TABLE}.csv"
    return own if own.exists() else next(iter(FOLDER.glob(f"*/{name}.csv")), own)


def table_names() -> tuple[str, ...]:
    """Every table, by name."""
    files = FOLDER.glob("*/*.csv")
    return tuple(sorted(file.parent.name if file.stem == OWN_TABLE else file.stem for file in files))


@functools.cache
def table_of(*names: str) -> FlagTable:
    """The flags of tables by name; of a name that several have, the first one's."""
    flags: dict[str, Flag] = {}
    for name in names:
        with table_file(name).open(encoding="utf-8", newline="") as stream:
            for line in csv.DictReader(stream):
                flag = _flag(line)
                flags.setdefault(flag.name, flag)
    return FlagTable(flags)


COLUMNS: Final[Mapping[str, str]] = {
    "name": "name",
    "effect": "kind",
    "weight": "weight",
    "kind": "takes",
    "default": "default",
    "sets": "sets",
    "about": "what",
    "file": "file",
    "first": "first",
    "last": "last",
}
"""Fields of a flag, and their columns in a table."""


def _flag(line: Mapping[str, str]) -> Flag:
    if line["kind"] not in get_args(FlagKind) or line["takes"] not in get_args(Takes):
        raise ValueError(f"flag {line['name']}: '{line['kind']}' and '{line['takes']}' are no class and no kind")
    return Flag(**{field: line[column] for field, column in COLUMNS.items()})  # type: ignore[arg-type]  # checked
