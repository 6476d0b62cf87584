"""Memory while weights are built, before the first step (M30)."""

import pytest

from simulator.cost.pricing.estimate import Estimate
from simulator.search.build import bare_estimate
from tests.scenario.cases import layout_of, scenario_of

PARAMETERS = 8.030e9
"""Of Llama 3.1 8B."""


def built(options: dict[str, str] | None = None, **sizes: object) -> Estimate:
    scenario = scenario_of(
        model="llama3.1-8b", devices=64, profile="paddle", seq_length=1024, global_batch_size=64, options=options
    )
    return bare_estimate(scenario, layout_of(scenario, recompute="full", **sizes))


def test_a_rank_of_paddle_builds_what_stage_3_cuts() -> None:
    """A rank holds 16-bit weights whole, of its tensor parallel part, before stage 3 cuts them."""
    for tensor_parallel in (1, 2):
        found = built(zero_stage=3, tensor_parallel=tensor_parallel).memory
        assert found.moment == "load"
        assert found.allocated_bytes == pytest.approx(2.0 * PARAMETERS / tensor_parallel, rel=0.01)


def test_what_is_not_cut_or_is_built_in_parts_has_no_such_moment() -> None:
    assert built(zero_stage=2).memory.moment != "load"
    assert built({"builds_whole_layers": "false"}, zero_stage=3).memory.moment != "load"


def test_the_verdict_says_loading() -> None:
    """89 billion parameters whole on each of 128 devices: 166 GiB (PaddleNLP's issues 7254 and 7401)."""
    scenario = scenario_of(model="llama3-70b", devices=128, profile="paddle", seq_length=1024, global_batch_size=128)
    found = bare_estimate(scenario, layout_of(scenario, zero_stage=3, recompute="full"))
    assert (found.verdict, found.memory.moment) == ("does_not_fit", "load")
