"""A launch script as a whole: what it would start, and what reading it took for granted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.recipes.recipe import Remark, Severity
from simulator.recipes.shell.capture import captured
from simulator.recipes.shell.example import example_of
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.run import Runner
from simulator.recipes.shell.source import HOLES, Source, check_length
from simulator.recipes.shell.values import Cause, TooLargeError, text_value
from simulator.recipes.shell.wrappers import slurm_variables


@dataclass(frozen=True, slots=True)
class Script:
    """What was read from a script."""

    launches: tuple[TrainingCommand, ...]
    assumed_unset: Mapping[str, int]
    """Variables of the environment read as not set, with the line that asked."""
    exits: Mapping[int, frozenset[Cause]]
    """Lines where the script may end early, and what that depends on."""
    exit_line: int
    """Line of the `exit` that every path reaches; 0 if there is none."""
    unused_settings: tuple[str, ...]
    remarks: tuple[Remark, ...] = ()
    """Lines that do something else than they seem to, or that are not read."""


def read_script(text: str, file: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> Script:
    """Read a shell script. Raises InputError for text that is none."""
    check_length(file, text)
    for name, value in (("the script", text), *settings.items(), *environment.items()):
        if HOLES.search(value):
            raise InputError(f"{file}: private-use characters in {name[:40]}")
    example = example_of(text, file, settings)
    machine = Machine(file, settings, environment, slurm_variables(text), example)
    if example is not None:
        severity: Severity = "warning" if example.documented else "note"
        machine.remark("example-arguments", severity, example.said, example.line, "--set N=VALUE")
    machine.capture = lambda source, node: captured(Runner(machine, source, []), node)
    try:
        runner = Runner(machine, Source(file, text_value(text, 1)), [])
        machine.own_names = runner.assigned_names()
        runner.all(runner.root.children)
    except TooLargeError as error:
        raise InputError(f"{file}: a value outgrows every command line; not a launch script") from error
    except RecursionError as error:
        raise InputError(f"{file}: nested too deep for a launch script") from error
    return Script(
        launches=tuple(runner.launches),
        assumed_unset=machine.assumed_unset,
        exits=machine.exits,
        exit_line=machine.state.exit_line if machine.state.flow == "exit" else 0,
        unused_settings=tuple(sorted(set(settings) - machine.used_settings)),
        remarks=tuple(machine.remarks),
    )
