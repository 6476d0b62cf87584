"""Assignments and declarations: `X=a`, `A+=(b)`, `export X`, `declare -i N=1`, `unset X`. Nothing is executed."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from simulator.recipes.shell import braces
from simulator.recipes.shell.conditions import Truth
from simulator.recipes.shell.includes import unread
from simulator.recipes.shell.parameters import NAME
from simulator.recipes.shell.state import items_of
from simulator.recipes.shell.values import BREAK, EMPTY, Cause, Piece, Value, hole, joined, text_value
from simulator.recipes.shell.walk import Walk

if TYPE_CHECKING:
    from tree_sitter import Node

_OWN_VALUE: Final = re.compile(r"""=["']?\$(?:\{(\w+)\W|(\w+)["']?\Z)""", re.ASCII)
"""A value that is a variable, or a variable with a default."""
_OWN_VALUE_BYTES: Final = 8


class Assigning(Walk):
    """The statements of a walk that set variables."""

    def assigned_names(self) -> set[str]:
        """Return the names that the script gives a value of their own: not `X=$X` and not `X=${X:-y}`."""
        names = set()
        cursor = [self.root]
        while cursor:
            node = cursor.pop()
            children = node.named_children
            cursor.extend(child for child in children if child.named_child_count)
            if children and node.type in ("variable_assignment", "for_statement"):
                name = self.source.raw(children[0])
                # A loop's name needs no value: only an assignment has one.
                end = min(node.end_byte, node.start_byte + 2 * len(name.encode()) + _OWN_VALUE_BYTES)
                value = _OWN_VALUE.match(self.source.text(node.start_byte, end)[len(name) :])
                if value is None or name not in value.groups():
                    names.add(name)
        return names

    def assignment(self, node: Node, new: Value | None = None) -> Truth:
        """Follow `X=value`, `X+=value` or `X=(a b)`; `new` is the value where it is expanded already."""
        target, value = node.named_children[0], node.named_children[1:]
        line = self._line(node)
        appends = any(child.type == "+=" for child in node.children)
        if target.type == "subscript":
            return self._element(node, target, value, appends=appends)
        name = self.source.raw(target)
        old = self.machine.lookup(name, line) if appends else None
        if value and value[0].type == "array":
            before = (old.inserted(quoted=False),) if isinstance(old, Value) and not old.known else items_of(old)
            self._list_of(name, before, value[0], line, appends=appends)
            return True
        self.machine.substituted = True
        new = (self._one_text(value[0]) if value else EMPTY) if new is None else new
        self._set(name, new, line, appends=appends)
        raw = self.source.data[node.start_byte : node.end_byte]
        # `X=$(command)` succeeds as the command does.
        return new.causes if new.causes and (b"$(" in raw or b"`" in raw) else self.machine.substituted

    def _one_text(self, node: Node) -> Value:
        """Return the value of an assignment, in which the items of a list are one text."""
        value = self._words.value(node)
        if BREAK not in value.pieces:
            return value
        first, *others = (separators[:1] for separators in self.machine.separators)
        line, raw = self._line(node), self.source.raw(node)
        if "*" not in raw or first == " " == "".join({first, *others}):
            return value
        if others:
            return hole(raw, line, [Cause(line, "IFS")])
        between = Piece(first, line)
        return Value(tuple(between if piece is BREAK else piece for piece in value.pieces))

    def _set(self, name: str, new: Value, line: int, *, appends: bool) -> None:
        """Set a variable, or a list's first item."""
        if isinstance(self.machine.state.variables.get(name), tuple):
            old = self._words.element(name, text_value("0", line), line) if appends else EMPTY
            self.machine.assign_element(name, "0", joined([old, new]), line)
            return
        content = self.machine.lookup(name, line) if appends else None
        if appends and self.machine.attributed.get(name, "A") != "A":
            new = hole(f"${name}", line, [Cause(line, name)])
        self.machine.assign(name, joined([*items_of(content), new]), line)

    def _element(self, node: Node, target: Node, value: Sequence[Node], *, appends: bool) -> Truth:
        """Assign `X[key]=value`."""
        line = self._line(node)
        name = self.source.raw(target.named_children[0])
        key = self._words.value(target.named_children[-1])
        if key.known and "A" not in self.machine.attributed.get(name, "") and not key.text.isdecimal():
            number = self._words.number_or_causes(key, line)
            causes = number if isinstance(number, frozenset) else {Cause(line, f"{name}[{key.text[:40]}]")}
            key = text_value(str(number), line) if isinstance(number, int) else hole(key.text, line, causes)
        if not key.known or len(target.named_children) < 2:
            self.machine.forget(name)
            self.machine.assign(name, hole(f"${{{name}}}", line, key.causes or [Cause(line, name)]), line)
            return True
        new = self._words.value(value[0]) if value else EMPTY
        old = self._words.element(name, key, line) if appends else EMPTY
        self.machine.assign_element(name, key.text, joined([old, new]), line)
        return True

    def _list_of(self, name: str, old: Sequence[Value], node: Node, line: int, *, appends: bool) -> None:
        """Assign `X=(a b)` or `X=([key]=a)`; what stands inside may be made of what X is before."""
        elements, plain = list[tuple[str, Value]](), list["Node"]()
        for item in node.named_children:
            if item.type == "comment":
                continue
            keyed = self.source.data.startswith(b"[", item.start_byte)
            match = re.match(r"\[([^]]*)\]=", (whole := self._words.value(item)).text) if keyed else None
            if match:
                elements.append((match[1], whole.after(match.end())))
            else:
                plain.append(item)
        new = self._words.all_fields(plain)
        keys = list(self.machine.elements(name)) if appends else []
        if new and keys and all(map(str.isdecimal, keys)):
            after = max(len(old), 1 + int(keys[-1]))
            elements += [(str(number), item) for number, item in enumerate(new, start=after)]
            new = []
        if not appends:
            self.machine.forget(name)
        self.machine.assign(name, (*old, *new), line)
        for key, element in elements:
            self.machine.assign_element(name, key, element, line)

    def declaration(self, node: Node) -> Truth:
        """Follow `export`, `declare`, `local`, `readonly`, `typeset`."""
        machine, kind = self.machine, node.children[0].type
        options = [raw for child in node.named_children if (raw := self.source.raw(child))[:1] in ("-", "+")]
        letters = {letter for option in options if option[0] == "-" for letter in option[1:]}
        exports = kind == "export" or "x" in letters
        unexports = "+x" in options or (kind == "export" and "n" in letters)
        is_local = kind not in ("export", "readonly") and "g" not in letters and bool(machine.shadowed)
        attributes = "".join(sorted(letters & set("Ailnu"))) if kind != "export" else ""
        for name, assign in self._declared(node, kind):
            if is_local and name not in machine.shadowed[-1]:
                variables = machine.state.own()
                machine.shadowed[-1][name] = [variables[name]] if name in variables else []
                variables[name] = None
            if attributes:
                machine.attributed[name] = attributes
            if assign is not None:
                assign(name)
            if unexports:
                machine.state.unexport(name)
            elif exports:
                machine.state.export(name)
        return True

    def _declared(self, node: Node, kind: str) -> list[tuple[str, Callable[[str], object] | None]]:
        """Return the names of a declaration and what assigns each; every word is expanded before one is assigned."""
        line = self._line(node)
        targets: list[tuple[str, Callable[[str], object] | None]] = []
        words: list[Node] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                value = child.named_children[1:]
                new = self._words.value(value[0]) if value and value[0].type != "array" else None
                new = braces.expanded(new)[-1] if new is not None else None
                if (
                    kind != "export"
                    and "n" in "".join(map(self.source.raw, node.named_children[:1]))
                    and new is not None
                ):
                    self._refer(new, line)
                name = re.match(r"\w*", self.source.raw(child), re.ASCII)
                targets.append((name[0] if name else "", lambda _name, c=child, n=new: self.assignment(c, n)))  # type: ignore[misc]
            elif self.source.raw(child)[:1] not in ("-", "+"):
                words.append(child)
        for word in self._words.all_fields(words):
            match = re.match(r"([A-Za-z_]\w*)(?:(\+?=)|\Z)", word.text, re.ASCII)
            if match is None or (match[2] is None and not word.known):
                if not word.known:
                    unread(self.machine, f"{kind} {word.text}", word.causes, line)
                continue
            rest, appends = word.after(match.end()), match[2] == "+="
            assign = functools.partial(self._set, new=rest, line=line, appends=appends) if match[2] else None
            targets.append((match[1], assign))
        return targets

    def _refer(self, target: Value, line: int) -> None:
        """Follow `declare -n X=target`: what is assigned to X later is assigned to the target."""
        if NAME.fullmatch(target.text):
            self.machine.attributed[target.text] = "n"
            self.machine.assign(target.text, None, line)

    def unset(self, node: Node) -> Truth:
        """Follow `unset X`, `unset 'X[0]'` and `unset -f X`."""
        state = self.machine.state
        words = [word.text for word in self._words.all_fields(node.named_children)]
        for name in words:
            element = re.fullmatch(r"([A-Za-z_]\w*)\[(.+)\]", name, re.ASCII)
            if "-f" in words:
                state.functions = {other: each for other, each in state.functions.items() if other != name}
            elif element:
                self.machine.unset_element(element[1], element[2], self._line(node))
            elif NAME.fullmatch(name):
                state.own()[name] = None
                self.machine.forget(name)
                state.unexport(name)
        return True
