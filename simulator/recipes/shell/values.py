"""Values of a shell script: text in pieces, of which each is known or a hole that only the run fills; files.

`--tp $TP`, where nobody sets TP, is the known piece `--tp ` and the hole `$TP` with its cause. A piece also says
whether blanks in it separate words, as in `$LIST` outside of quotes, and what a hole may be by the script's branches.

`Files` are those at one point of a script. After `echo HID=8 > conf.sh`, the text of `conf.sh` is `HID=8`; after `wget
-O conf.sh …` only the run knows it; a file that no command touched is as it is on disk. `shell.words` makes values,
`shell.state` holds them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from simulator.budget import charge
from simulator.frameworks.values import LOOK_WORK, MAXIMUM_PIECES, Cause, PlainPiece, PlainValue, TooLargeError

BLANKS: Final = " \t\n"
"""Characters that separate words unless the script sets IFS."""
_between = functools.cache(lambda separators: re.compile(f"([{separators}]+)"))
_MAXIMUM_ALTERNATIVES: Final = 16
_MAXIMUM_ALTERNATIVE_PIECES: Final = 4096


@dataclass(slots=True, unsafe_hash=True)
class Piece(PlainPiece):
    """Text of one line of the script, or a hole, whose text only the run knows."""

    splits: bool = False
    """Whether white space in it separates words, as after an unquoted expansion."""
    quoted: bool = False
    """Whether pattern characters in it are literal."""
    outside: bool = False
    """Whether it is an environment variable that may well be unset."""
    filled: bool = False
    """Whether it is a hole that cannot be empty, such as a number."""
    alternatives: tuple[Value, ...] = field(default=(), compare=False)
    """Possible values of the hole, by the branch that the script takes; `alike` compares them."""


@dataclass(slots=True, unsafe_hash=True)
class Value(PlainValue):
    """Text as a sequence of pieces."""

    pieces: tuple[Piece, ...] = ()

    def inserted(self, *, quoted: bool, is_item: bool = False) -> Value:
        """Return the value as an expansion inserts it, inside or outside quotes; an item of a list stays open."""
        pieces, is_same = [], True
        for piece in self.pieces:
            splits = not quoted or (is_item and piece.splits and bool(piece.causes))
            if piece.splits != splits or piece.quoted != quoted:  # `dataclasses.replace` takes three times as long
                rest = piece.outside, piece.filled, piece.alternatives
                piece = Piece(piece.text, piece.line, piece.causes, splits, quoted, *rest)  # noqa: PLW2901
                is_same = False
            pieces.append(piece)
        return self if is_same else Value(tuple(pieces))

    @property
    def open(self) -> bool:
        """Whether the value may be several words, or none: it has an unknown part outside of quotes."""
        return any(piece.splits and piece.causes for piece in self.pieces)

    @property
    def has_text(self) -> bool:
        """Whether any part of the text is known."""
        return any(piece.known for piece in self.pieces)

    @property
    def outside(self) -> bool:
        """Whether the value is environment variables alone that nobody is known to set."""
        return bool(self.pieces) and all(piece.outside for piece in self.pieces)


EMPTY: Final = Value()
BREAK: Final = Piece(" ", 0, splits=True)
"""The end of an item of a list, which ends a word whatever IFS is."""


def text_value(text: str, line: int, *, quoted: bool = False) -> Value:
    """Return known text that starts on `line`, one piece per line."""
    if "\n" not in text:
        return Value((Piece(text, line, quoted=quoted),) if text else ())
    parts = text.split("\n")
    ends = [part + "\n" for part in parts[:-1]] + parts[-1:]
    return Value(tuple(Piece(part, line + n, quoted=quoted) for n, part in enumerate(ends) if part))


def hole(shown: str, line: int, causes: Iterable[Cause] = (), *, filled: bool = False, outside: bool = False) -> Value:
    """Return a value that is wholly unknown and spelled `shown`, by default with itself as its cause."""
    reasons = frozenset(causes) or frozenset({Cause(line, shown)})
    return Value((Piece(shown, line, causes=reasons, filled=filled, outside=outside),))


def joined(values: Iterable[Value]) -> Value:
    """Return the concatenation of values."""
    pieces: list[Piece] = []
    for value in values:
        pieces.extend(value.pieces)
        if len(pieces) > MAXIMUM_PIECES:
            raise TooLargeError
    return Value(tuple(pieces))


def one_of(values: Iterable[Value], shown: str, line: int, causes: frozenset[Cause]) -> Value:
    """Return a hole that is one of `values`; too many are not kept as alternatives."""
    flat: dict[tuple[str, frozenset[Cause]], Value] = {}
    joint = [causes]
    for value in values:
        is_choice = len(value.pieces) == 1 and value.pieces[0].alternatives
        for alternative in value.pieces[0].alternatives if is_choice else (value,):
            flat.setdefault((alternative.text, alternative.causes), alternative)
            if alternative is not value:
                joint.append(alternative.causes)
    alternatives = tuple(flat.values())
    size = sum(len(alternative.pieces) for alternative in alternatives)
    if len(alternatives) > _MAXIMUM_ALTERNATIVES or size > _MAXIMUM_ALTERNATIVE_PIECES:
        alternatives = ()
    charge(LOOK_WORK * sum(map(len, joint)))
    is_filled = bool(alternatives) and all(filled(value) for value in alternatives)
    return Value((Piece(shown, line, causes.union(*joint), filled=is_filled, alternatives=alternatives),))


def open_causes(items: Sequence[Value], end: int | None = None) -> frozenset[Cause]:
    """Return why the number of a list's first `end` words is not known; empty where it is."""
    charge(LOOK_WORK * len(items))
    return frozenset().union(*(item.causes for item in items[:end] if item.open))


