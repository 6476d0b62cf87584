"""The state of a script at one point of one path: variables, functions, files and options. Runs no command."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from simulator.budget import charge
from simulator.recipes.shell.files import Files
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import BREAK, EMPTY, Cause, Value, alike, hole, joined, one_of

if TYPE_CHECKING:
    from tree_sitter import Node

ENTRY_WORK: Final = 50
"""Units of work per variable of a state that is copied or compared."""

Flow = Literal["", "exit", "return", "break", "continue"]
Content = Value | tuple[Value, ...] | None
"""Text of a variable, items of an array, or None for a name that was unset."""


_FORK_WORK: Final = 500
_COPY_WORK: Final = 10
"""Units of work per variable that is copied."""

Marks = dict[str, frozenset[Cause]]
"""Names, each with what decides whether it is meant; nothing where it surely is."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function's body and the source that defines it."""

    source: Source
    body: Node


@dataclass(frozen=True, slots=True)
class NotFollowed:
    """A script that another one starts and that was not followed to a training."""

    line: int
    """Line that starts it."""
    why: str
    """Why it was not followed, as the end of `starts a script`."""
    text: str = ""
    """Text of the script; empty where it is not available."""
    spread: bool = False
    """Whether it is started as several processes."""


@dataclass(slots=True)
class Output:
    """Output of commands so far."""

    depth: int
    """Number of conditions at the start; output under more of them is uncertain."""
    parts: list[Value] = field(default_factory=list)
    whole: bool = True
    """Whether every part is known."""


@dataclass(slots=True)
class State:
    """Variables at one point of one path.

    Paths share what none of them changes: variables and exports are copied before the first change, the other mappings
    replaced as a whole.
    """

    variables: dict[str, Content] = field(default_factory=dict)
    exported: Marks = field(default_factory=dict)
    """Variables that commands see which are started."""
    functions: dict[str, tuple[Function | None, ...]] = field(default_factory=dict)
    """Functions by name: several where a branch decides, among them None if it defines none."""
    files: Files = field(default_factory=Files)
    """Files as the script left them."""
    positional: tuple[Value, ...] | None = None
    """Positional parameters; None while they are the command line's unknown ones."""
    shifted: int = 0
    flow: Flow = ""
    exit_line: int = 0
    levels: int = 1
    """Loops that `break` or `continue` leaves."""
    options: Marks = field(default_factory=dict)
    """Options that `set` turned on: `a`, `e`, `u` and `pipefail`."""
    trap: Value | None = None
    """Text that runs as the shell ends, after `trap TEXT EXIT`."""

    is_shared: bool = False
    """Whether another state has the same mapping of variables."""
    shares_exports: bool = False

    def fork(self) -> State:
        """Return a copy for another path."""
        charge(_FORK_WORK)
        self.share()
        other = copy.copy(self)
        other.files = self.files.copy()
        return other

    def share(self) -> None:
        """Leave the present variables and exports alone in later changes."""
        self.is_shared = self.shares_exports = True

    def snapshot(self) -> dict[str, Content]:
        """Return the present variables, which later changes leave alone."""
        self.is_shared = True
        return self.variables

    def own(self) -> dict[str, Content]:
        """Return the variables for a change."""
        if self.is_shared:
            charge(_COPY_WORK * len(self.variables))
            self.variables, self.is_shared = dict(self.variables), False
        return self.variables

    def export(self, name: str, on: frozenset[Cause] = frozenset()) -> None:
        """Export a variable; `on` is what that depends on."""
        if self.exported.get(name) != on:
            self._own_exports()[name] = on

    def unexport(self, name: str) -> None:
        """Keep a variable from commands."""
        if name in self.exported:
            del self._own_exports()[name]

    def _own_exports(self) -> Marks:
        if self.shares_exports:
            charge(_COPY_WORK * len(self.exported))
            self.exported, self.shares_exports = dict(self.exported), False
        return self.exported

    def part(self, names: Iterable[str]) -> tuple[dict[str, Content], Marks]:
        """Return these variables as far as they are set, and which of them are exported."""
        variables = {name: self.variables[name] for name in names if name in self.variables}
        return variables, {name: self.exported[name] for name in names if name in self.exported}

    def restore(self, names: Iterable[str], variables: Mapping[str, Content], exported: Marks) -> None:
        """Set these variables as they were."""
        for name in names:
            self.own().pop(name, None)
            self.unexport(name)
        self.own().update(variables)
        for name, on in exported.items():
            self.export(name, on)

    def started(self, positional: tuple[Value, ...]) -> State:
        """Return the state of a shell that this one starts: its exported variables, functions and files."""
        other = self.fork()
        other.variables = {
            name: maybe(name, self.variables[name], causes)
            for name, causes in self.exported.items()
            if name in self.variables
        }
        other.is_shared = False
        other.positional, other.shifted, other.options, other.trap = positional, 0, {}, None
        return other


