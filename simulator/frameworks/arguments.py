"""Records of a training command (launcher, script, arguments, environment) and of the run that it makes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args

from simulator import records
from simulator.errors import InputError
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import ALIAS, Flag, FlagTable, is_harmless, is_irrelevant, misspelled, plain
from simulator.frameworks.values import Cause, PlainValue, known_value
from simulator.question.origin import Bound, Place, RecipeFlag, Remark, Severity, Unknown
from simulator.question.recipe import Recipe
from simulator.question.scenario.inputs import LARGEST_COUNT
from simulator.question.scenario.layout import SETTINGS
from simulator.question.specs.model import ModelSpec

LauncherName = Literal["torch", "paddle", "deepspeed", "msrun", "python", "accelerate", "other"]


@dataclass(frozen=True)
class LaunchCommand:
    """A command that starts training."""

    launcher: LauncherName
    program: str
    """Name of the program that is called: `torchrun`, `swift`, `python`."""
    line: int
    script: PlainValue
    """Training script, or subcommand of a command line tool."""
    arguments: tuple[PlainValue, ...]
    options: Mapping[str, PlainValue]
    """Options of the launcher, by name with underscores."""
    environment: Mapping[str, PlainValue]
    conditions: frozenset[Cause] = field(default_factory=frozenset)
    """What decides whether the command runs at all."""
    spread: Mapping[str, PlainValue] = field(default_factory=dict)
    """How `srun` or `mpirun` distributes it: `starter`, `nodes`, `tasks`, `tasks_per_node`."""
    in_front: frozenset[Cause] = field(default_factory=frozenset)
    """What unknown words in front of the program depend on; they may start it on any machines."""
    open_options: frozenset[Cause] = field(default_factory=frozenset)
    """What unknown words among the launcher's options depend on."""
    written: Callable[[str], PlainValue | None] = field(default=lambda _name: None, compare=False)
    """Return the text that the script left in a file by its name; None if it wrote none that may be this one."""
    folder: str = ""
    """Folder that the command runs in, from the script's own on; empty for that, or an unknown one."""

    @functools.cached_property
    def flags(self) -> frozenset[str]:
        """Names of the flags among its arguments, as tables spell them."""
        return frozenset(plain(text.partition("=")[0]) for text in self.texts if text.startswith("--"))

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        """Texts of its arguments."""
        return tuple([value.text for value in self.arguments])


OFF: Final = ("false", "none", "null", "", "0")
"""Values, in lower case, that mean the same as an absent key."""
ANY_FLAG: Final = "any_other_flag"
"""Setting that depends on text which may hold any flag."""
_MOST_SHOWN: Final = 12  # most variables that one remark names
_BY_ABSENCE: Final = ("full-precision", "no-vocabulary", "no-sequence-parallel")
"""Rules whose remarks rest on the absence of a flag."""
_BOUND_RULES: Final[Mapping[str, tuple[str, Bound]]] = {
    "bound": ("upper-bound", ""),
    "state": ("upper-bound", "state"),
    "length": ("upper-bound", "length"),
    "activations": ("activations-bound", ""),
}  # rules and bounds of flags that are not priced and only lower the need, by their weight


LARGEST_OF_WORKLOAD: Final = {
    "seq_length": 2**27,
    "global_batch_size": 2**27,
    "gradient_accumulation_steps": 2**20,
    "lora_rank": 2**16,
}
"""Largest count of each numeric workload field; the other fields hold text."""


@functools.cache
def largest_of(setting: str) -> int | None:
    """Return the largest count of a model's field or of a workload; None for other settings."""
    kind = ModelSpec.field_types(limits=True).get(setting)
    if kind is None:
        return LARGEST_OF_WORKLOAD.get(setting)
    parts = (info for part in (kind, *get_args(kind)) for info in getattr(part, "__metadata__", ()))
    return min((info.limits["le"] for info in parts if "le" in info.limits), default=LARGEST_COUNT)


