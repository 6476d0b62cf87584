"""Memory while weights are built, before the first step (M30)."""

import pytest

from simulator.cost.pricing.estimate import Estimate
from simulator.search.build import bare_estimate
from tests.scenario.cases import layout_of, scenario_of

PARAMETERS = 8.030e9
"""Of Llama 3.1 8B."""


def built(devices: int, options: dict[str, str] | None = None, profile: str = "megatron", **sizes: object) -> Estimate:
    scenario = scenario_of(
        model="llama3.1-8b",
        devices=devices,
        profile=profile,
        seq_length=1024,
        global_batch_size=devices,
        options=options,
    )
    return bare_estimate(scenario, layout_of(scenario, recompute="full", **sizes))


def test_the_distributed_optimizers_buffers_stand_beside_built_weights() -> None:
    """Weights, their buffer and that of fp32 gradients: 2, 2 and 4 bytes each. A step on 64 ranks needs less."""
    found = built(64, zero_stage=1).memory
    assert found.moment == "load"
    assert found.allocated_bytes == pytest.approx(8.0 * PARAMETERS, rel=0.01)


def test_without_the_distributed_optimizer_weights_stay_where_they_were_built() -> None:
    assert built(64, zero_stage=0).memory.moment != "load"
    assert built(64, {"model_build": "parts"}, zero_stage=1).memory.moment != "load"


def test_a_rank_of_paddle_builds_what_stage_3_cuts() -> None:
    """A rank holds 16-bit weights whole, of its tensor parallel part, before stage 3 cuts them."""
    for tensor_parallel in (1, 2):
        found = built(64, profile="paddle", zero_stage=3, tensor_parallel=tensor_parallel).memory
        assert found.moment == "load"
        assert found.allocated_bytes == pytest.approx(2.0 * PARAMETERS / tensor_parallel, rel=0.01)


def test_the_verdict_says_loading() -> None:
    """89 billion parameters whole on each of 128 devices: 166 GiB (PaddleNLP's issues 7254 and 7401)."""
    scenario = scenario_of(model="llama3-70b", devices=128, profile="paddle", seq_length=1024, global_batch_size=128)
    found = bare_estimate(scenario, layout_of(scenario, zero_stage=3, recompute="full"))
    assert (found.verdict, found.memory.moment) == ("does_not_fit", "load")
