"""fp32 training: four bytes for everything that has two in 16-bit training, and no copies in another type."""

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import layer_input_bytes
from simulator.cost.memory.loss import loss_bytes
from simulator.cost.memory.outside import outside_allocator
from simulator.cost.memory.peak import buffer_bytes, embedding_gradient_bytes, layer_gradient_bytes
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import provenance
from tests.scenario.cases import attention_scores, block, layer_bytes, only, pricing, scenario_of, small_dense

T = 64


def small(**fields: object) -> Scenario:
    return scenario_of(small_dense(), precision="fp32", seq_length=32, global_batch_size=16, **fields)  # type: ignore[arg-type]


def test_a_layer_keeps_twice_the_16_bit_bytes_but_for_its_fp32_statistics() -> None:
    # 2072 per token in bf16, of which 8 are statistics of the norms and 16 of the attention.
    scenario = small()
    here = block(scenario, micro_batch_size=2)
    assert layer_bytes(scenario, here, moe=False) == T * (2 * (2072 - 24) + 24)
    assert only(layer_input_bytes(Pricing(scenario, here))) == T * 4 * 64


def test_scores_without_a_flash_kernel_are_as_wide() -> None:
    scenario = small(options={"flash_attention": "false"})
    assert attention_scores(scenario, block(scenario, micro_batch_size=2)) == 4 * T * 32 * 4


@pytest.mark.parametrize(("fused", "per_logit"), [("true", 8), ("false", 12)])
@pytest.mark.parametrize("profile", ["megatron", "paddle", "torch"])
def test_logits_have_no_cast_copies(fused: str, per_logit: int, profile: str) -> None:
    # Logits and their gradient 4 each; the unfused log-softmax 4.
    scenario = small(profile=profile, options={"fused_cross_entropy": fused})
    assert only(loss_bytes(pricing(scenario, micro_batch_size=2))) == per_logit * T * 1000


def test_gradients_and_buffers_are_as_wide() -> None:
    # 4 T f and 2 T h of 16-bit training, twice; the table's gradient 4 V h; a boundary activation 4 T h.
    scenario = small()
    here = block(scenario, micro_batch_size=2)
    assert only(layer_gradient_bytes(Pricing(scenario, here))) == T * (8 * 160 + 4 * 64)
    assert only(embedding_gradient_bytes(Pricing(scenario, here))) == 4 * 1000 * 64
    values = scenario.coefficients.memory
    split = block(scenario, micro_batch_size=2, pipeline_parallel=2)
    expected = values.workspace_bytes + values.pipeline_buffers * T * 4 * 64
    assert only(buffer_bytes(Pricing(scenario, split))) == expected


def test_registered_buffers_are_as_wide() -> None:
    sizes = {}
    for precision in ("bf16", "fp32"):
        scenario = scenario_of(small_dense(), precision=precision)
        here = block(scenario, tensor_parallel=2, sequence_parallel=True, context_parallel=2)
        sizes[precision] = outside_allocator(Pricing(scenario, here), 0.0 * here.tensor_parallel)
    fixed = scenario_of(small_dense()).coefficients.memory.user_buffers_bytes
    wide, narrow = sizes["fp32"], sizes["bf16"]
    assert only(wide.user_buffers) - fixed == pytest.approx(2 * (only(narrow.user_buffers) - fixed))
    assert only(wide.ring_buffers) == 2 * only(narrow.ring_buffers) > 0


def test_an_estimate_says_what_its_rates_rest_on() -> None:
    assert any("tf32 is not assumed" in note for note in provenance(small()).notes)
    assert not any("tf32" in note for note in provenance(scenario_of(small_dense())).notes)
