"""Splitting of a command line's words into flags with values and positional words, for a framework's reader.

A variable such as `$EXTRA_ARGS` whose text is unknown may hold any flag, and is noted as such. The framework's folder
interprets the flags.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simulator.frameworks.arguments import Argument, Arguments
from simulator.frameworks.flags import plain
from simulator.recipes.shell.values import Value, split_fields, text_value

ARGUMENTS: Final = frozenset("@*")
"""Variables that hold all of the script's own arguments (`$@`, `$*`), assumed to be empty."""
_MANY: Final = re.compile(r"(data_path|data|paths|files|dirs|datasets?|modules|targets)$")
"""Flags in no table that take several values."""
_BAG: Final = re.compile(r"[$]?\{?\w*(arg|opt|flag|extra|param|conf)\w*(\[[@*]\])?\}?", re.IGNORECASE)
"""Names of variables that hold flags, not a value."""
_BARE: Final = re.compile(r"(no|use|do|enable|disable|skip|overwrite)_")
"""Flags in no table that take no value."""


def add_words(arguments: Arguments, words: Sequence[Value]) -> list[Value]:
    """Add the words after the script's name; return those before the first flag."""
    positional: list[Value] = []
    flag: Value | None = None
    values: list[Value] = []
    for word in words:
        if _starts_flag(word):
            _finish(arguments, flag, values)
            flag, values = word, []
        elif _is_opaque(arguments, word, flag, values):
            _add_opaque(arguments, word)
        elif flag is None:
            positional.append(word)
        else:
            values.append(word)
    _finish(arguments, flag, values)
    return positional


def _finish(arguments: Arguments, flag: Value | None, values: list[Value]) -> None:
    if flag is None:
        return
    name, equals, text = flag.text.partition("=")
    if equals:
        first = text_value(text, flag.line) if flag.known else Value(tuple(p for p in flag.pieces if not p.known))
        values = [first, *values]
    arguments.add(name, values, flag.line)


def _is_opaque(arguments: Arguments, word: Value, flag: Value | None, values: list[Value]) -> bool:
    """Whether an unknown word stands for flags, not for a value."""
    first = word.pieces[0] if word.pieces else None
    if first is None or word.known:
        return False
    if any(piece.known and piece.text for piece in word.pieces):
        return first.known and first.text in ("-", "--")
    if _only_arguments(word) or any(other.text.lstrip().startswith("--") for other in first.alternatives):
        return True
    named = any(_BAG.fullmatch(name) for name in (word.text, *(cause.name for cause in word.causes)))
    if flag is None:
        return named or not first.quoted
    name = plain(flag.text.partition("=")[0])
    full = bool(values) or "=" in flag.text
    known = arguments.table.get(name)
    if known is not None and known.effect != "no_effect":
        return known.kind == "switch" or (full and known.kind in ("value", "optional"))
    return named or _BARE.match(name) is not None or (full and _MANY.search(name) is None)


def _add_opaque(arguments: Arguments, word: Value) -> None:
    """Add the flags of an unknown word: those on all paths are set, the others only may be."""
    if _only_arguments(word):
        message = f"{word.text} is taken as no arguments: nobody gave the script any"
        if all(remark.message != message for remark in arguments.remarks):
            arguments.remark_line("assumed-unset", "note", message, word.line, fix="--set '@=ARGUMENTS'")
        return
    alternatives = word.pieces[0].alternatives if word.pieces[0].causes == word.causes else ()
    if not alternatives:
        arguments.bags |= word.causes
    paths: list[dict[str, list[Argument]]] = []
    for alternative in alternatives:
        inner = Arguments(arguments.file, arguments.table, complete=arguments.complete)
        add_words(inner, split_fields(alternative.inserted(quoted=False)))
        paths.append(inner.entries)
        arguments.maybe |= inner.maybe
        arguments.bags |= inner.bags
    arguments.note(word.causes)
    for name in dict.fromkeys(name for path in paths for name in path):
        entries_by_path = [path.get(name) for path in paths]
        texts = {" ".join(entry.text for entry in entries) if entries else None for entries in entries_by_path}
        if len(texts) == 1 and entries_by_path[0]:
            arguments.entries.setdefault(name, []).extend(entries_by_path[0])
        else:
            arguments.maybe[name] = arguments.maybe.get(name, frozenset()) | word.causes
            flag = arguments.table.get(name)
            for other in _names(arguments, name) & arguments.entries.keys():
                before = arguments.entries[other][-1:]
                switch = flag is not None and flag.kind == "switch"
                same = name == other if switch else texts - {None} == {entry.text for entry in before}
                if before and not same:
                    # Set before, and set anew on some paths only.
                    arguments.entries[other].append(replace(before[0], values=(word,)))


def _names(arguments: Arguments, name: str) -> set[str]:
    """Return a flag's name and all of its other names."""
    flag, aliases = arguments.table.get(name), arguments.table.aliases
    meant = {name, *(other for other, _ in (flag.aliases() if flag is not None else ()))}
    return meant | {other.name for target in meant for other, _ in aliases.get(target, ())}


def _only_arguments(word: Value) -> bool:
    """Whether a word consists only of the script's own arguments."""
    whole = all(piece.causes or not piece.text for piece in word.pieces)
    return whole and bool(word.causes) and all(cause.name in ARGUMENTS for cause in word.causes)


def _starts_flag(word: Value) -> bool:
    text = word.text
    return bool(word.pieces) and word.pieces[0].known and re.match(r"--?[A-Za-z_]", text) is not None
