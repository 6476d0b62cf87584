"""The texts of `scenario/typed.py` and `scenario/keywords.py`, which `python -m tools.regenerate types` writes."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_args, get_origin

import simulator
from simulator.question import vocabulary
from simulator.question.scenario.inputs import INPUTS, LISTS, REQUIRED, WORKLOAD, InputSetting, Workload
from simulator.question.scenario.layout import FIELDS, SETTINGS, Layout

FOLDER = Path(simulator.__file__).parent / "question" / "scenario"

_HEAD = '''"""Layouts by column, and the values that a search tries, as types.

Written from the fields of `Layout` by `python -m tools.regenerate types`, never by hand.
"""

from __future__ import annotations

import numpy as np

from simulator.question.arrays import NDArray
from simulator.question.vocabulary import Offload, RecomputeMethod, RecomputeMode, RecomputeModule, ScheduleName
from simulator.records import Bare, Record

Array = NDArray[np.float64]
"""One number per layout, shape (n,)."""
'''
_HEAD_OF_KEYWORDS = '''"""Typed dictionaries of the inputs of a question, for type checkers and completion in Python.

Written from the fields of `Layout` and from `INPUTS` by `python -m tools.regenerate types`, never by hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Required, TypedDict

from simulator.question import vocabulary as words
'''


def _type(setting: InputSetting) -> str:
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
    return "\n".join(["class Columns(Bare, kw_only=True):", *lines])


def _axes() -> str:
    lines = ['    """Allowed values per axis; None, or no layers, is the default described at each field."""', ""]
    for setting in SETTINGS:
        kind = _type(setting)
        many = f"{kind} = ()" if setting.kind in LISTS else f"tuple[{kind}, ...] | None = None"
        lines += [f"    {setting.name}: {many}", f'    """Default: {setting.search}."""']
    return "\n".join(["class Axes(Record, kw_only=True):", *lines])


def _layout_fields() -> str:
    lines = ['    """Fields of a layout by name or by key; None counts as left out."""', ""]
    for setting in SETTINGS:
        lines += [f"    {name}: {_type(setting)} | None" for name in dict.fromkeys((setting.name, setting.key))]
    return "\n".join(["class LayoutFields(TypedDict, total=False):", *lines])


def _searched() -> str:
    lines = [
        '    """Fields of a layout by name or by key, each a value or some to choose from; None leaves it open."""',
        "",
    ]
    for setting in SETTINGS:
        kind = _type(setting)
        some = kind if setting.kind in LISTS else f"{kind} | Sequence[{kind}]"
        lines += [f"    {name}: {some} | None" for name in dict.fromkeys((setting.name, setting.key))]
    return "\n".join(["class SearchedFields(TypedDict, total=False):", *lines])


OF_OFFERS = ("model", "hardware", "nodes", "devices", "precision")
"""Inputs that a plan takes by another name, or from its offers."""
_OF_KIND = {
    "count": "int | str",
    "model": "FileName | Mapping[str, Any]",
    "hardware": "FileName",
    "switches": "Mapping[str, str]",
    "file": "FileName",
    "share": "float | str",
    "images": "str",
    "lengths": "FileName | Mapping[int, float] | Sequence[int]",
}
_WORDS = {get_args(value): name for name, value in vars(vocabulary).items() if get_origin(value) is Literal}


def _input(setting: InputSetting) -> str:
    kind = _WORDS[setting.choices] if setting.kind == "word" else _OF_KIND[setting.kind]
    return f"Required[{kind}]" if setting.default is REQUIRED else f"{kind} | None" if setting.default is None else kind


def _inputs() -> str:
    # A scenario's workload is numbers; a question has texts such as 8k for them.
    workload = [f"    {one.name}: {_input(one).replace('int | str', 'int')}" for one in WORKLOAD]
    shared = [f"    {one.name}: {_input(one)}" for one in INPUTS if one.name not in OF_OFFERS]
    machines = [f"    {one.name}: {_input(one)}" for one in INPUTS if one.name in OF_OFFERS]
    classes = (
        (
            "class WorkloadFields(TypedDict, total=False):",
            f'    """{(Workload.__doc__ or "").strip()}"""',
            "",
            *workload,
        ),
        (
            "class SharedFields(TypedDict, total=False):",
            '    """Inputs of a question that all offers of a plan share."""',
            "",
            *shared,
        ),
        (
            "class QuestionFields(SharedFields, total=False):",
            '    """Inputs of a question; see `simulator.estimate`."""',
            "",
            *machines,
        ),
        (
            "class EstimateFields(QuestionFields, LayoutFields, total=False):",
            '    """Inputs of a question, and its layout."""',
        ),
        (
            "class OpenFields(SharedFields, LayoutFields, total=False):",
            '    """Inputs and layout that replace those of an estimate or a recipe; all optional."""',
            "",
            *(line.replace("Required[", "").replace("]]", "]") for line in machines),
        ),
        (
            "class RankFields(QuestionFields, SearchedFields, total=False):",
            '    """Inputs of a question, and the values that its layouts may have."""',
        ),
    )
    return "\n\n\n".join("\n".join(lines) for lines in classes)


def generated() -> Mapping[Path, str]:
    columns = [_HEAD.rstrip("\n"), _columns(), _axes()]
    names = re.compile(rf"\b({'|'.join((*_WORDS.values(), 'FileName'))})\b")
    classes = [names.sub(r"words.\1", part) for part in (_layout_fields(), _searched(), _inputs())]
    keywords = [_HEAD_OF_KEYWORDS.rstrip("\n"), *classes]
    files = {"typed": columns, "keywords": keywords}
    return {FOLDER / f"{name}.py": "\n\n\n".join(parts) + "\n" for name, parts in files.items()}
