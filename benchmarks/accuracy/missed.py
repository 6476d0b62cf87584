"""By how much targets are missed, and why; and what takes sources away from the priors that predict them better."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.accuracy.draws import WORSE_BY
from benchmarks.accuracy.hierarchy import Hierarchy, learned
from benchmarks.accuracy.holdouts import RELEARNED
from benchmarks.accuracy.rows import Judgement, fitted_sources
from benchmarks.accuracy.tables import percent
from benchmarks.accuracy.targets import own_lines, target_lines
from simulator.evidence.calibration.own import summary
from simulator.show.report.presentation import Section

REASONS: Final = Path(__file__).with_name("missed.csv")
"""Why a target is missed, by its id; written by people."""


def reasons() -> Mapping[str, str]:
    """Why, by the id of the target."""
    with REASONS.open(encoding="utf-8", newline="") as file:
        return {row["target"]: row["why"] for row in csv.DictReader(file)}


def missed(found: Judgement) -> Section:
    """Every target that is missed or has no row, with what is reached and why."""
    why = reasons()
    rows = [
        [line.text, line.reached, line.target, why.get(line.id, "")]
        for line in (*target_lines(found), *own_lines(found))
        if not line.met
    ]
    return Section("Targets missed", (), ("figure", "reached", "target", "why"), rows, text_columns=(0, 3))


def worse_sources(found: Judgement) -> Section:
    """Sources that are predicted worse left out than with the priors, with the coefficient that moves them most."""
    headers = ("source", "priors %", "left out %", "moved most by", "from", "to", "share %")
    states = {one.kind: one.state for one in fitted_sources()}
    rows = []
    for kind, source in sorted({(row.kind, row.source) for row in found.rows}):
        mine = summary(row for row in found.rows if (row.kind, row.source) == (kind, source))
        if mine.source_out > mine.uncalibrated + WORSE_BY:
            counted = [f"{source} ({kind})", percent(mine.uncalibrated), percent(mine.source_out)]
            rows.append([*counted, *_moved_most(next(s for k, s in states.items() if k == kind), source, mine.bias)])
    return Section("Sources that the priors predict better", (), headers, rows, text_columns=(0, 3))


def _moved_most(state: Hierarchy, source: str, bias: float) -> Iterator[str]:
    """The coefficient that moves a source's predictions most to the side that they are off on, once it is left out."""
    design = state.design
    mine = design.sources == source
    apart = learned(state.restricted(~mine), RELEARNED).unseen(str(design.families[mine][0]))
    moves = np.mean(state.slopes[mine], axis=0) * apart.mean
    most = int(np.argmax(moves * np.sign(bias)))
    yield design.names[most]
    yield from (f"{value[most]:.3g}" for value in np.exp([design.centre, state.point(apart)]))
    yield f"{100 * np.expm1(moves[most]):+.1f}"
