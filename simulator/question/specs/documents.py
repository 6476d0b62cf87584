"""Documents that people fill in: CSV tables, YAML specs, their checks and the source of each value.

`gemm_efficiency: float = TABLED` says name and type of a coefficient; the row `gemm_efficiency` of `coefficients.csv`
says its prior, unit, bounds and meaning. `specs.catalogue` asks for specs, many modules for their tables.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from simulator.budget import charge
from simulator.errors import InputError, did_you_mean
from simulator.question import vocabulary
from simulator.question.units import MIB

TableRow = Mapping[str, str]
"""Cells of a row by column."""
TABLED: Final[Any] = object()
"""Placeholder default of a field that a table's row describes; `fields_from` replaces it."""
_Record = TypeVar("_Record")


def read_table(beside: str, table: str) -> list[dict[str, str]]:
    """Return the rows of `table`.csv in the folder of the module file `beside`."""
    with Path(beside).with_name(f"{table}.csv").open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table of this folder by their column `name`, in order."""
    return {row["name"]: row for row in read_table(__file__, table)}


def fields_from(
    rows: Mapping[str, TableRow], made: Callable[[TableRow, str], Any]
) -> Callable[[type[_Record]], type[_Record]]:
    """Return a decorator, used below `@dataclass`, that sets every `TABLED` field to `made(row, type)`.

    Raises TypeError where fields and rows are not the same, in the same order.
    """

    def decorated(record: type[_Record]) -> type[_Record]:
        names = [name for name, value in vars(record).items() if value is TABLED]
        if names != list(rows):
            wrong = sorted(set(names) ^ set(rows)) or "their order"
            raise TypeError(f"{record.__name__}: fields and rows of its table differ: {wrong}")
        for name in names:
            setattr(record, name, made(rows[name], record.__annotations__[name]))
        return record

    return decorated


def words_of(cell: str) -> tuple[Any, ...]:
    """Return the words and whole numbers of a cell; `*NAME` stands for all of a list of `question.vocabulary`."""
    lists = (getattr(vocabulary, word[1:]) if word.startswith("*") else (word,) for word in cell.split())
    return tuple(int(word) if word.isdecimal() else word for words in lists for word in words)


def number_of(cell: str) -> float:
    """Return the number of a cell, an int where it is written as one."""
    return int(cell) if cell.isdecimal() else float(cell)


def value_of(cell: str, annotation: str) -> Any:
    """Return a cell's value in the type of a field's annotation: a number, true or false, words, or text."""
    if annotation.startswith("tuple["):
        return words_of(cell)
    if annotation in ("int", "float"):
        return number_of(cell)
    return {"true": True, "false": False}[cell] if annotation == "bool" else cell


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
        keys = _keys(model, problem["loc"])
        allowed = f"; allowed: {', '.join(keys)}" if len(keys) <= _MOST_LISTED else ""
        return f"{prefix}unknown key{did_you_mean(key, keys) or allowed}"
    reason = problem["msg"].removeprefix("Value error, ")
    if kind == "literal_error":
        allowed = problem["ctx"]["expected"]
        choices = [choice.strip("'") for choice in allowed.replace(" or ", ", ").split(", ")]
        near = did_you_mean(str(value), choices) or ";"
        return f"{prefix}{_excerpt(value)} is not allowed{near} allowed: {allowed}"
    if kind == "value_error":
        return f"{prefix}{reason}"
    if kind in _FORMS:
        return f"{prefix}{_excerpt(value) if value not in (None, '') else 'is empty'}: must be {_FORMS[kind]}"
    return f"{prefix}{_excerpt(value)}: {reason[:1].lower()}{reason[1:]}"


_MOST_LISTED: Final = 16
"""Keys that a message on an unknown one lists."""
_FORMS: Final = {
    "string_type": "text",
    "string_too_short": "text",
    **dict.fromkeys(("tuple_type", "list_type"), "a list, such as [a, b]"),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type"), "a mapping, such as {key: value}"),
}
"""Forms of a value, by the kind of pydantic's error where it has another."""


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
    parts = schema.get("$defs", {})
    at: Any = schema
    for step in steps[:-1]:
        inner = at.get("properties", {}).get(step) or at.get("additionalProperties") or at.get("items") or {}
        at = parts.get(str(inner.get("$ref", "")).rpartition("/")[2], inner) if isinstance(inner, dict) else {}
    return list(at.get("properties", ())) or [key for part in parts.values() for key in part.get("properties", {})]


