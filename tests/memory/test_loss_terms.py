"""The loss, what waits for the output layer, and buffers of groups, in every combination that changes them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.loss import deferred_head_bytes, head_gradient_bytes, logits_per_micro_batch, loss_bytes
from simulator.cost.memory.outside import communicator_groups, outside_allocator, stranded_logits
from simulator.cost.operations.sums import micro_batches
from simulator.question.coefficients import Coefficients, MemoryCoefficients
from simulator.question.units import MIB
from tests.scenario.cases import block, only, pricing, scenario_of, small_dense, small_moe

T, V = 64, 1000


def scenario_with(options: dict[str, str] | None = None, *, model: Any = None, devices: int = 16, **fields: Any) -> Any:
    values = Coefficients(memory=MemoryCoefficients(unfused_loss_bytes_per_logit=0.5))
    return scenario_of(
        model or small_dense(),
        devices=devices,
        seq_length=32,
        global_batch_size=64,
        options=options,
        coefficients=values,
        **fields,
    )


@pytest.mark.parametrize(
    ("options", "precision", "per_logit", "of_split"),
    [
        ({}, "bf16", 6, 0),
        ({"fused_cross_entropy": "true"}, "bf16", 10, 0),
        # Of a vocabulary that is cut; whole logits are not.
        ({"split_loss_bytes_per_logit": "6"}, "bf16", 6, 6),
        ({"split_loss_bytes_per_logit": "6"}, "fp32", 12, 6),
        ({}, "fp32", 12, 0),
        ({"fused_cross_entropy": "true"}, "fp32", 8, 0),
        ({}, "fp8", 6, 0),
    ],
)
@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("capped", [True, False])
def test_bytes_of_a_logit(  # noqa: PLR0917 - one for each thing that decides it
    options: dict[str, str],
    precision: str,
    per_logit: float,
    of_split: float,
    tensor: int,
    parallel: bool,
    capped: bool,
) -> None:
    """A soft cap keeps a copy; every rank of a loss that is not parallel holds the logits of all."""
    options = options | {"vocabulary_parallel_loss": str(parallel).lower()}
    model = small_dense(logit_softcap=capped)
    scenario = scenario_with(options, model=model, precision=precision)
    here = block(scenario, micro_batch_size=2, tensor_parallel=tensor)
    each = per_logit + (4 if precision == "fp32" else 2) * capped
    each += of_split if parallel and tensor > 1 else 0
    logits = T * V / (tensor if parallel else 1)
    assert only(logits_per_micro_batch(Pricing(scenario, here))) == logits
    assert only(loss_bytes(Pricing(scenario, here))) == each * logits


@pytest.mark.parametrize("tensor", [1, 4])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_chunk_s_logits_and_two_gradients(tensor: int, precision: str) -> None:
    """The hidden state's as wide as it, the output weight's part in fp32."""
    element, each = (2, 6) if precision == "bf16" else (4, 12)
    scenario = scenario_with(
        {"cross_entropy_chunk_tokens": "16"}, model=small_dense(vocab_size=4096), precision=precision
    )
    here = block(scenario, micro_batch_size=2, tensor_parallel=tensor)
    whole = each * T * 4096 / tensor
    gradients = element * T * 64 + 4 * 4096 / tensor * 64
    expected = min(whole / 4 + gradients, whole)
    assert only(loss_bytes(Pricing(scenario, here))) == expected
    assert (expected < whole) == (precision == "fp32" or tensor == 0 or whole * 0.75 > gradients)


def test_labelled_tokens_alone_have_logits() -> None:
    """A quarter of them; a score is one number of each."""
    few = scenario_with({"labelled_token_fraction": "0.25"})
    assert only(loss_bytes(pricing(few, micro_batch_size=2))) == 6 * T / 4 * V
    score = scenario_with({"score_head": "true"})
    assert only(loss_bytes(pricing(score, micro_batch_size=2))) == 6 * T


@pytest.mark.parametrize(
    ("fields", "parts", "vocabulary"),
    [
        ({}, 1, 1),
        ({"tensor_parallel": 4}, 1, 4),
        ({"tensor_parallel": 4, "sequence_parallel": True}, 4, 4),
    ],
)
@pytest.mark.parametrize("most", [0, 3, 50])
def test_what_waits_for_the_output_layer_s_gradient(
    fields: dict[str, Any], parts: int, vocabulary: int, most: int
) -> None:
    """Its input and its output's gradient, of so many micro batches, or of all that there are; only in a pipeline."""
    scenario = scenario_with({"deferred_head_gradients": str(most)})
    for ranks in (1, 2):
        here = block(scenario, micro_batch_size=2, pipeline_parallel=ranks, **fields)
        count = micro_batches(Pricing(scenario, here))
        each = 2 * (T * 64 / parts + T * V / vocabulary)
        waiting = min(most, only(count)) if ranks > 1 else 0
        assert only(deferred_head_bytes(Pricing(scenario, here))) == waiting * each


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        # All ranks and replicas.
        ({"devices": 2}, 2),
        ({"devices": 1}, 0),
        # With tensor parallelism its group and the model's; no replicas, or some.
        ({"devices": 2, "tensor_parallel": 2}, 3),
        ({"devices": 4, "tensor_parallel": 2}, 4),
        # A context's ranks are replicas as well.
        ({"devices": 2, "context_parallel": 2}, 3),
        # A pipeline: its group, its ends and the model's.
        ({"devices": 2, "pipeline_parallel": 2}, 4),
        ({"devices": 16, "pipeline_parallel": 2, "tensor_parallel": 2, "context_parallel": 2}, 7),
        # Experts over ranks, and the replicas of theirs.
        ({"devices": 4, "expert_parallel": 4}, 3),
        ({"devices": 8, "expert_parallel": 4}, 4),
        ({"devices": 8, "expert_tensor_parallel": 4, "tensor_parallel": 4}, 6),
    ],
)
def test_groups_that_have_buffers(fields: dict[str, Any], groups: int) -> None:
    model = small_moe() if any(name.startswith("expert") for name in fields) else small_dense()
    scenario = scenario_with(model=model, devices=fields["devices"])
    here = block(scenario, **{name: value for name, value in fields.items() if name != "devices"})
    assert only(communicator_groups(Pricing(scenario, here))) == groups
    if not scenario.model.is_moe:
        # Of a model with experts those of the experts' replicas beside them.
        moe = scenario_with(model=small_moe(), devices=fields["devices"])
        assert only(communicator_groups(Pricing(moe, here))) == groups + (only(here.expert_replicas) > 1)