def filled(value: Value) -> bool | None:
    """Whether a value has any character, whatever its holes are; None where that is not known."""
    if any(piece.filled or (piece.known and piece.text) for piece in value.pieces):
        return True
    return None if not value.known else False


def alike(left: Value, right: Value) -> bool:
    """Whether two values have the same text and holes; alternatives must be the same object."""
    if left is right or (left.known and right.known and left.text == right.text):
        return True
    charge(LOOK_WORK * len(left.pieces))
    return left == right and all(
        piece.alternatives is other.alternatives for piece, other in zip(left.pieces, right.pieces, strict=True)
    )


# Truth.

Truth = bool | frozenset[Cause]
"""Whether a test holds or a command succeeds, or what that depends on."""


def negated(truth: Truth) -> Truth:
    """Return the opposite truth."""
    return truth if isinstance(truth, frozenset) else not truth


def both(left: Truth, right: Truth) -> Truth:
    """Return whether both hold."""
    if left is False or right is False:
        return False
    if isinstance(left, frozenset):
        return left | right if isinstance(right, frozenset) else left
    return right


# Words.


def base_name(path: str) -> str:
    """Return the last part of a path, as `PurePath.name` does, which takes many times as long."""
    name = path.rpartition("/")[2]
    return name if name not in ("", ".") else PurePath(path).name


def split_fields(value: Value, separators: str = BLANKS) -> list[Value]:
    """Return the words of a value, between blanks that separate; a quoted part makes a word even if it is empty."""
    if not any(piece is BREAK or (piece.splits and not piece.causes) for piece in value.pieces):
        return [value] if value.pieces else []
    words: list[Value] = []
    current: list[Piece] = []
    open_word = False
    for piece in value.pieces:
        splits = piece.splits and not piece.causes
        if piece is not BREAK and not (splits and separators):
            open_word = open_word or not splits or piece.text != ""
            current.append(piece)
            continue
        parts = _between(BLANKS if piece is BREAK else separators).split(piece.text)
        for number, part in enumerate(parts):
            if number % 2:  # what separates
                if open_word:
                    words.append(Value(tuple(current)))
                current, open_word = [], False
            elif part:
                whole = len(parts) == 1
                current.append(piece if whole else Piece(part, piece.line, splits=True, quoted=piece.quoted))
                open_word = True
    if open_word:
        words.append(Value(tuple(current)))
    return words


_START: Final = re.compile(r"(?:\$PWD|\$\{PWD\}|\$\(pwd\)|`pwd`)(?=/|\Z)")
"""The folder that the script starts in; `cd` gives these another value."""
_HOME: Final = re.compile(r"\A(?:\$HOME|\$\{HOME\})(?=/|\Z)")
_WILD: Final = re.compile(r"\$\(.*\)|\$\(.*|`[^`]*`|\$\{[^}]*\}?|\$\w+|\$.?|\{[^{}]*\}|\[[^][]*\]|[?*]+", re.DOTALL)
"""Parts of a path that stand for any text: holes and patterns."""
_SCRIPT_FOLDER: Final = re.compile(
    r"dirname|BASH_SOURCE|realpath|readlink|\$\{?0\}?|\$\(pwd\)|`pwd`|\$PWD|git rev-parse"
)  # commands and variables that yield the script's own folder, or one above it
_ENTRY_WORK: Final = 50  # units of work per file that is copied or compared
_LONGEST: Final = 1000  # most characters of a path
_ANY: Final = "**"  # as a folder of a path: that folder and all below it
_EVERYTHING: Final = f"{_ANY}/*"