def _excerpt(value: object) -> str:
    """Return ``value`` cut for a message."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = str(value)
    return f"'{text[:40]}...'" if len(text) > 40 else f"'{text}'"


SourceStatus = Literal["verified", "measured", "assumed"]
"""Certainty of a number.

``verified``: a document that was read states it. ``measured``: a benchmark or
a running framework showed it. ``assumed``: derived, inferred or chosen.
"""

Name = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
"""Short identifier: letters, digits and ``. _ + -``."""

_MODEL_ID = r"^[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"
Alias = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^\w[\w.+-]*$")]
"""Another name of a spec, in any script."""
ModelId = Annotated[str, Field(min_length=1, max_length=200, pattern=_MODEL_ID)]
"""Name of a model, or its id on Hugging Face, `owner/name`."""

Text = Annotated[str, Field(max_length=4000)]
"""Free text for readers."""


def as_tuple(value: object) -> object:
    """Return a single source key as a tuple of one; any other value unchanged."""
    return (value,) if isinstance(value, str) else value


SourceKeys = Annotated[tuple[Name, ...], BeforeValidator(as_tuple), Field(min_length=1, max_length=20)]
"""Keys of the ``sources`` mapping of the same file; YAML may hold one key or a list."""

Sources = Mapping[Name, Annotated[str, Field(min_length=1, max_length=1000)]]
"""Key to description of a document: repository and file, page or listing."""


class Frozen(BaseModel):
    """Base of spec models: immutable, no unknown keys, no non-finite numbers."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        hide_input_in_errors=True,
        regex_engine="rust-regex",
        defer_build=True,
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return pydantic's copy, without the original's cached derived values."""
        copied = super().model_copy(update=dict(update or {}), deep=deep)
        for key in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[key]
        return copied


class Sourced(Frozen):
    """Base of values that name their source."""

    source: SourceKeys
    """Documents that state it: keys of the file's ``sources``."""
    status: SourceStatus
    """Certainty of the value."""
    note: Text = ""
    """Note on the value for readers."""


def refuse(problems: Iterable[str]) -> None:
    """Raise ValueError, as pydantic expects, with every problem; return where there is none."""
    if listed := "; ".join(problems):
        raise ValueError(listed)