@pytest.mark.parametrize(("option", "each"), [("0", None), ("7", 7 * MIB)])
def test_buffers_of_a_documented_size(option: str, each: float | None) -> None:
    """The library's own, or as the stack sets it; a ring holds two blocks of keys and values and a part in fp32."""
    scenario = scenario_with({"communicator_buffer_mib": option}, hardware="ascend-910b-64g")
    assert scenario.hardware.communicator_buffer_bytes
    here = block(scenario, micro_batch_size=2, context_parallel=4, tensor_parallel=2, sequence_parallel=True)
    found = outside_allocator(Pricing(scenario, here), np.full((1, 1), 1000.0))
    assert only(found.communicators) == (each or scenario.hardware.communicator_buffer_bytes) * 5
    assert only(found.ring_buffers) == T / 4 / 2 * (2 * 2 * 2 * 32 + 4 * 64)
    assert only(found.user_buffers) == 0
    assert only(found.context) == scenario.coefficients.memory.context_bytes
    none = block(scenario, micro_batch_size=2)
    assert only(outside_allocator(Pricing(scenario, none), np.full((1, 1), 1000.0)).ring_buffers) == 0


@pytest.mark.parametrize(
    ("options", "fields", "stranded"),
    [
        ({}, {}, 2.5),
        ({"fully_shard": "false"}, {}, 0.5),
        ({"fused_cross_entropy": "true"}, {}, 0),
        ({"cross_entropy_chunk_tokens": "16"}, {}, 0),
        ({}, {"precision": "fp32"}, 0),
        ({}, {"precision": "fp8"}, 2.5),
        # A host's allocator caches no blocks.
        ({}, {"hardware": "local-cpu"}, 0),
    ],
)
def test_logits_that_nothing_fits_into(options: dict[str, str], fields: dict[str, Any], stranded: float) -> None:
    """Where several kernels differentiate a loss that a caching allocator makes room for: PyTorch's 16-bit ones too."""
    apart = {"fused_cross_entropy": "false", "cross_entropy_chunk_tokens": "0"}
    scenario = scenario_with(apart | options, profile="torch", **fields)
    found = stranded_logits(pricing(scenario, micro_batch_size=2, tensor_parallel=2))
    assert only(found) == stranded * T * V / 2


