"""Scripts that a script includes (`source FILE`) or starts (`bash FILE`), only below the root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from simulator.errors import InputError
from simulator.frameworks.home import path_set_by_user
from simulator.question.origin import option_for
from simulator.recipes.shell.conditions import Truth
from simulator.recipes.shell.files import WILD, Files
from simulator.recipes.shell.machine import MAXIMUM_CALLS, Machine
from simulator.recipes.shell.state import NotFollowed
from simulator.recipes.shell.values import Cause, Piece, Value, text_value
from simulator.recipes.shell.walk import Walk
from simulator.recipes.shell.wrappers import QUEUES, SCRIPTS, SHELLS, WRAPPERS

_OWN_FOLDER: Final = re.compile(r"dirname|BASH_SOURCE|realpath|readlink|\$\{?0\}?|\$\(pwd\)|`pwd`|\$PWD|git rev-parse")
"""Commands and variables that yield the script's own folder, or one above it."""
_SCRIPT: Final = re.compile(rf"[\w${{}}.-]+\.(?:{'|'.join(SCRIPTS)})")
_VARIABLE: Final = re.compile(r"\A[^A-Za-z_]*+([A-Za-z_]\w*).*+", re.DOTALL | re.ASCII)
"""The first variable of an unknown text: N in `$((N / 8))`."""
_LAUNCHES: Final = re.compile(r"(?<![a-z])(?:launch|train|run_)")
"""Names of scripts that launch when included."""
_FARTHEST: Final = 64
"""Most words before a script."""
_STARTERS: Final = frozenset(["aprun", "flux", "ibrun", "jsrun", "lrun", "parallel", "prun", "xargs", "yhrun"])
"""Commands that start what stands behind their options and whose options are not read."""
_SURROUNDINGS: Final = re.compile(
    r"(^/(etc|opt|usr)/|^~|activate|bashrc|profile|conda|mamba|setvars|set_env|modules?\b|venv|^/dev/|ssh-agent|pyenv"
    r"|spack|lmod|direnv)"
)
"""Scripts that set up compilers, libraries or Python."""


def _name_below(target: Value) -> str:
    """Return a file's name below the script's folder or one above it; empty where not known."""
    name = "".join(piece.text if piece.known else _folder(piece) for piece in target.pieces)
    return "" if "\0" in name else name.lstrip("/") if target.pieces and not target.pieces[0].known else name


def _folder(piece: Piece) -> str:
    """Return `.` for a command that prints the script's own folder, else the mark of an unknown name."""
    own = piece.causes and all(_OWN_FOLDER.search(cause.name) for cause in piece.causes)
    return "." if own else "\0"


def spelled(target: Value) -> str:
    """Return a path as it is spelled, with one spelling of the script's own folder."""
    return "".join(
        piece.text if piece.known or _OWN_FOLDER.search(piece.text) or _folder(piece) != "." else "$(dirname $0)"
        for piece in target.pieces
    )


def disk_folder(files: Files) -> str:
    """Return the present folder from the script's own on, where names on disk begin; empty where it is not known."""
    folder = files.folder
    own = WILD.match(folder)
    if own is not None and _OWN_FOLDER.search(own[0]):
        folder = f".{folder[own.end() :]}"
    return "" if folder.startswith(("/", "~")) or WILD.search(folder) else folder


def include(runner: Walk, argv: Sequence[Value], line: int) -> Truth:
    """Follow `source FILE ARGUMENTS`; a file that cannot be read makes the variables that it may set unknown."""
    machine = runner.machine
    name = argv[1].text if len(argv) > 1 else ""
    own = name == "/dev/stdin" or machine.state.files.wrote(name)
    if not name or (_SURROUNDINGS.search(name) and not own):
        return True
    text = runner.stdin.text if name == "/dev/stdin" else text_of(machine, argv[1], line)
    if text is None:
        unread(machine, name, (), line, _name_below(argv[1])[:100])
        if _LAUNCHES.search(shown := _shown_name(argv[1])):
            machine.not_followed.setdefault(shown, NotFollowed(line, "that is not at hand"))
        return True
    outer = machine.state.positional, machine.state.shifted
    if len(argv) > 2:
        machine.state.positional, machine.state.shifted = tuple(argv[2:]), 0
    truth = runner.include(text)
    if len(argv) > 2:
        machine.state.positional, machine.state.shifted = outer
    return truth


def unread(machine: Machine, shown: str, causes: Iterable[Cause], line: int, name: str = "") -> None:
    """Make the variables unknown that a statement may set whose text is not known; `name` is that of a file."""
    if any(_SURROUNDINGS.search(cause.name) for cause in causes):
        return
    fix = option_for(name, is_file=True) if name else "--set NAME=VALUE"
    machine.remark("not-read", "warning", f"{shown[:100]} is not read: what it sets is not known", line, fix)
    machine.unread = True
    machine.may_be_set(line)


