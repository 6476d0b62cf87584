"""Scripts that a script includes (`source FILE`) or starts (`bash FILE`), only below the root."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from simulator.errors import InputError
from simulator.frameworks.home import asking
from simulator.frameworks.launch import plain_path
from simulator.recipes.shell.conditions import Truth
from simulator.recipes.shell.machine import MAXIMUM_CALLS, Machine, NotFollowed
from simulator.recipes.shell.values import Piece, Value
from simulator.recipes.shell.walk import Walk
from simulator.recipes.shell.wrappers import QUEUES, SHELLS, WRAPPERS

_OWN_FOLDER: Final = re.compile(r"dirname|BASH_SOURCE|realpath|readlink|\$\{?0\}?|\$\(pwd\)|`pwd`|\$PWD|git rev-parse")
"""Commands and variables that yield the script's own folder, or one above it."""
_SCRIPT: Final = re.compile(r"[\w${}.-]+\.(?:sh|bash|slurm|sbatch)")
_VARIABLE: Final = re.compile(r"\A[^A-Za-z_]*+([A-Za-z_]\w*).*+", re.DOTALL | re.ASCII)
"""The first variable of an unknown text: N in `$((N / 8))`."""
_LAUNCHES: Final = re.compile(r"(?<![a-z])(?:launch|train|run_)")
"""Names of scripts that launch when included."""
_FARTHEST: Final = 64
"""Most words before a script."""
_SURROUNDINGS: Final = re.compile(
    r"(^/(etc|opt|usr)/|^~|activate|bashrc|profile|conda|setvars|set_env|modules?\b|venv|^/dev/)"
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


def include(runner: Walk, argv: Sequence[Value], line: int) -> Truth:
    """Follow `source FILE ARGUMENTS`; a file that cannot be read makes the variables that it may set unknown."""
    machine = runner.machine
    if len(argv) < 2 or _SURROUNDINGS.search(argv[1].text):
        return True
    text = text_of(machine, argv[1], line)
    if text is None:
        name = _name_below(argv[1])[:100]
        fix = asking(name, is_file=True) if name else "--set NAME=VALUE"
        remark = f"{argv[1].text[:100]} is not read: what it sets is not known"
        machine.remark("not-read", "warning", remark, line, fix)
        machine.unread = True
        machine.may_be_set(line)
        if _LAUNCHES.search(name := _shown_name(argv[1])):
            machine.not_followed.setdefault(name, NotFollowed(line, "that is not at hand"))
        return True
    outer = machine.state.positional, machine.state.shifted
    if len(argv) > 2:
        machine.state.positional, machine.state.shifted = tuple(argv[2:]), 0
    truth = runner.include(text)
    if len(argv) > 2:
        machine.state.positional, machine.state.shifted = outer
    return truth


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


def start(runner: Walk, argv: Sequence[Value], line: int) -> Truth | None:
    """Follow a script that a command starts, with the exported variables; None where it cannot be read.

    A script whose arguments only the run knows is not followed either: its paths would be guesses.
    """
    machine = runner.machine
    open_words = any(not value.known and not _begins_known(value) for value in argv[1:])
    text = text_of(machine, argv[0], line)
    name = _shown_name(argv[0])
    if text is None:
        machine.not_followed.setdefault(name, NotFollowed(line, "that is not at hand"))
        return None
    if open_words:
        machine.not_followed.setdefault(name, NotFollowed(line, "with words that only the run knows", text.text))
        return None
    launches = len(runner.launches)
    state = machine.state.fork()
    state.variables = {name: value for name, value in state.variables.items() if name in state.exported}
    state.functions, state.positional, state.shifted = {}, tuple(argv[1:]), 0
    outer, machine.state = machine.state, state
    calls, machine.calls = machine.calls, [""] * len(machine.calls)
    truth = runner.include(text)
    machine.state, machine.calls = outer, calls
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
    name = _name_below(target)
    written = machine.state.files.get(plain_path(target.text))
    text = machine.open_file(name, line) if name and written is None else None
    if text is None and (written is None or not any(piece.known for piece in written.pieces)):
        return None
    if len(machine.calls) >= MAXIMUM_CALLS:
        name = PurePath(name).name[:60]
        raise InputError(f"{machine.file}:{line}: {name} reads itself, or files read each other too deep")
    if text is None:
        return written
    return Value((Piece(text, line),) if text else ())
