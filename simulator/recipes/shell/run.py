"""A walk over a script's statements that collects the training runs it would start. Nothing is executed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from simulator.errors import InputError, UndecidedError
from simulator.recipes.shell.assignments import Assigning
from simulator.recipes.shell.builtins import BUILTINS, WITHOUT_EFFECT
from simulator.recipes.shell.capture import SILENT
from simulator.recipes.shell.changes import change_files
from simulator.recipes.shell.choices import DEEPEST_CHOICE, causes_of, commands, distinct, texts
from simulator.recipes.shell.conditions import Truth, both, negated, test_truth
from simulator.recipes.shell.files import Files
from simulator.recipes.shell.filters import Writer, words_behind
from simulator.recipes.shell.includes import (
    disk_folder,
    not_started,
    on_disk,
    read_variables,
    start,
    started_script,
    unread,
)
from simulator.recipes.shell.launch import TrainingCommand, find_launch
from simulator.recipes.shell.machine import MAXIMUM_CALLS, Machine
from simulator.recipes.shell.passing import changed, files_of_variables
from simulator.recipes.shell.source import HOLES, Source
from simulator.recipes.shell.state import Function, maybe
from simulator.recipes.shell.values import (
    Cause,
    Value,
    joined,
    text_value,
)
from simulator.recipes.shell.walk import Stream
from simulator.recipes.shell.wrappers import SHELLS, process_counts, shell_text

if TYPE_CHECKING:
    from tree_sitter import Node

_MAXIMUM_LAUNCHES: Final = 256
_REDIRECTS: Final = ("file_redirect", "heredoc_redirect", "herestring_redirect")


class Runner(Assigning):
    """A walk over the statements of one source, which collects its launches."""

    def __init__(self, machine: Machine, source: Source, launches: list[TrainingCommand]) -> None:
        super().__init__(machine, source, launches)
        self._behind: list[Node] = []
        """Words of the current command that follow a redirection."""
        self._writer = Writer(self._words, source, machine)
        self.statements = {
            "command": self._command,
            "declaration_command": self.declaration,
            "variable_assignment": self.assignment,
            "variable_assignments": self._each,
            "unset_command": self.unset,
            "if_statement": lambda node: self._choice(node, node.children),
            "case_statement": self._case,
            "for_statement": lambda node: self.loop(node, self._for),
            "c_style_for_statement": lambda node: self.loop(node, self._counted),
            "while_statement": self._while_loop,
            "function_definition": self._function,
            "compound_statement": self._compound,
            "do_group": self._each,
            "else_clause": self._each,
            "subshell": self._subshell,
            "pipeline": self._pipeline,
            "list": self._list,
            "redirected_statement": self._redirected,
            "negated_command": lambda node: negated(self.tested(partial(self.run, node.named_children[-1]))),
            "test_command": lambda node: test_truth(self.machine, self.source, node),
        }

    def _each(self, node: Node) -> Truth:
        return self.all(node.children)

    def _redirected(self, node: Node) -> Truth:
        """Follow a command with redirections, which belong to the last one of `a && b > file`."""
        has_body = node.children[0].type not in _REDIRECTS
        # A pipeline's files are kept with the whole of it.
        writes = not _is_within(node, "pipeline")
        return self._directed(node.children[0] if has_body else None, node.children[has_body:], writes=writes)

    def _directed(self, body: Node | None, parts: Sequence[Node], *, writes: bool = True) -> Truth:
        """Follow a command with redirections; output of `cat`, `tee` or `sed` with a known text is stored."""
        if body is not None and body.type == "list":
            return self._list(body, partial(self._directed, body.named_children[-1], parts))
        outer = self.machine.output, self.stdin
        document = next((child for child in parts if child.type == "heredoc_redirect"), None)
        if document is not None or any(self.source.raw(child)[:1] == "<" for child in parts):
            self.stdin = Stream(self._heredoc(document) if document is not None else None)
        if writes:
            self._writer.write(body, parts)
        redirects = [child for child in parts if child.type == "file_redirect"]
        # `--master_addr <name> --port <port>`: marks of what is to be filled in.
        marked = any(left.end_byte == right.start_byte for left, right in pairwise(redirects))
        self._behind = [] if marked else [word for child in redirects for word in words_behind(child)]
        if any(_takes_output(self.source.raw(child)) for child in redirects):
            self.machine.output = None
        truth = self.all([body] if body is not None else ())
        self.machine.output, self.stdin = outer
        for child in document.children if document is not None else ():
            if child.type == "pipeline":
                self.run(child)
        behind = [child for child in document.children if child.type in ("command", "list")] if document else []
        if not behind or document is None:
            return truth
        operator = next((child.type for child in document.children if child.type in ("&&", "||")), "&&")
        return self._then(truth, operator, partial(self.all, behind), document)

    def _heredoc(self, node: Node) -> Value | None:
        """Return the text of a here document; None where more than the text follows its start."""
        types = {child.type for child in node.named_children}
        is_whole = "heredoc_start" in types <= {"heredoc_start", "heredoc_body", "heredoc_end"}
        return self._writer.here_document(node) if is_whole else None

    def _choice(self, node: Node, children: Sequence[Node]) -> Truth:
        """Follow `if`, or an `elif` with the branches after it."""
        then = next(i for i, child in enumerate(children) if child.type == "then")
        tails = [i for i, child in enumerate(children) if child.type in ("elif_clause", "else_clause", "fi")]
        end = tails[0] if tails else len(children)
        asked = len(self.machine.asked_unset)
        truth = self.tested(partial(self.all, children[1:then]))
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

    def _while_loop(self, node: Node) -> Truth:
        """Follow `while` or `until`; equal launches of the rounds of an endless loop are merged."""
        start = len(self.launches)
        truth = self.loop(node, self._while)
        if self.is_endless(node):
            self.launches[start:] = distinct(self.launches[start:])
        return truth

    # Groups.

    def _function(self, node: Node) -> Truth:
        name = self.source.raw(node.named_children[0])
        state, function = self.machine.state, Function(self.source, node.named_children[-1])
        state.functions = {**state.functions, name: (function,)}
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
        if not _is_within(node, "redirected_statement", "heredoc_redirect"):
            self._writer.write(node)
        outer = self.stdin
        for child in node.named_children:
            command = child.children[0] if child.type == "redirected_statement" else child
            self.stdin = Stream(self._writer.inputs.get(command.id) if command.type == "command" else None)
            status = self._apart(partial(self.run, child))
            truth = both(truth, status) if "pipefail" in self.machine.state.options else status
        self.stdin = outer
        return truth

    def _list(self, node: Node, last: Callable[[], Truth] | None = None) -> Truth:
        """Follow `a && b`, `a || b`, or statements in a row; `last` follows the last of them, else it is just run."""
        left, right = node.named_children[0], node.named_children[-1]
        operator = next((child.type for child in node.children if child.type in ("&&", "||", ";", "&")), ";")
        asked = len(self.machine.asked_unset)
        truth = self.tested(partial(self.run, left)) if operator in ("&&", "||") else self.run(left)
        return self._then(truth, operator, last or partial(self.run, right), node, asked)

    def _then(
        self, truth: Truth, operator: str, last: Callable[[], Truth], node: Node, asked: int | None = None
    ) -> Truth:
        """Follow what stands after `&&`, `||` or `;`, by the truth of what stands before it."""
        if self.machine.state.flow or operator not in ("&&", "||"):
            return truth if self.machine.state.flow else last()
        if isinstance(truth, bool):
            asked = len(self.machine.asked_unset) if asked is None else asked
            return self._guarded(asked, last) if truth == (operator == "&&") else truth
        truths: list[Truth] = []
        self._branches((lambda: truths.append(last()), lambda: True), truth, self._line(node))
        if truths and truths[0] is (operator == "||"):
            return truths[0]  # `x || true` and `x && false`
        return truth | truths[0] if truths and isinstance(truths[0], frozenset) else truth

    # Commands.

    def _command(self, node: Node) -> Truth:
        """Follow a simple command: its words are expanded first, then the assignments in front of it take place."""
        line, stdin = self._line(node), self.stdin
        assignments: list[Node] = []
        words: list[Node] = []
        behind, self._behind = self._behind, []
        redirects = any(child.type in _REDIRECTS for child in node.named_children)
        if redirects and not _is_within(node, "pipeline", "redirected_statement"):
            self._writer.write(node)
        for child in (*node.children, *behind):
            if child.type == "variable_assignment":
                assignments.append(child)
            elif child.type == "herestring_redirect":
                stdin = Stream(joined([self._words.value(child.named_children[-1]), text_value("\n", line)]))
            elif child.type == "$" or (child.is_named and "redirect" not in child.type and child.type != "comment"):
                words.append(child)
        argv = self._words.all_fields(words)
        if self.machine.state.flow:
            return False
        names = {self.source.raw(child.named_children[0]) for child in assignments} if argv else ()
        variables, exported = self.machine.state.part(names)
        self._each_of(assignments)
        if not argv:
            return True
        for name in names:
            self.machine.state.export(name)
        outer, self.stdin = self.stdin, stdin
        opened = HOLES.match(self.source.data[words[0].start_byte : words[0].start_byte + 4].decode("utf-8", "replace"))
        truth = self._unknown(argv, line) if opened else self._called(argv, line)
        self.stdin = outer
        self.machine.state.restore(names, variables, exported)
        return truth

    def _each_of(self, assignments: Iterable[Node]) -> None:
        for child in assignments:
            self.assignment(child)

    def _unknown(self, argv: list[Value], line: int) -> Truth:
        """Follow a command of a text that was built, whose name the text leaves open: it may be several statements."""
        unread(self.machine, argv[0].text, argv[0].causes, line)
        return self._called(argv, line)

    def _called(self, argv: list[Value], line: int) -> Truth:
        """Follow a simple command after expansion, which may leave nothing."""
        if not argv:
            return True
        name = argv[0].text
        if name in self.machine.state.functions:
            return self._call(name, argv[1:], line)
        if name in ("builtin", "command", "exec") and len(argv) > 1 and argv[1].text[:1] != "-":
            status = self._called(argv[1:], line)
            if name == "exec":
                self.machine.ends(line)
                self.machine.state.trap = None
            return status
        builtin = BUILTINS.get(name)
        if builtin is not None:
            return builtin(self, argv, line)
        if name not in SILENT:
            self.machine.prints(None)
        truth = self._started(argv, line)
        change_files(argv, self.machine, line, self.stdin.text)
        if truth is None and WITHOUT_EFFECT.fullmatch(name) is None:
            truth = frozenset({Cause(line, " ".join(value.text for value in argv)[:80])})
            if argv[0].known and re.match(r"--?[A-Za-z]", name):
                remark = (
                    f"{name[:60]} begins a command of its own: the line before does not continue here, as after a "
                    "comment or a backslash with a space behind it; these flags do not reach the launch"
                )
                self.machine.remark("broken-line", "warning", remark, line, "end the line before with a backslash")
        return True if truth is None else truth

    def _started(self, argv: list[Value], line: int) -> Truth | None:
        """Record a command that launches, or follow the one that it starts; None for others."""
        if choices := commands(argv, self.machine.separators):
            return self._chosen([partial(self._called, words, line) for words in choices], argv, line)
        before = self._environment()
        environment = changed(before, argv)
        launch = find_launch(argv, environment, line)
        if launch is not None:
            self._take(dataclasses.replace(launch, spread={**self.machine.spread, **process_counts(argv)}))
            return True
        if (inner := shell_text(argv) or self._given_text(argv)) is not None:
            text, words = inner
            follow: Callable[[], Truth | None] = partial(self._apart, partial(self._shell, text, words, line))
        elif script := argv[started_script(argv) :]:
            follow = partial(start, self, script, line)
        else:
            not_started(self.machine, argv, line)
            return None
        return self._spread(argv, partial(self._passing, before, environment, argv, line, follow))

    def _passing(
        self,
        before: Mapping[str, Value],
        after: Mapping[str, Value],
        argv: Sequence[Value],
        line: int,
        follow: Callable[[], Truth | None],
    ) -> Truth | None:
        """Follow what a command starts, in the environment that the command's words leave of the one before."""
        machine = self.machine
        machine.state.share()
        outer = machine.state.variables, machine.state.exported
        new = {name: value for name, value in after.items() if before.get(name) is not value}
        machine.state.variables = {**outer[0], **new}
        exported = {name: causes for name, causes in outer[1].items() if name in after or name not in before}
        machine.state.exported = exported | dict.fromkeys(new, frozenset())
        for option, value in files_of_variables(argv):
            read_variables(machine, option, value, line)
        truth = follow()
        machine.state.variables, machine.state.exported = outer
        machine.state.share()
        return truth

    def _given_text(self, argv: Sequence[Value]) -> tuple[Value, Sequence[Value]] | None:
        """Return the here document that `bash` or `bash -s` runs; None for others."""
        alone = argv[0].text in SHELLS and all(word.text[:1] == "-" for word in argv[1:])
        return (self.stdin.text, ()) if alone and self.stdin.text is not None else None

    def _shell(self, text: Value, words: Sequence[Value], line: int) -> Truth:
        """Follow a text in a shell of its own."""
        self.machine.state = self.machine.state.started(tuple(words))
        return self.own_shell(partial(self.evaluate, text, line))

    def _take(self, launch: TrainingCommand) -> None:
        machine = self.machine
        files = machine.state.files.copy()
        written = partial(_written, machine, files, launch.line)
        self.launches.append(
            dataclasses.replace(launch, conditions=machine.around, written=written, folder=disk_folder(files))
        )
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
        different = distinct(launches)
        if len(different) == 1 and len(launches) >= len(paths):  # only the conditions around the command decide
            different = [dataclasses.replace(different[0], conditions=machine.around)]
        self.launches[start:] = different
        return truth

    def _environment(self) -> dict[str, Value]:
        """Return the variables that a command started here would see, as far as script or user sets them."""
        variables = {
            name: text_value(text, 0) for name, text in {**self.machine.environment, **self.machine.settings}.items()
        }
        variables = dict(self.machine.scheduled) | variables
        for name, causes in sorted(self.machine.state.exported.items()):
            content = maybe(name, self.machine.lookup(name, 0), causes)
            if isinstance(content, Value):
                variables[name] = content
        return variables

    def _call(self, name: str, arguments: Sequence[Value], line: int) -> Truth:
        """Follow a call of a function, or of each that the name may stand for."""
        functions = self.machine.state.functions[name]
        paths = [partial(self._call_one, name, function, arguments, line) for function in functions]
        return paths[0]() if len(paths) == 1 else self._branches(paths, frozenset({Cause(line, name)}), line)

    def _call_one(self, name: str, function: Function | None, arguments: Sequence[Value], line: int) -> Truth:
        if function is None:
            return False
        machine = self.machine
        if name in machine.calls or len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: function {name[:40]} calls itself, or calls nest too deep")
        outer = machine.state.positional, machine.state.shifted
        machine.state.positional, machine.state.shifted = tuple(arguments), 0
        machine.calls.append(name)
        machine.shadowed.append({})
        aside = machine.aside()
        inner = Runner(machine, function.source, self.launches)
        inner.stdin = self.stdin
        truth = inner.run(function.body)
        if machine.state.flow == "return":
            machine.state.flow = ""
        truth = _or_depends(truth, machine.rejoin("return", line))
        machine.back(aside)
        for local, contents in machine.shadowed.pop().items():
            machine.state.own().pop(local, None)
            machine.state.own().update((local, content) for content in contents)
        machine.calls.pop()
        machine.state.positional, machine.state.shifted = outer
        return truth

    def evaluate(self, text: Value, line: int) -> Truth:
        """Follow `eval` of a text that the script built."""
        machine = self.machine
        if choices := texts(text):
            return self._chosen([partial(self.evaluate, part, line) for part in choices], [text], line)
        if len(machine.calls) >= MAXIMUM_CALLS:
            raise InputError(f"{machine.file}:{line}: eval within eval, too deep")
        machine.calls.append("")
        inner = Runner(machine, Source(machine.file, text), self.launches)
        inner.stdin = self.stdin
        truth = inner.all(inner.root.children)
        machine.calls.pop()
        return truth

    def include(self, text: Value) -> Truth:
        """Follow `source` of a file whose text is known."""
        machine = self.machine
        inner = Runner(machine, machine.parsed(text), self.launches)
        machine.own_names |= inner.assigned_names()
        machine.calls.append("")
        aside = machine.aside()
        truth = inner.all(inner.root.children)
        machine.calls.pop()
        if machine.state.flow == "return":
            machine.state.flow = ""
        truth = _or_depends(truth, machine.rejoin("return", text.line))
        machine.back(aside)
        return truth


def _is_within(node: Node, *types: str) -> bool:
    """Whether a node stands directly in one of these."""
    return node.parent is not None and node.parent.type in types


def _or_depends(truth: Truth, causes: frozenset[Cause]) -> Truth:
    """Return a truth that other paths leave open."""
    return causes | (truth if isinstance(truth, frozenset) else frozenset()) if causes else truth


def _written(machine: Machine, files: Files, line: int, name: str) -> Value | None:
    """Return the text that the script left in a file before a launch; None if it left the file alone."""
    return files.text(name, partial(on_disk, machine, disk_folder(files), name, line))


def _takes_output(redirect: str) -> bool:
    """Whether a redirection diverts a command's standard output."""
    return re.match(r"1?>|&>", redirect) is not None
