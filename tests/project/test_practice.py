"""Counting practice: one vote a repository, for the row that names most of what a launch sets."""

from typing import Any

import pytest

from simulator.question.recipe import Recipe
from tools.practice import Launch, shares, switches_of

COUNTED = "public recipes of 3 repositories"


def row(switch: str, value: str, others: str = "", method: str = "", **cells: str) -> dict[str, Any]:
    usual = {"framework": "torch", "source": COUNTED, "others": others, "method": method}
    return {**usual, "switch": switch, "value": value, **cells}


ROWS = [
    row("parameter_dtype", "bf16"),
    row("parameter_dtype", "bf16", "gradient_dtype=bf16"),
    row("compiled", "true"),
    row("compiled", "true", framework="megatron"),
]
PURE = {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "compiled": "false"}


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        ([("a", "torch", PURE)], [(0.0, 1), (1.0, 1), (0.0, 1), (0.0, 0)]),
        ([("a", "torch", {"parameter_dtype": "bf16"}), ("b", "torch", {})], [(0.5, 2), (0.0, 2), (0.0, 2), (0.0, 0)]),
        # Of three launches of one repository one is a third of its vote.
        (
            [("a", "torch", {"compiled": "true"}), ("a", "torch", {}), ("a", "torch", {}), ("b", "megatron", {})],
            [(0.0, 1), (0.0, 1), (1 / 3, 1), (0.0, 1)],
        ),
    ],
)
def test_shares(launches: list[tuple[str, str, dict[str, str]]], expected: list[tuple[float, int]]) -> None:
    assert shares(ROWS, [Launch(*launch) for launch in launches]) == expected


def test_adapters_count_for_rows_of_their_own_too() -> None:
    launches = [Launch("a", "torch", {"compiled": "true"}, adapters=True), Launch("b", "torch", {})]
    rows = [row("compiled", "true"), row("compiled", "true", method="lora")]
    assert shares(rows, launches) == [(0.5, 2), (1.0, 1)]


def test_what_a_document_alone_says_has_no_vote() -> None:
    rows = [row("compiled", "true"), row("compiled", "true", families="volta", source="PyTorch 2.13")]
    assert shares(rows, [Launch("a", "torch", {"compiled": "true"})]) == [(1.0, 1), (0.0, 1)]


def test_switches_of_a_launch_are_its_stacks_too() -> None:
    recipe = Recipe(framework="torch", stack="deepspeed", options={"sharding_degree": "node", "compiled": "true"})
    texts = switches_of(recipe)
    assert texts["master_weights"] == texts["compiled"] == "true"
    assert (texts["parameter_dtype"], texts["sharding_degree"]) == ("bf16", "0")
