"""Registry of frameworks: every folder here with a `framework.py`, imported, in one list."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence

from simulator.frameworks.arguments import Arguments, LaunchCommand, finished
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import FOLDER, FlagTable, table_of
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, RecipeWriter
from simulator.frameworks.logs import LogForm, StepLogForm
from simulator.question.recipe import Recipe
from simulator.question.vocabulary import FrameworkName


@functools.cache
def frameworks() -> Mapping[str, Framework]:
    """Return every framework by the name of its folder, sorted by `Framework.order`."""
    names = sorted(file.parent.name for file in FOLDER.glob("*/framework.py"))
    parts = {name: importlib.import_module(f"simulator.frameworks.{name}.framework").FRAMEWORK for name in names}
    return dict(sorted(parts.items(), key=lambda item: item[1].order))


def tables(name: str) -> tuple[str, ...]:
    """Return the tables of a framework and of the stacks that extend it, by precedence."""
    others = (other for other, own in frameworks().items() if own.extends == name != other)
    return tuple(table for each in (name, *others) for table in frameworks()[each].tables or (each,))


def table(name: str, form: LaunchForm | FileForm | None = None) -> FlagTable:
    """Return the flags of a framework and its extensions, or of one of its forms of recipe."""
    if isinstance(form, FileForm) and form.in_words_of:
        return table(form.in_words_of)
    return table_of(*((form.tables if form is not None else ()) or tables(name)))


@functools.cache
def launch_forms() -> tuple[tuple[str, LaunchForm], ...]:
    """Return every form of launch with its framework's name, in the order in which they are tried."""
    forms = ((name, form) for name, framework in frameworks().items() for form in framework.launches)
    return tuple(sorted(forms, key=lambda pair: pair[1].order))


@functools.cache
def file_forms() -> tuple[tuple[str, FileForm], ...]:
    """Return every form of configuration file with its framework's name, in the order in which they are tried."""
    forms = ((name, form) for name, framework in frameworks().items() for form in framework.files)
    return tuple(sorted(forms, key=lambda pair: pair[1].order))


def read_file(form: FileForm, arguments: Arguments, keys: Sequence[Key]) -> Recipe | None:
    """Return the run of a configuration file; None where the form's framework cannot read it."""
    run = form.read(arguments, keys)
    return None if run is None else finished(arguments, run)


def read_launch(name: str, form: LaunchForm, arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch, changed by the framework's extensions and with all remarks."""
    return _extended(name, arguments, launch, lambda: form.read(arguments, launch))


def log_forms() -> Mapping[str, LogForm]:
    """Return every form of log by its framework's name."""
    return {name: framework.log for name, framework in frameworks().items() if framework.log}


@functools.cache
def step_log_forms() -> tuple[StepLogForm, ...]:
    """Return every form of log that shows steps but not all arguments, in the order in which they are tried."""
    forms = (framework.step_log for framework in frameworks().values())
    return tuple(sorted((form for form in forms if form), key=lambda form: form.order))


def read_log(name: str, arguments: Arguments) -> Recipe:
    """Return the run of a log's words, changed by the framework's extensions and with all remarks."""
    return _extended(name, arguments, None, lambda: log_forms()[name].read(arguments))


def _extended(name: str, arguments: Arguments, launch: LaunchCommand | None, read: Callable[[], Recipe]) -> Recipe:
    extensions = [other.extension for other in frameworks().values() if other.extends == name and other.extension]
    for extension in extensions:
        extension.prepare(arguments)
    run = read()
    for extension in extensions:
        run = extension.extend(arguments, run, launch)
    return finished(arguments, run)


def framework_of(name: str) -> FrameworkName:
    """Return the profile that runs of a framework are priced with."""
    return frameworks()[name].profile


def writers() -> Mapping[str, RecipeWriter]:
    """Return the recipe writers by their framework's name."""
    return {name: framework.writer for name, framework in frameworks().items() if framework.writer}
