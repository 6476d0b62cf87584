"""Parameters, gradients and optimizer state under every switch and ZeRO stage, by classes of parameters, in bytes.

The small model with experts on eight devices, experts over four ranks: dense parameters are held by eight ranks, routed
experts by two.
"""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import MemoryByStage, memory_by_stage
from simulator.cost.memory.state import (
    device_parameters,
    kept_gathers_bytes,
    lasting_buckets,
    linear_by_class,
    optimizer_on_device,
    shard,
    training_state,
)
from simulator.cost.stages import stage_contents
from simulator.question.frameworks.stacks import stacks_of
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import GIB
from tests.pricing.test_memory_arithmetic import NOTHING
from tests.scenario.cases import block, layout_of, only, scenario_of, small_dense, small_moe

V, H = 1000, 64
ATTENTION = 2 * 64 * 64 + 2 * 64 * 32
ROUTERS = 3 * 64 * 8
DENSE_LINEAR = 4 * ATTENTION + 3 * 64 * 160 + ROUTERS + 3 * 3 * 64 * 48
D = DENSE_LINEAR + 9 * 64 + 2 * V * H
R = 3 * 8 * 3 * 64 * 48 / 4
"""Of a rank."""
SHARDED: dict[int, tuple[bool, bool, bool]] = {
    0: (False, False, False),
    1: (True, False, False),
    2: (True, True, False),
    3: (True, True, True),
}
"""Whether optimizer state, gradients and parameters are divided, by ZeRO stage."""


def scenario_with(**given: Any) -> Scenario:
    """A question with these switches; `lora`, `precision` and `model` are no switches."""
    model, lora, precision = (given.pop(name, None) for name in ("model", "lora", "precision"))
    return scenario_of(
        model or small_moe(),
        options=given,
        lora_rank=lora,
        precision=precision or "bf16",
        seq_length=32,
        global_batch_size=64,
        coefficients=NOTHING,
    )


def state(scenario: Scenario, **fields: Any) -> dict[str, float]:
    here = block(scenario, **({"expert_parallel": 4} | fields))
    found = training_state(Pricing(scenario, here))
    return {name: only(getattr(found, name)) for name in ("parameters", "gradients", "optimizer", "gathered")}


