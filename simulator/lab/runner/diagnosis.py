"""Diagnosis of a failed launch from its log: memory that ran out, a stopped job, an error, a hang.

    >>> diagnosis(Ended(exit_code=1, log=log)).kind  # of a log with "torch.OutOfMemoryError: CUDA out of memory"
    'oom'

Memory is the reason only where a log says so: a rank that was killed without a word is an error.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from simulator.errors import InputError, one_line
from simulator.frameworks.logs import OUT_OF_MEMORY, LogLine, log_lines, longer_line
from simulator.lab.runner.engine import OutcomeKind
from simulator.lab.runner.processes import Ended
from simulator.lab.trainer.process import failure_in

TAIL_LINES: Final = 20
"""Lines of the log that a failed launch shows."""
BY_LAUNCHER: Final = "simulate: "
"""Beginning of a line that a launcher adds to the log about its processes."""
_LONGEST: Final = 300
_MEMORY: Final = re.compile(
    OUT_OF_MEMORY.pattern + r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory"
    r"|std::bad_alloc|\bMemoryError\b"
    r"|CUDA error: out of memory|[Cc]uda failure.{0,8}out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|[Dd]etected \d+ oom[-_]kill event|[Oo]ut [Oo]f [Mm]emory: Killed process"
    r"|\bJobState=OUT_OF_MEMORY\b"
)
"""Memory that ran out: the device's in the frameworks' words and the libraries', and the host's."""
_KILLED: Final = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)|: task \d+: Killed\b")
"""Rank that SIGKILL ended, as torchrun and srun report it."""
_STOPPED: Final = re.compile(
    r"\*\*\* JOB \S+ ON \S+ CANCELLED|\bDUE TO (?:PREEMPTION|TIME LIMIT|NODE FAIL|JOB REQUEUE)"
    r"|\bJobState=(?:PREEMPTED|CANCELLED|TIMEOUT|DEADLINE|NODE_FAIL|BOOT_FAIL|REVOKED)\b"
)
"""Job that Slurm or somebody ended. A step alone is cancelled too where one of its ranks failed."""
_RAISED: Final = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception)(?::.*)?|what\(\):.*")
"""Exception, as Python prints it or as a C++ library does that ended the process."""
_AFTERMATH: Final = re.compile(
    r"ChildFailedError|SignalException|DistBackendError|DistNetworkError|[Cc]onnection (?:reset|closed|refused)"
    r"|[Bb]roken pipe|[Ss]ocket closed"
)
"""Errors of other ranks and the launcher once one rank has failed."""
_REFUSED: Final = re.compile(r"[\w./-]+\.py: error: .*|.*: (?:command not found|No such file or directory)")
"""Program that rejected its arguments, or is missing."""
_SIGNS: Final = {
    "stopped": _STOPPED.search,
    "launcher": re.compile(re.escape(BY_LAUNCHER)).match,
    "raised": _RAISED.fullmatch,
    "refused": _REFUSED.fullmatch,
    "killed": _KILLED.search,
}
"""Signs in lines that are not the trainer's; the first that matches counts."""
_REASONS: Final = ("stopped", "trainer", "raised", "followed", "refused", "launcher")
"""Signs of an error, the most telling first."""
_KILLED_CODE: Final = 137
_KILLED_TEXT: Final = "killed, perhaps out of the host's memory"
"""Not memory that ran out for sure: a person, a scheduler and a container's limit kill alike."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Failure of a launch, by its kind."""

    kind: OutcomeKind
    error: str
    """Error in one line."""
    tail: tuple[str, ...]
    """Last lines of the rank that failed, or of all where that is not known."""


def diagnosis(ended: Ended, more: Iterable[Path] = ()) -> Diagnosis:
    """Return why a launch failed; memory that ran out is the reason also where other ranks then hung.

    `more` are logs of single ranks beside that of the launch.
    """
    signs: dict[str, LogLine] = {}
    for line in chain.from_iterable(map(_lines, (ended.log, *more))):
        sign = _sign(line.text.strip())
        if sign == "memory":
            signs[sign] = longer_line(signs.get(sign), line)
        elif sign:
            signs.setdefault(sign, line)
    memory, launcher = signs.get("memory"), signs.get("launcher")
    reason = next(filter(None, map(signs.get, _REASONS)), None)
    if memory is not None:
        return _diagnosed("oom", memory.text, ended, memory.rank)
    if ended.timed_out:
        message = "did not end within the time limit" if launcher is None else _by_launcher(launcher)
        return _diagnosed("timeout", message, ended)
    if reason is not None:
        return _diagnosed("error", _by_launcher(reason), ended, reason.rank)
    if "killed" in signs or ended.exit_code == _KILLED_CODE:
        return _diagnosed("error", _KILLED_TEXT, ended)
    last = tail_of(ended.log, most=1)
    status = "ended without an exit code" if ended.exit_code is None else f"exit code {ended.exit_code}"
    return _diagnosed("error", f"{last[0]} ({status})" if last else status, ended)


def _sign(text: str) -> str:
    """Return the sign of a failure in a line of a log; empty for most lines."""
    by_trainer = failure_in(text)
    if (by_trainer and by_trainer.kind == "out-of-memory") or _MEMORY.search(text):
        return "memory"
    if by_trainer:
        return "followed" if _AFTERMATH.search(text) else "trainer"
    sign = next((name for name, matches in _SIGNS.items() if matches(text)), "")
    return "" if sign == "raised" and _AFTERMATH.search(text) else sign


def _by_launcher(line: LogLine) -> str:
    return line.text.removeprefix(BY_LAUNCHER)


def tail_of(log: Path, rank: str = "", most: int = TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines that are not blank, of one rank where it is named."""
    texts = (line.text for line in _lines(log) if line.text.strip() and rank in ("", line.rank))
    return tuple(deque(texts, maxlen=most))


def _diagnosed(kind: OutcomeKind, error: str, ended: Ended, rank: str = "") -> Diagnosis:
    text = one_line(error)
    return Diagnosis(kind, text if len(text) <= _LONGEST else text[:_LONGEST] + "...", tail_of(ended.log, rank))


def _lines(log: Path) -> Iterator[LogLine]:
    """Yield the lines of a log; none where it is missing."""
    try:
        yield from log_lines(log)
    except InputError:
        return
