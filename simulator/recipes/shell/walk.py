"""Control flow of a script: sequences, branches, choices and loops. Nothing is executed."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from simulator.budget import charge
from simulator.errors import InputError
from simulator.recipes.shell.choices import every_round
from simulator.recipes.shell.conditions import Truth, both, test_truth
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.machine import Machine
from simulator.recipes.shell.patterns import matches
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.state import Content, State, same_content
from simulator.recipes.shell.values import EMPTY, Cause, Value, could_match, hole, joined, open_causes
from simulator.recipes.shell.words import Words

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMUM_ROUNDS: Final = 256
_ENDLESS: Final = re.compile(r"true|:|\[\[?\s+(?:1|true)\s+\]\]?|\(\(\s*1\s*\)\)")
"""Conditions of loops that only their body ends."""
_STARTS: Final = re.compile(r"\.(?:py|sh|slurm|sbatch)\b|\b(?:train|sft|pretrain|finetune|torchrun|deepspeed)\b")
"""Parts of a loop's body that may start a training."""


_VARIABLE_WORK: Final = 10
"""Units of work per variable that is looked at."""
_FAILING: Final = frozenset(["command", "test_command", "subshell", "pipeline", "variable_assignment"])
"""Statements whose failure ends a script under `set -e`; in other ones a statement within does."""


@dataclass(slots=True)
class Stream:
    """Standard input of a command, or of all commands of a group: each takes what the one before left."""

    text: Value | None = None
    """Text that is left; None where it is not known."""