@dataclass(slots=True)
class Files:
    """Files at one point of one path through a script."""

    folder: str = ""
    """Present folder, relative to the one that the script starts in."""
    texts: dict[str, Value] = field(default_factory=dict)
    """Text by path, oldest change first; copies share it, and a change replaces it.

    A path may be a pattern, of files that a command may have changed.
    """

    def copy(self, folder: str | None = None) -> Files:
        """Return a copy, in another folder where that is stated."""
        charge(_ENTRY_WORK)
        return Files(self.folder if folder is None else folder, self.texts)

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
            if part == ".." and parts and parts[-1] != ".." and not _WILD.search(parts[-1]):
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        return "/" * (start is None and name.startswith("/")) + "/".join(parts)

    @property
    def disk_folder(self) -> str:
        """Present folder from the script's own on, where names on disk begin; empty where it is not known."""
        folder, start = self.folder, _WILD.match(self.folder)
        if start is not None and _SCRIPT_FOLDER.search(start[0]):
            folder = f".{folder[start.end() :]}"
        return "" if folder.startswith(("/", "~")) or _WILD.search(folder) else folder

    def write(self, name: str, text: Value) -> None:
        """Keep the text of a file, or of those that a pattern names."""
        if path := self.path(name):
            charge(_ENTRY_WORK * len(self.texts))
            self.texts = {**{other: old for other, old in self.texts.items() if other != path}, path: text}

    def change(self, name: str, line: int) -> None:
        """Keep that a command may have left any text in a file."""
        self.write(name, hole(str(PurePath(name)), line))

    def change_target(self, target: Value, line: int) -> None:
        """Keep that a command may have left any text in a file that a redirection names."""
        self.change(target.text, line)
        unknown = target.pieces and not any(piece.known and piece.text for piece in target.pieces)
        if unknown and not _LOG.search(target.text):  # it may be any file
            self.change(_EVERYTHING, line)

    def wrote(self, name: str) -> bool:
        """Whether the script wrote a file under this name."""
        return self.path(name) in self.texts

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
            return exact
        return hole(name, others[0].line)


def joined_files(every: Sequence[Files], causes: frozenset[Cause], line: int) -> Files:
    """Return the files after several paths, of which the run takes one."""
    merged = every[0].copy()
    if any(files.folder != merged.folder for files in every):
        merged.folder = f"$(cd {line})"
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


@functools.lru_cache(4096)
def _split(path: str) -> tuple[str, str]:
    """Return the folder of a path as it is spelled, and its base name with `*` for what stands for any text."""
    spans = [match.span() for match in _WILD.finditer(path)]
    end = len(path)
    while (end := path.rfind("/", 0, end)) >= 0 and any(first <= end < last for first, last in spans):
        continue
    base = re.sub(r"\*+", "*", _WILD.sub("*", path[end + 1 :]))
    alone = end < 0 and path[:1] in ("$", "`")  # a path of its own, in a folder that is not known
    return f"{path}?" if alone else path[: max(end, 0)], base


def _may_be(changed: str, path: str) -> bool:
    """Whether a changed path, or one of those that it stands for, may be another."""
    (folder, base), (other, name) = _split(changed), _split(path)
    if not _may_equal(base, name):
        return False
    if folder == other:
        return True
    if folder.endswith(_ANY):
        return f"{other}/".startswith(folder.removesuffix(_ANY))
    unknown = any(_WILD.search(part) or re.match(r"~|(?:\.\./)+[^.]", part) for part in (folder, other))
    return "*" not in (base, name) and (unknown or folder.startswith("/") != other.startswith("/"))


def _may_equal(left: str, right: str) -> bool:
    """Whether two names with stars may be the same."""
    first, last = left.partition("*")[0], left.rpartition("*")[2]
    head, tail = right.partition("*")[0], right.rpartition("*")[2]
    if "*" not in left + right:
        return left == right
    return (first.startswith(head) or head.startswith(first)) and (last.endswith(tail) or tail.endswith(last))


# Names of files in words.


def name_below(target: Value) -> str:
    """Return a file's name below the script's folder or one above it; empty where not known."""
    name = "".join(piece.text if piece.known else _script_folder(piece) for piece in target.pieces)
    return "" if "\0" in name else name.lstrip("/") if target.pieces and not target.pieces[0].known else name


def _script_folder(piece: Piece) -> str:
    """Return `.` for a command that prints the script's own folder, else the mark of an unknown name."""
    return "." if (piece.causes and all(_SCRIPT_FOLDER.search(cause.name) for cause in piece.causes)) else "\0"


def spelled(target: Value) -> str:
    """Return a path as it is spelled, with one spelling of the script's own folder."""
    return "".join(
        piece.text if _script_folder(piece) != "." or _SCRIPT_FOLDER.search(piece.text) else "$(dirname $0)"
        for piece in target.pieces
    )


