"""Files that commands copy, move, remove or edit, or may have changed. Runs no command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from pathlib import PurePath
from typing import Final

from simulator.budget import charge
from simulator.recipes.shell.files import ANY, EVERYTHING, WILD, base_name
from simulator.recipes.shell.filters import content, edited, sed_edits, spellings
from simulator.recipes.shell.includes import left_in, text_of
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.values import Value, text_value
from simulator.recipes.shell.wrappers import WRAPPERS

_READ: Final = re.compile(r"\.(?:json|ya?ml|toml|sh|bash|env|conf|cfg|ini|txt|py)")
"""Suffixes of files that recipes read."""
_BREAK: Final = re.compile(r"[\s\"'=,;:()]+")
"""What stands between the names of files in a program."""
_OUTPUT: Final = re.compile(r"(-[oO]|--(?:out|save|dest|write|target)[\w-]*)(?:=|\Z)")
"""Flags that name a file which a program writes."""
_WRITES: Final = re.compile(
    r"""["']\s*,\s*(?:mode\s*=\s*)?["'][rwax]\+?|write|dump|save|replace|rename|move|copy|unlink"""
)
"""Signs of a Python program that changes files."""
_PROGRAMS: Final = re.compile(r"python[0-9.]*|perl|ruby|node")
_MAKER: Final = re.compile(r"(?<![a-z])(?:gen|mak|creat|updat|patch|modif|render|writ|convert|edit|set_|merge|fill)")
"""Names of programs that write the file which they name."""
_WRITERS: Final = re.compile("curl|wget|dd|sponge|truncate|patch|ed|ex|vim?|crudini|dos2unix|scp")
"""Commands that leave in a file that they name what nobody knows."""
_EDITORS: Final = {
    "sed": r"-[A-Za-z]*i.*|--in-place.*",
    "perl": r"-[A-Za-z0]*i.*",
    "ruby": r"-[a-z]*i.*",
    "yq": r"-[a-z]*i|--inplace",
    "awk": "-i",
    "gawk": "-i",
}
"""Flags by which a command edits the files that it names."""
_SED_WRITES: Final = re.compile(r"w[ \t]+([^\s;}]+)")
"""The command of `sed` that writes a file."""
_CHECKS_OUT: Final = re.compile(
    "checkout|switch|restore|reset|pull|merge|rebase|stash|cherry-pick|revert|apply|am|submodule|lfs"
)
"""Commands of `git` that replace files."""
_BRACES: Final = re.compile(r"\{([^{},]*+(?:,[^{},]*+)++)\}")
_FARTHEST: Final = 16


@dataclass(frozen=True, slots=True)
class _Command:
    """A command that changes files."""

    name: str
    words: Sequence[Value]
    """Its words after its name."""
    machine: Machine
    line: int

    @property
    def texts(self) -> list[str]:
        """Texts of its words."""
        return [word.text for word in self.words]

    def may_change(self, name: str) -> None:
        """Keep that nobody knows the text of a file, or of those that a pattern names."""
        self.machine.state.files.change(name, self.line)

    def may_fill(self, folder: str) -> None:
        """Keep that nobody knows the files in a folder and below it."""
        self.may_change(f"{folder}/{EVERYTHING}")

    def flags(self, letters: str, *names: str) -> bool:
        """Whether it has a flag of one of these letters or names."""
        return any(re.match(rf"-[A-Za-z]*[{letters}]", text) or text in names for text in self.texts)

    def value(self, *names: str) -> str:
        """Return the word of the first of these flags, behind it or joined to it; empty without one."""
        for flag, text in pairwise([*self.texts, ""]):
            for name in names:
                joint = f"{name}=" if name[:2] == "--" else name
                if flag == name or (flag.startswith(joint) and len(flag) > len(joint)):
                    return text if flag == name else flag[len(joint) :]
        return ""


