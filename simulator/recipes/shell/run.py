"""Walks a script's statements and collects the training runs it would start. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Final

from simulator.errors import InputError
from simulator.recipes.shell.builtins import BUILTINS, WITHOUT_EFFECT
from simulator.recipes.shell.conditions import Truth, negated, test_truth
from simulator.recipes.shell.heredocs import written_files
from simulator.recipes.shell.launch import Launch, find_launch
from simulator.recipes.shell.machine import MAXIMUM_CALLS, Function, Machine, State
from simulator.recipes.shell.source import Source, is_hole
from simulator.recipes.shell.values import (
    EMPTY,
    Cause,
    TooLargeError,
    Value,
    could_equal,
    hole,
    joined,
    text_value,
)
from simulator.recipes.shell.words import Words, pattern

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMUM_ROUNDS: Final = 256
_MAXIMUM_LAUNCHES: Final = 64
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Script:
    """What was read from a script."""

    launches: tuple[Launch, ...]
    assumed_unset: Mapping[str, int]
    """Variables of the environment read as not set, with the line that asked."""
    exits: Mapping[int, frozenset[Cause]]
    """Lines where the script may end early, and what that depends on."""
    exit_line: int
    """Line of the `exit` that every path reaches; 0 if there is none."""
    unused_settings: tuple[str, ...]


def read_script(text: str, file: str, settings: Mapping[str, str], environment: Mapping[str, str]) -> Script:
    """Read a shell script. Raises InputError for text that is none."""
    for name, value in (("the script", text), *settings.items(), *environment.items()):
        if any(is_hole(mark) for mark in value):
            raise InputError(f"{file}: private-use characters in {name[:40]}")
    machine = Machine(file, settings, environment)
    try:
        runner = Runner(machine, Source(file, text_value(text, 1)), [])
        machine.own_names = runner.assigned_names()
        runner.all(runner.root.children)
    except TooLargeError as error:
        raise InputError(f"{file}: a value outgrows every command line; not a launch script") from error
    except RecursionError as error:
        raise InputError(f"{file}: nested too deep for a launch script") from error
    return Script(
        launches=tuple(runner.launches),
        assumed_unset=machine.assumed_unset,
        exits=machine.exits,
        exit_line=machine.state.exit_line if machine.state.flow == "exit" else 0,
        unused_settings=tuple(sorted(set(settings) - machine.used_settings)),
    )


class Runner:
    """Statements of one source, over a machine's state."""

    def __init__(self, machine: Machine, source: Source, launches: list[Launch]) -> None:
        self.machine = machine
        self.source = source
        self.root = source.root
        self.launches = launches
        self._words = Words(machine, source)
        self._statements: Mapping[str, Callable[[Node], Truth]] = {
            "command": self._command,
            "declaration_command": self._declaration,
            "variable_assignment": self._assignment,
            "variable_assignments": self._each,
            "unset_command": self._unset,
            "if_statement": self._if,
            "case_statement": self._case,
            "for_statement": self._for,
            "c_style_for_statement": self._repeated,
            "while_statement": self._while,
            "function_definition": self._function,
            "compound_statement": self._compound,
            "do_group": self._each,
            "else_clause": self._each,
            "subshell": self._subshell,
            "pipeline": self._pipeline,
            "list": self._list,
            "redirected_statement": self._redirected,
            "negated_command": lambda node: negated(self.run(node.named_children[-1])),
            "test_command": lambda node: test_truth(self.machine, self.source, node),
        }

    def assigned_names(self) -> set[str]:
        """Names the script gives a value of its own somewhere: not `X=$X` and not `X=${X:-y}`."""
        found = set()
        cursor = [self.root]
        while cursor:
            node = cursor.pop()
            cursor.extend(node.named_children)
            if node.type in ("variable_assignment", "for_statement") and node.named_children:
                name = self.source.raw(node.named_children[0])
                rest = self.source.raw(node)[len(name) :]
                if not re.fullmatch(rf"""=["']?\$(\{{{re.escape(name)}\W.*|{re.escape(name)})["']?""", rest, re.DOTALL):
                    found.add(name)
        return found

    def all(self, nodes: Iterable[Node]) -> Truth:
        """Run statements until one leaves."""
        truth: Truth = True
        for node in nodes:
            if self.machine.state.flow:
                break
            if node.is_named and node.type != "comment":
                truth = self.run(node)
        return truth

    def run(self, node: Node) -> Truth:
        """Run one statement; whether it would succeed."""
        self.machine.step(self._line(node))
        if node.type == "command" and self.source.data.startswith(b"((", node.start_byte):
            return test_truth(self.machine, self.source, node)  # as older grammars have `(( ))`
        statement = self._statements.get(node.type)
        return statement(node) if statement else True

    def _line(self, node: Node) -> int:
        return self.source.line(node.start_byte)

    def _each(self, node: Node) -> Truth:
        return self.all(node.children)

    def _redirected(self, node: Node) -> Truth:
        """A command with redirections; what `cat` or `tee` writes from a here document is kept."""
        document = next((child for child in node.children if child.type == "heredoc_redirect"), None)
        if document is None:
            return self.all(node.children[:1])
        self.machine.state.files |= dict(written_files(node, document, self._words, self.source))
        truth = self.all(node.children[:1])
        return self.all(child for child in document.children if child.type in ("command", "list")) and truth

    # Assignments.

    def _assignment(self, node: Node) -> Truth:
        target, value = node.named_children[0], node.named_children[1:]
        line = self._line(node)
        appends = any(child.type == "+=" for child in node.children)
        if target.type == "subscript":
            name = self.source.raw(target.named_children[0])
            self.machine.assign(name, hole(f"${{{name}}}", line, [Cause(line, name)]), line)
            return True
        name = self.source.raw(target)
        old = self.machine.lookup(name, line) if appends else None
        if value and value[0].type == "array":
            items = tuple(field for item in value[0].named_children for field in self._fields(item))
            self.machine.assign(name, (*_items(old), *items), line)
            return True
        new = self._words.value(value[0]) if value else EMPTY
        if isinstance(old, tuple):
            first = joined([old[0], new]) if old else new
            self.machine.assign(name, (first, *old[1:]), line)
        else:
            self.machine.assign(name, joined([old, new]) if old is not None else new, line)
        return True

    def _declaration(self, node: Node) -> Truth:
        """`export`, `declare`, `local`, `readonly`, `typeset`."""
        exports = node.children[0].type == "export"
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child)
                name = self.source.raw(child.named_children[0])
            else:
                name = self.source.raw(child)
                exports = exports or name in ("-x", "-gx")
            if exports and _NAME.fullmatch(name):
                self.machine.state.exported.add(name)
        return True

    def _unset(self, node: Node) -> Truth:
        for child in node.named_children:
            name = self.source.raw(child)
            if _NAME.fullmatch(name):
                self.machine.state.variables[name] = None
                self.machine.state.exported.discard(name)
        return True

    # Branches.

    def _branches(self, paths: Sequence[Callable[[], object]], causes: frozenset[Cause], line: int) -> Truth:
        """Follow paths of which the run takes one."""
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

    def _if(self, node: Node) -> Truth:
        return self._choice(node, node.children)

    def _choice(self, node: Node, children: Sequence[Node]) -> Truth:
        """`if`, or an `elif` with what follows it."""
        then = next(i for i, child in enumerate(children) if child.type == "then")
        tails = [i for i, child in enumerate(children) if child.type in ("elif_clause", "else_clause", "fi")]
        end = tails[0] if tails else len(children)
        truth = self.all(children[1:then])
        rest = children[end:]
        if isinstance(truth, bool):
            return self.all(children[then + 1 : end]) if truth else self._otherwise(rest)
        paths = (lambda: self.all(children[then + 1 : end]), lambda: self._otherwise(rest))
        return self._branches(paths, truth, self._line(node))

    def _otherwise(self, rest: Sequence[Node]) -> Truth:
        """What follows when a condition does not hold."""
        if rest and rest[0].type == "elif_clause":
            return self._choice(rest[0], [*rest[0].children, *rest[1:]])
        return self.all(rest[:1] if rest and rest[0].type == "else_clause" else ())

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
        wild = any(not piece.quoted and set(piece.text) & set("*?[") for piece in value.pieces)
        if value.text == "*":
            return True
        if subject.known:
            return pattern(value, self.machine.file).match(subject.text) is not None
        return None if wild or could_equal(subject, value) else False

    def _case_body(self, item: Node) -> Truth:
        start = next((i for i, child in enumerate(item.children) if child.type == ")"), 0)
        return self.all(item.children[start + 1 :])

    # Loops.

    def _for(self, node: Node) -> Truth:
        name = self.source.raw(node.named_children[0])
        line = self._line(node)
        body = node.named_children[-1]
        values = [field for item in node.named_children[1:-1] for field in self._fields(item)]
        if not any(child.type == "in" for child in node.children):
            content = self.machine.lookup("@", line)
            values = list(content) if isinstance(content, tuple) else [EMPTY if content is None else content]
        if len(values) > _MAXIMUM_ROUNDS:
            raise InputError(f"{self.machine.file}:{line}: a loop over more than {_MAXIMUM_ROUNDS} words")
        if not all(value.known for value in values):
            causes = frozenset(cause for value in values for cause in value.causes)

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
        """One round; whether another may follow."""
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
        for _ in range(_MAXIMUM_ROUNDS):
            truth = self.all(node.children[1:-1])
            if isinstance(truth, frozenset):
                if all(_reads_arguments(cause) for cause in truth):
                    for cause in truth:
                        self.machine.assumed_unset.setdefault(cause.name, cause.line)
                    return True
                return self._branches((lambda: self._body(body), lambda: True), truth, line)
            if truth == until or not self._body(body):
                return True
        raise InputError(f"{self.machine.file}:{line}: a loop of more than {_MAXIMUM_ROUNDS} rounds")

    def _repeated(self, node: Node) -> Truth:
        """`for ((...))`: its body is read once, as it may run or not."""
        line = self._line(node)
        causes = frozenset({Cause(line, "for ((...))")})
        return self._branches((lambda: self._body(node.named_children[-1]), lambda: True), causes, line)

    # Groups.

    def _function(self, node: Node) -> Truth:
        self.machine.state.functions[self.source.raw(node.named_children[0])] = Function(
            self.source, node.named_children[-1]
        )
        return True

    def _compound(self, node: Node) -> Truth:
        if node.children and node.children[0].type == "((":
            return test_truth(self.machine, self.source, node)
        return self.all(node.children)

    def _subshell(self, node: Node) -> Truth:
        """A group whose assignments and exit stay inside."""
        return self._apart(lambda: self.all(node.children))

    def _apart(self, run: Callable[[], Truth]) -> Truth:
        before = self.machine.state
        self.machine.state = before.fork()
        truth = run()
        before.files |= self.machine.state.files
        self.machine.state = before
        return truth

    def _pipeline(self, node: Node) -> Truth:
        truth: Truth = True
        for child in node.named_children:
            truth = self._apart(lambda child=child: self.run(child))  # type: ignore[misc]
        return truth

    def _list(self, node: Node) -> Truth:
        """`a && b`, `a || b`, and statements in a row."""
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in ("&&", "||", ";", "&")), ";")
        truth = self.run(left)
        if self.machine.state.flow or operator not in ("&&", "||"):
            return truth if self.machine.state.flow else self.run(right)
        if isinstance(truth, bool):
            return self.run(right) if truth == (operator == "&&") else truth
        found: list[Truth] = []
        self._branches((lambda: found.append(self.run(right)), lambda: True), truth, self._line(node))
        if found and found[0] is (operator == "||"):
            return found[0]  # `x || true` and `x && false`
        return truth | found[0] if found and isinstance(found[0], frozenset) else truth

    # Commands.

    def _fields(self, node: Node) -> list[Value]:
        return self._words.fields(node)

    def _command(self, node: Node) -> Truth:
        line = self._line(node)
        prefix: dict[str, Value] = {}
        argv: list[Value] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                name = self.source.raw(child.named_children[0])
                prefix[name] = self._words.value(child.named_children[1]) if len(child.named_children) > 1 else EMPTY
                if self._ends_line(child):  # the parser joins `A=1 B=2` to the next line's command
                    for key, value in prefix.items():
                        self.machine.assign(key, value, line)
                    prefix = {}
            elif "redirect" not in child.type and child.type != "comment":
                argv += self._fields(child)
        if argv:
            return self._called(argv, prefix, line)
        for name, value in prefix.items():
            self.machine.assign(name, value, line)
        return True

    def _ends_line(self, node: Node) -> bool:
        rest = self.source.data[node.end_byte : node.end_byte + 200]
        return re.match(rb"[ \t]*(#[^\n]*)?\n", rest) is not None

    def _called(self, argv: list[Value], prefix: Mapping[str, Value], line: int) -> Truth:
        """A simple command after expansion."""
        name = argv[0].text
        if name in self.machine.state.functions:
            return self._call(name, argv[1:], line)
        builtin = BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, argv, line)
        launch = find_launch(argv, self._environment(prefix), line)
        if launch is not None:
            causes: frozenset[Cause] = frozenset().union(*self.machine.conditions)
            self.launches.append(launch.after(causes, self.machine.state.files))
            if len(self.launches) > _MAXIMUM_LAUNCHES:
                raise InputError(f"{self.machine.file}:{line}: more than {_MAXIMUM_LAUNCHES} launches")
            return True
        if PurePath(name).name in ("bash", "sh") and len(argv) > 2 and argv[1].text in ("-c", "-lc"):
            return self._apart(lambda: self.evaluate(argv[2], line))
        if name in WITHOUT_EFFECT:
            return True
        return frozenset({Cause(line, " ".join(value.text for value in argv)[:80])})

    def _environment(self, prefix: Mapping[str, Value]) -> dict[str, Value]:
        """Variables that a command started here would see, as far as the script or the user sets them."""
        found = {
            name: text_value(text, 0) for name, text in {**self.machine.environment, **self.machine.settings}.items()
        }
        for name in sorted(self.machine.state.exported):
            content = self.machine.lookup(name, 0)
            if isinstance(content, Value):
                found[name] = content
        return found | dict(prefix)

    def _call(self, name: str, arguments: Sequence[Value], line: int) -> Truth:
        machine = self.machine
        if name in machine.calls or len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: function {name[:40]} calls itself, or calls nest too deep")
        function = machine.state.functions[name]
        outer = machine.state.positional, machine.state.shifted
        machine.state.positional, machine.state.shifted = tuple(arguments), 0
        machine.calls.append(name)
        truth = Runner(machine, function.source, self.launches).run(function.body)
        machine.calls.pop()
        machine.state.positional, machine.state.shifted = outer
        if machine.state.flow == "return":
            machine.state.flow = ""
        return truth

    def evaluate(self, text: Value, line: int) -> Truth:
        """`eval` of a text that the script built."""
        machine = self.machine
        if len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: eval within eval, too deep")
        machine.calls.append("")
        inner = Runner(machine, Source(machine.file, text), self.launches)
        truth = inner.all(inner.root.children)
        machine.calls.pop()
        return truth


def _reads_arguments(cause: Cause) -> bool:
    """Whether a loop goes over the script's own arguments: nobody gave any."""
    return cause.name in ("#", "@", "1") or cause.name.startswith("getopts ")


def _items(content: object) -> tuple[Value, ...]:
    if isinstance(content, tuple):
        return content
    return (content,) if isinstance(content, Value) else ()


def _choices(item: Node) -> list[Node]:
    """Patterns of a case item."""
    found = []
    for child in item.children:
        if child.type == ")":
            break
        if child.is_named and child.type != "comment":
            found.append(child)
    return found
