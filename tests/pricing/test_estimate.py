"""What an estimate says of a priced layout: text, rows, verdicts at their bounds, FLOPs, notes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.pricing.estimate import AssumedSwitch, MemoryEstimate, StageMemory, layout_sizes
from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, price, verdicts
from simulator.question.scenario.block import block_of
from simulator.question.scenario.scenario import NodeGroup, Scenario
from simulator.question.specs import catalogue
from simulator.question.specs.hardware import ComputeRate, MemorySize
from simulator.search.build import bare_estimates, estimate_layout, fitting_estimates, provenance
from tests.scenario.cases import layout_of, load_hardware, scenario_of, small_dense, small_moe


def test_an_estimate_on_one_line() -> None:
    scenario = scenario_of(small_dense(), devices=8)
    for recompute, tail in (("none", ""), ("full", " recompute full")):
        layout = layout_of(scenario, pipeline_parallel=2, recompute=recompute)
        assert layout_sizes(layout) == f"tp1 pp2 cp1 ep1 dp4 vp1 mbs1{tail}"
    found = estimate_layout(scenario, layout_of(scenario))
    found = replace(
        found,
        memory=replace(found.memory, device_bytes=2.0 * 2**30, capacity_bytes=8.0 * 2**30),
        throughput=replace(found.throughput, step_seconds=1.23456),
    )
    start = "<Estimate small-dense on 8 x z2000, bf16, megatron: tp1 pp1 cp1 ep1 dp8 vp1 mbs1"
    assert repr(found) == f"{start}, fits, 2.0 of 8.0 GiB, 1.235 s a step>"


def test_what_a_run_needs_is_without_the_blocks_of_idle_streams() -> None:
    scenario = scenario_of(small_dense(), devices=8, profile="torch", seq_length=32)
    found = estimate_layout(scenario, layout_of(scenario, zero_stage=3))
    parts = found.memory.outside_parts_bytes
    assert min(parts["streams"], parts["cached"]) > 0
    assert found.memory.need_bytes == found.memory.device_bytes - (parts["cached"] + parts["streams"])
    grown = replace(scenario, framework=replace(scenario.framework, expandable_segments=True, fused_cross_entropy=True))
    plain = estimate_layout(grown, layout_of(grown, zero_stage=0)).memory
    assert plain.need_bytes == plain.device_bytes


def test_what_is_left_of_a_device() -> None:
    """Below zero where it does not fit; what fits exactly fits."""
    scenario = scenario_of(small_dense(), devices=8)
    memory = estimate_layout(scenario, layout_of(scenario)).memory
    for device, left, fits in ((60.0, 4.0, True), (64.0, 0.0, True), (65.0, -1.0, False)):
        one = replace(memory, device_bytes=device, capacity_bytes=64.0)
        assert (one.headroom_bytes, one.fits) == (left, fits)


def test_switches_that_nobody_gave_make_no_other_estimate() -> None:
    scenario = scenario_of(small_dense(), devices=8)
    found = estimate_layout(scenario, layout_of(scenario))
    assumed = AssumedSwitch(
        switch="fused_swiglu",
        value="true",
        other="false",
        because="megatron's default",
        speed_change=0.1,
        memory_bytes=0.0,
        verdict="fits",
    )
    assert replace(found, assumed=(assumed,)) == found


def test_a_row_for_each_rank() -> None:
    scenario = scenario_of(small_dense(), devices=8)
    found = estimate_layout(scenario, layout_of(scenario, pipeline_parallel=2, stage_layers=(3, 1)))
    rows = found.rows()
    assert [(row["stage"], row["layers"]) for row in rows] == [(0, 3), (1, 1)]
    for row, stage in zip(rows, found.memory.stages, strict=True):
        assert row["parameters_bytes"] == stage.parts_bytes["parameters"]
        assert (row["allocated_bytes"], row["device_bytes"]) == (stage.allocated_bytes, stage.device_bytes)
        assert (row["reserved_bytes"], row["moment"]) == (stage.reserved_bytes, stage.moment)


def test_a_layout_that_breaks_a_rule_is_refused_whatever_it_needs() -> None:
    scenario = scenario_of(small_dense(), devices=8)
    found = estimate_layout(scenario, layout_of(scenario, data_parallel=4))
    assert (found.verdict, [one.rule for one in found.violations]) == ("refused", ["devices"])
    assert found.memory.device_bytes < found.memory.capacity_bytes


def test_verdicts_at_their_bounds() -> None:
    scenario = scenario_of(small_dense())
    values = scenario.coefficients.memory
    low, high = values.starved_from, values.starved_to
    assert low < high
    shares = np.array([low, np.nextafter(low, 2), high, np.nextafter(high, 2)])
    assert verdicts(scenario, shares).tolist() == [FITS, STARVED, STARVED, DOES_NOT_FIT]


def test_the_rank_that_needs_most_of_its_device_binds() -> None:
    scenario = scenario_of("llama3.1-8b", devices=8)
    layouts = [layout_of(scenario, pipeline_parallel=2, tensor_parallel=t, micro_batch_size=4 // t) for t in (1, 2, 4)]
    priced = price(Pricing(scenario, block_of(layouts)))
    estimates = bare_estimates(scenario, layouts)
    for at, found in enumerate(estimates):
        worst = max(found.memory.stages, key=lambda stage: stage.device_bytes)
        assert found.memory.binding_stage == worst.stage == priced.binding_stage[at]
        assert priced.device_bytes[at] == found.memory.device_bytes == worst.device_bytes
        assert (found.memory.allocated_bytes, found.memory.reserved_bytes) == (
            worst.allocated_bytes,
            worst.reserved_bytes,
        )
        outside = found.memory.outside_parts_bytes
        assert sum(outside.values()) == pytest.approx(found.memory.parts_bytes["outside_allocator"])
        beside = outside["context"] + outside["communicators"]
        assert worst.device_bytes - worst.reserved_bytes == pytest.approx(beside)
    layouts.insert(1, replace(layouts[-1], micro_batch_size=3))
    estimates = bare_estimates(scenario, layouts, ruled=True)
    assert [found.verdict for found in estimates].count("refused") == 1
    fitting = {at: found for at, found in enumerate(estimates) if found.verdict == "fits"}
    assert 0 < len(fitting) < len(layouts) - 1
    assert fitting_estimates(scenario, layouts) == fitting


def test_utilisation_divides_by_the_mean_peak_of_a_mixed_cluster() -> None:
    one, two = (scenario_of(small_dense(), name, devices=8) for name in ("h800-sxm-80g", "bi150-64g"))
    mixed = replace(one, devices=24, groups=(NodeGroup(one.hardware, 8), NodeGroup(two.hardware, 16)))
    for scenario, peak in (
        (one, one.hardware.peak("bf16")),
        (mixed, (one.hardware.peak("bf16") + 2 * two.hardware.peak("bf16")) / 3),
    ):
        layout = layout_of(scenario, pipeline_parallel=1 if scenario is one else 3, stage_layers=())
        found = estimate_layout(scenario, layout).throughput
        assert found.mfu == pytest.approx(found.flops_per_second_per_device / peak)
        rate = scenario.tokens_per_step / found.step_seconds / scenario.devices
        assert found.tokens_per_second_per_device == pytest.approx(rate)


def test_utilisation_of_causal_attention_leaves_out_the_masked_half() -> None:
    """By hand, of each token: 3 passes x 4 layers x 4 s h / 2; of frozen weights 2 passes."""
    for rank, passes in ((None, 3), (8, 2)):
        scenario = scenario_of(small_moe(), seq_length=32, lora_rank=rank)
        found = estimate_layout(scenario, layout_of(scenario)).throughput
        masked = passes * 4 * 2 * 32 * 64
        causal = found.model_flops_per_token - masked
        assert found.causal_mfu / found.mfu == pytest.approx(causal / found.model_flops_per_token)


def added(scenario: Scenario, **fields: Any) -> float:
    """FLOPs per token that recomputation adds."""
    found = estimate_layout(scenario, layout_of(scenario, **fields)).throughput
    more = found.hardware_flops_per_second_per_device - found.flops_per_second_per_device
    return more / found.tokens_per_second_per_device


@pytest.mark.parametrize("pipeline", [1, 2])
def test_hardware_flops_count_the_layers_that_are_done_again(pipeline: int) -> None:
    """The dense layer and three with experts: each forward pass once more, of a chunk's first layers or of a list."""
    scenario = scenario_of(small_moe(), seq_length=32)
    dense = 2 * 43_008 + 4 * 32 * 64
    experts = 2 * (12_288 + 512 + 3 * 9216) + 4 * 32 * 64
    piped = {"pipeline_parallel": pipeline, "recompute": "full"}
    assert added(scenario, **piped) == pytest.approx(dense + 3 * experts)
    leading = added(scenario, recompute_method="block", recompute_layers=1, **piped)
    assert leading == pytest.approx(dense + (pipeline - 1) * experts)
    listed = added(scenario, recompute_method="list", recompute_layer_list=(1, 3), **piped)
    assert listed == pytest.approx(2 * experts)
    assert added(scenario, pipeline_parallel=pipeline) == 0
    core = added(scenario, pipeline_parallel=pipeline, recompute="selective")
    assert core == pytest.approx(4 * 4 * 32 * 64)


