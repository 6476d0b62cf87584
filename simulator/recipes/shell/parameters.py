"""Built-ins that set variables and parameters from words and lines: `read`, `mapfile`, `set`, `shift`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from simulator.recipes.shell.conditions import Truth
from simulator.recipes.shell.state import open_words
from simulator.recipes.shell.values import BLANKS, EMPTY, Cause, Value, hole, open_causes, splitter, text_value
from simulator.recipes.shell.walk import Walk

NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name that can be assigned."""
_OPTIONS: Final = {"allexport": "a", "errexit": "e", "nounset": "u"}
_OPTIONS_READ: Final = frozenset(["a", "e", "u", "pipefail"])
"""Options of `set` that decide what runs."""
_VALUED: Final = {"read": "adinNptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc"}
"""Options that take a value."""
_FOLLOWED: Final = {"read": frozenset("raptse"), "mapfile": frozenset("t"), "readarray": frozenset("t")}
"""Options whose effect is read."""


def set_options(runner: Walk, argv: Sequence[Value], line: int) -> Truth:
    """Follow `set -aeu`, `set -o pipefail`, `set -- WORDS` and `set WORDS`."""
    state = runner.machine.state
    rest = list(argv[1:])
    while rest:
        word = rest[0]
        if not word.known:
            state.positional, state.shifted = open_words(word.causes, line), 0
            return True
        if word.text in ("--", "-") or not re.fullmatch(r"[-+][A-Za-z]+", word.text):
            rest = rest[1:] if word.text in ("--", "-") else rest
            if rest or word.text == "--":
                state.positional, state.shifted = tuple(rest), 0
            return True
        named = rest[1].text if word.text.endswith("o") and len(rest) > 1 else ""
        for option in {*word.text[1:], _OPTIONS.get(named, named)} & _OPTIONS_READ:
            state.options = {other: on for other, on in state.options.items() if other != option}
            state.options |= {option: frozenset()} if word.text[0] == "-" else {}
        rest = rest[2 if named else 1 :]
    return True


def shift(runner: Walk, argv: Sequence[Value], line: int) -> Truth:
    """Follow `shift N`: nothing happens where fewer parameters are left; an unknown number leaves none known."""
    machine = runner.machine
    words = machine.state.positional
    count = argv[1] if len(argv) > 1 else text_value("1", 0)
    if not count.known:
        machine.state.positional = None if words is None else open_words(count.causes, line)
        return count.causes
    number = int(count.text) if re.fullmatch(r"\d{1,4}", count.text, re.ASCII) else 10_000
    if words is not None and (causes := open_causes(words, number)):
        machine.state.positional = open_words(causes, line)
        return causes
    if number > (1000 if words is None else len(words)):
        return False
    machine.shift(number)
    return True if words is not None else frozenset({Cause(line, "#")})


def read(runner: Walk, argv: Sequence[Value], line: int) -> Truth:
    """Follow `read X`, `mapfile X`, and `getopts` without known parameters: unknown unless standard input is known."""
    machine, command = runner.machine, argv[0].text
    cause = frozenset({Cause(line, " ".join(value.text for value in argv)[:80])})
    flags, names = _options(command, argv[1:])
    text = runner.stdin.text
    is_list = command not in ("read", "getopts") or "a" in flags
    names = names or [{"read": "REPLY", "getopts": ""}.get(command, "MAPFILE")]
    separators, *others = machine.separators
    followed = command in _FOLLOWED and flags <= _FOLLOWED[command] and not others
    if text is not None and text.known and followed:
        whole = text.text
        if command == "read":
            row, end, _ = whole.partition("\n")
        else:
            row, end = whole.removesuffix("\n"), "\n"
        runner.stdin.text = text.after(len(row) + len(end))
        if "\\" not in row or "r" in flags or command != "read":
            if command != "read":
                rows = (row.split("\n") if "t" in flags else row.splitlines(keepends=True)) if whole else []
            else:
                rows = _fields(row, separators, 0 if is_list else len(names))
            values = [text_value(part, line) for part in rows]
            for number, name in enumerate(names):
                if NAME.fullmatch(name):
                    machine.forget(name)
                    item = values[number] if number < len(values) else EMPTY
                    machine.assign(name, tuple(values) if is_list else item, line)
            return bool(end)
    else:
        runner.stdin.text = None
    for name in names:
        if NAME.fullmatch(name):
            machine.assign(name, hole(f"${name}", line, cause), line)
    return cause


def _options(command: str, words: Sequence[Value]) -> tuple[set[str], list[str]]:
    """Return the letters of the options and the names behind them."""
    flags: set[str] = set()
    names: list[str] = []
    rest = [word.text for word in words]
    while rest:
        word = rest.pop(0)
        if word[:1] != "-" or names or command == "getopts":
            names.append(word)
            continue
        for place, letter in enumerate(word[1:], start=2):
            flags.add(letter)
            if letter in _VALUED[command]:
                value = word[place:] or (rest.pop(0) if rest else "")
                names += [value] if letter == "a" else []
                break
    return flags, names


def _fields(text: str, separators: str, count: int) -> list[str]:
    """Return a line in `count` parts, the last with what is left; in all its parts for 0."""
    blanks = "".join(set(separators) & set(BLANKS))
    text = text.strip(blanks)
    if not text or count == 1 or not separators:
        return [text] if text or count else []
    pattern = splitter(separators)
    parts = pattern.split(text, maxsplit=max(count - 1, 0))[::2]
    if count == 0 and parts[-1] == "":
        parts.pop()
    elif count == len(parts) and (end := pattern.search(parts[-1])) and end.end() == len(parts[-1]):
        parts[-1] = parts[-1][: end.start()]
    return parts
