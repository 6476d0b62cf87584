"""State of a script at one point of one path, and what the walk over it has found so far.

After `export TP=2; cd x`, `State.variables` holds `TP` as 2, `State.exported` its name, `State.files.folder` is `x`.
`Machine` holds the present state, the values that come from outside (settings, environment, scheduler, an example's
arguments), and the remarks. Paths that a branch or a loop opens are joined again: what differs is one of both values.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from simulator.budget import charge
from simulator.errors import InputError
from simulator.frameworks.values import Cause, set_by_user
from simulator.question.origin import Place, Remark, Severity, option_for
from simulator.recipes.shell import values as bash
from simulator.recipes.shell.launch import Example
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import BLANKS, BREAK, EMPTY, Files, Piece, Truth, Value

if TYPE_CHECKING:
    from tree_sitter import Node

MAXIMUM_STEPS: Final = 50_000
"""Most statements and expansions of one script."""
MAXIMUM_CALLS: Final = 12
"""Greatest depth of function calls and `eval`."""
_STEP_WORK: Final = 1000  # units of work of one step, beside its results
ENTRY_WORK: Final = 50
"""Units of work per variable of a state that is compared."""
_FORK_WORK: Final = 500
_COPY_WORK: Final = 10  # units of work per variable that is copied
_MAXIMUM_REMARKS: Final = 100
_MOST_DIGITS: Final = 4  # most digits in the number of a parameter
_FROM_OUTSIDE: Final = re.compile(
    r"WORLD_SIZE|(LOCAL_|NODE_|GROUP_)?RANK|MASTER_(ADDR|PORT)|HOME|USER|PWD|PATH|HOSTNAME|(SLURM|PADDLE|PBS|TQ)_\w+"
)  # names that the run sets, even where the script assigns them on some path
SURROUNDINGS: Final = re.compile(
    r"(^/(etc|opt|usr)/|^~|activate|bashrc|profile|conda|mamba|setvars|set_env|modules?\b|venv|^/dev/|ssh-agent|pyenv"
    r"|spack|lmod|direnv)"
)
"""Scripts that set up compilers, libraries or Python."""

Flow = Literal["", "exit", "return", "break", "continue"]
Items = Mapping[str, Value]
"""Items of a list by key, in order; never changed."""
Content = Value | Items | None
"""Text of a variable, items of an array, or None for a name that was unset."""
Function = tuple[Source, "Node"]
"""The source that defines a function, and its body."""
Marks = Mapping[str, frozenset[Cause]]
"""Names, each with what decides whether it is meant; nothing where it surely is."""


@dataclass(frozen=True, slots=True)
class NotFollowed:
    """A script that another one starts and that was not followed to a training."""

    line: int
    why: str
    """Why it was not followed, as the end of `starts a script`."""
    text: str = ""
    """Text of the script; empty where it is not available."""
    spread: bool = False
    """Whether it is started as several processes."""


@dataclass(slots=True)
class State:
    """Variables, functions and files at one point of one path.

    Paths have in common what none of them changes: variables are copied before the first change, the other mappings
    replaced as a whole.
    """

    variables: dict[str, Content] = field(default_factory=dict)
    exported: Marks = field(default_factory=dict)
    """Variables that commands see which are started."""
    functions: dict[str, Function | None] = field(default_factory=dict)
    """Functions by name; None where a branch decides which it is."""
    files: Files = field(default_factory=Files)
    """Files as the script left them."""
    positional: tuple[Value, ...] | None = None
    """Positional parameters; None while they are the command line's unknown ones."""
    shifted: int = 0
    """Unknown parameters that `shift` dropped."""
    flow: Flow = ""
    exit_line: int = 0
    levels: int = 1
    """Loops that `break` or `continue` leaves."""
    options: frozenset[str] = frozenset()
    """Options that `set` turned on, on every path: `a`, `e`, `u` and `pipefail`."""
    tested: int = 0
    """Conditions around the present command, within which no failure ends the script."""
    is_lent: bool = False
    """Whether another state has the same mapping of variables."""

    def fork(self) -> State:
        """Return a copy for another path."""
        charge(_FORK_WORK)
        self.is_lent = True
        other = copy.copy(self)
        other.files = self.files.copy()
        return other

    def snapshot(self) -> dict[str, Content]:
        """Return the present variables, which later changes leave alone."""
        self.is_lent = True
        return self.variables

    def changeable(self) -> dict[str, Content]:
        """Return the variables for a change."""
        if self.is_lent:
            charge(_COPY_WORK * len(self.variables))
            self.variables, self.is_lent = dict(self.variables), False
        return self.variables

    def export(self, name: str, on: frozenset[Cause] = frozenset()) -> None:
        """Export a variable; `on` is what that depends on."""
        if self.exported.get(name) != on:
            charge(len(self.exported))
            self.exported = {**self.exported, name: on}

    def unexport(self, name: str) -> None:
        """Keep a variable from commands."""
        if name in self.exported:
            self.exported = {other: on for other, on in self.exported.items() if other != name}

    def part(self, names: Iterable[str]) -> tuple[dict[str, Content], Marks]:
        """Return these variables as far as they are set, and which of them are exported."""
        variables = {name: self.variables[name] for name in names if name in self.variables}
        return variables, {name: self.exported[name] for name in names if name in self.exported}

    def restore(self, names: Iterable[str], variables: Mapping[str, Content], exported: Marks) -> None:
        """Set these variables as they were."""
        for name in names:
            self.changeable().pop(name, None)
            self.unexport(name)
        self.changeable().update(variables)
        for name, on in exported.items():
            self.export(name, on)

    def started(self, positional: tuple[Value, ...]) -> State:
        """Return the state of a shell that this one starts: its exported variables, functions and files."""
        other = self.fork()
        passed = {name: causes for name, causes in self.exported.items() if name in self.variables}
        other.variables = {name: maybe(name, self.variables[name], causes) for name, causes in passed.items()}
        other.is_lent = False
        other.positional, other.shifted, other.options, other.tested = positional, 0, frozenset(), 0
        return other


