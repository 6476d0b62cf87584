"""Rates: what timings say, the spec they make, and where a fit starts."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.errors import UnsupportedError
from simulator.lab.probe.rates import (
    Rates,
    assumed_rates,
    from_rates,
    measured_spec,
    rates_job,
    rates_of,
    spec_text,
)
from simulator.lab.trainer.job import MeasuredRates, RatesJob, Timing, from_json, to_json
from simulator.question.coefficients import Coefficients, priors
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.documents import validated
from simulator.question.specs.hardware import HardwareSpec
from tests.probe import machine

MEASURED = machine.answered(rates_job(2, "cpu"))


@cache
def rates() -> Rates:
    """What the timings say: a fit, which not every worker that imports this need make."""
    return rates_of(MEASURED)


def test_job_and_answer_are_read_back_equal() -> None:
    job = rates_job(2, "cuda")
    assert from_json(RatesJob, to_json(job)) == job
    assert job.layout.devices == 2
    assert from_json(MeasuredRates, to_json(MEASURED)) == MEASURED


def test_an_operation_that_does_not_exist_is_refused() -> None:
    text = to_json(rates_job(1, "cpu")).replace('"gemm"', '"gem"')
    with pytest.raises(ValueError, match="Input should be 'gemm', 'attention'"):
        from_json(RatesJob, text)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_every_operation_is_timed(backend: str) -> None:
    timed = {(timing.operation, timing.precision) for timing in rates_job(2, backend).timings}
    for operation in ("gemm", "attention", "add", "swiglu"):
        assert {(operation, "bf16"), (operation, "fp32")} <= timed
    names = {operation for operation, _ in timed}
    assert {"optimizer", "all_gather", "reduce_scatter", "all_reduce", "send"} <= names
    assert ("host_copy" in names) == (backend == "cuda")


def test_peaks_and_shares_are_the_machines() -> None:
    for precision, peak in machine.PEAK.items():
        # The best repeat is 2 % quicker than the middle one.
        assert rates().peak_flops[precision] == pytest.approx(peak / 0.98)
        assert rates().gemm_efficiency[precision].value == pytest.approx(0.98 * machine.GEMM[precision])
        assert rates().memory_efficiency[precision].value == pytest.approx(0.98 * machine.SWIGLU[precision])
        assert rates().dispatch_seconds[precision] == pytest.approx(machine.DISPATCH)
    assert rates().memory_bandwidth == pytest.approx(machine.BANDWIDTH / 0.98)
    assert rates().optimizer_seconds_per_parameter.value == pytest.approx(machine.UPDATE_SECONDS)
    assert rates().host_bandwidth is None


def test_attentions_shape_is_found() -> None:
    found = rates().attention["bf16"]
    assert found.efficiency == pytest.approx(0.98 * machine.ATTENTION["efficiency"], rel=1e-3)
    assert found.score_width == pytest.approx(machine.ATTENTION["width"], rel=1e-3)
    assert found.tile_tokens == pytest.approx(machine.ATTENTION["tile"], rel=1e-3)
    assert found.backward_slowdown == pytest.approx(machine.ATTENTION["slowdown"], rel=1e-3)


@pytest.mark.parametrize("devices", [2, 4])
def test_the_links_latency_and_rate_are_found(devices: int) -> None:
    link = rates_of(machine.answered(rates_job(devices, "cpu"))).link
    assert link is not None
    assert link.latency_seconds == pytest.approx(machine.LATENCY, rel=1e-6)
    assert link.bandwidth_bytes_per_second == pytest.approx(machine.LINK, rel=1e-6)
    assert link.reduce_slowdown == pytest.approx(machine.REDUCE)


def test_a_single_rank_has_no_link() -> None:
    alone = rates_of(machine.answered(rates_job(1, "cpu")))
    assert alone.link is None
    base = from_rates(alone, "bf16", Coefficients()).time
    assert (base.tensor_overhead_seconds, base.reduce_slowdown) == (0.0, 1.0)


def test_what_was_not_timed_is_named() -> None:
    without = replace(MEASURED, timed=tuple(t for t in MEASURED.timed if t.timing.operation != "swiglu"))
    with pytest.raises(UnsupportedError, match="timed no swiglu"):
        rates_of(without)


def test_the_fit_starts_from_the_rates_and_inside_its_bounds() -> None:
    base = from_rates(rates(), "bf16", Coefficients())
    assert base.time.gemm_efficiency == pytest.approx(0.98 * machine.GEMM["bf16"])
    assert base.time.reduce_slowdown == pytest.approx(machine.REDUCE)
    assert base.time.layer_overhead_seconds > 0.0
    assert base.memory == Coefficients().memory
    far = replace(rates(), dispatch_seconds={"bf16": 100.0, "fp32": 1e-9})
    for precision in ("bf16", "fp32"):
        values = from_rates(far, precision, Coefficients()).time
        for name, prior in priors("time").items():
            assert prior.low <= getattr(values, name) <= prior.high, name


def test_the_spec_is_of_the_shipped_form_and_says_where_its_numbers_come_from(tmp_path: Path) -> None:
    template = load_hardware("local-cpu")
    document = measured_spec(template, MEASURED, rates(), "2026-01-31")
    path = tmp_path / "local-cpu.yaml"
    path.write_text(spec_text(document), encoding="utf-8")
    spec = load_hardware(str(path))
    assert spec == validated("here", HardwareSpec, document)
    assert (spec.name, spec.family, spec.devices_per_node) == ("local-cpu", "cpu", 2)
    assert spec.sources["probe"] == "Probe of Processor of formulas, torch 2.13.0, 2026-01-31"
    measured = (spec.peak_flops.bf16, spec.memory_bandwidth, spec.memory_capacity, spec.device_links[0].bandwidth)
    assert [(part.status, part.source) for part in measured if part is not None] == [("measured", ("probe",))] * 4
    assert spec.peak("bf16") == pytest.approx(rates().peak_flops["bf16"], rel=1e-3)
    assert spec.memory_capacity_bytes == 8 * 2**30
    assert spec.usable_memory_bytes == 7 * 2**30
    assert spec.links[0].measured
    assert spec.links[0].latency_seconds == pytest.approx(machine.LATENCY, rel=1e-3)
    # Links to other nodes were not seen.
    assert spec.network == template.network
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["network"]["latency"]["status"] == "assumed"


@pytest.mark.parametrize("name", ["h100-sxm-80g", "ascend-910b-64g", "bi-v100"])
def test_an_accelerators_spec_keeps_its_node(name: str) -> None:
    template = load_hardware(name)
    document = measured_spec(template, MEASURED, replace(rates(), host_bandwidth=2e10), "2026-01-31")
    spec = validated("here", HardwareSpec, document)
    assert spec.devices_per_node == template.devices_per_node
    assert spec.host_bandwidth_bytes_per_second == 2e10
    assert spec.family == template.family
    by_links = [level.status for level in (link.bandwidth for link in spec.device_links)]
    assert by_links.count("measured") >= 1
    if "fp8" in template.peak_flops_per_second:
        assert spec.peak("fp8") == template.peak("fp8")


def test_without_rates_a_plan_rests_on_the_spec() -> None:
    template = load_hardware("local-cpu")
    rates = assumed_rates(template)
    assert rates.peak_flops == {name: template.peak(name) for name in ("fp32", "bf16")}
    assert rates.link is not None
    assert rates.link.latency_seconds == template.links[0].latency_seconds


def test_a_broken_answer_is_no_answer() -> None:
    value: dict[str, Any] = json.loads(to_json(MEASURED))
    del value["timed"]
    with pytest.raises(ValueError, match="timed"):
        from_json(MeasuredRates, json.dumps(value))


def test_a_timings_sizes_are_counts() -> None:
    assert all(isinstance(size, int) for timing in rates_job(2, "cuda").timings for size in timing.sizes.values())
    assert Timing(operation="add", sizes={"elements": 4}).precision == "bf16"