def test_notes_say_what_the_numbers_rest_on() -> None:
    def notes(**fields: Any) -> tuple[str, ...]:
        model = small_dense(note="a model of tests") if fields.pop("noted", False) else small_dense()
        return provenance(scenario_of(model, **fields)).notes

    assert notes() == ()
    assert notes(noted=True) == ("small-dense: a model of tests",)
    (fp8,) = notes(precision="fp8")
    assert fp8.startswith("MFU divides by the dense fp8 peak")
    (fp32,) = notes(precision="fp32")
    assert fp32.startswith("fp32 runs at the fp32 peak")
    (adapters,) = notes(lora_rank=8)
    assert adapters.startswith("adapters on all linear layers")
    found = provenance(scenario_of(small_dense()))
    assert (found.calibration, found.status) == (scenario_of(small_dense()).coefficients.name, "never")


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({}, "MFU divides by the dense fp8 peak; attention and the output layer run in 16 bit"),
        ({"fp8_attention": "true"}, "MFU divides by the dense fp8 peak; the output layer run in 16 bit"),
        ({"fp8_output_layer": "true"}, "MFU divides by the dense fp8 peak; attention run in 16 bit"),
        ({"fp8_attention": "true", "fp8_output_layer": "true"}, "MFU divides by the dense fp8 peak"),
    ],
)
def test_what_stays_wide_under_fp8_is_said(options: dict[str, str], note: str) -> None:
    scenario = scenario_of(small_dense(), precision="fp8", options=options)
    assert estimate_layout(scenario, layout_of(scenario)).provenance.notes == (note,)


