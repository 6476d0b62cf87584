"""What each moment of a step has, and what it has nothing of; and what of the peak stands between the three figures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.fully_shard import idle_stream_bytes, sharded_moments
from simulator.cost.memory.moments import Moment, table_sums
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.question.coefficients import Coefficients, MemoryCoefficients
from tests.pricing.test_memory_arithmetic import DENSE, MOE, T, question
from tests.scenario.cases import block, layout_of, only, scenario_of, small_dense, small_moe

H = 2 * T * 64
"""The residual stream of a micro batch in bytes."""


def memory(model: Any, options: dict[str, str] | None = None, **fields: Any) -> MemoryByStage:
    asked = {name: fields.pop(name) for name in ("devices", "lora_rank", "precision", "profile") if name in fields}
    scenario = question(model, options=options, **asked)
    here = block(scenario, **({"micro_batch_size": 2} | fields))
    return memory_by_stage(Pricing(scenario, here))


def bytes_by_kind(one: Moment, name: str, kinds: int) -> list[float]:
    return np.broadcast_to(np.atleast_1d(getattr(one, name))[..., :1], (kinds, 1))[:, 0].tolist()


@pytest.mark.parametrize("options", [{}, {"release_grads": "true"}])
def test_what_is_not_alive_at_a_moment_is_nothing(options: dict[str, str]) -> None:
    """Logits at the loss alone, freed activations at the table's gradient alone, no activations in the step."""
    found = memory(small_dense(), options, devices=2, pipeline_parallel=2)
    table: dict[str, dict[str, list[float]]] = {
        "backward": {"released": [0, 0], "logits": [0, 0]},
        "loss": {"released": [0, 0], "logits": [0, 6 * T * 1000]},
        # Of the first rank one of two micro batches in flight.
        "embedding gradient": {"released": [2 * T * DENSE, 0], "logits": [0, 0], "gradients_absent": [0, 0]},
        "optimizer step": {
            name: [0.0, 0.0] for name in ("released", "logits", "activations", "temporary", "gradients_absent")
        },
        "load": {name: [0.0, 0.0] for name in ("released", "logits", "activations", "temporary", "resident")},
    }
    assert [one.name for one in found.moments] == list(table)
    for one in found.moments:
        assert {name: bytes_by_kind(one, name, 2) for name in table[one.name]} == table[one.name]
        if one.name not in ("optimizer step", "load"):
            assert bytes_by_kind(one, "activations", 2) == [2 * 2 * T * DENSE, 2 * T * DENSE]


def test_the_table_s_gradient_stands_beside_nothing_of_a_layer() -> None:
    """2 V h / t on the rank that looks tokens up; an output layer adds its gradient to that of a tied table at once."""
    for tied, tensor in ((False, 1), (True, 1), (False, 2)):
        model = small_dense(tie_word_embeddings=tied)
        found = memory(
            model, {"tp_comm_overlap": "false"}, devices=2 * tensor, pipeline_parallel=2, tensor_parallel=tensor
        )
        assert bytes_by_kind(found.moments[2], "temporary", 2) == [2 * 1000 * 64 / tensor, 0]
    adapters = memory(small_dense(), devices=2, pipeline_parallel=2, lora_rank=8)
    assert bytes_by_kind(adapters.moments[2], "temporary", 2) == [0, 0]


@pytest.mark.parametrize(
    ("precision", "options", "element"),
    [("bf16", {}, 2), ("bf16", {"parameter_dtype": "fp32"}, 4), ("fp32", {}, 4), ("fp8", {}, 2)],
)
def test_the_table_s_gradient_is_of_the_table_s_type(precision: str, options: dict[str, str], element: int) -> None:
    found = memory(small_dense(), options, precision=precision)
    assert bytes_by_kind(found.moments[2], "temporary", 1) == [element * 1000 * 64]


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_table_s_gradient_comes_when_the_first_chunk_is_freed(chunks: int) -> None:
    """Of the first rank with one dense layer and one of experts the dense one, where they are two chunks."""
    found = memory(small_moe(vocab_size=8), devices=2, pipeline_parallel=2, virtual_stages=chunks)
    assert bytes_by_kind(found.moments[2], "released", 2) == [T * (DENSE + MOE * (chunks == 1)), 0]


