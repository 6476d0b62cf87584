"""What leaves the device, or is made again, takes no more room than what stays would: sums worked by hand.

Models of tests.pricing.test_memory_arithmetic: four layers, T 64 tokens a micro batch of two sequences of 32, a
vocabulary of 8. H is the residual stream of a micro batch in bytes.
"""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import returning_bytes, sent_bytes
from simulator.cost.memory.host import host_memory
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.timing.products import layer_flops_per_token, shared_flops_per_token
from simulator.search.build import estimate_layout
from tests.pricing.test_memory_arithmetic import ATTENTION, DENSE, T, question
from tests.scenario.cases import block, layout_of, only, small_dense, small_mla, small_moe

H = 2 * T * 64
QKV = ATTENTION - 16
"""What attention of the core and its projection saves but the row sums of four heads, a token."""
SMALL: dict[str, Any] = {"vocab_size": 8}


def memory(options: dict[str, str], *, model: Any = None, **fields: Any) -> MemoryByStage:
    asked = {name: fields.pop(name) for name in ("devices", "profile") if name in fields}
    scenario = question(model or small_dense(**SMALL), options=options, **asked)
    return memory_by_stage(Pricing(scenario, block(scenario, **({"micro_batch_size": 2} | fields))))


@pytest.mark.parametrize(
    ("policy", "left", "sent"),
    [
        # Two layers of what is saved; two inputs where every layer is computed again, of one or of several layers.
        ({}, 2 * T * DENSE, 4 * T * DENSE),
        ({"recompute": "full"}, 2 * H, 4 * H),
        ({"recompute": "full", "recompute_layers": 2}, 2 * H, 2 * H),
        ({"recompute": "full", "recompute_layers": 4}, H, H),
        # A layer that is not computed again passes with all it saves.
        (
            {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
            min(2 * T * DENSE, 3 * H + T * DENSE),
            3 * H + T * DENSE,
        ),
        (
            {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (0, 1, 2, 3)},
            2 * H,
            4 * H,
        ),
    ],
)
def test_activations_on_the_host_leave_what_two_layers_save(policy: dict[str, Any], left: float, sent: float) -> None:
    found = memory({}, offload="activations", **policy).activations
    assert only(found.one_micro_batch) == left
    assert only(found.offload_traffic) == sent


def test_a_prediction_layer_that_is_not_computed_again_passes_whole() -> None:
    model = small_dense(**SMALL, num_nextn_predict_layers=1)
    found = memory({"mtp": "true"}, model=model, offload="activations", recompute="full").activations
    assert only(found.one_micro_batch) == min(2 * T * DENSE, 4 * H + T * DENSE)


def test_units_stored_on_the_host_leave_the_device() -> None:
    """FSDP2: a rank's part of the weights in fp32, at every moment, and of reduced gradients; below ZeRO 3 nothing."""
    parameters = 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 160 + 128) + 2 * 8 * 64 + 64
    for stage, away in ((3, 4 * parameters / 2), (2, 0.0)):
        stay, leave = (
            memory({"offload_parameters": word}, profile="torch", devices=2, zero_stage=stage)
            for word in ("false", "true")
        )
        for one, other in zip(stay.moments, leave.moments, strict=True):
            gradients = np.max(one.gradients) if away else 0.0
            assert np.max(one.total(stay.contents) - other.total(leave.contents)) == away + gradients
            assert np.max(other.gradients) == np.max(one.gradients) - gradients
        assert only(leave.state.parameters_on_host) == away


@pytest.mark.parametrize(("layers", "held"), [(1, 1), (2, 2), (4, 3)])
def test_no_more_layers_are_brought_back_than_are_in_flight(layers: int, held: int) -> None:
    """Three at most; on the last of two ranks one micro batch is in flight, and so on the only one."""
    model, options = small_dense(**SMALL, num_hidden_layers=layers), {"offloaded_modules": "core_attn,attn_proj"}
    plain, away = (memory(one, model=model).parts()["temporary"][0, 0] for one in ({}, options))
    assert away - plain == held * T * QKV
    model = small_dense(**SMALL, num_hidden_layers=2)
    ranks = [memory(one, model=model, devices=2, pipeline_parallel=2).moments[0].temporary for one in ({}, options)]
    # The first of two has both micro batches of its only layer, the last one.
    assert (np.asarray(ranks[1]) - np.asarray(ranks[0]))[:, 0].tolist() == [2 * T * QKV, T * QKV]


