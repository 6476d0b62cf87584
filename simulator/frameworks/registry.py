"""The frameworks there are: every folder of this wing that has a `framework.py`."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import FOLDER, FlagTable, table_of
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.launch import Launch
from simulator.frameworks.run import Run, finished


@functools.cache
def frameworks() -> Mapping[str, Framework]:
    """Every framework by the name of its folder, in order."""
    names = sorted(file.parent.name for file in FOLDER.glob("*/framework.py"))
    found = {name: importlib.import_module(f"simulator.frameworks.{name}.framework").FRAMEWORK for name in names}
    return dict(sorted(found.items(), key=lambda item: item[1].order))


def tables(name: str) -> tuple[str, ...]:
    """The tables of a framework and of the stacks that extend it, those first that decide."""
    own = frameworks()[name]
    others = (other.tables for other in frameworks().values() if other.extends == name and other is not own)
    return (*own.tables, *(table for names in others for table in names))


def table(name: str) -> FlagTable:
    """Their flags."""
    return table_of(*tables(name))


@functools.cache
def launch_forms() -> tuple[tuple[str, LaunchForm], ...]:
    """Every form of launch with its framework's name, in the order in which they are asked whose a launch is."""
    forms = ((name, form) for name, framework in frameworks().items() for form in framework.launches)
    return tuple(sorted(forms, key=lambda pair: pair[1].order))


def read_launch(name: str, form: LaunchForm, arguments: Arguments, launch: Launch) -> Run:
    """The run of a launch, with what the stacks on its framework change and what reading it leaves to say."""
    extensions = [other.extension for other in frameworks().values() if other.extends == name and other.extension]
    for extension in extensions:
        extension.prepare(arguments)
    run = form.read(arguments, launch)
    for extension in extensions:
        run = extension.extend(arguments, run, launch)
    return finished(arguments, run)
