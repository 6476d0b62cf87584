"""What holds for every scenario and layout, whatever the numbers."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.activations import activations_in_flight
from simulator.cost.memory.state import device_parameters
from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import layer_work
from simulator.cost.pricing.price import Priced, price
from simulator.cost.stages import stage_contents
from simulator.cost.timing.layers import Parts, collective_seconds
from simulator.cost.timing.step import pieces_of
from simulator.question.scenario.block import block_of
from simulator.question.specs.documents import plain, validated
from simulator.question.specs.hardware import HardwareSpec
from simulator.search.build import estimate_layout
from tests.pricing.layouts import Case, cases, layouts, scenarios
from tests.scenario.cases import held_layers, load_hardware

many = settings(suppress_health_check=[HealthCheck.too_slow])
EXACT = 1e-12


def valid(case: Case) -> Case:
    assume(not case.broken)
    return case


def priced(case: Case) -> Priced:
    return price(pricing_of(case.scenario, case.layout))


def numbers(value: Any) -> list[float]:
    """Every number inside an estimate."""
    if isinstance(value, bool | str | None):
        return []
    if isinstance(value, int | float):
        return [float(value)]
    if isinstance(value, dict):
        return [x for one in value.values() for x in numbers(one)]
    if isinstance(value, tuple):
        return [x for one in value for x in numbers(one)]
    return [x for name in value.__dataclass_fields__ for x in numbers(getattr(value, name))]


@many
@given(cases())
def test_parts_add_up(case: Case) -> None:
    found = estimate_layout(case.scenario, valid(case).layout)
    memory, time = found.memory, found.throughput
    for stage in memory.stages:
        assert sum(stage.parts_bytes.values()) == pytest.approx(stage.device_bytes, rel=EXACT)
        tensors = sum(v for name, v in stage.parts_bytes.items() if name != "outside_allocator")
        assert tensors == pytest.approx(stage.allocated_bytes, rel=EXACT)
    assert sum(memory.parts_bytes.values()) == pytest.approx(memory.device_bytes, rel=EXACT)
    outside = memory.parts_bytes["outside_allocator"]
    assert sum(memory.outside_parts_bytes.values()) == pytest.approx(outside, rel=EXACT)
    assert memory.device_bytes == max(stage.device_bytes for stage in memory.stages)
    assert sum(time.parts_seconds.values()) == pytest.approx(time.step_seconds, rel=1e-9)


@many
@given(st.data())
def test_every_number_is_finite_and_none_is_negative(data: st.DataObject) -> None:
    # Layouts that break a rule are priced too.
    scenario = data.draw(scenarios())
    found = estimate_layout(scenario, data.draw(layouts(scenario)))
    for value in numbers(found):
        assert math.isfinite(value)
        assert value >= 0
    assert found.throughput.step_seconds > 0
    assert 0 < found.throughput.mfu < 1
    assert 0 <= found.throughput.bubble_fraction < 1


@many
@given(cases())
def test_no_step_beats_the_roofline(case: Case) -> None:
    found = estimate_layout(case.scenario, valid(case).layout).throughput
    peak = case.scenario.hardware.peak(case.scenario.precision)
    flops = found.hardware_flops_per_second_per_device * found.step_seconds
    assert found.step_seconds >= flops / peak
    assert found.flops_per_second_per_device <= found.hardware_flops_per_second_per_device
    tokens = case.scenario.tokens_per_step / case.scenario.devices
    assert found.flops_per_second_per_device * found.step_seconds == pytest.approx(
        found.model_flops_per_token * tokens, rel=EXACT
    )
    assert found.mfu == pytest.approx(found.flops_per_second_per_device / peak, rel=EXACT)


@many
@given(cases(), st.sampled_from((2, 4)))
def test_more_tensor_parallelism_never_raises_parameter_bytes(case: Case, factor: int) -> None:
    layout = valid(case).layout
    # More devices in the tensor group, all else equal; and the same devices taken from the replicas.
    grown = replace(layout, tensor_parallel=layout.tensor_parallel * factor)
    changes = [grown]
    # Where parameters are stored in parts, those that tensor parallelism does not cut lose half of their owners.
    in_parts = 1 if case.scenario.framework.parameter_dtype == "fp32" else 3
    if layout.data_parallel % factor == 0 and layout.zero_stage < in_parts:
        changes.append(replace(grown, data_parallel=layout.data_parallel // factor))
    before = priced(case)
    for changed in changes:
        after = price(pricing_of(case.scenario, changed))
        assert (after.memory.state.parameters <= before.memory.state.parameters).all()
        few, many_ = (device_parameters(Pricing(case.scenario, x.block)) for x in (after, before))
        assert (few.dense <= many_.dense).all()
        # Routed experts have divisors of their own.
        assert (few.routed == many_.routed).all()


@many
@given(cases())
def test_a_larger_micro_batch_never_lowers_activations(case: Case) -> None:
    layout = valid(case).layout
    bigger = case.with_layout(micro_batch_size=2 * layout.micro_batch_size)
    assume(not bigger.broken)
    held = []
    for one in (case, bigger):
        block = block_of([one.layout])
        memory = priced(one).memory
        held.append(activations_in_flight(Pricing(one.scenario, block)))
        assert (memory.allocated >= memory.state.parameters[memory.contents.kind]).all()
    assert (held[1] >= held[0]).all()


@many
@given(cases())
def test_the_verdict_follows_the_worst_stage(case: Case) -> None:
    found = estimate_layout(case.scenario, valid(case).layout)
    memory, values = found.memory, case.scenario.coefficients.memory
    used = memory.device_bytes / memory.capacity_bytes
    expected = "does_not_fit" if used > values.starved_to else "starved" if used > values.starved_from else "fits"
    assert found.verdict == expected
    assert memory.stages[memory.binding_stage].device_bytes == memory.device_bytes
    assert memory.fits == (memory.headroom_bytes >= 0)


COMMUNICATION = ("tensor_parallel", "context_parallel", "expert_parallel")


def with_links(name: str, factor: float) -> HardwareSpec:
    """The hardware with links without latency, all `factor` times as wide."""
    spec = load_hardware(name)
    values = plain(spec)
    for link in (*values["device_links"], values["network"]):
        link["latency"]["value"] = "1e-30 s"
        for key in ("bandwidth", "pair_bandwidth", "nic_bandwidth"):
            if key in link:
                held = getattr(spec.network, key, None) or next(
                    getattr(x, key) for x in spec.device_links if x.name == link["name"]
                )
                link[key]["value"] = f"{held.amount * factor:.6f} B/s"
    return validated(name, HardwareSpec, values)


LINKED = {
    (name, factor): with_links(name, factor)
    for name in ("z2000", "ascend-910b-64g", "bi150-64g")
    for factor in (1.0, 4.0)
}


@many
@given(cases(hardware=("z2000", "ascend-910b-64g", "bi150-64g")))
def test_wider_links_shorten_communication_and_nothing_else(case: Case) -> None:
    name = valid(case).scenario.hardware.name
    # Waits of exchanges are not of the links, and launches may outlast them.
    time = replace(case.scenario.coefficients.time, launch_seconds=0.0, expert_wait_seconds=0.0)
    bare = {"coefficients": replace(case.scenario.coefficients, time=time)}
    slow, fast = (priced(case.with_scenario(hardware=LINKED[name, k], **bare)) for k in (1.0, 4.0))
    for piece in range(len(pieces_of(slow.pricing, 0))):
        for before, after in zip(_passes(slow, piece), _passes(fast, piece), strict=True):
            for part, seconds in before.items():
                if part in COMMUNICATION:
                    # What compute cannot hide shrinks by more than the links grow.
                    assert after[part][0] * 4 <= seconds[0] * (1 + 1e-6) + 1e-15, part
                else:
                    assert after[part][0] == seconds[0], part
    assert fast.step.data_parallel[0] * 4 <= slow.step.data_parallel[0] * (1 + 1e-6) + 1e-15
    assert fast.step.pipeline.sends[0] * 4 == pytest.approx(slow.step.pipeline.sends[0], rel=1e-6, abs=1e-15)
    for narrow, wide in zip(_traffic(slow, case, name, 1.0), _traffic(fast, case, name, 4.0), strict=True):
        assert wide * 4 == pytest.approx(narrow, rel=1e-6, abs=1e-15)
    assert (slow.memory.device == fast.memory.device).all()
    assert fast.step.total[0] <= slow.step.total[0] * (1.0 + 1e-12)


def _traffic(answer: Priced, case: Case, name: str, width: float) -> tuple[float, float]:
    """Communication of a layer before any of it is hidden."""
    scenario = case.with_scenario(hardware=LINKED[name, width]).scenario
    shared = layer_work(conditions_of(scenario), scenario.model.layer_kinds[0]).collectives
    found = {one.group: collective_seconds(Pricing(scenario, answer.block), one) for one in shared}
    return float(found["tensor"][0]), float(found["context"][0])


def _passes(answer: Priced, piece: int) -> tuple[Parts, Parts]:
    seconds = pieces_of(answer.pricing, 0)[piece]
    return seconds.forward, seconds.backward


@many
@given(cases())
def test_memory_does_not_know_time_and_full_recompute_saves_activations(case: Case) -> None:
    full = valid(case).with_layout(recompute="full", recompute_method="uniform", recompute_layers=1)
    none = case.with_layout(recompute="none")
    small, large = (priced(x).memory.activations for x in (full, none))
    assert (small.one_micro_batch <= large.one_micro_batch).all()
    if case.layout.offload != "activations":
        # Otherwise there is less to move as well.
        assert np.all(priced(full).step.total >= priced(none).step.total * (1 - EXACT))


def test_stage_contents_hold_every_layer_once() -> None:
    @many
    @given(cases())
    def check(case: Case) -> None:
        has = stage_contents(case.scenario, block_of([case.layout]))
        layers = (has.num_layers * has.ranks).sum()
        assert layers == case.scenario.model.num_hidden_layers
        assert sum(held_layers(has)) == case.scenario.model.num_dense_layers

    check()
