"""What a stack's switches add to or take from a rank's memory, against sums worked by hand.

Models and sizes of tests.pricing.test_memory_arithmetic: h 64, f 160, four layers, T 64 tokens a micro batch of two
sequences of 32, a vocabulary of 8 unless said. H is the residual stream of a micro batch in bytes.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.memory.state import training_state
from simulator.cost.operations.layer import layer_operations
from simulator.cost.operations.record import conditions_of
from simulator.question.specs.model import ModelSpec
from tests.memory.counted import layer_tensors
from tests.pricing.test_memory_arithmetic import ATTENTION, DENSE, MOE, NORMS, NOTHING, T, question, stage
from tests.scenario.cases import block, load_model, pricing, scenario_of, small_dense, small_moe

H = 2 * T * 64
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160
WHOLE = 4 * (LAYER + 128) + 2 * 8 * 64 + 64
"""Parameters of the dense model."""
PIPED = {"devices": 2, "pipeline_parallel": 2}


def memory(model: ModelSpec, options: dict[str, str], **fields: Any) -> MemoryByStage:
    asked = {name: fields.pop(name) for name in ("devices", "lora_rank", "precision", "profile") if name in fields}
    scenario = question(model, options=options, **asked)
    here = block(scenario, **({"micro_batch_size": 2} | fields))
    return memory_by_stage(Pricing(scenario, here))


def dense(**changes: Any) -> ModelSpec:
    return small_dense(vocab_size=8, **changes)


@pytest.mark.parametrize(
    ("options", "fields", "expected"),
    [
        ({}, PIPED, [0, 0]),
        # A byte for every score: of one sequence, of a fixed mask, of every layer of a rank.
        ({"attention_mask": "sequence"}, PIPED, [32**2] * 2),
        ({"attention_mask": "compressed"}, PIPED, [2048**2] * 2),
        ({"attention_mask": "layers"}, PIPED | {"stage_layers": (3, 1)}, [3 * 32**2, 32**2]),
        # Two bytes for every score of four heads, for each of two sequences and beside, whatever the number of layers.
        ({"position_bias_tables": "1"}, PIPED, [2 * 4 * 32**2 * 2] * 2),
        (
            {"position_bias_tables": "3"},
            {"devices": 2, "tensor_parallel": 2},
            [4 * 4 * 32**2 * 2 / 2],
        ),
        # Received and sent: nothing on the first rank of one chunk; of two chunks both on either.
        ({"kept_boundaries": "true"}, {}, [0]),
        ({"kept_boundaries": "true"}, PIPED, [0, 2 * H]),
        ({"kept_boundaries": "true"}, PIPED | {"virtual_stages": 2}, [2 * 2 * H, 2 * 3 * H]),
        ({"kept_boundaries": "true", "frozen_reference": "true"}, PIPED, [0, 2 * 2 * H]),
    ],
)
def test_what_stays_between_steps(options: dict[str, str], fields: dict[str, Any], expected: list[float]) -> None:
    found = memory(dense(), options, **fields)
    assert found.retained[:, 0].tolist() == expected
    temporary = found.parts()["temporary"][:, 0] - memory(dense(), {}, **fields).parts()["temporary"][:, 0]
    # A flash kernel's backward pass makes a gradient of the bias beside.
    assert "position_bias_tables" not in options or (temporary >= expected).all()
    if not {"frozen_reference", "position_bias_tables"} & options.keys():
        assert temporary.tolist() == expected
        after = found.after_step - memory(dense(), {}, **fields).after_step
        assert after[:, 0].tolist() == expected


@pytest.mark.parametrize(
    ("fields", "masks"),
    [
        ({}, [1]),
        (PIPED, [2, 0]),
        # Five passes of the first rank: three of its first chunk.
        (PIPED | {"virtual_stages": 2}, [3, 0]),
        ({"devices": 2, "tensor_parallel": 2}, [1]),
        ({"devices": 2, "tensor_parallel": 2, "sequence_parallel": True}, [0.5]),
        (PIPED | {"recompute": "full"}, [2, 0]),
    ],
)
def test_dropout_of_embedded_tokens_keeps_masks_on_the_first_rank(fields: dict[str, Any], masks: list[float]) -> None:
    found, plain = (memory(dense(), {"hidden_dropout": word}, **fields) for word in ("true", "false"))
    has, layers = found.contents, fields.get("recompute") != "full"
    split = 2.0 if fields.get("sequence_parallel") else 1.0
    # A layer's two masks apart.
    rest = np.asarray(found.moments[0].activations - plain.moments[0].activations)
    chunks = fields.get("virtual_stages", 1)
    flights = {1: [1.0] if len(masks) == 1 else [2.0, 1.0], 2: [2.5, 1.5]}[chunks]
    of_layers = layers * 2 * T * 64 / split * has.num_layers[has.kind, 0] * np.array(flights)
    assert (rest[:, 0] - of_layers).tolist() == [count * T * 64 for count in masks]
    # They are gone where the table's gradient is made.
    released = np.asarray(found.moments[2].released - plain.moments[2].released)
    whole = layers * 2 * T * 64 / split * has.num_layers[:, 0] / chunks + T * 64 / split
    assert (released[:, 0] == np.where(has.embeddings[:, 0] > 0, whole, 0.0)).all()


def test_a_norm_of_embedded_tokens_keeps_its_input_and_statistics() -> None:
    found, plain = (memory(dense(embedding_norm=there), {}, **PIPED) for there in (True, False))
    rest = np.asarray(found.moments[0].activations - plain.moments[0].activations)
    assert rest[:, 0].tolist() == [2 * T * (2 * 64 + 4), 0]


def test_a_dispatcher_keeps_tokens_where_there_are_experts() -> None:
    """Three hidden states of a micro batch; the first of four ranks has the dense layer alone."""
    model, options = small_moe(vocab_size=8), {"kept_dispatches": "3"}
    found = memory(model, options, devices=4, pipeline_parallel=4)
    assert found.retained[:, 0].tolist() == [0, 3 * H, 3 * H, 3 * H]
    assert memory(dense(), options).retained[0, 0] == 0


def test_attention_swapped_to_the_host_leaves_two_layers() -> None:
    plain, swapped = memory(dense(), {}).parts(), memory(dense(), {"swapped_attention": "true"}).parts()
    assert swapped["activations"][0, 0] == T * 4 * (DENSE - ATTENTION)
    assert swapped["temporary"][0, 0] - plain["temporary"][0, 0] == 2 * T * ATTENTION


def test_offloaded_modules_leave_three_layers() -> None:
    """All that attention saves but its row sums of four heads."""
    plain, less = memory(dense(), {}).parts(), memory(dense(), {"offloaded_modules": "core_attn,attn_proj"}).parts()
    assert plain["activations"][0, 0] - less["activations"][0, 0] == T * 4 * (ATTENTION - 16)
    assert less["temporary"][0, 0] - plain["temporary"][0, 0] == 3 * T * (ATTENTION - 16)


@pytest.mark.parametrize(
    ("name", "of_dense", "of_experts"),
    [
        ("recomputed_expert_share", 0, 2 * (2 * 2 * 64 + 6 * 48)),
        ("recomputed_network_share", 6 * 160, MOE - NORMS - ATTENTION),
    ],
)
def test_networks_done_again_keep_a_share_and_come_back_one_at_a_time(
    name: str, of_dense: float, of_experts: float
) -> None:
    model = small_moe(vocab_size=8)
    plain, less = memory(model, {}).parts(), memory(model, {name: "0.25"}).parts()
    saved = plain["activations"] - less["activations"]
    assert saved[0, 0] == T * (of_dense + 3 * of_experts) / 4
    assert (less["temporary"] - plain["temporary"])[0, 0] == T * max(of_dense, of_experts) / 4


def test_experts_in_fp8_keep_their_input_in_8_bits_and_do_their_activation_again() -> None:
    """Of two copies a token in three layers: scales of 4 bytes for 128 numbers; gate and up stay in 16 bits."""
    model = small_moe(vocab_size=8)
    plain, less = memory(model, {}).parts(), memory(model, {"fp8_experts": "cast"}).parts()
    saved = plain["activations"] - less["activations"]
    assert saved[0, 0] == T * 3 * 2 * ((2 - 1 - 4 / 128) * 64 + 2 * 48)
    kept = memory(model, {"fp8_experts": "kept"}).parts()
    assert kept["activations"][0, 0] == less["activations"][0, 0]
    # Both passes' copies of three products of eight experts in three layers.
    assert kept["parameters"][0, 0] - less["parameters"][0, 0] == 2 * 3 * 8 * 3 * 64 * 48


def test_gate_and_up_done_again_in_listed_layers_alone() -> None:
    model, fields = small_moe(vocab_size=8), PIPED | {"recompute_modules": ("moe_gate_up",)}
    listed = {"recompute_method": "list", "recompute_layer_list": (1,)}
    plain, every, some = (
        memory(model, {}, **asked).parts()["activations"][:, 0]
        for asked in (PIPED, fields | {"recompute": "selective"}, fields | {"recompute": "selective"} | listed)
    )
    # The second layer is the first rank's only one with experts; the second rank's two are on no list.
    assert some.tolist() == [every[0], plain[1]]
    assert plain[0] - every[0] == 2 * T * 2 * 4 * 48


def test_both_shares_of_experts_multiply() -> None:
    model, both = small_moe(vocab_size=8), {"recomputed_expert_share": "0.5", "recomputed_network_share": "0.5"}
    copies, rest = 2 * (2 * 2 * 64 + 6 * 48), 2 * 4 * 8 + 6 * 48
    expected = 4 * (NORMS + ATTENTION) + 6 * 160 / 2 + 3 * (copies / 4 + rest / 2)
    assert memory(model, both).parts()["activations"][0, 0] == T * expected


@pytest.mark.parametrize(("bytes_kept", "precision", "each"), [("8", "bf16", 8), ("6", "bf16", 6), ("6", "fp32", 8)])
def test_a_composed_norm_keeps_copies_of_its_input(bytes_kept: str, precision: str, each: int) -> None:
    """In fp32 training no copy is of 16 bits."""
    options = {"fused_rms_norm": "false", "composed_norm_bytes": bytes_kept}
    found = memory(dense(), options, precision=precision).parts()["activations"][0, 0]
    wide = 2 if precision == "fp32" else 1
    usual = wide * (DENSE - 2 * 4 - 4 * 4) + 2 * 4 + 4 * 4
    assert found == T * 4 * (usual + 2 * (each - 2 * wide) * 64)


def test_a_quantised_base_takes_4_bits_and_a_scale_for_64() -> None:
    plain, narrow = (
        memory(dense(), {"quantised_base": word}, lora_rank=8).state.parameters[0, 0] for word in ("false", "true")
    )
    assert plain - narrow == 4 * LAYER * (2 - 0.5 - 2 / 64)
    wide = memory(
        dense(), {"quantised_base": "true", "quantised_scale_bytes": "4", "widened_rest": "true"}, lora_rank=8
    ).state.parameters[0, 0]
    assert wide - narrow == 4 * LAYER * 2 / 64 + (WHOLE - 4 * LAYER) * 2
    # Without adapters there is no base.
    assert memory(dense(), {"quantised_base": "true"}).state.parameters[0, 0] == 2 * WHOLE


@pytest.mark.parametrize(("zero_stage", "gradients"), [(0, 2), (1, 1)])
def test_a_frozen_reference_doubles_parameters(zero_stage: int, gradients: int) -> None:
    """Without ZeRO Megatron gives it a gradient buffer too; adapters have one model of gradients."""
    state = memory(dense(), {"frozen_reference": "true"}, zero_stage=zero_stage).state
    assert state.parameters[0, 0] == 2 * 2 * WHOLE
    assert state.gradients[0, 0] == gradients * 4 * WHOLE
    plain, beside = (
        memory(dense(), {"frozen_reference": word}, zero_stage=0, lora_rank=8).state for word in ("false", "true")
    )
    assert beside.gradients[0, 0] == plain.gradients[0, 0]
    assert beside.parameters[0, 0] - plain.parameters[0, 0] == 2 * WHOLE


@pytest.mark.parametrize("devices", [1, 64])
def test_a_step_widens_its_largest_tensor(devices: int) -> None:
    """Gate and up are one tensor of 64 x 320; a rank's part of all parameters may be less."""
    options = {"largest_tensor_step": "true"}
    state = memory(dense(), options, devices=devices, zero_stage=1, micro_batch_size=1).state
    assert state.step_temporary[0, 0] == 4 * min(64 * 320, WHOLE / devices)
    all_at_once = memory(dense(), {"foreach_optimizer": "true"}, zero_stage=1).state.step_temporary[0, 0]
    assert all_at_once == 4 * WHOLE
    assert memory(dense(), {}).state.step_temporary[0, 0] == 0


