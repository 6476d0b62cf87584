"""Types of option values: bounded numbers, lists of them, words, and names that complete in the shell."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    ParamType = click.ParamType[Any]
    Choice = click.Choice[str]
else:
    ParamType = click.ParamType
    Choice = click.Choice

LARGEST_SET = 4096
"""Most values that one option may list."""

_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
_SPAN = re.compile(r"([+-]?[0-9]+)(?::([+-]?[0-9]+))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)


def shown(value: object) -> str:
    """Return a value as given, quoted, cut and made printable."""
    text = str(value)
    text = text if len(text) <= 60 else text[:60] + "..."
    return "'" + "".join(mark if mark.isprintable() else "?" for mark in text) + "'"


def nearest(name: str, choices: Iterable[str]) -> str:
    """Return the suggestion of the choice nearest to ``name``, or an empty text."""
    from simulator.errors import did_you_mean  # noqa: PLC0415  only a wrong value needs it

    return did_you_mean(name, choices)


class Whole(ParamType):
    """A whole number from ``low`` to ``high``."""

    name = "N"

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or say which are allowed."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        if not _WHOLE.fullmatch(text) or not self.low <= int(text) <= self.high:
            self.fail(f"{shown(value)} is not a whole number from {self.low} to {self.high}", param, ctx)
        return int(text)


class WholeList(Whole):
    """Whole numbers in the order given: ``18,21,21,20``; a range ``0:9`` counts up and includes both ends."""

    name = "LIST"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the numbers as a tuple."""
        if not isinstance(value, str):
            return value
        numbers: list[int] = []
        for item in value.split(","):
            first, last = self._ends(item.strip(), value, param, ctx)
            if len(numbers) + last - first >= LARGEST_SET:
                self.fail(f"{shown(value)} lists more than {LARGEST_SET} values", param, ctx)
            numbers.extend(range(first, last + 1))
        return self.arranged(numbers)

    def arranged(self, numbers: list[int]) -> tuple[int, ...]:
        """Return the numbers as the option keeps them."""
        return tuple(numbers)

    def _ends(self, item: str, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        told = shown(item) if item == value.strip() else f"{shown(value)}: {shown(item)}"
        span = _SPAN.fullmatch(item)
        if span is None:
            form = f"numbers from {self.low} to {self.high}, such as {self._example()}"
            self.fail(f"{told} is not understood; write {form}", param, ctx)
        ends = [end for end in span.groups() if end is not None]
        for end in ends:
            if not _WHOLE.fullmatch(end) or not self.low <= int(end) <= self.high:
                self.fail(f"{told} is outside {self.low} to {self.high}", param, ctx)
        first, last = int(ends[0]), int(ends[-1])
        if first > last:
            self.fail(f"{told} counts down; write {last}:{first}", param, ctx)
        return first, last

    def _example(self) -> str:
        middle, end = min(self.low + 1, self.high), min(self.low + 3, self.high)
        return f"{middle} or {self.low},{middle} or {self.low}:{end}"


class WholeSet(WholeList):
    """Whole numbers to choose from, in order, each once."""

    def arranged(self, numbers: list[int]) -> tuple[int, ...]:
        """Return the numbers in order, each once."""
        return tuple(sorted(set(numbers)))


class Word(Choice):
    """One of a few words; a wrong one is answered with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word."""
        if value not in self.choices:
            self.refuse(str(value), param, ctx)
        return value

    def refuse(self, word: str, param: click.Parameter | None, ctx: click.Context | None) -> NoReturn:
        """Say which words there are."""
        choices = [str(choice) for choice in self.choices]
        self.fail(f"{shown(word)} is not one of {', '.join(choices)}{nearest(word, choices)}", param, ctx)


class WordSet(Word):
    """Some of a few words: ``none,full``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the words as a tuple, in the order of the choices."""
        if not isinstance(value, str):
            return value
        words = {word.strip() for word in value.split(",")}
        for word in sorted(words - set(self.choices)):
            self.refuse(word, param, ctx)
        return tuple(word for word in self.choices if word in words)


class Tokens(ParamType):
    """A number of tokens, such as ``100B`` or ``1.5T``."""

    name = "TOKENS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number of tokens."""
        from simulator.errors import InputError  # noqa: PLC0415  start-up time
        from simulator.question.units import parse_count  # noqa: PLC0415  start-up time

        if not isinstance(value, str):
            return value
        try:
            tokens = parse_count(value)
        except InputError as error:
            self.fail(str(error), param, ctx)
        if not 1 <= tokens <= 10**18:
            self.fail(f"{shown(value)} is not from 1 to 1e18 tokens", param, ctx)
        return tokens


class Price(ParamType):
    """An amount of zero or more, of money unless its name says another unit."""

    name = "PRICE"

    def __init__(self, name: str = "") -> None:
        self.name = name or self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the amount."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        amount = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not 0 <= amount <= 1e9:
            self.fail(f"{shown(value)} is not a number from 0 to 1e9", param, ctx)
        return amount


class Percentage(ParamType):
    """A share from 0 to 1; ``90%`` is 0.9."""

    name = "SHARE"

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero
        """Whether 0 is a share too."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the share."""
        if not isinstance(value, str):
            return value
        text = value.strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = math.nan
        if not (0 < share <= 1 or (self.zero and share == 0)):
            low = "from 0 to" if self.zero else "above 0 and up to"
            self.fail(f"{shown(value)} is not {low} 1, such as 0.9 or 90%", param, ctx)
        return share


class PositiveAmount(Price):
    """An amount above zero."""

    name = "AMOUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the amount."""
        amount = super().convert(value, param, ctx)
        if amount == 0:
            self.fail(f"{shown(value)} is not above 0", param, ctx)
        return amount


class OfferText(ParamType):
    """What may be booked: ``NAME:NODES@PRICE``; names complete in the shell."""

    name = "OFFER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the offer."""
        from simulator.errors import InputError  # noqa: PLC0415  start-up time
        from simulator.show.answers.offers import parse_offer  # noqa: PLC0415  start-up time

        if not isinstance(value, str):
            return value
        try:
            return parse_offer(value)
        except InputError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the shipped hardware that begins so."""
        return SpecName("hardware").shell_complete(ctx, param, incomplete)


class Setting(ParamType):
    """A switch and its value: ``NAME=VALUE``."""

    name = "NAME=VALUE"

    def __init__(self, hint: str = "`simulate frameworks` lists the names", *, empty: bool = False) -> None:
        self.hint = hint
        self.empty = empty
        """Whether the value may be empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return name and value."""
        if not isinstance(value, str):
            return value
        name, equals, text = (part.strip() for part in value.partition("="))
        if not (name and equals and (text or self.empty)):
            self.fail(f"{shown(value)} is not NAME=VALUE; {self.hint}", param, ctx)
        return name, text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the switches that begin so; behind the equals sign, the words that such a switch may take."""
        del ctx, param
        from click.shell_completion import CompletionItem  # noqa: PLC0415  only the shell asks for it

        from simulator.question.frameworks.profile import switches  # noqa: PLC0415  start-up time

        name, equals, text = incomplete.partition("=")
        if not equals:
            return [CompletionItem(f"{spec.name}=") for spec in switches() if spec.name.startswith(name)]
        words = [
            word
            for spec in switches()
            if spec.name == name
            for word in (("true", "false") if isinstance(spec.default, bool) else spec.metadata["choices"])
        ]
        return [CompletionItem(f"{name}={word}") for word in words if word.startswith(text)]


class SpecName(ParamType):
    """Name of a shipped spec, or a path; names complete in the shell."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.name = "NAME|PATH" if kind in ("model", "hardware") else "NAME"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the shipped names that begin so, and paths where one is being typed."""
        del ctx, param
        from click.shell_completion import CompletionItem  # noqa: PLC0415  only the shell asks for it

        if "/" in incomplete or incomplete.startswith("."):
            return [CompletionItem(incomplete, type="file")]
        return [CompletionItem(name) for name in self._names() if name.startswith(incomplete)]

    def _names(self) -> Sequence[str]:
        from simulator.question.specs.folders import hardware_names, model_names  # noqa: PLC0415  start-up time

        return model_names() if self.kind == "model" else hardware_names()
