"""JSON Schema of the answers, and their keys as rows, from their types by the table of `simulator.show.report.keys`.

Descriptions are the docstrings of the fields. Imports every answer, and is itself imported only when it is asked for.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from simulator.answers.compare import Comparison
from simulator.answers.explain import Explanation
from simulator.answers.plan import Plan
from simulator.answers.run import TrainingRun
from simulator.answers.sweep import Sweep
from simulator.cost.pricing.estimate import Estimate, StageMemory
from simulator.lab.probe.run import Prepared, Probed
from simulator.lab.runner.campaign import Refused
from simulator.lab.runner.compare import LayoutComparison, Learned
from simulator.lab.trace.tracing import TraceComparison
from simulator.recipes.check.verdict import Checks
from simulator.search.result import Ranking
from simulator.show.report import derived
from simulator.show.report.keys import DERIVED, ITSELF, keys_of
from simulator.show.report.validate_table import Validation

ROOTS: Mapping[str, type] = {
    "estimate": Estimate,
    "ranking": Ranking,
    "plan": Plan,
    "comparison": Comparison,
    "explanation": Explanation,
    "sweep": Sweep,
    "validation": Validation,
    "trace": TraceComparison,
    "probe": Probed,
    "probe_plan": Prepared,
    "verdicts": Checks,
}
"""Types of whole answers, by the name of their definition."""
_NONE = re.compile(r"\bNone\b")
_NAMES = {kind: name for name, kind in ROOTS.items()}
_OF_DERIVED = {
    kind.__name__: kind
    for kind in (Checks, Estimate, LayoutComparison, Learned, Path, Probed, Refused, StageMemory, TrainingRun)
}
"""Types that `derived` imports for type checkers only."""
_ROWS = {
    "EstimateLayout": "A layout, and the step that it trains.",
    "ExplainedChange": "A set of changes after which the layout fits.",
    "PredictedPeak": "The predicted peak of the traced rank: tensors alone.",
}
"""Meanings of rows that show a type in another way than its own."""
_PLAIN: Mapping[object, Mapping[str, object]] = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    Path: {"type": "string"},
    type(None): {"type": "null"},
}


def schema(*answers: str) -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of some answers, all by default, with a definition of each kind of object."""
    definitions: dict[str, Any] = {}
    for name in answers or ROOTS:
        _refer(ROOTS[name], ROOTS[name].__name__, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What simulate prints with --format json",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in answers or ROOTS],
        "$defs": definitions,
    }


def answer_names() -> tuple[str, ...]:
    """Return the names of the answers."""
    return tuple(ROOTS)


def answer_rows() -> list[dict[str, str]]:
    """Return one row for each answer: its name and its meaning."""
    definitions = schema()["$defs"]
    return [{"answer": name, "meaning": definitions[name]["description"]} for name in ROOTS]


def key_rows(answer: str) -> list[dict[str, str]]:
    """Return one row for each key of an answer: its path, type and meaning. An answer inside it is one row."""
    return list(_key_rows(answer, "", schema(answer)["$defs"]))


