"""What a Paddle trainer keeps beside Megatron's ways: norms in pieces, an fp32 copy of a rank's part of gradients."""

import pytest

from simulator.search.build import bare_estimate
from tests.memory.test_outside_documented import MIB
from tests.scenario.cases import layout_of, scenario_of

SIZES = {"tensor_parallel": 2, "zero_stage": 2}


def parts(**options: str) -> dict[str, float]:
    scenario = scenario_of(model="llama3.1-8b", devices=8, profile="paddle", options=options)
    memory = bare_estimate(scenario, layout_of(scenario, **SIZES)).memory
    return {**memory.parts_bytes, "cached": memory.outside_parts_bytes["cached"]}


def test_a_rank_keeps_fp32_gradients_of_its_part() -> None:
    """Four ranks share 4,015.4 million parameters of a half: 2 and 4 bytes of each are on every one."""
    share = parts(master_gradients="false")["gradients"] / 2
    assert parts()["gradients"] == pytest.approx(6 * share)
    assert parts(gradient_dtype="fp32")["gradients"] == pytest.approx(4 * share)


def test_norms_in_pieces_keep_six_bytes_a_feature() -> None:
    """One fp32 and one 16-bit copy for the one 16-bit input: 4 bytes more, of two norms in 32 layers."""
    more = parts()["activations"] - parts(fused_rms_norm="true")["activations"]
    assert more == pytest.approx(32 * 2 * 4 * 4096 * 8192)


def test_its_own_allocator_holds_a_share_only() -> None:
    assert parts()["cached"] < parts(growing_pool="false", expandable_segments="false")["cached"] - 512 * MIB
