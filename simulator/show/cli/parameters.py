"""Types of option values: bounded numbers, lists, words, names that complete in the shell. Defines no option."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from simulator.errors import InputError, did_you_mean
from simulator.question.specs.tables import words_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from simulator.question.specs.folders import SpecKind

    ParamType = click.ParamType[Any]
    Choice = click.Choice[str]
else:
    ParamType = click.ParamType
    Choice = click.Choice

LARGEST_SET = 4096
"""Most values that one option may list."""

_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_SPAN = re.compile(r"([+-]?[0-9]+)(?::([+-]?[0-9]+))?", re.ASCII)
_REPEATED = re.compile(r"([0-9]+)x([1-9][0-9]{0,3})", re.ASCII)
_BEFORE_SIZE = re.compile(r"(?:^|(?<=,))[^,@:]+")
"""Names in a text of one or several kinds of hardware, each followed by network or nodes."""


def shown(value: object) -> str:
    """Return a value quoted, shortened and printable, for a message."""
    text = str(value)
    text = text if len(text) <= 60 else text[:60] + "..."
    return "'" + "".join(mark if mark.isprintable() else "?" for mark in text) + "'"


class Read(ParamType, ABC):
    """Type that reads its value from a text; a value of another type, such as a default, stays."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text. Fails with a message where it is wrong."""
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except InputError as error:
            self.fail(str(error), param, ctx)

    @abstractmethod
    def read(self, text: str) -> Any:
        """Return the value of a text. Raises InputError that names the allowed texts."""

    def completions(self, incomplete: str) -> Iterable[str]:
        """Return candidates for completion; none by default."""
        del incomplete
        return ()

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the completions that begin with `incomplete`."""
        del ctx, param
        from click.shell_completion import CompletionItem  # noqa: PLC0415  only the shell asks for it

        return [CompletionItem(text) for text in self.completions(incomplete) if text.startswith(incomplete)]


class Whole(Read):
    """A whole number from ``low`` to ``high``; ``16k`` is 16,000."""

    name = "N"
    is_length = False
    """Whether K and M are powers of 1024."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def read(self, text: str) -> Any:
        """Return the number."""
        from simulator.question.units import parse_count  # noqa: PLC0415  start-up time

        try:
            number = int(text) if _WHOLE.fullmatch(text.strip()) else parse_count(text, length=self.is_length)
        except InputError:
            number = self.low - 1
        if not self.low <= number <= self.high:
            such = ", such as 8k" if self.is_length else ""
            raise InputError(f"{shown(text)} is not a whole number from {self.low} to {self.high}{such}")
        return number

    def _allows(self, digits: str) -> bool:
        return bool(_WHOLE.fullmatch(digits)) and self.low <= int(digits) <= self.high


class Length(Whole):
    """Tokens in a sequence, or in a batch: ``8k`` is 8192, ``4M`` is 4,194,304."""

    is_length = True


class Nodes(Whole):
    """Number of nodes; ``auto`` or ``auto:256`` searches the fewest on which a layout fits."""

    name = "N|auto"

    def read(self, text: str) -> Any:
        """Return the number, or the text of a search."""
        if not text.strip().startswith("auto"):
            return super().read(text)
        from simulator.search.fewest import most_nodes  # noqa: PLC0415  start-up time

        if most_nodes(text.strip()) is None:
            raise InputError(f"{shown(text)} is not auto or auto:N, such as auto:256")
        return text.strip()


