"""Built-in and common commands as changes of a script's state: `eval`, `read`, `shift`, `printf`. Runs no program."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from simulator.recipes.shell.capture import echo_output, expr_output, printf_output
from simulator.recipes.shell.conditions import Test, Truth
from simulator.recipes.shell.includes import include
from simulator.recipes.shell.values import Cause, Value, hole, joined, split_fields, text_value
from simulator.recipes.shell.walk import Walk
from simulator.recipes.shell.words import Words

WITHOUT_EFFECT: Final = frozenset(
    [
        "cd",
        "pushd",
        "popd",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "ln",
        "touch",
        "chmod",
        "chown",
        "pwd",
        "env",
        "ls",
        "tee",
        "sleep",
        "wait",
        "date",
        "set",
        "ulimit",
        "trap",
        "shopt",
        ":",
        "true",
        "pip",
        "pip3",
        "umask",
        "sed",
        "find",
        "xargs",
        "hostname",
        "which",
        "ray",
        "module",
        "nvidia-smi",
        "npu-smi",
        "ixsmi",
    ]
)
"""Commands assumed to succeed and to change nothing that matters."""
NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name that can be assigned."""


def _eval(runner: Walk, argv: list[Value], line: int) -> Truth:
    space = text_value(" ", line)
    return runner.evaluate(joined(part for value in argv[1:] for part in (value, space)), line)


def _exit(runner: Walk, _argv: list[Value], line: int) -> Truth:
    runner.machine.state.flow = "exit"
    runner.machine.state.exit_line = line
    return True


def _leave(runner: Walk, argv: list[Value], _line: int) -> Truth:
    word = argv[0].text
    runner.machine.state.flow = "return" if word == "return" else "break" if word == "break" else "continue"
    if word == "return" and len(argv) > 1 and argv[1].known:
        return argv[1].text == "0"
    return True


def _set(runner: Walk, argv: list[Value], _line: int) -> Truth:
    for number, value in enumerate(argv):
        if value.text == "--":
            runner.machine.state.positional = tuple(argv[number + 1 :])
            runner.machine.state.shifted = 0
            break
    return True


def _shift(runner: Walk, argv: list[Value], _line: int) -> Truth:
    count = argv[1].text if len(argv) > 1 else "1"
    runner.machine.shift(min(int(count), 1000) if count.isascii() and count.isdigit() and len(count) < 5 else 1)
    return True


def _read(runner: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `read X`, and `getopts` without known parameters: the names are unknown unless standard input is known."""
    cause = frozenset({Cause(line, " ".join(value.text for value in argv)[:80])})
    text = runner.stdin
    if argv[0].text == "read" and text is not None and text.known:
        return _read_text(runner, argv, text.text.split("\n")[0], line)
    for value in argv[1:]:
        if NAME.fullmatch(value.text):
            runner.machine.assign(value.text, hole(f"${value.text}", line, cause), line)
    return cause


def _getopts(runner: Walk, argv: list[Value], line: int) -> Truth:
    """Follow `getopts SPEC NAME`: the next option of the parameters; without known parameters as `read`."""
    machine = runner.machine
    parameters = machine.state.positional
    if parameters is None or len(argv) != 3 or not (argv[1].known and argv[2].known):
        return _read(runner, argv, line)
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
    _, known, follows = argv[1].text.lstrip(":").partition(option)
    rest = word.text[within + 1 :]
    if known and follows.startswith(":"):
        behind = parameters[index] if index < len(parameters) else text_value("", line)
        machine.assign("OPTARG", text_value(rest, line) if rest else behind, line)
        index, within = index + (1 if rest else 2), 1
    else:
        index, within = (index, within + 1) if rest else (index + 1, 1)
    machine.assign("OPTIND", text_value(str(index), line), line)
    machine.assign(_WITHIN, text_value(str(within), line), line)
    machine.assign(argv[2].text, text_value(option if known else "?", line), line)
    return True


_WITHIN: Final = "getopts position"
"""Position of `getopts` within a word of several options, stored under a name that no script can set."""


def _read_text(runner: Walk, argv: list[Value], text: str, line: int) -> Truth:
    """Follow `read A B <<< "text"`."""
    names = [value.text for value in argv[1:] if NAME.fullmatch(value.text)]
    separators = runner.prefix.get("IFS")
    marks = re.escape(separators.text) if separators is not None and separators.known and separators.text else r" \t"
    words = re.split(rf"[{marks}]+", text.strip(" \t"), maxsplit=max(len(names) - 1, 0))
    for number, name in enumerate(names):
        runner.machine.assign(name, text_value(words[number].strip() if number < len(words) else "", line), line)
    return True


def _echo(runner: Walk, argv: list[Value], line: int) -> Truth:
    runner.machine.prints(echo_output(argv, line))
    return True


def _printf(runner: Walk, argv: list[Value], line: int) -> Truth:
    if len(argv) > 2 and argv[1].text == "-v":
        text = printf_output(argv[3:], line)
        if NAME.fullmatch(argv[2].text):
            name = argv[2].text
            runner.machine.assign(name, text or hole(f"${name}", line, [Cause(line, f"printf -v {name}")]), line)
    else:
        runner.machine.prints(printf_output(argv[1:], line))
    return True


def _cat(runner: Walk, argv: list[Value], _line: int) -> Truth:
    runner.machine.prints(runner.stdin if len(argv) == 1 else None)
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


BUILTINS: Final[Mapping[str, Callable[[Walk, list[Value], int], Truth]]] = {
    "eval": _eval,
    "exit": _exit,
    "return": _leave,
    "break": _leave,
    "continue": _leave,
    "set": _set,
    "shift": _shift,
    "read": _read,
    "getopts": _getopts,
    "mapfile": _read,
    "readarray": _read,
    "source": include,
    ".": include,
    "test": _test,
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "expr": _expr,
    "let": _let,
    "false": lambda _runner, _argv, _line: False,
}