_PLACEHOLDER: Final = re.compile(r"\A<[^<>]+>\Z|\b(?:your|path/to|change_?me|todo|xxx+|placeholder)\b", re.IGNORECASE)
"""What stands for a value that the script's user is to fill in."""
_LONGEST_PLACEHOLDER: Final = 100


def _is_placeholder(content: Content) -> bool:
    """Whether a variable holds an empty text or a placeholder."""
    if not isinstance(content, Value) or len(content.pieces) > 1 or not content.known:
        return False
    text = content.text
    return not text or (len(text) <= _LONGEST_PLACEHOLDER and _PLACEHOLDER.search(text) is not None)


class Machine:
    """The state of the current path, the values from outside, and the findings so far."""

    def __init__(
        self,
        file: str,
        settings: Mapping[str, str],
        environment: Mapping[str, str],
        scheduled: Mapping[str, Value] | None = None,
        example: Example | None = None,
    ) -> None:
        """`scheduled` are variables that the scheduler sets at the script's request; `example` holds its arguments."""
        self.file = file
        self.state = State()
        self.settings, self.example = settings, example
        self.environment = {**(example.exported if example else {}), **environment}
        self.scheduled = scheduled or {}
        self.used_settings: set[str] = set()
        self.assumed_unset: dict[str, int] = {}
        # Names that the script gives a value that is not made of them.
        self.assigned: set[str] = set()
        self.exits: dict[int, frozenset[Cause]] = {}
        self.conditions: tuple[frozenset[Cause], ...] = ()
        self.calls: list[str] = []
        self.shadowed: list[dict[str, list[Content]]] = []  # before each function's local variables
        # Paths that left a function or a loop under a condition that only the run decides.
        self.left: list[tuple[State, frozenset[Cause]]] = []
        # Whether the last command, the last round of the present loop, and the last command in `$( )` succeeded.
        self.last: Truth = True
        self.round: Truth = True
        self.substituted: Truth = True
        # Options `A`, `i`, `l`, `n`, `u` of declared variables, whose assignments mean more than their text.
        self.attributed: dict[str, str] = {}
        # Steps so far; depth of nested choices of a text.
        self.steps = self.choices = 0
        # How the current command distributes the processes that it starts.
        self.spread: Mapping[str, Value] = {}
        self._remarks: dict[Remark, None] = {}
        # Output of the commands, each None where it is not known, and the number of conditions at its start.
        self.output: tuple[int, list[Value | None]] | None = None
        # Return the text of a file by its name below the script's folder or one above; None without one.
        self.open_file: Callable[[str, int], str | None] = lambda _name, _line: None
        # Whether an included file is missing, which may set any variable that is set nowhere else.
        self.unread = False
        # Scripts that are started but not followed to a training, by name.
        self.not_followed: dict[str, NotFollowed] = {}
        # Texts of the scripts being followed, each with its arguments.
        self.started: list[tuple[str, tuple[str, ...]]] = []
        # Variables assumed to be set, because the script ends without them.
        self.required: frozenset[str] = frozenset()
        # Variables that were read as unset, in order, and those whose absence made the script end.
        self.read_as_unset: list[str] = []
        self.ended_without: set[str] = set()
        # Return the output of the command in a `$( )`; None where it is not known.
        self.capture: Callable[[Source, Node], Value | None] = lambda _source, _node: None
        self._by_number = self._stated_parameters()
        """Parameters that the user set individually; those after the last of them are unknown, not missing."""

    def _stated_parameters(self) -> tuple[Value, ...] | None:
        """Start with the parameters that the user or the example sets; return those set individually."""
        settings, example = self.settings, self.example
        by_number = {int(name): text for name, text in settings.items() if re.fullmatch(r"[1-9][0-9]{0,2}", name)}
        self.used_settings |= {str(number) for number in by_number}
        if example is not None:
            self.used_settings |= example.used_settings
            by_number = {**example.words, **by_number}
        if by_number:
            self.state.positional = tuple(
                bash.text_value(by_number[n], 0) if n in by_number else bash.hole(f"${n}", 0, [Cause(0, str(n))])
                for n in range(1, max(by_number) + 1)
            )
            return self.state.positional
        if "@" in settings:
            self.used_settings.add("@")
            words = settings["@"].split()
            with suppress(ValueError):
                words = shlex.split(settings["@"])
            self.state.positional = tuple(bash.text_value(word, 0, quoted=True) for word in words)
        return None

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """Remarks on lines, without repetitions."""
        return tuple(self._remarks)

    def step(self, line: int, parts: int = 0) -> None:
        """Count one step over `parts` parts. Raises InputError for a script that takes too many."""
        self.steps += 1
        charge(_STEP_WORK + ENTRY_WORK * parts)
        if self.steps > MAXIMUM_STEPS:
            raise InputError(f"{self.file}:{line}: takes more than {MAXIMUM_STEPS} steps to read; not a launch script")

    def remark(self, rule: str, severity: Severity, message: str, line: int, fix: str = "") -> None:
        """Add a remark on a line once; only the first of very many are kept."""
        if len(self._remarks) < _MAXIMUM_REMARKS:
            self._remarks[Remark(rule, severity, message, Place(self.file, max(line, 1)), fix)] = None

    def prints(self, text: Value | None) -> None:
        """Record the output of a command; None where it is not known."""
        if self.output is not None:
            depth, parts = self.output
            parts.append(None if self.left or len(self.conditions) != depth else text)

    # Variables.

    def preset(self, name: str, line: int) -> Value | None:
        """Return the value that the user, the environment or the scheduler sets for a name; None without one."""
        if name in self.settings:
            self.used_settings.add(name)
            return bash.text_value(self.settings[name], line)
        return bash.text_value(self.environment[name], line) if name in self.environment else self.scheduled.get(name)

    def lookup(self, name: str, line: int) -> Content:
        """Return the content of a variable or parameter; None where it is surely unset, a hole where unknown."""
        if name.isdigit() or name in ("#", "@", "*"):
            return self._parameter(name, line)
        if name in self.state.variables:
            content = self.state.variables[name]
            if _is_placeholder(content):
                self.read_as_unset.append(name)
            return content
        setting = self.preset(name, line)
        return self._never_set(name, line) if setting is None else setting

    def _never_set(self, name: str, line: int) -> Content:
        """Return the content of a variable that nothing sets before."""
        if name == "IFS":
            return bash.text_value(BLANKS, line)
        outside = not self.unread and name not in self.required
        if outside and name in self.assigned and "u" not in self.state.options and not _FROM_OUTSIDE.fullmatch(name):
            return None
        outside = outside and (len(name) > 1 or name.isalpha())
        return bash.hole(f"${name}", line, [Cause(line, name)], filled=name in self.required, outside=outside)

    def _parameter(self, name: str, line: int) -> Content:
        parameters = self.state.positional
        if parameters is None:
            counted = name.isdigit() and name != "0" and len(name) <= _MOST_DIGITS
            shown = str(int(name) + self.state.shifted) if counted else name
            return self.preset(shown, line) or bash.hole(f"${name}", line, [Cause(line, shown)], filled=name == "#")
        if name in ("@", "*"):
            return {str(number): word for number, word in enumerate(parameters, start=1)}
        if name == "#":
            return self._number_of(parameters, line)
        end = int(name) if len(name) <= _MOST_DIGITS else None
        causes = bash.open_causes(parameters, end)
        if end and all(cause.name == "@" for cause in causes):  # `"$@"` handed on: the outer script's own word
            before = [item.open for item in parameters].index(True) if causes else 0
            causes = frozenset(Cause(cause.line, str(end - before)) for cause in causes)
        if causes or name == "0":
            return bash.hole(f"${name}", line, causes or [Cause(line, "0")], filled=not end)
        number = int(name) if len(name) <= _MOST_DIGITS else len(parameters) + 1
        if number > len(parameters):
            return (
                bash.hole(f"${name}", line, [Cause(line, name)], outside=True)
                if parameters is self._by_number
                else None
            )
        word = parameters[number - 1]
        return word if word.line else Value(tuple(dataclasses.replace(piece, line=line) for piece in word.pieces))

    def _number_of(self, parameters: Sequence[Value], line: int) -> Value:
        """Return the number of parameters, of which `"$@"` handed on is the outer script's own number."""
        causes = bash.open_causes(parameters)
        if causes and all(cause.name == "@" for cause in causes):
            causes = frozenset(Cause(cause.line, "#") for cause in causes)
            handed = self.preset("#", line)
            if handed is not None and handed.text.isdecimal():
                return bash.text_value(str(len(parameters) - 1 + int(handed.text[:_MOST_DIGITS])), line)
        return bash.hole("$#", line, causes, filled=True) if causes else bash.text_value(str(len(parameters)), line)

    def unset(self, name: str, line: int) -> bool:
        """Whether to read a name as unset; assumptions are recorded."""
        content = self.lookup(name, line)
        if content is None:
            return True
        if isinstance(content, Value) and content.outside:
            self.assume_unset(content)
            return True
        # An unknown parameter: `${1:-4}` states its default.
        return name.isdigit() and isinstance(content, Value) and not content.known and self.state.positional is None

    def leaves_out(self, value: Value) -> bool:
        """Whether a value is variables that are not set on the command line that starts the script."""
        names = {cause.name for cause in value.causes}
        return self.example is not None and value.outside and not any(map(_FROM_OUTSIDE.fullmatch, names))

    def assume_unset(self, value: Value) -> None:
        """Record that a value from outside is read as unset."""
        for cause in value.causes:
            self.read_as_unset.append(cause.name)
            self.assumed_unset.setdefault(cause.name, cause.line)

    def assign(self, name: str, content: Content, line: int) -> None:
        """Set a variable; the user's setting replaces an unknown value, a hole what the script ends with."""
        if isinstance(content, Value) and not content.known and (setting := self.preset(name, line)) is not None:
            content = setting
        elif self.attributed.get(name, "A") != "A" or (name in self.required and _is_placeholder(content)):
            content = bash.hole(f"${name}", line, [Cause(line, name)], filled=name in self.required)
        if "n" in self.attributed.get(name, ""):  # a name for another variable
            self.may_set_any(f"${name}", (), line)
        if "a" in self.state.options:
            self.state.export(name)
        self.state.changeable()[name] = content

    def assign_item(self, name: str, key: str, item: Value, line: int) -> None:
        """Set one item of a list."""
        content = self.state.variables.get(name)
        if isinstance(content, Value) and not content.known:
            return  # a list of which nobody knows the items
        items = items_of(content)
        charge(ENTRY_WORK * (1 + len(items)))
        if causes := bash.open_causes(tuple(items.values())):
            self.assign(name, bash.hole(f"${name}", line, causes), line)
            return
        changed = {**items, key: item}
        if key not in items and all(map(str.isdecimal, changed)):
            changed = dict(sorted(changed.items(), key=lambda pair: int(pair[0])))
        self.assign(name, changed, line)

    @property
    def separators(self) -> str | None:
        """Blanks that separate words (IFS); None where only the run knows them or other signs do too."""
        content = self.state.variables.get("IFS")
        if content is None:
            return BLANKS
        is_read = isinstance(content, Value) and content.known and not content.text.strip(BLANKS)
        return content.text if isinstance(content, Value) and is_read else None

    def may_set_any(self, shown: str, causes: Iterable[Cause], line: int, name: str = "") -> None:
        """Make all variables unknown, except paths: a statement or a file that is not read may set them.

        `name` is that of the file. Scripts that set up a compiler or Python are taken to set nothing that matters.
        """
        if any(SURROUNDINGS.search(cause.name) for cause in causes):
            return
        fix = option_for(name, is_file=True) if name else "--set NAME=VALUE"
        self.remark("not-read", "warning", f"{shown[:100]} is not read: what it sets is not known", line, fix)
        self.unread = True
        charge(ENTRY_WORK * len(self.state.variables))
        for variable, content in list(self.state.variables.items()):
            if isinstance(content, Value) and content.known and "/" not in content.text:
                is_filled = bash.filled(content) is True
                self.assign(variable, bash.hole(f"${variable}", line, [Cause(line, variable)], filled=is_filled), line)

    # Texts of files.

    def text_of(self, target: Value, line: int) -> Value | None:
        """Return a file's text, every line of it at the line of the command that names it; None without one."""
        text = self._left_in(target, line)
        if text is None or (text.pieces and not text.has_text):
            return None
        if len(self.calls) >= MAXIMUM_CALLS:
            name = bash.name_below(target).rpartition("/")[2][:60]
            raise InputError(f"{self.file}:{line}: {name} reads itself, or files read each other too deep")
        return text

    def _left_in(self, target: Value, line: int) -> Value | None:
        """Return a file's text as the script has left it, a hole where only the run knows it; None without one."""
        name, files = bash.name_below(target), self.state.files
        folder = files.disk_folder if target.pieces and target.pieces[0].known else ""
        if not name and "$" not in (place := files.path(target.text)):
            name = place  # `$PWD/name`
        disk = partial(self.on_disk, folder, name, line)
        text = files.text(target.text, disk) if set_by_user(name) is None else None
        return disk() if text is None else text

    def on_disk(self, folder: str, name: str, line: int) -> Value | None:
        """Return the text of a file on disk, in the folder that the script is in; None without one."""
        names = [name]
        if folder and name[:1] not in ("", "/", "~"):
            # Above the folder that the script starts in, or in the script's own, the start is a guess.
            names = [f"{folder}/{name}", *names][: 1 + folder.startswith(".")]
        for place in names if name.strip("/") else ():
            if (text := self.open_file(place, line)) is not None:
                return Value((Piece(text, line),) if text else ())
        return None

    # Paths.

    def join(self, states: Iterable[State], causes: frozenset[Cause], line: int) -> None:
        """Continue after several paths, of which the run takes one."""
        every = list(states)
        for state in every:
            if state.flow == "exit":
                self.exits.setdefault(state.exit_line, causes)
        going = [state for state in every if not state.flow] or [s for s in every if s.flow != "exit"] or every
        aside = [state for state in every if state.flow not in ("exit", going[0].flow)]
        self.left += [(state, causes) for state in aside]
        going = [state for state in going if state.flow == going[0].flow]
        merged = going[0].fork()
        differing = _differences(merged.variables, [state.variables for state in going[1:]])
        charge(ENTRY_WORK * 4 * len(going) * len(differing))
        contents = {name: self._merged(name, going, causes, line) for name in differing}
        if contents:
            merged.changeable().update(contents)
        merged.files = bash.joined_files([state.files for state in going], causes, line)
        merged.exported = _joined_marks([state.exported for state in going], causes)
        merged.options = frozenset.intersection(*(state.options for state in going))
        merged.functions = _joined_functions([state.functions for state in going])
        for state in going[1:]:
            if (state.positional, state.shifted) != (merged.positional, merged.shifted):
                opened = any(state.positional is not None for state in going)
                merged.positional, merged.shifted = (open_words(causes, line) if opened else None), 0
        self.state = merged

    def _merged(self, name: str, states: list[State], causes: frozenset[Cause], line: int) -> Content:
        contents: list[Content] = []
        for state in states:
            self.state = state
            contents.append(self.lookup(name, line))
        if all(same_content(contents[0], other) for other in contents[1:]):
            return next((content for content in contents if content is not None), None)
        values = [content if isinstance(content, Value) else words(items_of(content).values()) for content in contents]
        if (setting := self.preset(name, line)) is not None:
            return setting
        return bash.one_of(values, f"${name}", next((value.line for value in values if value.line), line), causes)

    def aside(self) -> tuple[list[tuple[State, frozenset[Cause]]], tuple[frozenset[Cause], ...]]:
        """Put the paths aside that left a function or loop, while another one is followed; return what `back` takes."""
        outer = self.left, self.conditions
        if self.left:
            self.conditions = (*self.conditions, self._gone())
        self.left = []
        return outer

    def back(self, outer: tuple[list[tuple[State, frozenset[Cause]]], tuple[frozenset[Cause], ...]]) -> None:
        """Continue beside the paths that were put aside."""
        self.left, self.conditions = outer

    def _gone(self) -> frozenset[Cause]:
        """Return what decides whether this path has left the function or loop."""
        return frozenset().union(*(causes for _, causes in self.left))

    @property
    def around(self) -> frozenset[Cause]:
        """What decides whether the present command runs."""
        return self._gone().union(*self.conditions)

    def ends(self, line: int) -> None:
        """End the script here."""
        self.state.flow, self.state.exit_line = "exit", line

    def rejoin(self, flow: Flow, line: int) -> frozenset[Cause]:
        """Continue with the paths that left this function, loop or round by `flow` too; return what they depend on."""
        left = [path for path in self.left if path[0].flow == flow and path[0].levels == 1]
        every = frozenset[Cause]().union(*(causes for _, causes in left))
        if left:
            self.left = [path for path in self.left if path[0].flow != flow or path[0].levels != 1]
            for state, _ in left:
                state.flow = ""
            self.join([self.state, *(state for state, _ in left)], every, line)
        return every


