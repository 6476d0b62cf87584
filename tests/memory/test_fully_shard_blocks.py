"""FSDP2's step: which runs it describes, blocks of layouts of every kind, ranks whose layers differ."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.fully_shard import shards_by_unit
from simulator.cost.memory.moments import layer_backward_bytes
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.question.scenario.block import LayoutBlock, block_of
from simulator.question.scenario.scenario import Scenario
from tests.pricing.test_memory_arithmetic import question
from tests.scenario.cases import block, layout_of, scenario_of, small_dense, small_mla, small_moe


@pytest.mark.parametrize(
    ("profile", "options", "fields", "described"),
    [
        ("torch", {}, {}, True),
        ("torch", {}, {"precision": "fp8"}, True),
        ("torch", {"parameter_dtype": "bf16"}, {"precision": "fp32"}, True),
        ("torch", {"parameter_dtype": "bf16"}, {}, False),
        ("torch", {"gradient_dtype": "bf16"}, {}, False),
        ("torch", {"fully_shard": "false"}, {}, False),
        ("torch", {"offload_parameters": "true"}, {}, True),
        ("torch", {}, {"lora_rank": 8}, False),
        ("megatron", {}, {}, False),
        ("megatron", {"fully_shard": "true", "parameter_dtype": "fp32"}, {}, True),
    ],
)
def test_runs_that_are_sharded_by_unit(
    profile: str, options: dict[str, str], fields: dict[str, Any], described: bool
) -> None:
    assert shards_by_unit(question(small_dense(), profile, options=options, **fields)) is described


@pytest.mark.parametrize(
    ("pipeline", "batch"),
    [({}, 16), ({"pipeline_parallel": 2}, 48), ({"pipeline_parallel": 2, "virtual_stages": 2}, 16)],
)
def test_layouts_of_a_block_need_what_each_needs_alone(pipeline: dict[str, Any], batch: int) -> None:
    """Every ZeRO stage, recomputation and offload, few and many micro batches, side by side."""
    scenario = question(small_moe(vocab_size=48), "torch", devices=4, global_batch_size=batch)
    layouts = [
        layout_of(scenario, **pipeline, zero_stage=stage, micro_batch_size=size, recompute=mode, offload=offload)
        for stage in (0, 1, 2, 3)
        for size in (1, 4)
        for mode, offload in (("none", "none"), ("full", "optimizer"), ("none", "activations"))
    ]
    together = block_of(layouts)
    memory = memory_by_stage(Pricing(scenario, together))
    names = np.array([one.name for one in memory.moments])[memory.moment]
    for index, layout in enumerate(layouts):
        one = block_of([layout])
        alone = memory_by_stage(Pricing(scenario, one))
        assert memory.device[:, index].tolist() == alone.device[:, 0].tolist()
        assert memory.need[:, index].tolist() == alone.need[:, 0].tolist()
        parts, of_one = memory.parts(), alone.parts()
        for rank in range(len(alone.device)):
            assert names[rank, index] == alone.moments[alone.moment[rank, 0]].name
            assert {k: v[rank, index] for k, v in parts.items()} == {k: v[rank, 0] for k, v in of_one.items()}


def memory_of(model: Any, **fields: Any) -> MemoryByStage:
    devices = fields.pop("devices", 1)
    scenario = question(model, "torch", devices=devices, global_batch_size=fields.pop("batch", 8))
    here = block(scenario, **({"micro_batch_size": 2, "zero_stage": 3} | fields))
    return memory_by_stage(Pricing(scenario, here))


def held(found: MemoryByStage, at: int, part: str, rank: int = 0) -> float:
    value = np.atleast_2d(getattr(found.moments[at], part))
    return float(np.broadcast_to(value, (len(found.contents.ranks), 1))[found.contents.kind[rank], 0])


@pytest.mark.parametrize(("hardware", "kept"), [("h100-sxm-80g", True), ("local-cpu", False)])
def test_only_an_allocator_that_caches_keeps_blocks_for_streams(hardware: str, kept: bool) -> None:
    scenario = scenario_of(small_dense(), hardware, devices=8, profile="torch", seq_length=32, global_batch_size=8)
    here = block(scenario, zero_stage=3)
    found = memory_by_stage(Pricing(scenario, here))
    assert bool(np.asarray(found.outside.streams).any()) is kept


def test_angles_are_those_of_the_features_that_rotate() -> None:
    """4 bytes for each of 32 positions and of a head's 16 features; of latent attention's 24 eight rotate."""
    for model, features in ((small_dense(vocab_size=8), 16), (small_mla(vocab_size=8), 8)):
        step = len(memory_of(model).moments) - 1
        found = memory_of(model)
        parameters = held(found, step, "gradients")
        assert found.moments[step].name == "optimizer step"
        # Beside them the temporary of an optimizer that works on all tensors at once, as large as the gradients.
        assert held(found, step, "temporary") - parameters == 4 * 32 * features


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_ranks_of_one_layer_have_none_before_it(rank: int) -> None:
    """A dense layer, then layers of experts: reduced is one of the largest size where there is no table."""
    model = small_moe(vocab_size=48)
    found = memory_of(model, devices=8, pipeline_parallel=4, batch=16)
    of_dense = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 + 3 * 64 * 160
    of_experts = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64 + 64 * 8 + (8 + 1) * 3 * 64 * 48
    stored = {0: of_dense + 48 * 64, 3: of_experts + 48 * 64 + 64}.get(rank, of_experts)
    reduction = next(at for at, one in enumerate(found.moments) if one.name == "gradient reduction")
    assert held(found, reduction, "gradients", rank) == 4 * stored
    angles = 4 * 32 * 16
    # The table first where there is one, fp32 in place of the 16-bit gradient; else a layer of the largest size.
    unit = 2 * 48 * 64 if rank == 0 else 2 * of_experts
    assert held(found, reduction, "temporary", rank) == angles + 2 * stored + unit
    # No second layer: moments of the layer before the last and of the layer behind the first are not there.
    backward = [at for at, one in enumerate(found.moments) if one.name == "backward"]
    for part in ("gradients", "logits", "temporary"):
        assert held(found, backward[1], part, rank) == 0
    if rank == 0:
        # At its own layer's pass: gathered as much as the largest, the table ahead, and nothing else that was gathered.
        one, here = shape()
        layer = layer_backward_bytes(Pricing(one, here), one.model.layer_kinds[0], np.ones(1, dtype=np.bool_))[0]
        end = next(at for at in backward[4:] if held(found, at, "gradients"))
        assert held(found, end, "temporary") == angles + layer + 2 * of_experts + 2 * 64 * 64 + 2 * 48 * 64


def shape() -> tuple[Scenario, LayoutBlock]:
    """The question and the block of one layout of the test before."""
    one = question(small_moe(vocab_size=48), "torch", devices=8, global_batch_size=16)
    return one, block(one, micro_batch_size=2, zero_stage=3, pipeline_parallel=4)
