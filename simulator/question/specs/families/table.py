"""Table of families (families.yaml): meaning of the keys of a Hugging Face configuration, by `model_type`.

Reads the table, and no configuration: `reading` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from simulator.errors import did_you_mean
from simulator.question.specs.architectures import FAMILIES_FILE, architectures
from simulator.question.specs.documents import read_yaml

_REFUSED: Final = "_refused"
"""Entry of refused families, each with the nearest priced one and its difference."""
_OF_A_FIELD: Final = ("read", "set")
"""Sections keyed by a field of a model spec; a field in one replaces that in the other."""


@dataclass(frozen=True)
class Family:
    """Reading of one family's configuration; the sections are those that the head of families.yaml explains."""

    rename: Mapping[str, str] = field(default_factory=dict)
    assume: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    read: Mapping[str, str | int] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    when: tuple[Mapping[str, Any], ...] = ()
    layers: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=128)
def family(name: str) -> Family:
    """Return a family merged with the families that its `like` names."""
    sections: dict[str, Any] = {}
    for entry in _lineage(name):
        for section in _OF_A_FIELD:
            other = sections.get(_OF_A_FIELD[section == "read"], {})
            for key in entry.get(section, {}):
                other.pop(key, None)
        for section, values in entry.items():
            if section == "when":
                sections["when"] = (*sections.get("when", ()), *values)
            elif section != "like":
                sections[section] = {**sections.get(section, {}), **values}
    return Family(**sections)


def refusal(name: str) -> str:
    """Return why a family is not priced, in one line: the nearest priced one, and the difference where known."""
    message = f"'{name[:60]}' cannot be priced"
    refused = _table()[_REFUSED]
    if name in refused:
        nearest, differs = refused[name]
        return f"{message}; the nearest that is: {nearest}; it differs by {differs}"
    known = architectures()
    return f"{message}{did_you_mean(name, known) or ';'} known: {', '.join(known)}"


def _lineage(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries that make up a family, those of `like` first."""
    entry = _table()[name]
    like = entry.get("like", [])
    for parent in [like] if isinstance(like, str) else like:
        yield from _lineage(parent)
    yield entry


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(FAMILIES_FILE)
    return table
