"""Parts of a stage's memory against sums worked by hand, tensor by tensor, with every coefficient at nothing.

Models of tests.scenario.cases: h 64, f 160, 4 heads and 2 key-value heads of 16; 8 experts of width 48, 2 a token, and
a shared one. A vocabulary of 8 keeps the loss small. T tokens per micro batch; bytes of 16-bit training.
"""

from typing import Any

import pytest

from simulator.cost.memory import moments
from simulator.cost.pricing.estimate import StageMemory
from simulator.question.coefficients import Coefficients, MemoryCoefficients
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.search.build import estimate_layout
from tests.scenario.cases import layout_of, scenario_of, small_dense, small_moe

T = 64


@pytest.fixture(autouse=True)
def no_grouped_workspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped products' workspaces are none too: they are documented, not a coefficient."""
    monkeypatch.setattr(moments, "_GROUPED_STREAMS", 0)


NOTHING = Coefficients(
    memory=MemoryCoefficients(
        workspace_bytes=0,
        pipeline_buffers=0,
        unfused_loss_bytes_per_logit=0,
        context_bytes=0,
        user_buffers_bytes=0,
        user_buffers_per_gathered_tensor=0,
        ring_buffers_per_activation=0,
        fragmentation_expandable=0,
        fragmentation=0,
    )
)
NORMS = 2 * (2 * 64 + 4 + 2 * 64)
"""Bytes per token that two norms keep: input, one fp32 number, output."""
ATTENTION = 2 * (64 + 2 * 32) + 2 * (64 + 32) + 2 * 64 + 4 * 4
"""The projection's output, rotated q and k, the output, fp32 row sums of four heads."""
DENSE = NORMS + ATTENTION + (4 + 2) * 160
MOE = NORMS + ATTENTION + 2 * 4 * 8 + 2 * (2 * 2 * 64 + (4 + 2) * 48) + (4 + 2) * 48
"""Router logits and probabilities; of two copies what goes in and out and the experts' width; the shared expert's."""


def question(model: ModelSpec, profile: str = "megatron", *, devices: int = 1, **fields: Any) -> Scenario:
    values: dict[str, Any] = {"seq_length": 32, "global_batch_size": 16, "coefficients": NOTHING} | fields
    return scenario_of(model, "h100-sxm-80g", profile=profile, devices=devices, **values)


def stage(scenario: Scenario, rank: int = 0, **fields: Any) -> StageMemory:
    return estimate_layout(scenario, layout_of(scenario, **({"micro_batch_size": 2} | fields))).memory.stages[rank]


def test_a_prediction_layer_keeps_what_a_layer_keeps() -> None:
    """A prediction layer is one whole layer of the model's main kind, on the last rank (DeepSeek-V3 report, 2.2)."""
    options = {"mtp": "true"}
    dense = question(small_dense(vocab_size=8, num_nextn_predict_layers=2), options=options)
    assert stage(dense).parts_bytes["activations"] == T * (4 + 2) * DENSE
    moe = question(small_moe(vocab_size=8, num_nextn_predict_layers=1), options=options)
    assert stage(moe).parts_bytes["activations"] == T * (DENSE + (3 + 1) * MOE)
    piped = question(small_moe(vocab_size=8, num_nextn_predict_layers=1), options=options, devices=2)
    first, last = (stage(piped, rank, pipeline_parallel=2).parts_bytes["activations"] for rank in (0, 1))
    # Two micro batches in flight on the first rank, one on the last.
    assert (first, last) == (2 * T * (DENSE + MOE), T * (2 + 1) * MOE)


@pytest.mark.parametrize(("devices", "experts", "zero_stage"), [(1, 1, 0), (2, 2, 0), (4, 4, 1)])
def test_offload_by_tensor_brings_back_the_experts_of_a_rank_at_once(
    devices: int, experts: int, zero_stage: int
) -> None:
    """Experts are one grouped tensor: 8 matrices of 64 x 48; the dense layer's largest has 64 x 160.

    No other rank has a rank's experts to shard them with; the dense layers are sharded over all.
    """
    scenario = question(small_moe(vocab_size=8), seq_length=2, devices=devices, options={"buffers_weights": "false"})
    found = stage(
        scenario, offload="optimizer_tensorwise", expert_parallel=experts, zero_stage=zero_stage, micro_batch_size=1
    )
    assert found.moment == "optimizer step"
    assert found.parts_bytes["optimizer"] == 12 * 8 * 64 * 48 / experts


def test_attention_computed_again_is_largest_where_the_feed_forward_block_freed_least() -> None:
    """Before the block is computed again the feed-forward block is freed: little of it in the dense layer, f 16."""
    scenario = question(small_moe(vocab_size=8, intermediate_size=16))
    none, again = (stage(scenario, recompute=mode) for mode in ("none", "attention"))
    assert none.moment == again.moment == "backward"
    freed = NORMS / 2 + (4 + 2) * 16
    assert again.parts_bytes["temporary"] - none.parts_bytes["temporary"] == T * (ATTENTION - freed)


