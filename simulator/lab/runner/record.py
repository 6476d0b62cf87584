"""File of measured rows that is whole at any moment, whoever else writes and whenever this process ends.

Adds rows and never changes one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.evidence.measurements.row import LAYOUT_COLUMNS, WORKLOAD_COLUMNS, MeasuredRow
from simulator.evidence.measurements.rows import read_rows, rows_text
from simulator.lab.runner.processes import signals_blocked

_IDENTITY: Final = (
    *("model", "num_layers", "hardware", "framework", "options", "stack", "devices"),
    *WORKLOAD_COLUMNS,
    *LAYOUT_COLUMNS,
)
"""Columns of the question that was launched; the others hold its outcome."""


def identity(row: MeasuredRow) -> tuple[object, ...]:
    """Return the identity of a launch: equal for two rows of the same question and layout."""
    return tuple(getattr(row, name) for name in _IDENTITY)


@dataclass(frozen=True, slots=True)
class Record:
    """File of measured rows."""

    path: Path

    @property
    def table(self) -> str:
        """Name of the table: the file's, without its ending."""
        return self.path.stem

    def check(self) -> None:
        """Raise InputError where rows could not be added, before anything is launched."""
        self.rows()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise InputError(f"--output {self.path}: cannot be written: {error.strerror or error}") from error

    def rows(self) -> tuple[MeasuredRow, ...]:
        """Return the rows of the file; none where there is no file."""
        return read_rows(self.path) if self.path.exists() else ()

    def add(self, row: MeasuredRow) -> MeasuredRow:
        """Add a row with the table's next number and return it. Raises InputError where the file cannot be written."""
        try:
            with signals_blocked(), self._locked():
                before = self.rows()
                numbers = [known.row for known in before if known.table == self.table]
                numbered = replace(row, table=self.table, row=max(numbers, default=0) + 1)
                self._write(rows_text([*before, numbered]))
        except OSError as error:
            raise InputError(f"--output {self.path}: cannot be written: {error.strerror or error}") from error
        return numbered

    def _write(self, text: str) -> None:
        """Replace the file in one step: a reader, or a power cut, sees the old rows or the new ones."""
        target = self.path.resolve()
        partial = target.with_name(f".{target.name}.partial")
        with partial.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            partial.chmod(target.stat().st_mode & 0o7777)
        partial.replace(target)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from writing; the lock ends with the process that holds it."""
        target = self.path.resolve()
        with target.with_name(f".{target.name}.lock").open("a", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
