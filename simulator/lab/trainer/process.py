"""Process of a rank, without torch: which rank it is, how it ends, and the line in which it says why it failed."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from typing import Final, Literal, NoReturn

from simulator.errors import InputError, SimulateError, UnsupportedError, one_line
from simulator.records import Record

_SET_PARENT_DEATH_SIGNAL: Final = 1
_SET_CHILD_SUBREAPER: Final = 36
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


def rank_from_environment(environment: MutableMapping[str, str], devices: int) -> int:
    """Return the global rank as torchrun sets it, with torch's variables completed. Raises InputError."""
    if "RANK" not in environment and devices == 1:
        environment.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in environment]
    if devices > 1:
        missing += [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise InputError(f"environment: {missing[0]} is not set; start the ranks with torchrun")
    rank, size = environment["RANK"], environment["WORLD_SIZE"]
    if size != str(devices):
        raise InputError(f"environment: WORLD_SIZE {size}; the job is for {devices} devices")
    if not rank.isdecimal() or int(rank) >= devices:
        raise InputError(f"environment: RANK '{rank}': must be a whole number from 0 to {devices - 1}")
    return int(rank)


def end_with_parent() -> None:
    """Let the system kill this process when its parent dies (Linux), as nobody else may end it."""
    _control(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans(*, adopt: bool) -> None:
    """Make descendants that lose their parent children of this process, or no longer (Linux)."""
    _control(_SET_CHILD_SUBREAPER, int(adopt))


def _control(option: int, value: int) -> None:
    """Call prctl, which only Linux has."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def leave(code: int) -> NoReturn:
    """End this process after flushing its output, without the interpreter's shutdown.

    The threads of process groups live on through that shutdown: gloo's have crashed in it after the result was written,
    they wait for ranks that are gone, and they write behind the line that a failure ends with.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Failure(Record):
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
