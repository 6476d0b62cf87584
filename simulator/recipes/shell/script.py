"""A launch script as a whole: its training commands, and the assumptions of reading it. Knows no framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simulator.errors import InputError
from simulator.question.origin import Remark, Severity
from simulator.recipes.shell.capture import captured
from simulator.recipes.shell.example import example_of
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.run import Runner
from simulator.recipes.shell.source import HOLES, Source, check_length
from simulator.recipes.shell.state import NotFollowed
from simulator.recipes.shell.values import Cause, TooLargeError, text_value
from simulator.recipes.shell.wrappers import scheduled_variables


@dataclass(frozen=True, slots=True)
class Script:
    """The result of reading a script."""

    launches: tuple[TrainingCommand, ...]
    assumed_unset: Mapping[str, int]
    """Environment variables read as unset, with the line that reads them."""
    exits: Mapping[int, frozenset[Cause]]
    """Lines where the script may end early, and what that depends on."""
    exit_line: int
    """Line of the `exit` that every path reaches; 0 without one."""
    unused_settings: tuple[str, ...]
    not_followed: Mapping[str, NotFollowed] = field(default_factory=dict)
    """Scripts that are started but not followed to a training, by name."""
    remarks: tuple[Remark, ...] = ()
    """Remarks on lines with unexpected effects, and on lines that are not read."""


OpenFile = Callable[[str, int], str | None]
"""Return the text of a file that a line of the script names, below its folder or one above; None without one."""


def read_script(
    text: str,
    file: str,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    open_file: OpenFile = lambda _name, _line: None,
) -> Script:
    """Read a shell script and the files that it includes. Raises InputError for text that is not a script."""
    check_length(file, text)
    for name, value in (("the script", text), *settings.items(), *environment.items()):
        if HOLES.search(value):
            raise InputError(f"{file}: private-use characters in {name[:40]}")
    required: frozenset[str] = frozenset()
    while True:
        machine = _machine(text, file, settings, environment, open_file)
        machine.required = required
        launches = _followed(machine, text)
        missing = frozenset(machine.ended_without) - required
        if launches or not missing or machine.state.flow != "exit":
            break
        required |= missing
    for name in sorted(required):
        remark = f"the script ends where {name[:60]} is not set: taken as set"
        machine.remark("required-variable", "note", remark, 1, f"--set {name}=VALUE")
    return Script(
        launches=tuple(launches),
        assumed_unset=machine.assumed_unset,
        exits=machine.exits,
        exit_line=machine.state.exit_line if machine.state.flow == "exit" else 0,
        unused_settings=tuple(sorted(set(settings) - machine.used_settings)),
        not_followed=machine.not_followed,
        remarks=tuple(machine.remarks),
    )


def _machine(
    text: str, file: str, settings: Mapping[str, str], environment: Mapping[str, str], open_file: OpenFile
) -> Machine:
    """Return a machine at the start of a script, with the arguments of its comment or its documentation."""
    example = example_of(text, file, settings)
    machine = Machine(file, settings, environment, scheduled_variables(text), example)
    if example is not None:
        severity: Severity = "warning" if example.documented else "note"
        machine.remark("example-arguments", severity, example.message, example.line, "--set N=VALUE")
    machine.open_file = open_file
    machine.started.append((text, ()))
    return machine


def _followed(machine: Machine, text: str) -> list[TrainingCommand]:
    """Return the launches of a script. Raises InputError for text too large or too deep for a launch script."""
    try:
        runner = Runner(machine, Source(machine.file, text_value(text, 1)), [])
        machine.own_names = runner.assigned_names()
        machine.capture = lambda source, node: captured(Runner(machine, source, runner.launches), node)
        runner.all(runner.root.children)
        runner.end()
    except TooLargeError as error:
        raise InputError(f"{machine.file}: a value outgrows every command line; not a launch script") from error
    except RecursionError as error:
        raise InputError(f"{machine.file}: nested too deep for a launch script") from error
    return runner.launches