def change_files(argv: Sequence[Value], machine: Machine, line: int, stdin: Value | None) -> None:
    """Keep what a command makes of the files that it changes; `stdin` is the text that it reads, where it is known."""
    first = PurePath(argv[0].text).name
    place = 0
    if first in WRAPPERS | _LISTERS:
        names = [PurePath(word.text).name for word in argv[:_FARTHEST]]
        place = next((n for n, name in enumerate(names) if n and (name in _CHANGES or name in _EDITORS)), 0)
    command = _Command(PurePath(argv[place].text).name, argv[place + 1 :], machine, line)
    change = _CHANGES.get(command.name)
    edits = command.name in _EDITORS and any(re.fullmatch(_EDITORS[command.name], text) for text in command.texts)
    if command.name == "sed":
        charge(10 * sum(map(len, command.texts)))
        for match in (match for text in command.texts for match in _SED_WRITES.finditer(text)):
            command.may_change(match[1])
    if first in _LISTERS:
        _change_listed(command, argv, edits=edits)
    elif change is not None:
        change(command)
    elif edits:
        _edit(command)
    else:
        _write_named(command, stdin)


def _named(command: _Command) -> list[Value]:
    """Return the words that are no flags, with those that `a{b,c}` stands for."""
    return [part for word in command.words if word.text[:1] != "-" for part in _unbraced(word)]


def _unbraced(word: Value) -> list[Value]:
    charge(100 + len(word.text))
    match = _BRACES.search(word.text) if word.known else None
    if match is None:
        return [word]
    before, after = word.text[: match.start()], word.text[match.end() :]
    parts = [text_value(before + part + after, word.line) for part in match[1].split(",")]
    return [text for part in parts for text in _unbraced(part)]


def _copy(command: _Command) -> None:
    """Follow `cp`, `mv`, `install` and `rsync`: into a folder, or under another name."""
    valued = ("-t", "--target-directory", "-S", "--suffix", *(("-m", "-o", "-g") * (command.name == "install")))
    words, folder = list(command.words), "" if command.name == "rsync" else command.value(*valued[:2])
    for number, word in enumerate(command.words):
        if word.text in valued and command.name != "rsync":
            words[number + 1 : number + 2] = [word]
    named = _named(replace(command, words=words))
    for other in spellings(named[-1])[:-1] if named and not folder else ():
        command.may_change(other)
    target = folder or (named.pop().text if len(named) > 1 else "")
    inside = bool(folder) or len(named) > 1 or re.search(r"(?:^|/)\.{0,2}/?\Z", target) is not None
    for source in named if target else ():
        base = base_name(source.text)
        # Whether the target is a folder is not known otherwise: the file is kept under both names.
        _copy_one(command, source, [f"{target}/{base}"] if inside else [f"{target}/{base}", target])
        if (base in ("", ".", "..") and command.flags("rRa")) or (command.name == "rsync" and source.text[-1:] == "/"):
            command.may_fill(target)


def _copy_one(command: _Command, source: Value, paths: Sequence[str]) -> None:
    machine, line, base = command.machine, command.line, base_name(source.text)
    at_hand = "*" not in base and text_of(machine, source, line) is not None
    text = content(source, machine, line)
    if command.flags("n", "--no-clobber"):
        paths = [path for path in paths if left_in(machine, text_value(path, line), line) is None]
    if command.name == "mv":
        machine.state.files.remove(source.text, line)
    for path in paths:
        if "*" in base or command.name in ("ln", "rsync") or command.flags("u", "--update"):
            command.may_change(path)
        else:
            machine.state.files.write(path, text)
    if not at_hand and (command.name in ("ln", "mv", "rsync") or command.flags("rRa", "--recursive", "--archive")):
        for folder in (*paths, source.text) if command.name == "mv" else paths:
            command.may_fill(folder)


def _remove(command: _Command) -> None:
    for word in _named(command):
        command.machine.state.files.remove(word.text, command.line)
        if command.flags("rR", "--recursive"):
            command.may_fill(word.text)


def _check_out(command: _Command) -> None:
    """Follow `git`: the files of a commit replace those at hand, or are a folder of their own."""
    words, folder = command.texts, command.value("-C") or "."
    while words and words[0][:1] == "-":
        del words[: 2 if words[0] in ("-C", "-c") else 1]
    kind, named = "".join(words[:1]), [word for word in words[1:] if word[:1] != "-"]
    starts_branch = len(named) == 1 and not {"-b", "-B", "-c", "--orphan"}.isdisjoint(words)
    if kind == "clone" and named:
        command.may_fill(named[1] if len(named) > 1 else PurePath(named[0]).stem)
    elif _CHECKS_OUT.fullmatch(kind) and not starts_branch:
        files = [name for name in named if _READ.fullmatch(PurePath(name).suffix)]
        for name in files or [EVERYTHING]:
            command.may_change(f"{folder}/{name}")


