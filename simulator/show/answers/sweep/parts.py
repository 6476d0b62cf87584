"""The state of a sweep on disk: a file for each part, and the table that they become. Prices nothing."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from simulator.errors import InputError, UnsupportedError
from simulator.files import replacing, write_file, writing
from simulator.show.answers.sweep.price import COLUMNS, asked
from simulator.show.answers.sweep.questions import KEYWORDS, Questions
from simulator.tabular import Row

_MANIFEST = "sweep.json"
_MOST_PER_PART = 256
_PARTS = 256
"""Parts that a sweep has before they grow."""
_ROWS_AT_ONCE = 50_000
"""Rows in memory at once, and in a row group of Parquet."""
SUFFIXES = (".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class SweepParts:
    """The parts of a sweep; each file holds the rows of some questions in a row, and is there as a whole or not."""

    folder: Path
    questions: int

    @property
    def size(self) -> int:
        """Questions of a part, the last one's aside: it follows from their number, so that any process cuts alike."""
        return min(max(self.questions // _PARTS, 1), _MOST_PER_PART)

    def __len__(self) -> int:
        return (self.questions + self.size - 1) // self.size

    def numbers(self, part: int) -> range:
        """The questions of a part."""
        return range(part * self.size, min((part + 1) * self.size, self.questions))

    def missing(self, shard: tuple[int, int] = (1, 1)) -> list[int]:
        """The parts of one shard of some (3 of 64) that have no file."""
        which, of = shard
        there = {file.stem for file in self.folder.glob("part-*.json")}
        return [part for part in range(which - 1, len(self), of) if self._file(part).stem not in there]

    @contextmanager
    def opened(self, fingerprint: str, shard: tuple[int, int] = (1, 1)) -> Iterator[None]:
        """Begin, or go on where these questions were left, and keep other processes from the same share.

        Raises InputError where the folder holds another sweep or other shares, or a sweep is at work there.
        """
        which, shards = shard
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        whole = shards == 1
        with _locked(self.folder / "lock", shared=not whole), _locked(self.folder / f"lock-{which}-{shards}"):
            begun = self._manifest({"fingerprint": fingerprint, "questions": self.questions, "shards": shards})
            if (begun["fingerprint"], begun["questions"]) != (fingerprint, self.questions):
                raise InputError(
                    f"{self.folder}: holds parts of other questions, specs or another version of simulate: remove it, "
                    "or choose another --output"
                )
            if not whole and begun["shards"] not in (1, shards):
                raise InputError(
                    f"{self.folder}: was begun in {begun['shards']} shards, not in {shards}: say --shard "
                    f"{which}/{begun['shards']}, or none to price what is left"
                )
            yield

    def _manifest(self, sweep: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the folder was begun with; where nothing was, or no shards, that is this sweep."""
        file = self.folder / _MANIFEST
        with writing(self.folder):
            try:
                begun: dict[str, Any] = {"shards": 1, **json.loads(file.read_text(encoding="utf-8"))}
                begun = {name: begun[name] for name in sweep}
            except FileNotFoundError:
                begun = {}
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(f"{file}: is no manifest of a sweep: remove the folder") from error
            if not begun or (begun["shards"] == 1 < sweep["shards"]):
                begun = {**sweep, **begun, "shards": sweep["shards"]}
                write_file(file, json.dumps(begun))
        return begun

    def store(self, part: int, rows: Sequence[Sequence[Any]]) -> None:
        """Keep the rows of a part."""
        write_file(self._file(part), json.dumps(rows))

    def rows(self) -> Iterator[list[Any]]:
        """Every row that is there, in the order of the questions, as cells in the order of `COLUMNS`."""
        gone = set(self.missing())
        for part in range(len(self)):
            if part not in gone:
                try:
                    yield from json.loads(self._file(part).read_text(encoding="utf-8"))
                except (OSError, ValueError) as error:
                    raise InputError(f"{self._file(part)}: cannot be read; remove it and run again") from error

    def remove(self) -> None:
        """Forget all parts."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, part: int) -> Path:
        return self.folder / f"part-{part:07d}.json"


@contextmanager
def _locked(file: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock that ends with the process. Raises InputError where another process has it."""
    with ExitStack() as held:
        with writing(file):
            stream = held.enter_context(file.open("a+", encoding="utf-8"))
        try:
            import fcntl  # noqa: PLC0415  POSIX alone has it; elsewhere nothing is locked

            fcntl.flock(stream, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{file.parent}: another sweep is at work there: wait until it ends, or choose another --output"
            ) from error
        except (ImportError, OSError):
            pass  # a system or a file system without locks
        yield


def check_table(file: Path) -> None:
    """Refuse a table that could not be written. Raises InputError or UnsupportedError."""
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"output {file}: must end in {' or '.join(SUFFIXES)}")
    if not file.absolute().parent.is_dir():
        raise InputError(f"output {file}: no such folder")
    with writing(file, "output"):
        if file.exists() and not file.is_file():
            raise InputError(f"output {file}: is no regular file")
    if file.suffix.lower() == ".parquet":
        _parquet()


def write_table(file: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV or Parquet, by the ending, and put the file in its place when it is whole."""
    with writing(file), replacing(file) as beside:
        _WRITERS[file.suffix.lower()](beside, iter(rows))


def read_table(file: Path) -> list[Row]:
    """The rows of a table that `write_table` wrote. Raises OSError, KeyError or ValueError for what is none."""
    if file.suffix.lower() == ".parquet":
        rows: list[Row] = _parquet().read_table(file).to_pylist()
        return rows
    with file.open(encoding="utf-8", newline="") as stream:
        return [{name: _read(COLUMNS[name], cell) for name, cell in row.items()} for row in csv.DictReader(stream)]


def check_replaced(file: Path, questions: Questions) -> None:
    """Refuse to replace a table that is there, unless it answers the same questions. Raises InputError."""
    if not file.exists():
        return
    try:
        rows = read_table(file)
        same = len(rows) == len(questions) and all(
            row[name] == question.get(name, row[name] if name == "devices" else None)  # devices follow from nodes
            for number, row in enumerate(rows)
            for question in (asked(questions[number]),)
            for name in KEYWORDS
        )
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        raise InputError(f"output {file}: is there, and no table of a sweep: --force replaces it") from None
    if not same:
        raise InputError(f"output {file}: answers {len(rows):,} other questions: --force replaces it")


def _read(kind: type, cell: str) -> Any:
    return None if not cell else cell == "true" if kind is bool else kind(cell)


def _write_csv(file: Path, rows: Iterator[Sequence[Any]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([str(cell).lower() if isinstance(cell, bool) else cell for cell in row] for row in rows)


def _write_parquet(file: Path, rows: Iterator[Sequence[Any]]) -> None:
    parquet = _parquet()
    import pyarrow as pa  # noqa: PLC0415  only who asks for Parquet needs it

    kinds = {int: pa.int64(), float: pa.float64(), bool: pa.bool_(), str: pa.string()}
    schema = pa.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    with parquet.ParquetWriter(file, schema) as writer:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            columns = [list(column) for column in zip(*some, strict=True)]
            arrays = [pa.array(column, kinds[kind]) for column, kind in zip(columns, COLUMNS.values(), strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _parquet() -> Any:
    try:
        import pyarrow.parquet  # noqa: PLC0415  only who asks for Parquet needs it
    except ImportError as error:
        raise UnsupportedError(
            "Parquet: pyarrow is not installed: pip install '.[sweep]' in a checkout, else pip install pyarrow; "
            "a name that ends in .csv needs nothing"
        ) from error
    return pyarrow.parquet


_WRITERS: Mapping[str, Callable[[Path, Iterator[Sequence[Any]]], None]] = {
    ".csv": _write_csv,
    ".parquet": _write_parquet,
}