class Walk(ABC):
    """A walk over the statements of one source, which changes a machine's state."""

    statements: Mapping[str, Callable[[Node], Truth]]
    """What to do for each kind of statement."""

    def __init__(self, machine: Machine, source: Source, launches: list[TrainingCommand]) -> None:
        self.machine = machine
        self.source = source
        self.root = source.root
        self.launches = launches
        self.stdin = Stream()
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
        statements = list(nodes)
        for node, after in itertools.zip_longest(statements, statements[1:]):
            if self.machine.state.flow:
                break
            if node.is_named and node.type != "comment" and after is not None and after.type == "&":
                self._apart(partial(self.run, node))  # a shell of its own
                truth = True
            elif node.is_named and node.type != "comment":
                truth = self.run(node)
        return truth

    def run(self, node: Node) -> Truth:
        """Run one statement; return whether it would succeed."""
        machine, line, kind = self.machine, self._line(node), node.type
        machine.step(line, node.child_count)
        asked = len(machine.asked_unset)
        statement = self.statements.get(kind)
        is_test = kind in ("command", "compound_statement") and self.source.data.startswith(b"((", node.start_byte)
        if kind == "command" and is_test:
            machine.last = test_truth(machine, self.source, node)  # as older grammars have `(( ))`
        else:
            machine.last = statement(node) if statement else True
        fails = machine.last is False and (kind in _FAILING or is_test) and not machine.state.flow
        if fails and not machine.tested and (on := machine.state.options.get("e")) is not None:
            machine.ends(line, on)
            machine.ended_without.update(machine.asked_unset[asked:])
        return machine.last

    def tested(self, run: Callable[[], Truth]) -> Truth:
        """Follow a condition: commands in it may fail under `set -e`."""
        self.machine.tested += 1
        truth = run()
        self.machine.tested -= 1
        return truth

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
        """Follow what runs in a shell of its own."""
        machine, before, aside = self.machine, self.machine.state, self.machine.aside()
        machine.state = before.fork()
        machine.state.trap = None
        truth = run()
        self.end()
        before.files = machine.state.files.copy(before.files.folder, before.files.stack)
        machine.state = before
        machine.back(aside)
        return truth

    def own_shell(self, run: Callable[[], Truth]) -> Truth:
        """Follow what a shell runs that is started anew."""
        outer, self.machine.tested = self.machine.tested, 0
        truth = run()
        self.end()
        self.machine.tested = outer
        return truth

    def end(self) -> None:
        """Follow what a shell runs as it ends."""
        state = self.machine.state
        flow, line, text = state.flow, state.exit_line, state.trap
        if text is not None:
            state.trap, state.flow = None, ""
            self.evaluate(text, text.line)
            self.machine.state.flow, self.machine.state.exit_line = flow, line

    def _some_rounds(self, run: Callable[[], bool], causes: frozenset[Cause], line: int) -> Truth:
        """Follow a loop of nobody knows how many rounds: what a second round changes has no known value."""

        def rounds() -> None:
            before, start = self.machine.state.snapshot(), len(self.launches)
            if run():
                self._unsettle(run, before, start, causes, line)

        return self._branches((rounds, lambda: True), causes, line)

    def _unsettle(
        self, run: Callable[[], bool], before: Mapping[str, Content], start: int, causes: frozenset[Cause], line: int
    ) -> None:
        """After a round, forget what another one would change; its launches, from `start` on, stand for every round.

        Another round begins with open values of all that the first changed; what it leaves as the first did is known.
        """
        machine, end, first = self.machine, len(self.launches), self.machine.state
        changed = _changed(before, first.variables)
        more = set(changed)
        while more:
            left, machine.left = machine.left, []
            machine.state = first.fork()
            for name in sorted(changed):
                machine.assign(name, hole(f"${name}", line, causes), line)
            opened = machine.state.snapshot()
            run()
            second, machine.state, machine.left = machine.state, first, left
            more = _changed(opened, second.variables) - changed
            changed |= more
            self.launches[start:] = every_round(self.launches[start:end], self.launches[end:], causes)
            end = len(self.launches)
        for name in sorted(changed):
            if not same_content(first.variables.get(name), second.variables.get(name)):
                machine.assign(name, hole(f"${name}", line, causes), line)

    # Choices and loops.

    def _case(self, node: Node) -> Truth:
        subject = self._words.value(node.named_children[0])
        return self._case_items(subject, [child for child in node.children if child.type == "case_item"], node)

    def _case_items(self, subject: Value, items: Sequence[Node], node: Node) -> Truth:
        """Follow the items of `case` that the subject may match."""
        possible: list[int] = []
        own = Cause(self._line(node), f"case {subject.text[:60]}")
        certain, causes = False, subject.causes | {own}
        for number, item in enumerate(items):
            patterns = [joined(map(self._words.pattern, choice)) for choice in _choices(item)]
            causes = causes.union(*(pattern.causes for pattern in patterns))
            answers = [self._matches(subject, pattern) for pattern in patterns]
            if any(answer is not False for answer in answers):
                possible.append(number)
            if certain := any(answer is True for answer in answers):
                break
        paths: list[Callable[[], Truth]] = [
            lambda number=number: self._case_body(subject, items, number, node)  # type: ignore[misc]
            for number in possible
        ]
        if certain and len(paths) == 1:
            return paths[0]()
        if not paths:
            return True
        if not certain:
            paths.append(lambda: True)
        return self._branches(paths, causes - {own} or causes, self._line(node))

    def _matches(self, subject: Value, value: Value) -> bool | None:
        if not value.known:
            return None
        if value.text == "*" and not value.pieces[0].quoted:
            return True
        if subject.known:
            return matches(subject.text, value, self.machine.file)
        return None if could_match(subject, value) else False

    def _case_body(self, subject: Value, items: Sequence[Node], number: int, node: Node) -> Truth:
        """Follow an item, and after `;&` the next one, after `;;&` those of the next that match."""
        item = items[number]
        start = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
        truth = self.all(item.children[start + 1 :])
        end = item.children[-1].type
        if self.machine.state.flow or end not in (";&", ";;&") or number + 1 == len(items):
            return truth
        if end == ";&":
            return self._case_body(subject, items, number + 1, node)
        return self._case_items(subject, items[number + 1 :], node)

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
        if causes := open_causes(values):

            def once() -> bool:
                self.machine.assign(name, hole(f"${name}", line, causes), line)
                return self._body(body)

            if not self._over_arguments(causes):
                return self._some_rounds(once, causes, line)
            values = [value for value in values if not value.open]
            if not values:
                return self._unasked(once, body, causes)
        for value in values:
            self.machine.assign(name, value, line)
            if not self._body(body):
                break
        return True

    def _body(self, body: Node) -> bool:
        """Run one round of a loop; return whether another may follow."""
        self.machine.round = self.all(body.children)
        state = self.machine.state
        if state.flow == "continue" and state.levels == 1:
            state.flow = ""
        self.machine.rejoin("continue", self._line(body))
        state = self.machine.state
        if state.flow in ("break", "continue"):
            state.flow, state.levels = (state.flow, state.levels - 1) if state.levels > 1 else ("", 1)
            return False
        return not state.flow

    def _round(self, body: Node, after: Callable[[], object]) -> bool:
        """Run one round of a loop and what decides or prepares the next; return whether that may follow."""
        again = self._body(body)
        if again:
            after()
        return again

    def loop(self, node: Node, follow: Callable[[Node], Truth]) -> Truth:
        """Follow a loop, and continue with the paths that break out of it too."""
        machine = self.machine
        left, conditions = machine.aside()
        outer, machine.round = machine.round, True
        truth = both(follow(node), machine.round)
        machine.round = outer
        machine.rejoin("break", self._line(node))
        for state, _ in machine.left:
            state.levels = max(state.levels - 1, 1)
        machine.back((left + machine.left, conditions))
        return truth

    def is_endless(self, node: Node) -> bool:
        """Whether only the body of a `while` loop ends it."""
        return _ENDLESS.fullmatch(self.source.raw(node.named_children[0])) is not None

    def _while(self, node: Node) -> Truth:
        line, machine, body = self._line(node), self.machine, node.named_children[-1]
        until = node.children[0].type == "until"
        endless = self.is_endless(node)
        condition = partial(self.tested, partial(self.all, node.children[1:-1]))
        for _ in range(_MAXIMUM_ROUNDS):
            truth = condition()
            if isinstance(truth, frozenset):
                if self._over_arguments(truth):
                    return True
                return self._some_rounds(lambda: self._round(body, condition), truth, line)
            before, left, start = machine.state.snapshot(), len(machine.left), len(self.launches)
            if truth == until or not self._body(body):
                return True
            if endless and len(machine.left) > left:
                self._unsettle(lambda: self._body(body), before, start, machine.left[-1][1], line)
                return True
            after = machine.state.variables
            if endless and len(after) == len(before) and all(same_content(before.get(n), after[n]) for n in after):
                break  # a watch loop: every round starts the same commands as the first
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

    def _unasked(self, run: Callable[[], Truth], body: Node, causes: frozenset[Cause]) -> Truth:
        """Follow a round over arguments that nobody gave, where it starts a program; what it sets is forgotten."""
        if _STARTS.search(self.source.raw(body)):
            outer, self.machine.conditions = self.machine.conditions, (*self.machine.conditions, causes)
            self._apart(run)
            self.machine.conditions = outer
        return True

    def _counted(self, node: Node) -> Truth:
        """Follow `for ((a; b; c))`."""
        line = self._line(node)
        body = node.named_children[-1]
        signs = [child for child in node.children if child.type in ("((", ";", "))")][:4]
        first, condition, step = ((left.end_byte, right.start_byte) for left, right in itertools.pairwise(signs))
        self._words.arithmetic_between(node, *first, line)
        after = partial(self._words.arithmetic_between, node, *step, line)
        for _ in range(_MAXIMUM_ROUNDS):
            self.machine.step(line)
            number = self._words.arithmetic_between(node, *condition, line)
            if not number.known:
                return self._some_rounds(lambda: self._round(body, after), number.causes, line)
            if number.text == "0" or not self._round(body, after):
                return True
        return self._endless(line)


def _changed(before: Mapping[str, Content], after: Mapping[str, Content]) -> set[str]:
    """Return the variables that have another content after a round."""
    charge(_VARIABLE_WORK * len(after))
    return {
        name
        for name, content in after.items()
        if (old := before.get(name)) is not content and not same_content(content, old)
    }


def _choices(item: Node) -> list[list[Node]]:
    """Return the patterns of a case item, each with its parts: `*"a"*` has three."""
    choices: list[list[Node]] = [[]]
    for child in item.children:
        if child.type == ")":
            break
        if child.type == "|":
            choices.append([])
        elif child.is_named and child.type != "comment":
            choices[-1].append(child)
    return [choice for choice in choices if choice]