def memory_of(**fields: Any) -> MemoryEstimate:
    given: dict[str, Any] = {
        "device_bytes": 70.0,
        "reserved_bytes": 60.0,
        "allocated_bytes": 50.0,
        "capacity_bytes": 80.0,
        "interval_bytes": None,
        "fit_probability": None,
        "binding_stage": 0,
        "moment": "backward",
        "parts_bytes": {},
        "outside_parts_bytes": {"context": 5.0, "streams": 8.0},
        "stages": (),
    }
    return MemoryEstimate(**given | fields)


@pytest.mark.parametrize(
    ("host", "pinned", "capacity", "fits"),
    [
        (10.0, 5.0, None, None),
        (10.0, 5.0, 16.0, True),
        # Pinned blocks are rounded up by less than as much again.
        (10.0, 5.0, 15.0, True),
        (10.0, 5.0, 14.0, None),
        (10.0, 5.0, 10.0, None),
        (10.0, 0.0, 10.0, True),
        (10.0, 5.0, 9.0, False),
    ],
)
def test_a_host_has_room_for_what_is_offloaded(
    host: float, pinned: float, capacity: float | None, fits: bool | None
) -> None:
    memory = memory_of(host_bytes_per_node=host, host_pinned_bytes=pinned, host_capacity_bytes=capacity)
    assert memory.host_most_bytes == host + pinned
    assert memory.fits_host is fits


