"""Plain values of a file to a spec, with one-line errors that name file and key. Opens no file; `documents` does."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from simulator.errors import InputError, did_you_mean

ModelT = TypeVar("ModelT", bound=BaseModel)


def validated(where: str, model: type[ModelT], values: object) -> ModelT:
    """Return ``values`` as a ``model``; an InputError names ``where`` and every problem in it, by key path."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: must hold a mapping of keys to values")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise InputError(listed(where, _messages(model, error))) from error


def wrong_values(model: type[BaseModel], values: Mapping[str, object]) -> list[str]:
    """Return the problems of the values by key path; missing keys are none."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        return [message for message in _messages(model, error) if not message.endswith(": is missing")]
    return []


def listed(where: str, problems: Iterable[str]) -> str:
    """Return every problem of a file on one line."""
    messages = list(dict.fromkeys(problems))
    count = f"{len(messages)} problems: " if len(messages) > 1 else ""
    return f"{where}: {count}{'; '.join(messages)}"


def _messages(model: type[BaseModel], error: ValidationError) -> list[str]:
    problems = error.errors(include_url=False)
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")  # a typo explains a missing key
    return [_message(model, problem) for problem in problems]


def _message(model: type[BaseModel], problem: Any) -> str:
    """Return key path and reason of one pydantic error."""
    path = _key_path(problem["loc"])
    prefix = f"{path}: " if path else ""
    kind, value = problem["type"], problem["input"]
    if kind == "missing":
        return f"{prefix}is missing"
    if kind == "extra_forbidden":
        key = str(problem["loc"][-1])[:60]
        return f"{prefix}unknown key{did_you_mean(key, _keys(model, problem['loc']))}"
    reason = problem["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        allowed = problem["ctx"]["expected"]
        choices = [choice.strip("'") for choice in allowed.replace(" or ", ", ").split(", ")]
        near = did_you_mean(str(value), choices) or ";"
        return f"{prefix}{_excerpt(value)} is not allowed{near} allowed: {allowed}"
    if kind == "value_error":
        return f"{prefix}{reason}"
    return f"{prefix}{_excerpt(value)}: {reason[:1].lower()}{reason[1:]}"


def _key_path(steps: Sequence[int | str]) -> str:
    """Return a path such as ``links[0].latency``, without pydantic's own marks."""
    path = ""
    for step in steps:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            path += f".{step[:60]}" if path else step[:60]
    return path


def _keys(model: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """Return the keys allowed where the last step of ``steps`` stands, as near as the schema tells."""
    schema = model.model_json_schema()
    if len(steps) == 1:
        return list(schema["properties"])
    return [key for part in schema.get("$defs", {}).values() for key in part.get("properties", {})]


def _excerpt(value: object) -> str:
    """Return ``value`` cut for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    return f"'{text[:40]}...'" if len(text) > 40 else f"'{text}'"
