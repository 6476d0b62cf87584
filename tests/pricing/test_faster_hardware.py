"""A faster part never makes a step slower, whatever hides behind what."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import price
from simulator.question.coefficients import Coefficients
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.documents import plain, validated
from simulator.question.specs.hardware import HardwareSpec
from tests.pricing.layouts import Case, cases
from tests.scenario.cases import layout_of, scenario_of

HARDWARE = ("z2000", "ascend-910b-64g", "h100-pcie-80g", "b200-sxm")
OVERLAPS = (
    "tp_comm_overlap",
    "functional_collectives",
    "overlap_tensor_gradients",
    "overlap_expert_exchange",
    "overlap_param_gather",
    "overlap_grad_reduce",
    "overlap_p2p",
    "offload_parameters",
)


class Rates(NamedTuple):
    """A device's rates, in those of its data sheet."""

    peak: float = 1.0
    memory: float = 1.0
    links: float = 1.0
    network: float = 1.0
    host: float = 1.0


@cache
def with_rates(name: str, rates: Rates) -> HardwareSpec:
    """The hardware with each part so many times as fast; products come as near to the peak as before."""
    spec = load_hardware(name)
    values: dict[str, Any] = plain(spec)

    def faster(figure: dict[str, Any], rate: float, factor: float, unit: str) -> None:
        figure["value"] = f"{rate * factor:.9e} {unit}"

    for precision, rate in spec.peak_flops_per_second.items():
        faster(values["peak_flops"][precision], rate, rates.peak, "FLOP/s")
    for precision, figure in values.get("product_flops", {}).items():
        faster(figure, getattr(spec.product_flops, precision).amount, rates.peak, "FLOP/s")
    faster(values["memory_bandwidth"], spec.memory_bandwidth_bytes_per_second, rates.memory, "B/s")
    for level, links in zip(spec.links, values["device_links"], strict=False):
        faster(links["bandwidth"], level.bandwidth_bytes_per_second, rates.links, "B/s")
        if "pair_bandwidth" in links:
            faster(links["pair_bandwidth"], level.pair_bandwidth_bytes_per_second, rates.links, "B/s")
    faster(values["network"]["nic_bandwidth"], spec.network.nic_bandwidth.amount, rates.network, "B/s")
    faster(values["host_bandwidth"], spec.host_bandwidth_bytes_per_second, rates.host, "B/s")
    return validated(name, HardwareSpec, values)


def step_seconds(scenario: Scenario, layout: Layout, rates: Rates) -> float:
    hardware = with_rates(scenario.hardware.name, rates)
    return float(price(pricing_of(replace(scenario, hardware=hardware), layout)).step.total[0])


@st.composite
def overlapping(draw: st.DrawFn) -> Case:
    """A case in which much may hide behind the same work."""
    case = draw(cases(hardware=HARDWARE))
    assume(not case.broken)
    switches: dict[str, Any] = {name: draw(st.booleans()) for name in OVERLAPS}
    # What passes move to the host goes without a pipeline: its rule forbids it for activations.
    alone = case.layout.pipeline_parallel == 1
    switches["offload_parameters"] &= alone
    case = case.with_scenario(framework=replace(case.scenario.framework, **switches))
    if draw(st.booleans()):
        case = case.with_layout(zero_stage=draw(st.sampled_from((0, 1, 2, 3))))
    return case.with_layout(offload=draw(st.sampled_from(("none", "optimizer", *["activations"] * alone))))


RATES = st.builds(
    Rates,
    peak=st.sampled_from((0.25, 1.0, 4.0, 16.0)),
    memory=st.sampled_from((0.25, 1.0, 4.0)),
    links=st.sampled_from((0.05, 1.0)),
    network=st.sampled_from((0.02, 0.2, 1.0)),
    host=st.sampled_from((0.01, 0.1, 1.0)),
)


SUITE = settings.get_current_profile_name() == "suite"


# What a thousand examples found has a test of its own below; the profile `free` tries as many anew.
@settings(
    max_examples=50 if SUITE else 1000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(overlapping(), RATES)
def test_no_part_that_is_faster_makes_a_step_slower(case: Case, rates: Rates) -> None:
    before = step_seconds(case.scenario, case.layout, rates)
    assert np.isfinite(before)
    for part in Rates._fields:
        faster = rates._replace(**{part: 2.0 * getattr(rates, part)})
        assert step_seconds(case.scenario, case.layout, faster) <= before * (1.0 + 1e-9), part


@pytest.mark.parametrize(
    ("profile", "options", "rates"),
    [
        # A rank that does not set the pace has a shorter pass to hide its gathers behind, while it waits anyway.
        ("megatron", {"overlap_param_gather": "true"}, [Rates(peak=peak) for peak in (0.25, 0.5, 1.0, 2.0)]),
        ("torch", {}, [Rates(peak=peak, network=0.2) for peak in (0.25, 0.5, 1.0, 2.0)]),
    ],
)
def test_a_rank_that_waits_hides_its_gathers_while_it_does(
    profile: str, options: dict[str, str], rates: list[Rates]
) -> None:
    scenario = scenario_of(
        "deepseek-v3",
        "z2000",
        devices=128,
        profile=profile,
        options=options,
        global_batch_size=512,
        coefficients=Coefficients(),
    )
    sizes = {"tensor_parallel": 8, "pipeline_parallel": 8, "expert_parallel": 2, "expert_tensor_parallel": 8}
    layout = layout_of(scenario, **sizes, sequence_parallel=True, zero_stage=3)
    seconds = [step_seconds(scenario, layout, one) for one in rates]
    assert all(after <= before * (1.0 + 1e-9) for before, after in pairwise(seconds))


def test_what_is_left_of_the_gradients_reduction_hides_the_exchange_of_experts() -> None:
    """Else products that are twice as fast make this step 0.02 % slower: both lose what hid them."""
    options = {name: "true" if name == "overlap_expert_exchange" else "false" for name in OVERLAPS[:-1]}
    scenario = scenario_of(
        "deepseek-v2-lite",
        "ascend-910b-64g",
        devices=128,
        seq_length=1024,
        global_batch_size=512,
        options=options,
        coefficients=Coefficients(),
    )
    layout = layout_of(
        scenario, tensor_parallel=2, pipeline_parallel=4, expert_parallel=32, zero_stage=0, stage_layers=(7, 7, 7, 6)
    )
    seconds = [step_seconds(scenario, layout, Rates(peak=peak, network=0.02, host=0.01)) for peak in (4.0, 8.0)]
    assert seconds[1] <= seconds[0] * (1.0 + 1e-9)
