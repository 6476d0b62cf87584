"""Text with units to base units and back, exactly: `80 GiB` is 85,899,345,920 bytes.

Inside the simulator every quantity is a float (or an int, for counts) in base units: bytes, seconds, FLOP/s and
bytes/s. Text with units is read here and nowhere else; `show.report.text` writes figures for people. A number
is read as a fraction of whole ones, so the float returned is the one nearest to the written number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Final

from simulator.errors import InputError, did_you_mean, quoted
from simulator.late import late_pattern

KIB: Final = 1024
"""Bytes in one KiB."""
MIB: Final = 1024**2
"""Bytes in one MiB."""
GIB: Final = 1024**3
"""Bytes in one GiB."""
TIB: Final = 1024**4
"""Bytes in one TiB."""

MEGA: Final = 10**6
GIGA: Final = 10**9
TERA: Final = 10**12
"""Powers of ten of GB, TFLOP and billions of parameters."""

_LIMIT: Final = 10**30  # largest base-unit amount accepted: far above any machine, far below overflow

_BYTES: Final[Mapping[str, int]] = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
}
_BITS: Final[Mapping[str, int]] = {"Mbit": 10**6 // 8, "Gbit": 10**9 // 8, "Tbit": 10**12 // 8}
_BYTES_PER_SECOND: Final[Mapping[str, int]] = {f"{unit}/s": factor for unit, factor in {**_BYTES, **_BITS}.items()}
_FLOPS_PER_SECOND: Final[Mapping[str, int]] = {"FLOP/s": 1, "GFLOP/s": 10**9, "TFLOP/s": 10**12, "PFLOP/s": 10**15}
_NANOSECONDS: Final[Mapping[str, int]] = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_COUNTS: Final[Mapping[str, int]] = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_LENGTHS: Final[Mapping[str, int]] = {"": 1, "K": 1024, "M": 1024**2}
MINUTES: Final[Mapping[str, int]] = {"min": 1, "h": 60, "d": 1440, "w": 7 * 1440, "y": 365 * 1440}
"""Minutes of the units of a long duration."""

_AMOUNT: Final = late_pattern(r"([0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,2})?) ?([A-Za-z/]*)", re.ASCII)
_MAXIMUM_TEXT: Final = 100


def parse_count(text: str, *, length: bool = False) -> int:
    """Return the whole number a count stands for: ``100B``, ``1.5T``, ``300M``, ``16k`` or ``123``.

    K, M, B and T are powers of one thousand; of a `length`, K and M are powers of 1024, so 8k is 8192.
    """
    suffixes = _LENGTHS if length else _COUNTS
    number, parts, suffix = _split(text, "count", "8k" if length else "1.5T")
    if suffix.upper() not in suffixes:
        allowed = ", ".join(filter(None, suffixes))
        raise InputError(f"count {quoted(text)}: unknown suffix '{suffix}'; allowed: {allowed} or none")
    amount, left = divmod(number * suffixes[suffix.upper()], parts)
    if left:
        raise InputError(f"count {quoted(text)} is not a whole number; write one like '1.5T'")
    if amount > _LIMIT:
        raise InputError(f"count {quoted(text)} is too large; at most 1e30")
    return amount


def parse_number(text: str, units: Mapping[str, int] = MappingProxyType({}), per: int = 1) -> float:
    """Return a number such as ``2.5``, ``230k`` or ``1.5M``; with `units`, such as ``36h``, in that of factor `per`."""
    number, parts, suffix = _split(text, "number", "230k")
    count = _COUNTS.get(suffix.upper())
    factor = units.get(suffix, None if count is None else count * per)
    if factor is None:
        allowed = ", ".join((*units, *filter(None, _COUNTS)))
        raise InputError(f"number {quoted(text)}: unknown suffix '{suffix}'; allowed: {allowed} or none")
    return number * factor / (parts * per)


def share_of(text: str) -> float:
    """Return the number of a share such as ``0.999`` or ``99.9%``; not a number for any other text."""
    number = text.strip()
    try:
        return float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        return math.nan


def to_mib(size: float) -> float:
    """Return ``size`` bytes in MiB."""
    return size / MIB


DAY_SECONDS: Final = 86_400.0


def to_days(seconds: float) -> float:
    """Return a time in days."""
    return seconds / DAY_SECONDS


def to_gib(size: float) -> float:
    """Return ``size`` bytes in GiB."""
    return size / GIB


_UNITS: Final[Mapping[str, tuple[Mapping[str, int], str]]] = {
    "size": (_BYTES, "80 GiB"),
    "bandwidth": (_BYTES_PER_SECOND, "400 Gbit/s"),
    "compute rate": (_FLOPS_PER_SECOND, "989 TFLOP/s"),
    "duration": (_NANOSECONDS, "5 us"),
}  # units and an example by kind


def _parse(kind: str, text: str) -> float:
    """Return ``text`` in the base unit of ``kind``; one-line InputError otherwise."""
    if not isinstance(text, str):
        raise InputError(f"{kind} {quoted(text)} is not text with a unit; write it like '{_UNITS[kind][1]}'")
    return _parse_known(kind, text)


parse_bytes = partial(_parse, "size")
"""Function that returns the bytes of a size such as ``80 GiB``, ``81559 MiB`` or ``80 GB``."""
parse_bytes_per_second = partial(_parse, "bandwidth")
"""Function that returns the bytes/s of a rate such as ``3350 GB/s``, ``400 Gbit/s`` or ``1.6 TiB/s``."""
parse_flops_per_second = partial(_parse, "compute rate")
"""Function that returns the FLOP/s of a compute rate such as ``989 TFLOP/s``."""
parse_seconds = partial(_parse, "duration")
"""Function that returns the seconds of a duration such as ``5 us``."""


@lru_cache(maxsize=4096)
def _parse_known(kind: str, text: str) -> float:
    """Return ``text`` in the base unit of ``kind``."""
    units, example = _UNITS[kind]
    number, parts, unit = _split(text, kind, example)
    if not unit:
        raise InputError(f"{kind} {quoted(text)} has no unit; write it like '{example}'")
    if unit not in units:
        allowed = ", ".join(units)
        near = did_you_mean(unit, units) or ";"
        raise InputError(f"{kind} {quoted(text)}: unknown unit '{unit}'{near} allowed: {allowed}")
    amount, parts = number * units[unit], parts * units.get("s", 1)
    if amount > _LIMIT * parts:
        raise InputError(f"{kind} {quoted(text)} is too large; at most 1e30 in base units")
    return amount / parts


def _split(text: str, kind: str, example: str) -> tuple[int, int, str]:
    """Cut ``text`` into its number, as one whole number over another, and its unit."""
    if not isinstance(text, str):
        raise InputError(f"{kind} {quoted(text)} is not text with a unit; write it like '{example}'")
    matched = _AMOUNT.fullmatch(text.strip()) if len(text) <= _MAXIMUM_TEXT else None
    if matched is None:
        raise InputError(f"{kind} {quoted(text)} is not a plain number with a unit; write it like '{example}'")
    mantissa, _, exponent = matched[1].lower().partition("e")
    whole, _, decimals = mantissa.partition(".")
    power = int(exponent or 0) - len(decimals)
    return int(whole + decimals) * 10 ** max(power, 0), 10 ** max(-power, 0), matched[2]
