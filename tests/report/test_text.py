"""Numbers and words for people."""

from typing import Any

import pytest

from simulator.question.scenario.layout import Layout
from simulator.show.report.text import (
    amount,
    count_text,
    cut_text,
    elapsed_text,
    gib,
    layout_text,
    mfu_text,
    money,
    percent,
    recompute_text,
    settings_text,
    teraflops,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (123456.7, "123457"), (999.94, "999.9"), (9.876, "9.88"), (0.012345, "0.0123"), (1e20, "1e+20")],
)
def test_amount(value: float, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (0.5, "0.5"), (0.05, "0.1"), (0.0499, "0.050"), (0.00123, "0.0012"), (1e-9, "0.0000000010")],
)
def test_a_small_speed_is_not_shown_as_none(value: float, text: str) -> None:
    assert teraflops(value * 1e12) == mfu_text(value / 100) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "under 0.01 s"), (0.0099, "under 0.01 s"), (0.0268, "0.03 s"), (12.3456, "12.35 s")]
)
def test_elapsed_text(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text


def test_small_negatives_are_zero() -> None:
    assert gib(-1.0) == "0.00"
    assert percent(-1e-9) == "0.0"
    assert gib(-(2.0**30)) == "-1.00"


@pytest.mark.parametrize(
    ("count", "text"), [(10**11, "100B"), (1_500_000_000_000, "1.5T"), (3 * 10**12, "3T"), (999, "999")]
)
def test_count_text(count: int, text: str) -> None:
    assert count_text(count) == text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "none"),
        ({"recompute": "selective"}, "selective"),
        ({"recompute": "full"}, "full"),
        ({"recompute": "full", "recompute_layers": 2}, "full uniform 2"),
        ({"recompute": "full", "recompute_method": "block"}, "block 1"),
        ({"recompute": "full", "recompute_method": "list", "recompute_layer_list": (4, 5)}, "full layers 4,5"),
    ],
)
def test_recompute_text(fields: dict[str, Any], text: str) -> None:
    assert recompute_text(Layout(**fields)) == text


@pytest.mark.parametrize(
    ("cut", "text"), [((), "even"), ((8, 8), "even"), ((7, 8, 8, 7), "7,8,8,7"), ((7, 8, 8, 8, 8, 7), "7,8x4,7")]
)
def test_cut_text(cut: tuple[int, ...], text: str) -> None:
    assert cut_text(Layout(stage_layers=cut)) == text


def test_layout_text_tells_what_is_not_plain() -> None:
    layout = Layout(expert_tensor_parallel=2, offload="optimizer", stage_layers=(3, 5))
    assert layout_text(layout) == "TP1 PP1 CP1 EP1 ETP2 DP1 VP1 mbs1 recompute none offload optimizer layers 3,5"


def test_settings_text() -> None:
    settings = {"tp": (1, 2), "nodes": None, "options": {"mtp": "true"}, "sequence_parallel": True, "flag": False}
    assert settings_text(settings) == "--tp 1,2, --options mtp=true, --sequence-parallel"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.5, "0.5"), (99.94, "99.9"), (999.4, "999"), (999.6, "1.00k"), (258_861, "259k"), (1.41e6, "1.41M")],
)
def test_money_has_three_digits(value: float, shown: str) -> None:
    assert money(value) == shown