def undefined_sources(model: BaseModel, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield a message on every source key inside ``model`` that is not in ``sources``."""
    defined = ", ".join(sources) or "none"
    for path, part in sourced_parts(model):
        for key in part.source:
            if key not in sources:
                yield f"{path}.source: '{key}' is not a key of sources; defined: {defined}"


def sourced_parts(model: BaseModel, prefix: str = "") -> Iterator[tuple[str, Sourced]]:
    """Yield every sourced value inside ``model`` with its key path."""
    for key, field in type(model).model_fields.items():
        yield from _sourced_in(getattr(model, key), f"{prefix}{field.alias or key}")


def _sourced_in(value: object, path: str) -> Iterator[tuple[str, Sourced]]:
    """Yield the sourced values in one field's value."""
    if isinstance(value, Sourced):
        yield path, value
    if isinstance(value, BaseModel):
        yield from sourced_parts(value, f"{path}.")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _sourced_in(item, f"{path}[{index}]")


MAXIMUM_BYTES: Final = MIB
"""Largest file read, in bytes."""
_MAXIMUM_DEPTH: Final = 32
_MAXIMUM_VALUES: Final = 200_000
"""Most values of a document once its aliases are written out."""
_CHARACTER_WORK: Final = 10
"""Units of work of a character of a document."""
_EVENT_WORK: Final = 600
"""Units of work of one event of the YAML parser."""
_MAXIMUM_DIRECTIVES: Final = 100
"""Most lines that begin with %: the parser compares each directive with all others."""
_WHOLE: Final = re.compile(r"[-+]?[0-9]{1,30}", re.ASCII)
_TAG: Final = "tag:yaml.org,2002:"
_TRUE: Final = ("true", "yes", "on")
_INSTEAD: Final[ContextVar[tuple[Path, bytes] | None]] = ContextVar("instead", default=None)
_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_yaml(file: Path, *, loose: bool = False) -> Any:
    """Return the content of a YAML file as plain values; None for an empty file."""
    return parse_yaml(str(file), read_limited(file), loose=loose)


def parse_yaml(file: str, text: str, *, loose: bool = False) -> Any:
    """Return the content of a YAML file's text as plain values; None for an empty one."""
    try:
        return _YamlReader(file, text, loose=loose).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{file}{line}: not valid YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{file}: not valid YAML: {error}") from error


def read_json(file: Path, *, infinite: bool = False) -> Any:
    """Return the content of a JSON file as plain values; `infinite` allows numbers that are not finite."""
    return parse_json(str(file), read_limited(file), infinite=infinite)


def parse_json(file: str, text: str, *, infinite: bool = False) -> Any:
    """Return the content of a JSON file's text as plain values; `infinite` allows numbers that are not finite."""

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for key, value in pairs:
            if key in items:
                raise InputError(f"{file}: duplicate key '{key[:60]}'")
            items[key] = value
        return items

    def constant(text: str) -> float:
        if infinite:
            return math.inf
        raise InputError(f"{file}: {text} is not a finite number")

    def number(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else constant(text[:40])

    charge(_CHARACTER_WORK * len(text))
    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        raise InputError(f"{file}:{error.lineno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise InputError(f"{file}: not valid JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{file}: not valid JSON: nested too deep") from error


def read_limited(file: Path, maximum: int = MAXIMUM_BYTES) -> str:
    """Return the text of a regular file of at most `maximum` bytes. Raises InputError."""
    instead = _INSTEAD.get()
    data = instead[1] if instead is not None and instead[0] == file else _content(file, maximum)
    if len(data) > maximum:
        raise InputError(f"{file}: too large; at most {maximum} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: not UTF-8 text: {error.reason} at byte {error.start}") from error


@contextmanager
def standing_in(file: Path, text: str) -> Iterator[None]:
    """Within the block, read `text` in place of `file`; other files are read as they are."""
    token = _INSTEAD.set((file, text.encode("utf-8")))
    try:
        yield
    finally:
        _INSTEAD.reset(token)


def _content(file: Path, maximum: int) -> bytes:
    """Return the first bytes of a regular file, one more than `maximum` at most."""
    try:
        if file.exists() and not file.is_file():
            raise InputError(f"{file}: {'a folder, not a file' if file.is_dir() else 'not a regular file'}")
        if not file.is_file():
            raise InputError(f"{file}: no such file")
        with file.open("rb") as stream:
            return stream.read(maximum + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{file}: cannot be read: {reason}") from error


class _YamlReader:
    """Turns parser events into plain values.

    Events are taken one at a time, so that nesting is refused before the
    parser or Python runs out of stack, and aliases before they multiply.
    """

    def __init__(self, file: str, text: str, *, loose: bool) -> None:
        self._file = file
        if text.count("\n%") > _MAXIMUM_DIRECTIVES:
            raise InputError(f"{file}: more than {_MAXIMUM_DIRECTIVES} lines that begin with %")
        charge(_CHARACTER_WORK * len(text))
        self._loader = _Loader(text)
        self._loose = loose
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._values = 0

    def document(self) -> Any:
        """Return the value of the only document; None if there is none."""
        self._loader.get_event()
        content: Any = None
        if not self._loader.check_event(yaml.StreamEndEvent):
            self._loader.get_event()
            content = self._value(self._loader.get_event(), 1)
            self._loader.get_event()
        if not self._loader.check_event(yaml.StreamEndEvent):
            raise InputError(f"{self._file}: holds more than one YAML document")
        return content

    def _value(self, event: yaml.Event, depth: int) -> Any:
        """Return the value that starts with ``event``."""
        charge(_EVENT_WORK)
        if depth > _MAXIMUM_DEPTH:
            raise self._refusal(event, f"nested deeper than {_MAXIMUM_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        before = self._values
        self._count(event, 1)
        content = self._content(event, depth)
        anchor = getattr(event, "anchor", None)
        if self._loose and anchor:
            self._anchors[anchor] = (content, self._values - before)
        return content

    def _content(self, event: yaml.Event, depth: int) -> Any:
        """Return the scalar, mapping or list that starts with ``event``."""
        if isinstance(event, yaml.ScalarEvent):
            tag = event.tag or self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            scalar = _loose_scalar if self._loose else _scalar
            return scalar(self._where(event), tag, event.value)
        if isinstance(event, yaml.CollectionStartEvent) and event.tag is not None:
            raise self._refusal(event, f"tag '{event.tag[:60]}' is not allowed")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        return self._sequence(depth)

    def _alias(self, event: yaml.AliasEvent) -> Any:
        """Return the value that an alias repeats."""
        if not self._loose:
            raise self._refusal(event, "aliases are not allowed; write the value again")
        name = str(event.anchor)
        if name not in self._anchors:
            raise self._refusal(event, f"alias '{name[:60]}' has no anchor before it")
        content, size = self._anchors[name]
        self._count(event, size)
        return content

    def _count(self, event: yaml.Event, size: int) -> None:
        """Refuse a document that its aliases make too large."""
        self._values += size
        if self._values > _MAXIMUM_VALUES:
            raise self._refusal(event, f"more than {_MAXIMUM_VALUES} values")

    def _sequence(self, depth: int) -> list[Any]:
        """Return the list whose start was just taken."""
        items = []
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Any]:
        """Return the mapping whose start was just taken."""
        items: dict[str, Any] = {}
        merged: list[Any] = []
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            merge = self._loose and key == "<<" and not getattr(event, "style", None)
            if isinstance(key, int | float) and self._loose:
                key = str(key)
            if not isinstance(key, str):
                raise self._refusal(event, f"key '{str(key)[:60]}' is not text")
            value = self._value(self._loader.get_event(), depth + 1)
            if merge:
                merged += value if isinstance(value, list) else [value]
            elif key in items and not (self._loose and items[key] == value):
                raise self._refusal(event, f"duplicate key '{key[:60]}'")
            else:
                items[key] = value
        for source in merged:
            if not isinstance(source, dict):
                raise InputError(f"{self._file}: '<<' merges mappings only")
            items = source | items
        return items

    def _where(self, event: yaml.Event) -> str:
        """Return file and line of ``event``."""
        mark = event.start_mark
        return f"{self._file}:{mark.line + 1}" if mark else str(self._file)

    def _refusal(self, event: yaml.Event, reason: str) -> InputError:
        """Return the error that refuses what ``event`` starts."""
        return InputError(f"{self._where(event)}: {reason}")


def _scalar(where: str, tag: str, text: str) -> Any:
    """Return the plain value of a scalar by its resolved tag."""
    kind = tag.removeprefix(_TAG)
    if kind in ("str", "timestamp"):
        return text
    if kind == "null":
        return None
    if kind == "bool":
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InputError(f"{where}: '{text[:40]}' is ambiguous; write true or false, or quote it")
    if kind == "int" and _WHOLE.fullmatch(text):
        return int(text)
    if kind == "float":
        return _finite(where, text)
    raise InputError(f"{where}: '{text[:40]}' ({kind[:60]}) is not allowed; write a plain number or quoted text")


def _loose_scalar(where: str, tag: str, text: str) -> Any:
    """Return the plain value of a scalar in YAML 1.1; text that is no plain value stays text."""
    kind = tag.removeprefix(_TAG)
    if kind == "bool":
        return text.lower() in _TRUE
    if kind == "int":
        return _loose_int(text)
    if kind == "float":
        try:
            return _finite(where, text.replace("_", ""))
        except InputError:
            return text
    return text if kind == "merge" else _scalar(where, tag, text)


def _loose_int(text: str) -> int | str:
    """Return the whole number that YAML 1.1 has: also octal, hexadecimal, binary, and with underscores."""
    digits = text.replace("_", "").lower()
    octal = re.fullmatch(r"([-+]?)0([0-7]{1,30})", digits)
    if octal:
        return int(f"{octal[1]}{octal[2]}", 8)
    if re.fullmatch(r"[-+]?(0x[0-9a-f]{1,16}|0b[01]{1,64})", digits):
        return int(digits, 0)
    return int(digits) if _WHOLE.fullmatch(digits) else text


def _finite(where: str, text: str) -> float:
    """Return the finite number ``text`` stands for."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where}: '{text[:40]}' is not a plain finite number")
    return number
