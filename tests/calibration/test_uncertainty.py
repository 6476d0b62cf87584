"""Intervals, the probability that a layout fits, and what is said outside the calibrated range."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.api import scenario_of
from simulator.cost.derived import pricings_of
from simulator.cost.pricing.estimate import Interval
from simulator.evidence.calibration import apply
from simulator.evidence.calibration.apply import (
    NORMAL_90,
    UNFORESEEN,
    applied,
    layout_variances,
    memory_interval,
    time_interval,
    units_of,
)
from simulator.evidence.calibration.store import PLACE, RangeWords, places_beside, told_apart
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.vocabulary import RecomputeMode
from simulator.search.build import estimate_layout
from simulator.search.space import Space
from tests.cli.running import run

pytestmark = pytest.mark.usefixtures("bare")

MEASURED = Layout(pipeline_parallel=2, data_parallel=16)
"""Row 10 of the main table."""


def ask(layout: Layout = MEASURED, **question: Any) -> simulator.Estimate:
    return simulator.estimate(**{"model": "llama3.1-8b", "devices": 32, "layout": layout, **question})


def test_a_measured_layout_says_so_and_holds_its_measurement() -> None:
    found = ask()
    assert found.provenance.status == "measured"
    assert found.memory.interval_bytes is not None
    assert found.throughput.interval_seconds is not None
    assert found.memory.interval_bytes.low < 65012 * 2**20 < found.memory.interval_bytes.high
    assert found.throughput.interval_seconds.low < 30.2725 < found.throughput.interval_seconds.high


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({}, ("measured", "measured", "measured")),
        (
            {"global_batch_size": 1024, "layout": replace(MEASURED, micro_batch_size=1, virtual_stages=2)},
            ("measured", "measured", "between"),
        ),
        ({"seq_length": 16384}, ("measured", "measured", "never")),
        ({"model": "llama3.2-1b"}, ("measured", "measured", "beyond")),
        ({"model": "mixtral-8x7b-v0.1"}, ("measured", "measured", "never")),
        ({"precision": "fp16"}, ("measured", "measured", "beyond")),
        ({"layout": replace(MEASURED, micro_batch_size=2)}, ("measured", "measured", "beyond")),
        (
            {"layout": Layout(pipeline_parallel=1, data_parallel=32, zero_stage=3)},
            ("measured", "measured", "never"),
        ),
        ({"options": {"flash_attention": "false"}}, ("measured", "beyond", "between")),
        ({"framework": "paddle"}, ("measured", "never", "between")),
        ({"hardware": "h20"}, ("beyond", "between", "between")),
        ({"hardware": "a100-sxm-80g"}, ("measured", "measured", "between")),
        ({"hardware": "bi150-64g"}, ("never", "never", "beyond")),
        ({"hardware": "ascend-910b-64g-8"}, ("measured", "between", "between")),
        ({"hardware": "mi355x"}, ("never", "never", "beyond")),
    ],
)
def test_three_words_say_where_a_question_lies(question: dict[str, Any], words: tuple[str, str, str]) -> None:
    found = ask(**question).provenance
    assert (found.device, found.stack, found.layout) == words
    assert found.status == max(words, key=("measured", "between", "beyond", "never").index)
    assert bool(found.notes) == (found.status in ("beyond", "never"))


def test_a_place_is_all_that_words_read_of_a_layout() -> None:
    # Layouts with an equal place share their words.
    read: set[str] = set()

    class Watched:
        def __getattr__(self, name: str) -> Any:
            read.add(name)
            return getattr(MEASURED, name)

    scenario = scenario_of(model="llama3.1-8b", devices=64)
    calibration = applied(scenario.hardware.family).memory
    assert calibration is not None
    assert calibration.memory is not None
    watched: Any = Watched()
    places_beside(calibration.range, calibration.memory.coverage, calibration.family, scenario)(watched)
    units_of("memory", scenario, calibration.memory)(watched, 0.0, 1.0)
    assert {"tensor_parallel", "recompute"} <= read <= set(PLACE)


def test_layouts_that_are_not_told_apart_lie_alike_beside_runs_of_their_question() -> None:
    scenario = scenario_of(model="llama3.1-70b", hardware="z2000", devices=64, precision="fp8")
    known = applied("hopper", cluster="z2000").memory
    assert known is not None
    assert known.memory is not None
    words_of = places_beside(known.range, known.memory.coverage, known.family, scenario)
    modes: tuple[RecomputeMode, ...] = ("none", "selective", "full")
    sizes = itertools.product((1, 2, 4, 8), (4, 8), (1, 2, 4), (1, 5), modes)
    layouts = [
        Layout(
            tensor_parallel=tp,
            pipeline_parallel=pp,
            context_parallel=cp,
            data_parallel=64 // (tp * pp * cp),
            virtual_stages=vp,
            recompute=recompute,
            sequence_parallel=tp > 1,
        )
        for tp, pp, cp, vp, recompute in sizes
        if tp * pp * cp <= 64
    ]
    told = told_apart(known.range, scenario)
    places: dict[tuple[float, ...], set[RangeWords]] = {}
    for positions, pricing in pricings_of(scenario, layouts):
        columns = np.array([np.broadcast_to(getattr(pricing.block, name), len(positions)) for name in PLACE])
        for place, at in zip(told(columns).T.tolist(), positions, strict=True):
            places.setdefault(tuple(place), set()).add(words_of(layouts[at]))
    assert all(len(words) == 1 for words in places.values())
    assert sum(words == {RangeWords("measured", "measured", "measured")} for words in places.values()) == 4
    assert 2 * len(places) < len(layouts)


def test_a_note_names_what_is_outside_the_range() -> None:
    [note] = ask(seq_length=16384).provenance.notes
    assert "seq_length 16384 (calibrated 8192 to 8192)" in note


def spreads(found: simulator.Estimate) -> tuple[float, float]:
    """Width of both intervals, as the ratio of their ends."""
    memory, time = found.memory.interval_bytes, found.throughput.interval_seconds
    assert memory is not None
    assert time is not None
    return memory.high / memory.low, time.high / time.low


def test_what_is_less_certain_has_a_wider_interval() -> None:
    measured, analytic = ask(), ask(seq_length=16384, global_batch_size=512)
    assumed = ask(hardware="a100-sxm-80g")
    assert spreads(measured)[0] < spreads(analytic)[0]
    assert spreads(measured)[1] < spreads(analytic)[1] < spreads(assumed)[1]


@pytest.mark.parametrize("question", [{"zero_stage": 3}, {"zero_stage": 3, "recompute": "full"}, {"lora_rank": 8}])
def test_more_capacity_never_makes_a_fit_less_likely(question: dict[str, Any]) -> None:
    """Blocks that the allocator keeps fill what a device leaves; they are no need."""
    asked: dict[str, Any] = {"model": "llama3.1-8b", "devices": 4, "framework": "torch", "seq_length": 2048}
    asked |= question | {"micro_batch_size": 1, "global_batch_size": 8, "stack": "torchtitan"}
    chances = [
        simulator.estimate(**asked, hardware=name).memory.fit_probability or 0.0
        for name in ("a10g", "a40", "rtx-a6000", "a100-sxm-80g")
    ]
    assert chances == sorted(chances)


def test_only_runs_of_the_cluster_make_a_fit_sure() -> None:
    """However much room is left: a model may be loaded, or attention computed, as nobody measured."""
    asked: dict[str, Any] = {"model": "llama3.2-1b", "devices": 8, "seq_length": 1024, "global_batch_size": 8}
    alien, alike, own = (
        simulator.estimate(**asked, framework=name, stack=stack, hardware=hardware).memory.fit_probability
        for name, stack, hardware in (
            ("torch", "default", "ascend-910b-64g"),
            ("megatron", "default", "h100-sxm-80g"),
            ("megatron", "z2000", "z2000"),
        )
    )
    assert alien == alike == pytest.approx(1.0 - UNFORESEEN)
    assert own is not None
    assert own > 0.999


@pytest.mark.parametrize("command", ["rank", "check"])
def test_the_help_says_how_sure_a_fit_may_be(command: str) -> None:
    assert f"above {1.0 - UNFORESEEN:g} takes runs of the cluster" in " ".join(run(command, "--help").stdout.split())


def test_the_interval_is_that_of_the_deviation() -> None:
    scenario = scenario_of(model="llama3.1-8b", devices=32)
    layout = replace(MEASURED, stage_layers=default_cut(32, 2))
    plain = estimate_layout(scenario, layout)
    used = applied("hopper", None, "z2000")
    part = used.part("memory")
    assert part is not None
    (variance,) = layout_variances("memory", scenario, [layout], part)
    deviation = units_of("memory", scenario, part)(layout, variance, 1.0).deviation(part.sizes)
    assert deviation >= part.noise
    once = memory_interval(plain, lambda: deviation)
    assert once.interval_bytes is not None
    assert once.interval_bytes.high / plain.memory.device_bytes == pytest.approx(np.exp(NORMAL_90 * deviation))
    seconds = time_interval(plain, lambda: deviation).interval_seconds
    assert seconds is not None
    assert seconds.low * seconds.high == pytest.approx(plain.throughput.step_seconds**2)


def half_width(interval: Interval | None) -> float:
    assert interval is not None
    return float(np.log(interval.high / interval.low)) / 2.0


def test_a_range_is_the_sum_of_its_contributions() -> None:
    """Of every figure, listed with the largest first; a family that was never measured is among its own."""
    for hardware in ("z2000", "h100-sxm-80g", "mi355x"):
        found = ask(hardware=hardware)
        for figure, interval in (("time", found.throughput.interval_seconds), ("memory", found.memory.interval_bytes)):
            widths = [one.half_width for one in found.provenance.contributions if one.figure == figure]
            assert widths == sorted(widths, reverse=True)
            assert half_width(interval) == pytest.approx(np.sqrt(np.sum(np.square(widths))), rel=1e-3)
    because = {one.name: one.because for one in found.provenance.contributions if one.figure == "time"}
    assert because["device"] == "no run of family cdna4 was measured"
    best = found.provenance.next_measurement
    assert best is not None
    assert best.run == "any layout with megatron on one node of mi355x"
    assert best.half_width < 0.5 * half_width(found.throughput.interval_seconds)


def test_ranges_widen_with_doublings_beyond_what_was_measured() -> None:
    widths = []
    for devices in (64, 8192, 65536):
        layout = replace(MEASURED, data_parallel=devices // 2)
        found = ask(layout, hardware="h100-sxm-80g", devices=devices, global_batch_size=4 * devices)
        widths.append(half_width(found.throughput.interval_seconds))
        names = {one.name for one in found.provenance.contributions}
        assert ("nodes" in names) == (devices > 4096)
    assert widths == sorted(widths)


def test_the_probability_rises_with_capacity() -> None:
    scenario = scenario_of(model="llama3.1-8b", devices=32)
    layout = replace(MEASURED, stage_layers=default_cut(32, 2))
    plain = estimate_layout(scenario, layout)
    used = applied("hopper", None, "z2000")
    found = []
    for share in (0.9, 0.96, 0.98, 1.0, 1.02, 1.04, 1.1):
        sized = replace(plain, memory=replace(plain.memory, capacity_bytes=share * plain.memory.device_bytes))
        probability = used.judged(scenario, [sized])[0].memory.fit_probability
        assert probability is not None
        found.append(probability)
    assert found == sorted(found)
    assert len(set(found)) == len(found)
    assert found[0] < 0.01
    assert found[3] == pytest.approx(0.5)
    assert found[-1] > 0.99


def test_a_family_without_rows_takes_what_all_families_say() -> None:
    found = ask(hardware="mi355x").provenance
    assert found.calibration.startswith("other (")
    assert found.status == "never"


def test_a_cluster_comes_before_its_family() -> None:
    assert "z2000-megatron" in ask().provenance.calibration
    assert ask(hardware="h100-sxm-80g").provenance.calibration.startswith("hopper (")


NEAR = Layout(tensor_parallel=4, pipeline_parallel=8, data_parallel=2, virtual_stages=5, sequence_parallel=True)
"""Row 42: measured at 80984 of 81559 MiB and at two thirds of its neighbours' speed."""


