"""Built-in and common commands as changes of a script's state: `eval`, `read`, `shift`, `printf`. Runs no program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from simulator.recipes.shell.capture import echo_output, expr_output, printf_output
from simulator.recipes.shell.conditions import Test, Truth
from simulator.recipes.shell.files import WILD, Files
from simulator.recipes.shell.includes import include, spelled
from simulator.recipes.shell.machine import MAXIMUM_CALLS
from simulator.recipes.shell.parameters import NAME, read, set_options, shift
from simulator.recipes.shell.state import items_of
from simulator.recipes.shell.state import words as words_of
from simulator.recipes.shell.values import Cause, Value, hole, joined, open_causes, split_fields, text_value
from simulator.recipes.shell.walk import Walk
from simulator.recipes.shell.words import Words

WITHOUT_EFFECT: Final = re.compile(
    r"mkdir|rm|cp|mv|ln|touch|chmod|chown|env|ls|tee|sleep|wait|date|set|ulimit|shopt|:|true|pip3?|umask|sed|find|xargs"
    r"|hostname|which|ray|module|nvidia-smi|npu-smi|ixsmi"
)
"""Commands assumed to succeed and to change nothing that matters."""


def _eval(runner: Walk, argv: list[Value], line: int) -> Truth:
    space = text_value(" ", line)
    return runner.evaluate(joined(part for value in argv[1:] for part in (value, space)), line)


def _exit(runner: Walk, argv: list[Value], line: int) -> Truth:
    runner.machine.state.flow = "exit"
    runner.machine.state.exit_line = line
    return _status(runner, argv)


def _status(runner: Walk, argv: list[Value]) -> Truth:
    """Return the status that `exit` or `return` states, or that of the command before."""
    if len(argv) < 2 or argv[1].text == "$?":
        return runner.machine.last
    return argv[1].text == "0" if argv[1].known else argv[1].causes


def _leave(runner: Walk, argv: list[Value], _line: int) -> Truth:
    word, state = argv[0].text, runner.machine.state
    state.flow = "return" if word == "return" else "break" if word == "break" else "continue"
    if word == "return":
        return _status(runner, argv)
    state.levels = int(argv[1].text) if len(argv) > 1 and argv[1].text in ("2", "3", "4") else 1
    return True


def _getopts(runner: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `getopts SPEC NAME`: the next option of the parameters; without known parameters as `read`."""
    machine = runner.machine
    parameters = tuple(argv[3:]) or machine.state.positional
    if parameters is None or len(argv) < 3 or open_causes(parameters) or not (argv[1].known and argv[2].known):
        return read(runner, argv, line)
    stood = [machine.state.variables.get(name) for name in ("OPTIND", _WITHIN)]
    index, within = (int(at.text) if isinstance(at, Value) and at.text.isdecimal() else 1 for at in stood)
    word = parameters[index - 1] if 0 < index <= len(parameters) else text_value("", line)
    if not word.known:
        machine.assign(argv[2].text, hole(f"${argv[2].text}", line, word.causes), line)
        return word.causes
    option = word.text[within : within + 1] if word.text.startswith("-") and word.text != "--" else ""
    if not option:
        machine.assign(argv[2].text, text_value("?", line), line)
        machine.assign("OPTIND", text_value(str(index + (word.text == "--")), line), line)
        return False
    silent = argv[1].text.startswith(":")
    _, known, follows = argv[1].text.lstrip(":").partition(option)
    rest, shown = word.text[within + 1 :], option if known else "?"
    takes = bool(known) and follows.startswith(":")
    value = text_value(option, line) if silent and not known else None
    if takes and (rest or index < len(parameters)):
        value = text_value(rest, line) if rest else parameters[index]
        index, within = index + (1 if rest else 2), 1
    else:
        index, within = (index, within + 1) if rest else (index + 1, 1)
    if takes and value is None:  # without the word that it takes
        shown, value = (":", text_value(option, line)) if silent else ("?", None)
    machine.assign("OPTARG", value, line)
    machine.assign("OPTIND", text_value(str(index), line), line)
    machine.assign(_WITHIN, text_value(str(within), line), line)
    machine.assign(argv[2].text, text_value(shown, line), line)
    return True


