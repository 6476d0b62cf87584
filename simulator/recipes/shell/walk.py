"""Control flow of a script: sequences, branches, choices and loops. Nothing is executed."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from simulator.errors import InputError
from simulator.recipes.shell.conditions import Truth, test_truth
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.machine import Machine, State
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import EMPTY, Cause, Value, could_match, hole
from simulator.recipes.shell.words import Words, matches

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMUM_ROUNDS: Final = 256
_ENDLESS: Final = re.compile(r"true|:|\[\[?\s+(?:1|true)\s+\]\]?|\(\(\s*1\s*\)\)")
"""Conditions of loops that only their body ends."""


class Walk(ABC):
    """A walk over the statements of one source, which changes a machine's state."""

    statements: Mapping[str, Callable[[Node], Truth]]
    """What to do for each kind of statement."""

    def __init__(self, machine: Machine, source: Source, launches: list[TrainingCommand]) -> None:
        self.machine = machine
        self.source = source
        self.root = source.root
        self.launches = launches
        self.stdin: Value | None = None
        """Standard input of the current command, where the script states it."""
        self.prefix: Mapping[str, Value] = {}
        """Assignments in front of the current command."""
        self._words = Words(machine, source)

    @abstractmethod
    def evaluate(self, text: Value, line: int) -> Truth:
        """Follow a text that the script built, as `eval` does."""

    @abstractmethod
    def include(self, text: Value) -> Truth:
        """Follow the text of another file, as `source` does."""

    def all(self, nodes: Iterable[Node]) -> Truth:
        """Run statements until one leaves the sequence; return the last one's truth."""
        truth: Truth = True
        for node in nodes:
            if self.machine.state.flow:
                break
            if node.is_named and node.type != "comment":
                truth = self.run(node)
        return truth

    def run(self, node: Node) -> Truth:
        """Run one statement; return whether it would succeed."""
        self.machine.step(self._line(node), node.child_count)
        if node.type == "command" and self.source.data.startswith(b"((", node.start_byte):
            return test_truth(self.machine, self.source, node)  # as older grammars have `(( ))`
        statement = self.statements.get(node.type)
        return statement(node) if statement else True

    def _line(self, node: Node) -> int:
        return self.source.line(node.start_byte)

    def _branches(self, paths: Sequence[Callable[[], object]], causes: frozenset[Cause], line: int) -> Truth:
        """Follow several paths, of which the run takes one."""
        start = self.machine.state
        outer = self.machine.conditions
        states: list[State] = []
        self.machine.conditions = (*outer, causes)
        for path in paths:
            self.machine.state = start.fork()
            path()
            states.append(self.machine.state)
        self.machine.conditions = outer
        self.machine.join(states, causes, line)
        return causes

    def _guarded(self, asked: int, run: Callable[[], Truth]) -> Truth:
        """Run statements after a condition that holds; `asked` is the number of unset variables read before it."""
        names = self.machine.asked_unset[asked:]
        truth = run()
        if self.machine.state.flow == "exit":
            self.machine.ended_without.update(names)
        return truth

    def _apart(self, run: Callable[[], Truth]) -> Truth:
        before = self.machine.state
        self.machine.state = before.fork()
        truth = run()
        before.files |= self.machine.state.files
        self.machine.state = before
        return truth

    # Choices and loops.

    def _case(self, node: Node) -> Truth:
        subject = self._words.value(node.named_children[0])
        items = [child for child in node.children if child.type == "case_item"]
        possible: list[Node] = []
        certain = False
        for item in items:
            matches = [self._matches(subject, choice) for choice in _choices(item)]
            if any(match is True for match in matches):
                possible.append(item)
                certain = True
                break
            if any(match is None for match in matches):
                possible.append(item)
        if certain and len(possible) == 1:
            return self._case_body(possible[0])
        if not possible:
            return True
        paths: list[Callable[[], object]] = [lambda item=item: self._case_body(item) for item in possible]  # type: ignore[misc]
        if not certain:
            paths.append(lambda: True)
        return self._branches(paths, subject.causes, self._line(node))

    def _matches(self, subject: Value, choice: Node) -> bool | None:
        value = self._words.value(choice)
        if not value.known:
            return None
        if value.text == "*":
            return True
        if subject.known:
            return matches(subject.text, value, self.machine.file)
        return None if could_match(subject, value) else False

    def _case_body(self, item: Node) -> Truth:
        start = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
        return self.all(item.children[start + 1 :])

    def _for(self, node: Node) -> Truth:
        name = self.source.raw(node.named_children[0])
        line = self._line(node)
        body = node.named_children[-1]
        values = [field for item in node.named_children[1:-1] for field in self._words.fields(item)]
        if not any(child.type == "in" for child in node.children):
            content = self.machine.lookup("@", line)
            values = list(content) if isinstance(content, tuple) else [EMPTY if content is None else content]
        if len(values) > _MAXIMUM_ROUNDS:
            raise InputError(f"{self.machine.file}:{line}: a loop over more than {_MAXIMUM_ROUNDS} words")
        if not all(value.known for value in values):
            causes = frozenset(cause for value in values for cause in value.causes)
            if self._over_arguments(causes):
                return True

            def once() -> None:
                self.machine.assign(name, hole(f"${name}", line, causes), line)
                self._body(body)

            return self._branches((once, lambda: True), causes, line)
        for value in values:
            self.machine.assign(name, value, line)
            if not self._body(body):
                break
        return True

    def _body(self, body: Node) -> bool:
        """Run one round of a loop; return whether another may follow."""
        self.all(body.children)
        state = self.machine.state
        if state.flow in ("break", "continue"):
            again = state.flow == "continue"
            state.flow = ""
            return again
        return not state.flow

    def _while(self, node: Node) -> Truth:
        body = node.named_children[-1]
        line = self._line(node)
        until = node.children[0].type == "until"
        # A watch loop: every round starts the same commands as the first.
        endless = _ENDLESS.fullmatch(self.source.raw(node.named_children[0])) is not None
        for _ in range(1 if endless else _MAXIMUM_ROUNDS):
            truth = self.all(node.children[1:-1])
            if isinstance(truth, frozenset):
                if self._over_arguments(truth):
                    return True
                return self._branches((lambda: self._body(body), lambda: True), truth, line)
            if truth == until or not self._body(body):
                return True
        return self._endless(line)

    def _endless(self, line: int) -> Truth:
        """Remark a loop that has not ended after many rounds, and leave it."""
        remark = "a loop of many rounds, or without an end: taken to end after some"
        self.machine.remark("long-loop", "note", remark, line)
        return True

    def _over_arguments(self, causes: frozenset[Cause]) -> bool:
        """Whether a loop iterates over the script's own arguments, which are not known."""
        over = all(cause.name in ("#", "@", "*", "1") or cause.name.startswith("getopts ") for cause in causes)
        for cause in causes if over else ():
            self.machine.assumed_unset.setdefault(cause.name, cause.line)
        return over

    def _counted(self, node: Node) -> Truth:
        """Follow `for ((a; b; c))`."""
        line = self._line(node)
        body = node.named_children[-1]
        signs = [child for child in node.children if child.type in ("((", ";", "))")][:4]
        first, condition, step = ((left.end_byte, right.start_byte) for left, right in itertools.pairwise(signs))
        self._words.arithmetic_between(node, *first, line)
        for _ in range(_MAXIMUM_ROUNDS):
            self.machine.step(line)
            number = self._words.arithmetic_between(node, *condition, line)
            if not number.known:
                return self._branches((lambda: self._body(body), lambda: True), number.causes, line)
            if number.text == "0" or not self._body(body):
                return True
            self._words.arithmetic_between(node, *step, line)
        return self._endless(line)


def _choices(item: Node) -> list[Node]:
    """Return the patterns of a case item."""
    nodes = []
    for child in item.children:
        if child.type == ")":
            break
        if child.is_named and child.type != "comment":
            nodes.append(child)
    return nodes
