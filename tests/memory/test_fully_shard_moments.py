"""Every moment of a step under FSDP2, tensor by tensor, worked by hand for layouts that shard in different ways.

The dense model of tests.scenario.cases: 4 layers, h 64, f 160, 4 heads and 2 key-value heads of 16; a vocabulary of 48.
Units are a layer of L parameters, the input table of E, and the output layer with the last norm of H. What a layer
keeps, its backward pass and the loss have tests of their own.
"""

from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import layer_bytes
from simulator.cost.memory.loss import head_input_bytes, loss_bytes
from simulator.cost.memory.moments import layer_backward_bytes
from simulator.cost.memory.peak import memory_by_stage
from simulator.question.scenario.block import block_of
from tests.pricing.test_memory_arithmetic import question
from tests.scenario.cases import layout_of, small_dense

LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160
NORMS = 2 * 64
VOCABULARY = 48
SEQUENCE = 256


Expected = list[tuple[str, float] | EllipsisType | None]
"""Name and bytes of each moment; None for one that these layouts do not have, ... for one that is not looked at."""


@dataclass(frozen=True)
class Step:
    """One rank's step: the moments found, and the sizes they are made of, in bytes unless said."""

    found: list[tuple[str, float]]
    """Without what lives through the step."""
    passing: list[float]
    """Gradients, logits and temporaries of each moment."""
    L: float
    E: float
    H: float
    stored: float
    """Parameters of the rank before sharding, a count as L, E and H."""
    kept: float
    """Activations of one layer."""
    backward: float
    """What a layer's backward pass holds, what it kept included."""
    stream: float
    """The residual stream at a layer's input."""
    head_input: float
    loss: float
    logits: float
    """A count."""

    def holds(self, expected: Expected) -> None:
        assert len(self.found) == len(expected)
        for place, (found, wanted) in enumerate(zip(self.found, expected, strict=True)):
            if wanted is None:
                assert self.passing[place] == 0, place
            elif wanted is not ...:
                assert (place, found[0]) == (place, wanted[0])
                assert found[1] == pytest.approx(wanted[1], rel=1e-12), (place, found[0])


def step_of(rank: int = 0, *, batch: int, options: dict[str, str] | None = None, **fields: Any) -> Step:
    precision, tied = fields.pop("precision", "bf16"), fields.pop("tied", False)
    sequence = fields.pop("sequence", SEQUENCE)
    model = small_dense(vocab_size=VOCABULARY, tie_word_embeddings=tied)
    tp, pp, dp = (fields[name] for name in ("tensor_parallel", "pipeline_parallel", "data_parallel"))
    scenario = question(
        model,
        "torch",
        devices=tp * pp * dp,
        global_batch_size=batch * dp,
        seq_length=sequence,
        precision=precision,
        options=options,
    )
    layout = layout_of(scenario, **fields)
    block, element = block_of([layout]), 4 if precision == "fp32" else 2
    memory = memory_by_stage(Pricing(scenario, block))
    kind = scenario.model.layer_kinds[0]
    keeps_gradients = np.array([float(element == 2 or dp > 1)])
    size, table = LAYER / tp + NORMS, VOCABULARY * 64 / tp
    stored = 4 / pp * size + table * ((rank == 0) + (rank == pp - 1) - (tied and pp == 1)) + 64 * (rank == pp - 1)
    # Parameters and two states in fp32, and the angles of a sequence's rotations.
    always = (4 + 8) * stored / (dp if layout.zero_stage else 1) + 4 * sequence * 16
    at = int(memory.contents.kind[rank])
    return Step(
        [(one.name, float(one.total(memory.contents)[rank, 0]) - always) for one in memory.moments],
        [float(np.asarray(one.gradients + one.logits + one.temporary)[at, 0]) for one in memory.moments],
        size,
        0 if tied and pp == 1 else table,
        table + 64,
        stored,
        float(layer_bytes(Pricing(scenario, block), kind)[0]),
        float(layer_backward_bytes(Pricing(scenario, block), kind, keeps_gradients)[0]),
        element * sequence * 64 / (tp if layout.sequence_parallel else 1),
        float(head_input_bytes(Pricing(scenario, block))[0]),
        float(loss_bytes(Pricing(scenario, block))[0]),
        sequence * VOCABULARY / tp,
    )


ALONE: dict[str, Any] = {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}
PIPED: dict[str, Any] = ALONE | {"pipeline_parallel": 2, "data_parallel": 2, "zero_stage": 3}