# Files that commands may change.


_READ: Final = re.compile(r"\.(?:json|ya?ml|toml|sh|bash|env|conf|cfg|ini|txt)")  # suffixes of files that recipes read
_NAME: Final = re.compile(r"[^\s\"'=,;:()]+")  # the names of files in a program or a word
_LOG: Final = re.compile(r"log|out|res|err|stat|hist|trace|report|metric|te?mp|dev", re.IGNORECASE)
"""Names of variables that hold the path of what a command prints."""
_WRITES: Final = re.compile(
    r"""["']\s*,\s*(?:mode\s*=\s*)?["'][rwax]\+?|write|dump|save|replace|rename|move|copy|unlink"""
)  # signs of a Python program that changes files
_READERS: Final = re.compile(
    r"\[|awk|basename|bsdtar|chmod|chown|cmp|cut|diff|dirname|du|e?grep|file|find|git|head|jq|less|ls|md5sum|mkdir|more|readlink|realpath"
    r"|sort|stat|tail|tar|test|touch|tr|uniq|wc|which"
)  # commands that by themselves change no text of the files that they name
_CHECKS_OUT: Final = re.compile(
    "checkout|switch|restore|reset|pull|merge|rebase|stash|cherry-pick|revert|apply|am|submodule|lfs"
)  # commands of `git` that replace files


def change_files(files: Files, argv: Sequence[Value], line: int, stdin: Value | None) -> None:
    """Keep that a command may have changed the files that it names, or all where it works on others.

    `cp a.json b.json` may change `b.json`, `rm -rf out` all below `out`, `tar xf …` any file, `python gen.py x.yaml`
    the file that it names; `stdin` is the text of a program that is read from there.
    """
    program, texts = base_name(argv[0].text), [word.text for word in argv[1:]]
    charge(10 * sum(map(len, texts)))
    flags = [text for text in texts if text[:1] == "-"]
    named = [text for text in texts if text[:1] not in ("-", "")]
    if program in ("cp", "mv", "ln", "install", "rsync"):
        changed = _copied(program, flags, named)
    elif program in ("rm", "unlink"):
        changed = (name for word in named for name in (word, f"{word}/{_EVERYTHING}"))
    elif program == "git" and "clone" in named:
        changed = iter([f"{PurePath(named[-1]).stem}/{_EVERYTHING}"])
    elif _works_on_others(program, texts, named):
        changed = iter([_EVERYTHING])
    elif program in ("wget", "curl"):
        bases = [_split(word.partition("?")[0].rstrip("/"))[1] for word in named]
        changed = iter([*named, *(f"{folder}/{base}" for folder in (".", *named) for base in bases)])
    elif _READERS.fullmatch(program):
        changed = iter(())
    else:
        code = stdin.text if stdin is not None and _WRITES.search(stdin.text) else ""
        names = (name for text in (*texts, code) for name in _NAME.findall(text))
        changed = (name for name in names if _READ.fullmatch(PurePath(name).suffix) or files.wrote(name))
    for name in dict.fromkeys(changed):
        files.change(name, line)


def _copied(program: str, flags: Sequence[str], named: Sequence[str]) -> Iterator[str]:
    """Yield what a copy may change: the last file, or one of each name in the last folder, or all that are named."""
    stated = [flag.partition("=")[2] for flag in flags if re.match(r"-[a-zA-Z]*t|--target", flag)]
    targets = [*named, *filter(None, stated)] if stated else named[-1:]
    recursive = any(re.match(r"-[a-zA-Z]*[raR]|--archive|--recursive", flag) for flag in flags) or program != "cp"
    for target in targets:
        yield target
        for source in named:
            base = _split(source.rstrip("/"))[1]
            if source != base or not _WILD.search(target):  # where a copy in an unknown folder is the file itself
                yield f"{target}/{base}"
            if recursive or "*" in base:
                yield f"{target}/{_EVERYTHING}"
    if program == "mv":
        yield from (name for source in named for name in (source, f"{source}/{_EVERYTHING}"))


def _works_on_others(program: str, texts: Sequence[str], named: Sequence[str]) -> bool:
    """Whether a command may change files that it does not name: those of an archive, a commit, a search."""
    if program == "git":
        return any(map(_CHECKS_OUT.fullmatch, named))
    if program in ("tar", "bsdtar"):
        return any(re.match(r"-[a-zA-Z]*x|--extract|--get", text) for text in (*texts, f"-{texts[0] if texts else ''}"))
    if program in ("find", "xargs", "parallel"):
        return not {"-exec", "-execdir", "-delete", "sed", "perl", "mv", "cp", "rm"}.isdisjoint(texts)
    return program in ("unzip", "7z", "patch")
