"""JSON Schema of the answers, and their keys as rows, from the models of `as_json`, `json_answers` and `json_lab`."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args, get_type_hints

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
from simulator.show.report import json_answers, json_lab
from simulator.show.report.as_json import At, EstimateJson, RankingJson, Shown, at_of, model_in
from simulator.show.report.lab import Validation

ROOTS: Mapping[str, tuple[type[Shown], type]] = {
    "estimate": (EstimateJson, Estimate),
    "ranking": (RankingJson, Ranking),
    "plan": (json_answers.PlanJson, Plan),
    "comparison": (json_answers.ComparisonJson, Comparison),
    "explanation": (json_answers.ExplanationJson, Explanation),
    "sweep": (json_answers.SweepJson, Sweep),
    "validation": (json_lab.ValidationJson, Validation),
    "trace": (json_answers.TraceComparisonJson, TraceComparison),
    "probe": (json_lab.ProbedJson, Probed),
    "probe_plan": (json_lab.PreparedJson, Prepared),
    "verdicts": (json_answers.ChecksJson, Checks),
}
"""Models of whole answers with the types that they show, by the name of their definition."""


def schema(*answers: str) -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of some answers, all by default, with a definition of each kind of object."""
    names = answers or tuple(ROOTS)
    models: list[tuple[type[Shown], Literal["serialization"]]] = [(ROOTS[name][0], "serialization") for name in names]
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
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", model.removesuffix("Json")).lower()
    return next((name for name, (root, _) in ROOTS.items() if root.__name__ == model), words)


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
        model: type[Shown] = schema["cls"]
        shown = _shown_types()[model]
        fields = model.model_fields
        meanings = {name: _meaning(shown, at_of(name, field)) for name, field in fields.items()}
        required = [name for name, field in fields.items() if field.is_required()]
        about = model.__dict__.get("__doc__") or _about(shown)
        return _described(super().model_schema(schema), about, required, meanings)

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """Return the schema of a dataclass, all of whose fields are keys."""
        kind: type = schema["cls"]
        names = [field["name"] for field in schema["schema"]["fields"]]
        meanings = {name: _meaning(kind, At(name)) for name in names}
        return _described(super().dataclass_schema(schema), _about(kind), names, meanings)


def _described(made: JsonSchemaValue, about: str, required: list[str], meanings: Mapping[str, str]) -> JsonSchemaValue:
    for name, value in made["properties"].items():
        value.pop("default", None)
        value["description"] = re.sub(r"\bNone\b", "null", meanings[name])
    made.pop("title", None)
    return {**made, "description": about, "required": required}


@cache
def _shown_types() -> Mapping[type[Shown], type]:
    """Return the type that each model shows, from those of the answers on."""
    types: dict[type[Shown], type] = {}

    def follow(model: type[Shown], shown: type) -> None:
        if model in types:
            return
        types[model] = shown
        for name, field in model.model_fields.items():
            inner, source = model_in(field.annotation), at_of(name, field).source
            if inner is not None and isinstance(source, str):
                follow(inner, _object_in(_attribute(shown, source)[0]) or shown)

    for model, shown in ROOTS.values():
        follow(model, shown)
    return types


def _meaning(shown: type, at: At) -> str:
    """Return the meaning of a key: its own, that of the attribute, or of the objects that the attribute holds."""
    if at.meaning or not isinstance(at.source, str):
        return at.meaning
    annotation, text = _attribute(shown, at.source)
    return text or _about(_object_in(annotation) or shown)


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