def test_scores_are_alive_in_the_backward_pass_with_their_gradient() -> None:
    """Unfused: a layer keeps 2 bytes per score; selective recompute keeps none and has one layer's at a time.

    Their gradients come when those of the network behind them are gone, which are as many.
    """
    scores = 2 * 4 * T * 32
    fused = stage(question(small_dense(vocab_size=8)))
    scenario = question(small_dense(vocab_size=8), options={"flash_attention": "false"})
    none, selective = (stage(scenario, recompute=mode) for mode in ("none", "selective"))
    assert fused.moment == none.moment == selective.moment == "backward"
    statistics = 4 * T * 4 * 4
    assert none.parts_bytes["activations"] == fused.parts_bytes["activations"] - statistics + 4 * scores
    assert selective.parts_bytes["activations"] == none.parts_bytes["activations"] - 4 * scores
    assert none.parts_bytes["temporary"] == fused.parts_bytes["temporary"]
    assert selective.parts_bytes["temporary"] == fused.parts_bytes["temporary"] + scores


def test_gradients_inside_a_layer_are_those_of_its_widest_tensors() -> None:
    """Gate and up beside the gradient that came in; of experts those of both copies, of their input and output too."""
    assert stage(question(small_dense(vocab_size=8))).parts_bytes["temporary"] == T * 2 * (2 * 160 + 64)
    narrow = question(small_moe(vocab_size=8))
    copies = 2 * (2 * 48 + 2 * 64)
    assert stage(narrow).parts_bytes["temporary"] == T * 2 * (copies + 64)
    # Tensor and expert tensor parallel 2: the rank's half of the tokens twice, with half the width of each expert; the
    # gradient that comes in is gathered beside its own part.
    split = question(small_moe(vocab_size=8), devices=2, options={"tp_comm_overlap": "false"})
    found = stage(split, tensor_parallel=2, sequence_parallel=True, expert_tensor_parallel=2)
    assert found.parts_bytes["temporary"] == T * 2 * (2 * (2 * 48 / 2 + 2 * 64) + 2 * 64)


def growth(model: ModelSpec) -> float:
    """Bytes per token of the peak of one layer under FSDP2 on one device."""
    sizes = (64, 128)
    few, many = (
        stage(question(model, "torch", global_batch_size=4 * size), micro_batch_size=size, zero_stage=3)
        for size in sizes
    )
    assert few.moment == many.moment == "backward"
    return (many.allocated_bytes - few.allocated_bytes) / (32 * (sizes[1] - sizes[0]))


def test_attention_s_backward_pass_rotates_in_fp32() -> None:
    """Where heads are wide: the queries' gradient and two products of it in fp32, gradients of keys and values.

    Beside them the norm before attention, and the gradient that came in for the residual stream.
    """
    wide = small_dense(vocab_size=8, num_hidden_layers=1, head_dim=64, intermediate_size=16)
    assert growth(wide) == NORMS / 2 + 2 * 64 + 3 * 4 * 256 + 2 * 2 * 128


def test_an_expert_layer_s_backward_pass_holds_the_gradients_of_both_copies() -> None:
    model = small_moe(vocab_size=8, num_hidden_layers=1, first_k_dense_replace=0)
    # Torch keeps silu(gate) too, and v instead of the projection's output.
    kept = MOE - 2 * (64 + 32) + 2 * (2 + 1) * 48
    assert growth(model) == kept + 2 * 64 + 2 * 2 * (2 * 48 + 2 * 64)


def test_interleaved_chunks_of_torch_keep_all_they_received_and_sent() -> None:
    """Per further micro batch and chunk of a middle rank: receive buffers both ways, an output, an input's gradient."""
    boundary = 2 * T * 64
    few, many = (
        stage(
            question(small_dense(vocab_size=8, num_hidden_layers=8), "torch", devices=4, global_batch_size=2 * count),
            1,
            pipeline_parallel=4,
            virtual_stages=2,
            zero_stage=3,
        ).parts_bytes["activations"]
        for count in (12, 16)
    )
    assert many - few == 4 * 2 * (2 + 2) * boundary


