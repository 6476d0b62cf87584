"""Documented starts of frameworks' own launch files: their pages state what the files leave to the run.

The table beside this file is made by `tools/starts.py` from checkouts: the first start of a file that pages or
launchers show. A start applies to that very text only; another file of the same name may order its arguments
differently.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePath
from typing import Final

TABLE: Final = Path(__file__).with_name("starts.csv")
COLUMNS: Final = ("framework", "version", "document", "file", "digest", "words")
_EXPORT: Final = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class DocumentedStart:
    """One documented start of a launch file."""

    framework: str
    version: str
    """Commit of the framework."""
    document: str
    """Page or launcher of the framework that shows it."""
    file: str
    """Launch file, relative to the framework's root."""
    digest: str
    """`digest` of that file's text."""
    words: list[str]
    """Arguments in order, after `NAME=value` for exported variables; for a configuration file, `NAME=value` of its
    variables and `--flag=value` of added flags. An empty argument is `''` in the table."""

    @property
    def exported(self) -> dict[str, str]:
        """Variables that the page exports before it starts a script."""
        return dict(word.split("=", 1) for word in takewhile(_EXPORT.match, self.words))

    def __str__(self) -> str:
        """Name the document and the framework's version."""
        return f"{self.document} of {self.framework} ({self.version[:7]})"


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of a text's SHA-256, without blanks at the ends of lines."""
    plain = "\n".join(line.rstrip(" \t\r") for line in text.split("\n")).rstrip("\n")
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def start_of(file: str, text: str) -> DocumentedStart | None:
    """Return the documented start of a framework's own launch file with this name and this text; None without one.

    Where several folders of the framework have the same file, the folder's name decides; None where it does not and
    their starts differ.
    """
    named = _starts().get(PurePath(file).name, ())
    same = [start for start in named if start.digest == digest(text)] if named else []
    inside = [start for start in same if PurePath(start.file).parts[-2:] == PurePath(file).parts[-2:]]
    starts = inside or same
    return starts[0] if starts and all(start.words == starts[0].words for start in starts) else None


@functools.cache
def _starts() -> Mapping[str, Sequence[DocumentedStart]]:
    """Return the starts by the name of the launch file."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))[1:]
    starts: dict[str, list[DocumentedStart]] = {}
    for name, version, page, file, mark, words in rows:
        start = DocumentedStart(name, version, page, file, mark, [word.replace("''", "") for word in words.split()])
        starts.setdefault(PurePath(start.file).name, []).append(start)
    return starts
