"""Typed access to the keys of a parsed `config.json`, with errors of one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self, TypeVar

from simulator.errors import InputError, UnsupportedError, quoted

ValueT = TypeVar("ValueT")
MAXIMUM_LAYERS: Final = 10_000
"""Most layers a model may have, a count."""
MAXIMUM_PARTS: Final = 2**16
"""Most heads, experts or groups that a layer may have, a count."""


class Config:
    """Configuration and the file it came from, with typed access."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = values

    def _typed(self, key: str, kind: type[ValueT], expected: str) -> ValueT | None:
        """Return a value of one type; None where the key is absent or null."""
        value = self._values.get(key)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise InputError(f"{self.where}: {key}: {quoted(value)} must be {expected}")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number; ``default`` where the key is absent or null, an error without one."""
        value = self._typed(key, int, "a whole number")
        if value is None:
            value = default
        if value is None:
            raise InputError(f"{self.where}: {key}: is missing")
        return value

    def layers(self, key: str, default: int | None = None, *, low: int = 1) -> int:
        """Return a count or a step of layers within bounds, so that no list of layers grows too long."""
        value = self.integer(key, default)
        if not low <= value <= MAXIMUM_LAYERS:
            raise InputError(f"{self.where}: {key}: {value} must be from {low} to {MAXIMUM_LAYERS}")
        return value

    def optional(self, key: str) -> int | None:
        """Return a whole number, or None where the key is absent or null."""
        return self._typed(key, int, "a whole number")

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false; ``default`` where the key is absent or null."""
        value = self._typed(key, bool, "true or false")
        return default if value is None else value

    def text(self, key: str, default: str) -> str:
        """Return text; ``default`` where the key is absent or null."""
        value = self._typed(key, str, "text")
        return default if value is None else value

    def single(self, key: str, default: int) -> int:
        """Return a whole number that may stand in a list of one; several are unsupported."""
        value = self._values.get(key)
        if not isinstance(value, list):
            return self.integer(key, default)
        if len(value) != 1:
            raise self.unsupported(key, f"a list of {len(value)}: only one kind of experts can be priced")
        return Config(self.where, {key: value[0]}).integer(key)

    def integers(self, key: str) -> list[int]:
        """Return a list of whole numbers; empty where the key is absent or null."""
        listed = self._typed(key, list, "a list of whole numbers") or []
        return [Config(self.where, {key: item}).integer(key) for item in listed]

    def texts(self, key: str) -> list[str]:
        """Return a list of words; empty where the key is absent or null."""
        listed = self._typed(key, list, "a list of words") or []
        return [Config(self.where, {key: item}).text(key, "") for item in listed]

    def numbers_of_text(self, key: str) -> list[int]:
        """Return whole numbers written as a list or as text with commas; empty where the key is absent or null."""
        value = self._values.get(key)
        if not isinstance(value, str):
            return self.integers(key)
        words = [word.strip() for word in value.split(",") if word.strip()]
        if not all(word.isdecimal() and len(word) < 10 for word in words):
            raise InputError(f"{self.where}: {key}: {quoted(value)} must be whole numbers with commas")
        return [int(word) for word in words]

    def section(self, key: str) -> Self:
        """Return the mapping under a key, an empty one where the key is absent or null."""
        return type(self)(f"{self.where}: {key}", self._typed(key, dict, "a mapping") or {})

    def sections(self, key: str) -> list[Self]:
        """Return a list of mappings; empty where the key is absent or null."""
        listed = self._typed(key, list, "a list of mappings") or []
        places = [(f"{self.where}: {key}[{i}]", item) for i, item in enumerate(listed)]
        for where, item in places:
            if not isinstance(item, dict):
                raise InputError(f"{where}: {quoted(item)} must be a mapping")
        return [type(self)(where, item) for where, item in places]

    def real(self, key: str) -> float:
        """Return a number above 0, whole or not; an error where the key is absent or null."""
        value = self._values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
            raise InputError(f"{self.where}: {key}: {quoted(value)} must be a number above 0")
        return float(value)

    def assuming(self, **defaults: object) -> Self:
        """Return this configuration with values for absent keys."""
        return type(self)(self.where, defaults | dict(self._values))

    def replaced(self, **values: object) -> Self:
        """Return this configuration with other values."""
        return type(self)(self.where, dict(self._values) | values)

    def renamed(self, **names: str) -> Self:
        """Return this configuration with keys renamed where the new name is absent."""
        renamed = {new: self._values[old] for old, new in names.items() if old in self._values}
        return self.assuming(**renamed)

    def nested(self, key: str) -> Self:
        """Return the section that a key with dots lies in; this one for a key without."""
        section, _, _ = key.rpartition(".")
        return self.section(section) if section else self

    def value(self, key: str, default: object = None) -> Any:
        """Return the value of a key, dots lead into sections; ``default`` where it is absent."""
        section, _, name = key.partition(".")
        if name:
            return self.section(section).value(name, default)
        return self._values.get(key, default)

    def number(self, key: str, default: int | None) -> int | None:
        """Return a whole number, dots lead into sections; ``default`` where the key is absent, None for a null.

        A list of one number is that number; several are unsupported.
        """
        place, name = self.nested(key), key.rpartition(".")[2]
        if isinstance(place.value(name), list):
            return place.single(name, 0)
        return place.optional(name) if place.has(name) else default

    def present(self, key: str) -> bool:
        """Tell whether the key is there and not null."""
        return self._values.get(key) is not None

    def has(self, key: str) -> bool:
        """Tell whether the key is there, null included."""
        return key in self._values

    def unsupported(self, key: str, reason: str) -> UnsupportedError:
        """Return the error for a setting that cannot be priced."""
        return UnsupportedError(f"{self.where}: {key}: {reason}")
