"""A fit to made-up runs gives back the coefficients they were made from, and finds what does not belong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.evidence.calibration.apply import NORMAL_90
from simulator.evidence.calibration.cluster import (
    NOISE,
    ClusterFit,
    Known,
    Sample,
    fit_cluster,
    names_of,
    prepared,
    sample_of,
)
from simulator.evidence.calibration.own import OwnFit, fit_own, unused
from simulator.question.coefficients import CoefficientKind, Coefficients, priors
from tests.calibration.measured import (
    both_made_up,
    consistent,
    drawn,
    figure,
    made_up,
    prior_part,
    row,
    with_figures,
)

SEEDS = 5
KINDS: tuple[CoefficientKind, ...] = ("memory", "time")


def known(kind: CoefficientKind) -> Known:
    """The priors of the coefficients that shipped rows decide."""
    every, names = Known.of_priors(kind, Coefficients()), names_of(kind)
    at = [every.names.index(name) for name in names]
    return Known(kind, names, every.values[at], every.covariance[np.ix_(at, at)], every.noise)


def fit(kind: CoefficientKind, samples: list[Sample]) -> ClusterFit:
    return fit_cluster(known(kind), samples, Coefficients())


def fit_both(samples: list[Sample]) -> OwnFit:
    return fit_own("hopper", samples, {kind: known(kind) for kind in KINDS}, Coefficients())


def deviations(found: ClusterFit, truth: np.ndarray) -> np.ndarray:
    """How far each coefficient is from the truth, in standard errors of its logarithm."""
    deviation = found.state.design.spread * np.sqrt(np.diag(found.known.covariance))
    return np.asarray((np.log(found.values) - np.log(truth)) / deviation)


def middle(kind: CoefficientKind) -> np.ndarray:
    return np.array(list(prior_part(kind, Coefficients()).values()))


@pytest.mark.parametrize("kind", KINDS)
def test_known_coefficients_come_back(kind: CoefficientKind) -> None:
    found = []
    for seed in range(SEEDS):
        random = np.random.default_rng(seed)
        truth = drawn(kind, random)
        result = fit(kind, made_up(kind, truth, random))
        found.append(deviations(result, truth))
        assert not result.left_out
        assert 0.3 * NOISE[kind] < result.noise < 2.0 * NOISE[kind]
    together = np.abs(np.array(found))
    # Of some hundred draws from a normal distribution, one beyond three standard errors is no surprise.
    assert np.mean(together <= 3.0) >= 0.99
    assert together.max() <= 4.0
    assert 0.80 <= np.mean(together <= NORMAL_90) <= 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_figures_without_noise_are_met(kind: CoefficientKind) -> None:
    truth = drawn(kind, np.random.default_rng(7))
    found = fit(kind, made_up(kind, truth))
    # What the rows decide is met; the priors hold the rest.
    assert max(abs(error) for error in found.residuals.values()) < 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_no_coefficient_is_out_of_bounds(kind: CoefficientKind) -> None:
    known = priors(kind)
    for factor in (0.3, 3.0):
        samples = [
            with_figures(s, **{"memory" if kind == "memory" else "tflops": factor * figure(kind, s, middle(kind))})
            for s in consistent()
        ]
        found = fit(kind, samples)
        for name, value in zip(found.names, found.values, strict=True):
            assert known[name].low * (1.0 - 1e-12) <= value <= known[name].high * (1.0 + 1e-12)


def test_few_coefficients_are_fitted() -> None:
    # One for each cause outside the tensors, of which rows of one allocator decide one.
    assert len(names_of("memory")) <= 15
    # Every number of a formula that no document states is one, and ranks that wait, kernels that are launched and
    # exchanges have such numbers of their own.
    assert len(names_of("time")) <= 37


@pytest.mark.parametrize(("kind", "factor"), [("memory", 1.3), ("time", 0.75)])
def test_an_outlier_is_left_out_and_bends_nothing(kind: CoefficientKind, factor: float) -> None:
    random = np.random.default_rng(3)
    truth = drawn(kind, random)
    samples = made_up(kind, truth, random)
    name = "memory" if kind == "memory" else "tflops"
    value = samples[5].row.memory_bytes if kind == "memory" else samples[5].measured_tflops
    assert value is not None
    bent = [*samples[:5], with_figures(samples[5], **{name: factor * value}), *samples[6:]]
    found, without = fit(kind, bent), fit(kind, [*samples[:5], *samples[6:]])
    assert found.left_out == (samples[5].key,)
    # Two coefficients that the rows hardly tell apart may share differently: what they predict is the same.
    kept = {key: error for key, error in found.residuals.items() if key in without.residuals}
    assert len(kept) >= len(samples) - 1
    assert kept == pytest.approx({key: without.residuals[key] for key in kept}, abs=1e-3)


@pytest.fixture(scope="module")
def honest() -> list[Sample]:
    return both_made_up(middle("memory"), middle("time"))


def test_nothing_is_left_out_where_nothing_is_wrong(honest: list[Sample]) -> None:
    found = fit_both(honest)
    assert list(unused([], [found])) == []
    assert found.fits["memory"].values == pytest.approx(middle("memory"), rel=0.02)


def test_a_relabelled_row_is_left_out_with_its_speed(honest: list[Sample]) -> None:
    ran = sample_of(replace(row("z2000-megatron:9"), tensor_parallel=2, sequence_parallel=True))
    said = next(s for s in honest if s.key == "z2000-megatron:11")
    figures = {kind: figure(kind, ran, middle(kind)) for kind in KINDS}
    wrong = with_figures(said, memory=figures["memory"], tflops=figures["time"])
    found = fit_both([wrong if s is said else s for s in honest])
    # Neither figure of a row that is another layout is a sample.
    assert said.key not in {*found.fits["memory"].keys, *found.fits["time"].keys}
    memory, time = unused([], [found])
    assert f"{said.key}: memory not fitted: it lies outside the scatter" in memory
    assert f"{said.key}: time not fitted: its memory is not that of the layout" in time


def test_a_run_on_fewer_nodes_is_read_with_them() -> None:
    stated = replace(row("z2000-megatron:10"), devices_from_figures=None)
    # Half the devices: twice the time at the same TFLOPS per device.
    halved = replace(stated, step_time_ms=2.0 * (stated.step_time_ms or 0.0))
    whole, half = prepared([stated])[0], prepared([halved])[0]
    assert (whole.scenario.devices, half.scenario.devices) == (32, 16)
    assert half.layout.data_parallel == whole.layout.data_parallel // 2
    assert half.row is halved


@pytest.mark.parametrize("factor", [1.3, 100.0, 1 / 3])
def test_figures_that_give_no_whole_nodes_change_nothing(factor: float) -> None:
    stated = replace(row("z2000-megatron:10"), devices_from_figures=None)
    odd = replace(stated, step_time_ms=factor * (stated.step_time_ms or 0.0))
    assert prepared([odd])[0].scenario.devices == 32


def test_a_starved_run_is_no_sample(honest: list[Sample]) -> None:
    starved = sample_of(row("z2000-megatron:47"))
    need = figure("memory", starved, middle("memory"))
    hungry = with_figures(starved, memory=starved.scenario.hardware.memory_capacity_bytes * 0.993, tflops=380.0)
    assert need > starved.scenario.hardware.usable_memory_bytes
    found = fit_both([*honest, hungry])
    assert found.starved == {starved.key}
    assert starved.key not in {*found.fits["memory"].keys, *found.fits["time"].keys}
    [why] = unused([], [found])
    assert "it ran starved" in why


def test_a_part_that_does_not_describe_its_rows_is_not_stored(honest: list[Sample]) -> None:
    random = np.random.default_rng(1)
    wild = [
        with_figures(s, memory=(s.row.memory_bytes or 0.0) * float(np.exp(random.normal(0.0, 0.5)))) for s in honest
    ]
    found = fit_both(wild)
    assert found.stored("memory") is None
    assert "memory of family hopper is not stored" in found.not_stored("memory")
    stored = found.calibration()
    assert stored.memory is None
    assert found.coefficients().memory == Coefficients().memory


def test_rows_that_disagree_with_what_is_known_move_it_the_more_they_are() -> None:
    slower = [with_figures(s, tflops=0.8 * figure("time", s, middle("time"))) for s in consistent()]
    few, many = (abs(np.mean([*fit("time", slower[:count]).residuals.values()])) for count in (2, len(slower)))
    assert many < few < 0.2
