"""`nodes="auto"`: the fewest nodes that fit, that are in time, or that there are none."""

from typing import Any

import pytest

import simulator
from simulator import InputError
from tests.cli.running import refusal, run

QUESTION: dict[str, Any] = {"model": "codellama-34b", "hardware": "a100-sxm-40g"}


def test_a_ranking_on_the_fewest_nodes_is_that_of_their_number() -> None:
    """Which number that is `test_fewest_of_all` tells; here it is what every entrance says of it."""
    ranking = simulator.rank(**QUESTION, nodes="auto:8", top=1)
    assert ranking.fewest is not None
    nodes = ranking.fewest.nodes
    assert nodes is not None
    assert ranking.query["nodes"] == nodes
    assert ranking.estimates[0].devices == 8 * nodes
    assert simulator.rank(**QUESTION, nodes=nodes, top=1).estimates == ranking.estimates
    assert not simulator.rank(**QUESTION, nodes=nodes - 1, top=1).estimates
    late = simulator.rank(**QUESTION, nodes=f"auto:{nodes}", train_tokens=10**13, deadline_days=1.0)
    assert late.fewest is not None
    assert (late.fewest.nodes, late.fewest.most_nodes, late.fewest.ranked_nodes) == (None, nodes, nodes)
    assert late.estimates


def test_powers_of_two_stand_beside_the_fewest_nodes_and_the_knee_is_named() -> None:
    """Each number has the fastest layout of its own ranking; the knee is the fewest within 5 % of the best speed."""
    fewest = simulator.rank(**QUESTION, nodes="auto:8", top=1).fewest
    assert fewest is not None
    assert fewest.nodes is not None
    larger = [nodes for nodes in (1, 2, 4, 8) if nodes > fewest.nodes]
    assert [count.nodes for count in fewest.counts] == [fewest.nodes, *larger]
    for count in fewest.counts:
        best = simulator.rank(**QUESTION, nodes=count.nodes, top=1).estimates[0]
        assert count.layout == best.layout
        assert count.tokens_per_second_per_device == pytest.approx(best.throughput.tokens_per_second_per_device)
    speeds = [count.tokens_per_second_per_device for count in fewest.counts]
    cheap = next(position for position, speed in enumerate(speeds) if speed >= 0.95 * max(speeds))
    assert fewest.knee == fewest.counts[cheap]
    assert simulator.rank(**QUESTION, nodes=8, top=1).fewest is None


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
    small = ("rank", "--model", "llama-13b", "--hardware", "a100-sxm-40g", "--pp", "1", "--tp", "1", "--nodes")
    nothing = run(*small, "auto:1")
    assert nothing.exit_code == run(*small, "1").exit_code
    assert "Nothing fits on up to 1 nodes" in nothing.stdout
