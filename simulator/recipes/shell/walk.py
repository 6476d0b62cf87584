"""Walk over a script's statements: sequences, branches, loops, functions, assignments, redirections.

For `if [ $N -gt 1 ]; then A=--x; fi; torchrun t.py $A` it follows both branches, since only the run knows N, joins
their variables and hands the expanded words `torchrun t.py $A` to `shell.launch`.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from simulator.budget import charge
from simulator.errors import InputError, UndecidedError
from simulator.frameworks.values import Cause, TooLargeError
from simulator.recipes.shell import values as bash
from simulator.recipes.shell.assignments import Assignments, assigned_names
from simulator.recipes.shell.launch import TrainingCommand
from simulator.recipes.shell.source import HOLES, Source
from simulator.recipes.shell.state import MAXIMUM_CALLS, Content, Machine, State, items_of, open_words, same_content
from simulator.recipes.shell.values import EMPTY, Piece, Truth, Value
from simulator.recipes.shell.words import Words, matches, test_truth

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMUM_ROUNDS: Final = 256
_VARIABLE_WORK: Final = 10  # units of work per variable that is looked at
_ENDLESS: Final = re.compile(r"true|:|\[\[?\s+(?:1|true)\s+\]\]?|\(\(\s*1\s*\)\)")
"""Conditions of loops that only their body ends."""
_LAUNCHES: Final = re.compile(
    r"(?<![\w-])(?:torchrun|deepspeed|msrun|accelerate|python[0-9.]*|[\w-]+cli|swift|megatron|composer)(?![\w-])"
    r"|\.(?:py|sh|slurm|sbatch)(?!\w)"
)  # parts of a command's text that start a training
_SCRIPT: Final = re.compile(r"\.py(?!\w)|(?<!\S)-m(?!\S)")  # the end of a launcher's own words
_DEEPEST_CHOICE: Final = 4  # most nested choices within one text
_FAILING: Final = frozenset(["command", "test_command", "subshell", "pipeline", "variable_assignment"])
"""Statements whose failure ends a script under `set -e`; in other ones a statement within does."""
_REDIRECTS: Final = ("file_redirect", "heredoc_redirect", "herestring_redirect")
_OUTPUTS: Final = frozenset([">", ">|", ">>", "&>", "&>>", ">&"])
_STREAM: Final = re.compile(r"\d+\Z|-\Z")
_SPEAKING: Final = frozenset(["echo", "cat", "expr", "pwd"])  # commands whose output in `$( )` is read
RunCommand = Callable[["Walk", list[Value], int], Truth]
"""Follows the words of a command on a line; returns whether it would succeed."""


class Walk:
    """A walk over the statements of one source, which changes a machine's state and collects launches."""

    def __init__(self, machine: Machine, source: Source, launches: list[TrainingCommand], command: RunCommand) -> None:
        """`command` follows a command that is none of the script's functions."""
        self.machine = machine
        self.source = source
        self.launches = launches
        self.command = command
        self.words = Words(machine, source)
        self._assignments = Assignments(machine, source, self.words)
        self.stdin: Value | None = None
        """Text that the present command reads; None where it is not known."""
        self._behind: list[Node] = []
        """Words of the current command that follow a redirection."""

    def inner(self, source: Source) -> Walk:
        """Return a walk over another text with the same state, launches and input."""
        walk = Walk(self.machine, source, self.launches, self.command)
        walk.stdin = self.stdin
        return walk

    # Sequences.

    def all(self, nodes: Iterable[Node]) -> Truth:
        """Run statements until one leaves the sequence; return the last one's truth."""
        truth: Truth = True
        statements = list(nodes)
        for node, after in itertools.zip_longest(statements, statements[1:]):
            if self.machine.state.flow:
                break
            if node.is_named and node.type != "comment" and after is not None and after.type == "&":
                self.apart(partial(self.run, node))  # a shell of its own
                truth = True
            elif node.is_named and node.type != "comment":
                truth = self.run(node)
        return truth

    def whole(self) -> Truth:
        """Run all statements of the source."""
        return self.all(self.source.root.children)

    def run(self, node: Node) -> Truth:
        """Run one statement; return whether it would succeed."""
        machine, line, kind = self.machine, self._line(node), node.type
        machine.step(line, node.child_count)
        unset = len(machine.read_as_unset)
        statement = self._STATEMENTS.get(kind)
        is_test = kind in ("command", "compound_statement") and self.source.data.startswith(b"((", node.start_byte)
        if kind == "command" and is_test:
            machine.last = test_truth(machine, self.source, node)  # as older grammars have `(( ))`
        else:
            machine.last = statement(self, node) if statement else True
        fails = machine.last is False and (kind in _FAILING or is_test) and not machine.state.flow
        if fails and not machine.state.tested and "e" in machine.state.options:
            machine.ends(line)
            machine.ended_without.update(machine.read_as_unset[unset:])
        return machine.last

    def _each(self, node: Node) -> Truth:
        return self.all(node.children)

    def _compound(self, node: Node) -> Truth:
        if node.children and node.children[0].type == "((":
            return test_truth(self.machine, self.source, node)
        return self.all(node.children)

    def _tested(self, run: Callable[[], Truth]) -> Truth:
        """Follow a condition: commands in it may fail under `set -e`."""
        self.machine.state.tested += 1
        truth = run()
        self.machine.state.tested -= 1
        return truth

    def _line(self, node: Node) -> int:
        return self.source.line(node.start_byte)

    def apart(self, run: Callable[[], Truth]) -> Truth:
        """Follow what runs in a shell of its own: what it sets stays inside, files remain."""
        machine, before, aside = self.machine, self.machine.state, self.machine.aside()
        machine.state = before.fork()
        truth = run()
        before.files = machine.state.files.copy(before.files.folder)
        machine.state = before
        machine.back(aside)
        return truth

    # Branches.

    def branches(self, paths: Sequence[Callable[[], object]], causes: frozenset[Cause], line: int) -> Truth:
        """Follow several paths, of which the run takes one."""
        start, outer = self.machine.state, self.machine.conditions
        states: list[State] = []
        self.machine.conditions = (*outer, causes)
        for path in paths:
            self.machine.state = start.fork()
            path()
            states.append(self.machine.state)
        self.machine.conditions = outer
        self.machine.join(states, causes, line)
        return causes

    def _guarded(self, unset: int, run: Callable[[], Truth]) -> Truth:
        """Run statements after a condition that holds; `unset` is the number of unset variables read before it."""
        names = self.machine.read_as_unset[unset:]
        truth = run()
        if self.machine.state.flow == "exit":
            self.machine.ended_without.update(names)
        return truth

    def _choice(self, node: Node, children: Sequence[Node]) -> Truth:
        """Follow `if`, or an `elif` with the branches after it."""
        then = next(i for i, child in enumerate(children) if child.type == "then")
        tails = [i for i, child in enumerate(children) if child.type in ("elif_clause", "else_clause", "fi")]
        end = tails[0] if tails else len(children)
        unset = len(self.machine.read_as_unset)
        truth = self._tested(partial(self.all, children[1:then]))
        body, rest = children[then + 1 : end], children[end:]
        if isinstance(truth, bool):
            return self._guarded(unset, lambda: self.all(body) if truth else self._otherwise(rest))
        return self.branches((partial(self.all, body), partial(self._otherwise, rest)), truth, self._line(node))

    def _otherwise(self, rest: Sequence[Node]) -> Truth:
        """Follow the branches after a condition that does not hold."""
        if rest and rest[0].type == "elif_clause":
            return self._choice(rest[0], [*rest[0].children, *rest[1:]])
        return self.all(rest[:1] if rest and rest[0].type == "else_clause" else ())

    def _list(self, node: Node, last: Callable[[], Truth] | None = None) -> Truth:
        """Follow `a && b`, `a || b`, or statements in a row; `last` follows the last of them, else it is just run."""
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in ("&&", "||", ";", "&")), ";")
        unset = len(self.machine.read_as_unset)
        truth = self._tested(partial(self.run, left)) if operator in ("&&", "||") else self.run(left)
        return self._then(truth, operator, last or partial(self.run, right), node, unset)

    def _then(self, truth: Truth, operator: str, last: Callable[[], Truth], node: Node, unset: int) -> Truth:
        """Follow what stands after `&&`, `||` or `;`, by the truth of what stands before it."""
        if self.machine.state.flow or operator not in ("&&", "||"):
            return truth if self.machine.state.flow else last()
        if isinstance(truth, bool):
            return self._guarded(unset, last) if truth == (operator == "&&") else truth
        truths: list[Truth] = []
        self.branches((lambda: truths.append(last()), lambda: True), truth, self._line(node))
        if truths and truths[0] is (operator == "||"):
            return truths[0]  # `x || true` and `x && false`
        return truth | truths[0] if truths and isinstance(truths[0], frozenset) else truth

    def _case(self, node: Node) -> Truth:
        """Follow the items of `case` that the subject may match."""
        subject = self.words.value(node.named_children[0])
        items = [child for child in node.children if child.type == "case_item"]
        possible: list[int] = []
        itself = Cause(self._line(node), f"case {subject.text[:60]}")
        certain, causes = False, subject.causes | {itself}
        for number, item in enumerate(items):
            patterns = [bash.joined(map(self.words.pattern, pattern)) for pattern in _patterns(item)]
            causes = causes.union(*(pattern.causes for pattern in patterns))
            answers = [self._matches(subject, pattern) for pattern in patterns]
            if any(answer is not False for answer in answers):
                possible.append(number)
            if certain := any(answer is True for answer in answers):
                break
        paths: list[Callable[[], Truth]] = [partial(self._case_body, items[n]) for n in possible]
        if certain and len(paths) == 1:
            return paths[0]()
        if not paths:
            return True
        if not certain:
            paths.append(lambda: True)
        return self.branches(paths, causes - {itself} or causes, self._line(node))

    def _matches(self, subject: Value, pattern: Value) -> bool | None:
        if not pattern.known:
            return None
        if pattern.text == "*" and not pattern.pieces[0].quoted:
            return True
        return matches(subject.text, pattern, self.machine.file) if subject.known else None

    def _case_body(self, item: Node) -> Truth:
        start = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
        truth = self.all(item.children[start + 1 :])
        if not self.machine.state.flow and item.children[-1].type in (";&", ";;&"):
            self.machine.may_set_any(";&", (), self._line(item))  # the items behind it are not followed
        return truth

    # Loops.

    def _for(self, node: Node) -> Truth:
        name = self.source.raw(node.named_children[0])
        line = self._line(node)
        body = node.named_children[-1]
        values = [field for item in node.named_children[1:-1] for field in self.words.fields(item)]
        if not any(child.type == "in" for child in node.children):
            values = list(items_of(self.machine.lookup("@", line)).values())
        if len(values) > _MAXIMUM_ROUNDS:
            raise InputError(f"{self.machine.file}:{line}: a loop over more than {_MAXIMUM_ROUNDS} words")
        if causes := bash.open_causes(values):

            def once() -> bool:
                self.machine.assign(name, bash.hole(f"${name}", line, causes), line)
                return self._body(body)

            if not self._over_arguments(causes):
                return self._unknown_rounds(once, causes, line)
            values = [value for value in values if not value.open]
            if not values:
                # Nobody gave arguments: the round is followed where it starts a program, and what it sets is forgotten.
                if _LAUNCHES.search(self.source.raw(body)):
                    outer, self.machine.conditions = self.machine.conditions, (*self.machine.conditions, causes)
                    self.apart(once)
                    self.machine.conditions = outer
                return True
        for value in values:
            self.machine.assign(name, value, line)
            if not self._body(body):
                break
        return True

    def _counted(self, node: Node) -> Truth:
        """Follow `for ((a; b; c))`."""
        line = self._line(node)
        body = node.named_children[-1]
        signs = [child for child in node.children if child.type in ("((", ";", "))")][:4]
        first, condition, step = ((left.end_byte, right.start_byte) for left, right in itertools.pairwise(signs))
        self.words.arithmetic_between(node, *first, line)
        after = partial(self.words.arithmetic_between, node, *step, line)
        for _ in range(_MAXIMUM_ROUNDS):
            self.machine.step(line)
            number = self.words.arithmetic_between(node, *condition, line)
            if not number.known:
                return self._unknown_rounds(lambda: self._round(body, after), number.causes, line)
            if number.text == "0" or not self._round(body, after):
                return True
        return self._long_loop(line)

    def _while_loop(self, node: Node) -> Truth:
        """Follow `while` or `until`; equal launches of the rounds of an endless loop are merged."""
        start = len(self.launches)
        truth = self._loop(node, self._while)
        if self._is_endless(node):
            self.launches[start:] = _different(self.launches[start:])
        return truth

    def _while(self, node: Node) -> Truth:
        line, machine, body = self._line(node), self.machine, node.named_children[-1]
        until = node.children[0].type == "until"
        endless = self._is_endless(node)
        condition = partial(self._tested, partial(self.all, node.children[1:-1]))
        for _ in range(_MAXIMUM_ROUNDS):
            truth = condition()
            if isinstance(truth, frozenset):
                if self._over_arguments(truth):
                    return True
                return self._unknown_rounds(lambda: self._round(body, condition), truth, line)
            before, left, start = machine.state.snapshot(), len(machine.left), len(self.launches)
            if truth == until or not self._body(body):
                return True
            if endless and len(machine.left) > left:
                self._unsettle(lambda: self._body(body), before, start, machine.left[-1][1], line)
                return True
            after = machine.state.variables
            if endless and len(after) == len(before) and all(same_content(before.get(n), after[n]) for n in after):
                break  # a watch loop: every round starts the same commands as the first
        return self._long_loop(line)

    def _is_endless(self, node: Node) -> bool:
        """Whether only the body of a `while` loop ends it."""
        return _ENDLESS.fullmatch(self.source.raw(node.named_children[0])) is not None

    def _long_loop(self, line: int) -> Truth:
        """Remark a loop that has not ended after many rounds, and leave it."""
        remark = "a loop of many rounds, or without an end: taken to end after some"
        self.machine.remark("long-loop", "note", remark, line)
        return True

    def _loop(self, node: Node, follow: Callable[[Node], Truth]) -> Truth:
        """Follow a loop, and continue with the paths that break out of it too."""
        machine = self.machine
        left, conditions = machine.aside()
        outer, machine.round = machine.round, True
        truth = bash.both(follow(node), machine.round)
        machine.round = outer
        machine.rejoin("break", self._line(node))
        for state, _ in machine.left:
            state.levels = max(state.levels - 1, 1)
        machine.back((left + machine.left, conditions))
        return truth

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

    def _unknown_rounds(self, run: Callable[[], bool], causes: frozenset[Cause], line: int) -> Truth:
        """Follow a loop of nobody knows how many rounds: what a second round changes has no known value."""

        def rounds() -> None:
            before, start, words = self.machine.state.snapshot(), len(self.launches), self.machine.state.positional
            if run():
                shifted = words is not None and self.machine.state.positional is not words
                self._unsettle(run, before, start, causes, line, shifted=shifted)

        return self.branches((rounds, lambda: True), causes, line)

    def _unsettle(  # noqa: PLR0913  a round, what was before it, and why nobody knows how many follow
        self,
        run: Callable[[], bool],
        before: Mapping[str, Content],
        start: int,
        causes: frozenset[Cause],
        line: int,
        *,
        shifted: bool = False,
    ) -> None:
        """After a round, forget what another one would change; its launches, from `start` on, stand for every round.

        Another round begins with open values of all that the first changed; what it leaves as the first did is known.
        """
        machine, first = self.machine, self.machine.state
        changed = _changed(before, first.variables)
        more = set(changed)
        if shifted:
            first.positional = open_words(causes, line)
        while more or shifted:
            shifted = False
            left, machine.left = machine.left, []
            machine.state = first.fork()
            for name in sorted(changed):
                machine.assign(name, bash.hole(f"${name}", line, causes), line)
            opened = machine.state.snapshot()
            del self.launches[start:]
            run()
            second, machine.state, machine.left = machine.state, first, left
            more = _changed(opened, second.variables) - changed
            changed |= more
        for name in sorted(changed):
            if not same_content(first.variables.get(name), second.variables.get(name)):
                machine.assign(name, bash.hole(f"${name}", line, causes), line)

    def _over_arguments(self, causes: frozenset[Cause]) -> bool:
        """Whether a loop iterates over the script's own arguments, which are not known."""
        over = all(cause.name in ("#", "@", "*", "1") or cause.name.startswith("getopts ") for cause in causes)
        for cause in causes if over else ():
            self.machine.assumed_unset.setdefault(cause.name, cause.line)
        return over

    # Functions and other texts.

    def _function(self, node: Node) -> Truth:
        name = self.source.raw(node.named_children[0])
        state = self.machine.state
        state.functions = {**state.functions, name: (self.source, node.named_children[-1])}
        return True

    def _call(self, name: str, arguments: Sequence[Value], line: int) -> Truth:
        """Follow a call of a function; one that a branch decides may set anything."""
        machine, function = self.machine, self.machine.state.functions[name]
        if function is None:
            machine.may_set_any(f"function {name}", (), line)
            machine.prints(None)
            return frozenset({Cause(line, name)})
        if name in machine.calls or len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: function {name[:40]} calls itself, or calls nest too deep")
        outer = machine.state.positional, machine.state.shifted
        machine.state.positional, machine.state.shifted = tuple(arguments), 0
        machine.shadowed.append({})
        truth = self._returning(name, partial(self.inner(function[0]).run, function[1]), line)
        for local, contents in machine.shadowed.pop().items():
            machine.state.changeable().pop(local, None)
            machine.state.changeable().update((local, content) for content in contents)
        machine.state.positional, machine.state.shifted = outer
        return truth

    def _returning(self, name: str, run: Callable[[], Truth], line: int) -> Truth:
        """Follow a function or an included file, which `return` leaves."""
        machine = self.machine
        machine.calls.append(name)
        aside = machine.aside()
        truth = run()
        machine.calls.pop()
        if machine.state.flow == "return":
            machine.state.flow = ""
        causes = machine.rejoin("return", line)
        machine.back(aside)
        return causes | (truth if isinstance(truth, frozenset) else frozenset()) if causes else truth

    def evaluate(self, text: Value, line: int) -> Truth:
        """Follow a text that the script built, as `eval` does: each that it may be where a branch decides."""
        machine = self.machine
        if choices := _choices(text):
            return self._chosen([partial(self.evaluate, choice, line) for choice in choices], text.causes, line)
        if len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: eval within eval, too deep")
        machine.calls.append("")
        truth = self.inner(Source(machine.file, text)).whole()
        machine.calls.pop()
        return truth

    def _chosen(self, paths: Sequence[Callable[[], Truth]], causes: frozenset[Cause], line: int) -> Truth:
        """Follow every text that a command may have; equal launches are merged."""
        machine, start = self.machine, len(self.launches)
        if machine.choices >= _DEEPEST_CHOICE:
            remark = f"more than {_DEEPEST_CHOICE} branches decide this command: --set the variables that they ask for"
            raise UndecidedError(f"{machine.file}:{line}: {remark}")
        machine.choices += 1
        truth = self.branches(paths, causes, line)
        machine.choices -= 1
        launches = self.launches[start:]
        different = _different(launches)
        if len(different) == 1 and len(launches) >= len(paths):  # only the conditions around the command decide
            different = [dataclasses.replace(different[0], conditions=machine.around)]
        self.launches[start:] = different
        return truth

    def include(self, text: Value) -> Truth:
        """Follow the text of another file, as `source` does."""
        source = Source(self.machine.file, text)
        self.machine.assigned |= assigned_names(source)
        return self._returning("", Walk(self.machine, source, self.launches, self.command).whole, text.line)

    # Output and input of commands.

    def output(self, source: Source, node: Node) -> Value | None:
        """Return the output of the command in `$( )`, without trailing line breaks; None where it is not known."""
        machine, walk = self.machine, Walk(self.machine, source, self.launches, self.command)
        statements = [child for child in node.named_children if child.type != "comment"]
        if not statements or not walk._speaks(statements[0]):
            return None
        before, shadowed = machine.state, len(machine.shadowed)
        aside, calls = machine.aside(), len(machine.calls)
        machine.state = before.fork()
        machine.state.options -= {"e"}
        text: Value | None = None
        with suppress(InputError, UndecidedError):
            machine.substituted, text = walk._captured(partial(walk.all, statements))
        before.files = machine.state.files.copy(before.files.folder)
        machine.state = before
        machine.back(aside)
        del machine.calls[calls:], machine.shadowed[shadowed:]
        return None if text is None or (text.pieces and not text.has_text) else _without_end(text)

    def _speaks(self, node: Node) -> bool:
        """Whether a statement begins with a command whose output is read."""
        while node.type in ("redirected_statement", "command", "pipeline") and node.named_children:
            node = node.named_children[0]
        name = self.source.raw(node)
        return name in _SPEAKING or name in self.machine.state.functions

    def _captured(self, run: Callable[[], Truth]) -> tuple[Truth, Value | None]:
        """Follow statements; return their truth and what they print, None where that is not known."""
        machine = self.machine
        outer = machine.output
        parts: list[Value | None] = []
        machine.output = len(machine.conditions), parts
        try:
            truth = run()
        finally:
            machine.output = outer
        with suppress(TooLargeError):
            return truth, None if None in parts else bash.joined(part for part in parts if part is not None)
        return truth, None

    def _piped(self, runs: Sequence[Callable[[], Truth]], node: Node) -> Truth:
        """Follow the commands of a pipeline, each in a shell of its own, which reads what the one before prints."""
        outer = self.stdin
        for child in node.named_children:  # a command may read a file before another empties it
            for target, _, _ in self._targets(child.named_children if child.type == "redirected_statement" else ()):
                self.machine.state.files.change_target(target, self._line(child))
        succeeds: Truth = True
        for run in runs[:-1]:
            truth, self.stdin = self._captured(partial(self.apart, run))
            succeeds = bash.both(succeeds, truth) if "pipefail" in self.machine.state.options else True
        truth = self.apart(runs[-1])
        self.stdin = outer
        return bash.both(succeeds, truth)

    def _redirected(self, node: Node) -> Truth:
        """Follow a command with redirections, which belong to the last one of `a && b > file`."""
        has_body = node.children[0].type not in _REDIRECTS
        return self._directed(node.children[0] if has_body else None, node.children[has_body:])

    def _directed(self, body: Node | None, parts: Sequence[Node]) -> Truth:
        """Follow a command with redirections and what a here document's line has behind them."""
        if body is not None and body.type == "list":
            return self._list(body, partial(self._directed, body.named_children[-1], parts))
        document = next((child for child in parts if child.type == "heredoc_redirect"), None)
        inner = document.children if document is not None else ()
        redirects = [child for child in parts if child.type == "file_redirect"]
        # `--master_addr <name> --port <port>`: marks of what is to be filled in.
        marked = any(left.end_byte == right.start_byte for left, right in itertools.pairwise(redirects))
        self._behind = [] if marked else [word for r in redirects for word in r.children[2 + r.children[0].is_named :]]
        follow = partial(self.all, [body] if body is not None else ())
        piped = body is not None and body.type == "pipeline"
        run = partial(self._with_redirects, follow, (*parts, *inner), is_pipeline=piped)
        pipe = next((child for child in inner if child.type == "pipeline"), None)
        if pipe is not None:
            run = partial(self._piped, [run, *(partial(self.run, stage) for stage in pipe.named_children)], pipe)
        behind = [child for child in inner if child.type in ("command", "list")]
        if not behind or document is None:
            return run()
        operator = next((child.type for child in inner if child.type in ("&&", "||")), "&&")
        truth = self._tested(run)
        return self._then(truth, operator, partial(self.all, behind), document, len(self.machine.read_as_unset))

    def _with_redirects(self, run: Callable[[], Truth], nodes: Sequence[Node], *, is_pipeline: bool = False) -> Truth:
        """Follow what reads from redirections and writes to them; the shell empties its files first."""
        outer, files, line = self.stdin, self.machine.state.files, self._line(nodes[0])
        targets = self._targets(nodes)
        before = [self.machine.text_of(target, line) if appends else EMPTY for target, appends, _ in targets]
        for target, appends, _ in targets:
            if is_pipeline:  # one of its commands may read the file before it is emptied
                files.change_target(target, line)
            elif not appends:
                files.write(target.text, EMPTY)
        for node in nodes:
            self.stdin = self._input(node, self.stdin)
        redirected = (self.source.raw(node) for node in nodes if node.type == "file_redirect")
        if any(not errors for _, _, errors in targets) or any(re.match(r"1?>|&>", text) for text in redirected):
            truth, text = self._captured(run)
        else:
            truth, text = run(), None
        for (target, _, errors), start in zip(targets, before, strict=True):
            files = self.machine.state.files
            files.change_target(target, line)
            with suppress(TooLargeError):
                if text is not None and start is not None and not errors:
                    files.write(target.text, bash.joined([start, text]))
        self.stdin = outer
        return truth

    def _input(self, node: Node, before: Value | None) -> Value | None:
        """Return the text that a command reads because of a redirection; the one before where it is none of input."""
        if node.type == "herestring_redirect":
            return bash.joined([self.words.value(node.named_children[-1]), bash.text_value("\n", self._line(node))])
        if node.type == "heredoc_redirect":
            parts = {child.type: child for child in node.named_children}
            body, start = parts.get("heredoc_body"), parts.get("heredoc_start")
            if body is None:
                return EMPTY
            quoted = start is not None and set(self.source.raw(start)) & set("'\"\\")
            text = self.words.heredoc(body, expands=not quoted)
            return _without_tabs(text) if node.children[0].type == "<<-" else text
        if node.type == "file_redirect" and self.source.raw(node)[:1] == "<" and len(node.children) > 1:
            target = self.words.value(node.children[1])
            return self.machine.text_of(target, self._line(node)) if node.children[0].type == "<" else None
        return before

    def _targets(self, redirects: Sequence[Node]) -> list[tuple[Value, bool, bool]]:
        """Return the files that redirections write, whether they append, and whether they hold errors alone."""
        targets = []
        for node in redirects:
            if node.type == "file_redirect" and len(node.children) > 1:
                operator, target = node.children[node.children[0].is_named :][:2]
                if operator.type not in _OUTPUTS:
                    continue
                words = self.words.fields(target)
                appends, errors = operator.type.endswith(">>"), self.source.raw(node)[0] in "023456789"
                joins = operator.type == ">&"  # `2>&1`, unless a file follows
                targets += [(word, appends, errors) for word in words if not joins or not _STREAM.match(word.text)]
        return targets

    # Commands.

    def _command(self, node: Node) -> Truth:
        redirects = [child for child in node.named_children if child.type in _REDIRECTS]
        return self._with_redirects(partial(self._simple, node), redirects) if redirects else self._simple(node)

    def _simple(self, node: Node) -> Truth:
        """Follow a simple command: its words are expanded first, then the assignments in front of it take place."""
        line = self._line(node)
        behind, self._behind = self._behind, []
        assignments = [child for child in node.children if child.type == "variable_assignment"]
        words = [
            child
            for child in (*node.children, *behind)
            if child.type == "$"
            or (
                child.is_named and "redirect" not in child.type and child.type not in ("comment", "variable_assignment")
            )
        ]
        argv = self.words.all_fields(words)
        if self.machine.state.flow:
            return False
        names = {self.source.raw(child.named_children[0]) for child in assignments} if argv else ()
        variables, exported = self.machine.state.part(names)
        for child in assignments:
            self._assignments.assign(child)
        if not argv:
            return True
        for name in names:
            self.machine.state.export(name)
        if HOLES.match(self.source.data[words[0].start_byte : words[0].start_byte + 4].decode("utf-8", "replace")):
            # A command of a text that was built, whose name the text leaves open, may be several statements.
            self.machine.may_set_any(argv[0].text, argv[0].causes, line)
        truth = self.called(argv, line)
        self.machine.state.restore(names, variables, exported)
        return truth

    def called(self, argv: list[Value], line: int) -> Truth:
        """Follow a simple command after expansion, which may leave nothing."""
        if not argv:
            return True
        name, first = argv[0].text, next(iter(argv[0].pieces), None)
        parts = first.alternatives if first is not None and first.text == name else ()
        if any(_LAUNCHES.search(part.text) for part in parts):
            choices = ([*self.words.split(part.inserted(quoted=False), line), *argv[1:]] for part in parts)
            return self._chosen([partial(self.called, choice, line) for choice in choices], argv[0].causes, line)
        if name in self.machine.state.functions:
            return self._call(name, argv[1:], line)
        return self.command(self, argv, line)

    # Of the class, since a walk that held its own methods would stay in memory until Python looks for such rings.
    _STATEMENTS: ClassVar[Mapping[str, Callable[[Walk, Node], Truth]]] = {
        "command": _command,
        "declaration_command": lambda self, node: self._assignments.declare(node),
        "variable_assignment": lambda self, node: self._assignments.assign(node),
        "unset_command": lambda self, node: self._assignments.unset(node),
        "if_statement": lambda self, node: self._choice(node, node.children),
        "case_statement": _case,
        "for_statement": lambda self, node: self._loop(node, self._for),
        "c_style_for_statement": lambda self, node: self._loop(node, self._counted),
        "while_statement": _while_loop,
        "function_definition": _function,
        "compound_statement": _compound,
        **dict.fromkeys(("variable_assignments", "do_group", "else_clause"), _each),
        "subshell": lambda self, node: self.apart(partial(self._each, node)),
        "pipeline": lambda self, node: self._piped([partial(self.run, child) for child in node.named_children], node),
        "list": _list,
        "redirected_statement": _redirected,
        "negated_command": lambda self, node: bash.negated(self._tested(partial(self.run, node.named_children[-1]))),
        "test_command": lambda self, node: test_truth(self.machine, self.source, node),
    }