def _key_rows(name: str, above: str, definitions: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for key, value in definitions[name]["properties"].items():
        left_out = "" if key in definitions[name]["required"] else ", or left out"
        yield {"key": above + key, "type": _type_text(value) + left_out, "meaning": value["description"]}
        for inner in value.get("anyOf", [value]):
            part = inner.get("items", inner).get("$ref", "").rpartition("/")[2]
            if part and part not in ROOTS:
                yield from _key_rows(part, f"{above}{key}{'[]' if 'items' in inner else ''}.", definitions)


def _type_text(value: Mapping[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(map(_type_text, value["anyOf"]))
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return name if name in ROOTS else "object"
    if "enum" in value:
        return ", ".join(map(str, value["enum"]))
    if value.get("type") == "array":
        return f"list of {_type_text(value['items'])}"
    if "additionalProperties" in value:
        return f"{_type_text(value['additionalProperties'])} by name"
    return str(value.get("type", "anything"))


def _refer(kind: type, row: str, definitions: dict[str, Any]) -> dict[str, str]:
    """Return a reference to the definition of a type, which is added where it is missing."""
    name = _NAMES[kind] if row == kind.__name__ and kind in _NAMES else _snake(row)
    if name not in definitions:
        definitions[name] = {}
        definitions[name] |= _object(kind, row, definitions)
    return {"$ref": f"#/$defs/{name}"}


def _object(kind: type, row: str, definitions: dict[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for key in keys_of(row, kind):
        annotation, about = _known(kind, key.path)
        if key.mark == "~":
            annotation = annotation | None
        if "_mib" in key.name and annotation in (int, Mapping[str, int]):
            annotation = float if annotation is int else Mapping[str, float]  # bytes are whole, MiB are not
        value = _value(annotation, key.row, definitions)
        about = about or _meaning(value, definitions)
        properties[key.name] = {**value, "description": _NONE.sub("null", about)}
    return {
        "type": "object",
        "description": _about(kind, row),
        "required": [key.name for key in keys_of(row, kind) if key.mark != "?"],
        "properties": properties,
    }


def _meaning(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Return the meaning of a field without a docstring: that of the object, or of the objects, that it holds."""
    for inner in (value, *value.get("anyOf", ()), value.get("items", {})):
        if "$ref" in inner:
            return str(definitions[inner["$ref"].rpartition("/")[2]].get("description", ""))
    return ""


def _known(kind: type, path: str) -> tuple[Any, str]:
    """Return type and meaning of the value at a path."""
    if path == ITSELF:
        return kind, ""
    if path.startswith(DERIVED):
        function = getattr(derived, path.removeprefix(DERIVED))
        return get_type_hints(function, localns=_OF_DERIVED)["return"], function.__doc__
    annotation: Any = kind
    about = ""
    optional = False
    for name in path.split("."):
        annotation, about = _attribute(_without_none(annotation), name)
        optional = optional or annotation is not _without_none(annotation)
    return (annotation | None if optional else annotation), about


def _attribute(kind: Any, name: str) -> tuple[Any, str]:
    held = inspect.getattr_static(kind, name, None)
    if isinstance(held, property):
        return get_type_hints(held.fget)["return"], str(held.__doc__)
    return get_type_hints(kind)[name], _docstrings(kind).get(name, "")


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the string under each field of a class and of those that it inherits from."""
    inherited = kind.__base__
    below: dict[str, str] = _docstrings(inherited) if is_dataclass(inherited) else {}
    tree = ast.parse(inspect.getsource(sys.modules[kind.__module__]))
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    return below | {
        field.target.id: " ".join(str(text.value.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


def _value(annotation: Any, row: str, definitions: dict[str, Any]) -> dict[str, Any]:  # noqa: PLR0911  one per kind of type
    """Return the schema of a value of a type."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in _PLAIN:
        return dict(_PLAIN[annotation])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_value(argument, row, definitions) for argument in arguments]}
    if origin in (tuple, list):
        return {"type": "array", "items": _value(arguments[0], row, definitions)}
    if origin is not None and issubclass(origin, Mapping):
        words = {"propertyNames": _value(arguments[0], row, definitions)} if arguments[0] is not str else {}
        return {"type": "object", **words, "additionalProperties": _value(arguments[1], row, definitions)}
    if inspect.isclass(annotation) and annotation is not object:
        return _refer(annotation, row or annotation.__name__, definitions)
    return {}


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        return next(argument for argument in get_args(annotation) if argument is not type(None))
    return annotation


def _about(kind: type, row: str) -> str:
    return _ROWS.get(row) or (kind.__doc__ or "").strip().partition("\n")[0]


def _snake(name: str) -> str:
    return "".join(f"_{mark.lower()}" if mark.isupper() else mark for mark in name).removeprefix("_")
