"""What is known of each framework's flags: tables beside this package, made of the frameworks' own definitions.

Each table is a CSV that `tools/flag_names.py` keeps: names, defaults and versions come from a checkout of the
framework, the class of a name from a person who read what it does.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Class = Literal["priced", "no_effect", "not_modelled"]
"""`priced`: a reader takes it; `no_effect`: on memory and speed; `not_modelled`: it has one that is not priced."""
Weight = Literal["", "figure", "activations", "bound", "verdict"]
"""Of what is not modelled: whether it moves a figure within its interval, only lessens what the passes hold or the need
as a whole (what fits without it fits with it), or may turn a verdict."""
Takes = Literal["value", "switch", "optional", "list"]
"""What follows a flag: one value, nothing, a value or nothing, or several."""
FOLDER: Final = Path(__file__).resolve().parents[1] / "flags"
_OFF: Final = frozenset(["", "0", "false", "no", "off", "none", "null", "disable"])


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag or key of a framework."""

    about: str
    """What it is read as, what kind of setting it is, or what is not priced; the documentation shows it."""
    kind: Takes = "value"
    name: str = ""
    """With underscores, no dashes in front."""
    effect: Class | Literal[""] = "priced"
    """Empty only while a new release is read, before a person has classified it."""
    weight: Weight = ""
    default: str = ""
    """As text; empty where the framework computes it."""
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


@functools.cache
def flags_of(*frameworks: str) -> Mapping[str, Flag]:
    """The flags of frameworks by name; of a name that several have, the first framework's."""
    found: dict[str, Flag] = {}
    for framework in frameworks:
        with (FOLDER / f"{framework}.csv").open(encoding="utf-8", newline="") as stream:
            for line in csv.DictReader(stream):
                flag = _flag(line)
                found.setdefault(flag.name, flag)
    return found


def read_of(*frameworks: str) -> dict[str, Flag]:
    """Those that a reader takes, and those that it has to speak of."""
    return {name: flag for name, flag in flags_of(*frameworks).items() if flag.effect != "no_effect"}


def passed_of(*frameworks: str) -> frozenset[str]:
    """Those that change neither memory nor speed as far as they are modelled."""
    return frozenset(name for name, flag in flags_of(*frameworks).items() if flag.effect == "no_effect")


COLUMNS: Final[Mapping[str, str]] = {
    "name": "name",
    "effect": "kind",
    "weight": "weight",
    "kind": "takes",
    "default": "default",
    "about": "what",
    "file": "file",
    "first": "first",
    "last": "last",
}
"""Fields of a flag, and their columns in a table."""


def _flag(line: Mapping[str, str]) -> Flag:
    if line["kind"] not in get_args(Class) or line["takes"] not in get_args(Takes):
        raise ValueError(f"flag {line['name']}: '{line['kind']}' and '{line['takes']}' are no class and no kind")
    return Flag(**{field: line[column] for field, column in COLUMNS.items()})  # type: ignore[arg-type]  # checked