_WITHIN: Final = "getopts position"
"""Position of `getopts` within a word of several options, stored under a name that no script can set."""


def _cd(runner: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `cd`, `pushd` and `popd`; the folder is known where its path is."""
    machine, files = runner.machine, runner.machine.state.files
    words = [spelled(value) for value in argv[1:] if not re.fullmatch(r"-[PLen]|--", value.text)]
    before = words_of(items_of(machine.lookup("PWD", line)))
    target = words[0] if words else "~"
    if target == "-":
        target = words_of(items_of(machine.lookup("OLDPWD", line))).text
    if argv[0].text == "pushd":
        files.stack = (*files.stack, files.folder)[-MAXIMUM_CALLS:]
    if argv[0].text == "popd":
        files.folder, files.stack = files.stack[-1] if files.stack else f"$(popd {line})", files.stack[:-1]
    else:
        files.folder = files.path(target)
    machine.assign("OLDPWD", before, line)
    machine.assign("PWD", _present(files, line), line)
    return True


def _present(files: Files, line: int) -> Value:
    """Return the present folder as `pwd` prints it."""
    start = hole("$PWD", line, [Cause(line, "PWD")])
    if not files.folder:
        return start
    if not WILD.search(files.folder) and files.folder[0] not in "/~":
        return joined([start, text_value(f"/{files.folder}", line)])
    return hole(files.folder, line, [Cause(line, "$(pwd)")])


def _pwd(runner: Walk, _argv: list[Value], line: int) -> Truth:
    files = runner.machine.state.files
    runner.machine.prints(_present(files, line) if files.folder else None)
    return True


def _echo(runner: Walk, argv: list[Value], line: int) -> Truth:
    runner.machine.prints(echo_output(argv, line))
    return True


def _printf(runner: Walk, argv: list[Value], line: int) -> Truth:
    if len(argv) > 3 and argv[1].text == "-v":
        text = printf_output(argv[3:], line)
        if NAME.fullmatch(argv[2].text):
            name = argv[2].text
            runner.machine.assign(name, text or hole(f"${name}", line, [Cause(line, f"printf -v {name}")]), line)
    else:
        runner.machine.prints(printf_output(argv[1:], line))
    return True


def _cat(runner: Walk, argv: list[Value], _line: int) -> Truth:
    runner.machine.prints(runner.stdin.text if len(argv) == 1 else None)
    return True


def _expr(runner: Walk, argv: list[Value], line: int) -> Truth:
    runner.machine.prints(expr_output(argv, line))
    return True


def _let(runner: Walk, argv: list[Value], line: int) -> Truth:
    words = Words(runner.machine, runner.source)
    number = text_value("0", line)
    for value in argv[1:]:
        number = words.number(value, value.text, line)
    return number.text != "0" if number.known else number.causes


def _test(runner: Walk, argv: list[Value], line: int) -> Truth:
    words = Words(runner.machine, runner.source)
    return Test(
        runner.machine, words, [v for value in argv[1:] for v in split_fields(value)], line, double=False
    ).truth()


def _trap(runner: Walk, argv: list[Value], _line: int) -> Truth:
    """Follow `trap TEXT EXIT`; texts that signals run are left alone."""
    words = argv[2:] if len(argv) > 1 and argv[1].text == "--" else argv[1:]
    if any(word.text.upper() in ("EXIT", "SIGEXIT", "0") for word in words[1:] or words):
        text = words[0] if len(words) > 1 and words[0].text not in ("", "-") else None
        runner.machine.state.trap = text
    return True


BUILTINS: Final[Mapping[str, Callable[[Walk, list[Value], int], Truth]]] = {
    **dict.fromkeys(("cd", "pushd", "popd"), _cd),
    "eval": _eval,
    "exit": _exit,
    "return": _leave,
    "break": _leave,
    "continue": _leave,
    "set": set_options,
    "shift": shift,
    "trap": _trap,
    "read": read,
    "getopts": _getopts,
    "mapfile": read,
    "readarray": read,
    "source": include,
    ".": include,
    "test": _test,
    "pwd": _pwd,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "expr": _expr,
    "let": _let,
    "false": lambda _runner, _argv, _line: False,
}