def part(divided: bool, dense: float = D, routed: float = R) -> float:
    return dense / 8 + routed / 2 if divided else dense + routed


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("options", "stored", "gradient", "of_optimizer"),
    [
        ({}, 2, 4, 12),
        ({"gradient_dtype": "bf16"}, 2, 2, 12),
        ({"optimizer_dtype": "bf16"}, 2, 4, 8),
        ({"master_weights": "false"}, 2, 4, 8),
    ],
)
def test_each_class_is_divided_over_its_own_ranks(
    zero_stage: int, options: dict[str, str], stored: int, gradient: int, of_optimizer: int
) -> None:
    found = state(scenario_with(**options), zero_stage=zero_stage)
    optimizer, gradients, parameters = (part(divided) for divided in SHARDED[zero_stage])
    assert found["parameters"] == stored * parameters
    assert found["gradients"] == gradient * gradients
    assert found["optimizer"] == of_optimizer * optimizer


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("gradient", [2, 4])
def test_an_fp32_router_is_stored_as_it_is_updated(zero_stage: int, gradient: int) -> None:
    """Two bytes more stored; of its gradient what is missing to four; no master copy."""
    narrow = {"gradient_dtype": "bf16" if gradient == 2 else "fp32"}
    plain = state(scenario_with(fp32_router="false", **narrow), zero_stage=zero_stage)
    wide = state(scenario_with(fp32_router="true", **narrow), zero_stage=zero_stage)
    more = {name: wide[name] - plain[name] for name in plain}
    of_optimizer, of_gradients, of_parameters = (part(one, ROUTERS, 0) for one in SHARDED[zero_stage])
    assert more["parameters"] == pytest.approx(2 * of_parameters)
    assert more["gradients"] == pytest.approx((4 - gradient) * of_gradients)
    assert more["optimizer"] == pytest.approx(-4 * of_optimizer)
    for other in (
        scenario_with(fp32_router="true", precision="fp32"),
        scenario_with(fp32_router="true", parameter_dtype="fp32"),
    ):
        same = scenario_with(
            fp32_router="false", precision=other.precision, parameter_dtype=other.framework.parameter_dtype
        )
        assert state(other, zero_stage=zero_stage) == state(same, zero_stage=zero_stage)
    dense = small_dense()
    alone = [state(scenario_with(model=dense, fp32_router=word), expert_parallel=1) for word in ("true", "false")]
    assert alone[0] == alone[1]
    # Frozen routers are wide, and nothing of them is trained.
    frozen = [state(scenario_with(lora=8, fp32_router=word), zero_stage=zero_stage) for word in ("false", "true")]
    assert frozen[1]["parameters"] - frozen[0]["parameters"] == pytest.approx(2 * of_parameters)
    assert frozen[1]["gradients"] == frozen[0]["gradients"]
    assert frozen[1]["optimizer"] == frozen[0]["optimizer"]


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("options", "gradients"),
    [
        # fp32 ones beside 16-bit ones, or a 16-bit one beside an accumulated one in fp32.
        ({"master_gradients": "true", "gradient_dtype": "bf16"}, (2, 4)),
        ({"master_gradients": "true"}, (4, 0)),
        ({"gradient_copies": "true"}, (4 + 2, 0)),
        ({"gradient_copies": "true", "gradient_dtype": "bf16"}, (2, 0)),
    ],
)
def test_copies_of_gradients(zero_stage: int, options: dict[str, str], gradients: tuple[int, int]) -> None:
    """Masters are divided as the optimizer's state is."""
    found = state(scenario_with(**options), zero_stage=zero_stage)
    of_optimizer, of_gradients, _ = (part(one) for one in SHARDED[zero_stage])
    assert found["gradients"] == gradients[0] * of_gradients + gradients[1] * of_optimizer


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("stored", ["bf16", "fp32"])
def test_8_bit_copies_stand_beside_weights_or_for_them(zero_stage: int, cached: bool, stored: str) -> None:
    """Two of every linear weight. Gathered in 8 bits they are the weights, one at least, unless those lie in parts."""
    options = {"fp8_weight_cache": str(cached).lower(), "parameter_dtype": stored}
    plain, beside, instead = (
        state(scenario_with(precision=precision, **options, fp8_param_gather=word), zero_stage=zero_stage)["parameters"]
        for precision, word in (("bf16", "false"), ("fp8", "false"), ("fp8", "true"))
    )
    linear, copies = DENSE_LINEAR + R, 2 if cached else 0
    assert beside - plain == copies * linear
    for_weights = max(copies, 1) - 2 if zero_stage < 3 and stored == "bf16" else copies
    assert instead - plain == for_weights * linear


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("by_unit", [True, False])
def test_parameters_cast_from_fp32(zero_stage: int, precision: str, by_unit: bool) -> None:
    """Stored in fp32: sharded from ZeRO 2 on, by units from ZeRO 1 on; below ZeRO 3 a whole 16-bit copy beside them.

    In fp32 nothing is cast: under ZeRO 2 a gathered copy stays.
    """
    scenario = scenario_with(precision=precision, parameter_dtype="fp32", fully_shard=str(by_unit).lower())
    found = state(scenario, zero_stage=zero_stage)
    if precision == "fp32":
        copy = 4 * part(False) if zero_stage == 2 and by_unit else 0
    else:
        copy = 2 * part(False) if zero_stage < 3 else 0
    divided = zero_stage >= (1 if by_unit else 2)
    if precision == "bf16" or by_unit:
        assert found["parameters"] == 4 * part(divided) + copy


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("precision", "element"), [("bf16", 2), ("fp32", 4)])
@pytest.mark.parametrize("lora", [None, 8])
def test_what_zero_gathers_for_a_moment(zero_stage: int, precision: str, element: int, lora: int | None) -> None:
    """ZeRO 3: weights of two layers of the largest kind, and the table; from ZeRO 2 on a layer's gradients."""
    layer = ATTENTION + 2 * 64 + max(3 * 64 * 160, 64 * 8 + 3 * 64 * 48 + R / 3)
    weights = (2 * layer + V * H) * element if zero_stage == 3 else 0
    gradients = 4 * layer if zero_stage >= 2 and lora is None else 0
    assert (
        state(scenario_with(precision=precision, lora=lora), zero_stage=zero_stage)["gathered"] == weights + gradients
    )


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ends_of_a_pipeline_gather_their_tables(rank: int) -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=3), devices=6, seq_length=32, global_batch_size=64)
    here = block(scenario, pipeline_parallel=3, zero_stage=3)
    has = stage_contents(scenario, here)
    found = training_state(Pricing(scenario, here)).gathered[has.kind][rank, 0]
    layer = ATTENTION + 2 * 64 + 3 * 64 * 160
    assert found == 2 * 2 * layer + 4 * layer + (0 if rank == 1 else 2 * V * H)


