"""`nodes="auto"`: the fewest nodes that fit, that are in time, or that there are none."""

from typing import Any

import pytest

import simulator
from simulator import InputError
from simulator.search.fewest import node_counts
from tests.cli.running import refusal, run

QUESTION: dict[str, Any] = {"model": "llama3.1-70b", "hardware": "h100-sxm-80g"}


def days(nodes: int, tokens: int) -> float:
    best = simulator.rank(**QUESTION, nodes=nodes, top=1).estimates[0].throughput
    return tokens / (best.tokens_per_second_per_device * 8 * nodes) / 86_400


def test_on_fewer_nodes_nothing_fits() -> None:
    ranking = simulator.rank(**QUESTION, nodes="auto", top=1)
    assert ranking.fewest is not None
    nodes = ranking.fewest.nodes
    assert nodes is not None
    assert ranking.query["nodes"] == nodes
    assert ranking.estimates[0].devices == 8 * nodes
    assert simulator.rank(**QUESTION, nodes=nodes, top=1).estimates == ranking.estimates
    assert not any(simulator.rank(**QUESTION, nodes=fewer, top=1).estimates for fewer in range(1, nodes))


def test_on_fewer_nodes_nothing_is_in_time() -> None:
    tokens, limit = 10**12, 150.0
    found = simulator.rank(**QUESTION, nodes="auto", train_tokens=tokens, deadline_days=limit).fewest
    assert found is not None
    assert found.nodes is not None
    assert found.fitting_nodes is not None
    assert days(found.nodes, tokens) <= limit
    assert all(days(fewer, tokens) > limit for fewer in range(found.fitting_nodes, found.nodes))


def test_the_limit_and_the_nearest_are_said() -> None:
    late = simulator.rank(**QUESTION, nodes="auto:4", train_tokens=10**13, deadline_days=1.0)
    assert late.fewest is not None
    assert (late.fewest.nodes, late.fewest.most_nodes, late.fewest.ranked_nodes) == (None, 4, 4)
    assert late.estimates
    full = simulator.rank(model="llama3.1-405b", nodes="auto:2")
    assert full.fewest is not None
    assert (full.fewest.nodes, full.fewest.fitting_nodes, full.estimates) == (None, None, ())
    assert full.nearest is not None


def test_counts_are_tried_one_by_one_and_then_in_even_steps() -> None:
    assert list(node_counts(1, 70)) == [*range(1, 65), 66, 68, 70]
    assert list(node_counts(129, 141)) == [129, 132, 136, 140, 141]
    assert list(node_counts(5, 4)) == []


@pytest.mark.parametrize(
    ("question", "says"),
    [
        ({"nodes": "auto", "deadline_days": 3.0}, "deadline_days needs train_tokens"),
        ({"nodes": 4, "train_tokens": 1, "deadline_days": 3.0}, 'deadline_days needs nodes="auto"'),
        ({"nodes": "auto:0"}, "nodes auto 0: must be a whole number"),
        ({"nodes": "automatic"}, "nodes 'automatic': must be a whole number"),
        ({"nodes": "auto", "devices": 8}, "give nodes or devices"),
        ({"nodes": "auto", "hardware": "h100-sxm-80g:2"}, "leave out nodes"),
    ],
)
def test_what_is_wrong_is_one_line(question: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        simulator.rank(**{**QUESTION, **question})


def test_the_command_line_has_the_same_words() -> None:
    asked = ("rank", "--model", "llama3.1-8b")
    assert "--deadline-days needs --train-tokens" in refusal(*asked, "--nodes", "auto", "--deadline-days", "30")
    late = ("--train-tokens", "1T", "--deadline-days", "30")
    assert "--deadline-days needs --nodes auto" in refusal(*asked, *late)
    assert "'auto:x' is not auto or auto:N" in refusal(*asked, "--nodes", "auto:x")
    assert "'auto'" in refusal("estimate", "--model", "llama3.1-8b", "--nodes", "auto")
    nothing = run("rank", "--model", "llama3.1-405b", "--nodes", "auto:2")
    assert nothing.exit_code == run("rank", "--model", "llama3.1-405b", "--nodes", "2").exit_code
    assert "on up to 2 nodes" in nothing.stdout