@dataclass(frozen=True, slots=True)
class Argument:
    """One occurrence of a flag or key."""

    name: str
    spelled: str
    """Name as in the run."""
    values: tuple[PlainValue, ...]
    place: Place
    """Place of the flag itself."""

    @property
    def value_place(self) -> Place:
        """Place that sets the value."""
        line = self.value_line
        return self.place if line == self.place.line else Place(self.place.file, line)

    @property
    def value_line(self) -> int:
        """Line that sets the value; the flag's without one."""
        return next((value.line for value in self.values if value.line), self.place.line)

    @property
    def text(self) -> str:
        """The values, joined by blanks."""
        return " ".join(value.text for value in self.values)

    @property
    def causes(self) -> frozenset[Cause]:
        """What unknown values depend on."""
        return frozenset().union(*[value.causes for value in self.values])

    @property
    def is_off(self) -> bool:
        """Whether the value is known to mean the same as an absent flag: `false`, `none`, `0`."""
        return not self.causes and bool(self.values) and self.text.lower() in OFF


class Arguments:
    """The words of one run. Reading an unknown value records which setting needs it."""

    def __init__(self, file: str, table: FlagTable, *, complete: bool = False) -> None:
        """`complete` says that the table lists every flag of the framework, so that any other name is an error."""
        self.file = file
        self.table = table
        self.complete = complete
        self.passed: set[str] = set()
        """Names beyond the table's that may be ignored."""
        self.entries: dict[str, list[Argument]] = {}
        self.places: dict[str, Place] = {}
        self.remarks: list[Remark] = []
        self.incomplete: set[str] = set()
        """Settings whose value only the run knows."""
        self.devices: int | None = None
        """Number of processes, where nothing states nodes."""
        self.nodes: int | None = None
        """Number of nodes, where a configuration file states it."""
        self.devices_per_node: int | None = None
        """Processes per node, where a configuration file states them."""
        self.settings: Mapping[str, str] = {}
        """Values that the user sets for what the recipe leaves to the run."""
        self.keys_beside: Sequence[Key] = ()
        """Keys of another file, which identifies the program that is started."""
        self.used: set[str] = set()
        """Settings of the user's that were used."""
        self.defaults: set[str] = set()
        """Flags that the framework sets by itself."""
        self.bags: set[Cause] = set()
        """Causes of texts that may hold any flag."""
        self.maybe: dict[str, frozenset[Cause]] = {}
        """Flags that are set on some paths only, by name, with what that depends on."""
        self._causes: dict[str, tuple[int, set[str]]] = {}

    # Flags and keys.

    def add(self, name: str, values: Sequence[PlainValue], line: int, file: str = "") -> None:
        """Add a flag or key; `file` is the file of its line, by default the recipe's."""
        place, known = Place(file or self.file, max(line, 1)), plain(name)
        self.entries.setdefault(known, []).append(Argument(known, name[:80], tuple(values), place))

    def add_keys(self, keys: Iterable[Key], file: str = "") -> None:
        """Add keys of a configuration file by their dotted names; `file` is that of keys which name none."""
        for key in keys:
            self.add(key.dotted, key.values, key.line, key.file or file)

    def add_key(self, name: str, values: Sequence[PlainValue], line: int, file: str = "") -> None:
        """Add a flag stated as a key with a value: `true` turns a switch on, and keys that are off are dropped."""
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
        """Add a key of another framework as the flags that it is an alias of; False where it is none."""
        off = " ".join(value.text for value in values).lower() in OFF and all(value.known for value in values)
        pairs = list(flag.aliases())
        for name, text in pairs:
            if not text:
                self.add_key(name, values, line, file)
            elif off == (text == "!"):
                self.add(name, [] if text == "!" else [known_value(text, line)], line, file)
        return bool(pairs)

    def add_defaults(self, flags: Iterable[str], line: int, without: Iterable[str] = ()) -> None:
        """Add flags that the framework sets by itself, `name` or `name=value`, unless set or in `without`."""
        left_out = frozenset(without)
        for flag in flags:
            name, equals, text = flag.partition("=")
            if not self.has(name) and plain(name) not in left_out:
                self.add(name, [known_value(text, line)] if equals else [], line)
                self.defaults.add(plain(name))

    def leave_sections(self, *sections: str) -> None:
        """Take keys of sections by their own names: `ds.lora.rank` of `ds` is `lora_rank`."""
        for name in [name for name in self.entries if name.partition(".")[0] in sections and name not in self.table]:
            self.entries.setdefault(name.partition(".")[2].replace(".", "_"), []).extend(self.entries.pop(name))

    # Reading.

    def entry(self, *names: str) -> Argument | None:
        """Return the last occurrence of the first of these names that is set, aliases included; None without one."""
        for name in map(plain, names):
            if self.entries.get(name):
                return self.entries[name][-1]
            other = next(self._by_alias(name), None)
            if other is not None:
                return other
        return None

    def _by_alias(self, name: str) -> Iterator[Argument]:
        """Yield the occurrences of a flag's aliases, with the value that they set for it."""
        for flag, text in self.table.aliases.get(name, ()):
            for argument in self.entries.get(flag.name, ())[-1:]:
                off = argument.is_off
                if text == "!":
                    yield from (replace(argument, values=()),) if off else ()
                elif not text or (argument.causes and not off):
                    yield argument
                elif not off:
                    yield replace(argument, values=(known_value(text, argument.value_line),))

    def mentioned(self) -> set[str]:
        """Return the names of flags that are set on some path, and those that they are aliases of."""
        names = {*(name for name, entries in self.entries.items() if entries), *self.maybe}
        others = (flag for name in names if (flag := self.table.get(name)) is not None and ALIAS in flag.sets)
        return names.union(each for flag in others for each, _ in flag.aliases())

    def has(self, *names: str) -> bool:
        """Whether a flag is set."""
        return self.entry(*names) is not None

    def text(self, option: str, *names: str) -> str | None:
        """Return a flag's text; None where absent or unknown. `option` is the setting that depends on it."""
        entry = self.entry(*names)
        if entry is None:
            for name in map(plain, names) if self.maybe else ():
                others = (flag.name for flag, _ in self.table.aliases.get(name, ()))
                for other in self.maybe.keys() & {name, *others}:
                    self.need(self.maybe[other], option)
            return None
        if option not in self.places:
            self.places[option] = entry.value_place
        if causes := entry.causes:
            self.need(causes, option)
            return None
        return entry.text

    def integer(self, option: str, *names: str, low: int = 1, high: int | None = None) -> int | None:
        """Return a whole number up to `high` and its setting's largest; None where it is unknown. Raises InputError."""
        text = self.text(option, *names)
        if text is None:
            return None
        high = min(filter(None, (high, largest_of(option))), default=LARGEST_COUNT)
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,12}", text, re.ASCII) else None
        if number is None or not low <= number <= high:
            shown = f"'{text[:40]}'" if text else "nothing"
            raise self.refusal(self.entry(*names), f"{shown} given; must be a whole number from {low} to {high}")
        return number

    def share(self, option: str, *names: str, most: float = 1.0) -> str | None:
        """Return a number from 0 to `most`, as text; None where absent or unknown. Raises InputError."""
        text = self.text(option, *names)
        if text is not None and (
            not re.fullmatch(r"[0-9]{0,3}\.?[0-9]{0,9}", text, re.ASCII) or not 0.0 <= float(text or "-1") <= most
        ):
            raise self.refusal(self.entry(*names), f"'{text[:40]}' given; must be a number from 0 to {most:g}")
        return text

    def integers(self, option: str, name: str) -> list[int]:
        """Return whole numbers separated by commas or blanks; empty where absent or unknown. Raises InputError."""
        text = (self.text(option, name) or "").strip("\"'[] ")
        words = [word for word in re.split(r"[\s,\[\]]+", text) if word]
        if not all(re.fullmatch(r"[0-9]{1,6}", word, re.ASCII) for word in words) or len(words) > 4096:
            raise self.refusal(self.entry(name), f"'{text[:40]}' given; must be a list of whole numbers")
        return [int(word) for word in words]

    def switch(self, option: str, *names: str, default: bool = False) -> bool:
        """Whether a flag is set, alone or as true, 1, on; `default` where absent or unknown. Raises InputError."""
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
        """Return the error that refuses a value."""
        if entry is None:
            return InputError(f"{self.file}: {problem}")
        return InputError(f"{entry.place.file}:{entry.value_line}: {entry.spelled}: {problem}")

    def forget(self, *options: str) -> None:
        """Drop the places of settings that a flag bears on without stating them."""
        for option in options:
            self.places.pop(option, None)

    def need(self, causes: Iterable[Cause], *options: str) -> None:
        """Record that options depend on values that only the run knows."""
        self.incomplete.update(options)
        self.note(causes, options)

    def note(self, causes: Iterable[Cause], options: Iterable[str] = ()) -> None:
        """Record values that only the run knows and the settings that depend on them."""
        for cause in sorted(causes):
            line, affected = self._causes.setdefault(cause.name, (cause.line, set()))
            affected.update(options)
            self._causes[cause.name] = (min(line, cause.line) or cause.line, affected)

    def flags(self) -> tuple[RecipeFlag, ...]:
        """Return the last occurrence of each flag."""
        last = (entries[-1] for entries in self.entries.values() if entries)
        return tuple(RecipeFlag(entry.spelled.lstrip("-"), entry.text, entry.place) for entry in last)

    def unknowns(self) -> tuple[Unknown, ...]:
        """Return the values that only the run knows; those that settings depend on come first."""
        unknowns = [
            Unknown(name, Place(self.file, max(line, 1)), tuple(sorted(options)))
            for name, (line, options) in self._causes.items()
        ]
        return tuple(sorted(unknowns, key=lambda u: (not u.affects, u.place.line, u.name)))

    # Remarks.

    def remark(
        self, rule: str, severity: Severity, message: str, *names: str, fix: str = "", bound: Bound = ""
    ) -> None:
        """Add a remark on the first set flag of `names`; `bound` as of `Remark`."""
        entry = self.entry(*names) if names else None
        self.remarks.append(Remark(rule, severity, message, entry.value_place if entry else None, fix, bound=bound))

    def not_modelled(self, message: str, *names: str, fix: str = "") -> None:
        """Add the remark that flags ask for something that is not modelled, which rules out a firm verdict."""
        self.remark("not-modelled", "error", message, *names, fix=fix)

    def remark_line(  # noqa: PLR0913  what a remark is made of
        self, rule: str, severity: Severity, message: str, line: int, *, file: str = "", fix: str = ""
    ) -> None:
        """Add a remark on a line; `file` is its file, by default the recipe's."""
        self.remarks.append(Remark(rule, severity, message, Place(file or self.file, max(line, 1)), fix))

    def remark_key(
        self, key: Key, message: str, rule: str = "not-modelled", severity: Severity = "error", *, bound: Bound = ""
    ) -> None:
        """Add a remark on a key of a configuration file; `bound` as of `Remark`."""
        place = Place(key.file or self.file, max(key.line, 1))
        self.remarks.append(Remark(rule, severity, message, place, bound=bound))

    def note_unset(self, places: Mapping[str, tuple[str, int]]) -> None:
        """Remark the environment variables that are assumed to be unset, where the first of them stands."""
        shown = ", ".join(f"${name}" for name in sorted(places)[:_MOST_SHOWN])
        for file, line in sorted(places.values())[:1]:
            message = f"taken as not set: {shown}"
            self.remark_line("assumed-unset", "note", message, line, file=file, fix="--set NAME=VALUE")

    def in_file(self, run: Recipe, dialect: str, **changes: Any) -> Recipe:
        """Return the run of a configuration file, in the file's format, with the machines that it states."""
        run = records.replace(run, nodes=self.nodes, devices_per_node=self.devices_per_node)
        return records.replace(run, file=self.file, dialect=dialect, **changes)

    def complete_names(self) -> None:
        """Expand abbreviated flags that match only one flag of the table, as argparse does by default."""
        for name in [name for name in self.entries if name not in self.table]:
            longer = [flag for flag in self.table if flag.startswith(name)]
            if len(longer) == 1:
                last = self.entries[name][-1]
                message = f"{last.spelled} is taken for {longer[0]}, the only flag that starts so"
                self.remarks.append(Remark("abbreviated-flag", "note", message, last.place))
                whole = [replace(entry, name=longer[0], spelled=longer[0]) for entry in self.entries.pop(name)]
                self.entries.setdefault(longer[0], []).extend(whole)

    def remark_repeated(self) -> None:
        """Remark flags that are set more than once."""
        for name, entries in self.entries.items():
            flag = self.table.get(name)
            if len(entries) < 2 or (flag is not None and flag.kind == "list" and flag.effect != "no_effect"):
                continue
            texts = ((f"'{entry.text[:40]}'" if entry.values else "bare", entry.place.line) for entry in entries)
            shown = ", then ".join(f"{text} on line {line}" for text, line in texts)
            if entries[-1].place.file != entries[-2].place.file:
                message = f"{entries[-1].spelled} replaces what {entries[-2].place.file} gives: {shown}"
                self.remarks.append(Remark("override", "note", message, entries[-1].place))
                continue
            same = len({entry.text for entry in entries}) == 1
            message = f"{entries[-1].spelled} is given {len(entries)} times: {shown}; the last one counts"
            fix = "" if same else f"keep one {entries[-1].spelled}"
            self.remarks.append(Remark("repeated-flag", "note" if same else "warning", message, entries[-1].place, fix))

    def remark_unread(self) -> None:
        """Remark flags that are not read: those in no table, and those that are not modelled."""
        for name, entries in self.entries.items():
            if name in self.passed:
                continue
            last, flag = entries[-1], self.table.of(name)
            if flag is not None:
                self._remark_unpriced(last, flag)
            elif not is_harmless(name) and (self.complete or not is_irrelevant(name)):
                nearest = misspelled(name, self.table)
                message = f"{last.spelled} is not read; it may change memory or speed{nearest}"
                fix = "" if nearest else f"check the recipe without {last.spelled} to judge the rest"
                self.remarks.append(Remark("unknown-flag", "error", message, last.place, fix))

    def _remark_unpriced(self, entry: Argument, flag: Flag) -> None:
        if flag.effect != "not_modelled" or (not entry.causes and entry.values and flag.is_off(entry.text)):
            return
        severity: Severity = "error" if flag.weight == "verdict" else "warning"
        rule, bound = _BOUND_RULES.get(flag.weight, ("not-modelled", ""))
        self.remarks.append(Remark(rule, severity, f"{entry.spelled}: {flag.about}", entry.value_place, bound=bound))