def test_no_expert_is_brought_back_to_a_rank_without_one() -> None:
    """Of four ranks the first has the dense layer alone."""
    options = {"offloaded_modules": "expert_fc1"}
    plain, away = (
        np.asarray(memory(one, model=small_moe(**SMALL), devices=4, pipeline_parallel=4).moments[0].temporary)
        for one in ({}, options)
    )
    # Copies of two experts on the way in; as many micro batches as the middle ranks have, and the last.
    assert (away - plain)[:, 0].tolist() == [0, 3 * T * 2 * 2 * 64, T * 2 * 2 * 64]


def test_what_is_made_again_is_not_brought_back() -> None:
    """Latent attention's queries, keys and values come of their up projections; offloaded or not, they are not kept."""
    model, options = small_mla(**SMALL), {"offloaded_modules": "core_attn"}
    scenario = question(model, options=options)
    again = {"recompute": "selective", "recompute_modules": ("mla_up_proj",), "micro_batch_size": 2}
    kept, made = (
        only(returning_bytes(Pricing(scenario, block(scenario, **fields)), model.layer_kinds[0]))
        for fields in ({"micro_batch_size": 2}, again)
    )
    # Queries and keys of four heads of 24, values of 20: 2 bytes each.
    assert (kept, made) == (T * 2 * 4 * (24 + 24 + 20), 0)
    sent = [sent_bytes(Pricing(scenario, block(scenario, **one))) for one in ({"micro_batch_size": 2}, again)]
    assert [only(one) for one in sent] == [4 * T * 2 * 4 * (24 + 24 + 20), 0]


def test_a_prediction_layer_sends_its_tensors_too() -> None:
    model, options = small_dense(**SMALL, num_nextn_predict_layers=1), {"swapped_attention": "true", "mtp": "true"}
    scenario = question(model, options=options)
    pricing = Pricing(scenario, block(scenario, micro_batch_size=2))
    assert only(host_memory(pricing, memory_by_stage(pricing)).parts["activations"]) == (4 + 1) * T * ATTENTION


@pytest.mark.parametrize("name", ["recomputed_network_share", "recomputed_expert_share"])
def test_a_share_of_the_networks_done_again_has_its_flops(name: str) -> None:
    """Half of the experts' products of a token: two experts of width 48, and with the network router and shared one."""
    model = small_moe(**SMALL, first_k_dense_replace=0)
    scenario = question(model, options={name: "0.5"})
    of_experts = 2 * 2 * 3 * 64 * 48
    again = of_experts + (2 * 64 * 8 + 2 * 3 * 64 * 48 if name == "recomputed_network_share" else 0)
    assert shared_flops_per_token(scenario, model.layer_kinds[0]) == again / 2
    speed = estimate_layout(scenario, layout_of(scenario)).throughput
    more = speed.hardware_flops_per_second_per_device / speed.flops_per_second_per_device
    assert (more - 1) * speed.model_flops_per_token == pytest.approx(4 * again / 2)
    assert shared_flops_per_token(question(model), model.layer_kinds[0]) == 0
    # Of the half of the layers that keeps its network two fifths of the experts are done again.
    both = question(model, options={"recomputed_network_share": "0.5", "recomputed_expert_share": "0.4"})
    whole = of_experts + 2 * 64 * 8 + 2 * 3 * 64 * 48
    found = shared_flops_per_token(both, model.layer_kinds[0])
    assert found == pytest.approx(0.5 * whole + 0.5 * 0.4 * of_experts)
    assert layer_flops_per_token(scenario, model.layer_kinds[0]) > again