def test_the_largest_tensor_holds_the_experts_of_a_rank() -> None:
    """Gate and up of eight experts, 8 x 64 x 96, over two ranks; or of a wide vocabulary the table."""
    options = {"largest_tensor_step": "true"}
    found = memory(small_moe(vocab_size=8), options, devices=2, expert_parallel=2, zero_stage=0)
    assert found.state.step_temporary[0, 0] == 4 * max(8 * 64 * 96 / 2, 64 * 320)
    wide = memory(small_dense(), options, zero_stage=0)
    assert wide.state.step_temporary[0, 0] == 4 * 1000 * 64


@pytest.mark.parametrize(
    ("options", "widened"),
    [({}, 4), ({"gradient_dtype": "fp32"}, 0), ({"master_weights": "false"}, 0), ({"widened_gradients": "false"}, 0)],
)
def test_16_bit_gradients_are_widened_for_master_weights(options: dict[str, str], widened: int) -> None:
    """Until the next step begins."""
    all_options = {"widened_gradients": "true", "gradient_dtype": "bf16"} | options
    found = memory(dense(), all_options, zero_stage=0)
    assert found.state.widened[0, 0] == widened * WHOLE
    state = found.state
    before = state.parameters + state.gradients + state.optimizer
    assert found.after_step[0, 0] - before[0, 0] == widened * WHOLE


