"""Training logs: lines with their numbers, and the content of one logged run, whichever framework wrote it.

A framework's `LogForm` splits a log into runs. Each is a `LoggedRun`: the arguments that the run printed, for the same
reader as a script's, and the steps and memory figures that it measured. A trainer that prints steps but not its
arguments, as torchtitan does, has a `StepLogForm` instead. Units are base units: seconds and bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from simulator.errors import InputError
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import FlagTable
from simulator.question.recipe import Recipe
from simulator.question.units import GIB, KIB
from simulator.question.vocabulary import FrameworkName

OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError|(?:CUDA|NPU|HIP|GPU) out of memory|[Oo]ut of memory error on|ResourceExhaustedError"
)
"""Messages of PyTorch and Paddle when device memory runs out."""
_MAXIMUM_BYTES: Final = 2 * GIB
_LONGEST: Final = 64 * KIB
_HIGHEST: Final = 2**31
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
# torchrun --tee ([default7]:), other launchers ([rank31]:) and srun --label (12: ), also one behind the other.
_PREFIX: Final = re.compile(r"(?:\s{0,8}(?:\[(?:default|rank)\d{1,6}\]:|\d{1,6}:(?=\s))){1,4} ?")
_WHOLE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,25})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log."""

    where: str
    """File and line number, as an error names it."""
    number: int
    """Line number in the file, from 1."""
    rank: str
    """Prefix of the rank that printed the line; empty in a log of a single rank."""
    text: str
    """The line without prefix and colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One logged interval of steps."""

    iteration: int
    """Iteration at the end of the interval."""
    seconds: float
    """Time of one step, in seconds."""
    rate: float | None = None
    """Logged speed per device in the log's own unit; None without one."""
    batch: int | None = None
    """Sequences per step; None where the line does not state them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMemory:
    """Highest memory figures that any rank of a run reported; None where not reported."""

    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    """Memory that the framework's allocator reserved from the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """One run in a log."""

    begin: LogLine
    last: LogLine
    """Line of the last step; without one the first line."""
    arguments: Arguments | None
    """Arguments that the run printed; None where it printed none."""
    steps: tuple[LoggedStep, ...]
    memory: LoggedMemory = LoggedMemory()
    reported_after: int = 0
    """Iteration of the memory report; steps up to it are slower."""
    global_batch_size: int | None = None
    """Sequences per step, where they are not among the arguments."""
    shape: Mapping[str, Any] | None = None
    """ModelSpec fields of the model configuration that the log prints; None without one."""
    stated: str = ""
    """The model as the log names it."""
    samples_per_step: float | None = None
    """Sequences per step computed from the logged speeds, which may contradict the arguments."""
    notes: tuple[str, ...] = ()
    """Sentences on the meaning of the figures."""
    out_of_memory: LogLine | None = None
    """Line that reports the lack of memory that ended the run; None otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """One framework's log format."""

    is_own: Callable[[str], bool]
    """Whether a line is one that only this framework writes."""
    runs: Callable[[Iterable[LogLine], FlagTable], Iterable[LoggedRun]]
    """Return the runs that logged steps or ran out of memory. Raises InputError naming the line."""
    read: Callable[[Arguments], Recipe]
    """Return the run that the printed arguments describe, without remarks on unread ones."""
    rate: Literal["tflops", "tokens"]
    """Unit of a step's logged speed, per device: model TFLOP/s, or tokens per second."""
    tables: tuple[str, ...] = ()
    """Tables of names that only logs use, which precede the framework's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLogForm:
    """Format of a log that shows steps and some facts of the run, but not all its arguments."""

    name: str
    """The trainer as answers name it: `the Hugging Face trainer`."""
    framework: FrameworkName
    """Profile that its runs are priced with."""
    order: int
    """Position among the step log forms when a log is recognised, lowest first."""
    begins: re.Pattern[str]
    """A line that only this trainer writes."""
    step: re.Pattern[str]
    """A step's line, with groups `at` and one of `seconds`, `rate` (steps per second) or `tokens` (per second and
    device), optionally `total` (steps of the run) and `reserved` (GiB)."""
    facts: tuple[re.Pattern[str], ...]
    """Lines with facts of the run, one per group; `family` and `parameters` identify the model."""
    columns: Callable[[str, Mapping[str, str]], dict[str, Any]]
    """Return the columns of a measured row for the facts; the first argument is the place that errors name."""
    note: str = ""
    """Sentence on the assumptions behind the columns."""


def counts(where: str, facts: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Return counts by column for the facts present in the log. Raises InputError naming the line."""
    return {column: parse_count(where, name, facts[name]) for column, name in names.items() if facts.get(name)}


def log_lines(path: Path) -> Iterator[LogLine]:
    """Yield the lines of a log, in order. Raises InputError when the file cannot be read or is too large.

    A carriage return begins a new text on the same line (progress bars); a text over 64 KiB is cut.
    """
    try:
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        if path.stat().st_size > _MAXIMUM_BYTES:
            raise InputError(f"{path}: too large; at most {_MAXIMUM_BYTES} bytes")
        with path.open("rb") as stream:
            number, complete = 0, True
            while data := stream.readline(_LONGEST):
                number += complete
                for text in data.decode("utf-8", errors="replace").split("\r") if complete else ():
                    yield _line(path, number, text.rstrip("\n"))
                complete = data.endswith(b"\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _line(path: Path, number: int, text: str) -> LogLine:
    text = _COLOUR.sub("", text)
    prefix = _PREFIX.match(text)
    rank = prefix.group().strip() if prefix else ""
    return LogLine(f"{path}:{number}", number, rank, text[prefix.end() :] if prefix else text)


def longer_line(known: LogLine | None, line: LogLine) -> LogLine:
    """Return the longer of two lines; an exception's name often stands alone before its message."""
    return line if known is None or len(line.text) > len(known.text) else known


def parse_count(where: str, name: str, text: str) -> int:
    """Parse a count. Raises InputError naming the line and the name."""
    digits = text.replace(",", "")
    if not _WHOLE.fullmatch(digits) or int(digits) > _HIGHEST:
        raise InputError(f"{where}: {name} is '{text[:40]}'; expected a whole number up to {_HIGHEST}")
    return int(digits)


def number(where: str, name: str, text: str) -> float:
    """Parse the positive number that `text` begins with. Raises InputError naming the line and the name."""
    match = _NUMBER.match(text.strip())
    value = float(match.group()) if match else 0.0
    if not 0.0 < value < float("inf"):
        raise InputError(f"{where}: {name} is '{text.strip()[:40]}'; expected a number above zero")
    return value
