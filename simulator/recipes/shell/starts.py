"""Example arguments of a script: from its comment (`# sh run.sh dsw 7B 1 8`) or from pages of its framework.

For a script whose comment is `# bash run.sh 8 4096`, `example_of` returns the words 8 and 4096 by number. The table
beside this file is made by `tools/starts.py` from checkouts: the first start of a file that pages or launchers show. A
start applies to that very text only; another file of the same name may order its arguments differently. `shell.script`
asks for it where arguments are missing.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
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
    starts = [start for start in same if PurePath(start.file).parts[-2:] == PurePath(file).parts[-2:]] or same
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


# Examples.

_LINE: Final = re.compile(
    r"^#+[ \t]*(?:(?:sh|bash|sbatch)[ \t]+)?([\w./-]{1,200}\.(?:sh|bash|slurm))[ \t]+(\S[^\n]{0,4000})$", re.MULTILINE
)
_READ: Final = re.compile(r"\$(?:([1-9])|\{([1-9][0-9]?)\b)")
"""A positional parameter that the script reads."""
_COMMENT: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"^[^#\n=]{0,80}?\b([A-Za-z_]\w{0,60})=[\"']?\$\{?([1-9][0-9]?)\b", re.MULTILINE)
"""`NAME=$1`, `export NAME="${1:-x}"`."""
_OPEN: Final = re.compile(r"[$<`\\]")
"""A placeholder that only the reader of the comment can fill in."""
_SIZES: Final = re.compile(r"\w*(?:SEQ|BATCH|SIZE)\w*|[MG]BS|(?:[A-Z]+_)?(?:TP|PP|CP|EP|ETP|VPP)")
"""Variables whose arguments the remark shows: sequence, batch, sizes."""


@dataclass(frozen=True, slots=True)
class Example:
    """An example command line of a script."""

    line: int
    """Line of the comment; 1 for a documented example."""
    message: str
    """Remark that names its source and its most important arguments."""
    documented: bool
    """Whether it comes from documentation, not from the script's comment."""
    words: Mapping[int, str]
    """Arguments by number, without placeholders."""
    used_settings: frozenset[str]
    """Settings of the user's that replace arguments, by the variables that take these."""
    exported: Mapping[str, str]
    """Variables exported before the start, except those that the user sets."""


def example_of(text: str, file: str, settings: Mapping[str, str]) -> Example | None:
    """Return the first example command line with as many words as the script reads parameters; None without one.

    The script's comments come before its framework's documentation. None also where the user sets all arguments (`@`).
    Other lines belong to other scripts or versions and would misplace the arguments. A setting for the variable that
    takes an argument replaces that argument.
    """
    most = parameters(text)
    if not most or "@" in settings:
        return None
    takers = _takers(text)
    taken = {number: name for number, name in takers if name in settings}
    settings_by_number = {number: settings[name] for number, name in taken.items()}
    settings_by_number |= {number: settings[str(number)] for number in range(1, most + 1) if str(number) in settings}
    names = argument_names(text)
    for line, start, words in _lines(text, file):
        if len(words) == most:
            by_number = {number: word for number, word in enumerate(words, start=1) if not _OPEN.search(word)}
            remark = f"started as {start or 'its comment'} says, with {most} arguments"
            exported = start.exported if start else {}
            exported = {name: value for name, value in exported.items() if name not in settings}
            sizes = {names.get(n, ""): word for n, word in by_number.items() if n not in settings_by_number}
            sizes = {name: word for name, word in sizes.items() if _SIZES.fullmatch(name.upper())}
            shown = " ".join(f"{name}={value}" for name, value in (*exported.items(), *sizes.items()))
            if start and shown:
                remark = f"started as {start} says first: {shown}"
            return Example(
                line, remark, start is not None, by_number | settings_by_number, frozenset(taken.values()), exported
            )
    return None


def argument_names(text: str) -> dict[int, str]:
    """Return the first variable that takes each of a script's arguments, by the argument's number."""
    return dict(reversed(_takers(text)))


def _takers(text: str) -> list[tuple[int, str]]:
    """Return the argument's number and the variable of every line `NAME=$n`."""
    return [(int(number), name) for name, number in _ASSIGNED.findall(_COMMENT.sub("", text))]


def parameters(text: str) -> int:
    """Return the highest number of the positional parameters that a script reads; 0 without one."""
    code = _COMMENT.sub("", text)
    return max((int(match[1] or match[2]) for match in _READ.finditer(code)), default=0)


def _lines(text: str, file: str) -> Iterator[tuple[int, DocumentedStart | None, list[str]]]:
    """Yield each example's line, its document unless it is a comment, and its arguments."""
    for match in _LINE.finditer(text):
        if PurePath(match[1]).name == PurePath(file).name:
            yield text.count("\n", 0, match.start()) + 1, None, match[2].split()
    start = start_of(file, text)
    if start is not None:
        yield 1, start, start.words[len(start.exported) :]
