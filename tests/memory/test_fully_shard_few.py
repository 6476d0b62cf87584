"""FSDP2's step with few tokens, few micro batches or unequal layers, in the letters of test_fully_shard_moments."""

from typing import Any

import numpy as np
import pytest

import simulator
from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import layer_bytes
from simulator.cost.memory.fully_shard import _held, _policy, _ranks, _sent_chunks, _Step, _units
from simulator.cost.memory.peak import memory_by_stage
from simulator.question.scenario.block import block_of
from tests.memory.test_fully_shard_moments import ALONE, PIPED, Expected, endings, step_of
from tests.pricing.test_memory_arithmetic import question
from tests.scenario.cases import block, layout_of, only, small_dense, small_moe


@pytest.mark.parametrize(("precision", "element"), [("bf16", 2), ("fp32", 4)])
def test_few_tokens_have_less_logits_than_the_output_layer(precision: str, element: int) -> None:
    """In the forward pass the output layer is there, and of a 16-bit logit's copies two bytes less than backward."""
    fields = ALONE | {"data_parallel": 4, "zero_stage": 3}
    s = step_of(batch=1, sequence=32, precision=precision, **fields)
    forward = element * s.H - (2 * s.logits if element == 2 else 0)
    assert forward > 0
    expected: Expected = [...] * 23
    expected[0] = expected[5] = ("loss", 4 * s.kept + s.head_input + s.loss + forward)
    # The logits, the output layer and its gradient, and the gathered last layer.
    behind = s.head_input + element * s.logits + 2 * element * s.H + s.stream + element * s.L
    expected[1] = expected[6] = ("loss", 4 * s.kept + behind)
    s.holds(expected)
    # A device by itself gathers nothing: what it casts for a pass is gone before the logits are there.
    alone = step_of(batch=1, sequence=32, **ALONE | {"zero_stage": 3})
    alone.holds([("loss", 4 * alone.kept + alone.head_input + alone.loss), *[...] * 22])


@pytest.mark.parametrize("tensor", [1, 2])
def test_few_tokens_have_less_of_a_gradient_than_the_table(tensor: int) -> None:
    """One micro batch of ZeRO 2: a table's gradient that is whole on both ranks is scattered over them first.

    Beside it then stands the part, or the gradient that came in and is gathered; of one rank's only what came in.
    """
    split: dict[str, Any] = {"tensor_parallel": tensor, "sequence_parallel": tensor > 1, "data_parallel": 2}
    s = step_of(batch=1, sequence=8, **ALONE | split | {"zero_stage": 2})
    assert (1 + 2) * s.stream < 2 * s.E
    parts = 4 * s.stored / 2
    table = parts - 4 * s.E / 2
    beside = 2 * s.E if tensor == 2 else s.stream
    expected: Expected = [...] * 18
    expected += [
        ...,
        ...,
        ("embedding gradient", table + 4 * s.L + 2 * s.E + tensor * 2 * s.E + beside),
        ("embedding gradient", table + 4 * s.E + 2 * s.E + 4 * s.E / 2),
        ("optimizer step", parts + parts),
    ]
    s.holds(expected)


def test_a_gradient_that_is_not_reduced_at_once_is_not_scattered() -> None:
    """ZeRO 1, two micro batches on two tensor-parallel ranks: the table's gradient is whole until the last pass."""
    split: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 2, "zero_stage": 1}
    s = step_of(batch=2, sequence=8, **ALONE | split)
    whole = 4 * (s.stored + s.E) + 2 * s.stored
    expected: Expected = [...] * 5
    expected += [..., ..., ("embedding gradient", whole + 2 * 2 * s.E + 3 * s.stream), ("embedding gradient", whole)]
    s.holds([*expected, *[...] * 9])


def test_one_micro_batch_of_zero_3_gathers_the_table_alone() -> None:
    """Nothing comes after it: no other micro batch's output layer is gathered ahead. Its gradient is all there is."""
    s = step_of(batch=1, **ALONE | {"data_parallel": 4, "zero_stage": 3})
    parts = 4 * s.stored / 4
    table = parts - 4 * s.E / 4
    layer = table - 4 * s.L / 4
    expected: Expected = [...] * 10
    expected += [None] * 8
    layers = [s.kept + s.backward + (4 + 2 + 2) * s.L, s.backward + (4 + 2) * s.L + 2 * s.E]
    expected += endings(
        ((layer, table),), layers, [4 * s.L + 2 * s.E + 2 * s.E + s.stream, 4 * s.E + 2 * s.E + 4 * s.E / 4]
    )
    s.holds([*expected, ("optimizer step", parts + parts)])


@pytest.mark.parametrize("rank", [0, 1])
def test_both_ends_of_a_pipeline_have_a_tied_table(rank: int) -> None:
    """The first looks tokens up in it, the last multiplies by it: units of their own."""
    s, apart = (step_of(rank, batch=4, tied=tied, **PIPED) for tied in (True, False))
    assert s.found == apart.found
    assert s.stored == apart.stored


