"""The line that starts a script, from its comment (`# sh run.sh dsw 7B 1 8`) or documentation. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from simulator.recipes.shell.starts import DocumentedStart, start_of

_LINE: Final = re.compile(
    r"^#+[ \t]*(?:(?:sh|bash|sbatch)[ \t]+)?([\w./-]{1,200}\.(?:sh|bash|slurm))[ \t]+(\S[^\n]{0,4000})$", re.MULTILINE
)
_READ: Final = re.compile(r"\$(?:([1-9])|\{([1-9][0-9]?)\b)")
"""A parameter that the script looks at."""
_COMMENT: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"^[^#\n=]{0,80}?\b([A-Za-z_]\w{0,60})=[\"']?\$\{?([1-9][0-9]?)\b", re.MULTILINE)
"""`NAME=$1`, `export NAME="${1:-x}"`."""
_OPEN: Final = re.compile(r"[$<`\\]")
"""A word that only the reader of the comment can fill in."""
_TOLD: Final = re.compile(r"\w*(?:SEQ|BATCH|SIZE)\w*|[MG]BS|(?:[A-Z]+_)?(?:TP|PP|CP|EP|ETP|VPP)")
"""Variables whose arguments are named: sequence, batch, sizes."""


@dataclass(frozen=True, slots=True)
class Example:
    """A command line of a script."""

    line: int
    """Of the comment; 1 for a line that stands elsewhere."""
    said: str
    """What gives it, with the arguments that say most."""
    documented: bool
    """Whether it stands elsewhere."""
    words: Mapping[int, str]
    """Its arguments by their number, those that it tells."""
    taken: frozenset[str]
    """Settings of the user's that stand for the arguments their variables take."""
    exported: Mapping[str, str]
    """Variables that are exported before, but for those that the user sets."""


def example_of(text: str, file: str, settings: Mapping[str, str]) -> Example | None:
    """The first command line in a script's comments that names it and has as many words as it reads parameters.

    Where no comment has one, the one that the script's framework documents. None where the user tells all arguments
    (`@`), or where no line has: one of another script, or of another version of it, would put its words in the wrong
    places. An argument that goes to a variable which the user sets is the user's.
    """
    most = parameters(text)
    if not most or "@" in settings:
        return None
    takers = _takers(text)
    own = {number: name for number, name in takers if name in settings}
    settings_by_number = {number: settings[name] for number, name in own.items()}
    settings_by_number |= {number: settings[str(number)] for number in range(1, most + 1) if str(number) in settings}
    names = argument_names(text)
    for line, start, words in _lines(text, file):
        if len(words) == most:
            by_number = {number: word for number, word in enumerate(words, start=1) if not _OPEN.search(word)}
            remark = f"started as {start or 'its comment'} says, with {most} arguments"
            sizes = {
                names.get(number, ""): word for number, word in by_number.items() if number not in settings_by_number
            }
            shown = " ".join(f"{name}={word}" for name, word in sizes.items() if _TOLD.fullmatch(name.upper()))
            exported = {
                name: value for name, value in (start.exported if start else {}).items() if name not in settings
            }
            shown = " ".join([*(f"{name}={value}" for name, value in exported.items()), *([shown] if shown else [])])
            if start and shown:
                remark = f"started as {start} says first: {shown}"
            return Example(
                line, remark, start is not None, by_number | settings_by_number, frozenset(own.values()), exported
            )
    return None


def argument_names(text: str) -> dict[int, str]:
    """Variables that take a script's arguments, by the argument's number; the first of each."""
    return dict(reversed(_takers(text)))


def _takers(text: str) -> list[tuple[int, str]]:
    """Every line `NAME=$n`: the argument's number, and the variable."""
    return [(int(number), name) for name, number in _ASSIGNED.findall(_COMMENT.sub("", text))]


def parameters(text: str) -> int:
    """The highest number of a parameter that a script looks at; 0 where it looks at none."""
    code = _COMMENT.sub("", text)
    return max((int(match[1] or match[2]) for match in _READ.finditer(code)), default=0)


def _lines(text: str, file: str) -> Iterator[tuple[int, DocumentedStart | None, list[str]]]:
    """The command lines of a script: where each stands, what gives it if not its comment, its arguments."""
    for match in _LINE.finditer(text):
        if PurePath(match[1]).name == PurePath(file).name:
            yield text.count("\n", 0, match.start()) + 1, None, match[2].split()
    start = start_of(file, text)
    if start is not None:
        yield 1, start, start.words[len(start.exported) :]
