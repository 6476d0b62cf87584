"""Files written as a whole or not at all: to a neighbouring path first, renamed when they are complete.

A disk that is full, or a signal, leaves the file that was there as it was. Also where the folders of data are, and the
tables beside modules.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from errno import EACCES, EBUSY, EPERM, EROFS, EXDEV
from functools import cache
from typing import TYPE_CHECKING, Final

from simulator.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

_NOT_BESIDE = frozenset({EACCES, EPERM, EROFS, EBUSY, EXDEV})
"""Errors of replacing a file that may still be written: its folder is read-only, or the file is a mount."""


DATA_FOLDERS: Final = ("hardware_specs", "model_specs", "calibration")
"""Top-level folders of data."""
PACKAGE: Final = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120  start-up time of --help
"""Folder of the package `simulator`."""


def read_rows(beside: str, table: str) -> list[list[str]]:
    """Return the rows of `table`.csv in the folder of the module file `beside`, the names of its columns first."""
    file = os.path.join(os.path.dirname(beside), f"{table}.csv")  # noqa: PTH118, PTH120  start-up time of --help
    with open(file, newline="", encoding="utf-8") as stream:  # noqa: PTH123  likewise
        return [*filter(None, csv.reader(stream))]


def read_table(beside: str, table: str) -> list[dict[str, str]]:
    """Return the rows of `table`.csv beside a module file, each by the names of its columns."""
    names, *rows = read_rows(beside, table)
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_words(kind: str) -> dict[str, str]:
    """Return what the words of a kind in `_words.csv` mean."""
    rows = (row for row in read_table(__file__, "_words") if row["kind"] == kind)
    return {word: row["meaning"] for row in rows for word in row["words"].split()}


def data_folder(folder: str) -> Path:
    """Return one of the top-level folders of data: in a wheel inside the package, in a checkout beside it."""
    return _data_folder(PACKAGE, folder)


@cache
def _data_folder(package: str, folder: str) -> Path:
    from pathlib import Path  # noqa: PLC0415  start-up time of --help

    installed = Path(package) / "_data" / folder
    return installed if installed.is_dir() else Path(package).parent / folder


def data_hash() -> str:
    """Return the hash of the files that people read and edit: specs, calibrations, tables."""
    from hashlib import sha256  # noqa: PLC0415  start-up time
    from pathlib import Path  # noqa: PLC0415  likewise

    folders = (*map(data_folder, DATA_FOLDERS), Path(PACKAGE))
    every = {file for folder in folders for file in folder.rglob("*") if file.suffix in (".csv", ".json", ".yaml")}
    # What earlier versions remembered beside the files is no data.
    shipped = (file for file in every if file.parent.name != "__pycache__")
    files = [file for file in shipped if file.is_file() and os.access(file, os.R_OK)]
    root, inside = Path(PACKAGE).parent, "simulator/_data/"
    named = sorted((file.relative_to(root).as_posix().removeprefix(inside), file) for file in files)
    return sha256(b"".join(name.encode() + file.read_bytes() for name, file in named)).hexdigest()[:12]


def write_file(path: Path, text: str | Iterable[str], option: str = "") -> None:
    """Write text, or pieces of it, as a file; `option` is the option that named it. Raises InputError.

    Devices, pipes, and writable files in read-only folders are written in place.
    """
    with writing(path, option):
        if path.exists() and not path.is_file():
            _write(path, text)
            return
        try:
            with replacing(path) as beside:
                _write(beside, text)
        except OSError as error:
            if error.errno not in _NOT_BESIDE or not path.is_file() or not isinstance(text, str):
                raise
            _write(path, text)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside a file to write, which then replaces the file, with the file's permissions."""
    target = type(path)(os.path.realpath(path))  # of a link that leads to itself, itself
    beside = target.with_name(f".{target.name[:200]}.{os.getpid()}")
    try:
        yield beside
        if target.exists():
            beside.chmod(target.stat().st_mode & 0o7777)
        beside.replace(target)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


@contextmanager
def writing(path: Path | str, option: str = "", done: str = "written") -> Iterator[None]:
    """Turn errors of writing, or what else is `done` with a path, into an InputError of one line."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{option} {path}: cannot be {done}: {reason}".lstrip()) from error


def reading(path: Path | str) -> AbstractContextManager[None]:
    """Turn errors of reading a path into an InputError of one line."""
    return writing(path, done="read")


def _write(path: Path, text: str | Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for piece in (text,) if isinstance(text, str) else text:
            stream.write(piece)
        stream.flush()
        with suppress(OSError):  # a device or a pipe has nothing to bring to a disk
            os.fsync(stream.fileno())
