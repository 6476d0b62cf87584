"""Peaks under FSDP2 and PyTorch's pipeline schedules, against figures that PyTorch 2.13 was traced with.

Each figure is what `simulate trace` counted for llama3.1-8b cut to 8 layers, in MiB; docs/traced.csv has whole ones.
"""

from typing import Any

import numpy as np
import pytest

from simulator.api import scenario_of
from simulator.cost.derived import Pricing
from simulator.cost.memory.fully_shard import sharded_moments
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.lab.trace.tracing import tensors_only
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout
from simulator.question.units import MIB
from tests.scenario.cases import complete_layout

TP8 = {"tensor_parallel": 8, "recompute": "full", "seq_length": 1024}
TP8_FP32 = TP8 | {"precision": "fp32", "recompute": "none"}
PP2 = {"tensor_parallel": 2, "pipeline_parallel": 2, "seq_length": 4096}
PP2_FP32 = PP2 | {"precision": "fp32", "zero_stage": 0}
CHUNKS = PP2 | {"virtual_stages": 2}
PP8 = {"pipeline_parallel": 8, "seq_length": 1024}
BLOCK = {"recompute": "full", "recompute_method": "block", "micro_batch_size": 2}

# (what, replicas, micro batches, pipeline rank, traced MiB)
TRACED: list[tuple[dict[str, Any], int, int, int, float]] = [
    ({"zero_stage": 3}, 8, 2, 0, 29996.8),
    ({"zero_stage": 2}, 8, 2, 0, 35328.9),
    ({"zero_stage": 1}, 8, 2, 0, 42656.2),
    ({"zero_stage": 0}, 8, 2, 0, 70649.9),
    ({"zero_stage": 3, "recompute": "full"}, 8, 2, 0, 20004.3),
    ({"seq_length": 1024}, 8, 2, 0, 11344.2),
    ({"seq_length": 1024}, 1, 2, 0, 53321.8),
    ({"seq_length": 1024, "zero_stage": 2}, 8, 2, 0, 15500.8),
    ({"seq_length": 4096, "precision": "fp32"}, 1, 2, 0, 59299.4),
    ({"seq_length": 1024, "precision": "fp32", "zero_stage": 0}, 8, 3, 0, 58499.9),
    (TP8, 8, 1, 0, 1992.4),
    (TP8, 8, 2, 0, 2148.9),
    (TP8 | {"zero_stage": 2}, 8, 2, 0, 2533.8),
    (TP8 | {"zero_stage": 2}, 8, 3, 0, 2565.1),
    (TP8 | {"zero_stage": 1}, 8, 3, 0, 5263.9),
    (TP8 | {"zero_stage": 0}, 8, 3, 0, 8763.7),
    (TP8, 1, 2, 0, 6690.1),
    (TP8_FP32, 1, 2, 0, 9107.1),
    (TP8_FP32 | {"zero_stage": 0}, 8, 1, 0, 7692.1),
    (TP8_FP32 | {"zero_stage": 0}, 8, 2, 0, 9461.6),
    (TP8_FP32 | {"zero_stage": 0}, 8, 3, 0, 10440.4),
    ({"tensor_parallel": 2, "seq_length": 4096, "recompute_layers": 3} | BLOCK, 4, 3, 0, 18147.4),
    (PP2 | {"recompute_layers": 2} | BLOCK, 4, 4, 0, 9766.1),
    (PP2 | {"sequence_parallel": False, "micro_batch_size": 2}, 4, 4, 0, 13026.5),
    (PP2 | {"sequence_parallel": False, "micro_batch_size": 2}, 4, 4, 1, 16206.5),
    (PP2, 4, 2, 0, 9509.9),
    (PP2, 4, 3, 0, 9557.9),
    (PP2 | {"zero_stage": 2}, 4, 3, 0, 10133.0),
    (PP2 | {"zero_stage": 0}, 4, 3, 0, 16131.8),
    (PP2, 4, 2, 1, 10197.0),
    (PP2 | {"zero_stage": 2}, 4, 4, 1, 11562.1),
    (PP2_FP32, 1, 2, 0, 14933.6),
    (PP2_FP32, 1, 4, 0, 17910.8),
    (PP2_FP32, 1, 2, 1, 17715.8),
    ({"zero_stage": 1, "recompute": "selective", "seq_length": 4096}, 4, 2, 0, 35320.9),
    (PP2 | {"recompute": "full"}, 4, 4, 1, 8852.0),
    (PP2_FP32 | {"zero_stage": 3}, 2, 4, 0, 15476.6),
    (PP8, 2, 8, 0, 10787.6),
    (PP8, 2, 8, 7, 10013.3),
    (CHUNKS, 4, 4, 1, 11591.6),
    (CHUNKS, 4, 8, 1, 11975.7),
    (CHUNKS | {"zero_stage": 2}, 4, 4, 0, 11241.0),
    (CHUNKS | {"zero_stage": 0, "recompute": "full"}, 4, 4, 1, 16441.9),
    # The output layer's gradient, while what the other chunk's backward pass gathered is still there.
    ({"pipeline_parallel": 2, "virtual_stages": 2, "seq_length": 128, "zero_stage": 3}, 4, 8, 1, 12782.8),
    ({"pipeline_parallel": 4, "virtual_stages": 2, "seq_length": 1024, "precision": "fp32"}, 2, 8, 0, 17948.6),
]