def test_as_many_micro_batches_as_ranks_are_all_held_by_the_first() -> None:
    """Two of two: the first backward pass finds both and no gradients, the second one and all of them."""
    s = step_of(0, batch=2, **PIPED)
    whole, buffers, one = 4 * s.stored, 2 * s.stream, 2 * s.kept + s.stream
    last = [s.backward - s.kept - s.stream + 2 * s.L + 2 * s.L, s.backward - 2 * s.kept + 3 * 2 * s.L]
    layers = [
        s.kept + s.backward + 2 * s.L + s.stream + 2 * s.L,
        s.backward + 2 * s.L + s.stream + 2 * s.L + 2 * s.E,
    ]
    table = [2 * s.E + 2 * 2 * s.L + 2 * s.E + s.stream, 0]
    expected: Expected = []
    for alive in (2 * one + buffers, whole + one + buffers):
        expected += [None] * 3
        expected += [("backward", alive + each) for each in last]
    expected += endings(((whole + one + buffers,) * 2, (whole + buffers,) * 2), layers, table)
    expected += [("gradient reduction", whole + buffers + 2 * s.stored + 2 * s.E)]
    s.holds([*expected, ("optimizer step", buffers + 2 * (4 * s.stored / 2))])


def test_the_last_of_two_ranks_has_all_gradients_after_its_first_micro_batch() -> None:
    s = step_of(1, batch=2, **PIPED)
    whole, buffers = 4 * s.stored, 2 * s.stream
    left = whole + buffers
    layers = [
        s.kept + s.backward + 2 * s.L + 2 * s.H + 2 * s.L,
        s.backward + 2 * s.L + 2 * (s.L + s.H),
    ]
    end = [*endings(((left, left),), layers, []), None, None]
    expected: Expected = []
    for gradients in (0.0, whole):
        alive = gradients + 2 * s.kept - s.stream + buffers + s.stream
        head = s.head_input + 2 * s.logits + 2 * s.H + 2 * s.H + s.stream + 2 * s.L
        expected += [
            ("loss", alive + s.head_input + s.loss),
            ("loss", alive + head),
            ("loss", alive + s.stream + 2 * s.L),
            ("backward", alive - s.kept + s.backward + 2 * s.L + 2 * s.L),
            ("backward", alive - 2 * s.kept + s.backward + 3 * 2 * s.L),
        ]
    expected += [*end, *end, ("gradient reduction", left + 2 * s.stored + 2 * s.L)]
    s.holds([*expected, ("optimizer step", buffers + 2 * (4 * s.stored / 2))])


def test_a_single_micro_batch_of_a_pipeline_ends_with_the_reduction() -> None:
    """Its backward pass begins without gradients; there is none that begins with them."""
    s = step_of(0, batch=1, **PIPED)
    alive = 2 * s.kept + s.stream + s.stream
    last = [s.backward - s.kept - s.stream + 2 * s.L + 2 * s.L, s.backward - 2 * s.kept + 3 * 2 * s.L]
    one: Expected = [None, None, None, *(("backward", alive + each) for each in last)]
    nothing: Expected = [None] * 8
    reduction = ("gradient reduction", 4 * s.stored + s.stream + 2 * s.stored + 2 * s.E)
    s.holds([*one, *one, *nothing, reduction, ("optimizer step", s.stream + 2 * (4 * s.stored / 2))])


@pytest.mark.parametrize(("rank", "sent", "sent_at_end"), [(0, 4, 5), (1, 2, 4)])
def test_interleaved_chunks_of_as_many_micro_batches_as_ranks(rank: int, sent: int, sent_at_end: int) -> None:
    """Four passes in flight, none done. Then both of the last chunk; the first chunk's turn comes when those are done.

    Every chunk pass that is done has sent an output and an input's gradient, but for the last chunk's output and the
    first one's gradient.
    """
    s = step_of(rank, batch=2, options={"warm_up_whole_batch": "true"}, **PIPED | {"virtual_stages": 2})
    whole, buffers = 4 * s.stored, 2 * 3 * s.stream
    one = 2 * s.kept + (s.stream if rank == 0 else -s.stream)
    ahead = 2 * s.L - s.stream if rank == 0 else 0
    head = s.head_input + 2 * s.logits + 2 * s.H + 2 * s.H + s.stream + 2 * s.L
    expected: Expected = []
    for alive in (2 * one + buffers + 2 * s.L, whole + one + buffers + sent * s.stream + 2 * s.L):
        if rank:
            expected += [
                ("loss", alive + s.head_input + s.loss),
                ("loss", alive + head),
                ("loss", alive + s.stream + 2 * s.L),
            ]
        else:
            expected += [None] * 3
        expected += [("backward", alive - s.kept + s.backward + 2 * s.L + ahead), None]
    left = whole + one / 2 + buffers + sent_at_end * s.stream
    behind = s.stream + 2 * s.L + 2 * s.E if rank == 0 else 2 * (s.L + s.H)
    end: Expected = [None, ("backward", left + s.backward + 2 * s.L + behind), None, None]
    if rank == 0:
        table = left + 2 * s.E + 2 * s.L + 2 * s.E + s.stream
        end[2:] = [("embedding gradient", table), ("embedding gradient", left)]
    s.holds([*expected, *end, *end, ..., ...])


