"""Files that are written as a whole or not at all: beside their place first, and renamed when they are complete.

A disk that is full, or a signal, leaves the file that was there as it was.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EBUSY, EPERM, EROFS, EXDEV
from pathlib import Path

from simulator.errors import InputError

_NOT_BESIDE = frozenset({EACCES, EPERM, EROFS, EBUSY, EXDEV})
"""What keeps a file from being replaced that may be written: its folder may not be, or it is mounted by itself."""


def write_file(path: Path, text: str | Iterable[str], option: str = "") -> None:
    """Write text, or pieces of it, as a file; `option` named it. Raises InputError that says what is wrong.

    A device or a pipe is written to; so is a file that may be written in a folder that may not.
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
    """Yield a path beside a file to write; what is there at the end replaces the file, with the file's permissions."""
    target = Path(os.path.realpath(path))  # of a link that leads to itself, itself
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
def writing(path: Path, option: str = "") -> Iterator[None]:
    """Turn what keeps a path from being written into one line."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{option} {path}: cannot be written: {reason}".lstrip()) from error


def _write(path: Path, text: str | Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        for piece in (text,) if isinstance(text, str) else text:
            stream.write(piece)
        stream.flush()
        with suppress(OSError):  # a device or a pipe has nothing to bring to a disk
            os.fsync(stream.fileno())