def test_the_optimizer_step_holds_the_state_alone() -> None:
    """Parameters of 2 bytes, gradients of 4, 12 of state; no activation, no temporary."""
    found = memory(dense(), {}, zero_stage=0)
    step = found.moments[-1]
    assert step.name == "optimizer step"
    assert step.total(found.contents)[0, 0] == (2 + 4 + 12) * WHOLE


@pytest.mark.parametrize("gradient_dtype", ["bf16", "fp32"])
def test_master_gradients_stand_beside_16_bit_ones(gradient_dtype: str) -> None:
    """A rank's part of them in fp32; fp32 ones are master gradients already."""
    options = {"master_gradients": "true", "gradient_dtype": gradient_dtype}
    state = memory(dense(), options, devices=2, zero_stage=1, micro_batch_size=1).state
    assert state.gradients[0, 0] == (2 * WHOLE + 4 * WHOLE / 2 if gradient_dtype == "bf16" else 4 * WHOLE)


def test_the_loss_holds_what_the_output_layer_keeps() -> None:
    """The last norm's input and output and a number of each token, beside the logits."""
    found = memory(small_dense(), {})
    assert found.moments[found.moment[0, 0]].name == "loss"
    assert found.parts()["temporary"][0, 0] == T * (4 * 64 + 4)