LARGEST = 12 * 8 * 64 * 48 / 4
"""State of a rank's largest tensor: one matrix of its two experts, of three layers' three."""


TABLE = 12 * V * H / 8
"""State of the largest part of a tensor on eight ranks: of the experts' no rank has more."""


@pytest.mark.parametrize(
    ("offload", "fraction", "resident", "in_step"),
    [
        ("none", "1.0", 1.0, 12 * (D / 8 + R / 2)),
        ("optimizer", "1.0", 0.0, TABLE),
        ("optimizer", "0.75", 0.25, 3 * (D / 8 + R / 2) + TABLE),
        ("optimizer_tensorwise", "1.0", 0.0, TABLE),
        ("optimizer_tensorwise", "0.75", 0.25, 3 * (D / 8 + R / 2) + TABLE),
        # No more comes back than is away.
        ("optimizer_tensorwise", "0.01", 0.99, 12 * (D / 8 + R / 2)),
    ],
)
def test_what_of_the_optimizer_is_on_the_device(offload: str, fraction: str, resident: float, in_step: float) -> None:
    """All of it in the step, or beside what stays one tensor at a time."""
    assert TABLE > LARGEST / 2
    scenario = scenario_with(offload_fraction=fraction)
    here = block(scenario, expert_parallel=4, zero_stage=1, offload=offload)
    whole = training_state(Pricing(scenario, here)).optimizer
    stays, found = optimizer_on_device(Pricing(scenario, here), whole)
    assert only(stays) == pytest.approx(resident * 12 * (D / 8 + R / 2))
    assert only(found) == pytest.approx(in_step)


def test_layouts_of_a_block_offload_each_as_they_say() -> None:
    scenario = scenario_with()
    layouts = [
        layout_of(scenario, expert_parallel=4, zero_stage=stage, offload=word)
        for word in ("none", "optimizer", "optimizer_tensorwise")
        for stage in (0, 1)
    ]
    together = block_of(layouts)
    whole = training_state(Pricing(scenario, together)).optimizer
    found = [one[0].tolist() for one in optimizer_on_device(Pricing(scenario, together), whole)]
    for index, layout in enumerate(layouts):
        one = block_of([layout])
        alone = optimizer_on_device(Pricing(scenario, one), whole[:, index : index + 1])
        assert [only(each) for each in alone] == [each[index] for each in found]
    assert found[1][4] == 12 * V * H
    assert found[1][5] == TABLE