def test_a_run_near_capacity_is_said_to_starve() -> None:
    found = simulator.estimate(model="llama3.1-70b", nodes=8, precision="fp8", layout=NEAR)
    assert found.verdict == "starved"
    assert found.memory.fit_probability is not None
    assert found.memory.fit_probability < 0.2


def test_a_ranking_does_not_recommend_it() -> None:
    space = Space(
        tensor_parallel=(4,), pipeline_parallel=(8,), context_parallel=(1,), virtual_stages=(5,), recompute=("none",)
    )
    alone = simulator.rank(model="llama3.1-70b", nodes=8, precision="fp8", space=space)
    assert [found.layout.micro_batch_size for found in alone.starved] == [1]
    assert alone.estimates == ()
    everything = simulator.rank(model="llama3.1-70b", nodes=8, precision="fp8", top=10_000, variants=True)
    kept = [
        (e.layout.tensor_parallel, e.layout.pipeline_parallel, e.layout.virtual_stages)
        for e in everything.estimates
        if e.layout.context_parallel == 1 and e.layout.recompute == "none"
    ]
    assert (4, 8, 5) not in kept
    assert all(found.verdict == "fits" for found in everything.estimates)


def test_what_ranges_were_priced_with_serves_the_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(model="llama3.1-8b", devices=32, global_batch_size=512)
    layouts = [replace(MEASURED, micro_batch_size=size, stage_layers=(16, 16)) for size in (1, 2)]
    known: Any = scenario.calibration
    part = known.part("time")
    apart = known.difference_half_widths([(scenario, layout) for layout in layouts])
    assert apart[1] > apart[0] == 0.0
    variances = layout_variances("time", scenario, layouts, part)
    monkeypatch.setattr(apply, "step_seconds", None)
    assert known.difference_half_widths([(scenario, layout) for layout in layouts]) == apart
    assert layout_variances("time", scenario, layouts, part) == variances
    with pytest.raises(TypeError):
        layout_variances("time", scenario, [replace(layouts[0], micro_batch_size=4)], part)
