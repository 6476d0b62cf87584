"""Files as a script has left them: texts by folder and name, and names that commands may have changed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from simulator.budget import charge
from simulator.recipes.shell.values import Cause, Value, alike, hole, one_of

_START: Final = re.compile(r"(?:\$PWD|\$\{PWD\}|\$\(pwd\)|`pwd`)(?=/|\Z)")
"""The folder that the script starts in; `cd` gives these another value."""
_HOME: Final = re.compile(r"\A(?:\$HOME|\$\{HOME\})(?=/|\Z)")
WILD: Final = re.compile(r"\$\(.*\)|\$\(.*|`[^`]*`|\$\{[^}]*\}?|\$\w+|\$.?|\{[^{}]*\}|\[[^][]*\]|[?*]+", re.DOTALL)
"""Parts of a path that stand for any text: holes and patterns."""
_ENTRY_WORK: Final = 50
"""Units of work per file that is copied or compared."""
_LONGEST: Final = 1000
"""Most characters of a path."""
ANY: Final = "**"
"""As a folder of a path: that folder and all below it."""
EVERYTHING: Final = f"{ANY}/*"


@dataclass(slots=True)
class Files:
    """Files at one point of one path through a script."""

    folder: str = ""
    """Present folder, relative to the one that the script starts in."""
    stack: tuple[str, ...] = ()
    """Folders that `popd` returns to."""
    texts: dict[str, Value] = field(default_factory=dict)
    """Text by path, oldest change first; copies share it, and a change replaces it.

    A path may be a pattern, of files that a command may have changed.
    """

    def copy(self, folder: str | None = None, stack: tuple[str, ...] | None = None) -> Files:
        """Return a copy, in another folder where that is stated."""
        charge(_ENTRY_WORK)
        return Files(self.folder if folder is None else folder, self.stack if stack is None else stack, self.texts)

    def path(self, name: str) -> str:
        """Return a file's path from the folder that the script starts in; empty for devices such as /dev/null."""
        charge(10 * len(name))
        if len(name) > _LONGEST or name.startswith("/dev/"):
            return ""
        name = _HOME.sub("~", name)
        start = _START.match(name)
        if start is None and not name.startswith(("/", "$", "`", "~")):
            name = f"{self.folder}/{name}" if self.folder else name
        parts: list[str] = []
        for part in name[start.end() if start else 0 :].split("/"):
            if part == ".." and parts and parts[-1] != ".." and not WILD.search(parts[-1]):
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return "/" * (start is None and name.startswith("/")) + "/".join(parts)

    def write(self, name: str, text: Value) -> None:
        """Keep the text of a file, or of those that a pattern names."""
        if path := self.path(name):
            charge(_ENTRY_WORK * len(self.texts))
            self.texts = {**{other: old for other, old in self.texts.items() if other != path}, path: text}

    def change(self, name: str, line: int) -> None:
        """Keep that a command may have left any text in a file."""
        shown = str(PurePath(name))
        self.write(name, hole(shown, line, [Cause(line, shown)]))

    def remove(self, name: str, line: int) -> None:
        """Keep that a file is gone."""
        self.write(name, hole("", line, [Cause(line, name)]))

    def wrote(self, name: str) -> bool:
        """Whether the script wrote a file under this name."""
        return self.path(name) in self.texts

    def removed(self, name: str) -> bool:
        """Whether a file is surely gone."""
        text = self.texts.get(self.path(name))
        return text is not None and [(piece.known, piece.text) for piece in text.pieces] == [(False, "")]

    def text(self, name: str, on_disk: Callable[[], Value | None]) -> Value | None:
        """Return what the script left in a file: a hole where that is not known, None where it left the file alone.

        Where a file of its name was written in a folder that may be the same, its text is known if both are equal.
        """
        path = self.path(name)
        charge(_ENTRY_WORK * (1 + len(self.texts)))
        if not path:
            return None
        others: list[Value] = []
        for other, text in reversed(self.texts.items()):
            if other == path:
                break
            if _may_be(other, path):
                others.append(text)
        exact = self.texts.get(path)
        known = on_disk() if others and exact is None else exact
        if not others or (known is not None and all(alike(known, other) for other in others)):
            return hole(name, exact.line, exact.causes) if exact is not None and self.removed(name) else exact
        return hole(name, others[0].line, [Cause(other.line, name) for other in others])


def joined_files(every: Sequence[Files], causes: frozenset[Cause], line: int) -> Files:
    """Return the files after several paths, of which the run takes one."""
    merged = every[0].copy()
    if any(files.folder != merged.folder for files in every):
        merged.folder = f"$(cd {line})"
    if any(files.stack != merged.stack for files in every):
        merged.stack = ()
    if all(files.texts is merged.texts for files in every):
        return merged
    charge(_ENTRY_WORK * sum(len(files.texts) for files in every))
    merged.texts = dict(merged.texts)
    for path in dict.fromkeys(path for files in every for path in files.texts):
        texts = [files.texts[path] for files in every if path in files.texts]
        if len(texts) < len(every):
            merged.texts[path] = hole(path, line, causes.union(*(text.causes for text in texts)))
        elif not all(alike(text, texts[0]) for text in texts):
            merged.texts[path] = one_of(texts, path, texts[0].line, causes)
    return merged


def base_name(path: str) -> str:
    """Return the last part of a path, with `*` for each part that stands for any text."""
    return _split(path.rstrip("/"))[1]


@functools.lru_cache(4096)
def _split(path: str) -> tuple[str, str]:
    """Return the folder of a path as it is spelled, and its base name with `*` for what stands for any text."""
    spans = [match.span() for match in WILD.finditer(path)]
    end = len(path)
    while (end := path.rfind("/", 0, end)) >= 0 and any(first <= end < last for first, last in spans):
        continue
    base = re.sub(r"\*+", "*", WILD.sub("*", path[end + 1 :]))
    alone = end < 0 and path[:1] in ("$", "`")  # a path of its own, in a folder that is not known
    return f"{path}?" if alone else path[: max(end, 0)], base


def _may_be(changed: str, path: str) -> bool:
    """Whether a changed path, or one of those that it stands for, may be another."""
    (folder, base), (other, name) = _split(changed), _split(path)
    if not _may_equal(base, name):
        return False
    if folder == other:
        return True
    if folder.endswith(ANY):
        return f"{other}/".startswith(folder.removesuffix(ANY))
    unknown = any(WILD.search(part) or re.match(r"~|(?:\.\./)+[^.]", part) for part in (folder, other))
    return "*" not in (base, name) and (unknown or folder.startswith("/") != other.startswith("/"))


def _may_equal(left: str, right: str) -> bool:
    """Whether two names with stars may be the same."""
    first, last = left.partition("*")[0], left.rpartition("*")[2]
    head, tail = right.partition("*")[0], right.rpartition("*")[2]
    if "*" not in left + right:
        return left == right
    return (first.startswith(head) or head.startswith(first)) and (last.endswith(tail) or tail.endswith(last))
