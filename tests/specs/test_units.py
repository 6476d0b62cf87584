"""Text with units is read exactly, or refused in one line."""

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError, SimulateError
from simulator.question.units import (
    GIB,
    MIB,
    parse_bytes,
    parse_bytes_per_second,
    parse_count,
    parse_flops_per_second,
    parse_seconds,
    to_gib,
    to_mib,
)

PARSERS: list[Callable[[str], float]] = [
    parse_bytes,
    parse_bytes_per_second,
    parse_flops_per_second,
    parse_seconds,
    parse_count,
]


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_bytes, "80 GiB", 80 * GIB),
        (parse_bytes, "81559 MiB", 81559 * MIB),
        (parse_bytes, "80 GB", 80e9),
        (parse_bytes, "80GB", 80e9),
        (parse_bytes_per_second, "3350 GB/s", 3.35e12),
        (parse_bytes_per_second, "400 Gbit/s", 50e9),
        (parse_bytes_per_second, "1.6 TiB/s", float(Fraction(16, 10) * 1024**4)),
        (parse_flops_per_second, "989 TFLOP/s", 989e12),
        (parse_flops_per_second, "1307.4 TFLOP/s", 1307.4e12),
        (parse_seconds, "5 us", 5e-6),
        (parse_seconds, "0.5 ms", 5e-4),
        (parse_count, "100B", 10**11),
        (parse_count, "1.5T", 1_500_000_000_000),
        (parse_count, "300M", 300_000_000),
        (parse_count, "123", 123),
    ],
)
def test_reads(parse: Callable[[str], float], text: str, expected: float) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize(
    "text",
    ["", " ", "-1 GB", "nan", "inf GB", "NaN us", "1 parsec", "1 2", "1e400 s", "9" * 200, "٣ GB", "1_0 s"],
)
def test_refuses_in_one_line(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("parse", PARSERS[:4])
@pytest.mark.parametrize("text", ["80", "1.5", 80, 1.5, None, True, ["80 GB"]])
def test_refuses_bare_numbers(parse: Callable[[object], float], text: object) -> None:
    with pytest.raises(InputError, match="write it like"):
        parse(text)


@pytest.mark.parametrize("text", ["1.5", "0.0001K", "1e-7M"])
def test_refuses_counts_that_are_not_whole(text: str) -> None:
    with pytest.raises(InputError, match="not a whole number"):
        parse_count(text)


def test_names_the_nearest_unit() -> None:
    with pytest.raises(InputError, match="unknown unit 'gib', did you mean 'GiB'"):
        parse_bytes("80 gib")


@given(st.decimals(min_value=0, max_value=10**12, allow_nan=False, allow_infinity=False, places=6))
def test_sizes_are_the_nearest_float(number: object) -> None:
    assert parse_bytes(f"{number:f} GiB") == float(Fraction(str(number)) * GIB)


@given(st.integers(min_value=0, max_value=2**50))
def test_whole_bytes_return_unchanged(size: int) -> None:
    assert parse_bytes(f"{size} B") == size
    assert to_mib(size) * MIB == size
    assert to_gib(size) * GIB == size


@given(st.integers(min_value=0, max_value=10**18), st.sampled_from(["", "K", "M", "B", "T"]))
def test_counts_are_exact(number: int, suffix: str) -> None:
    factor = 1000 ** ["", "K", "M", "B", "T"].index(suffix)
    assert parse_count(f"{number}{suffix}") == number * factor or number * factor > 10**30


@given(st.text(max_size=60), st.sampled_from(PARSERS))
def test_any_text_is_finite_or_refused(text: str, parse: Callable[[str], float]) -> None:
    value, refusal = 0.0, ""
    try:
        value = parse(text)
    except SimulateError as error:
        refusal = str(error)
    assert len(refusal.splitlines()) <= 1
    assert math.isfinite(value)
    assert value >= 0
