"""The text of `simulator/question/scenario/typed.py`; `python -m tools.regenerate types` writes it."""

from collections.abc import Mapping
from pathlib import Path

import simulator
from simulator.question.scenario.layout import FIELDS, SETTINGS, Layout
from simulator.question.scenario.settings import LISTS, LayoutSetting

FILE = Path(simulator.__file__).parent / "question" / "scenario" / "typed.py"

_HEAD = '''"""The layout fields as type checkers need them spelled.

Written from the fields of `Layout` by `python -m tools.regenerate types`, and held to them by a test.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from simulator.question.vocabulary import (
    Offload,
    RecomputeMethod,
    RecomputeMode,
    RecomputeModule,
    ScheduleName,
)

Array = NDArray[np.float64]
"""One number per layout, shape (n,)."""
'''


def _type(setting: LayoutSetting) -> str:
    if setting.name in Layout.__annotations__:
        return str(Layout.__annotations__[setting.name])
    return "int"


def _columns() -> str:
    lines = ['    """Layouts with the same pipeline cut. Columns have shape (n,)."""', ""]
    for field in sorted(FIELDS, key=lambda field: not field.per_block):
        lines.append(f"    {field.name}: {_type(field) if field.per_block else 'Array'}")
        if field.kind == "word":
            lines.append(f'    """Index into {", ".join(field.choices)}."""')
        elif field.kind == "words":
            lines.append(f'    """Sum of 2 to the index into {", ".join(field.choices)}."""')
        elif field.kind == "flag":
            lines.append('    """1 where it is on, else 0."""')
    return "\n".join(["@dataclass(frozen=True, slots=True, kw_only=True)", "class Columns:", *lines])


def _axes() -> str:
    lines = ['    """Allowed values per axis; None, or no layers, is the default described at each field."""', ""]
    for setting in SETTINGS:
        kind = _type(setting)
        many = f"{kind} = ()" if setting.kind in LISTS else f"tuple[{kind}, ...] | None = None"
        lines += [f"    {setting.name}: {many}", f'    """Default: {setting.search}."""']
    return "\n".join(["@dataclass(frozen=True, slots=True, kw_only=True)", "class Axes:", *lines])


def _given() -> str:
    lines = ['    """Fields of a layout by name or by key; None counts as left out."""', ""]
    for setting in SETTINGS:
        lines += [f"    {name}: {_type(setting)} | None" for name in dict.fromkeys((setting.name, setting.key))]
    return "\n".join(["class LayoutFields(TypedDict, total=False):", *lines])


def text() -> str:
    """The file as it should be."""
    return "\n\n\n".join([_HEAD.rstrip("\n"), _columns(), _axes(), _given()]) + "\n"


def generated() -> Mapping[Path, str]:
    return {FILE: text()}