def _changed(before: Mapping[str, Content], after: Mapping[str, Content]) -> set[str]:
    """Return the variables that have another content after a round."""
    charge(_VARIABLE_WORK * len(after))
    others = ((name, content, before.get(name)) for name, content in after.items())
    return {name for name, content, old in others if old is not content and not same_content(content, old)}


def _patterns(item: Node) -> list[list[Node]]:
    """Return the patterns of a case item, each with its parts: `*"a"*` has three."""
    patterns: list[list[Node]] = [[]]
    for child in item.children:
        if child.type == ")":
            break
        if child.type == "|":
            patterns.append([])
        elif child.is_named and child.type != "comment":
            patterns[-1].append(child)
    return [pattern for pattern in patterns if pattern]


def _choices(text: Value) -> list[Value]:
    """Return a text once per value of its first part that a branch decides; none without one.

    Only a part counts that may start a training or state options of a launcher, in front of the script that it starts.
    """
    for number, piece in enumerate(text.pieces):
        if piece.known and _SCRIPT.search(piece.text):
            break
        if any(_LAUNCHES.search(part.text) or part.text.lstrip()[:2] == "--" for part in piece.alternatives):
            parts = (part.inserted(quoted=piece.quoted).pieces for part in piece.alternatives)
            return [Value((*text.pieces[:number], *part, *text.pieces[number + 1 :])) for part in parts]
    return []


