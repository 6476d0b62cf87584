"""The flags of one launch, the keys of one file or the settings that a log prints, each with its line.

`Arguments` holds what a run says in its framework's words, and gathers what reading it leaves to say: which line each
setting came from (`places`), which settings wait for values that only the run knows (`incomplete`), and remarks. One
occurrence of a flag is an `Argument`; what is known of the flag in every run stands in its table (`flags.Flag`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.errors import InputError
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import Flag, FlagTable
from simulator.frameworks.names import is_harmless, is_irrelevant, misspelled, plain
from simulator.frameworks.remarks import GivenFlag, Place, Remark, Severity, Unknown
from simulator.frameworks.values import Cause, PlainValue, known_value

OFF: Final = ("false", "none", "null", "", "0")
"""Values of a key that is as if it were not there, in lower case."""
ANY_FLAG: Final = "any_other_flag"
"""What a text of unknown flags decides."""
_MOST_SHOWN: Final = 12
"""Variables that one remark names."""
_BY_ABSENCE: Final = ("full-precision", "no-vocabulary", "no-sequence-parallel")
"""Remarks on a flag that is not there."""
_BOUND_RULES: Final = {"bound": "upper-bound", "activations": "activations-bound"}
"""Remarks on flags that are not priced and only lessen the need."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One occurrence of a flag or key."""

    name: str
    """As the tables spell it."""
    spelled: str
    """As the run spells it."""
    values: tuple[PlainValue, ...]
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

    @property
    def is_off(self) -> bool:
        """Whether the flag says that it is as if it were not there: `false`, `none`, `0`."""
        return not self.causes and bool(self.values) and self.text.lower() in OFF


