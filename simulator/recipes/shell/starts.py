"""How a framework's own documentation starts its launch files: what it gives for what they leave to the run.

The table beside this file is made by `tools/starts.py` of checkouts: every start that their pages or launchers show.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Final

TABLE: Final = Path(__file__).with_name("starts.csv")
COLUMNS: Final = ("framework", "version", "document", "file", "words")


@dataclass(frozen=True, slots=True)
class DocumentedStart:
    """One documented start."""

    framework: str
    version: str
    """Commit that was read."""
    document: str
    """Page or launcher of the framework, and its line."""
    file: str
    """What it starts, below the framework's root."""
    words: list[str]
    """Arguments in order; of a configuration file, `NAME=value` of its variables, `--flag=value` of what is added."""

    def __str__(self) -> str:
        """What says so."""
        return f"{self.document} of {self.framework} ({self.version[:7]})"


def start_of(file: str) -> DocumentedStart | None:
    """The documented start of a framework's own launch file, told by its name and its folder's."""
    return _starts().get(PurePath(file).parts[-2:])


@functools.cache
def _starts() -> Mapping[tuple[str, ...], DocumentedStart]:
    with TABLE.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))[1:]
    starts = (DocumentedStart(name, version, page, file, words.split()) for name, version, page, file, words in rows)
    return {PurePath(start.file).parts[-2:]: start for start in starts}