def endings(gradients: tuple[tuple[float, float], ...], layers: list[float], table: list[float]) -> Expected:
    """Backward passes of the first layers and of the table, over the gradients alive at each end of a pass."""
    found: Expected = []
    for of_layer, of_table in gradients:
        found += [("backward", of_layer + one) for one in layers]
        found += [("embedding gradient", of_table + one) for one in table]
    return found


def test_zero_3_gathers_and_reduces_every_unit() -> None:
    """Three micro batches on four ranks: gathered weights of the unit used and of the next one, parts of gradients."""
    s = step_of(batch=3, **ALONE | {"data_parallel": 4, "zero_stage": 3})
    parts = 4 * s.stored / 4
    alive = parts + 4 * s.kept
    first_table = parts - 4 * s.E / 4
    first_layer = first_table - 4 * s.L / 4
    table = [4 * s.L + 2 * s.H + 2 * s.E + 2 * s.E + s.stream, 2 * s.H + 4 * s.E + 2 * s.E + 4 * s.E / 4]
    layers = [s.kept + s.backward + (4 + 2 + 2) * s.L, s.backward + (4 + 2) * s.L + 2 * s.E]
    expected: Expected = [
        ("loss", alive + s.head_input + 4 * s.E + s.loss),
        ("loss", alive + s.head_input + 4 * s.E + 2 * s.logits + 2 * s.H + 2 * s.H + s.stream + 2 * s.L),
        ("loss", alive + s.stream + 2 * s.L + 4 * s.H + 2 * s.H + 4 * s.H / 4),
        ("backward", alive - s.kept + s.backward + 2 * s.L + 2 * s.L + 4 * s.H),
        ("backward", alive - 2 * s.kept + s.backward + 2 * s.L + 2 * s.L + 4 * s.L),
    ]
    expected += endings(((first_layer, first_table), (parts, parts), (parts, parts)), layers, table)
    s.holds([*expected, ("optimizer step", parts + parts)])


def test_zero_2_with_one_micro_batch_frees_gathered_weights_as_the_pass_goes() -> None:
    """Over two tensor-parallel ranks the table's gradient is whole, gathered over the tokens, scattered, reduced.

    PyTorch 2.13, _fsdp_param_group.py, `post_backward`: a unit is freed before it is reduced.
    """
    split: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 2, "zero_stage": 2}
    s = step_of(batch=1, **ALONE | split)
    alive = 4 * s.kept + 2 * s.stored
    one_pass: Expected = [
        ("loss", alive + s.head_input + s.loss),
        ("loss", alive + s.head_input + 2 * s.logits + 2 * s.H + s.stream),
        ("loss", alive - 2 * s.H + s.stream + 4 * s.H + 2 * s.H + 4 * s.H / 2),
        ("backward", alive - 2 * s.H - s.kept + s.backward + 4 * s.H),
        ("backward", alive - 2 * s.H - 2 * s.kept + s.backward + 4 * s.L),
    ]
    parts = 4 * s.stored / 2
    table = parts - 4 * s.E / 2
    layer = table - 4 * s.L / 2
    layers = [s.kept + s.backward + (4 + 2) * s.L, s.backward + (4 + 2) * s.L]
    of_table = [4 * s.L + 2 * s.E + 2 * 2 * s.E + max(3 * s.stream, 2 * s.E), 4 * s.E + 2 * s.E + 4 * s.E / 2]
    nothing: Expected = [None] * 4
    end = endings(((layer, table),), layers, of_table)
    s.holds([*one_pass, *one_pass, *nothing, *nothing, *end, ("optimizer step", parts + parts)])


def test_without_zero_gradients_are_whole_and_reduced_in_the_last_pass() -> None:
    """Two micro batches: a second buffer while the last pass reduces."""
    s = step_of(batch=2, **ALONE | {"data_parallel": 2, "zero_stage": 0})
    whole = 4 * s.stored
    alive = whole + 4 * s.kept + 2 * s.stored
    expected: Expected = [
        ("loss", alive + s.head_input + s.loss),
        ("loss", alive + s.head_input + 2 * s.logits + 2 * s.H + s.stream),
        ("loss", alive + s.stream + 4 * s.H),
        ("backward", alive - s.kept + s.backward + 4 * s.H),
        ("backward", alive - 2 * s.kept + s.backward + 4 * s.L),
    ]
    gathered = whole + 2 * s.stored
    expected += endings(((gathered, gathered),), [s.kept + s.backward, s.backward], [2 * s.E + s.stream, 0])
    layers = [s.kept + s.backward + (4 + 2) * s.L, s.backward + (4 + 2) * s.L]
    expected += [None] * 4
    expected += endings(((whole, whole),), layers, [4 * s.L + 2 * s.E + 2 * s.E + s.stream, 4 * s.E])
    s.holds([*expected, ("optimizer step", whole + whole)])


