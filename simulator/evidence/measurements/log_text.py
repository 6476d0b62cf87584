"""Log files as lines: decoded, without colours, each with its number and without the prefix of its rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError
from simulator.question.units import GIB, KIB

_MAXIMUM_BYTES: Final = 2 * GIB
_LONGEST: Final = 64 * KIB
_HIGHEST: Final = 2**31
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]")
# torchrun --tee ([default7]:), other launchers ([rank31]:) and srun --label (12: ), also one behind the other.
_PREFIX: Final = re.compile(r"(?:\s{0,8}(?:\[(?:default|rank)\d{1,6}\]:|\d{1,6}:(?=\s))){1,4} ?")
_WHOLE: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,25})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)

OUT_OF_MEMORY: Final = re.compile(
    r"OutOfMemoryError|(?:CUDA|NPU|HIP|GPU) out of memory|[Oo]ut of memory error on|ResourceExhaustedError"
)
"""What a run that ran out of device memory prints, in PyTorch's and Paddle's words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """What a log does not say."""

    table: str
    """Name of the table its rows form."""
    hardware: str
    """Name or path of the hardware spec."""
    model: str | None = None
    """Name or path of the model spec; None to find a shipped one by its shape."""
    options: dict[str, str] = field(default_factory=dict)
    """Profile switches that the log does not show."""
    warmup: int = 2
    """Logged steps to leave out at the start, a count."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns of a row that are known beside the log: of a recipe, of an estimate, or the user's own."""
    fixed: frozenset[str] = frozenset()
    """Those of them that hold whatever the log says."""


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


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration that a run printed, with types; errors name the line."""

    said: Mapping[str, tuple[LogLine, str]]
    """Line and text of each value, by name."""
    blank: frozenset[str]
    """Texts that stand for none."""
    true: frozenset[str]
    """Texts of a switch that is on."""

    def text(self, *names: str) -> str:
        """Return the first value there is; empty without one."""
        texts = (self.said[name][1] for name in names if name in self.said)
        return next((text for text in texts if text not in self.blank), "")

    def flag(self, name: str) -> bool:
        """Return a switch."""
        return self.text(name) in self.true

    def count(self, *names: str) -> int | None:
        """Return the first count there is; versions name one thing differently."""
        named = next((name for name in names if self.text(name)), None)
        return None if named is None else whole(self.said[named][0].where, named, self.text(named))

    def precision(self) -> str | None:
        """Return the 16-bit type that is on, fp32 where both are told to be off; None where nothing is told."""
        on = next((name for name in ("bf16", "fp16") if self.flag(name)), None)
        return on or ("fp32" if self.text("bf16") and self.text("fp16") else None)


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
            number, whole = 0, True
            while data := stream.readline(_LONGEST):
                number += whole
                for text in data.decode("utf-8", errors="replace").split("\r") if whole else ():
                    yield _line(path, number, text.rstrip("\n"))
                whole = data.endswith(b"\n")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _line(path: Path, number: int, text: str) -> LogLine:
    text = _COLOUR.sub("", text)
    prefix = _PREFIX.match(text)
    rank = prefix.group().strip() if prefix else ""
    return LogLine(f"{path}:{number}", number, rank, text[prefix.end() :] if prefix else text)


def fuller(known: LogLine | None, line: LogLine) -> LogLine:
    """Return the line that says more; an exception's name often stands alone before its message."""
    return line if known is None or len(line.text) > len(known.text) else known


def whole(where: str, name: str, text: str) -> int:
    """Return the count that `text` is. Raises InputError naming the line and the name."""
    digits = text.replace(",", "")
    if not _WHOLE.fullmatch(digits) or int(digits) > _HIGHEST:
        raise InputError(f"{where}: {name} is '{text[:40]}'; expected a whole number up to {_HIGHEST}")
    return int(digits)


def number(where: str, name: str, text: str) -> float:
    """Return the number above zero that `text` begins with. Raises InputError naming the line and the name."""
    found = _NUMBER.match(text.strip())
    value = float(found.group()) if found else 0.0
    if not 0.0 < value < float("inf"):
        raise InputError(f"{where}: {name} is '{text.strip()[:40]}'; expected a number above zero")
    return value