def test_gradients_of_wide_heads_outweigh_the_network_s() -> None:
    """Queries, keys and values of 64 a head; of a network of 16 features gate and up."""
    found = memory(dense(head_dim=64, intermediate_size=16), {})
    assert found.moments[found.moment[0, 0]].name == "backward"
    assert found.parts()["temporary"][0, 0] == T * 2 * (4 * 64 + 2 * 64 + 2 * 64 + 64)


@pytest.mark.parametrize(
    ("modules", "in_turn", "logit"), [(0, False, 6), (0, True, 6), (1, False, 10), (2, False, 14), (2, True, 6)]
)
def test_losses_of_prediction_layers(modules: int, in_turn: bool, logit: int) -> None:
    """T logits over 1000 tokens: 6 bytes the model's, a softmax of 4 each module's, unless one follows another."""
    options = {"mtp": "true", "losses_in_turn": str(in_turn).lower()}
    found = memory(small_dense(num_nextn_predict_layers=modules), options)
    assert found.moments[found.moment[0, 0]].name == "loss"
    assert found.parts()["logits"][0, 0] == logit * T * 1000


def test_a_pair_of_answers_is_two_sequences() -> None:
    one, two = (stage(question(dense(), options={"sequences_per_sample": n})) for n in ("1", "2"))
    assert two.parts_bytes["activations"] == 2 * one.parts_bytes["activations"] == 2 * T * 4 * DENSE


def test_a_score_in_place_of_the_output_layer() -> None:
    """One weight a feature; a tied table is not shared with it, and the loss has one number a token."""
    for tied in (False, True):
        model = small_dense(tie_word_embeddings=tied)
        state = memory(model, {"score_head": "true"}, zero_stage=0).state
        assert state.parameters[0, 0] == 2 * (4 * (LAYER + 128) + 1000 * 64 + 64 + 64)