@pytest.mark.parametrize(("chunks", "modules"), [(1, 1), (2, 1), (4, 2)])
def test_prediction_modules_stand_behind_the_last_chunk_alone(chunks: int, modules: int) -> None:
    """However many equal chunks a rank has; in flight it counts where that chunk is, in time once a micro batch."""
    model = small_dense(vocab_size=8, num_hidden_layers=8, num_nextn_predict_layers=modules)
    fields: dict[str, Any] = {"devices": 2, "pipeline_parallel": 2, "virtual_stages": chunks}
    found = memory(model, {"mtp": "true"}, **fields)
    kept = found.activations.one_micro_batch[found.contents.kind][:, 0].tolist()
    assert kept == [4 * T * DENSE, (4 + modules) * T * DENSE]
    by_chunk = [found.activations.by_chunk[chunk][found.contents.kind[1], 0] for chunk in found.contents.chunk]
    layers = 4 // chunks
    assert by_chunk == [layers * T * DENSE] * (chunks - 1) + [(layers + modules) * T * DENSE]
    without = memory(model, {"mtp": "false"}, **fields)
    assert len(without.activations.by_chunk) == 1


@pytest.mark.parametrize("chunks", [1, 2])
def test_of_offloaded_activations_the_first_chunk_s_part_is_freed(chunks: int) -> None:
    """Two layers of four stay on the device, whatever their chunk."""
    fields: dict[str, Any] = {"devices": 2, "pipeline_parallel": 2, "offload": "activations"}
    found = memory(small_dense(vocab_size=8, num_hidden_layers=8), virtual_stages=chunks, **fields)
    assert bytes_by_kind(found.moments[2], "released", 2) == [2 * T * DENSE / chunks, 0]
    assert bytes_by_kind(found.moments[2], "activations", 2) == [2 * T * DENSE] * 2


def test_the_widest_layer_decides_what_a_backward_pass_holds() -> None:
    """Gate and up of the dense layer, 2 x 160, against both copies' of the experts, 2 (2 x 48 + 2 x 64); and back."""
    for width, widest in ((160, 2 * (2 * 48 + 2 * 64)), (1000, 2 * 1000)):
        found = memory(small_moe(vocab_size=8, intermediate_size=width))
        assert bytes_by_kind(found.moments[0], "temporary", 1) == [2 * T * widest + H]


def test_what_comes_back_when_first_needed_is_absent_before() -> None:
    """One micro batch on each of two ranks: at its backward pass as much as it frees, at the loss all gradients."""
    options = {"release_grads": "true"}
    for sequences, absent in ((1, 2 * 32 * DENSE), (16, None)):
        scenario = question(small_dense(vocab_size=8), devices=2, options=options, global_batch_size=sequences)
        here = block(scenario, micro_batch_size=sequences, pipeline_parallel=2)
        found = memory_by_stage(Pricing(scenario, here))
        gradients = bytes_by_kind(found.moments[0], "gradients", 2)
        of_backward = [min(absent, one) if absent else one for one in gradients]
        assert bytes_by_kind(found.moments[0], "gradients_absent", 2) == of_backward
        assert bytes_by_kind(found.moments[1], "gradients_absent", 2) == gradients
        assert (of_backward == gradients) == (absent is None)
        assert found.after_step[0, 0] == (found.state.parameters + found.state.optimizer)[0, 0]


@pytest.mark.parametrize("hardware", ["h100-sxm-80g", "ascend-910b-64g"])
def test_the_library_s_buffers_are_the_device_s_and_not_the_allocator_s(hardware: str) -> None:
    values = MemoryCoefficients(context_bytes=3e6, communicator_bytes=5e6, workspace_bytes=7e6)
    scenario = replace(scenario_of(small_dense(), hardware), coefficients=Coefficients(memory=values))
    here = block(scenario, tensor_parallel=2, context_parallel=2)
    found = memory_by_stage(Pricing(scenario, here))
    assert found.outside.communicators[0] >= 5e6
    assert (found.device - found.reserved == 3e6 + found.outside.communicators).all()
    assert (found.need == found.device - found.outside.cached).all()
    parts = found.parts()
    assert sum(float(one[0, 0]) for one in parts.values()) == pytest.approx(found.device[0, 0], abs=1e-6)