def maybe(name: str, content: Content, causes: frozenset[Cause]) -> Content:
    """Return what a variable is to commands that only some paths export it to."""
    if not causes or not isinstance(content, Value) or not content.known:
        return content
    return bash.one_of([content, EMPTY], f"${name}", content.line, causes)


def _differences(first: Mapping[str, Content], others: Sequence[Mapping[str, Content]]) -> dict[str, None]:
    """Return the variables that other paths have otherwise, in order."""
    names: dict[str, None] = {}
    for other in others:
        if other is not first:
            charge(_COPY_WORK * 2 * (len(first) + len(other)))
            names |= {n: None for n in (*first, *other) if first.get(n, names) is not other.get(n, names)}
    return names


def _joined_marks(every: Sequence[Marks], causes: frozenset[Cause]) -> Marks:
    """Return the marks after several paths; one that a path lacks depends on what decides between them."""
    if all(marks is every[0] or marks == every[0] for marks in every):
        return every[0]
    names = dict.fromkeys(name for marks in every for name in marks)
    return {name: frozenset().union(*(marks.get(name, causes) for marks in every)) for name in names}


def _joined_functions(every: Sequence[dict[str, Function | None]]) -> dict[str, Function | None]:
    """Return the functions after several paths; of one that is not the same on all, nobody knows which it is."""
    if all(functions is every[0] or functions == every[0] for functions in every):
        return every[0]
    names = dict.fromkeys(name for functions in every for name in functions)
    return {n: every[0].get(n) if all(other.get(n) == every[0].get(n) for other in every) else None for n in names}


def items_of(content: Content) -> Items:
    """Return a variable as an array's items; a text is a single one."""
    return {} if content is None else {"0": content} if isinstance(content, Value) else content


def listed(items: Iterable[Value]) -> Items:
    """Return words as the items of an array."""
    return {str(number): item for number, item in enumerate(items)}


def open_words(causes: frozenset[Cause], line: int) -> tuple[Value, ...]:
    """Return parameters of which nobody knows the number."""
    return (bash.hole("$@", line, causes).inserted(quoted=False),)


def words(items: Iterable[Value]) -> Value:
    """Return the items of an array as one value that splits between them."""
    space = Value((BREAK,))
    return bash.joined(part for number, item in enumerate(items) for part in ((space, item) if number else (item,)))


def same_content(left: Content, right: Content) -> bool:
    """Whether two variables have the same content; unset and empty are the same."""
    if isinstance(left, Value) and isinstance(right, Value):
        return bash.alike(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        charge(ENTRY_WORK * len(left))
        return [*left] == [*right] and all(bash.alike(item, right[key]) for key, item in left.items())
    return left is right or (left is None and right == EMPTY) or (right is None and left == EMPTY)
