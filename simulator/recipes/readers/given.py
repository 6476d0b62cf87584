"""What a recipe gives, by flag or key, with the line of each, and what it leaves to the run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.errors import InputError
from simulator.recipes.readers.documents import Key
from simulator.recipes.readers.names import is_irrelevant, misspelled, plain
from simulator.recipes.readers.tables import Flag
from simulator.recipes.recipe import GivenFlag, Place, Remark, Severity, Unknown
from simulator.recipes.shell.values import Cause, Value, split_fields, text_value


@dataclass(frozen=True, slots=True)
class Entry:
    """One flag as given."""

    name: str
    """As the tables spell it."""
    spelled: str
    """As the recipe spells it."""
    values: tuple[Value, ...]
    place: Place
    """Of the flag."""

    @property
    def value_place(self) -> Place:
        """Line that sets the value."""
        return Place(self.place.file, self.value_line)

    @property
    def value_line(self) -> int:
        """Line that sets the value, or the flag's where there is none."""
        return next((value.line for value in self.values if value.line), self.place.line)

    @property
    def text(self) -> str:
        """The values, joined."""
        return " ".join(value.text for value in self.values)

    @property
    def causes(self) -> frozenset[Cause]:
        """What the values depend on."""
        return frozenset().union(*(value.causes for value in self.values))


__all__ = ["Entry", "Flag", "Given", "half_precision"]

ARGUMENTS: Final = frozenset("@*")
"""Names of the script's own arguments, all of them: nobody gave any."""
ANY_FLAG: Final = "any_other_flag"
"""What a text of unknown flags decides."""
_MANY: Final = re.compile(r"(data_path|data|paths|files|dirs|datasets?|modules|targets)$")
"""Flags that no table has and that take several values."""
_BAG: Final = re.compile(r"[$]?\{?\w*(arg|opt|flag|extra|param|conf)\w*(\[[@*]\])?\}?", re.IGNORECASE)
"""A variable whose name says that it holds flags rather than a value."""
_BARE: Final = re.compile(r"(no|use|do|enable|disable|skip|overwrite)_")
"""Flags that no table has and that take no value."""
_MOST_SHOWN: Final = 12
"""Variables that one remark names."""
_BY_ABSENCE: Final = ("full-precision", "no-vocabulary", "no-sequence-parallel")
"""Remarks on a flag that is not there."""


