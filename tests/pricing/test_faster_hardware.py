"""A faster part never makes a step slower, whatever hides behind what."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import price
from simulator.question.coefficients import Coefficients
from simulator.question.specs.hardware import HardwareSpec
from tests.pricing.layouts import Case, cases
from tests.scenario.cases import layout_of, load_hardware, scenario_of

HARDWARE = ("z2000", "ascend-910b-64g", "h100-pcie-80g")
OVERLAPS = (
    "tp_comm_overlap",
    "overlap_expert_exchange",
    "overlap_param_gather",
    "overlap_grad_reduce",
    "overlap_p2p",
    "offload_parameters",
)


@cache
def with_rates(name: str, peak: float, network: float, host: float) -> HardwareSpec:
    """The hardware with its peaks, its network and its way to the host so many times as fast."""
    spec = load_hardware(name)
    values: dict[str, Any] = spec.model_dump(by_alias=True, exclude_none=True)
    for precision, rate in spec.peak_flops_per_second.items():
        values["peak_flops"][precision]["value"] = f"{rate * peak:.9e} FLOP/s"
    values["network"]["nic_bandwidth"]["value"] = f"{spec.nic_bandwidth_bytes_per_second * network:.9e} B/s"
    values["host_bandwidth"]["value"] = f"{spec.host_bandwidth_bytes_per_second * host:.9e} B/s"
    return HardwareSpec.model_validate(values)


def step_seconds(case: Case, *rates: float) -> float:
    hardware = with_rates(case.scenario.hardware.name, *rates)
    return float(price(pricing_of(case.with_scenario(hardware=hardware).scenario, case.layout)).step.total[0])


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


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(
    overlapping(),
    st.sampled_from((0.25, 1.0, 4.0, 16.0)),
    st.sampled_from((0.02, 0.2, 1.0)),
    st.sampled_from((0.01, 0.1, 1.0)),
)
def test_no_part_that_is_faster_makes_a_step_slower(case: Case, peak: float, network: float, host: float) -> None:
    before = step_seconds(case, peak, network, host)
    slack = 1.0 + 1e-9
    assert step_seconds(case, 2.0 * peak, network, host) <= before * slack
    assert step_seconds(case, peak, 2.0 * network, host) <= before * slack
    assert step_seconds(case, peak, network, 2.0 * host) <= before * slack
    assert np.isfinite(before)


def test_what_is_left_of_the_gradients_reduction_hides_the_exchange_of_experts() -> None:
    """Else products that are twice as fast make this step 0.02 % slower: both lose what hid them."""
    options = {name: "true" if name == "overlap_expert_exchange" else "false" for name in OVERLAPS[:-1]}
    scenario = scenario_of(
        "deepseek-v2-lite", "ascend-910b-64g", devices=128, seq_length=1024, global_batch_size=512, options=options
    )
    layout = layout_of(
        scenario, tensor_parallel=2, pipeline_parallel=4, expert_parallel=32, zero_stage=0, stage_layers=(7, 7, 7, 6)
    )
    seconds = [
        float(
            price(
                pricing_of(
                    replace(
                        scenario, hardware=with_rates("ascend-910b-64g", peak, 0.02, 0.01), coefficients=Coefficients()
                    ),
                    layout,
                ),
            ).step.total[0]
        )
        for peak in (4.0, 8.0)
    ]
    assert seconds[1] <= seconds[0] * (1.0 + 1e-9)
