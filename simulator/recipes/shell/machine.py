"""The state of a script: variables, functions and files so far, and values from outside. Runs no command."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.errors import InputError
from simulator.question.origin import Place, Remark, Severity
from simulator.recipes.shell.example import Example
from simulator.recipes.shell.files import joined_files
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.state import (
    ENTRY_WORK,
    Content,
    Flow,
    NotFollowed,
    Output,
    State,
    differences,
    is_outside,
    joined_functions,
    joined_marks,
    open_words,
    same_content,
    words,
)
from simulator.recipes.shell.values import (
    BLANKS,
    EMPTY,
    Cause,
    Value,
    alike,
    definitely_filled,
    hole,
    one_of,
    open_causes,
    text_value,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MAXIMUM_STEPS: Final = 50_000
"""Most statements and expansions of one script."""
MAXIMUM_CALLS: Final = 12
"""Greatest depth of function calls and `eval`."""
_STEP_WORK: Final = 1000
"""Units of work of one step, beside its results."""
_MAXIMUM_REMARKS: Final = 100
_MOST_DIGITS: Final = 4
"""Most digits in the number of a parameter."""
_FROM_OUTSIDE: Final = re.compile(
    r"WORLD_SIZE|(LOCAL_|NODE_|GROUP_)?RANK|MASTER_(ADDR|PORT)|HOME|USER|PWD|PATH|HOSTNAME|(SLURM|PADDLE|PBS|TQ)_\w+"
)
"""Names that the run sets, even where the script assigns them on some path."""
_FLAGS: Final = re.compile(r"(?!EXTRA|MORE|OTHER|ADD|USER|CUSTOM|DIST|LAUNCH|TORCH|RUN)[A-Z]\w*_ARGS", re.ASCII)
"""Names of a script's own lists of flags; excluded are lists for its user or its launcher."""
_REMAINDERS: Final = ("MOE_ARGS",)
"""Lists of flags that scripts of dense models inherit unset from others; any other unset list is unknown."""
_OWN_FLAGS: Final = 3
"""Number of own lists of flags from which an unset one counts as such a remainder."""


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
        self.own_names: set[str] = set()
        self.exits: dict[int, frozenset[Cause]] = {}
        self.conditions: tuple[frozenset[Cause], ...] = ()
        self.calls: list[str] = []
        self.shadowed: list[dict[str, list[Content]]] = []  # before each function's local variables
        # Paths that left a function or a loop under a condition that only the run decides.
        self.left: list[tuple[State, frozenset[Cause]]] = []
        # Whether the last command, the last round of the present loop, and the last command in `$( )` succeeded.
        self.last: bool | frozenset[Cause] = True
        self.round: bool | frozenset[Cause] = True
        self.substituted: bool | frozenset[Cause] = True
        # Options `A`, `i`, `l`, `n`, `u` of declared variables, whose assignments mean more than their text.
        self.attributed: dict[str, str] = {}
        # Steps so far; conditions around the present command, within which no failure ends the script.
        self.steps = self.tested = 0
        # Current depth of nested choices of a command's text.
        self.choices = 0
        # How the current command distributes the processes that it starts.
        self.spread: Mapping[str, Value] = {}
        self._remarks: dict[Remark, None] = {}
        # Output of the commands; None where it is not captured.
        self.output: Output | None = None
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
        # Variables that were read as unset, in order.
        self.asked_unset: list[str] = []
        # Variables whose absence made the script end.
        self.ended_without: set[str] = set()
        # Lists whose items were set individually.
        self.keyed: set[str] = set()
        # Return the output of the command in a `$( )`; None where it is not known.
        self.capture: Callable[[Source, Node], Value | None] = lambda _source, _node: None
        # Texts of files that were read before, parsed.
        self.sources: dict[Value, Source] = {}
        self._by_number = self._stated_parameters()
        """Parameters that the user set individually; those after the last of them are unknown, not missing."""

    def _stated_parameters(self) -> tuple[Value, ...] | None:
        """Start with the parameters that the user or the example sets; return those set individually."""
        settings, example = self.settings, self.example
        settings_by_name = {
            int(n): text for n, text in settings.items() if n.isascii() and n.isdigit() and n[0] != "0" and len(n) < 4
        }
        self.used_settings |= {str(number) for number in settings_by_name}
        if example is not None:
            self.used_settings |= example.used_settings
            settings_by_name = {**example.words, **settings_by_name}
        if settings_by_name:
            self.state.positional = self._numbered_parameters(settings_by_name)
            return self.state.positional
        if "@" in settings:
            self.used_settings.add("@")
            self.state.positional = tuple(text_value(word, 0, quoted=True) for word in _split(settings["@"]))
        return None

    def _numbered_parameters(self, words: Mapping[int, str]) -> tuple[Value, ...]:
        """Return parameters by number; those without a word are unknown."""
        return tuple(
            text_value(words[n], 0) if n in words else hole(f"${n}", 0, [Cause(0, str(n))])
            for n in range(1, max(words) + 1)
        )

    @property
    def remarks(self) -> tuple[Remark, ...]:
        """Remarks on lines, without repetitions."""
        return tuple(self._remarks)

    def parsed(self, text: Value) -> Source:
        """Return the text of a file with its tree, which is kept where all of the text is known."""
        if not text.known:
            return Source(self.file, text)
        if text not in self.sources:
            self.sources[text] = Source(self.file, text)
        return self.sources[text]

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
        if self.output is None:
            return
        if text is None or self.left or len(self.conditions) != self.output.depth:
            self.output.whole = False
        else:
            self.output.parts.append(text)

    def preset(self, name: str, line: int) -> Value | None:
        """Return the value that the user, the environment or the scheduler sets for a name; None without one."""
        if name in self.settings:
            self.used_settings.add(name)
            return text_value(self.settings[name], line)
        return text_value(self.environment[name], line) if name in self.environment else self.scheduled.get(name)

    def lookup(self, name: str, line: int) -> Content:
        """Return the content of a variable or parameter; None where it is surely unset, a hole where unknown."""
        if name.isdigit() or name in ("#", "@", "*"):
            return self._parameter(name, line)
        if name in self.state.variables:
            return self.state.variables[name]
        setting = self.preset(name, line)
        return self._never_set(name, line) if setting is None else setting

    def _never_set(self, name: str, line: int) -> Content:
        """Return the content of a variable that nothing sets before."""
        if name in ("IFS", "OPTIND"):
            return text_value(BLANKS if name == "IFS" else "1", line)
        outside = not self.unread and name not in self.required
        if outside and name in self.own_names and "u" not in self.state.options and not _FROM_OUTSIDE.fullmatch(name):
            return None
        if outside and self._is_remainder(name):
            remark = (
                f"${name} is set nowhere in the script, beside other lists of flags: taken as nothing, as bash does"
            )
            self.remark("assumed-unset", "warning", remark, line, f"--set {name}=FLAGS")
            return None
        outside = outside and (len(name) > 1 or name.isalpha())
        return hole(f"${name}", line, [Cause(line, name)], filled=name in self.required, outside=outside)

    def _is_remainder(self, name: str) -> bool:
        """Whether an unset name is a list of flags that a script with lists of its own does not use."""
        if name not in _REMAINDERS:
            return False
        charge(ENTRY_WORK * len(self.own_names))
        return sum(_FLAGS.fullmatch(own) is not None for own in self.own_names) >= _OWN_FLAGS

    def _parameter(self, name: str, line: int) -> Content:
        parameters = self.state.positional
        if parameters is None:
            counted = name.isdigit() and name != "0" and len(name) <= _MOST_DIGITS
            shown = str(int(name) + self.state.shifted) if counted else name
            return self.preset(shown, line) or hole(f"${name}", line, [Cause(line, shown)], filled=name == "#")
        if name in ("@", "*"):
            return parameters
        end = int(name) if name != "#" and len(name) <= _MOST_DIGITS else None
        if name == "#" or open_causes(parameters, end):
            causes = open_causes(parameters, end)
            return hole(f"${name}", line, causes, filled=not end) if causes else text_value(str(len(parameters)), line)
        number = int(name) if len(name) <= _MOST_DIGITS else len(parameters) + 1
        if number == 0:
            return hole("$0", line, [Cause(line, "0")], filled=True)
        if number > len(parameters):
            return hole(f"${name}", line, [Cause(line, name)], outside=True) if parameters is self._by_number else None
        parameter = parameters[number - 1]
        return parameter if parameter.line else _placed(parameter, line)

    def unset(self, name: str, line: int) -> bool:
        """Whether to read a name as unset; assumptions are recorded."""
        content = self.lookup(name, line)
        if content is None:
            return True
        if isinstance(content, Value) and is_outside(content):
            self.assume_unset(content)
            return True
        # An unknown parameter: `${1:-4}` states its default.
        return name.isdigit() and isinstance(content, Value) and not content.known and self.state.positional is None

    def unbound(self, name: str, content: Content, line: int) -> None:
        """End the script where `set -u` does: at a variable that is surely not set."""
        if content is None and name not in ("@", "*") and (on := self.state.options.get("u")) is not None:
            self.ends(line, on)

    def leaves_out(self, value: Value) -> bool:
        """Whether a value is variables that are not set on the command line that starts the script."""
        names = {cause.name for cause in value.causes}
        return self.example is not None and is_outside(value) and not any(map(_FROM_OUTSIDE.fullmatch, names))

    def assume_unset(self, value: Value) -> None:
        """Record that a value from outside is read as unset."""
        for cause in value.causes:
            self.asked_unset.append(cause.name)
            self.assumed_unset.setdefault(cause.name, cause.line)

    def assign(self, name: str, content: Content, line: int) -> None:
        """Set a variable; the user's setting of that name replaces an unknown value."""
        if isinstance(content, Value) and not content.known and (setting := self.preset(name, line)) is not None:
            content = setting
        elif (letters := self.attributed.get(name, "A")) != "A" and not (letters == "i" and _is_number(content)):
            content = hole(f"${name}", line, [Cause(line, name)])
        if "a" in self.state.options:
            self.state.export(name, self.state.options["a"])
        self.state.own()[name] = content

    @property
    def separators(self) -> tuple[str, ...]:
        """Characters that separate words: IFS, or each text that it may have."""
        content = self.state.variables.get("IFS")
        if not isinstance(content, Value):
            return (BLANKS,)
        every = content.pieces[0].alternatives if len(content.pieces) == 1 and not content.known else (content,)
        if every and all(value.known for value in every):
            return tuple(value.text for value in every)
        return ("", BLANKS, BLANKS + string.punctuation)

    def may_be_set(self, line: int) -> None:
        """Make all known variables unknown, except paths, because a missing file may set them."""
        charge(ENTRY_WORK * len(self.state.variables))
        for name, content in list(self.state.variables.items()):
            if isinstance(content, Value) and content.known and "/" not in content.text:
                filled = definitely_filled(content)
                self.assign(name, hole(f"${name}", line, [Cause(line, name)], filled=filled), line)

    def elements(self, name: str) -> dict[str, Value]:
        """Return the items of a list that were set individually, by key."""
        if name not in self.keyed:
            return {}
        start = f"{name}["
        charge(ENTRY_WORK * len(self.state.variables))
        items = {
            key[len(start) : -1]: content
            for key, content in self.state.variables.items()
            if key.startswith(start) and isinstance(content, Value)
        }
        return dict(sorted(items.items(), key=lambda item: int(item[0]))) if all(map(str.isdecimal, items)) else items

    def assign_element(self, name: str, key: str, content: Value, line: int) -> None:
        """Set one item of a list."""
        items = self.state.variables.get(name)
        if isinstance(items, Value) and not items.known:
            return  # a list of which nobody knows the items
        number = int(key) if re.fullmatch(r"\d{1,6}", key, re.ASCII) else -1
        charge(ENTRY_WORK * len(items) if isinstance(items, tuple) else 0)
        if isinstance(items, tuple) and 0 <= number < len(items) + (name not in self.keyed):
            self.state.own()[name] = (*items[:number], content, *items[number + 1 :])
            return
        if not isinstance(items, tuple):
            self.assign(name, () if items is None else (items,), line)
        self.keyed.add(name)
        self.assign(f"{name}[{key}]", content, line)

    def unset_element(self, name: str, key: str, line: int) -> None:
        """Unset one item of a list; a list with a gap is not followed."""
        items = self.state.variables.get(name)
        if f"{name}[{key}]" in self.state.variables:
            del self.state.own()[f"{name}[{key}]"]
        elif isinstance(items, tuple) and items and name not in self.keyed and key in ("-1", str(len(items) - 1)):
            self.state.own()[name] = items[:-1]
        elif items:
            self.forget(name)
            self.assign(name, hole(f"${{{name}}}", line, [Cause(line, f"unset {name}[{key}]")]), line)

    def forget(self, name: str) -> None:
        """Drop the items of a list that were set individually."""
        for key in self.elements(name):
            del self.state.own()[f"{name}[{key}]"]

    def shift(self, count: int) -> None:
        """Drop parameters from the front."""
        if self.state.positional is None:
            self.state.shifted += count
        else:
            charge(len(self.state.positional))
            self.state.positional = self.state.positional[count:]

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
        differing = differences(merged.variables, [state.variables for state in going[1:]])
        charge(ENTRY_WORK * 4 * len(going) * len(differing))
        contents = {name: self._merged(name, going, causes, line) for name in differing}
        if contents:
            merged.own().update(contents)
        merged.files = joined_files([state.files for state in going], causes, line)
        merged.exported = joined_marks([state.exported for state in going], causes)
        merged.options = joined_marks([state.options for state in going], causes)
        merged.functions = joined_functions([state.functions for state in going])
        traps = [state.trap or EMPTY for state in going]
        if not all(alike(trap, traps[0]) for trap in traps):
            merged.trap = one_of(traps, "trap", line, causes)
        for state in going[1:]:
            if not same_content(state.positional, merged.positional) or state.shifted != merged.shifted:
                opened = any(state.positional is not None for state in going)
                merged.positional, merged.shifted = (open_words(causes, line) if opened else None), 0
        self.state = merged

    def aside(self) -> tuple[list[tuple[State, frozenset[Cause]]], tuple[frozenset[Cause], ...]]:
        """Put the paths aside that left a function or loop, while another one is followed; return what `back` takes."""
        outer = self.left, self.conditions
        if self.left:
            self.conditions = (*self.conditions, self.gone())
        self.left = []
        return outer

    def back(self, outer: tuple[list[tuple[State, frozenset[Cause]]], tuple[frozenset[Cause], ...]]) -> None:
        """Continue beside the paths that were put aside."""
        self.left, self.conditions = outer

    def gone(self) -> frozenset[Cause]:
        """Return what decides whether this path has left the function or loop."""
        return frozenset().union(*(causes for _, causes in self.left))

    @property
    def around(self) -> frozenset[Cause]:
        """What decides whether the present command runs."""
        return self.gone().union(*self.conditions)

    def ends(self, line: int, on: frozenset[Cause] = frozenset()) -> None:
        """End the script here; where only some paths do, it is taken to go on."""
        if on:
            self.exits.setdefault(line, on)
        else:
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

    def _merged(self, name: str, states: list[State], causes: frozenset[Cause], line: int) -> Content:
        contents: list[Content] = []
        for state in states:
            self.state = state
            contents.append(self.lookup(name, line))
        if all(same_content(contents[0], other) for other in contents[1:]):
            return contents[0]
        values = [content if isinstance(content, Value) else words(content) for content in contents]
        if (setting := self.preset(name, line)) is not None:
            return setting
        place = next((value.line for value in values if value.line), line)
        return one_of(values, f"${name}", place, causes)


def _is_number(content: Content) -> bool:
    return isinstance(content, Value) and re.fullmatch(r"0|-?[1-9]\d*", content.text, re.ASCII) is not None


def _split(text: str) -> list[str]:
    """Return the words of a command line."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _placed(value: Value, line: int) -> Value:
    return text_value(value.text, line) if value.known else hole(value.text, line, value.causes)
