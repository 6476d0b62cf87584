"""The parts of a framework's folder: one `Framework` in its `framework.py`, of the parts that it has.

A trainer with flags of its own has a `LaunchForm`: how its launches are told, the table that its flags stand in, and
the function that reads a run from them; one with configuration files of its own has a `FileForm`. A stack that adds
words to another framework's, as MindSpeed does to Megatron-LM's, `extends` it: its table stands behind that one's, and
its functions work on every run of it. All parts take and return values of this wing and of the question: arguments,
runs, scenarios, layouts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.documents import Key
from simulator.frameworks.launch import LaunchCommand
from simulator.frameworks.logs import LogForm, StepLogForm
from simulator.frameworks.run import AskedRun
from simulator.frameworks.values import PlainValue
from simulator.frameworks.write import Head, WordPair
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import FrameworkName


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchForm:
    """Launches of one framework."""

    dialect: str
    """How recipes of this form are called, such as `megatron-shell`."""
    order: int
    """Place among the forms that are asked in turn whose a launch is: the surest marks first."""
    is_own: Callable[[LaunchCommand], bool]
    read: Callable[[Arguments, LaunchCommand], AskedRun]
    """The run, before what was not read is remarked."""
    tables: tuple[str, ...] = ()
    """Tables of its flags, where they are others than its framework's."""
    complete: bool = True
    """Whether its tables have every flag; scripts that add flags of their own have more."""
    take_words: Callable[[Arguments, LaunchCommand, Sequence[PlainValue]], None] | None = None
    """Takes the words before the first flag: a configuration file, `key=value`."""
    cluster: Callable[[Arguments, LaunchCommand], tuple[int | None, int | None]] | None = None
    """Nodes and processes of a node, None where only the run knows, where the launcher's options do not say them."""
    is_named_by_program: bool = False
    """Whether a launch is called by its program too, as `swift sft` is, and not by its script alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileForm:
    """Configuration files of one framework, each a recipe on its own."""

    dialect: str
    """How recipes of this form are called, such as `llamafactory-yaml`."""
    order: int
    """Place among the forms that are asked in turn whose a file is: the surest marks first."""
    is_own: Callable[[Collection[str]], bool]
    """Whether keys are the framework's, by their dotted paths, their names, and the sections at the top."""
    read: Callable[[Arguments, Sequence[Key]], AskedRun | None]
    """The run, before what was not read is remarked; takes the keys into the arguments. None of a file of another."""
    tables: tuple[str, ...] = ()
    """Tables of its keys, where they are others than its framework's."""
    complete: bool = True
    """Whether its tables have every key."""
    in_words_of: str = ""
    """Framework whose flags its keys are taken as, where its table says of each which flag it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeWriter:
    """What writes a question down as a recipe of the framework."""

    text: Callable[[Scenario, Layout, Head], str]
    """The whole recipe. Raises UnsupportedError for what the framework has no words for."""
    words: Callable[[Scenario, Layout], Iterable[WordPair]]
    """The words that say how a question is laid out, which a patch of a recipe changes. Raises UnsupportedError."""
    dialects: tuple[str, ...]
    """Forms of recipes whose words these are."""
    is_usual: bool = True
    """Whether a question of its profile is written so where nobody names another framework."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """What a stack changes in runs of the framework that it builds on; it leaves runs alone that are none of its."""

    prepare: Callable[[Arguments], None] = lambda _: None
    """Changes arguments before they are read."""
    extend: Callable[[Arguments, AskedRun, LaunchCommand | None], AskedRun]
    """The run as this stack has it; without a launch its words are a log's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework's parts."""

    title: str
    """Its name in answers: `Megatron-LM`."""
    profile: FrameworkName
    """The profile that its runs are priced with."""
    tables: tuple[str, ...]
    """Its tables of flags, of which the first that has a name decides."""
    extends: str = ""
    """Folder of the framework that it builds on."""
    order: int = 50
    """Place of its tables and of its extension among those of one framework."""
    launches: tuple[LaunchForm, ...] = ()
    files: tuple[FileForm, ...] = ()
    log: LogForm | None = None
    step_log: StepLogForm | None = None
    writer: RecipeWriter | None = None
    extension: Extension | None = None
