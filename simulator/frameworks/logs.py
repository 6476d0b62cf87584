"""Training logs: lines with their numbers, and what one logged run holds, whatever framework wrote it.

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
from simulator.frameworks.run import AskedRun
from simulator.question.units import GIB, KIB
from simulator.question.vocabulary import FrameworkName

OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError|(?:CUDA|NPU|HIP|GPU) out of memory|[Oo]ut of memory error on|ResourceExhaustedError"
)
"""What a run that ran out of device memory prints, in PyTorch's and Paddle's words."""
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
    """Prefix of the rank that printed the line; empty in a log of one rank."""
    text: str
    """The line without prefix and colours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedStep:
    """One logged interval of steps."""

    iteration: int
    """Iteration at the interval's end."""
    seconds: float
    """Time of one step, in seconds."""
    rate: float | None = None
    """Logged speed of a device in the log's own unit; None where the log has none."""
    batch: int | None = None
    """Sequences of the step, a count, where the line says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedMemory:
    """Most memory that a run reported, of all its ranks; None for what it did not."""

    allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    """What the framework's allocator held from the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """One run of a log."""

    begin: LogLine
    last: LogLine
    """Line of the last step, or of the end."""
    arguments: Arguments | None
    """The words that the run printed; None where the log shows none."""
    steps: tuple[LoggedStep, ...]
    memory: LoggedMemory = LoggedMemory()
    reported_after: int = 0
    """Iteration of the memory report, up to which steps are slower."""
    global_batch_size: int | None = None
    """Sequences of a step where they stand elsewhere than among its words, a count."""
    shape: Mapping[str, Any] | None = None
    """Fields of the model's spec as the log prints its configuration; None where it does not."""
    stated: str = ""
    """The model in the log's words."""
    samples_per_step: float | None = None
    """Sequences of a step by the log's own speeds, which may contradict its words."""
    notes: tuple[str, ...] = ()
    """Sentences on what the figures are."""
    out_of_memory: LogLine | None = None
    """The line that says that memory ran out, where the run ended so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogForm:
    """How one framework writes its logs."""

    is_own: Callable[[str], bool]
    """Whether a line is one that only this framework writes."""
    runs: Callable[[Iterable[LogLine], FlagTable], Iterable[LoggedRun]]
    """The runs of a log that logged steps or ran out of memory. Raises InputError naming the line."""
    read: Callable[[Arguments], AskedRun]
    """The run that the printed words ask for, before what was not read is remarked."""
    rate: Literal["tflops", "tokens"]
    """Unit of a step's logged speed: model TFLOP/s, or tokens a second, of a device."""
    tables: tuple[str, ...] = ()
    """Tables of what only logs call so, which stand before the framework's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLogForm:
    """How a trainer writes a log that shows its steps and some facts of the run, but not all its words."""

    name: str
    """The trainer in an answer's words: `the Hugging Face trainer`."""
    framework: FrameworkName
    """The profile that its runs are priced with."""
    order: int
    """Place among the forms that a log's lines may have: the surest marks first."""
    begins: re.Pattern[str]
    """A line that only this trainer writes."""
    step: re.Pattern[str]
    """A step's line: groups `at`, and `seconds`, `rate` (steps per second) or `tokens` (per second and device); where
    they are printed `total` (steps of the run) and `reserved` (GiB)."""
    facts: tuple[re.Pattern[str], ...]
    """Lines with facts of the run, by group; `family` and `parameters` tell the model."""
    columns: Callable[[str, Mapping[str, str]], dict[str, Any]]
    """Columns of a measured row that the facts give; the first argument is the place that an error names."""
    note: str = ""
    """A sentence on what the columns assume."""


def counts(where: str, facts: Mapping[str, str], names: Mapping[str, str]) -> dict[str, Any]:
    """Counts by column, of the facts that the log has. Raises InputError naming the line."""
    return {column: whole(where, name, facts[name]) for column, name in names.items() if facts.get(name)}


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


def fuller(known: LogLine | None, line: LogLine) -> LogLine:
    """The line that says more; an exception's name often stands alone before its message."""
    return line if known is None or len(line.text) > len(known.text) else known


def whole(where: str, name: str, text: str) -> int:
    """The count that `text` is. Raises InputError naming the line and the name."""
    digits = text.replace(",", "")
    if not _WHOLE.fullmatch(digits) or int(digits) > _HIGHEST:
        raise InputError(f"{where}: {name} is '{text[:40]}'; expected a whole number up to {_HIGHEST}")
    return int(digits)


def number(where: str, name: str, text: str) -> float:
    """The number above zero that `text` begins with. Raises InputError naming the line and the name."""
    match = _NUMBER.match(text.strip())
    value = float(match.group()) if match else 0.0
    if not 0.0 < value < float("inf"):
        raise InputError(f"{where}: {name} is '{text.strip()[:40]}'; expected a number above zero")
    return value