def sharded(zero_stage: int, **fields: Any) -> tuple[Scenario, MemoryByStage]:
    options = {"fused_cross_entropy": "false", "cross_entropy_chunk_tokens": "0"}
    scenario = scenario_of(
        small_dense(),
        profile="torch",
        options=options,
        seq_length=32,
        global_batch_size=fields.pop("batch", 8),
        coefficients=NOTHING,
    )
    here = block_of([layout_of(scenario, zero_stage=stage, **fields) for stage in (0, zero_stage)])
    return scenario, memory_by_stage(Pricing(scenario, here))


@pytest.mark.parametrize(
    ("zero_stage", "fields", "kept"),
    [
        (3, {}, True),
        (2, {}, False),
        (1, {}, False),
        (3, {"tensor_parallel": 8, "sequence_parallel": True}, False),
    ],
)
def test_streams_keep_blocks_where_units_are_gathered(zero_stage: int, fields: dict[str, Any], kept: bool) -> None:
    """Without a pipeline, with other ranks to gather from: the largest unit, and parts of gradients not there yet."""
    _, found = sharded(zero_stage, **fields)
    streams = np.broadcast_to(found.outside.streams, found.device.shape)
    assert streams[:, 0].tolist() == [0] * len(streams)
    assert (found.need == found.device - found.outside.idle).all()
    if not kept:
        assert streams[:, 1].tolist() == [0] * len(streams)
        return
    parameters = 4 * (ATTENTION + 2 * 64 + 3 * 64 * 160) + 2 * V * H + 64
    gradients = found.parts()["gradients"][0, 1]
    assert streams[0, 1] == 4 * parameters / 8 - gradients + 2 * (V * H + 64)
    assert found.need[0, 1] < found.device[0, 1]


def test_of_equal_moments_the_first_is_named() -> None:
    """A step of one micro batch looks at its backward pass twice."""
    _, found = sharded(2)
    totals = np.stack([one.total(found.contents) for one in found.moments])
    assert (found.moment == np.argmax(totals, axis=0)).all()
    assert np.count_nonzero(totals == np.max(totals, axis=0), axis=0)[0, 1] == 2


ENGINE = {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "live_parameters": "100000", "reuse_parameters": "40000"}


@pytest.mark.parametrize(
    ("options", "live", "reduced"),
    [
        # The table, half of what comes again within reach, and 0.9 of the hidden size squared.
        ({}, V * H + 20000 + 0.9 * H**2, H**2),
        ({"prefetch_parameters": "5000", "reduction_parameters": "3000"}, V * H + 25000, 3000),
        ({"live_parameters": "70000"}, 70000, H**2),
        ({"live_parameters": "1"}, V * H, H**2),
        # No more than there are.
        ({"live_parameters": "100000000", "reuse_parameters": "100000000"}, D + R, H**2),
    ],
)
def test_live_parameters(options: dict[str, str], live: float, reduced: float) -> None:
    """What ZeRO 3 holds gathered where passes turn, beside a layer's gradients and the buffer they are reduced from."""
    without, asked_for = scenario_with(**ENGINE | {"live_parameters": "0"}), scenario_with(**ENGINE | options)
    layer = state(without, zero_stage=2)["gathered"]
    # ZeRO 3 keeps a bucket through the whole step, and copies it in the passes; two where a lower stage overlaps.
    assert state(asked_for, zero_stage=3)["gathered"] == pytest.approx(2 * live + layer + 2 * reduced)
    pricings = [Pricing(asked_for, block(asked_for, zero_stage=stage)) for stage in (3, 2)]
    lasting = [float(lasting_buckets(pricing).ravel()[0]) for pricing in pricings]
    assert lasting == [2 * reduced, 0]
    assert state(asked_for, zero_stage=2)["gathered"] == pytest.approx(layer + 2 * reduced)
    overlapped = scenario_with(**ENGINE | options | {"reduction_buffers": "2"})
    assert state(overlapped, zero_stage=2)["gathered"] == pytest.approx(layer + 2 * 2 * reduced)
    assert state(asked_for, zero_stage=0)["gathered"] == state(without, zero_stage=0)["gathered"]