class Given:
    """Flags of one launch or keys of one file. Reading an unknown value notes what needs it."""

    def __init__(
        self, file: str, table: Mapping[str, Flag], known: Iterable[str] = (), *, complete: bool = False
    ) -> None:
        """`table` are the flags a reader takes or has to speak of, `known` those it may pass over.

        `complete` says that both together are all the framework has: what is in neither is then never passed over.
        """
        self.file = file
        self.table = table
        self.known = frozenset(known)
        self.complete = complete
        self.entries: dict[str, list[Entry]] = {}
        self.places: dict[str, Place] = {}
        self.remarks: list[Remark] = []
        self.incomplete: set[str] = set()
        """Options whose value only the run knows."""
        self.devices: int | None = None
        """Processes that are started, where only their number is said."""
        self.bags: set[Cause] = set()
        """Texts that may hold any flag."""
        self._maybe: dict[str, frozenset[Cause]] = {}
        self._causes: dict[str, tuple[int, set[str]]] = {}

    # What is there.

    def add(self, name: str, values: Sequence[Value], line: int, file: str = "") -> None:
        """Take one flag or key, of another file where one is named."""
        place = Place(file or self.file, max(line, 1))
        self.entries.setdefault(plain(name), []).append(Entry(plain(name), name[:80], tuple(values), place))

    def add_arguments(self, arguments: Sequence[Value]) -> list[Value]:
        """Take the words after the script's name; returns those before the first flag."""
        positional: list[Value] = []
        flag: Value | None = None
        values: list[Value] = []
        for word in arguments:
            if _starts_flag(word):
                self._finish(flag, values)
                flag, values = word, []
            elif self._is_opaque(word, flag, values):
                self._add_opaque(word)
            elif flag is None:
                positional.append(word)
            else:
                values.append(word)
        self._finish(flag, values)
        return positional

    def _finish(self, flag: Value | None, values: list[Value]) -> None:
        if flag is None:
            return
        name, equals, text = flag.text.partition("=")
        if equals:
            first = text_value(text, flag.line) if flag.known else Value(tuple(p for p in flag.pieces if not p.known))
            values = [first, *values]
        self.add(name, values, flag.line)

    def _is_opaque(self, word: Value, flag: Value | None, values: list[Value]) -> bool:
        """Whether a word that is not known stands for flags rather than for a value."""
        first = word.pieces[0] if word.pieces else None
        if first is None or word.known:
            return False
        if any(piece.known and piece.text for piece in word.pieces):
            return first.known and first.text in ("-", "--")
        if _only_arguments(word) or any(one.text.lstrip().startswith("--") for one in first.alternatives):
            return True
        named = any(_BAG.fullmatch(name) for name in (word.text, *(cause.name for cause in word.causes)))
        if flag is None:
            return named or not first.quoted
        name = plain(flag.text.partition("=")[0])
        full = bool(values) or "=" in flag.text
        if name in self.table:
            kind = self.table[name].kind
            return kind == "switch" or (full and kind in ("value", "optional"))
        return named or _BARE.match(name) is not None or (full and _MANY.search(name) is None)

    def _add_opaque(self, word: Value) -> None:
        """Flags on some paths only: those on all paths count, the others may be there."""
        if _only_arguments(word):
            self._no_arguments(word)
            return
        alternatives = word.pieces[0].alternatives if word.pieces[0].causes == word.causes else ()
        if not alternatives:
            self.bags |= word.causes
        paths: list[dict[str, list[Entry]]] = []
        for alternative in alternatives:
            inner = Given(self.file, self.table, self.known, complete=self.complete)
            inner.add_arguments(split_fields(alternative.inserted(quoted=False)))
            paths.append(inner.entries)
            self._maybe |= inner._maybe
            self.bags |= inner.bags
        self._note(word.causes, ())
        for name in dict.fromkeys(name for path in paths for name in path):
            found = [path.get(name) for path in paths]
            texts = {" ".join(entry.text for entry in entries) if entries else None for entries in found}
            if len(texts) == 1 and found[0]:
                self.entries.setdefault(name, []).extend(found[0])
            else:
                self._maybe[name] = self._maybe.get(name, frozenset()) | word.causes

    def _no_arguments(self, word: Value) -> None:
        """`"$@"`: the script is taken to be started without arguments."""
        said = f"{word.text} is taken as no arguments: nobody gave the script any"
        place = Place(self.file, max(word.line, 1))
        remark = Remark("assumed-unset", "note", said, place, "--set '@=ARGUMENTS'")
        if remark not in self.remarks:
            self.remarks.append(remark)

    def note_bags(self, absent: Mapping[str, bool]) -> None:
        """Note what waits for texts that may hold any flag: every flag, and what nothing else tells."""
        if not self.bags:
            return
        for option in (ANY_FLAG, *(name for name, missing in absent.items() if missing)):
            self.need(self.bags, option)
        self.remarks = [remark for remark in self.remarks if remark.place and remark.rule not in _BY_ABSENCE]

    # Reading.

    def entry(self, *names: str) -> Entry | None:
        """The flag under any of its names; the last one given."""
        for name in names:
            if self.entries.get(plain(name)):
                return self.entries[plain(name)][-1]
        return None

    def has(self, *names: str) -> bool:
        """Whether a flag is given."""
        return self.entry(*names) is not None

    def text(self, option: str, *names: str) -> str | None:
        """A flag's text; None where it is absent or not known."""
        entry = self.entry(*names)
        if entry is None:
            for name in names:
                if plain(name) in self._maybe:
                    self.need(self._maybe[plain(name)], option)
            return None
        self.places.setdefault(option, entry.value_place)
        if entry.causes:
            self.need(entry.causes, option)
            return None
        return entry.text

    def integer(self, option: str, *names: str, low: int = 1, high: int = 2**31) -> int | None:
        """A whole number; None where it is absent or not known. Raises InputError for other text."""
        text = self.text(option, *names)
        if text is None:
            return None
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,12}", text, re.ASCII) else None
        if number is None or not low <= number <= high:
            entry = self.entry(*names)
            shown = f"'{text[:40]}'" if text else "nothing"
            raise self.refusal(entry, f"{shown} given; must be a whole number from {low} to {high}")
        return number

    def switch(self, option: str, *names: str, default: bool = False) -> bool:
        """A flag that is there or not, or given as true, 1, on; `default` also where it is not known."""
        text = self.text(option, *names)
        entry = self.entry(*names)
        if entry is None or text is None:
            return default
        if entry.name in self.table and self.table[entry.name].kind == "switch":
            return True
        lowered = text.lower()
        if lowered in ("", "1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off", "none"):
            return False
        raise self.refusal(entry, f"'{text[:40]}' given; must be true or false")

    def refusal(self, entry: Entry | None, problem: str) -> InputError:
        """The error that refuses a value."""
        if entry is None:
            return InputError(f"{self.file}: {problem}")
        return InputError(f"{entry.place.file}:{entry.value_line}: {entry.spelled}: {problem}")

    def need(self, causes: Iterable[Cause], option: str) -> None:
        """Note that an option waits for values that only the run knows."""
        self.incomplete.add(option)
        self._note(causes, (option,))

    def _note(self, causes: Iterable[Cause], options: Iterable[str]) -> None:
        for cause in sorted(causes):
            line, affected = self._causes.setdefault(cause.name, (cause.line, set()))
            affected.update(options)
            self._causes[cause.name] = (min(line, cause.line) or cause.line, affected)

    def note_others(self) -> None:
        """Note unknown values of flags that nothing here needs."""
        for entries in self.entries.values():
            for entry in entries:
                self._note(entry.causes, ())

    def flags(self) -> tuple[GivenFlag, ...]:
        """The flags as given, the last of each."""
        last = (entries[-1] for entries in self.entries.values() if entries)
        return tuple(GivenFlag(entry.spelled.lstrip("-"), entry.text, entry.place) for entry in last)

    def unknowns(self) -> tuple[Unknown, ...]:
        """What only the run knows, those that something waits for first."""
        found = [
            Unknown(name, Place(self.file, max(line, 1)), tuple(sorted(options)))
            for name, (line, options) in self._causes.items()
        ]
        return tuple(sorted(found, key=lambda u: (not u.affects, u.place.line, u.name)))

    # Saying.

    def remark(self, rule: str, severity: Severity, message: str, *names: str, fix: str = "") -> None:
        """Say something about a flag."""
        entry = self.entry(*names) if names else None
        self.remarks.append(Remark(rule, severity, message, entry.value_place if entry else None, fix))

    def not_modelled(self, message: str, *names: str, fix: str = "") -> None:
        """Say of flags that what they ask for is not modelled, so that nothing firm can be said."""
        self.remark("not-modelled", "error", message, *names, fix=fix)

    def remark_line(  # noqa: PLR0913  what a remark is made of
        self, rule: str, severity: Severity, message: str, line: int, *, file: str = "", fix: str = ""
    ) -> None:
        """Say something about a line, of another file where one is named."""
        self.remarks.append(Remark(rule, severity, message, Place(file or self.file, max(line, 1)), fix))

    def remark_key(self, key: Key, message: str, rule: str = "not-modelled", severity: Severity = "error") -> None:
        """Say something about a key of a configuration file."""
        self.remark_line(rule, severity, message, key.line, file=key.file)

    def note_unset(self, names: Iterable[str]) -> None:
        """Say which variables of the environment were taken as not set, if any."""
        shown = ", ".join(f"${name}" for name in sorted(names)[:_MOST_SHOWN])
        if shown:
            self.remark_line("assumed-unset", "note", f"taken as not set: {shown}", 1, fix="--set NAME=VALUE")

    def complete_names(self) -> None:
        """Take a name that only one flag starts with for that flag, as argparse does unless it is told not to."""
        known = {*self.table, *self.known}
        for name in [name for name in self.entries if name not in known]:
            longer = [one for one in known if one.startswith(name)]
            if len(longer) == 1:
                last = self.entries[name][-1]
                said = f"{last.spelled} is taken for {longer[0]}, the only flag that starts so"
                self.remarks.append(Remark("abbreviated-flag", "note", said, last.place))
                whole = [replace(entry, name=longer[0], spelled=longer[0]) for entry in self.entries.pop(name)]
                self.entries.setdefault(longer[0], []).extend(whole)

    def remark_repeated(self) -> None:
        """Say which flags are given more than once."""
        for name, entries in self.entries.items():
            flag = self.table.get(name)
            if len(entries) < 2 or (flag is not None and flag.kind == "list"):
                continue
            shown = ", then ".join(_shown(entry) for entry in entries)
            if entries[-1].place.file != entries[-2].place.file:
                said = f"{entries[-1].spelled} replaces what {entries[-2].place.file} gives: {shown}"
                self.remarks.append(Remark("override", "note", said, entries[-1].place))
                continue
            same = len({entry.text for entry in entries}) == 1
            self.remarks.append(
                Remark(
                    "repeated-flag",
                    "note" if same else "warning",
                    f"{entries[-1].spelled} is given {len(entries)} times: {shown}; the last one counts",
                    entries[-1].place,
                    "" if same else f"keep one {entries[-1].spelled}",
                )
            )

    def remark_unread(self) -> None:
        """Say which flags are not read: those that no table has, and those that are known and not modelled."""
        names = (*self.table, *self.known)
        for name, entries in self.entries.items():
            if name in self.known:
                continue
            last, flag = entries[-1], self.table.get(name)
            if flag is not None:
                self._remark_unpriced(last, flag)
            elif self.complete or not is_irrelevant(name):
                said = f"{last.spelled} is not read; it may change memory or speed{misspelled(name, names)}"
                self.remarks.append(Remark("unknown-flag", "error", said, last.place))

    def _remark_unpriced(self, entry: Entry, flag: Flag) -> None:
        if flag.effect != "not_modelled" or (not entry.causes and entry.values and flag.is_off(entry.text)):
            return
        severity: Severity = "error" if flag.weight == "verdict" else "warning"
        rule = {"bound": "upper-bound", "activations": "activations-bound"}.get(flag.weight, "not-modelled")
        self.remarks.append(Remark(rule, severity, f"{entry.spelled}: {flag.about}", entry.value_place))


def _shown(entry: Entry) -> str:
    what = f"'{entry.text[:40]}'" if entry.values else "bare"
    return f"{what} on line {entry.place.line}"


def _only_arguments(word: Value) -> bool:
    """Whether a word is nothing but the script's own arguments."""
    whole = all(piece.causes or not piece.text for piece in word.pieces)
    return whole and bool(word.causes) and all(cause.name in ARGUMENTS for cause in word.causes)


def _starts_flag(word: Value) -> bool:
    text = word.text
    return bool(word.pieces) and word.pieces[0].known and re.match(r"--?[A-Za-z_]", text) is not None


def half_precision(given: Given, *, bf16: bool, fp16: bool) -> str | None:
    """The 16-bit type that two switches choose; None, with a remark, where they choose none or both are unknown."""
    if bf16 and fp16:
        given.remark("contradiction", "error", "bf16 and fp16 are both on", "fp16", fix="drop one of them")
    if "precision" in given.incomplete:
        return None
    if not (bf16 or fp16):
        given.remark("not-modelled", "error", "neither bf16 nor fp16: what the trainer then trains in is not read")
        return None
    return "bf16" if bf16 else "fp16"