def counted_by(arguments: Arguments, launch: LaunchCommand, *, processes: int | None) -> tuple[int | None, int | None]:
    """Return nodes and processes per node: `NNODES`, else one, and `NPROC_PER_NODE`, else `processes`; None unknown."""

    def count(name: str, option: str, default: int | None) -> int | None:
        value = launch.environment.get(name)
        if value is None:
            return default
        if not value.known:
            arguments.need(value.causes, option)
        return int(value.text) if value.known and re.fullmatch(r"[1-9][0-9]{0,5}", value.text, re.ASCII) else None

    return count("NNODES", "nodes", 1), count("NPROC_PER_NODE", "devices_per_node", processes)


def half_precision(arguments: Arguments, *, bf16: bool, fp16: bool) -> str | None:
    """Return the 16-bit type that two switches choose; None, with a remark unless unknown, where they choose none."""
    if bf16 and fp16:
        arguments.remark("contradiction", "error", "bf16 and fp16 are both on", "fp16", fix="drop one of them")
    if "precision" in arguments.incomplete:
        return None
    if not (bf16 or fp16):
        arguments.remark("not-modelled", "error", "neither bf16 nor fp16: what the trainer then trains in is not read")
        return None
    return "bf16" if bf16 else "fp16"


_LAYOUT_OPTIONS: Final = frozenset(setting.key for setting in SETTINGS) - {"dp", "recompute_layer_list"}
"""Settings without which a layout is incomplete."""