def test_zero_1_reduces_whole_gradients_into_parts_in_the_last_pass() -> None:
    s = step_of(batch=2, **ALONE | {"data_parallel": 2, "zero_stage": 1})
    whole, parts = 4 * s.stored, 4 * s.stored / 2
    alive = whole + 4 * s.kept + 2 * s.stored
    expected: Expected = [
        ("loss", alive + s.head_input + s.loss),
        ("loss", alive + s.head_input + 2 * s.logits + 2 * s.H + s.stream),
        ("loss", alive + s.stream),
        ("backward", alive - s.kept + s.backward),
        ("backward", alive - 2 * s.kept + s.backward),
    ]
    gathered = whole + 2 * s.stored
    expected += endings(((gathered, gathered),), [s.kept + s.backward, s.backward], [2 * s.E + s.stream, 0])
    expected += [None] * 4
    # Of the units not reduced yet, the table and a layer, the whole gradients.
    table = parts + 4 * s.E / 2
    layer = table + 4 * s.L / 2
    layers = [s.kept + s.backward + 2 * s.L, s.backward + 2 * s.L]
    expected += endings(((layer, table),), layers, [2 * s.E + 2 * s.E + s.stream, 0])
    s.holds([*expected, ("optimizer step", parts + parts)])


def test_fp32_on_one_device_is_not_wrapped() -> None:
    """No casts and no parts: a gradient is added to the accumulated one at once, after the first micro batch."""
    s = step_of(batch=2, precision="fp32", **ALONE | {"zero_stage": 0})
    whole = 4 * s.stored
    alive = whole + 4 * s.kept
    expected: Expected = [
        ("loss", alive + s.head_input + s.loss),
        ("loss", alive + s.head_input + 4 * s.logits + 4 * s.H + s.stream),
        ("loss", alive + s.stream),
        ("backward", alive - s.kept + s.backward),
        ("backward", alive - 2 * s.kept + s.backward),
    ]
    before, layers, table = whole - 4 * s.E, [s.kept + s.backward, s.backward], [4 * s.E + s.stream, 0]
    expected += endings(((before, before),), layers, table)
    expected += [None] * 4
    expected += endings(((whole, whole),), layers, table)
    s.holds([*expected, ("optimizer step", whole + whole)])


def test_zero_3_on_one_device_gathers_nothing_ahead() -> None:
    """Weights are cast unit by unit; the part of a gradient is the whole of it."""
    s = step_of(batch=2, **ALONE | {"zero_stage": 3})
    whole = 4 * s.stored
    alive = whole + 4 * s.kept
    expected: Expected = [
        ("loss", alive + s.head_input + 4 * s.E + s.loss),
        ("loss", alive + s.head_input + 4 * s.E + 2 * s.logits + 2 * s.H + 2 * s.H + s.stream),
        ("loss", alive + s.stream + 4 * s.H + 4 * s.H),
        ("backward", alive - s.kept + s.backward + 2 * s.L + 4 * s.H),
        ("backward", alive - 2 * s.kept + s.backward + 2 * s.L + 4 * s.L),
    ]
    table = whole - 4 * s.E
    layer = table - 4 * s.L
    layers = [s.kept + s.backward + (4 + 2) * s.L, s.backward + (4 + 2) * s.L]
    of_table = [4 * s.L + 2 * s.E + 2 * s.E + s.stream, 4 * s.E + 4 * s.E]
    expected += endings(((layer, table),), layers, of_table)
    expected += [None] * 4
    expected += endings(((whole, whole),), layers, of_table)
    s.holds([*expected, ("optimizer step", whole + whole)])


