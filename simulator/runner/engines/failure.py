"""What a log says of a launch that did not end well."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.measurements.log_text import OUT_OF_MEMORY, LogLine, fuller, log_lines
from simulator.runner.engine import TAIL_LINES

_RAISED: Final = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception)(?::.*)?")
_REFUSED: Final = re.compile(r".*(?:\.py: error: .*|: command not found|: No such file or directory)")
_AFTERMATH: Final = re.compile(r"ChildFailedError|SignalException|DistBackendError|CalledProcessError")
"""What other ranks and the launcher raise once one rank has failed."""


def tail_of(log: Path) -> tuple[str, ...]:
    """The last lines of a log; none of a log that is not there."""
    return tuple(line.text for line in deque(_lines(log), maxlen=TAIL_LINES))


def out_of_memory(log: Path) -> str:
    """What the log says of device memory that ran out, its fullest line; empty where it says nothing."""
    found: LogLine | None = None
    for line in _lines(log):
        if OUT_OF_MEMORY.search(line.text):
            found = fuller(found, line)
    return found.text if found else ""


def first_error(log: Path) -> str:
    """The first error a log shows, which is what the others follow from; its last line where it shows none."""
    last = ""
    for line in _lines(log):
        text = line.text.strip()
        if _REFUSED.fullmatch(text) or (_RAISED.fullmatch(text) and not _AFTERMATH.search(text)):
            return text
        last = text or last
    return last


def _lines(log: Path) -> Iterator[LogLine]:
    try:
        yield from log_lines(log)
    except InputError:
        return