@pytest.mark.parametrize(
    ("probability", "undecided"),
    [(None, False), (0.05, False), (0.06, True), (0.94, True), (0.96, False), (1.0, False)],
)
def test_an_interval_over_the_capacity_decides_nothing(probability: float | None, undecided: bool) -> None:
    assert memory_of(fit_probability=probability).undecided is undecided


def test_another_value_is_as_much_slower_as_this_one_is_faster() -> None:
    given: dict[str, Any] = {"switch": "x", "value": "a", "other": "b", "because": "", "memory_bytes": 0.0}
    assert AssumedSwitch(**given, speed_change=0.25, verdict="fits").other_speed_change == 1 / 1.25 - 1


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("As of another device.", "262 TFLOP/s of a100-sxm-40g (As of another device)"),
        ("", "262 TFLOP/s of a100-sxm-40g"),
    ],
)
def test_a_peak_that_no_document_states_is_said(note: str, said: str) -> None:
    machine = load_hardware("a100-sxm-40g")
    rate = ComputeRate(value="262 TFLOP/s", status="assumed", note=note, source=("assumption",))
    assumed = replace(machine, peak_flops=replace(machine.peak_flops, bf16=rate))
    assert provenance(scenario_of(small_dense(), assumed)).assumed_peak == said
    assert provenance(scenario_of(small_dense(), machine)).assumed_peak == ""


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (
            {"product_flops": None},
            "no product_flops of mine, as other hopper files have: it counts as the usual device",
        ),
        (
            {"processors": None, "earlier_kernels": None},
            "no processors or earlier_kernels of mine, as other hopper files have: it counts as the usual device",
        ),
        ({}, None),
        ({"family": "acme", "product_flops": None}, None),
    ],
)
def test_an_own_device_without_the_rates_of_its_family_is_said(lacking: dict[str, Any], said: str | None) -> None:
    machine = replace(catalogue.load_hardware("h100-sxm-80g"), **({"name": "mine"} | lacking))
    assert list(provenance(scenario_of(small_dense(), machine)).cautions) == ([said] if said else [])
    for name in ("h100-sxm-80g", "z2000", "a10g"):
        assert not provenance(scenario_of(small_dense(), catalogue.load_hardware(name))).cautions


@pytest.mark.parametrize(("share", "verdict"), [(1.0, FITS), (0.999, DOES_NOT_FIT), (None, FITS)])
def test_what_a_node_s_host_does_not_hold_does_not_fit(share: float | None, verdict: int) -> None:
    """Beside a device that it fits, and another layout that leaves nothing to the host."""
    scenario = scenario_of(small_dense(), devices=8)
    layouts = [layout_of(scenario, offload=offload) for offload in ("none", "optimizer")]
    needs = estimate_layout(scenario, layouts[1]).memory.host_bytes_per_node
    assert needs > 0
    size = None if share is None else MemorySize(value=f"{needs * share} B", source=("test",), status="assumed")
    machine = replace(scenario.hardware, host_memory=size)
    found = price(Pricing(replace(scenario, hardware=machine), block_of(layouts)))
    assert found.verdict.tolist() == [FITS, verdict]


def test_a_rank_s_memory_says_what_it_holds_between_steps_where_that_is_known() -> None:
    given: dict[str, Any] = {
        "stage": 0,
        "layers": 1,
        "device_bytes": 1.0,
        "reserved_bytes": 1.0,
        "allocated_bytes": 1.0,
    }
    assert StageMemory(**given, moment="loss", parts_bytes={}).state_bytes == 0.0