def priced(what: dict[str, Any], replicas: int, micro_batches: int) -> MemoryByStage:
    sizes = {name: value for name, value in what.items() if name in Layout.__dataclass_fields__}
    rest = {name: value for name, value in what.items() if name not in sizes}
    parallel = sizes.get("tensor_parallel", 1) * sizes.get("pipeline_parallel", 1)
    scenario = scenario_of(
        model="llama3.1-8b",
        num_layers=8,
        hardware="h100-sxm-80g",
        devices=parallel * replicas,
        global_batch_size=micro_batches * replicas * sizes.get("micro_batch_size", 1),
        framework="torch",
        calibration="none",
        **rest,
    )
    scenario = tensors_only(scenario)
    block = block_of([complete_layout(scenario, data_parallel=replicas, **sizes)])
    return memory_by_stage(Pricing(scenario, block))


@pytest.mark.parametrize(("what", "replicas", "micro_batches", "stage", "traced"), TRACED)
def test_the_peak_is_what_torch_allocates(
    what: dict[str, Any], replicas: int, micro_batches: int, stage: int, traced: float
) -> None:
    memory = priced(what, replicas, micro_batches)
    assert memory.allocated[stage, 0] / MIB == pytest.approx(traced, rel=0.0035)
    parts = memory.parts()
    assert sum(float(value[stage, 0]) for value in parts.values()) == pytest.approx(float(memory.device[stage, 0]))


# Chunks of 8 layers, ZeRO stage, micro batches, recompute, pipeline rank, traced MiB; 4,096 tokens, four replicas.
UNEQUAL: list[tuple[tuple[int, ...], int, int, str, int, float]] = [
    ((2, 3, 2, 1), 2, 4, "none", 0, 19542.7),
    ((2, 3, 2, 1), 2, 4, "none", 1, 23249.2),
    ((1, 3, 3, 1), 0, 8, "full", 0, 27432.8),
    ((1, 2, 2, 1, 1, 1), 2, 4, "none", 0, 19313.7),
]


@pytest.mark.parametrize("case", UNEQUAL)
def test_chunks_of_unequal_layers(case: tuple[tuple[int, ...], int, int, str, int, float]) -> None:
    chunks, zero_stage, micro_batches, recompute, rank, traced = case
    what = {"pipeline_parallel": 2, "virtual_stages": len(chunks) // 2, "chunk_layers": chunks, "seq_length": 4096}
    memory = priced(what | {"zero_stage": zero_stage, "recompute": recompute}, 4, micro_batches)
    assert memory.allocated[rank, 0] / MIB == pytest.approx(traced, rel=0.0035)


def test_beside_a_pipeline_every_stage_of_zero_keeps_whole_gradients() -> None:
    # Four layers, their matrices halved by TP 2, and the input table, whole on both ranks.
    layer = (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) / 2 + 2 * 4096
    table = 128256 * 4096
    for zero_stage in (0, 1, 2, 3):
        memory = priced(PP2 | {"zero_stage": zero_stage}, 4, 8)
        assert memory.parts()["gradients"][0, 0] == 4 * (4 * layer + table)


def test_receive_buffers_grow_with_the_micro_batches_of_the_step() -> None:
    few, many = (priced(PP2, 4, count).allocated[:, 0] for count in (8, 16))
    # 4096 x 4096 in 16 bits over two ranks: the first rank receives gradients, the last one activations.
    assert (many - few).tolist() == [8 * 16 * MIB] * 2


def test_experts_are_cut_over_the_ranks_that_hold_the_same_ones() -> None:
    """128 experts of 48 layers, 16 a device: alone there on 8 devices, shared by two of 16.

    pytorch/torchtitan b5bcd76, distributed/fsdp.py and parallel_dims.py: experts are cut over `dp_shard * cp * tp / ep`
    ranks, in the unit of their block. PyTorch 2.13, _fully_shard/_fsdp_param_group.py: what one rank holds alone is
    cast where it is used, and never gathered ahead.
    """
    experts, tables, layers = 16 * 3 * 2048 * 768, 2 * 151936 * 2048, 48
    dense = 2 * 2048 * 4096 + 2 * 2048 * 512 + 2048 * 128 + 2 * 2048 + 2 * 128
    found = {}
    for devices in (8, 16):
        scenario = scenario_of(
            model="qwen3-30b-a3b",
            framework="torch",
            hardware="h200-sxm",
            devices=devices,
            seq_length=4096,
            global_batch_size=devices,
        )
        layout = complete_layout(scenario, expert_parallel=8, zero_stage=3, recompute="full")
        moments = sharded_moments(Pricing(scenario, block_of([layout])))
        ends = [each for each in moments if each.name == "backward" and np.any(each.gradients)]
        shards = {"layer": dense / devices + experts / (devices / 8), "table": tables / 2 / devices}
        whole = layers * shards["layer"] + (tables + 2048) / devices
        assert np.max(ends[0].parameters) == pytest.approx(4 * whole, rel=1e-9)
        # Before the first layer is reduced; the input table's gradient follows it.
        assert np.max(ends[0].gradients) == pytest.approx(4 * (whole - sum(shards.values())), rel=1e-9)
        found[devices] = float(np.max(ends[0].temporary))
    assert found[16] - found[8] == pytest.approx(2 * experts, rel=1e-9)
