"""Documents that people fill in: CSV tables, YAML specs, their checks and the source of each value.

`gemm_efficiency: float = TABLED` says name and type of a coefficient; the row `gemm_efficiency` of `coefficients.csv`
says its prior, unit, bounds and meaning. `specs.catalogue` asks for specs, many modules for their tables.
"""

from __future__ import annotations

import marshal
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import MISSING, field, fields
from functools import cache, partial
from importlib.util import cache_from_source
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, cast, dataclass_transform, get_type_hints
from zlib import crc32

from simulator.budget import CHARACTER_WORK, charge
from simulator.errors import InputError, did_you_mean, quoted
from simulator.files import DATA_FOLDERS, PACKAGE, data_folder, data_hash, read_table, reading, replacing
from simulator.question.units import MIB
from simulator.records import Record, collect

TableRow = Mapping[str, str]
"""Cells of a row by column."""
TABLED: Final[Any] = object()
"""Placeholder default of a field that a table's row describes; `fields_from` replaces it."""
_Record = TypeVar("_Record", bound=Record)


def rows_of(table: str) -> dict[str, dict[str, str]]:
    """Return the rows of a table of this folder by their column `name`, in order."""
    return {row["name"]: row for row in read_table(__file__, table)}


def fields_from(
    rows: Mapping[str, TableRow], made: Callable[[TableRow, str], Any]
) -> Callable[[type[_Record]], type[_Record]]:
    """Return a decorator of a class of records that sets every `TABLED` field to `made(row, type)`.

    Raises TypeError where fields and rows are not the same, in the same order.
    """

    def decorated(record: type[_Record]) -> type[_Record]:
        names = [name for name, value in vars(record).items() if value is TABLED]
        if names != list(rows):
            wrong = sorted(set(names) ^ set(rows)) or "their order"
            raise TypeError(f"{record.__name__}: fields and rows of its table differ: {wrong}")
        for name in names:
            setattr(record, name, made(rows[name], record.__annotations__[name]))
        collect(record, kw_only=True)
        return record

    return decorated


class Limits:
    """Limits of a value, in pydantic's words; none of pydantic is imported before somebody's own file is validated."""

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(self, kind: Any, handler: Callable[[Any], Any]) -> dict[str, Any]:
        return {**handler(kind), **self.limits}


