"""Measured rows to CSV and back, under one header. Judges no figure; another form is refused by line and column."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from simulator.errors import InputError, did_you_mean
from simulator.evidence.measurements.row import MeasuredRow
from simulator.files import write_file
from simulator.question.frameworks.stacks import current_switches
from simulator.question.specs.catalogue import data_folder
from simulator.question.units import MIB
from simulator.question.vocabulary import RECOMPUTE_MODULES, RecomputeModule

COLUMNS: Final = tuple(field.name for field in dataclasses.fields(MeasuredRow))
"""Header of every table, in order."""
STAND_IN: Final = "taken_from"
"""Column of files, joined by `|`, that fill a row's blank cells: a log, a recipe, a saved estimate."""
StandIn = Callable[[Sequence[Path], Mapping[str, Any]], Mapping[str, Any]]
"""Function from files and a row's own values to the other columns, as the files state them."""
Reader = Callable[[str, str, str], Any]
"""Function that reads a cell from its place, column and text. Raises InputError."""

_MAXIMUM_BYTES: Final = 16 * MIB
_HIGHEST_COUNT: Final = 2**31
_WHOLE: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_LOWEST: Final = {"zero_stage": 0}
_HIGHEST: Final = {"zero_stage": 3}
_ZERO_ALLOWED: Final = frozenset({"step_iqr_s"})
_REQUIRED: Final = frozenset(f.name for f in dataclasses.fields(MeasuredRow) if f.default is dataclasses.MISSING)


def shipped_tables() -> tuple[Path, ...]:
    """Return the tables that come with the simulator, in order of name.

    A wheel carries them inside the package, under ``_data``; in a checkout they stand beside the package.
    """
    return tuple(sorted((data_folder("calibration") / "measured").glob("*.csv")))


def public_tables() -> tuple[Path, ...]:
    """Return the tables of public runs of many organisations, in order of name."""
    return tuple(sorted((data_folder("calibration") / "measured" / "public").glob("*.csv")))


def read_rows(path: Path, stand_in: StandIn | None = None) -> tuple[MeasuredRow, ...]:
    """Return the rows of a table; blank or missing columns have their defaults, `table` and `row` from the file.

    Models, hardware and stand-ins named by a file beside the table are found there; `stand_in` reads the latter.
    Raises InputError with all problems of the file, each with its line and column.
    """
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    rows: list[MeasuredRow] = []
    lines: dict[str, int] = {}
    problems: list[str] = []
    try:
        header = next(reader, [])
        problems += _header_problems(f"{path}:1", header)
        known = [name for name in header if name in (*COLUMNS, STAND_IN)]
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            where = f"{path}:{reader.line_num}"
            if len(cells) != len(header):
                problems.append(f"{where}: {len(cells)} cells; the header has {len(header)}")
                continue
            texts = {name: text for name, text in zip(header, cells, strict=True) if name in known}
            filled = {"table": path.stem, "row": str(len(lines) + 1)}
            stand_ins = texts.pop(STAND_IN, "")
            filled |= {name: text for name, text in texts.items() if text or (name in _REQUIRED and not stand_ins)}
            files = [path.parent / name for name in stand_ins.split("|") if name]
            row = _row(where, filled, path.parent, problems, (files, stand_in) if files else None)
            if row is None:
                continue
            if row.key in lines:
                problems.append(f"{where}: {row.key} stands in line {lines[row.key]} already; row must differ")
            lines[row.key] = reader.line_num
            rows.append(row)
    except csv.Error as error:
        problems.append(f"{path}:{reader.line_num}: not valid CSV: {error}")
    if problems:
        first, *others = dict.fromkeys(problems)
        raise InputError("; ".join([first, *(text.removeprefix(f"{path}:") for text in others)]))
    return tuple(rows)


def rows_text(rows: Iterable[MeasuredRow]) -> str:
    """Return the table of some rows as CSV."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(getattr(row, name)) for name in COLUMNS])
    return stream.getvalue()


def write_rows(path: Path, rows: Iterable[MeasuredRow]) -> None:
    """Write a table that `read_rows` gives back equal. Raises InputError when the file cannot be written."""
    write_file(path, rows_text(rows))


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        with path.open("rb") as stream:
            data = stream.read(_MAXIMUM_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > _MAXIMUM_BYTES:
        raise InputError(f"{path}: too large; at most {_MAXIMUM_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error


def _header_problems(where: str, header: Sequence[str]) -> Iterator[str]:
    """Yield the problems of a header, one sentence each."""
    if len(header) == 1 and (mark := next((mark for mark in (";", "\t") if mark in header[0]), "")):
        yield f"{where}: columns are separated by commas here, not by {'tabs' if mark != ';' else repr(mark)}"
        return
    for name in dict.fromkeys(header):
        if name not in (*COLUMNS, STAND_IN):
            yield f"{where}: unknown column '{name[:60]}'{did_you_mean(name, COLUMNS)}"
        elif header.count(name) > 1:
            yield f"{where}: column '{name}' stands twice"
    for name in COLUMNS:
        if name in _REQUIRED and name not in header and STAND_IN not in header:
            yield f"{where}: missing column '{name}'; needed are {', '.join(sorted(_REQUIRED))}"


def read_cells(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return columns read from texts by name. Raises InputError naming the first unknown or malformed one."""
    for name in texts:
        if name not in COLUMNS:
            raise InputError(f"--set {name[:60]}: no such column{did_you_mean(name, COLUMNS)}")
    return {name: _READERS[name](f"--set {name}", name, text) for name, text in texts.items()}