def started_script(argv: Sequence[Value]) -> int:
    """Return the index of a script that a command starts, as `bash FILE` or FILE; the length without one."""
    wrapped = False
    for number, value in enumerate(argv[:_FARTHEST]):
        if _SCRIPT.fullmatch(_shown_name(value)) and (number == 0 or wrapped):
            return number
        wrapped = wrapped or PurePath(value.text).name in WRAPPERS | SHELLS | QUEUES
        if not wrapped:
            break
    return len(argv)


def not_started(machine: Machine, argv: Sequence[Value], line: int) -> None:
    """Note a script that a command starts of which nobody knows what it does with it: `jsrun -n 4 bash FILE`."""
    starts = PurePath(argv[0].text).name in _STARTERS
    for before, word in pairwise(argv[:_FARTHEST]):
        name = _shown_name(word)
        if _SCRIPT.fullmatch(name) and (starts or before.text == "--" or PurePath(before.text).name in SHELLS):
            text = text_of(machine, word, line)
            other = NotFollowed(line, "by a command that is not read", "" if text is None else text.text)
            machine.not_followed.setdefault(name, other)


def read_variables(machine: Machine, option: str, value: Value, line: int) -> None:
    """Set the variables of a file, `NAME=VALUE` in lines; where it cannot be read, any may be set."""
    text = text_of(machine, value, line) if option == "--env-file" else None
    if text is not None:
        for row in text.text.splitlines():
            name, equals, content = row.strip().partition("=")
            if equals and name.isidentifier():
                machine.assign(name, text_value(content.strip("'\""), line), line)
                machine.state.export(name)
    elif option != "--runtime-env-json" or not value.known or "env_vars" in value.text:
        unread(machine, value.text, (), line, _name_below(value)[:100] if option == "--env-file" else "")


def start(runner: Walk, argv: Sequence[Value], line: int) -> Truth | None:
    """Follow a script that a command starts, with the exported variables; None where it cannot be read.

    A script whose arguments only the run knows is not followed either: its paths would be guesses.
    """
    machine = runner.machine
    open_words = any(not value.known and not _begins_known(value) for value in argv[1:])
    text = text_of(machine, argv[0], line)
    name = _shown_name(argv[0])
    if text is None:
        spread = "starter" in machine.spread
        machine.not_followed.setdefault(name, NotFollowed(line, "that is not at hand", spread=spread))
        return None
    words = tuple(value.text for value in argv[1:])
    again = [begun for whole, begun in machine.started if whole == text.text]
    if again and (open_words or words in again or len(again) > 1):
        return True  # a job that submits itself for later
    if open_words:
        machine.not_followed.setdefault(name, NotFollowed(line, "with words that only the run knows", text.text))
        return None
    machine.started.append((text.text, words))
    launches = len(runner.launches)
    state = machine.state.started(tuple(argv[1:]))
    outer, machine.state = machine.state, state
    calls, machine.calls = machine.calls, [""] * len(machine.calls)
    truth = runner.own_shell(partial(runner.include, text))
    outer.files = machine.state.files.copy(outer.files.folder, outer.files.stack)
    machine.state, machine.calls = outer, calls
    machine.started.pop()
    if len(runner.launches) == launches:
        machine.not_followed.setdefault(name, NotFollowed(line, "that starts no training by these words", text.text))
    return truth


def _shown_name(target: Value) -> str:
    """Return the last part of a file's path, with `${NAME}` for unknown parts."""
    shown = "".join(piece.text if piece.known else _VARIABLE.sub(r"${\1}", piece.text) for piece in target.pieces)
    return PurePath(shown).name[:80]


def _begins_known(value: Value) -> bool:
    return bool(value.pieces) and value.pieces[0].known and value.pieces[0].text != ""


def text_of(machine: Machine, target: Value, line: int) -> Value | None:
    """Return the text of a file that a command names, every line of it at the line of the command; None without one."""
    text = left_in(machine, target, line)
    if text is None or (text.pieces and not any(piece.known for piece in text.pieces)):
        return None
    if len(machine.calls) >= MAXIMUM_CALLS:
        name = PurePath(_name_below(target)).name[:60]
        raise InputError(f"{machine.file}:{line}: {name} reads itself, or files read each other too deep")
    return text


def left_in(machine: Machine, target: Value, line: int) -> Value | None:
    """Return the text of a file as the script has left it, a hole where only the run knows it; None without one."""
    name, files = _name_below(target), machine.state.files
    folder = disk_folder(files) if target.pieces and target.pieces[0].known else ""
    if not name and "$" not in (place := files.path(target.text)):
        name = place  # `$PWD/name`
    disk = partial(on_disk, machine, folder, name, line)
    text = files.text(target.text, disk) if path_set_by_user(name) is None else None
    return disk() if text is None else text


def on_disk(machine: Machine, folder: str, name: str, line: int) -> Value | None:
    """Return the text of a file on disk, in the folder that the script is in; None without one."""
    names = [name]
    if folder and name[:1] not in ("", "/", "~"):
        # Above the folder that the script starts in, or in the script's own, the start is a guess.
        names = [f"{folder}/{name}", *names][: 1 + folder.startswith(".")]
    for place in names if name.strip("/") else ():
        if (text := machine.open_file(place, line)) is not None:
            return Value((Piece(text, line),) if text else ())
    return None