def test_a_layer_done_again_is_temporary_only_on_the_rank_that_has_it() -> None:
    """Experts done again on the ranks that have some; the first of four has the dense layer alone."""
    options = {"recomputed_expert_share": "1"}
    plain, again = (memory(small_moe(vocab_size=8), one, devices=4, pipeline_parallel=4) for one in ({}, options))
    more = np.array(bytes_by_kind(again.moments[0], "temporary", len(again.contents.ranks))) - np.array(
        bytes_by_kind(plain.moments[0], "temporary", len(plain.contents.ranks))
    )
    more_of_experts = T * 2 * (2 * 2 * 64 + 6 * 48)
    assert more.tolist() == [0, more_of_experts, more_of_experts]


def idle(pricing: Pricing, *alive: tuple[float, float, float]) -> list[float]:
    """Idle bytes of every rank, of moments with as many bytes of gradients, of shards among them and of others."""
    moments = tuple(
        Moment("backward", others, gradients, 0.0, 0.0, 0.0, 0.0, 0.0, sharded=sharded)
        for gradients, sharded, others in alive
    )
    ranks = np.zeros((len(pricing.contents.kind), 1))
    totals = [ranks + gradients + others for gradients, _, others in alive]
    return [float(each) for each in np.ravel(idle_stream_bytes(pricing, moments, totals))]


def test_idle_blocks_shrink_by_the_gradients_alive() -> None:
    """A block of a stream that holds gradients is not idle; with all of them alive the largest unit stays (M21)."""
    scenario = scenario_of(small_dense(), profile="torch", devices=8)
    pricing = pricing_of(scenario, layout_of(scenario, zero_stage=3))
    parts, unit = float(only(sharded_moments(pricing)[-1].gradients)), 2 * (1000 * 64 + 64)
    for gradients in (0.0, 1000.0, parts - 1, parts):
        assert idle(pricing, (gradients, 0.0, 1e6)) == [parts - gradients + unit]
    # Fewer tensors at once, and more of streams: the own stream's peak counts.
    assert idle(pricing, (parts, 0.0, 1e6), (0.0, 0.0, 1e6 + 500)) == [500 + unit]


def test_a_pipeline_s_streams_are_idle_where_zero_shards() -> None:
    """By hand, 4 layers on 2 ranks of 4 replicas: a fourth of `4 N` each, and the largest unit in 16 bits (M21).

    Whole gradients, of as many bytes as their shards or of any other number, are none of it.
    """
    scenario = scenario_of(small_dense(), profile="torch", devices=8, global_batch_size=8)
    layer, table, head = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64, 1000 * 64, 1000 * 64 + 64
    units, shards = np.array([2 * table, 2 * head]), np.array([2 * layer + table, 2 * layer + head])
    for stage in (0, 1, 2, 3):
        pricing = pricing_of(scenario, layout_of(scenario, pipeline_parallel=2, data_parallel=4, zero_stage=stage))
        for whole in (0.0, 1000.0, float(shards[0]) - 1, float(shards[0]), float(shards[0]) + 1, 1e12):
            assert idle(pricing, (whole, 0.0, 1e6)) == ((units + shards).tolist() if stage else [0.0])
        assert idle(pricing, (1e12, 1000.0, 0.0)) == ((units + shards - 1000).tolist() if stage else [0.0])


def test_shards_beside_a_pipeline_are_there_once_reduced() -> None:
    """None before; of interleaved chunks, those whose backward passes have ended; all in the step."""
    scenario = scenario_of(small_dense(), profile="torch", devices=8, global_batch_size=16)
    layout = layout_of(scenario, pipeline_parallel=2, data_parallel=4, virtual_stages=2, zero_stage=3)
    layer, table = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64, 1000 * 64
    found = {one.name: bytes_by_kind(one, "sharded", 2) for one in sharded_moments(pricing_of(scenario, layout))}
    assert found.pop("gradient reduction") == [layer, layer]
    assert found.pop("optimizer step") == [2 * layer + table, 2 * layer + table + 64]
    assert set(map(tuple, found.values())) == {(0.0, 0.0)}


