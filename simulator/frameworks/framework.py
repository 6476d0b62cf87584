"""Record `Framework`, which each framework's folder fills in its `framework.py`: its tables, readers and writer.

A trainer with flags of its own has a `LaunchForm`, one with configuration files a `FileForm`. A stack that adds flags
to another framework's, as MindSpeed does to Megatron-LM's, `extends` it: its table comes after that one's, and its
functions see every run of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.documents import Key
from simulator.frameworks.logs import LogForm, StepLogForm
from simulator.frameworks.values import PlainValue
from simulator.frameworks.write import Head, WordPair
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import FrameworkName
from simulator.records import Record


@dataclass(frozen=True, slots=True)
class LaunchForm:
    """One kind of launch command of a framework: how to recognise and how to read it."""

    dialect: str
    """Name of the recipe format, such as `megatron-shell`."""
    order: int
    """Position among all launch forms when a launch is recognised, lowest first: the surest marks come first."""
    is_own: Callable[[LaunchCommand], bool]
    read: Callable[[Arguments, LaunchCommand], Recipe]
    """Return the run; remarks on unread flags are added by the caller."""
    take_words: Callable[[Arguments, LaunchCommand, Sequence[PlainValue]], None] | None = None
    """Take the words before the first flag: a configuration file, `key=value`."""
    cluster: Callable[[Arguments, LaunchCommand], tuple[int | None, int | None]] | None = None
    """Return nodes and processes per node where the launcher's options do not state them; None where only the run
    knows."""
    _: KW_ONLY
    tables: tuple[str, ...] = ()
    """Tables of its flags; empty where they are its framework's."""
    complete: bool = True
    """Whether its tables list every flag; false for scripts that may define flags of their own."""
    is_named_by_program: bool = False
    """Whether the program's name identifies a launch too, as in `swift sft`, and not the script's alone."""


@dataclass(frozen=True, slots=True)
class FileForm:
    """One kind of configuration file of a framework, each file a recipe of its own."""

    dialect: str
    """Name of the recipe format, such as `llamafactory-yaml`."""
    order: int
    """Position among all file forms when a file is recognised, lowest first: the surest marks come first."""
    is_own: Callable[[Collection[str]], bool]
    """Whether a file is the framework's, by its keys' dotted paths, their names and its top-level sections."""
    read: Callable[[Arguments, Sequence[Key]], Recipe | None]
    """Take the keys into the arguments and return the run, without remarks on unread keys; None for another
    framework's file."""
    _: KW_ONLY
    tables: tuple[str, ...] = ()
    """Tables of its keys; empty where they are its framework's."""
    complete: bool = True
    """Whether its tables list every key."""
    refers: bool = True
    """Whether `${key}` stands for another key's value; no where `read` replaces what its files refer to."""
    in_words_of: str = ""
    """Framework whose flags its keys stand for, by the aliases in its own table; empty where they are its own."""


def started(program: str) -> Callable[[LaunchCommand], bool]:
    """Return what tells whether a launch starts a script or module of this pattern, which ends its name."""
    return lambda launch: re.search(rf"{program}$", launch.script.text) is not None


def marked(*alternatives: str) -> Callable[[Collection[str]], bool]:
    """Return what tells whether a file has every key of an alternative, of `one|other` either.

    >>> marked("base_model datasets|sequence_len")({"base_model", "sequence_len"})
    True
    """
    marks = [[key.split("|") for key in each.split()] for each in alternatives]
    return lambda names: any(all(any(key in names for key in either) for either in each) for each in marks)


class RecipeWriter(Record, kw_only=True):
    """Functions that write a question as a recipe of the framework."""

    text: Callable[[Scenario, Layout, Head], str]
    """Return the whole recipe. Raises UnsupportedError for settings that the framework has no words for."""
    words: Callable[[Scenario, Layout], Iterable[WordPair]]
    """Return the words of a layout, which a patch of a recipe replaces. Raises UnsupportedError."""
    dialects: tuple[str, ...]
    """Recipe formats that use these words."""
    is_usual: bool = True
    """Whether it writes questions of its profile by default, where the user names no framework."""


class Extension(Record, kw_only=True):
    """Changes that a stack makes to runs of the framework it extends; runs that do not use it stay as they are."""

    prepare: Callable[[Arguments], None] = lambda _: None
    """Change the arguments before they are read."""
    extend: Callable[[Arguments, Recipe, LaunchCommand | None], Recipe]
    """Return the run as this stack has it; the launch is None for a log."""


class Framework(Record, kw_only=True):
    """Everything that one framework's folder defines."""

    title: str
    """Name in answers: `Megatron-LM`."""
    profile: FrameworkName
    """Profile that its runs are priced with."""
    tables: tuple[str, ...] = ()
    """Its tables of flags, by default `words.csv` of its folder; where several list a name, the first one counts."""
    extends: str = ""
    """Folder of the framework that it extends; empty for none."""
    order: int = 50
    """Position of its tables and extension among those of the same base framework, lowest first."""
    launches: tuple[LaunchForm, ...] = ()
    files: tuple[FileForm, ...] = ()
    log: LogForm | None = None
    step_log: StepLogForm | None = None
    writer: RecipeWriter | None = None
    extension: Extension | None = None