@pytest.mark.parametrize("kind", ["ring", "gathered_ring", "all_gather", "all_to_all", "all_to_all_ring"])
@pytest.mark.parametrize("context", [1, 2, 4])
def test_only_a_ring_passes_blocks_on(kind: str, context: int) -> None:
    """Of a hierarchy the ring is between pairs of neighbours: none among two ranks."""
    scenario = scenario_with({"cp_communication": kind, "cp_inner_degree": "2"})
    found = outside_allocator(pricing(scenario, context_parallel=context), np.zeros((1, 1)))
    rings = {"ring": context > 1, "all_to_all_ring": context > 2}.get(kind, False)
    assert (only(found.ring_buffers) > 0) is rings


@pytest.mark.parametrize(
    ("options", "share", "beside"),
    [
        ({"growing_pool": "true"}, "fragmentation_growing", False),
        ({"expandable_segments": "true"}, "fragmentation_expandable", False),
        ({"expandable_segments": "false"}, "fragmentation", True),
        ({"expandable_segments": "false", "eager_modules": "true"}, "fragmentation_early", True),
    ],
)
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("allocated", [100.0, 2.0**33])
def test_what_an_allocator_cannot_use(
    options: dict[str, str], share: str, beside: bool, tensor: int, allocated: float
) -> None:
    """A share of the tensors; without segments that grow also freed blocks: a fixed size, or a part of the tensors."""
    shares = {"fragmentation_growing": 0.1, "fragmentation_expandable": 0.2}
    shares |= {"fragmentation": 0.3, "fragmentation_early": 0.4}
    values = MemoryCoefficients(**shares, unexpandable_bytes=2.0**31, unexpandable_tensor_parallel_bytes=2.0**28)
    values = replace(values, unfused_loss_bytes_per_logit=0.0)
    scenario = replace(scenario_with(options), coefficients=Coefficients(memory=values))
    here = block(scenario, tensor_parallel=tensor)
    found = outside_allocator(Pricing(scenario, here), np.full((1, 1), allocated))
    held = min(2**31 + 2**28 * (tensor > 1), allocated / 4 + 60 * 2**20) if beside else 0
    assert only(found.fragmentation) == pytest.approx(shares[share] * allocated)
    assert only(found.cached) == pytest.approx(held)


@pytest.mark.parametrize(("sequence", "grows"), [(32, True), (4096, False)])
def test_ring_buffers_grow_to_a_bound(sequence: int, grows: bool) -> None:
    """Five activations of a rank's tokens, or 100,000 bytes."""
    values = MemoryCoefficients(ring_buffers_per_activation=5.0, ring_buffers_bytes=1e5)
    scenario = replace(scenario_with(), coefficients=Coefficients(memory=values), seq_length=sequence)
    here = block(scenario, context_parallel=4, tensor_parallel=2)
    found = only(outside_allocator(Pricing(scenario, here), np.zeros((1, 1))).ring_buffers)
    assert found == (5 * 2 * sequence / 4 * 64 / 2 if grows else 1e5)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(
    ("options", "fields", "pipeline", "has_weight"),
    [
        ({}, {}, 1, True),
        ({}, {}, 2, True),
        # Adapters leave the output layer frozen; a pipeline's deferred gradients come later.
        ({}, {"lora_rank": 8}, 1, False),
        ({"deferred_head_gradients": "1"}, {}, 2, False),
        ({"deferred_head_gradients": "1"}, {}, 1, True),
        ({"labelled_token_fraction": "0.5"}, {}, 1, True),
        ({"labelled_token_fraction": "0.5"}, {"lora_rank": 8}, 1, False),
    ],
)
def test_gradients_of_the_output_layer(  # noqa: PLR0917  its cases
    options: dict[str, str],
    fields: dict[str, Any],
    pipeline: int,
    has_weight: bool,
    sequence_parallel: bool,
    precision: str,
) -> None:
    """Of the logits, of the input beside the gathered input, and of the weight, over two tensor-parallel ranks."""
    element, labelled = {"bf16": 2, "fp32": 4}[precision], T * float(options.get("labelled_token_fraction", "1"))
    scenario = scenario_with(options, precision=precision, **fields)
    shape = {"tensor_parallel": 2, "pipeline_parallel": pipeline, "sequence_parallel": sequence_parallel}
    found = head_gradient_bytes(pricing(scenario, micro_batch_size=2, **shape))
    inputs = labelled * 64 * (2 if sequence_parallel and has_weight else 1)
    weight = V * 64 / 2 if has_weight else 0
    assert only(found) == element * (labelled * V / 2 + inputs + weight)
    chunked = scenario_with(options | {"cross_entropy_chunk_tokens": "8"}, precision=precision, **fields)
    assert only(head_gradient_bytes(pricing(chunked, micro_batch_size=2, **shape))) == 0