@pytest.mark.parametrize("tensor", [1, 2])
def test_a_reward_model_that_keeps_its_output_layer(tensor: int) -> None:
    """Its weights alone, in 16 bits on the last rank; a tied one is the table."""
    fields = {"devices": 2 * tensor, "tensor_parallel": tensor, "pipeline_parallel": 2, "zero_stage": 0}
    options = {"score_head": "true"}
    without, beside = (memory(small_dense(), options | more, **fields).state for more in ({}, KEPT_HEAD))
    assert (beside.parameters - without.parameters)[:, 0].tolist() == [0.0, 2 * 1000 * 64 / tensor]
    assert np.array_equal(beside.gradients, without.gradients)
    assert np.array_equal(beside.optimizer, without.optimizer)
    tied = small_dense(tie_word_embeddings=True)
    first, second = (memory(tied, options | more).state.parameters for more in ({}, KEPT_HEAD))
    assert np.array_equal(first, second)


KEPT_HEAD = {"unused_output_layer": "true"}


@pytest.mark.parametrize(("tensor", "more"), [(1, 0), (2, 6)])
def test_logits_split_over_the_vocabulary_have_further_copies(tensor: int, more: int) -> None:
    fields = {"devices": tensor, "tensor_parallel": tensor}
    plain, split = (
        memory(small_dense(), {"split_loss_bytes_per_logit": each}, **fields).moments[1].logits for each in ("0", "6")
    )
    assert np.asarray(split - plain)[0, 0] == more * T * 1000 / tensor


def test_workspaces_and_pipeline_buffers_are_alive_in_every_pass() -> None:
    """One workspace, and with a pipeline two tensors of the residual stream; not in the optimizer step, or loading."""
    values = replace(NOTHING, memory=replace(NOTHING.memory, workspace_bytes=5e6, pipeline_buffers=2))
    for fields, sent in (({}, 0), ({"pipeline_parallel": 2}, 2), ({"pipeline_parallel": 2, "virtual_stages": 2}, 2)):
        scenario = question(dense(), devices=2, coefficients=values)
        bare = question(dense(), devices=2)
        here = block(scenario, micro_batch_size=2, **fields)
        with_them, without = (memory_by_stage(Pricing(one, here)) for one in (scenario, bare))
        added = [
            float(np.max(one.total(with_them.contents) - other.total(without.contents)))
            for one, other in zip(with_them.moments, without.moments, strict=True)
        ]
        assert added == [5e6 + sent * H] * 3 + [0, 0]


@pytest.mark.parametrize(("zero_stage", "away"), [(2, False), (3, True)])
def test_parameters_are_on_the_host_under_zero_3_alone(zero_stage: int, away: bool) -> None:
    scenario = question(dense(), "torch", devices=2, options={"offload_parameters": "true"})
    here = block(scenario, zero_stage=zero_stage)
    state = training_state(Pricing(scenario, here))
    assert (state.parameters_on_host[0, 0] > 0) == away
    assert (state.parameters[0, 0] == 0) == away


@pytest.mark.parametrize("layers", [1, 4])
def test_activations_on_the_host_leave_two_of_the_largest_layers(layers: int) -> None:
    """The one computed and the one copied; of a single layer that one. All of them travel."""
    model = small_moe(vocab_size=8, num_hidden_layers=layers)
    found = memory(model, {}, offload="activations").activations
    whole = DENSE + (layers - 1) * MOE
    assert found.one_micro_batch[0, 0] == T * min(2 * MOE, whole)
    assert found.offload_traffic[0, 0] == T * whole
    assert memory(model, {}).activations.offload_traffic[0, 0] == 0


def test_unused_weight_gradients_stay_one_for_each_shape() -> None:
    # TransformerEngine's get_dummy_wgrad: q, k and v are one module of 128 x 64, proj 64 x 64, gate and up 320 x 64,
    # down 64 x 160; all four layers share them.
    shapes = 2 * (128 * 64 + 64 * 64 + 320 * 64 + 64 * 160)
    options = {"dummy_weight_gradients": "linear"}
    assert memory(dense(), options).retained.tolist() == [[shapes]]
    split: dict[str, Any] = {"devices": 2, "tensor_parallel": 2}
    assert memory(dense(), options, **split).retained.tolist() == [[shapes / 2]]
    assert memory(dense(), options | {"fused_gradient_accumulation": "false"}).retained.tolist() == [[0]]
    # Frozen weights have no gradients.
    assert memory(dense(), options, lora_rank=4).retained.tolist() == [[0]]