class WholeList(Whole):
    """Whole numbers in the order given: ``18,21x2,20``; a range ``0:9`` counts up and includes both ends."""

    name = "LIST"

    def read(self, text: str) -> Any:
        """Return the numbers as a tuple."""
        numbers: list[int] = []
        for item in text.split(","):
            repeated = _REPEATED.fullmatch(item.strip())
            first, last = self._ends(repeated[1] if repeated else item.strip(), text)
            times = int(repeated[2]) if repeated else 1
            if len(numbers) + times * (last - first + 1) > LARGEST_SET:
                raise InputError(f"{shown(text)} lists more than {LARGEST_SET} values")
            numbers.extend([*range(first, last + 1)] * times)
        return self.arranged(numbers)

    def arranged(self, numbers: list[int]) -> tuple[int, ...]:
        """Return the numbers as a tuple, in the order given."""
        return tuple(numbers)

    def _ends(self, item: str, text: str) -> tuple[int, int]:
        item_text = shown(item) if item == text.strip() else f"{shown(text)}: {shown(item)}"
        span = _SPAN.fullmatch(item)
        if span is None:
            form = f"numbers from {self.low} to {self.high}, such as {self._example()}"
            raise InputError(f"{item_text} is not understood; write {form}")
        ends = [end for end in span.groups() if end is not None]
        if not all(map(self._allows, ends)):
            raise InputError(f"{item_text} is outside {self.low} to {self.high}")
        first, last = int(ends[0]), int(ends[-1])
        if first > last:
            raise InputError(f"{item_text} counts down; write {last}:{first}")
        return first, last

    def _example(self) -> str:
        middle, end = min(self.low + 1, self.high), min(self.low + 3, self.high)
        return f"{middle} or {self.low},{middle} or {self.low}:{end}"


class WholeSet(WholeList):
    """Distinct whole numbers to choose from, ascending."""

    def arranged(self, numbers: list[int]) -> tuple[int, ...]:
        """Return the distinct numbers, ascending."""
        return tuple(sorted(set(numbers)))


class Word(Choice):
    """One of a fixed set of words; the message on a wrong one names the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word."""
        if value not in self.choices:
            self.refuse(str(value), param, ctx)
        return value

    def refuse(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        """Fail with a message that names the allowed words."""
        choices = [str(choice) for choice in self.choices]
        self.fail(f"{shown(word)} is not one of {', '.join(choices)}{did_you_mean(word, choices)}", param, ctx)


class WordSet(Word):
    """Several of a fixed set of words: ``none,full``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the words as a tuple, in the order of the choices."""
        if not isinstance(value, str):
            return value
        words = {word.strip() for word in value.split(",")}
        for word in sorted(words - set(self.choices)):
            self.refuse(word, param, ctx)
        return tuple(word for word in self.choices if word in words)


class Tokens(Read):
    """A number of tokens, such as ``100B`` or ``1.5T``."""

    name = "TOKENS"

    def read(self, text: str) -> Any:
        """Return the number of tokens."""
        from simulator.question.units import parse_count  # noqa: PLC0415  start-up time

        tokens = parse_count(text)
        if not 1 <= tokens <= 10**18:
            raise InputError(f"{shown(text)} is not from 1 to 1e18 tokens")
        return tokens


class Price(Read):
    """An amount of zero or more, of money unless its name says another unit: ``2.5``, ``230k``, ``30d``."""

    name = "PRICE"

    def __init__(self, name: str = "") -> None:
        self.name = name or self.name

    def read(self, text: str) -> Any:
        """Return the amount."""
        from simulator.question import units  # noqa: PLC0415  start-up time

        factor = {"DAYS": 1, "HOURS": 24, "MINUTES": 1440}.get(self.name)
        try:
            of_time = {unit: days * factor for unit, days in units.DAYS.items()} if factor else {}
            amount = units.parse_number(text, of_time)
        except InputError:
            amount = math.nan
        if not 0 <= amount <= 1e9:
            such = f", such as 2.5{', 36h or 30d' if factor else ' or 230k'}"
            raise InputError(f"{shown(text)} is not a number from 0 to 1e9{such}")
        return amount


class PositiveAmount(Price):
    """An amount above zero."""

    name = "AMOUNT"

    def read(self, text: str) -> Any:
        """Return the amount."""
        amount = super().read(text)
        if amount == 0:
            raise InputError(f"{shown(text)} is not above 0")
        return amount


class Percentage(Read):
    """A share from 0 to 1; ``90%`` is 0.9."""

    name = "SHARE"

    zero = False
    """Whether 0 is allowed."""

    def read(self, text: str) -> Any:
        """Return the share."""
        number = text.strip()
        try:
            share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        except ValueError:
            share = math.nan
        if not (0 < share <= 1 or (self.zero and share == 0)):
            low = "from 0 to" if self.zero else "above 0 and up to"
            raise InputError(f"{shown(text)} is not {low} 1, such as 0.9 or 90%")
        return share


class PercentageOrZero(Percentage):
    """A share from 0 to 1, with 0 allowed."""

    zero = True


class OfferText(Read):
    """Offer of hardware: ``NAME:NODES@PRICE``; names complete in the shell."""

    name = "OFFER"

    def read(self, text: str) -> Any:
        """Return the offer."""
        from simulator.answers.offers import parse_offer  # noqa: PLC0415  start-up time

        return parse_offer(text)

    def completions(self, incomplete: str) -> Iterable[str]:
        """Return the shipped hardware."""
        return SpecName("hardware").completions(incomplete)


class Setting(Read):
    """A switch and its value: ``NAME=VALUE``."""

    name = "NAME=VALUE"

    empty = False
    """Whether the value may be empty."""

    def __init__(self, hint: str = "`simulate frameworks` lists the names") -> None:
        self.hint = hint

    def read(self, text: str) -> Any:
        """Return name and value."""
        name, equals, value = (part.strip() for part in text.partition("="))
        if not (name and equals and (value or self.empty)):
            raise InputError(f"{shown(text)} is not NAME=VALUE; {self.hint}")
        return name, value

    def completions(self, incomplete: str) -> Iterable[str]:
        """Return the switches, or after the equals sign the words that the switch allows."""
        from simulator.question.frameworks.profile import switches  # noqa: PLC0415  start-up time

        name, equals, _ = incomplete.partition("=")
        if not equals:
            return [f"{spec.name}=" for spec in switches()]
        return [
            f"{name}={word}"
            for spec in switches()
            if spec.name == name
            for word in (("true", "false") if isinstance(spec.default, bool) else spec.metadata["choices"])
        ]


class EmptySetting(Setting):
    """A name and its value, which may be empty."""

    empty = True


class SpecName(Read):
    """Name of a shipped spec, or a path; names complete in the shell.

    An alias of a shipped spec becomes its name.
    """

    name = "NAME|PATH"

    def __init__(self, kind: SpecKind) -> None:
        self.kind = kind

    def read(self, text: str) -> str:
        """Return the text with aliases replaced by shipped names."""
        if self.kind == "model":
            return self._shipped(text)
        return _BEFORE_SIZE.sub(lambda name: self._shipped(name[0]), text)

    def _shipped(self, text: str) -> str:
        from simulator.question.specs.folders import spec_file  # noqa: PLC0415  start-up time

        if spec_file(self.kind, text) is not None:
            return text
        from simulator.question.specs.catalogue import shipped_file  # noqa: PLC0415  only for other names

        file = shipped_file(self.kind, text)
        return text if file is None else file.stem

    def completions(self, incomplete: str) -> Iterable[str]:
        """Return the shipped names."""
        from simulator.question.specs.folders import spec_names  # noqa: PLC0415  start-up time

        del incomplete
        return spec_names(self.kind)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the shipped names that begin with `incomplete`, and paths if it is one."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415  only the shell asks for it

        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, param, incomplete)