class Taken:
    """Function that a value passes before its type is checked, or after."""

    def __init__(self, mode: Literal["before", "after"], taken: Callable[[Any], object]) -> None:
        self.mode, self.taken = mode, taken

    def __get_pydantic_core_schema__(self, kind: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415  start-up time

        made = getattr(core_schema, f"no_info_{self.mode}_validator_function")
        return made(self.taken, handler(kind))


_KINDS: Final[dict[str, Any]] = {}  # classes of specs by their names where specs are remembered


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Frozen(Record):
    """Base of specs: records, of which pydantic validates what people write.

    Of these no unknown keys are taken, and no numbers that are not finite.
    """

    __pydantic_config__: ClassVar[dict[str, object]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__(kw_only=True, checked=False)
        _KINDS.setdefault(cls.__qualname__, cls)
        cls.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False, "alias_generator": cls.key}

    def __post_init__(self) -> None:
        """Refuse contradictions, as pydantic calls it: what is made here of valid specs is not validated again."""
        if problems := "; ".join(self.problems()):
            raise ValueError(problems)

    @classmethod
    @cache
    def adapter(cls) -> Any:
        """Return what validates values, which takes long to make."""
        from pydantic import TypeAdapter  # noqa: PLC0415  start-up time

        return TypeAdapter(cls)

    @classmethod
    @cache
    def field_types(cls, *, limits: bool = False) -> Mapping[str, Any]:
        """Return the types of the fields, on demand with their limits."""
        hints = get_type_hints(cls, include_extras=limits)
        return {each.name: hints[each.name] for each in fields(cls)}

    @classmethod
    def key(cls, name: str) -> str:
        """Return the key of a field in files."""
        return name

    def problems(self) -> Iterable[str]:
        """Yield what is wrong with values that are each of the right kind."""
        return ()


def of_fields(spec: Frozen, *, but: Iterable[str] = (), defaults: bool = True) -> dict[str, Any]:
    """Return a spec's values by field, without some (`but`), and on demand without those that equal `defaults`."""
    makers = {each.name: each.default_factory for each in fields(spec) if each.default_factory is not MISSING}
    usual = {each.name: each.default for each in fields(spec)} | {name: make() for name, make in makers.items()}
    values = {name: (getattr(spec, name), default) for name, default in usual.items()}
    return {name: value for name, (value, usual) in values.items() if name not in but and (defaults or value != usual)}


def plain(value: Any, *, but: Iterable[str] = (), packed: bool = False) -> Any:
    """Return a spec, or a value inside one, as a file holds it, without fields that have their default.

    It is `packed` under the names of fields and of its class, from which `unpacked` makes it without asking for types.
    """
    if isinstance(value, Frozen):
        values = of_fields(value, but=but, defaults=False).items()
        kind = {"": type(value).__qualname__} if packed else {}
        return kind | {name if packed else value.key(name): plain(each, packed=packed) for name, each in values}
    if isinstance(value, Mapping):
        return {name: plain(each, packed=packed) for name, each in value.items()}
    return [plain(each, packed=packed) for each in value] if isinstance(value, tuple) else value


def unpacked(value: Any) -> Any:
    """Return the spec that `plain` packed."""
    if isinstance(value, list):
        return tuple(map(unpacked, value))
    if not isinstance(value, dict):
        return value
    values = {name: unpacked(each) for name, each in value.items()}
    kind = values.pop("", None)
    return values if kind is None else _KINDS[kind](**values)


SpecT = TypeVar("SpecT", bound=Frozen)


def validated(where: str, kind: type[SpecT], values: object) -> SpecT:
    """Return ``values`` as a ``kind``; an InputError names ``where`` and every problem in it, by key path."""
    if not isinstance(values, dict):
        raise InputError(f"{where}: must hold a mapping of keys to values")
    from pydantic import ValidationError  # noqa: PLC0415  start-up time

    try:
        spec: SpecT = kind.adapter().validate_python(values)
    except ValidationError as error:
        raise InputError(listed(where, _messages(kind, error))) from error
    return spec


def wrong_values(kind: type[Frozen], values: dict[str, object]) -> list[str]:
    """Return the problems of the values by key path; missing keys are none."""
    from pydantic import ValidationError  # noqa: PLC0415  start-up time

    try:
        kind.adapter().validate_python(values)
    except ValidationError as error:
        return [message for message in _messages(kind, error) if not message.endswith(": is missing")]
    return []


def listed(where: str, problems: Iterable[str]) -> str:
    """Return every problem of a file on one line."""
    messages = list(dict.fromkeys(problems))
    count = f"{len(messages)} problems: " if len(messages) > 1 else ""
    return f"{where}: {count}{'; '.join(messages)}"


def _messages(kind: type[Frozen], error: Any) -> list[str]:
    problems = error.errors(include_url=False)
    problems.sort(key=lambda problem: problem["type"] != UNKNOWN_KEY)  # a typo explains a missing key
    return [_message(kind, problem) for problem in problems]


def _message(kind: type[Frozen], problem: Any) -> str:
    """Return key path and reason of one pydantic error."""
    path = ""
    for step in problem["loc"]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step != "[key]":
            path += f".{step[:60]}" if path else step[:60]
    prefix = f"{path}: " if path else ""
    form, value = problem["type"], problem["input"]
    if form == "missing":
        return f"{prefix}is missing"
    if form == UNKNOWN_KEY:
        key = str(problem["loc"][-1])[:60]
        keys = _keys(kind, problem["loc"])
        allowed = f"; allowed: {', '.join(keys)}" if len(keys) <= _MOST_LISTED else ""
        return f"{prefix}unknown key{did_you_mean(key, keys) or allowed}"
    reason = problem["msg"].removeprefix("Value error, ")
    if form == "literal_error":
        allowed = problem["ctx"]["expected"]
        choices = [choice.strip("'") for choice in allowed.replace(" or ", ", ").split(", ")]
        near = did_you_mean(str(value), choices) or ";"
        return f"{prefix}{_excerpt(value)} is not allowed{near} allowed: {allowed}"
    if form == "value_error":
        return f"{prefix}{reason}"
    if form in _FORMS:
        return f"{prefix}{_excerpt(value) if value not in (None, '') else 'is empty'}: must be {_FORMS[form]}"
    return f"{prefix}{_excerpt(value)}: {reason[:1].lower()}{reason[1:]}"


UNKNOWN_KEY: Final = "unexpected_keyword_argument"
"""Kind of pydantic's error on a key that there is not."""
_MOST_LISTED: Final = 16  # keys that a message on an unknown one lists
_FORMS: Final = {
    "string_type": "text",
    "string_too_short": "text",
    **dict.fromkeys(("tuple_type", "list_type"), "a list, such as [a, b]"),
    **dict.fromkeys(("dict_type", "mapping_type", "dataclass_type"), "a mapping, such as {key: value}"),
}  # forms of a value, by the kind of pydantic's error where it has another


def _keys(kind: type[Frozen], steps: Sequence[int | str]) -> list[str]:
    """Return the keys allowed where the last step of ``steps`` stands, as near as the schema tells."""
    schema = kind.adapter().json_schema()
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
    return quoted(value)


SourceStatus = Literal["verified", "measured", "assumed"]
"""Certainty of a number.

``verified``: a document that was read states it. ``measured``: a benchmark or
a running framework showed it. ``assumed``: derived, inferred or chosen.
"""

Name = Annotated[str, Limits(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]
"""Short identifier: letters, digits and ``. _ + -``."""

_MODEL_ID = r"^[A-Za-z0-9][A-Za-z0-9._+-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$"
Alias = Annotated[str, Limits(min_length=1, max_length=100, pattern=r"^\w[\w.+-]*$")]
"""Another name of a spec, in any script."""
ModelId = Annotated[str, Limits(min_length=1, max_length=200, pattern=_MODEL_ID)]
"""Name of a model, or its id on Hugging Face, `owner/name`."""

Text = Annotated[str, Limits(max_length=4000)]
"""Free text for readers."""


def as_tuple(value: object) -> object:
    """Return a single source key as a tuple of one; any other value unchanged."""
    return (value,) if isinstance(value, str) else value


def _some(keys: tuple[str, ...]) -> tuple[str, ...]:
    if not keys:
        raise ValueError("must name a document")
    return keys


SourceKeys = Annotated[tuple[Name, ...], Limits(max_length=20), Taken("after", _some), Taken("before", as_tuple)]
"""Keys of the ``sources`` mapping of the same file; YAML may hold one key or a list."""

Sources = Mapping[Name, Annotated[str, Limits(min_length=1, max_length=1000)]]
"""Key to description of a document: repository and file, page or listing."""


class Sourced(Frozen):
    """Base of values that name their source."""

    source: SourceKeys
    """Documents that state it: keys of the file's ``sources``."""
    status: SourceStatus
    """Certainty of the value."""
    note: Text = ""
    """Note on the value for readers."""


def undefined_sources(spec: Frozen, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield a message on every source key inside ``spec`` that is not in ``sources``."""
    defined = ", ".join(sources) or "none"
    for path, part in sourced_parts(spec):
        for key in part.source:
            if key not in sources:
                yield f"{path}.source: '{key}' is not a key of sources; defined: {defined}"


def sourced_parts(value: object, path: str = "") -> Iterator[tuple[str, Sourced]]:
    """Yield every sourced value inside a spec, or inside one field's value, with its key path."""
    if isinstance(value, Sourced):
        yield path, value
    if isinstance(value, Frozen):
        for name, each in of_fields(value).items():
            yield from sourced_parts(each, f"{path}.{value.key(name)}" if path else value.key(name))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from sourced_parts(item, f"{path}[{index}]")


MAXIMUM_BYTES: Final = MIB
"""Largest file read, in bytes."""
_INSTEAD: Final[ContextVar[tuple[Path, bytes] | None]] = ContextVar("instead", default=None)
_READING: Final = ("yaml_text.py", "documents.py", "hardware.py", "model.py", "vision.py", "configuration.py")
_BESIDE: Final = ("../units.py", "../vocabulary.py", "families/encoders.yaml")
_READERS: Final = tuple(Path(__file__).parent / name for name in (*_READING, *_BESIDE))
_SHIPPED: Final = (*map(data_folder, DATA_FOLDERS), PACKAGE)  # folders of what ships


def read_yaml(file: Path, *, loose: bool = False) -> Any:
    """Return the content of a YAML file as plain values; None for an empty file."""
    return _parsed(file, loose=True) if loose else _remembered(str(file), "", lambda: _parsed(file, loose=False))


def read_together(folder: Path, paths: Sequence[str]) -> dict[str, Any]:
    """Return the contents of those YAML files of a folder that there are, by path; they are remembered as one."""

    def read() -> dict[str, Any]:
        files = {path: folder / path for path in paths}
        return {path: _parsed(file, loose=False) for path, file in files.items() if file.is_file()}

    return cast("dict[str, Any]", _remembered(f"{folder}{os.sep}all", "", read, paths))


def shipped(file: Path, kind: type[SpecT]) -> SpecT:
    """Return a shipped spec, validated once: what is remembered of it is what validation left."""

    def read() -> Any:
        return plain(validated(str(file), kind, _parsed(file, loose=False)), packed=True)

    return cast("SpecT", _remembered(str(file), ".spec", read, made=unpacked))


def _remembered(
    file: str, suffix: str, read: Callable[[], Any], parts: Sequence[str] = ("",), made: Any = lambda content: content
) -> Any:
    """Return what is made of what is read of a file, or of `parts` beside it; what ships is remembered as modules are.

    That is by the sums of the file and of what reads and judges it: in the wheel when it is built, else in the same
    folders, where these may be written.
    """
    folder = next((str(each) for each in _SHIPPED if file.startswith(f"{each}{os.sep}")), None)
    if folder is None or _INSTEAD.get() is not None:
        return made(read())
    beside = os.path.dirname(file)  # noqa: PTH120  start-up time
    stamp = [*((part, checksum(f"{beside}{os.sep}{part}" if part else file)) for part in parts), *_readers()]
    cached = Path(f"{cache_from_source(f'{file}.py').rpartition('.')[0]}{suffix}.data")
    name = f"{file[len(os.path.dirname(folder)) + 1 :]}{suffix}".replace(os.sep, "/")  # noqa: PTH120  likewise
    for remembered in (partial(_frozen, name), cached.read_bytes):
        with suppress(OSError, EOFError, ValueError, TypeError, LookupError):
            known, content = _loaded(remembered())
            if known == stamp:
                return made(content)
    content = read()
    if not sys.dont_write_bytecode:
        with suppress(OSError, ValueError):
            cached.parent.mkdir(parents=True, exist_ok=True)
            with replacing(cached) as beside_it:
                beside_it.write_bytes(packed_data((stamp, content)))
    return made(content)


@cache
def _wheel() -> tuple[Mapping[str, tuple[int, int]], bytes]:
    """Return where what is remembered of each file stands in the data behind, as `tools.freeze` wrote both."""
    data = Path(PACKAGE, "_data", "frozen.data").read_bytes()
    start = 4 + int.from_bytes(data[:4])
    return _loaded(data[4:start]), data[start:]


def _frozen(name: str) -> bytes:
    """Return what the wheel remembers of a file. Raises OSError or LookupError where it does not."""
    places, data = _wheel()
    return data[slice(*places[name])]


def shipped_hash() -> str:
    """Return the hash of the files that ship, and whether it is another than that of the wheel."""
    shipped_now = data_hash()
    with suppress(OSError, EOFError, ValueError, TypeError, LookupError):
        if _loaded(_frozen("hash")) != shipped_now:
            return f"{shipped_now}, edited since it was built"
    return shipped_now


def packed_data(content: Any) -> bytes:
    """Return plain values as data of `marshal` that each Python reads and that runs nothing.

    Their sum stands before them: of spoilt data `marshal` may make anything.
    """
    data = marshal.dumps(content, 4)
    return crc32(data).to_bytes(4) + data


def _loaded(data: bytes) -> Any:
    """Return what `packed_data` packed. Raises ValueError for spoilt data."""
    if crc32(data[4:]) != int.from_bytes(data[:4]):
        raise ValueError("spoilt")
    return marshal.loads(data[4:])  # noqa: S302  as of modules


def checksum(file: str | Path) -> int | None:
    """Return the sum of a file's content; None where there is none."""
    try:
        with open(file, "rb", buffering=0) as stream:  # noqa: PTH123  half the time of a path's own
            return crc32(stream.read())
    except OSError:
        return None


@cache
def _readers() -> tuple[int | None, ...]:
    """Return the sums of what reads and judges specs."""
    return tuple(map(checksum, _READERS))


def _parsed(file: Path, *, loose: bool) -> Any:
    from simulator.question.specs.yaml_text import parse_yaml  # noqa: PLC0415  start-up time

    return parse_yaml(str(file), read_limited(file), loose=loose)


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
            return float(text)
        raise InputError(f"{file}: {text} is not a finite number")

    def number(text: str) -> float:
        value = float(text)
        return value if math.isfinite(value) else constant(text[:40])

    charge(CHARACTER_WORK * len(text))
    import json  # noqa: PLC0415  start-up time

    try:
        return json.loads(text, object_pairs_hook=mapping, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        raise InputError(f"{file}:{error.lineno}: not valid JSON: {error.msg}") from error
    except ValueError as error:
        raise InputError(f"{file}: not valid JSON: {error}") from error
    except RecursionError as error:
        raise InputError(f"{file}: not valid JSON: nested too deep") from error


def finite(value: object, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a number of a file. Raises TypeError for anything else, text of a number included, else ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    if not low <= value <= high or not math.isfinite(value):
        raise ValueError(f"a finite figure must be from {low} to {high}")
    return float(value)


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


def require_regular(file: Path) -> None:
    """Raise InputError for what is no regular file, and OSError where nobody may look."""
    if file.is_file():
        return
    link = "; a link is no file: download it first" if str(file).startswith(("https:", "http:")) else ""
    kind = "a folder, not a file" if file.is_dir() else "not a regular file"
    raise InputError(f"{file}: {kind if file.exists() else f'no such file{link}'}")


def _content(file: Path, maximum: int) -> bytes:
    """Return the first bytes of a regular file, one more than `maximum` at most."""
    with reading(file):
        require_regular(file)
        with file.open("rb") as stream:
            return stream.read(maximum + 1)