def finished(arguments: Arguments, recipe: Recipe) -> Recipe:
    """Return the recipe with all remarks, unknowns and places; its layout is None where a part of it is unknown."""
    arguments.remark_repeated()
    arguments.remark_unread()
    for entries in arguments.entries.values():
        for entry in entries:
            arguments.note(entry.causes)
    shaped = recipe.model is not None or "num_hidden_layers" in recipe.model_fields
    absent = {"model": not shaped, "seq_length": recipe.seq_length is None, "precision": not recipe.precision}
    if arguments.bags:  # every flag, and each absent setting, depends on texts that may hold any flag
        arguments.need(arguments.bags, ANY_FLAG, *(name for name, missing in absent.items() if missing))
        arguments.remarks = [each for each in arguments.remarks if each.place and each.rule not in _BY_ABSENCE]
    layout = None if arguments.incomplete & _LAYOUT_OPTIONS else recipe.layout
    if layout and arguments.devices and arguments.devices % layout.replica == 0:
        layout = records.replace(layout, data_parallel=arguments.devices // layout.replica)
        arguments.places["dp"] = arguments.places["devices"]
    return records.replace(
        recipe,
        layout=layout,
        places=arguments.places,
        flags=arguments.flags(),
        unknowns=arguments.unknowns(),
        remarks=tuple(sorted(arguments.remarks, key=lambda remark: remark.place.line if remark.place else 0)),
    )
