"""Measured rows of one question as a choice: how fast is the layout predicted best, and is the order kept?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.accuracy.order import alike, kendall_tau
from benchmarks.accuracy.rows import JudgedRow

MANY_LAYOUTS: Final = (4, 3, 2)
"""Layouts from which choices are summed up: the more there are, the harder it is to choose by luck."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Measured rows of one model, cluster and batch: what following the prediction gives."""

    name: str
    layouts: int
    regret: float
    """Speed of the layout predicted best, behind the best measured, as a share."""
    tau: float
    """Kendall's rank correlation of predicted with measured speed."""


def choices(rows: Iterable[JudgedRow]) -> Iterator[Choice]:
    """Groups of rows of one question with two layouts or more, predicted without their source."""
    groups: dict[str, list[JudgedRow]] = {}
    for row in rows:
        if row.kind == "time":
            groups.setdefault(row.question, []).append(row)
    for name, members in groups.items():
        runs = _runs(members)
        if len(runs) < min(MANY_LAYOUTS):
            continue
        best, fastest = max(predicted for _, predicted in runs), max(measured for measured, _ in runs)
        chosen = float(np.mean([measured for measured, predicted in runs if alike(predicted, best)]))
        yield Choice(name, len(runs), 1.0 - chosen / fastest, kendall_tau(runs) or 0.0)


def _runs(members: Sequence[JudgedRow]) -> list[tuple[float, float]]:
    """Measured and predicted speed of every layout; one that ran several times is one choice, of their mean."""
    runs: dict[str, list[tuple[float, float]]] = {}
    for row in members:
        runs.setdefault(row.layout, []).append((row.measured, row.measured * math.exp(row.source_out.error)))
    means = (np.mean(of_layout, axis=0) for of_layout in runs.values())
    return [(float(measured), float(predicted)) for measured, predicted in means]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Choices of at least so many layouts, summed up."""

    least_layouts: int
    groups: int
    regret: float
    """Mean."""
    worst_regret: float
    tau: float
    """Mean."""


def chosen(found: Sequence[Choice]) -> Iterator[Chosen]:
    """The choices of many layouts, then with those of fewer."""
    for least in MANY_LAYOUTS:
        kept = [choice for choice in found if choice.layouts >= least]
        if kept:
            regrets, taus = [choice.regret for choice in kept], [choice.tau for choice in kept]
            yield Chosen(least, len(kept), float(np.mean(regrets)), max(regrets), float(np.mean(taus)))