def test_idle_blocks_of_a_mixture_s_middle_ranks() -> None:
    """The step has the most tensors, and all shards; a backward pass has fewer, whole gradients and no shard (M21).

    Experts that one rank alone holds are not gathered, but what is reduced is copied to the stream (PyTorch 2.13,
    `FSDPParamGroup.unshard` and `foreach_reduce`, `world_size`).
    """
    scenario = scenario_of(
        "qwen3-30b-a3b", "h100-sxm-80g", devices=16, profile="torch", seq_length=4096, global_batch_size=256
    )
    layout = layout_of(
        scenario, pipeline_parallel=4, data_parallel=4, expert_parallel=4, zero_stage=3, recompute="full"
    )
    found = memory_by_stage(pricing_of(scenario, layout))
    totals = {one.name: 0.0 for one in found.moments}
    for one in found.moments:
        totals[one.name] = max(totals[one.name], float(one.total(found.contents)[1, 0]))
    assert max(totals, key=lambda name: totals[name]) == found.moments[found.moment[1, 0]].name == "optimizer step"
    dense = 2048 * (2 * 4096 + 2 * 512) + 2 * 2048 + 2 * 128 + 2048 * 128
    experts = 128 / 4 * 3 * 2048 * 768
    streams = totals["backward"] - totals["optimizer step"] + 4 * 12 * (dense / 4 + experts) + 2 * dense
    assert np.broadcast_to(found.outside.streams, (4, 1))[1, 0] == pytest.approx(streams)
    assert found.reserved[1, 0] - found.allocated[1, 0] > streams > 5 * 2**30
    assert (found.need == found.device - found.outside.idle).all()


def test_a_shard_of_one_rank_is_reduced_but_not_gathered() -> None:
    """Its unit is gathered from nobody, as PyTorch 2.13 has it; blocks of its gradients are another stream's."""
    for degree, unit in ((1, 0), (2, 2 * (1000 * 64 + 64))):
        options = {"sharding_degree": str(degree)}
        scenario = scenario_of(small_dense(), profile="torch", devices=8, global_batch_size=8, options=options)
        pricing = pricing_of(scenario, layout_of(scenario, pipeline_parallel=2, data_parallel=4, zero_stage=3))
        layer, head = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64, 1000 * 64 + 64
        shards = 4 * (2 * layer + head) / degree
        for whole in (shards - 1, shards, shards + 1):
            assert idle(pricing, (whole, 0.0, 0.0))[1] == shards + unit


@pytest.mark.parametrize(("tokens", "rows"), [(3072, 0.0), (4096, 409.6 + 1000), (8192, 819.2 + 1000)])
def test_a_table_s_gradient_has_partial_sums(tokens: int, rows: float) -> None:
    """PyTorch 2.6, EmbeddingBackwardKernel.cu: `numel / 10 + min(numel, num_weights)` rows of fp32 where it sorts."""
    scenario = scenario_of(small_dense(), seq_length=tokens)
    sums = table_sums(pricing_of(scenario, layout_of(scenario)), np.array([[1000.0 * 64]]))
    assert float(only(sums)) == pytest.approx(4 * 64 * rows)


@pytest.mark.parametrize(
    ("profile", "hardware", "sums"),
    [
        ("megatron", "h100-sxm-80g", True),
        ("torch", "mi300x", True),
        ("megatron", "bi150-64g", True),
        ("megatron", "ascend-910b-376t", False),
        ("torch", "ascend-910b-376t", False),
        ("paddle", "h100-sxm-80g", False),
        ("torch", "local-cpu", False),
    ],
)
def test_only_cuda_s_kernels_of_pytorch_have_partial_sums(profile: str, hardware: str, sums: bool) -> None:
    scenario = scenario_of(small_dense(), hardware, profile=profile, seq_length=8192)
    found = table_sums(pricing_of(scenario, layout_of(scenario)), np.array([[1000.0 * 64]]))
    assert bool(found.any()) is sums
