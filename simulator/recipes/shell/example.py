"""The line that a script's own comment gives to start it: `# sh run.sh dsw 7B 1 8`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

_LINE: Final = re.compile(
    r"^#+[ \t]*(?:(?:sh|bash|sbatch)[ \t]+)?([\w./-]{1,200}\.(?:sh|bash|slurm))[ \t]+(\S[^\n]{0,4000})$", re.MULTILINE
)
_READ: Final = re.compile(r"\$(?:([1-9])|\{([1-9][0-9]?)\b)")
"""A parameter that the script looks at."""
_COMMENT: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
ASSIGNED: Final = re.compile(r"^[^#\n=]{0,80}?\b([A-Za-z_]\w{0,60})=[\"']?\$\{?([1-9][0-9]?)\b", re.MULTILINE)
"""`NAME=$1`, `export NAME="${1:-x}"`."""
_OPEN: Final = re.compile(r"[$<`\\]")
"""A word that only the reader of the comment can fill in."""


@dataclass(frozen=True, slots=True)
class Example:
    """A command line of a script, from its comment."""

    line: int
    words: Mapping[int, str]
    """Its arguments by their number, those that it tells."""
    taken: frozenset[str]
    """Settings of the user's that stand for the arguments their variables take."""


def example_of(text: str, file: str, settings: Mapping[str, str]) -> Example | None:
    """The first command line in a script's comments that names it and has as many words as it reads parameters.

    None where the user tells all arguments (`@`), or where no line has: one of another script, or of another version of
    it, would put its words in the wrong places. An argument that goes to a variable which the user sets is the user's.
    """
    code = _COMMENT.sub("", text)
    most = max((int(match[1] or match[2]) for match in _READ.finditer(code)), default=0)
    if not most or "@" in settings:
        return None
    for match in _LINE.finditer(text):
        words = match[2].split()
        if PurePath(match[1]).name != PurePath(file).name or len(words) != most:
            continue
        found = {number: word for number, word in enumerate(words, start=1) if not _OPEN.search(word)}
        own = {int(number): name for name, number in ASSIGNED.findall(code) if name in settings}
        found |= {number: settings[name] for number, name in own.items()}
        found |= {number: settings[str(number)] for number in range(1, most + 1) if str(number) in settings}
        return Example(text.count("\n", 0, match.start()) + 1, found, frozenset(own.values()))
    return None