def test_head_gradients_wait_in_a_pipeline_alone() -> None:
    """Of 32 tokens and 8000 words: 6 bytes a logit at the loss; less than gradients of logits, input and weight."""
    wide, loss, at_weight = small_dense(vocab_size=8000), 6 * 32 * 8000, 2 * (32 * 8000 + 32 * 64 + 8000 * 64)
    for ranks, expected in (({}, [at_weight] * 2), ({"devices": 2, "pipeline_parallel": 2}, [at_weight, loss])):
        found = [
            memory({"deferred_head_gradients": count}, model=wide, micro_batch_size=1, **ranks).moments[1].logits
            for count in ("0", "1")
        ]
        assert [np.asarray(one)[-1, 0] for one in found] == expected


@pytest.mark.parametrize(
    ("pipeline", "devices", "fullest"),
    [
        # Sixteen ranks of a device each: eight share a node, of which the first has the ranks with most in flight.
        (16, 16, [sum(16 - rank for rank in range(8))]),
        # Four ranks of four devices: two share a node; of eight devices each a node has one rank.
        (4, 16, [4 * (4 + 3)]),
        (2, 16, [8 * 2]),
        # Half a node.
        (4, 4, [4 + 3 + 2 + 1]),
        (1, 16, [8]),
    ],
)
def test_a_node_holds_what_its_devices_offload(pipeline: int, devices: int, fullest: list[int]) -> None:
    """Of each micro batch in flight a rank's layers, the same of all ranks."""
    model = small_dense(**SMALL, num_hidden_layers=16)
    scenario = question(model, devices=devices, global_batch_size=1024, options={"swapped_attention": "true"})
    pricing = Pricing(scenario, block(scenario, pipeline_parallel=pipeline, micro_batch_size=2))
    held = host_memory(pricing, memory_by_stage(pricing)).parts["activations"]
    assert [only(held)] == [16 / pipeline * T * ATTENTION * times for times in fullest]


def test_deferred_gradients_of_the_output_layer_are_held_in_its_passes() -> None:
    """On the last of two ranks: input and logits' gradient of two micro batches, at the loss and in backward passes."""
    wide, ranks = small_dense(vocab_size=800), {"devices": 2, "pipeline_parallel": 2}
    none, two = (memory({"deferred_head_gradients": count}, model=wide, **ranks) for count in ("0", "2"))
    more = [
        (np.asarray(after.temporary) - np.asarray(before.temporary))[:, 0].tolist()
        for before, after in zip(none.moments, two.moments, strict=True)
        if before.name != "load"
    ]
    each = 2 * (T * 64 + T * 800)
    assert more == [[0, 2 * each], [0, 2 * each], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"release_grads": "true"}, {"frozen_reference": "true"}, {"swapped_attention": "true"}),
        *({"kept_boundaries": "true"}, {"deferred_head_gradients": "1"}, {"gradient_dtype": "bf16"}),
    ],
)
@pytest.mark.parametrize("profile", ["megatron", "torch"])
@pytest.mark.parametrize("pipeline", [1, 2])
def test_the_parts_of_every_rank_add_up(options: dict[str, str], profile: str, pipeline: int) -> None:
    for stage in (0, 3):
        fields: dict[str, Any] = {"zero_stage": stage, "pipeline_parallel": pipeline, "devices": 2, "profile": profile}
        for offload in ("none", "optimizer_tensorwise", "activations"):
            found = memory(options, **fields, offload=offload)
            parts = found.parts()
            assert np.allclose(sum(parts.values()), found.device, rtol=1e-12)
            assert all((size > -1e-6).all() for size in parts.values())


def test_released_gradients_are_no_part_of_the_first_passes() -> None:
    """Where a rank holds all its micro batches at once none of its gradients is there at its peak."""
    plain, released = (
        memory({"release_grads": word}, devices=2, pipeline_parallel=2, micro_batch_size=8, zero_stage=0)
        for word in ("false", "true")
    )
    gradients = [one.parts()["gradients"][0, 0] for one in (plain, released)]
    assert gradients[0] > 0
    assert gradients[0] - gradients[1] == pytest.approx(plain.allocated[0, 0] - released.allocated[0, 0])