class Arguments:
    """What a run says in its framework's words. Reading an unknown value notes what needs it."""

    def __init__(self, file: str, table: FlagTable, *, complete: bool = False) -> None:
        """`complete` says that the table has all of the framework's flags: no other name is then passed over."""
        self.file = file
        self.table = table
        self.complete = complete
        self.passed: set[str] = set()
        """Names beside the table's that may be passed over."""
        self.entries: dict[str, list[Argument]] = {}
        self.places: dict[str, Place] = {}
        self.remarks: list[Remark] = []
        self.incomplete: set[str] = set()
        """Settings whose value only the run knows."""
        self.devices: int | None = None
        """Processes that are started, where only their number is said."""
        self.nodes: int | None = None
        """Nodes, where a configuration file says them."""
        self.devices_per_node: int | None = None
        """Processes of a node, likewise."""
        self.settings: Mapping[str, str] = {}
        """What the user tells of what the recipe leaves to the run."""
        self.keys_beside: Sequence[Key] = ()
        """Keys of another file that tells the program which is started."""
        self.used: set[str] = set()
        """Settings that something depends on."""
        self.bags: set[Cause] = set()
        """Texts that may hold any flag."""
        self.maybe: dict[str, frozenset[Cause]] = {}
        """Flags that are there on some paths only, by name."""
        self._causes: dict[str, tuple[int, set[str]]] = {}

    # What is there.

    def add(self, name: str, values: Sequence[PlainValue], line: int, file: str = "") -> None:
        """Take one flag or key, of another file where one is named."""
        place = Place(file or self.file, max(line, 1))
        self.entries.setdefault(plain(name), []).append(Argument(plain(name), name[:80], tuple(values), place))

    def add_key(self, name: str, values: Sequence[PlainValue], line: int, file: str = "") -> None:
        """Take a flag that is given as a key with a value: `true` is a switch, and one that is off is not there."""
        name = plain(name)
        flag = self.table.get(name)
        lowered = " ".join(value.text for value in values).lower()
        known = all(value.known for value in values)
        if flag is not None and flag.kind == "switch":
            opposite = any(text == "!" for _, text in flag.aliases())
            if lowered not in OFF or not known:
                self.add(name, () if known else values, line, file)
            elif opposite:
                self.add(name, (known_value("false", line),), line, file)
        elif lowered not in ("none", "null") or not known:
            self.add(name, values, line, file)

    def add_as(self, flag: Flag, values: Sequence[PlainValue], line: int, file: str = "") -> bool:
        """Take a key of another framework for the flags whose other name it is; False where it is of none."""
        lowered = " ".join(value.text for value in values).lower()
        off = lowered in OFF and all(value.known for value in values)
        pairs = list(flag.aliases())
        for name, text in pairs:
            if not text:
                self.add_key(name, values, line, file)
            elif off == (text == "!"):
                self.add(name, [] if text == "!" else [known_value(text, line)], line, file)
        return bool(pairs)

    def add_defaults(self, flags: Iterable[str], line: int, without: Iterable[str] = ()) -> None:
        """Take flags that the framework sets itself, `name` or `name=value`, unless the run or `without` has them."""
        left_out = frozenset(without)
        for flag in flags:
            name, equals, text = flag.partition("=")
            if not self.has(name) and plain(name) not in left_out:
                self.add(name, [known_value(text, line)] if equals else [], line)

    def note_bags(self, absent: Mapping[str, bool]) -> None:
        """Note what waits for texts that may hold any flag: every flag, and what nothing else tells."""
        if not self.bags:
            return
        for option in (ANY_FLAG, *(name for name, missing in absent.items() if missing)):
            self.need(self.bags, option)
        self.remarks = [remark for remark in self.remarks if remark.place and remark.rule not in _BY_ABSENCE]

    # Reading.

    def entry(self, *names: str) -> Argument | None:
        """The flag under the first of these names that it is given by, its other names included; the last one given."""
        for name in map(plain, names):
            if self.entries.get(name):
                return self.entries[name][-1]
            other = next(self._by_alias(name), None)
            if other is not None:
                return other
        return None

    def _by_alias(self, name: str) -> Iterator[Argument]:
        """A flag as its other names give it."""
        for flag, text in self.table.aliases.get(name, ()):
            for argument in self.entries.get(flag.name, ())[-1:]:
                off = argument.is_off
                if text == "!":
                    yield from (replace(argument, values=()),) if off else ()
                elif not text or (argument.causes and not off):
                    yield argument
                elif not off:
                    yield replace(argument, values=(known_value(text, argument.value_line),))

    def has(self, *names: str) -> bool:
        """Whether a flag is given."""
        return self.entry(*names) is not None

    def text(self, option: str, *names: str) -> str | None:
        """A flag's text; None where it is absent or not known. `option` is the setting that it tells."""
        entry = self.entry(*names)
        if entry is None:
            for name in map(plain, names):
                others = (flag.name for flag, _ in self.table.aliases.get(name, ()))
                for other in self.maybe.keys() & {name, *others}:
                    self.need(self.maybe[other], option)
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
            shown = f"'{text[:40]}'" if text else "nothing"
            raise self.refusal(self.entry(*names), f"{shown} given; must be a whole number from {low} to {high}")
        return number

    def share(self, option: str, *names: str, most: float = 1.0) -> str | None:
        """A number from 0 to `most`, as text; None where it is absent or not known. Raises InputError."""
        text = self.text(option, *names)
        if text is not None and (
            not re.fullmatch(r"[0-9]{0,3}\.?[0-9]{0,9}", text, re.ASCII) or not 0.0 <= float(text or "-1") <= most
        ):
            raise self.refusal(self.entry(*names), f"'{text[:40]}' given; must be a number from 0 to {most:g}")
        return text

    def integers(self, option: str, name: str) -> list[int]:
        """Whole numbers, by commas or blanks, in brackets or not; none where absent or not known. Raises InputError."""
        text = (self.text(option, name) or "").strip("\"'[] ")
        words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
        if not all(re.fullmatch(r"[0-9]{1,6}", word, re.ASCII) for word in words) or len(words) > 4096:
            raise self.refusal(self.entry(name), f"'{text[:40]}' given; must be a list of whole numbers")
        return [int(word) for word in words]

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

    def any_switch(self, option: str, *names: str) -> bool:
        """Whether one of several flags is on."""
        return any(self.switch(option, name) for name in names)

    def refusal(self, entry: Argument | None, problem: str) -> InputError:
        """The error that refuses a value."""
        if entry is None:
            return InputError(f"{self.file}: {problem}")
        return InputError(f"{entry.place.file}:{entry.value_line}: {entry.spelled}: {problem}")

    def forget(self, *options: str) -> None:
        """Leave out the lines of settings that are none of a question's."""
        for option in options:
            self.places.pop(option, None)

    def need(self, causes: Iterable[Cause], option: str) -> None:
        """Note that an option waits for values that only the run knows."""
        self.incomplete.add(option)
        self.note(causes, (option,))

    def note(self, causes: Iterable[Cause], options: Iterable[str] = ()) -> None:
        """Note values that only the run knows, and the settings that wait for them."""
        for cause in sorted(causes):
            line, affected = self._causes.setdefault(cause.name, (cause.line, set()))
            affected.update(options)
            self._causes[cause.name] = (min(line, cause.line) or cause.line, affected)

    def note_others(self) -> None:
        """Note unknown values of flags that nothing here needs."""
        for entries in self.entries.values():
            for entry in entries:
                self.note(entry.causes)

    def flags(self) -> tuple[GivenFlag, ...]:
        """The flags as given, the last of each."""
        last = (entries[-1] for entries in self.entries.values() if entries)
        return tuple(GivenFlag(entry.spelled.lstrip("-"), entry.text, entry.place) for entry in last)

    def unknowns(self) -> tuple[Unknown, ...]:
        """What only the run knows, those that something waits for first."""
        unknowns = [
            Unknown(name, Place(self.file, max(line, 1)), tuple(sorted(options)))
            for name, (line, options) in self._causes.items()
        ]
        return tuple(sorted(unknowns, key=lambda u: (not u.affects, u.place.line, u.name)))

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
        for name in [name for name in self.entries if name not in self.table]:
            longer = [flag for flag in self.table if flag.startswith(name)]
            if len(longer) == 1:
                last = self.entries[name][-1]
                message = f"{last.spelled} is taken for {longer[0]}, the only flag that starts so"
                self.remarks.append(Remark("abbreviated-flag", "note", message, last.place))
                whole = [replace(entry, name=longer[0], spelled=longer[0]) for entry in self.entries.pop(name)]
                self.entries.setdefault(longer[0], []).extend(whole)

    def remark_repeated(self) -> None:
        """Say which flags are given more than once."""
        for name, entries in self.entries.items():
            flag = self.table.get(name)
            if len(entries) < 2 or (flag is not None and flag.kind == "list" and flag.effect != "no_effect"):
                continue
            shown = ", then ".join(_shown(entry) for entry in entries)
            if entries[-1].place.file != entries[-2].place.file:
                message = f"{entries[-1].spelled} replaces what {entries[-2].place.file} gives: {shown}"
                self.remarks.append(Remark("override", "note", message, entries[-1].place))
                continue
            same = len({entry.text for entry in entries}) == 1
            message = f"{entries[-1].spelled} is given {len(entries)} times: {shown}; the last one counts"
            fix = "" if same else f"keep one {entries[-1].spelled}"
            self.remarks.append(Remark("repeated-flag", "note" if same else "warning", message, entries[-1].place, fix))

    def remark_unread(self) -> None:
        """Say which flags are not read: those that no table has, and those that are known and not modelled."""
        for name, entries in self.entries.items():
            if name in self.passed:
                continue
            last, flag = entries[-1], self.table.of(name)
            if flag is not None:
                self._remark_unpriced(last, flag)
            elif not is_harmless(name) and (self.complete or not is_irrelevant(name)):
                message = f"{last.spelled} is not read; it may change memory or speed{misspelled(name, self.table)}"
                self.remarks.append(Remark("unknown-flag", "error", message, last.place))

    def _remark_unpriced(self, entry: Argument, flag: Flag) -> None:
        if flag.effect != "not_modelled" or (not entry.causes and entry.values and flag.is_off(entry.text)):
            return
        severity: Severity = "error" if flag.weight == "verdict" else "warning"
        rule = _BOUND_RULES.get(flag.weight, "not-modelled")
        self.remarks.append(Remark(rule, severity, f"{entry.spelled}: {flag.about}", entry.value_place))


def _shown(entry: Argument) -> str:
    what = f"'{entry.text[:40]}'" if entry.values else "bare"
    return f"{what} on line {entry.place.line}"


def half_precision(arguments: Arguments, *, bf16: bool, fp16: bool) -> str | None:
    """The 16-bit type that two switches choose; None, with a remark, where they choose none or both are unknown."""
    if bf16 and fp16:
        arguments.remark("contradiction", "error", "bf16 and fp16 are both on", "fp16", fix="drop one of them")
    if "precision" in arguments.incomplete:
        return None
    if not (bf16 or fp16):
        message = "neither bf16 nor fp16: what the trainer then trains in is not read"
        arguments.remark("not-modelled", "error", message)
        return None
    return "bf16" if bf16 else "fp16"
