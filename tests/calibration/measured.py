"""The shipped rows, and rows of the same runs with figures made up from known coefficients."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from simulator.evidence.calibration.cluster import NOISE, Sample, names_of, predict, sample_of
from simulator.evidence.measurements.rows import MeasuredRow, read_rows, shipped_tables
from simulator.question.coefficients import CoefficientKind, Coefficients, priors
from simulator.question.units import MIB

ANNOTATIONS: dict[str, Any] = {"devices_from_figures": None, "status": "consistent", "evidence": ""}
"""Columns beside the measurement, blank. Layers per chunk, which complete a blank cell of the table, are kept."""


@lru_cache(maxsize=1)
def shipped_rows() -> tuple[MeasuredRow, ...]:
    return tuple(row for table in shipped_tables() for row in read_rows(table))


def row(key: str) -> MeasuredRow:
    return next(found for found in shipped_rows() if found.key == key)


def blank(found: MeasuredRow) -> MeasuredRow:
    return replace(found, **ANNOTATIONS)


@lru_cache(maxsize=1)
def consistent() -> tuple[Sample, ...]:
    """The runs of the main platform that are what they say."""
    rows = (found for found in shipped_rows() if found.table in ("z2000-megatron", "h100-flagperf"))
    return tuple(sample_of(found) for found in rows if found.memory_counts and found.speed_counts)


def prior_part(kind: CoefficientKind, base: Coefficients) -> dict[str, float]:
    part = base.memory if kind == "memory" else base.time
    return {name: float(getattr(part, name)) for name in names_of(kind)}


def drawn(kind: CoefficientKind, random: np.random.Generator) -> np.ndarray:
    """Coefficients drawn from the priors, within their bounds."""
    known = priors(kind)
    values = []
    for name, at in prior_part(kind, Coefficients()).items():
        prior = known[name]
        value = at * float(np.exp(prior.spread * random.uniform(-1.0, 1.0)))
        values.append(float(np.clip(value, prior.low, prior.high)))
    return np.array(values)


def figure(kind: CoefficientKind, sample: Sample, values: np.ndarray) -> float:
    """What the model says of a run with these coefficients: bytes, or TFLOP/s per device."""
    return float(predict(kind, sample, Coefficients(), names_of(kind), values[:, None])[0])


def with_figures(sample: Sample, *, memory: float | None = None, tflops: float | None = None) -> Sample:
    """The same run with other figures."""
    changes: dict[str, Any] = {}
    if memory is not None:
        changes |= {"memory_mib": memory / MIB, "memory_gib": None}
    if tflops is not None:
        changes |= {"tflops_per_device": tflops, "step_time_ms": None, "step_time_s": None}
        changes |= {"tokens_per_second_per_device": None}
    return replace(sample, row=replace(sample.row, **changes))


def made_up(kind: CoefficientKind, values: np.ndarray, random: np.random.Generator | None = None) -> list[Sample]:
    """The consistent runs with figures from known coefficients, and noise where `random` is given."""
    found = []
    for sample in consistent():
        value = figure(kind, sample, values)
        if random is not None:
            value *= float(np.exp(random.normal(0.0, NOISE[kind])))
        found.append(with_figures(sample, memory=value) if kind == "memory" else with_figures(sample, tflops=value))
    return found


def both_made_up(memory: np.ndarray, time: np.ndarray) -> list[Sample]:
    """The consistent runs with both figures from known coefficients, without noise."""
    return [with_figures(s, memory=figure("memory", s, memory), tflops=figure("time", s, time)) for s in consistent()]


def contradictory() -> list[MeasuredRow]:
    """Rows whose memory no coefficient describes: the measured figures of one table, every second far too large."""
    rows = [found for found in shipped_rows() if found.table == "a100-paddlenlp"]
    factors = [0.5 if at % 2 else 2.0 for at in range(len(rows))]
    pairs = zip(rows, factors, strict=True)
    return [replace(found, memory_gib=factor * (found.memory_gib or 0.0)) for found, factor in pairs]