def _row(
    where: str,
    texts: Mapping[str, str],
    folder: Path,
    problems: list[str],
    stand_ins: tuple[Sequence[Path], StandIn | None] | None = None,
) -> MeasuredRow | None:
    """Return the row of some cells; None where cells are wrong, with their problems added to `problems`."""
    values: dict[str, Any] = {}
    blanks = [f"{where}: column '{name}' must not be blank" for name, text in texts.items() if not text]
    for name, text in texts.items():
        if not text:
            continue
        try:
            values[name] = _READERS[name](f"{where}: column '{name}'", name, text)
        except InputError as error:
            blanks.append(str(error))
    if not blanks and (stand_ins or set(texts) >= _REQUIRED):
        values |= {name: _beside(folder, values[name]) for name in ("model", "hardware") if name in values}
        try:
            if stand_ins:
                values = _completed(values, *stand_ins)
            return MeasuredRow(**values)
        except InputError as error:
            blanks.append(f"{where}: {error}")
    problems += blanks
    return None


def _completed(values: Mapping[str, Any], files: Sequence[Path], read: StandIn | None) -> dict[str, Any]:
    """Return the cells completed by their stand-ins. Raises InputError with all columns that neither states."""
    if read is None:
        raise InputError(f"column '{STAND_IN}': only the command line reads other files")
    completed = dict(values) | dict(read(files, values))
    if missing := sorted(name for name in _REQUIRED if completed.get(name) is None):
        raise InputError(f"neither the row nor {', '.join(map(str, files))} says {', '.join(missing)}")
    names = ", ".join(file.name for file in files)
    completed["evidence"] = " ".join(
        filter(None, [completed.get("evidence", ""), f"What the row leaves blank is of {names}."])
    )
    return completed


def _beside(folder: Path, name: str) -> str:
    """Return a spec's file beside the table as a path; a shipped name or another path as it is."""
    file = folder / name
    return str(file) if name.endswith((".yaml", ".yml", ".json")) and file.is_file() else name


def _read_text(where: str, _name: str, text: str) -> str:
    if not text.isprintable():
        raise InputError(f"{where}: text must be one line of printable characters")
    return text


def _read_whole(where: str, name: str, text: str) -> int:
    low, high = _LOWEST.get(name, 1), _HIGHEST.get(name, _HIGHEST_COUNT)
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise InputError(f"{where}: '{text[:40]}' must be a whole number from {low} to {high}")
    return int(text)


def _read_number(where: str, name: str, text: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    low = 0.0 if name in _ZERO_ALLOWED else math.ulp(0.0)
    if not low <= value < math.inf:
        raise InputError(f"{where}: '{text[:40]}' must be a number above zero")
    return value


def _read_flag(where: str, _name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InputError(f"{where}: '{text[:40]}' must be true or false")
    return text == "true"


def _listed(read: Reader) -> Reader:
    """Return the reader of cells of several values, joined by `|`."""

    def read_all(where: str, name: str, text: str) -> tuple[Any, ...]:
        return tuple(read(where, name, part) for part in text.split("|"))

    return read_all


def _read_options(where: str, _name: str, text: str) -> tuple[tuple[str, str], ...]:
    options: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if not (name and equals and value) or name in options:
            raise InputError(f"{where}: '{part[:60]}' must be NAME=VALUE, each name once, joined by ';'")
        options[name] = value
    return tuple(current_switches(options).items())


def _word_reader(words: tuple[str, ...]) -> Reader:
    def read(where: str, _name: str, text: str) -> str:
        if text not in words:
            allowed = ", ".join(words)
            raise InputError(f"{where}: '{text[:40]}'{did_you_mean(text, words)}; allowed are {allowed}")
        return text

    return read


def _reader(hint: Any) -> Reader:
    """Return the reader of a column of this type."""
    plain: Mapping[Any, Reader] = {
        str: _read_text,
        int: _read_whole,
        int | None: _read_whole,
        float | None: _read_number,
        bool | None: _read_flag,
        tuple[int, ...]: _listed(_read_whole),
        tuple[str, ...]: lambda _where, _name, text: tuple(text.split("|")),
        tuple[RecomputeModule, ...]: _listed(_word_reader(RECOMPUTE_MODULES)),
        tuple[tuple[str, str], ...]: _read_options,
    }
    if hint in plain:
        return plain[hint]
    # The remaining types are words: a Literal, or a Literal or None.
    literal = next((arm for arm in get_args(hint) if get_args(arm)), hint)
    return _word_reader(get_args(literal))


_READERS: Final = {name: _reader(hint) for name, hint in get_type_hints(MeasuredRow).items()}


def _cell(value: object) -> str:
    """Return the text of a value, the shortest that reads back equal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, tuple):
        return (
            ";".join("=".join(x) for x in value) if value and isinstance(value[0], tuple) else "|".join(map(str, value))
        )
    return str(value)
