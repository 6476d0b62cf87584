"""What the device shows beyond the tensors, and the loss: each part alone, with coefficients of the test."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.loss import head_input_bytes, loss_bytes
from simulator.cost.memory.outside import outside_allocator
from simulator.cost.memory.peak import buffer_bytes, memory_by_stage
from simulator.cost.operations.sums import inner_context
from simulator.question.coefficients import Coefficients, MemoryCoefficients
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import MIB
from tests.scenario.cases import block, only, priced, pricing, scenario_of, small_dense

VALUES = MemoryCoefficients(
    context_bytes=1e6,
    user_buffers_bytes=1e5,
    user_buffers_per_gathered_tensor=3.0,
    ring_buffers_per_activation=5.0,
    workspace_bytes=1e4,
    pipeline_buffers=7.0,
    fragmentation=0.25,
    fragmentation_expandable=0.5,
    unfused_loss_bytes_per_logit=0.0,
)
T, V = 8192, 1000


def small(model: Any = None, **fields: Any) -> Scenario:
    made = scenario_of(model or small_dense(), devices=fields.pop("devices", 32), **fields)
    return replace(made, coefficients=Coefficients(memory=VALUES))


def outside(scenario: Scenario, **fields: Any) -> dict[str, float]:
    here = block(scenario, **fields)
    found = outside_allocator(Pricing(scenario, here), np.full((1, 1), 1000.0))
    names = ("context", "user_buffers", "ring_buffers", "fragmentation", "cached", "total")
    return {name: only(getattr(found, name)) for name in names}


def test_the_context_is_always_there() -> None:
    alone = outside(small(devices=1))
    assert alone == {
        "context": 1e6,
        "user_buffers": 0,
        "ring_buffers": 0,
        "fragmentation": 500,
        "cached": 0,
        "total": 1_000_500,
    }


def test_overlapped_tensor_parallelism_needs_buffers() -> None:
    # Three gathered activations of 2 T h, and a fixed part.
    found = outside(small(), tensor_parallel=2, sequence_parallel=True, micro_batch_size=2)
    assert found["user_buffers"] == 1e5 + 3 * 2 * 2 * T * 64
    without = outside(small(options={"tp_comm_overlap": "false"}), tensor_parallel=2, sequence_parallel=True)
    assert without["user_buffers"] == 0


def test_context_parallelism_needs_buffers() -> None:
    # Five query tensors 2 T q / t, of half the sequence.
    assert outside(small(), context_parallel=2)["ring_buffers"] == 5 * 2 * T / 2 * 64
    assert outside(small(), context_parallel=2, tensor_parallel=2)["ring_buffers"] == 5 * 2 * T / 2 * 64 / 2


def test_all_parts_add_up() -> None:
    """On a device whose documents give buffers of groups, and on one without."""
    for hardware in ("z2000", "ascend-910b-64g"):
        scenario = scenario_of(small_dense(), hardware, devices=32, options={"tp_comm_overlap": "true"})
        scenario = replace(scenario, coefficients=Coefficients(memory=VALUES))
        here = block(scenario, tensor_parallel=2, sequence_parallel=True, context_parallel=2)
        found = outside_allocator(Pricing(scenario, here), np.full((1, 1), 1000.0))
        parts = (found.context, found.communicators, found.user_buffers, found.ring_buffers, found.fragmentation)
        assert only(found.ring_buffers) > 0
        assert only(found.fragmentation) == 0.5 * 1000
        assert only(found.communicators) > 0
        assert (only(found.user_buffers) > 0) == (hardware == "z2000")
        assert only(found.total) == sum(only(part) for part in parts)


def test_logits_are_stranded_on_the_last_rank() -> None:
    """The 16-bit logits of a micro batch, where the loss is one of several kernels."""
    scenario = small(profile="torch", options={"cross_entropy_chunk_tokens": "0", "fused_cross_entropy": "false"})
    here = block(scenario, pipeline_parallel=4, micro_batch_size=2)
    found = outside_allocator(Pricing(scenario, here), np.full((4, 1), 1000.0))
    cached = np.broadcast_to(found.cached, (4, 1))[:, 0]
    assert (cached - cached[0]).tolist() == [0, 0, 0, 2 * 2 * T * V]
    # A quarter of 1000 bytes is lost, and a quarter held beside three segments.
    assert (found.fragmentation[0, 0], cached[0]) == (250, 250 + 60 * 2**20)


@pytest.mark.parametrize(
    ("tensor", "context", "inside", "ring"),
    [(2, 8, "0", 2), (8, 4, "0", 4), (16, 2, "0", 2), (2, 8, "2", 4), (2, 2, "8", 1)],
)
def test_rings_of_the_ranks_of_a_node(tensor: int, context: int, inside: str, ring: int) -> None:
    """Of eight devices a node those that tensor parallelism leaves exchange heads: four, one, or as many as said."""
    options = {"cp_communication": "all_to_all_ring", "cp_inner_degree": inside}
    scenario = small(options=options, devices=tensor * context)
    here = block(scenario, tensor_parallel=tensor, context_parallel=context)
    assert only(inner_context(Pricing(scenario, here))) == context / ring
    assert (outside(scenario, tensor_parallel=tensor, context_parallel=context)["ring_buffers"] > 0) == (ring > 1)


def test_workspaces_and_pipeline_buffers_are_tensors() -> None:
    # Seven boundary activations 2 T h, whatever the chunks; none without a pipeline. Products of the tensor-parallel
    # ranks run on three streams of 32 MiB.
    scenario = small(small_dense(num_hidden_layers=8))
    assert only(buffer_bytes(pricing(scenario))) == 1e4
    boundaries = 7 * 2 * T * 64 / 2
    fields: dict[str, Any] = {"pipeline_parallel": 4, "tensor_parallel": 2, "sequence_parallel": True}
    for chunks in (1, 2):
        here = block(scenario, virtual_stages=chunks, **fields)
        assert only(buffer_bytes(Pricing(scenario, here))) == 1e4 + 3 * 32 * 2**20 + boundaries
    # Another stream gives back the blocks of a further chunk's boundaries late.
    shown = [Pricing(scenario, block(scenario, virtual_stages=chunks, **fields)) for chunks in (1, 2)]
    lost = [outside_allocator(one, np.full((4, 1), 1000.0)).fragmentation[0, 0] for one in shown]
    assert lost[1] - lost[0] == pytest.approx(boundaries)


def test_the_default_allocator_loses_another_share_and_holds_more_beside_it() -> None:
    # A quarter of 1000 bytes, and beside it as much in freed blocks, with three segments of 20 MiB.
    small_job = outside(small(options={"expandable_segments": "false"}))
    assert small_job["fragmentation"] == 250
    assert small_job["cached"] == 250 + 60 * 2**20
    options = {"expandable_segments": "false", "fused_cross_entropy": "true"}
    large = scenario_of("llama3.1-8b", options=options, devices=64)
    values = large.coefficients.memory
    for tensor, held in ((1, 0.0), (2, values.unexpandable_tensor_parallel_bytes)):
        here = pricing(large, tensor_parallel=tensor, sequence_parallel=tensor > 1)
        memory = memory_by_stage(here)
        assert only(memory.outside.fragmentation) == pytest.approx(only(values.fragmentation * memory.allocated))
        # As much as there is room for beside what is in use: none on one of the devices, all on the other.
        room = max(0.98 * large.hardware.usable_memory_bytes - only(memory.need), 0.0)
        assert only(memory.outside.cached) == pytest.approx(min(values.unexpandable_bytes + held, room))
        assert (room > 0) == (tensor == 2)


def test_device_is_tensors_and_what_is_outside_them() -> None:
    memory = priced(small(), pipeline_parallel=4, tensor_parallel=2).memory
    assert (memory.device == memory.allocated + memory.outside.total).all()
    assert (memory.outside.fragmentation == 0.5 * memory.allocated).all()


def loss(options: dict[str, str] | None = None, *, profile: str = "megatron", **fields: Any) -> float:
    scenario = small(options=options, profile=profile)
    return only(loss_bytes(pricing(scenario, **fields)))


def test_bytes_at_the_loss() -> None:
    # 6 bytes a logit, 10 where the loss is one kernel.
    assert loss() == 6 * T * V
    assert loss(tensor_parallel=4, micro_batch_size=2) == 2 * 6 * T * V / 4
    assert loss(context_parallel=2) == 6 * T * V / 2
    assert loss({"fused_cross_entropy": "true"}) == 10 * T * V
    assert loss({"fused_cross_entropy": "true", "fused_loss_bytes_per_logit": "4"}) == 4 * T * V
    assert loss({"fused_cross_entropy": "true", "fused_loss_bytes_per_logit": "0"}) == loss()
    assert loss(profile="paddle") == loss({"fused_cross_entropy": "true"}, profile="paddle") == 10 * T * V


def test_a_chunked_loss_holds_one_chunk_and_two_gradients() -> None:
    # 64 tokens of logits, the hidden gradient 2 T h, the weight's gradient 4 V h.
    assert loss({"cross_entropy_chunk_tokens": "64"}) == 6 * 64 * V + 2 * T * 64 + 4 * V * 64
    # Chunking never costs memory.
    assert loss({"cross_entropy_chunk_tokens": "8192"}) == loss()


def test_the_output_layer_keeps_its_norm_in_sixteen_bits() -> None:
    # Input and output of the last norm 4 h and 4 bytes per token, under fp8 as well.
    for precision in ("bf16", "fp8"):
        scenario = small(precision=precision)
        assert only(head_input_bytes(pricing(scenario))) == T * (4 * 64 + 4)


def test_each_moment_can_bind() -> None:
    def moments(scenario: Scenario, **fields: Any) -> set[str]:
        found = priced(scenario, **fields).memory
        return {found.moments[found.moment[rank, 0]].name for rank in range(len(found.moment))}

    big = scenario_of("llama3.1-8b", devices=8)
    assert moments(big, pipeline_parallel=8) == {"backward", "loss"}
    # A short sequence with one replica: the state that comes back for the step is more than the activations.
    short: Any = {"model": "llama3.1-8b", "devices": 1, "seq_length": 128}
    stays = scenario_of(**short, options={"buffers_weights": "false"})
    assert moments(stays, offload="optimizer") == {"optimizer step"}
    # Without state on the device weights and their buffers are more.
    assert moments(scenario_of(**short), offload="optimizer") == {"load"}
    # A wide vocabulary over few tokens: the table's gradient.
    wide = scenario_of(small_dense(vocab_size=2**20), devices=2, seq_length=64)
    assert "embedding gradient" in moments(wide, pipeline_parallel=2)


def test_every_group_of_ranks_has_buffers() -> None:
    # All ranks, replicas; tensor and model parallel; a pipeline's group and its ends.
    each = VALUES.communicator_bytes
    found = outside(small(), context_parallel=1)
    assert found["total"] == pytest.approx(found["context"] + found["fragmentation"] + 2 * each)
    split = priced(small(), tensor_parallel=2, pipeline_parallel=4).memory
    assert only(split.outside.communicators) == 6 * each
    assert outside(small(devices=1))["total"] == pytest.approx(1e6 + 500)


def test_kernels_loaded_with_the_context() -> None:
    assert outside(small(devices=1, options={"eager_modules": "true"}))["context"] == 1573 * MIB


def test_a_growing_pool_has_a_share_of_its_own() -> None:
    options = {"growing_pool": "true", "expandable_segments": "false"}
    assert outside(small(devices=1, options=options))["fragmentation"] == VALUES.fragmentation_growing * 1000