@pytest.mark.parametrize(("word", "temporary"), [("true", 1), ("false", 0)])
def test_an_optimizer_of_one_kernel_a_tensor_has_no_temporary_of_all(word: str, temporary: int) -> None:
    s = step_of(batch=2, options={"foreach_optimizer": word}, **ALONE | {"data_parallel": 2, "zero_stage": 2})
    parts = 4 * s.stored / 2
    s.holds([*[...] * (len(s.found) - 1), ("optimizer step", parts + temporary * parts)])


@pytest.mark.parametrize(("count", "done"), [(3, 0), (4, 1), (6, 3), (8, 5), (9, 6)])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_outputs_and_gradients_that_interleaved_ranks_have_sent(count: int, done: int, rank: int) -> None:
    """Three ranks of three chunks: of `done` micro batches, nine chunk passes each three, some were sent.

    Backward passes take turns: of three micro batches the last chunk's, then the middle one's, then the first one's.
    """
    fields: dict[str, Any] = {"pipeline_parallel": 3, "virtual_stages": 3, "zero_stage": 3}
    scenario = question(small_moe(vocab_size=8, num_hidden_layers=9), "torch", devices=3, global_batch_size=2 * count)
    here = block(scenario, micro_batch_size=2, **fields)
    flight = count - done
    turns = [2 - (turn // 3) % 3 for turn in range(3 * done)]
    expected = sum(2 - (rank == 2 and chunk == 2) - (rank == 0 and chunk == 0) for chunk in turns)
    found = _sent_chunks(Pricing(scenario, here), np.full((3, 1), float(flight)))
    assert found[rank, 0] == expected


def test_layers_of_unequal_size_stay_gathered_each_with_its_own() -> None:
    """A dense layer and one of experts on the first rank: the table's gradient is taken beside both."""
    scenario = question(small_moe(vocab_size=48), "torch", devices=4, global_batch_size=16)
    here = block(scenario, micro_batch_size=2, pipeline_parallel=2, zero_stage=3)
    memory = memory_by_stage(Pricing(scenario, here))
    attention = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64
    layers = 2 * attention + 3 * 64 * 160 + 64 * 8 + (8 + 1) * 3 * 64 * 48
    table, stream, angles = 48 * 64, 2 * 64 * 64, 4 * 32 * 16
    [found] = {float(np.asarray(one.temporary)[0, 0]) for one in memory.moments if _at_table(one.name, one.temporary)}
    assert found == angles + 2 * table + 2 * layers + 2 * table + stream


def _at_table(name: str, temporary: Any) -> bool:
    return name == "embedding gradient" and float(np.asarray(temporary)[0, 0]) > 4 * 48 * 64


@pytest.mark.parametrize("chunks", [{}, {"chunk_layers": (1, 3, 2, 2, 1, 3)}])
def test_with_as_many_micro_batches_as_ranks_first_chunks_come_last(chunks: dict[str, Any]) -> None:
    """Behind a first chunk's backward pass the first chunks of all later micro batches are left, and nothing else."""
    scenario = question(small_dense(num_hidden_layers=12), "torch", devices=3, global_batch_size=3)
    cut = {"stage_layers": (3, 4, 5)} if chunks else {}
    layout = layout_of(scenario, pipeline_parallel=3, virtual_stages=2, zero_stage=3, **chunks, **cut)
    pricing = Pricing(scenario, block_of([layout]))
    fsdp = _policy(pricing)
    step = _Step(pricing, fsdp, _units(pricing), _ranks(pricing, fsdp))
    held = [_held(step, np.full((3, 1), flight), ended=True)[:, 0] for flight in (3.0, 2.0, 1.0)]
    assert held[0].tolist() == held[1].tolist() == held[2].tolist()
    layer = only(layer_bytes(pricing, scenario.model.layer_kinds[0]))
    first = [1, 3, 2] if chunks else [2, 2, 2]
    # Beside them buffers, and what was sent: of one micro batch's worth of chunks, and all that the step keeps.
    ranks, one = step.ranks, np.ones((3, 1))
    beside = ranks.beside_layers + ranks.buffers + ranks.boundary * _sent_chunks(pricing, one)
    assert (held[0] - beside[:, 0]).tolist() == pytest.approx([2 * layers * layer for layers in first])


def test_whole_gradients_lie_in_no_block_of_a_stream() -> None:
    """accelerate sums whole 16-bit gradients over micro batches: nothing outside the tensors gets smaller for it."""
    asked: Any = {"model": "llama3.1-8b", "hardware": "a100-sxm-80g", "devices": 8, "framework": "torch"}
    asked |= {"stack": "trl", "zero_stage": 3, "recompute": "full", "seq_length": 2048, "micro_batch_size": 1}
    once, summed = (simulator.estimate(**asked, global_batch_size=size).memory for size in (8, 64))
    for memory in (once, summed):
        assert min(memory.outside_parts_bytes.values()) >= 0
        assert memory.device_bytes > memory.allocated_bytes
    assert summed.allocated_bytes > once.allocated_bytes
