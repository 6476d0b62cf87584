"""The plan: what may be launched, and what is chosen."""

import math
from dataclasses import replace
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest

from simulator.evidence.calibration.cluster import names_of
from simulator.evidence.calibration.own import known_memory
from simulator.lab.probe import run as planning
from simulator.lab.probe.rates import from_rates, rates_job, rates_of
from simulator.lab.probe.run import MOST_CANDIDATES, Candidate, Effort, ProbeDesign, candidates, plan, reach
from simulator.question.coefficients import Coefficients, priors, replaced
from simulator.question.specs.catalogue import load_hardware
from simulator.search.build import estimate_layout
from tests.probe import machine

pytestmark = pytest.mark.usefixtures("priced_once")

HARDWARE = load_hardware("local-cpu")
WIDE = 3.0
"""Widens the priors, as a probe does."""


@cache
def pool() -> tuple[Candidate, ...]:
    return candidates(HARDWARE, 2, "bf16", reach("cpu", None, Path("models")))


def some() -> tuple[Candidate, ...]:
    """Enough of them to choose from, priced in less time."""
    return pool()[::5]


@cache
def base(devices: int = 2) -> Coefficients:
    known = known_memory("cpu")
    assert known is not None
    rates = rates_of(machine.answered(rates_job(devices, "cpu")))
    return from_rates(rates, "bf16", replaced(Coefficients(), "memory", known.names, known.vector))


def designed(launches: int = 8, spread: float = WIDE) -> ProbeDesign:
    return plan(some(), base(), Effort(launches=launches, spread=spread))


@cache
def design() -> ProbeDesign:
    return designed()


def splits(found: tuple[Candidate, ...]) -> set[tuple[int, int, int]]:
    return {(c.layout.tensor_parallel, c.layout.pipeline_parallel, c.layout.data_parallel) for c in found}


def test_the_pool_holds_every_split_shape_and_way_to_recompute() -> None:
    assert len(pool()) <= MOST_CANDIDATES
    assert splits(pool()) == {(2, 1, 1), (1, 2, 1), (1, 1, 2)}
    for values in (
        {c.layout.recompute for c in pool()},
        {c.layout.micro_batch_size for c in pool()},
        {c.scenario.model.num_hidden_layers for c in pool()},
        {c.scenario.model.hidden_size for c in pool()},
    ):
        assert len(values) == 3, values
    assert {c.layout.zero_stage for c in pool()} == {0, 1, 2, 3}
    assert {c.scenario.seq_length for c in pool()} == {128, 256, 512, 1024}
    assert len({c.title for c in pool()}) == len(pool())


@pytest.mark.parametrize(("devices", "most_splits"), [(1, 1), (4, 6)])
def test_layouts_take_all_devices(devices: int, most_splits: int) -> None:
    found = candidates(HARDWARE, devices, "fp32", reach("cpu", None, Path("models")))
    assert {c.layout.devices for c in found} == {devices}
    assert len(splits(found)) == most_splits


def test_an_own_model_is_cut_to_a_few_layers() -> None:
    within = reach("cuda", "llama3.2-1b", Path("models"))
    assert [name for name, _ in within.models] == ["llama3.2-1b"]
    assert max(within.layers) <= 8
    assert {c.model for c in candidates(load_hardware("h20"), 2, "bf16", within)} == {"llama3.2-1b"}


def test_launches_fit_and_last_neither_too_long_nor_too_short() -> None:
    effort = Effort()
    for planned in design().launches:
        one = planned.candidate
        priced = estimate_layout(replace(one.scenario, coefficients=base()), one.layout)
        assert priced.verdict == "fits"
        assert priced.throughput.step_seconds == pytest.approx(planned.step_seconds)
        assert planned.step_seconds >= effort.shortest_step_seconds
        assert planned.launch_seconds == effort.start_seconds + effort.steps * planned.step_seconds
        assert planned.launch_seconds <= effort.longest_seconds
    assert design().seconds == sum(planned.launch_seconds for planned in design().launches)


def test_a_plan_is_the_same_every_time() -> None:
    first = design()
    machine.PRICED.clear()
    assert designed() == first
    assert [p.candidate for p in designed(3).launches] == [p.candidate for p in design().launches[:3]]