def test_all_experts_of_a_rank_share_two_unused_gradients() -> None:
    # A dense layer's network, the shared expert's of 48, attention; a routed expert of 40 has shapes of its own.
    model = small_moe(vocab_size=8, moe_intermediate_size=40, num_shared_experts=1)
    dense_shapes = 2 * (128 * 64 + 64 * 64 + 320 * 64 + 64 * 160)
    shared, routed = 2 * 3 * model.shared_width * 64, 2 * 3 * 40 * 64
    options = {"dummy_weight_gradients": "all"}
    linear = memory(model, {"dummy_weight_gradients": "linear"}).retained[0, 0]
    assert linear == dense_shapes + shared
    # A shared expert as wide as a routed one, and split as it, has the same shapes.
    assert model.shared_width == 40
    assert memory(model, options).retained[0, 0] == linear
    both: dict[str, Any] = {"devices": 2, "tensor_parallel": 2, "sequence_parallel": True, "expert_parallel": 2}
    assert memory(model, options, **both).retained[0, 0] == linear / 2 + routed


def test_values_are_copied_out_of_the_joint_projection() -> None:
    # 2 (q + 2 k) of it, and 2 k of the copy.
    found = [memory(dense(), {"keep_qkv_output": of}).activations.one_micro_batch[0, 0] for of in ("true", "false")]
    assert found[0] - found[1] == 4 * T * (2 * 128 - 2 * 32)


def _layer(options: dict[str, str], **fields: Any) -> float:
    """Bytes of one micro batch and token of the dense model's four layers, on one rank."""
    return float(memory(dense(), options, **fields).activations.one_micro_batch[0, 0]) / T


def test_frozen_networks_keep_no_inputs_where_attention_alone_is_adapted() -> None:
    # Of a layer: the norm's output 2 h, the product 2 f, and two of the four inner activations 2 r.
    found = [_layer({"adapter_targets": of}, lora_rank=4) for of in ("all", "attention")]
    assert found[0] - found[1] == 4 * (2 * 64 + 2 * 160 + 2 * 2 * 4)
    # Trained weights' inputs stay.
    assert _layer({"adapter_targets": "attention"}) == _layer({})


def test_adapters_of_attention_alone() -> None:
    # r (inputs + outputs) of the joint projection, 64 and 128, and of the output's, 64 and 64; 12 bytes of state each.
    options = {"shared_adapters": "true"}
    trained = [
        float(memory(dense(), options | {"adapter_targets": of}, lora_rank=4).state.optimizer[0, 0])
        for of in ("all", "attention")
    ]
    assert trained[1] == 12 * 4 * 4 * (64 + 128 + 64 + 64)
    assert trained[0] - trained[1] == 12 * 4 * 4 * (64 + 320 + 160 + 64)


def test_activation_functions_keep_8_bits_of_what_goes_in() -> None:
    # Gate and up, 4 f, become 2 f in each layer.
    assert _layer({}) - _layer({"fp8_activation_inputs": "true"}) == 4 * 2 * 160


def test_a_lora_of_70b_by_hand() -> None:
    # Llama 2 70B in fp8, f / h = 3.5, adapters on attention and activation inputs in 8 bits: the norm's output, the
    # product, and half of gate and up go, 1 + 3.5 + 7 bytes a token and hidden feature, beside the inner activations.
    model = load_model("llama-2-70b")
    narrow = {"adapter_targets": "attention", "fp8_activation_inputs": "true"}
    kept = []
    for options in ({}, narrow):
        scenario = scenario_of(model, "mi300x", options=options, precision="fp8", lora_rank=16)
        tensors = layer_tensors(pricing(scenario), model.layer_kinds[0])
        kept.append(sum(float(each[0]) for each in tensors.values()) / scenario.seq_length)
    assert kept[0] - kept[1] == 11.5 * 8192 + 2 * 2 * 16


def test_tokens_go_to_their_experts_in_8_bits() -> None:
    # 33 / 32 bytes of a feature there, and of its gradient on the same way; 2 bytes back.
    model = small_moe()
    kind = next(each for each in model.layer_kinds if each.routed)
    scenario = scenario_of(model, options={"fp8_dispatch": "true"})
    moved = {
        operation.name: (operation.collectives[0].amount, operation.collectives[0].backward)
        for operation in layer_operations(conditions_of(scenario), kind)
        if operation.name in ("dispatch", "combine")
    }
    assert moved["dispatch"] == (64 * 33 / 32, 2 / (33 / 32))
    assert moved["combine"] == (64 * 2, 33 / 32 / 2)
