"""Failure of a rank: the last line of its error output and its exit code, written and read. Imports no torch."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from simulator.errors import SimulateError, UnsupportedError, one_line

FailureKind = Literal["out-of-memory", "unsupported", "error"]

EXIT_CODES: Final[dict[FailureKind, int]] = {"out-of-memory": 3, "unsupported": 1, "error": 1}
"""Status with which a failed rank ends."""
_MEMORY_TEXT: Final = re.compile(
    r"out of memory|(?:can(?:'|no)t allocate|not enough) memory|bad_alloc|ALLOC_FAILED", re.IGNORECASE
)
_LINE: Final = re.compile(
    r"simulate-trainer: rank (?P<rank>\d+): (?P<kind>out-of-memory|unsupported|error): (?P<text>.*)"
)
_LONGEST_TEXT: Final = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """Reason why a rank failed."""

    rank: int
    kind: FailureKind
    text: str

    @property
    def line(self) -> str:
        """Line of a log that reports it."""
        return f"simulate-trainer: rank {self.rank}: {self.kind}: {self.text}"


def failure_of(error: BaseException, rank: int) -> Failure:
    """Return the failure of an exception, by its causes too: a pipeline wraps a stage's exception."""
    chain = list(_causes(error))
    for cause in chain:
        if isinstance(cause, MemoryError) or _MEMORY_TEXT.search(str(cause)):
            return Failure(rank, "out-of-memory", _text(cause))
    kind: FailureKind = "unsupported" if isinstance(error, UnsupportedError) else "error"
    return Failure(rank, kind, _text(error if isinstance(error, SimulateError) else chain[-1]))


def failed(error: Exception, rank: int) -> int:
    """Print an exception's traceback and the line that the launcher reads; return the exit status."""
    traceback.print_exception(error)
    failure = failure_of(error, rank)
    print(failure.line, file=sys.stderr, flush=True)  # noqa: T201 - a rank's error output is its log
    return EXIT_CODES[failure.kind]


def failure_in(line: str) -> Failure | None:
    """Return the failure that a line of a log reports; None for any other line."""
    match = _LINE.search(line)
    if match is None:
        return None
    return Failure(int(match["rank"]), match["kind"], match["text"])  # type: ignore[arg-type]


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        yield cause
        cause = cause.__cause__


def _text(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}")[:_LONGEST_TEXT]
