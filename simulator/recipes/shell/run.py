"""A walk over a script's statements that collects the training runs it would start. Nothing is executed."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from simulator.errors import InputError, UndecidedError
from simulator.recipes.shell.builtins import BUILTINS, NAME, WITHOUT_EFFECT
from simulator.recipes.shell.capture import SILENT
from simulator.recipes.shell.choices import DEEPEST_CHOICE, causes_of, commands, distinct, texts
from simulator.recipes.shell.conditions import Truth, negated, test_truth
from simulator.recipes.shell.filters import Writer, change_files, words_behind
from simulator.recipes.shell.includes import start, started_script
from simulator.recipes.shell.launch import TrainingCommand, find_launch
from simulator.recipes.shell.machine import MAXIMUM_CALLS, Function, Machine, items_of
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.values import (
    EMPTY,
    Cause,
    Value,
    hole,
    joined,
    text_value,
)
from simulator.recipes.shell.walk import Walk
from simulator.recipes.shell.wrappers import process_counts, shell_text

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMUM_LAUNCHES: Final = 256
_OWN_VALUE: Final = re.compile(r"""=["']?\$(?:\{(\w+)\W|(\w+)["']?\Z)""", re.ASCII)
"""A value that is a variable, or a variable with a default."""
_OWN_VALUE_BYTES: Final = 8


class Runner(Walk):
    """A walk over the statements of one source, which collects its launches."""

    def __init__(self, machine: Machine, source: Source, launches: list[TrainingCommand]) -> None:
        super().__init__(machine, source, launches)
        self._behind: list[Node] = []
        """Words of the current command that follow a redirection."""
        self._writer = Writer(self._words, source, machine)
        self.statements = {
            "command": self._command,
            "declaration_command": self._declaration,
            "variable_assignment": self._assignment,
            "variable_assignments": self._each,
            "unset_command": self._unset,
            "if_statement": lambda node: self._choice(node, node.children),
            "case_statement": self._case,
            "for_statement": self._for,
            "c_style_for_statement": self._counted,
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
        """Return the names that the script gives a value of their own: not `X=$X` and not `X=${X:-y}`."""
        names = set()
        cursor = [self.root]
        while cursor:
            node = cursor.pop()
            cursor.extend(node.named_children)
            if node.type in ("variable_assignment", "for_statement") and node.named_children:
                name = self.source.raw(node.named_children[0])
                # A loop's name needs no value: only an assignment has one.
                end = min(node.end_byte, node.start_byte + 2 * len(name.encode()) + _OWN_VALUE_BYTES)
                value = _OWN_VALUE.match(self.source.text(node.start_byte, end)[len(name) :])
                if value is None or name not in value.groups():
                    names.add(name)
        return names

    def _each(self, node: Node) -> Truth:
        return self.all(node.children)

    def _redirected(self, node: Node) -> Truth:
        """Follow a command with redirections; output of `cat`, `tee` or `sed` with a known text is stored."""
        outer = self.machine.output, self.stdin
        document = next((child for child in node.children if child.type == "heredoc_redirect"), None)
        if document is not None:
            self.stdin = self._heredoc(document)
        self._writer.write(node)
        redirects = [child for child in node.children[1:] if child.type == "file_redirect"]
        # `--master_addr <name> --port <port>`: marks of what is to be filled in.
        marked = any(left.end_byte == right.start_byte for left, right in pairwise(redirects))
        self._behind = [] if marked else [word for child in redirects for word in words_behind(child)]
        if any(_takes_output(self.source.raw(child)) for child in redirects):
            self.machine.output = None
        truth = self.all(node.children[:1])
        self.machine.output, self.stdin = outer
        if document is None:
            return truth
        return self.all(child for child in document.children if child.type in ("command", "list")) and truth

    def _heredoc(self, node: Node) -> Value | None:
        """Return the text of a here document; None where more than the text follows its start."""
        types = {child.type for child in node.named_children}
        is_whole = "heredoc_start" in types <= {"heredoc_start", "heredoc_body", "heredoc_end"}
        return self._writer.here_document(node) if is_whole else None

    # Assignments.

    def _assignment(self, node: Node) -> Truth:
        target, value = node.named_children[0], node.named_children[1:]
        line = self._line(node)
        appends = any(child.type == "+=" for child in node.children)
        if target.type == "subscript":
            return self._element(node, target, value, appends=appends)
        name = self.source.raw(target)
        old = self.machine.lookup(name, line) if appends else None
        if value and value[0].type == "array":
            self._list_of(name, items_of(old), value[0], line)
            return True
        new = self._words.value(value[0]) if value else EMPTY
        if isinstance(old, tuple):
            first = joined([old[0], new]) if old else new
            self.machine.assign(name, (first, *old[1:]), line)
        else:
            self.machine.assign(name, joined([old, new]) if old is not None else new, line)
        return True

    def _element(self, node: Node, target: Node, value: Sequence[Node], *, appends: bool) -> Truth:
        """Assign `X[key]=value`."""
        line = self._line(node)
        name = self.source.raw(target.named_children[0])
        key = self._words.value(target.named_children[-1])
        if not key.known or len(target.named_children) < 2:
            self.machine.forget(name)
            self.machine.assign(name, hole(f"${{{name}}}", line, key.causes or [Cause(line, name)]), line)
            return True
        new = self._words.value(value[0]) if value else EMPTY
        old = self._words.element(name, key, line) if appends else EMPTY
        self.machine.assign_element(name, key.text, joined([old, new]), line)
        return True

    def _list_of(self, name: str, old: Sequence[Value], node: Node, line: int) -> None:
        """Assign `X=(a b)` or `X=([key]=a)`; what stands inside may be made of what X is before."""
        items, elements = list(old), list[tuple[str, Value]]()
        for item in node.named_children:
            if item.type == "comment":
                continue
            keyed = self.source.data.startswith(b"[", item.start_byte)
            match = re.match(r"\[([^]]*)\]=", (whole := self._words.value(item)).text) if keyed else None
            if match:
                elements.append((match[1], whole.after(match.end())))
            else:
                items += self._words.fields(item)
        if not old:
            self.machine.forget(name)
        self.machine.assign(name, tuple(items), line)
        for key, element in elements:
            self.machine.assign_element(name, key, element, line)

    def _declaration(self, node: Node) -> Truth:
        """Follow `export`, `declare`, `local`, `readonly`, `typeset`."""
        machine = self.machine
        exports = node.children[0].type == "export"
        options = {self.source.raw(child) for child in node.named_children}
        is_local = not exports and node.children[0].type != "readonly" and "-g" not in options and machine.shadowed
        for child in node.named_children:
            first = child.named_children[0] if child.type == "variable_assignment" else child
            if is_local and NAME.fullmatch(local := self.source.raw(first)):
                variables = machine.state.variables
                machine.shadowed[-1].setdefault(local, [variables[local]] if local in variables else [])
            if child.type == "variable_assignment":
                self._assignment(child)
                name = self.source.raw(child.named_children[0])
            else:
                name = self.source.raw(child)
                exports = exports or name in ("-x", "-gx")
            if options & {"-n", "+x"}:
                machine.state.exported.discard(name)
            elif exports and NAME.fullmatch(name):
                machine.state.exported.add(name)
        return True

    def _unset(self, node: Node) -> Truth:
        for child in node.named_children:
            name = self.source.raw(child)
            if NAME.fullmatch(name):
                self.machine.state.variables[name] = None
                self.machine.forget(name)
                self.machine.state.exported.discard(name)
        return True

    def _choice(self, node: Node, children: Sequence[Node]) -> Truth:
        """Follow `if`, or an `elif` with the branches after it."""
        then = next(i for i, child in enumerate(children) if child.type == "then")
        tails = [i for i, child in enumerate(children) if child.type in ("elif_clause", "else_clause", "fi")]
        end = tails[0] if tails else len(children)
        asked = len(self.machine.asked_unset)
        truth = self.all(children[1:then])
        rest = children[end:]
        if isinstance(truth, bool):
            body = children[then + 1 : end]
            return self._guarded(asked, lambda: self.all(body) if truth else self._otherwise(rest))
        paths = (lambda: self.all(children[then + 1 : end]), lambda: self._otherwise(rest))
        return self._branches(paths, truth, self._line(node))

    def _otherwise(self, rest: Sequence[Node]) -> Truth:
        """Follow the branches after a condition that does not hold."""
        if rest and rest[0].type == "elif_clause":
            return self._choice(rest[0], [*rest[0].children, *rest[1:]])
        return self.all(rest[:1] if rest and rest[0].type == "else_clause" else ())

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
        """Follow a group whose assignments and exit stay inside."""
        return self._apart(lambda: self.all(node.children))

    def _pipeline(self, node: Node) -> Truth:
        truth: Truth = True
        self.machine.prints(None)
        for child in node.named_children:
            truth = self._apart(lambda child=child: self.run(child))  # type: ignore[misc]
        self._writer.write(node)
        return truth

    def _list(self, node: Node) -> Truth:
        """Follow `a && b`, `a || b`, or statements in a row."""
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in ("&&", "||", ";", "&")), ";")
        asked = len(self.machine.asked_unset)
        truth = self.run(left)
        if self.machine.state.flow or operator not in ("&&", "||"):
            return truth if self.machine.state.flow else self.run(right)
        if isinstance(truth, bool):
            return self._guarded(asked, lambda: self.run(right)) if truth == (operator == "&&") else truth
        truths: list[Truth] = []
        self._branches((lambda: truths.append(self.run(right)), lambda: True), truth, self._line(node))
        if truths and truths[0] is (operator == "||"):
            return truths[0]  # `x || true` and `x && false`
        return truth | truths[0] if truths and isinstance(truths[0], frozenset) else truth

    # Commands.

    def _command(self, node: Node) -> Truth:
        line = self._line(node)
        prefix: dict[str, Value] = {}
        argv: list[Value] = []
        behind, self._behind = self._behind, []
        for child in (*node.named_children, *behind):
            if child.type == "variable_assignment":
                name = self.source.raw(child.named_children[0])
                prefix[name] = self._words.value(child.named_children[1]) if len(child.named_children) > 1 else EMPTY
                if self._ends_line(child):  # the parser joins `A=1 B=2` to the next line's command
                    for key, value in prefix.items():
                        self.machine.assign(key, value, line)
                    prefix = {}
            elif child.type == "herestring_redirect":
                self.stdin = joined([self._words.value(child.named_children[-1]), text_value("\n", line)])
            elif "redirect" not in child.type and child.type != "comment":
                argv += self._words.fields(child)
        if argv:
            self.prefix = prefix
            truth = self._called(argv, prefix, line)
            self.stdin = None
            return truth
        for name, value in prefix.items():
            self.machine.assign(name, value, line)
        return True

    def _ends_line(self, node: Node) -> bool:
        rest = self.source.data[node.end_byte : node.end_byte + 200]
        return re.match(rb"[ \t]*(#[^\n]*)?\n", rest) is not None

    def _called(self, argv: list[Value], prefix: Mapping[str, Value], line: int) -> Truth:
        """Follow a simple command after expansion."""
        name = argv[0].text
        if name in self.machine.state.functions:
            return self._call(name, argv[1:], line)
        change_files(argv, self.machine, line)
        builtin = BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, argv, line)
        if name not in SILENT:
            self.machine.prints(None)
        truth = self._started(argv, prefix, line)
        if truth is not None:
            return truth
        if name in WITHOUT_EFFECT:
            return True
        if argv[0].known and re.match(r"--?[A-Za-z]", name):
            self.machine.remark(
                "broken-line",
                "warning",
                f"{name[:60]} begins a command of its own: the line before does not continue here, as after a comment "
                "or a backslash with a space behind it; these flags do not reach the launch",
                line,
                "end the line before with a backslash",
            )
        return frozenset({Cause(line, " ".join(value.text for value in argv)[:80])})

    def _started(self, argv: list[Value], prefix: Mapping[str, Value], line: int) -> Truth | None:
        """Record a command that launches, or follow the one that it starts; None for others."""
        if choices := commands(argv):
            paths = [functools.partial(self._called, words, prefix, line) for words in choices]
            return self._chosen(paths, argv, line)
        launch = find_launch(argv, self._environment(prefix), line)
        if launch is not None:
            self._take(dataclasses.replace(launch, spread={**self.machine.spread, **process_counts(argv)}))
            return True
        if (text := shell_text(argv)) is not None:
            follow = functools.partial(self.evaluate, text, line)
            return self._spread(argv, functools.partial(self._apart, follow))
        script = argv[started_script(argv) :]
        return self._spread(argv, functools.partial(start, self, script, line)) if script else None

    def _take(self, launch: TrainingCommand) -> None:
        machine = self.machine
        conditions = frozenset().union(*machine.conditions)
        self.launches.append(dataclasses.replace(launch, conditions=conditions, files=dict(machine.state.files)))
        if len(self.launches) > _MAXIMUM_LAUNCHES:
            raise InputError(f"{machine.file}:{launch.line}: more than {_MAXIMUM_LAUNCHES} launches")

    def _spread(self, argv: Sequence[Value], follow: Callable[[], Truth | None]) -> Truth | None:
        """Follow the command that another starts, with its number of processes."""
        outer, self.machine.spread = self.machine.spread, {**self.machine.spread, **process_counts(argv)}
        truth = follow()
        self.machine.spread = outer
        return truth

    def _chosen(self, paths: Sequence[Callable[[], Truth]], words: Iterable[Value], line: int) -> Truth:
        """Follow every text that a command may have; equal launches are merged."""
        machine, start = self.machine, len(self.launches)
        if machine.choices >= DEEPEST_CHOICE:
            remark = f"more than {DEEPEST_CHOICE} branches decide this command: --set the variables that they ask for"
            raise UndecidedError(f"{machine.file}:{line}: {remark}")
        machine.choices += 1
        truth = self._branches(paths, causes_of(words), line)
        machine.choices -= 1
        launches = self.launches[start:]
        self.launches[start:] = distinct(launches, frozenset().union(*machine.conditions))
        return truth

    def _environment(self, prefix: Mapping[str, Value]) -> dict[str, Value]:
        """Return the variables that a command started here would see, as far as script or user sets them."""
        variables = {
            name: text_value(text, 0) for name, text in {**self.machine.environment, **self.machine.settings}.items()
        }
        variables = dict(self.machine.scheduled) | variables
        for name in sorted(self.machine.state.exported):
            content = self.machine.lookup(name, 0)
            if isinstance(content, Value):
                variables[name] = content
        return variables | dict(prefix)

    def _call(self, name: str, arguments: Sequence[Value], line: int) -> Truth:
        machine = self.machine
        if name in machine.calls or len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: function {name[:40]} calls itself, or calls nest too deep")
        function = machine.state.functions[name]
        outer = machine.state.positional, machine.state.shifted
        machine.state.positional, machine.state.shifted = tuple(arguments), 0
        machine.calls.append(name)
        machine.shadowed.append({})
        truth = Runner(machine, function.source, self.launches).run(function.body)
        for local, contents in machine.shadowed.pop().items():
            machine.state.variables.pop(local, None)
            machine.state.variables.update((local, content) for content in contents)
        machine.calls.pop()
        machine.state.positional, machine.state.shifted = outer
        if machine.state.flow == "return":
            machine.state.flow = ""
        return truth

    def evaluate(self, text: Value, line: int) -> Truth:
        """Follow `eval` of a text that the script built."""
        machine = self.machine
        if choices := texts(text):
            return self._chosen([functools.partial(self.evaluate, part, line) for part in choices], [text], line)
        if len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: eval within eval, too deep")
        machine.calls.append("")
        inner = Runner(machine, Source(machine.file, text), self.launches)
        truth = inner.all(inner.root.children)
        machine.calls.pop()
        return truth

    def include(self, text: Value) -> Truth:
        """Follow `source` of a file whose text is known."""
        machine = self.machine
        inner = Runner(machine, Source(machine.file, text), self.launches)
        machine.own_names |= inner.assigned_names()
        machine.calls.append("")
        truth = inner.all(inner.root.children)
        machine.calls.pop()
        if machine.state.flow == "return":
            machine.state.flow = ""
        return truth


def _takes_output(redirect: str) -> bool:
    """Whether a redirection diverts a command's standard output."""
    return re.match(r"1?>|&>", redirect) is not None