def test_what_no_launch_shows_stays_as_uncertain_as_it_was() -> None:
    for name in (
        "context_exposed",
        "ring_bytes_per_query_element",
        "expert_exposed",
        "gemm_efficiency_fp8",
        "tensor_exposed",
    ):
        assert design().left[name] == pytest.approx(1.0)
    for name in ("layer_overhead_seconds", "tensor_overhead_seconds", "shard_overhead_seconds"):
        assert design().left[name] < 0.9


def test_every_launch_leaves_less_to_know() -> None:
    for fewer, more in pairwise(one.left for one in (designed(1), designed(4), design())):
        assert all(more[name] <= fewer[name] + 1e-12 for name in fewer)
        assert sum(more.values()) < sum(fewer.values())


def test_only_a_split_layer_pins_down_what_splitting_costs() -> None:
    first = next(p for p in plan(some(), base(), Effort(spread=WIDE)).launches if "tensor_overhead_seconds" in p.pins)
    assert first.candidate.layout.tensor_parallel == 2
    without = tuple(c for c in some() if c.layout.tensor_parallel == 1)
    assert plan(without, base(), Effort(spread=WIDE)).left["tensor_overhead_seconds"] == pytest.approx(1.0)


def test_coefficients_that_are_0_are_not_asked_about() -> None:
    names = names_of("time", base(devices=1), every=True)
    assert not {"tensor_overhead_seconds", "tensor_ends_overhead_seconds"} & set(names)
    assert names_of("memory", base()) == ()
    assert set(design().left) == set(names_of("time", base(), every=True))


def test_on_an_accelerator_memory_counts_too() -> None:
    found = candidates(load_hardware("h20"), 2, "bf16", reach("cuda", None, Path("models")))
    rates = rates_of(machine.answered(rates_job(2, "cuda")))
    design = plan(found[::20], from_rates(rates, "bf16", Coefficients()), Effort(launches=4, longest_seconds=1e9))
    assert design.left["communicator_bytes"] < 1.0
    assert design.left["gemm_efficiency"] < 1.0


def information(design: ProbeDesign) -> float:
    """Logarithm of what the launches' slopes add to the priors' information, from scratch."""
    names = names_of("time", base(), every=True)
    prior = np.diag([(WIDE * priors("time")[name].spread) ** -2 for name in names])
    total = prior.copy()
    for planned in design.launches:
        priced = planning._priced(planned.candidate, base(), {"time": names}, Effort())
        assert priced is not None
        total += np.outer(priced.slopes["time"], priced.slopes["time"]) / planning.NOISE["time"] ** 2
    return float(np.linalg.slogdet(total)[1] - np.linalg.slogdet(prior)[1])


def test_the_chosen_launches_say_more_than_others() -> None:
    others = np.random.default_rng(5).permutation(len(some()))
    usable = [i for i in others if planning._priced(some()[i], base(), {"time": names_of("time", base())}, Effort())]
    for start in range(0, 40, 8):
        chance = replace(
            design(),
            launches=tuple(replace(design().launches[0], candidate=some()[i]) for i in usable[start : start + 8]),
        )
        assert information(design()) > information(chance) + 2.0


def test_the_covariance_is_updated_as_if_from_scratch() -> None:
    names = names_of("time", base(), every=True)
    spread = np.array([WIDE * priors("time")[name].spread for name in names])
    total = np.diag(spread**-2)
    for planned in design().launches:
        priced = planning._priced(planned.candidate, base(), {"time": names}, Effort())
        assert priced is not None
        total += np.outer(priced.slopes["time"], priced.slopes["time"]) / planning.NOISE["time"] ** 2
    left = np.sqrt(np.diag(np.linalg.inv(total))) / spread
    assert [design().left[name] for name in names] == pytest.approx(list(left), rel=1e-6)


def test_cheap_launches_come_first() -> None:
    slow = Effort(launches=8, start_seconds=0.1, spread=WIDE)
    # Few candidates are of use, and in the end all are taken; what differs is the order.
    quick, ready = (
        math.fsum(accumulate(planned.step_seconds for planned in asked.launches))
        for asked in (plan(some(), base(), slow), design())
    )
    assert quick < ready
