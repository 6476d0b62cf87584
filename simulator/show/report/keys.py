"""Keys of the answers' JSON objects: the table that writer and schema read, `keys.csv`. Writes no JSON.

Its rows name a type, or another way of showing one, and a key of it, in order; those of a layout follow from its
fields. A type without a row shows its fields by their own names. What a key says, by example:

- `device_bytes`: the attribute of that name, under the key `device_mib`; seconds likewise end in `_s`.
- `tp=layout.tensor_parallel`: the key `tp`, from an attribute of an attribute.
- `runs=@runs`: from the function `runs` of `simulator.show.report.derived`.
- `layout=.:EstimateLayout`: the value itself, by the row `EstimateLayout`.
- `low*`: a number in the unit of the key that its object stands under.
- `training?`: left out where there is none. `error~`: null where it is empty.

Numbers under a key with `_mib` are in MiB, under one with `tflops` in 10^12 FLOP/s, all others in base units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Final, Literal, NamedTuple, cast

from simulator.question.scenario.layout import FIELDS
from simulator.question.scenario.settings import GROUPS
from simulator.question.specs.tables import read_table

DERIVED: Final = "@"
"""Prefix of a function's name, in the place of an attribute."""
ITSELF: Final = "."
"""Path of the object itself, in the place of an attribute."""
_WORD = re.compile(r"(?P<name>\w+)(?P<mark>[*?~]?)(?:=(?P<path>\.|@?\w[\w.]*))?(?::(?P<row>\w+))?")
_ENDS = (("_bytes", "_mib"), ("_seconds", "_s"))
"""Endings of attributes, with those of their keys."""


class JsonKey(NamedTuple):
    """Key of an object."""

    name: str
    path: str
    """Attributes joined by dots, `ITSELF`, or `DERIVED` and the name of a function."""
    row: str = ""
    """Row of the value; empty for that of its type."""
    mark: Literal["", "*", "?", "~"] = ""
    """`*`: in the unit of the key that the object stands under; `?`: left out for None; `~`: null where empty."""


_LAYOUT = {field.key: field.name for field in sorted(FIELDS, key=lambda field: GROUPS.index(field.group))}
"""Fields of a layout by key: sizes first, then what is recomputed, then the rest."""


_BESIDE = {"micro_batch_size": ("global_batch_size", "seq_length")}
"""Fields of the question that follow a field of the layout."""


@cache
def _rows() -> Mapping[str, tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {
        "Layout": tuple(f"{key}={name}" for key, name in _LAYOUT.items()),
        "EstimateLayout": (
            *(word for key, name in _LAYOUT.items() for word in (f"{key}=layout.{name}", *_BESIDE.get(key, ()))),
            *("lora_rank", "framework"),
        ),
    }
    for row in read_table(__file__, "keys"):
        rows[row["row"]] = (*rows.get(row["row"], ()), row["key"])
    return rows


@cache
def keys_of(row: str, kind: type) -> tuple[JsonKey, ...]:
    """Return the keys of a row; without a row, the fields of the type, each under its own name."""
    if row not in _rows():
        return tuple(JsonKey(name, name) for name in kind.__annotations__)
    return tuple(map(key_of, _rows()[row]))


def key_of(word: str) -> JsonKey:
    """Return the key of a word of a row."""
    match = _WORD.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is no key")
    name = match["name"]
    if match["path"] is None:
        for end, becomes in _ENDS:
            name = name.removesuffix(end) + becomes if name.endswith(end) else name
    mark = cast("Literal['', '*', '?', '~']", match["mark"])
    return JsonKey(name, match["path"] or match["name"], match["row"] or "", mark)