def _different(launches: Iterable[TrainingCommand]) -> list[TrainingCommand]:
    by_content: dict[tuple[object, ...], TrainingCommand] = {}
    for launch in launches:
        by_content.setdefault(_content(launch), launch)
    return list(by_content.values())


def _content(launch: TrainingCommand) -> tuple[object, ...]:
    """Return what a launch starts, regardless of its lines and of its launcher's name."""
    options = tuple(sorted((name, value.text) for name, value in launch.options.items()))
    spread = tuple(sorted((name, value.text) for name, value in launch.spread.items()))
    # The words in front state the processes only where no launcher does.
    alone = (spread, launch.in_front) if launch.launcher == "python" else ()
    return launch.launcher, launch.script.text, tuple(word.text for word in launch.arguments), options, alone


def _without_tabs(value: Value) -> Value:
    """Return a here document without the tabs that begin its lines, as after `<<-`."""
    pieces: list[Piece] = []
    for piece in value.pieces:
        begins = not pieces or pieces[-1].text.endswith("\n")
        text = re.sub(r"(?<=\n)\t+", "", piece.text.lstrip("\t") if begins else piece.text)
        pieces.append(dataclasses.replace(piece, text=text) if piece.known else piece)
    return Value(tuple(pieces))


def _without_end(value: Value) -> Value:
    """Return the value without trailing line breaks."""
    pieces = list(value.pieces)
    while pieces and pieces[-1].known:
        last = pieces.pop()
        text = last.text.rstrip("\n")
        if text:
            pieces.append(Piece(text, last.line, quoted=last.quoted, splits=last.splits))
            break
    return Value(tuple(pieces))