def test_the_first_rank_of_a_pipeline_keeps_what_its_backward_passes_gathered() -> None:
    """Four micro batches, two of them in flight; a buffer for each gradient that comes in, and what was sent."""
    s = step_of(0, batch=4, **PIPED)
    whole, buffers = 4 * s.stored, 4 * s.stream
    alive = whole + 2 * (2 * s.kept + s.stream) + buffers
    expected: Expected = [None] * 3
    expected += [
        ("backward", alive - s.kept + s.backward - s.stream + 2 * s.L + 2 * s.L),
        ("backward", alive - 2 * s.kept + s.backward + 3 * 2 * s.L),
    ]
    left = whole + 2 * s.kept + s.stream + buffers
    layers = [
        s.kept + s.backward + 2 * s.L + s.stream + 2 * s.L,
        s.backward + 2 * s.L + s.stream + 2 * s.L + 2 * s.E,
    ]
    table = [2 * s.E + 2 * 2 * s.L + 2 * s.E + s.stream, 0]
    expected += endings(((left, left), (left, left)), layers, table)
    expected += [("gradient reduction", whole + buffers + 2 * s.stored + 2 * s.E)]
    s.holds([*expected, ("optimizer step", buffers + 2 * (4 * s.stored / 2))])


def test_the_last_rank_of_a_pipeline_has_one_micro_batch_and_the_loss() -> None:
    """What it received is the input that its first layer keeps: counted once."""
    s = step_of(1, batch=4, **PIPED)
    whole, buffers = 4 * s.stored, 4 * s.stream
    alive = whole + 2 * s.kept - s.stream + buffers + s.stream
    head = s.head_input + 2 * s.logits + 2 * s.H + 2 * s.H + s.stream + 2 * s.L
    expected: Expected = [
        ("loss", alive + s.head_input + s.loss),
        ("loss", alive + head),
        ("loss", alive + s.stream + 2 * s.L),
        ("backward", alive - s.kept + s.backward + 2 * s.L + 2 * s.L),
        ("backward", alive - 2 * s.kept + s.backward + 3 * 2 * s.L),
    ]
    left = whole + buffers
    layers = [
        s.kept + s.backward + 2 * s.L + 2 * s.H + 2 * s.L,
        s.backward + 2 * s.L + 2 * (s.L + s.H),
    ]
    end = [*endings(((left, left),), layers, []), None, None]
    expected += [*end, *end, ("gradient reduction", left + 2 * s.stored + 2 * s.L)]
    s.holds([*expected, ("optimizer step", buffers + 2 * (4 * s.stored / 2))])


@pytest.mark.parametrize(("rank", "flight", "sent", "sent_later"), [(0, 2.5, 5, 6), (1, 1.5, 7, 8)])
def test_interleaved_chunks_of_one_layer(rank: int, flight: float, sent: int, sent_later: int) -> None:
    """Four micro batches and two chunks: five and three passes in flight, of eight.

    When the ranks first hold as many they have done three and five backward passes; of each chunk an output and the
    gradient of an input were sent, but for the last chunk's output and the first one's gradient.
    """
    s = step_of(rank, batch=4, **PIPED | {"virtual_stages": 2})
    whole, buffers = 4 * s.stored, 4 * 3 * s.stream
    one = 2 * s.kept + (s.stream if rank == 0 else -s.stream)
    alive = whole + flight * one + buffers + sent * s.stream + 2 * s.L
    expected: Expected = [None] * 3
    if rank:
        head = s.head_input + 2 * s.logits + 2 * s.H + 2 * s.H + s.stream + 2 * s.L
        expected = [
            ("loss", alive + s.head_input + s.loss),
            ("loss", alive + head),
            ("loss", alive + s.stream + 2 * s.L),
        ]
    ahead = 2 * s.L - s.stream if rank == 0 else 0
    expected += [("backward", alive - s.kept + s.backward + 2 * s.L + ahead), None]
    left = whole + (flight - 0.5) * one + buffers + sent_later * s.stream
    if rank:
        end: Expected = [None, ("backward", left + s.backward + 2 * s.L + 2 * (s.L + s.H)), None, None]
    else:
        end = [
            None,
            ("backward", left + s.backward + 2 * s.L + s.stream + 2 * s.L + 2 * s.E),
            ("embedding gradient", left + 2 * s.E + 2 * s.L + 2 * s.E + s.stream),
            ("embedding gradient", left),
        ]
    unit = 2 * s.L if rank else 2 * s.E
    reduced = whole - 4 * s.L / 2 + buffers + 2 * (s.stored - s.L) + unit
    expected += [*end, *end, ("gradient reduction", reduced)]
    s.holds([*expected, ("optimizer step", buffers + 2 * (4 * s.stored / 2))])


