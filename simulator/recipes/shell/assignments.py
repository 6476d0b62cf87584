"""Assignments and declarations of a script: `X=a`, `A+=(b)`, `L[k]=c`, `export X`, `declare -i N=1`, `unset X`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from simulator.frameworks.values import Cause
from simulator.recipes.shell.source import Source
from simulator.recipes.shell.state import Machine, items_of, listed
from simulator.recipes.shell.values import BREAK, EMPTY, Truth, Value, hole, joined, text_value
from simulator.recipes.shell.words import Words, has_braces

if TYPE_CHECKING:
    from tree_sitter import Node

NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name that can be assigned."""
_ITSELF: Final = re.compile(r"""=["']?\$(?:\{(\w+)\W|(\w+)["']?\Z)""", re.ASCII)
"""A value that is a variable, or a variable with a default."""
_ITSELF_BYTES: Final = 8


class Assignments:
    """The statements of a source that set variables."""

    def __init__(self, machine: Machine, source: Source, words: Words) -> None:
        self._machine = machine
        self._source = source
        self._words = words

    def _line(self, node: Node) -> int:
        return self._source.line(node.start_byte)

    def assign(self, node: Node, expanded: Value | None = None) -> Truth:
        """Follow `X=value`, `X+=value` or `X=(a b)`; `expanded` is the value where it is expanded already."""
        target, value = node.named_children[0], node.named_children[1:]
        line = self._line(node)
        appends = any(child.type == "+=" for child in node.children)
        if target.type == "subscript":
            return self._assign_element(node, target, value, appends=appends)
        name = self._source.raw(target)
        if value and value[0].type == "array":
            self._assign_list(name, value[0], line, appends=appends)
            return True
        self._machine.substituted = True
        new = (self._one_text(value[0]) if value else EMPTY) if expanded is None else expanded
        raw = self._source.data[node.start_byte : node.end_byte]
        if name in self._machine.settings and not appends and not re.search(rb"\$\{?%b\b" % name.encode(), raw):
            new = self._machine.preset(name, line) or new  # what the user sets beats the script
        self._set(name, new, line, appends=appends)
        # `X=$(command)` succeeds as the command does.
        return new.causes if new.causes and (b"$(" in raw or b"`" in raw) else self._machine.substituted

    def _one_text(self, node: Node) -> Value:
        """Return the value of an assignment, in which the items of a list are one text."""
        value = self._words.value(node)
        if not any(piece.line == BREAK.line and piece == BREAK for piece in value.pieces):
            return value
        line, raw, separators = self._line(node), self._source.raw(node), self._machine.separators
        return value if "*" not in raw or (separators or "")[:1] == " " else hole(raw, line, [Cause(line, "IFS")])

    def _set(self, name: str, new: Value, line: int, *, appends: bool) -> None:
        """Set a variable, or a list's first item."""
        content = self._machine.lookup(name, line) if appends else self._machine.state.variables.get(name)
        if isinstance(content, Mapping):
            old = self._words.element(name, text_value("0", line), line) if appends else EMPTY
            self._machine.assign_item(name, "0", joined([old, new]), line)
        else:
            self._machine.assign(name, joined([content, new]) if appends and content is not None else new, line)

    def _assign_element(self, node: Node, target: Node, value: Sequence[Node], *, appends: bool) -> Truth:
        """Assign `X[key]=value`."""
        line = self._line(node)
        name = self._source.raw(target.named_children[0])
        key = self._words.value(target.named_children[-1])
        place = self._words.key(name, key, line)
        if not isinstance(place, str) or len(target.named_children) < 2:
            self._machine.assign(name, hole(f"${{{name}}}", line, () if isinstance(place, str) else place), line)
            return True
        new = self._words.value(value[0]) if value else EMPTY
        old = self._words.element(name, key, line) if appends else EMPTY
        self._machine.assign_item(name, place, joined([old, new]), line)
        return True

    def _assign_list(self, name: str, node: Node, line: int, *, appends: bool) -> None:
        """Assign `X=(a b)` or `X=([key]=a)`; what stands inside may be made of what X is before."""
        elements, plain = list[tuple[str, Value]](), list["Node"]()
        for item in node.named_children:
            if item.type == "comment":
                continue
            keyed = self._source.data.startswith(b"[", item.start_byte)
            match = re.match(r"\[([^]]*)\]=", (whole := self._words.value(item)).text) if keyed else None
            if match:
                elements.append((match[1], whole.after(match.end())))
            else:
                plain.append(item)
        new = self._words.all_fields(plain)
        old = self._machine.lookup(name, line) if appends else None
        if isinstance(old, Value) and not old.known:
            self._machine.assign(name, listed([old.inserted(quoted=False), *new]), line)
            return
        items = dict(items_of(old))
        after = 1 + max((int(key) for key in items if key.isdecimal()), default=-1)
        self._machine.assign(name, items | {str(after + number): item for number, item in enumerate(new)}, line)
        for key, element in elements:
            self._machine.assign_item(name, key, element, line)

    def declare(self, node: Node) -> Truth:
        """Follow `export`, `declare`, `local`, `readonly`, `typeset`."""
        machine, kind = self._machine, node.children[0].type
        options = [raw for child in node.named_children if (raw := self._source.raw(child))[:1] in ("-", "+")]
        letters = {letter for option in options if option[0] == "-" for letter in option[1:]}
        exports = kind == "export" or "x" in letters
        unexports = "+x" in options or (kind == "export" and "n" in letters)
        is_local = kind not in ("export", "readonly") and "g" not in letters and bool(machine.shadowed)
        attributes = "".join(sorted(letters & set("Ailnu"))) if kind != "export" else ""
        if "n" in attributes:  # what is assigned to X later is assigned to the variable that it names
            machine.may_set_any(self._source.node_text(node), (), self._line(node))
        for name, assign in self._declared(node, kind):
            if is_local and name not in machine.shadowed[-1]:
                variables = machine.state.changeable()
                machine.shadowed[-1][name] = [variables[name]] if name in variables else []
                variables[name] = None
            if attributes:
                machine.attributed[name] = attributes
            if assign is not None:
                assign()
            if unexports:
                machine.state.unexport(name)
            elif exports:
                machine.state.export(name)
        return True

    def _declared(self, node: Node, kind: str) -> list[tuple[str, Callable[[], object] | None]]:
        """Return the names of a declaration and what assigns each; every word is expanded before one is assigned."""
        line = self._line(node)
        targets: list[tuple[str, Callable[[], object] | None]] = []
        words: list[Node] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                value = child.named_children[1:]
                new = self._words.value(value[0]) if value and value[0].type != "array" else None
                if new is not None and has_braces(new):
                    new = hole(new.text, line)
                name = re.match(r"\w*", self._source.raw(child), re.ASCII)
                targets.append((name[0] if name else "", partial(self.assign, child, new)))
            elif self._source.raw(child)[:1] not in ("-", "+"):
                words.append(child)
        for word in self._words.all_fields(words):
            match = re.match(r"([A-Za-z_]\w*)(?:(\+?=)|\Z)", word.text, re.ASCII)
            if match is None or (match[2] is None and not word.known):
                if not word.known:
                    self._machine.may_set_any(f"{kind} {word.text}", word.causes, line)
                continue
            new, appends = word.after(match.end()), match[2] == "+="
            targets.append((match[1], partial(self._set, match[1], new, line, appends=appends) if match[2] else None))
        return targets

    def unset(self, node: Node) -> Truth:
        """Follow `unset X`, `unset 'X[0]'` and `unset -f X`."""
        state, line = self._machine.state, self._line(node)
        words = [word.text for word in self._words.all_fields(node.named_children)]
        for name in words:
            element = re.fullmatch(r"([A-Za-z_]\w*)\[(.+)\]", name, re.ASCII)
            if "-f" in words:
                state.functions = {other: each for other, each in state.functions.items() if other != name}
            elif element and self._machine.lookup(element[1], line):
                unknown = hole(f"${{{element[1]}}}", line, [Cause(line, f"unset {name}")])
                self._machine.assign(element[1], unknown, line)
            elif NAME.fullmatch(name):
                state.changeable()[name] = None
                state.unexport(name)
        return True


def assigned_names(source: Source) -> set[str]:
    """Return the names that a script gives a value of their own: not `X=$X` and not `X=${X:-y}`."""
    names = set()
    cursor = [source.root]
    while cursor:
        node = cursor.pop()
        children = node.named_children
        cursor += [child for child in children if child.named_child_count]
        if children and node.type in ("variable_assignment", "for_statement"):
            name = source.raw(children[0])
            # A loop's name needs no value: only an assignment has one.
            end = min(node.end_byte, node.start_byte + 2 * len(name.encode()) + _ITSELF_BYTES)
            value = _ITSELF.match(source.text(node.start_byte, end)[len(name) :])
            if value is None or name not in value.groups():
                names.add(name)
    return names