@pytest.mark.parametrize(("degree", "dense_ranks", "routed_ranks"), [(0, 8, 2), (4, 4, 1), (2, 2, 1), (64, 8, 2)])
def test_a_sharding_group_is_no_larger_than_the_ranks_with_the_same_parameters(
    degree: int, dense_ranks: int, routed_ranks: int
) -> None:
    """8 ranks hold the same dense parameters; with experts over 4, 2 hold the same experts."""
    scenario = question(small_moe(vocab_size=8), devices=8, options={"sharding_degree": str(degree)})
    layout = layout_of(scenario, expert_parallel=4)
    found = estimate_layout(scenario, layout)
    attention = 2 * 64 * 64 + 2 * 64 * 32 + 2 * 64
    dense = 4 * attention + 3 * 64 * 160 + 3 * (3 * 64 * 48 + 64 * 8) + 2 * 8 * 64 + 64
    routed = 3 * 8 * 3 * 64 * 48 / 4
    assert found.memory.parts_bytes["optimizer"] == 12 * (dense / dense_ranks + routed / routed_ranks)
    assert not found.violations
    if degree >= 8:
        free = estimate_layout(question(small_moe(vocab_size=8), devices=8), layout)
        assert found.throughput.parts_seconds == free.throughput.parts_seconds


def test_experts_split_over_replicas_gather_their_tokens() -> None:
    """Expert tensor parallel 2 over two replicas: both ranks' copies, with half an expert's width."""
    scenario = question(small_moe(vocab_size=8), devices=2)
    layer = MOE + 2 * 2 * 2 * 64
    found = stage(scenario, expert_tensor_parallel=2)
    assert found.parts_bytes["activations"] == T * (DENSE + 3 * layer)


def test_full_recompute_keeps_the_inputs_of_its_units() -> None:
    """The residual stream 2 h at every unit's start, of either kind of layer; a list without the mode is idle."""
    scenario = question(small_moe(vocab_size=8))
    for unit, inputs in ((1, 4), (2, 2)):
        found = stage(scenario, recompute="full", recompute_layers=unit)
        assert found.parts_bytes["activations"] == T * inputs * 2 * 64
    first = stage(scenario, recompute="full", recompute_method="block", recompute_layers=2)
    assert first.parts_bytes["activations"] == T * (2 * 2 * 64 + 2 * MOE)
    listed = stage(scenario, recompute="full", recompute_method="list", recompute_layer_list=(0, 3))
    assert listed.parts_bytes["activations"] == T * (2 * 2 * 64 + 2 * MOE)
    idle = stage(scenario, recompute_method="list", recompute_layer_list=(0, 3))
    assert idle.parts_bytes == stage(scenario).parts_bytes


def test_chunks_of_different_layers_are_in_flight_each_as_often_as_it_ran() -> None:
    """Two chunks a rank, four micro batches: of five passes three through the dense layer, two through one of experts.

    The second rank has three in flight, all of layers with experts.
    """
    scenario = question(small_moe(vocab_size=8), devices=2, global_batch_size=8)
    fields = {"pipeline_parallel": 2, "virtual_stages": 2}
    first, second = (stage(scenario, rank, **fields) for rank in (0, 1))
    assert first.moment == second.moment == "backward"
    assert first.parts_bytes["activations"] == T * (3 * DENSE + 2 * MOE)
    assert second.parts_bytes["activations"] == 3 * T * MOE


def test_a_unit_done_again_is_that_of_the_largest_layers() -> None:
    """Of the dense layer and those with experts the latter; not of a layer that keeps what it has."""
    scenario = question(small_moe(vocab_size=8))
    none = stage(scenario)
    for unit in (1, 2):
        again = stage(scenario, recompute="full", recompute_layers=unit)
        assert none.moment == again.moment == "backward"
        assert again.parts_bytes["temporary"] - none.parts_bytes["temporary"] == unit * T * MOE


@pytest.mark.parametrize("split", [1, 2])
def test_fp8_keeps_what_its_products_start_from_in_8_bits(split: int) -> None:
    """Norm outputs, the product of SwiGLU and a copy of attention's output; each rank its part."""
    options = {"tp_comm_overlap": "false"}
    scenario = question(small_dense(vocab_size=8), precision="fp8", devices=split, options=options)
    found = stage(scenario, tensor_parallel=split, sequence_parallel=split > 1)
    narrow = DENSE - 2 * 64 - 160 + 64
    assert found.parts_bytes["activations"] == T * 4 * narrow / split


@pytest.mark.parametrize("profile", ["megatron", "torch"])
@pytest.mark.parametrize("prediction", [0, 1])
def test_fp8_adds_two_bytes_for_every_linear_weight(profile: str, prediction: int) -> None:
    """A layer's weights in 8 bits and their transpose; of a prediction layer those of its layer."""
    dense = small_dense(vocab_size=8, num_nextn_predict_layers=prediction)
    layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160
    expert = 2 * 64 * 64 + 2 * 64 * 32 + 64 * 8 + (8 + 1) * 3 * 64 * 48
    moe = small_moe(vocab_size=8, num_nextn_predict_layers=prediction)
    for model, weights in ((dense, (4 + prediction) * layer), (moe, layer + (3 + prediction) * expert)):
        without, cached = (
            stage(
                question(model, profile, precision="fp8", options={"fp8_weight_cache": word, "mtp": "true"}),
                zero_stage=1,
            ).parts_bytes["parameters"]
            for word in ("false", "true")
        )
        assert cached - without == 2 * weights
