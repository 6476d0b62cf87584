"""What linear mixers compute, move, exchange and hold for a moment, per token, against numbers worked by hand.

Layers of tests.memory.test_families' models: h 64, f 160; norms and the residual stream move 20 h, SwiGLU 6 f.
"""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.memory.activations import layer_bytes
from simulator.cost.operations.blocks import cast
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import conditions_of, summed
from simulator.cost.operations.sums import Work, layer_work
from simulator.question.scenario.scenario import Scenario
from tests.memory.test_families import DELTA, MAMBA
from tests.memory.test_this_years_mixers import KIMI
from tests.scenario.cases import only, pricing, scenario_of, small_dense

LIGHTNING: dict[str, Any] = {"mixers": ("lightning",), "chunk_tokens": 8}
BOTH, NETWORK = 20 * 64, 6 * 160


def scenario_with(changes: dict[str, Any], **options: str) -> Scenario:
    return scenario_of(small_dense(**changes), seq_length=32, global_batch_size=16, options=options)


def work_of(scenario: Scenario) -> Work:
    return layer_work(conditions_of(scenario), scenario.model.layer_kinds[0])


def scan_temporary(scenario: Scenario) -> float:
    operations = layer_operations(conditions_of(scenario), scenario.model.layer_kinds[0])
    return sum(summed(a for one in operations if one.group == "core_attention" for a in one.temporary).values())


def exchanged(work: Work) -> float:
    (amount,) = (one.amount for one in work.collectives if one.group == "context")
    return amount


def test_gated_delta_net() -> None:
    """Keys of two heads of 16, values of four of 24, in chunks of 8."""
    work = work_of(scenario_with(DELTA))
    # A convolution over q, k and v, 2 x 32 + 96, read and written; the scan reads q, k of four heads and v, and writes
    # as much as v; the norm reads the output and z and writes one of them.
    assert sum(work.moved.values()) == BOTH + NETWORK + 4 * 160 + 2 * (2 * 64 + 2 * 96) + 3 * 2 * 96
    # A head: keys and queries with keys, triangle times keys, 6 C k; 4 C v; the inverse 2 C^2 / 3; three of 2 k v.
    assert work.core_flops == pytest.approx(4 * (6 * 8 * 16 + 4 * 8 * 24 + 2 * 8**2 / 3 + 6 * 16 * 24))
    assert scan_temporary(scenario_with(DELTA)) == 2 * (2 * 64 + 96)
    # Everything projected goes to split heads, 2 x 32 + 2 x 96 + 2 x 4, and the output comes back.
    assert exchanged(work) == 2 * (264 + 96)


def test_mamba() -> None:
    """Four heads of 32 with a state of 16, two groups, in chunks of 16; a layer of one part has one norm."""
    scenario = scenario_with(MAMBA)
    work = work_of(scenario)
    # Convolution over x, B and C, 128 + 64; the scan reads z, x, B and C and writes its output; the norm.
    assert sum(work.moved.values()) == BOTH / 2 + 4 * 192 + 2 * (3 * 128 + 64) + 2 * 2 * 128
    # Scores by group, 2 C N; by head scores times x, 2 C P, and states written and read, 4 N P.
    assert work.core_flops == 2 * 2 * 16 * 16 + 4 * (2 * 16 * 32 + 4 * 16 * 32)
    assert scan_temporary(scenario) == 2 * (2 * 128 + 64 + 4)
    assert exchanged(work) == 2 * (2 * 128 + 64 + 4 + 128)
    # Composed of products, in fp32: decays and scores of every chunk, B and C for all heads, seven inner tensors.
    kind, composed = scenario.model.layer_kinds[0], scenario_with(MAMBA, composed_scan="true")
    plain, more = (only(layer_bytes(pricing(one), kind)) for one in (scenario, composed))
    assert more - plain == 32 * 4 * (2 * 4 * (16 + 16) + 7 * 128)


def test_lightning_attention() -> None:
    """Four heads of 16 in chunks of 8."""
    work = work_of(scenario_with(LIGHTNING))
    # q, k and v read and written by SiLU and the scan; the norm's two tensors and the gate's three.
    assert sum(work.moved.values()) == BOTH + NETWORK + 2 * 6 * 64 + 2 * 5 * 64
    # Inside a chunk scores and values, 2 C (k + v); the state read and written, 4 k v.
    assert work.core_flops == 4 * (2 * 8 * (16 + 16) + 4 * 16 * 16)
    assert scan_temporary(scenario_with(LIGHTNING)) == 2 * 3 * 64
    assert exchanged(work) == 2 * (3 * 64 + 64)


def test_what_kimi_delta_holds_for_a_moment() -> None:
    """Queries, keys and decays of 2 x 16, values as wide."""
    assert scan_temporary(scenario_with(KIMI)) == 2 * (3 * 32 + 32)


@pytest.mark.parametrize(("recipe", "moved"), [("nvfp4", 2 * 2 + 2 * 0.5625), ("mxfp4", 2 + 2 * 0.53125)])
def test_what_casts_to_4_bits_move(recipe: str, moved: float) -> None:
    """A 16-bit input read, for NVFP4 twice; it and its transpose written, with a scale for 16 or 32 numbers."""
    scenario = scenario_of(small_dense(), "b200-sxm", precision="fp4", options={"fp4_recipe": recipe})
    assert [one.amount for one in cast(conditions_of(scenario), 100.0, "whole")] == [100 * moved]


def test_filtered_attention() -> None:
    """The filter's products at the width of the hidden state, 2 h h / 2 each of two."""
    filtered, plain = (work_of(scenario_with(changes)) for changes in ({"mixers": ("filtered",)}, {}))
    assert filtered.core_flops - plain.core_flops == 2 * 2 * 64 * 64
    # Two convolutions read and write 8 h in all, the norm 2 h, of 2 bytes; neither is a product of a weight.
    assert sum(filtered.moved.values()) - sum(plain.moved.values()) == 2 * (8 + 2) * 64
    assert filtered.shapes == plain.shapes


@pytest.mark.parametrize("changes", [DELTA, MAMBA, LIGHTNING])
def test_adapters_of_a_mixer_follow_its_products(changes: dict[str, Any]) -> None:
    """Rank 8: one pair of matrices for products of one input, another for the output's."""
    scenario = replace(scenario_with(changes), lora_rank=8)
    work = work_of(scenario)
    sizes = {(one.inputs, one.outputs) for one in work.shapes}
    assert work.adapters.all == 8 * sum(inputs + outputs for inputs, outputs in sizes)