def _unpack(command: _Command) -> None:
    """Follow `tar x` and `unzip`: any file may be in an archive."""
    is_zip, texts = command.name == "unzip", command.texts
    if is_zip and not command.flags("lptvZ"):
        command.may_fill(command.value("-d") or ".")
    elif not is_zip and (re.match(r"[A-Za-z]*x", "".join(texts[:1])) or command.flags("x", "--extract", "--get")):
        command.may_fill(command.value("-C", "--directory") or ".")


def _download(command: _Command) -> None:
    """Follow `wget URL` and `curl -O URL`, which name the file as the address does, and other ways to name it."""
    folder = command.value("-P", "--directory-prefix", "--output-dir") or "."
    named_by_address = command.flags("O", "--remote-name", "--output-document") == (command.name == "curl")
    for text in command.texts if named_by_address else ():
        if "://" in text or WILD.match(text):
            command.may_change(f"{folder}/{base_name(text.partition('?')[0])}")
    _write_named(command, None)


def _edit(command: _Command) -> None:
    """Follow `sed -i` and similar commands, which edit the files that they name."""
    machine, line = command.machine, command.line
    asked = sed_edits(command.words) if command.name == "sed" else None
    for file in _named(command) if asked is None else asked.files:
        base = base_name(file.text)
        text = None if asked is None or "*" in base else edited(content(file, machine, line), asked)
        if text is not None:
            machine.state.files.write(file.text, text)
        else:
            command.may_change(EVERYTHING if base == "*" and not file.known else file.text)


def _change_listed(command: _Command, argv: Sequence[Value], *, edits: bool) -> None:
    """Follow `find FOLDER -name PATTERN -exec sed -i` and `xargs sed -i`: files of unknown names."""
    texts = [word.text for word in argv]
    finds = texts[0] == "find"
    folders = list(takewhile(lambda text: text[:1] not in ("-", "("), texts[1:])) if finds else []
    patterns = [name for flag, name in pairwise(texts) if flag in ("-name", "-iname")] or ["*"]
    if command.name in ("cp", "mv"):
        target = [text for text in texts if text not in ("{}", ";", "\\;", "+")][-1]
        for name in (target, *(f"{target}/{pattern}" for pattern in patterns)):
            command.may_change(name)
    if edits or (finds and (command.name in ("mv", "rm") or "-delete" in texts)):
        for folder in folders or ["."]:
            for pattern in patterns:
                command.may_change(f"{folder}/{ANY}/{pattern}")


def _write_named(command: _Command, stdin: Value | None) -> None:
    """Keep that a program may have changed the files that it names: as output, or in a program text that writes."""
    texts = command.texts
    names: list[str] = []
    for flag, word in pairwise(["", *texts]):
        match = _OUTPUT.match(word)
        if _OUTPUT.fullmatch(flag) or (match and match.end() < len(word) and "=" in match[0]):
            names.append(word[match.end() :] if match else word)
        elif _WRITERS.fullmatch(command.name):
            names.append(word.rpartition("=")[2])
        elif flag[:1] != "-" and any(map(_MAKER.search, (command.name, *texts[:1]))):
            names.append(word)
    if _PROGRAMS.fullmatch(command.name):
        code = next((text for flag, text in pairwise(texts) if flag in ("-c", "-e")), "")
        program = next((word for word in command.words if word.text == "-" or word.text[:1] != "-"), None)
        text = text_of(command.machine, program, command.line) if program and program.text != "-" else stdin
        code = code or (text.text if text is not None else "")
        charge(len(code) * 10)
        if _WRITES.search(code):
            names += [*_BREAK.split(code), *texts]
    for name in names:
        if _READ.fullmatch(PurePath(name).suffix) or command.machine.state.files.wrote(name):
            command.may_change(name)


_CHANGES: Final[Mapping[str, Callable[[_Command], None]]] = {
    **dict.fromkeys(("cp", "mv", "ln", "install", "rsync"), _copy),
    **dict.fromkeys(("rm", "unlink"), _remove),
    "git": _check_out,
    **dict.fromkeys(("tar", "bsdtar", "unzip"), _unpack),
    **dict.fromkeys(("wget", "curl"), _download),
}
"""What commands do to the files that they name."""
_LISTERS: Final = frozenset(["find", "xargs", "parallel"])
"""Commands that start another one for files of unknown names."""
