"""Answers as JSON, with the unit in every key. Names no key: the table of `simulator.show.report.keys` does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass, replace
from importlib import import_module
from operator import attrgetter
from typing import Any

from pydantic_core import to_json

from simulator.cost.pricing.estimate import Estimate
from simulator.question.units import TERA, to_mib
from simulator.search.result import Ranking
from simulator.show.report.keys import DERIVED, ITSELF, JsonKey, keys_of
from simulator.show.report.presentation import Presentation

ToUnit = Callable[[float], float]
"""Function from a number in base units to the written one."""


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Return JSON text; a number that is not finite raises ValueError."""
    with suppress(ValueError):  # of text that is no UTF-8
        text = to_json(value, indent=indent).decode()
        if "NaN" not in text and "Infinity" not in text:
            return text
    text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    # Surrogates, which stand for bytes of a file's name that are no UTF-8, cannot be written unescaped.
    return _SURROGATE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


_SURROGATE = re.compile("[\ud800-\udfff]")


def json_text(answer: object, presentation: Presentation) -> Iterator[str]:
    """Yield an answer as JSON text; the estimates of a ranking one at a time, as together they take gigabytes."""
    if not isinstance(answer, Ranking) or not answer.estimates:
        yield dumps(json_object(answer, presentation)) + "\n"
        return
    around = dumps(json_object(replace(answer, estimates=()), presentation))
    before, after = around.split('\n  "estimates": []', 1)
    yield f'{before}\n  "estimates": ['
    for number, estimate in enumerate(answer.estimates):
        text = dumps(json_object(estimate, presentation)).replace("\n", "\n    ")
        yield f"{',' if number else ''}\n    {text}"
    yield f"\n  ]{after}\n"


def json_lines(answer: Estimate | Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield an estimate, or those of a ranking, each as one line of JSON."""
    for estimate in answer.estimates if isinstance(answer, Ranking) else (answer,):
        yield dumps(json_object(estimate, presentation), indent=None) + "\n"


def json_object(value: object, presentation: Presentation, row: str = "", unit: ToUnit | None = None) -> dict[str, Any]:
    """Return an answer, or part of one, in the types JSON has.

    `row` shows it by another row than that of its type; `unit` is that of the key it stands under.
    """
    members: dict[str, Any] = {}
    kind = type(value)
    for key, attribute, unit_of_key in _readers(row or kind.__name__, kind):
        inner = attribute(value, presentation)
        if key.mark == "?" and inner is None:
            continue
        in_unit = unit if key.mark == "*" and unit is not None else unit_of_key
        members[key.name] = None if key.mark == "~" and not inner else _plain(inner, presentation, in_unit, key.row)
    return members


KeyReader = tuple[JsonKey, Callable[[Any, Presentation], Any], ToUnit]
_READERS: dict[tuple[str, type], tuple[KeyReader, ...]] = {}


def _readers(row: str, kind: type) -> tuple[KeyReader, ...]:
    """Return each key of a row with the reader of its value and its unit."""
    if (row, kind) not in _READERS:
        _READERS[row, kind] = tuple((key, _attribute(key.path), _unit(key.name)) for key in keys_of(row, kind))
    return _READERS[row, kind]


def _attribute(path: str) -> Callable[[Any, Presentation], Any]:
    if path == ITSELF:
        return lambda value, _: value
    if path.startswith(DERIVED):
        derived = import_module("simulator.show.report.derived")
        function: Callable[[Any, Presentation], Any] = getattr(derived, path.removeprefix(DERIVED))
        return function
    first, _, rest = path.partition(".")
    if not rest:
        read = attrgetter(path)
        return lambda value, _: read(value)
    before, after = attrgetter(first), attrgetter(rest)
    return lambda value, _: None if (inner := before(value)) is None else after(inner)


def _unit(key: str) -> ToUnit:
    return mib if "_mib" in key else _teraflops if "tflops" in key else significant


def _teraflops(flops_per_second: float) -> float:
    return significant(flops_per_second / TERA)


def _plain(value: Any, presentation: Presentation, unit: ToUnit, row: str = "") -> Any:
    """Return a value in the types JSON has; anything unknown as text."""
    shown = value
    if isinstance(value, float) or (isinstance(value, int) and unit is mib and not isinstance(value, bool)):
        shown = unit(value)
    elif is_dataclass(value) or hasattr(value, "_fields"):
        shown = json_object(value, presentation, row, unit)
    elif isinstance(value, Mapping):
        shown = {str(key): _plain(inner, presentation, unit, row) for key, inner in value.items()}
    elif isinstance(value, list | tuple):
        shown = [_plain(inner, presentation, unit, row) for inner in value]
    elif value is not None and not isinstance(value, str | bool | int):
        shown = str(value)
    return shown


def plain(value: object) -> Any:
    """Return a value in the types JSON has, numbers in base units; anything unknown as text."""
    return _plain(value, Presentation(), significant)


def mib(size_bytes: float) -> float:
    """Return bytes as MiB to three decimals: about a kilobyte."""
    return round(to_mib(float(size_bytes)), 3) + 0.0


def significant(value: float) -> float:
    """Return ``value`` to nine significant digits, so that parts still add up to more than anybody reads."""
    return float(f"{float(value):.9g}") + 0.0