@pytest.mark.parametrize("adapters", [None, 8])
def test_gathered_weights_that_autograd_keeps(adapters: int | None) -> None:
    """Every product's weight, with the head's, from its forward pass to its backward pass (DeepSpeed 617061d)."""
    plain, kept = (scenario_with(lora=adapters, **ENGINE, kept_gathers=word) for word in ("false", "true"))
    whole = Pricing(kept, block(kept, zero_stage=3, expert_parallel=4))
    more = 2 * (only(sum(linear_by_class(whole))) + V * H) - 2 * (V * H + 20000 + 0.9 * H**2)
    assert only(kept_gathers_bytes(whole)) == pytest.approx(more)
    assert kept_gathers_bytes(Pricing(plain, whole.block)) == 0.0
    others: tuple[dict[str, Any], ...] = ({"zero_stage": 3, "recompute": "full"}, {"zero_stage": 2})
    for sizes in others:
        assert only(kept_gathers_bytes(Pricing(kept, block(kept, **sizes)))) == 0.0


@pytest.mark.parametrize(("numbers", "temporaries"), [("0", 0), ("1", 1), ("2", 2)])
@pytest.mark.parametrize("size", [1000.0, 1e8])
def test_the_step_of_flat_partitions(numbers: str, temporaries: int, size: float) -> None:
    """The largest of three moments: gradients copied and cast; the cast, Adam's numbers, no 16-bit gradients; a norm.

    ZeRO 3 works on so many parameters at a time and keeps its gradients; ZeRO 1 first frees others' whole gradients.
    Without ZeRO the cast is copied, and ZeRO 1 and 2 take the norm of each gradient in fp64 (DeepSpeed 0.19.6,
    fp16/fused_optimizer.py, `step`; zero/stage_1_and_2.py, `get_grad_norm_direct`): the table's is the largest.
    """
    scenario = scenario_with(**ENGINE, step_parameters=str(int(size)), step_temporaries=numbers)
    whole, part = D + R, D / 8 + R / 2
    for stage, worked, freed, others in ((0, whole, 2, 0.0), (1, part, 2, 2 * (whole - part)), (2, part, 2, 0.0)):
        found = training_state(Pricing(scenario, block(scenario, expert_parallel=4, zero_stage=stage)))
        copied, norm = (4 + 4, 0) if stage == 0 else (2 + 4, 8 * min(part, V * H))
        more = max(copied * worked, (4 + 4 * temporaries - freed) * worked, norm)
        assert only(found.step_temporary) == pytest.approx(more - others)
    found = training_state(Pricing(scenario, block(scenario, expert_parallel=4, zero_stage=3)))
    assert only(found.step_temporary) == max(2 + 4, 4 + 4 * temporaries) * min(size, part)


def test_an_offloaded_flat_partition_steps_on_the_host() -> None:
    scenario = scenario_with(**ENGINE, step_parameters="1000000000")
    found = training_state(
        Pricing(scenario, block(scenario, expert_parallel=4, zero_stage=2, offload="optimizer_tensorwise"))
    )
    assert only(found.step_temporary) == 0


def test_a_step_that_ran_out_of_memory() -> None:
    """Llama-7B, ZeRO 2 on eight devices: PyTorch 1 held 28.28 GiB and asked for a quotient of 3.14."""
    (stack,) = (each for each in stacks_of("torch") if each.name == "deepspeed")
    engine = {name: str(value).lower() for name, value in stack.switches.items()}
    scenario = scenario_of("llama-7b", profile="torch", options=engine, seq_length=512, global_batch_size=8)
    here = Pricing(scenario, block(scenario, zero_stage=2, recompute="full"))
    found = memory_by_stage(here)
    asked_for = 4 * only(shard(here, device_parameters(here), 1))
    assert found.moments[found.moment[0, 0]].name == "optimizer step"
    assert asked_for / GIB == pytest.approx(3.14, abs=0.005)
    assert (only(found.allocated) - asked_for) / GIB == pytest.approx(28.28, rel=0.005)
