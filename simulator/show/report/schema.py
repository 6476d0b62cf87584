"""JSON Schema of the answers, their keys as rows, and models that read their JSON, from the keys of `as_json`.

A key has the type and the meaning of its attribute.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache, reduce
from itertools import pairwise
from operator import or_
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema

from simulator.answers.compare import Comparison
from simulator.answers.explain import Explanation
from simulator.answers.plan import Plan
from simulator.answers.sweep import Sweep
from simulator.cost.pricing.estimate import Estimate
from simulator.lab.probe.run import Prepared, Probed
from simulator.lab.trace.tracing import TraceComparison
from simulator.recipes.check.verdict import Checks
from simulator.search.space import Ranking
from simulator.show.report.as_json import OR_LEFT_OUT, OR_NULL, JsonKey, object_of, objects, unit_of
from simulator.show.report.lab import Validation
from simulator.show.report.text import mib

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
"""Types of whole answers by the name of their object."""


class Shown(BaseModel):
    """Object of the JSON."""

    model_config = ConfigDict(protected_namespaces=())


def answer_model(name: str) -> type[Shown]:
    """Return the model of an answer, which reads its JSON back."""
    return _model(name, ROOTS[name])


@cache
def _model(name: str, kind: type) -> type[Shown]:
    """Return the model of an object that shows a type."""
    about = next((key.meaning for key in objects()[name] if not key.name), _about(kind))
    members: dict[str, Any] = {}
    for key in objects()[name]:
        if key.name:
            default: Any = None if key.form == OR_LEFT_OUT else ...
            members[key.name] = (_type(kind, key), Field(default, description=_meaning(kind, key)))
    words = kind.__name__ if name in ROOTS else "".join(map(str.title, name.split("_")))
    return create_model(f"{words}Json", __base__=Shown, __doc__=about, **members)


def _type(kind: type, key: JsonKey) -> Any:
    """Return the type of a key: its function's, or its attribute's as it is shown."""
    if key.function is not None:
        return key.function.kind
    annotation = _shown_type(_attribute(kind, key.source)[0], key)
    first, _, rest = key.source.partition(".")
    absent = bool(rest) and NoneType in get_args(_attribute(kind, first)[0])
    return annotation | None if absent or key.form == OR_NULL else annotation


def _shown_type(annotation: Any, key: JsonKey) -> Any:
    """Return a type with models for the objects in it, and JSON's types for others."""
    if isinstance(annotation, type) and (name := object_of(annotation.__name__, key.form)) and _object_in(annotation):
        return _model(name, annotation)
    if annotation is int and unit_of(key) is mib:
        return float
    inner = tuple(_shown_type(each, key) for each in get_args(annotation))
    origin = get_origin(annotation)
    if not inner or origin is Literal:
        return str if annotation is Path else annotation
    if origin is tuple:
        return list[inner[0]]  # type: ignore[valid-type]  # one of the types of JSON
    return reduce(or_, inner) if origin in (Union, UnionType) else origin[inner]


def schema(*answers: str) -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of some answers, all by default, with a definition of each kind of object."""
    names = answers or tuple(ROOTS)
    models: list[tuple[type[Shown], Literal["serialization"]]] = [(answer_model(x), "serialization") for x in names]
    _, made = models_json_schema(models, ref_template="#/$defs/{model}", schema_generator=_Described)
    definitions = {_definition(model): value for model, value in made["$defs"].items()}
    text = re.sub(r'(?<="#/\$defs/)\w+', lambda model: _definition(model[0]), json.dumps(definitions))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What simulate prints with --format json",
        "anyOf": [{"$ref": f"#/$defs/{name}"} for name in names],
        "$defs": json.loads(text),
    }


def _definition(model: str) -> str:
    """Return the name of a model's definition: that of its answer, else `stage_memory` for `StageMemoryJson`."""
    name = model.removesuffix("Json")
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
    return next((answer for answer, kind in ROOTS.items() if kind.__name__ == name), words)


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
    if "const" in value or "enum" in value:
        return ", ".join(map(str, value.get("enum") or [value["const"]]))
    if value.get("type") == "array":
        return f"list of {_type_text(value['items'])}"
    if "additionalProperties" in value:
        inner = value["additionalProperties"]
        return f"{'anything' if inner is True else _type_text(inner)} by name"
    return str(value.get("type", "anything"))


class _Described(GenerateJsonSchema):
    """Schemas with the meaning of every object and key in place of titles and defaults."""

    def field_title_should_be_set(self, _schema: Any) -> bool:
        """Return False: names of keys are titles enough."""
        return False

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a model; a key is left out only where it has a default."""
        fields = schema["cls"].model_fields
        required = [name for name, field in fields.items() if field.is_required()]
        meanings = {name: field.description for name, field in fields.items()}
        return _described(super().model_schema(schema), schema["cls"].__doc__, required, meanings)

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a dataclass, all of whose fields are keys."""
        kind: type = schema["cls"]
        names = [field["name"] for field in schema["schema"]["fields"]]
        meanings = {name: _meaning(kind, JsonKey(name, name, "", "")) for name in names}
        return _described(super().dataclass_schema(schema), _about(kind), names, meanings)


def _described(made: JsonSchemaValue, about: str, required: list[str], meanings: Mapping[str, str]) -> JsonSchemaValue:
    for name, value in made["properties"].items():
        value.pop("default", None)
        value["description"] = re.sub(r"\bNone\b", "null", meanings[name])
    made.pop("title", None)
    return {**made, "description": about, "required": required}


def _meaning(kind: type, key: JsonKey) -> str:
    """Return the meaning of a key: its own, that of the attribute, or of the objects that the attribute holds."""
    if key.function is not None:
        return key.meaning
    annotation, text = _attribute(kind, key.source)
    return key.meaning or text or _about(_object_in(annotation) or kind)


def _attribute(kind: type, path: str) -> tuple[Any, str]:
    """Return type and docstring of the attribute at a path, which is the object itself where it is empty."""
    annotation: Any = kind
    text = ""
    for name in filter(None, path.split(".")):
        kind = _object_in(annotation) or kind
        held = inspect.getattr_static(kind, name, None)
        if isinstance(held, property):
            annotation, text = get_type_hints(held.fget)["return"], str(held.__doc__)
        else:
            annotation, text = get_type_hints(kind)[name], _docstrings(kind).get(name, "")
    return annotation, text


def _object_in(annotation: Any) -> type | None:
    """Return the dataclass or named tuple in a type of value."""
    if isinstance(annotation, type) and (is_dataclass(annotation) or hasattr(annotation, "_fields")):
        return annotation
    return next(filter(None, map(_object_in, get_args(annotation))), None)


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


def _about(kind: type) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0]