class ListedName(Read):
    """Name in a command's listing; names complete in the shell."""

    name = "NAME"

    def __init__(self, place: str) -> None:
        """``place`` is the `module:function` that returns the names, imported at first use."""
        self._place = place

    def completions(self, incomplete: str = "") -> Sequence[str]:
        """Return the names."""
        del incomplete
        module, _, function = self._place.partition(":")
        names: Sequence[str] = getattr(import_module(module), function)()
        return names

    def read(self, text: str) -> str:
        """Return the name."""
        names = self.completions()
        if text not in names:
            raise InputError(f"{shown(text)} is not one of {', '.join(names)}{did_you_mean(text, names)}")
        return text


_TYPES: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(Whole, Length, Word, WordSet, Tokens, Price, PositiveAmount, Percentage, PercentageOrZero),
        *(OfferText, Setting, EmptySetting, SpecName),
    )
}


def type_of(text: str) -> ParamType:
    """Return the type that the table of options states: `Whole 1 64`, `Word local slurm`, `Price MINUTES`, `Tokens`."""
    name, _, rest = text.partition(" ")
    kind = _TYPES[name]
    arguments: Sequence[Any] = [rest] if rest else []
    if issubclass(kind, Whole | Word):
        words = words_of(rest)
        arguments = words if issubclass(kind, Whole) else [words]
    parameter: ParamType = kind(*arguments)
    return parameter