def maybe(name: str, content: Content, causes: frozenset[Cause]) -> Content:
    """Return what a variable is to commands that only some paths export it to."""
    if not causes or not isinstance(content, Value) or not content.known:
        return content
    return one_of([content, EMPTY], f"${name}", content.line, causes)


def differences(first: Mapping[str, Content], others: Sequence[Mapping[str, Content]]) -> dict[str, None]:
    """Return the variables that other paths have otherwise, in order."""
    names: dict[str, None] = {}
    for other in others:
        if other is not first:
            charge(_COPY_WORK * 2 * (len(first) + len(other)))
            names |= {name: None for name, content in first.items() if name not in other or other[name] is not content}
            names |= {name: None for name in other if name not in first}
    return names


def joined_marks(every: Sequence[Marks], causes: frozenset[Cause]) -> Marks:
    """Return the marks after several paths; one that a path lacks depends on what decides between them."""
    if all(marks is every[0] or marks == every[0] for marks in every):
        return every[0]
    names = dict.fromkeys(name for marks in every for name in marks)
    return {name: frozenset().union(*(marks.get(name, causes) for marks in every)) for name in names}


def joined_functions(
    every: Sequence[dict[str, tuple[Function | None, ...]]],
) -> dict[str, tuple[Function | None, ...]]:
    """Return the functions after several paths."""
    if all(functions is every[0] or functions == every[0] for functions in every):
        return every[0]
    names = dict.fromkeys(name for functions in every for name in functions)
    return {
        name: tuple(dict.fromkeys(each for functions in every for each in functions.get(name, (None,))))
        for name in names
    }


def items_of(content: Content) -> tuple[Value, ...]:
    """Return a variable as an array's items; a text is a single one."""
    return content if isinstance(content, tuple) else () if content is None else (content,)


def open_words(causes: frozenset[Cause], line: int) -> tuple[Value, ...]:
    """Return parameters of which nobody knows the number."""
    return (hole("$@", line, causes).inserted(quoted=False),)


def words(content: tuple[Value, ...] | None) -> Value:
    """Return an array's items as one value that splits between them."""
    space = Value((BREAK,))
    return joined(part for number, item in enumerate(content or ()) for part in ((space, item) if number else (item,)))


def is_outside(value: Value) -> bool:
    """Whether the value consists only of environment variables without a known value."""
    return bool(value.pieces) and all(piece.outside for piece in value.pieces)


def same_content(left: Content, right: Content) -> bool:
    """Whether two variables have the same content; unset and empty are the same."""
    if isinstance(left, Value) and isinstance(right, Value):
        return alike(left, right)
    if isinstance(left, tuple) and isinstance(right, tuple):
        charge(ENTRY_WORK * len(left))
        return len(left) == len(right) and all(map(alike, left, right))
    return left is right or (left is None and right == EMPTY) or (right is None and left == EMPTY)