def test_a_pipeline_s_table_is_scattered_before_it_is_reduced() -> None:
    """Over tensor-parallel ranks: a second fp32 table beside the gathered one that goes, without ZeRO 3 no weights."""
    split: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True, "zero_stage": 2}
    s = step_of(0, batch=4, **PIPED | split)
    whole = 4 * (s.stored + s.E)
    expected: Expected = [...] * (5 + 8)
    gathered = 2 * s.stored
    reduction = whole + gathered + 4 * s.stream + 4 * 2 * s.E - 2 * s.E
    s.holds([*expected, ("gradient reduction", reduction), ("optimizer step", 4 * s.stream + 2 * (4 * s.stored / 2))])


@pytest.mark.parametrize(
    ("method", "layers", "inputs", "again"), [("uniform", 2, 2, 1), ("uniform", 1, 4, 0), ("block", 1, 1, 0)]
)
def test_a_unit_computed_again_is_alive_as_a_whole(method: str, layers: int, inputs: int, again: int) -> None:
    """ZeRO 1, two micro batches: the first layer keeps its input, the last all unless every layer is computed again."""
    again_fields: dict[str, Any] = {"recompute": "full", "recompute_method": method, "recompute_layers": layers}
    s = step_of(batch=2, **ALONE | {"data_parallel": 2, "zero_stage": 1}, **again_fields)
    uniform = method == "uniform"
    activations = inputs * s.stream + (0 if uniform else 3 * s.kept)
    last = s.stream if uniform else s.kept
    backward = s.backward + again * s.kept
    whole = 4 * s.stored + 2 * s.stored
    expected: Expected = [
        ...,
        ...,
        ...,
        ("backward", whole + activations - last + backward),
        ("backward", whole + activations - 2 * last + backward),
        ("backward", whole + s.stream + backward),
        ("backward", whole + backward),
    ]
    s.holds([*expected, *[...] * 11])


def test_one_unit_holds_a_table_that_is_also_the_output_layer() -> None:
    """ZeRO 3: no gradient of a table by itself; the output layer's is left when the next loss begins."""
    s = step_of(batch=3, tied=True, **ALONE | {"data_parallel": 4, "zero_stage": 3})
    parts = 4 * s.stored / 4
    alive = parts + 4 * s.kept
    expected: Expected = [
        ("loss", alive + s.head_input + 4 * s.H + s.loss),
        ("loss", alive + s.head_input + 4 * s.H + 2 * s.logits + 2 * s.H + 2 * s.H + s.stream + 2 * s.L),
        ("loss", alive + s.stream + 2 * s.L + 4 * s.H + 2 * s.H + 4 * s.H / 4),
    ]
    s.holds([*expected, *[...] * 15])


def test_activations_on_the_host_do_not_grow_with_micro_batches_in_flight() -> None:
    """Two layers stay: the one computed and the one copied."""
    few, many = (step_of(0, batch=count, **PIPED | {"offload": "activations"}).found[3][1] for count in (2, 4))
    stream = 2 * SEQUENCE * 64
    # Two more receive buffers; later passes find whole gradients in either.
    assert many - few == 2 * stream


@pytest.mark.parametrize("zero_stage", [2, 3])
def test_fp8_gathers_linear_weights_in_8_bits(zero_stage: int) -> None:
    """Norms, table and output layer in 16; a layer's matrices in 8: of the unit used, of the next, or of all kept."""
    options = {"fp8_param_gather": "true", "fp8_weight_cache": "false", "fp8_recipe": "delayed"}
    fields = ALONE | {"data_parallel": 4, "zero_stage": zero_stage}
    s = step_of(batch=3, precision="fp8", options=options, **fields)
    alive = 4 * s.stored / 4 + 4 * s.kept
    layer = 2 * s.L - LAYER
    gathered = 2 * layer if zero_stage == 3 else 2 * s.stored - 4 * LAYER
    expected: Expected = [...] * 18
    expected[3] = ("backward", alive - s.kept + s.backward + gathered + 4 * s.H)
    s.holds(expected)


@pytest.mark.parametrize(("precision", "wrapped"), [("fp32", False), ("bf16", True)])
def test_the_step_of_one_replica_has_the_table_s_gradient_as_its_passes_left_it(
    *, precision: str, wrapped: bool
) -> None:
    """fp32 without replicas is not wrapped: nobody scatters the table's gradient over the tensor-parallel ranks."""
    s = step_of(batch=2, precision=precision, **ALONE | {"tensor_parallel": 2, "zero_stage": 3})
    whole = 4 * s.stored
    more = 0 if wrapped else 4 * (2 * s.E - s.E)
    foreach = 4 * s.stored
    assert s.found[-1][0] == "optimizer step"
    assert s.found[-1][1] == pytest.approx(whole + more + foreach)
