"""Twelve kinds of fault of memory, each judged by coefficients fitted without any row of its kind.

Which rows are of a kind follows from what they say of framework, switches, layout and figure. Beside the rows that
coefficients are fitted to stand published figures that no fit has used (`reported.csv`, as `calibration/measured`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.accuracy.hierarchy import Hierarchy, at_priors, design, hierarchical
from benchmarks.accuracy.rows import fitted_sources
from simulator.evidence.calibration.cluster import Sample, prepared
from simulator.evidence.measurements.rows import read_rows
from simulator.question.vocabulary import NARROW
from simulator.show.report.presentation import Section

REPORTED: Final = Path(__file__).with_name("reported.csv")


def _loads(sample: Sample) -> bool:
    peak = int(np.argmax(sample.memory.device[:, 0]))
    return sample.memory.moments[int(sample.memory.moment[peak, 0])].name == "load"


def _offloads(sample: Sample) -> bool:
    profile = sample.scenario.framework
    moved = profile.offload_parameters or profile.swapped_attention or bool(profile.offloaded_modules)
    return sample.layout.offload != "none" or moved


KINDS: Final[Mapping[str, Callable[[Sample], bool]]] = {
    "step of DeepSpeed": lambda each: each.scenario.framework.step_parameters > 0 and each.layout.zero_stage > 0,
    "weights of 8 bits": lambda each: each.scenario.precision in NARROW,
    "loading": _loads,
    "optimizers and small devices": lambda each: (
        each.scenario.framework.optimizer != "adamw" or each.scenario.devices == 1
    ),
    "outside the tensors": lambda each: each.row.compares_with != "allocated",
    "eager layers": lambda each: not each.scenario.framework.fused_rms_norm and not each.scenario.framework.compiled,
    "compiled and chunked losses": lambda each: (
        each.scenario.framework.compiled or each.scenario.framework.loss_chunks > 0
    ),
    "offload": _offloads,
    "unfused attention": lambda each: not each.scenario.framework.flash_attention,
    "Megatron's own tests": lambda each: (
        each.scenario.framework.name == "megatron" and each.row.compares_with == "allocated"
    ),
    "PyTorch on Ascend": lambda each: (
        each.scenario.framework.name == "torch" and each.scenario.hardware.family.startswith("ascend")
    ),
    "pipelines of PyTorch": lambda each: each.scenario.framework.fully_shard and each.layout.pipeline_parallel > 1,
}
"""Whether a row is of a kind."""


class KindJudged(NamedTuple):
    """The rows of a kind, predicted without any of them."""

    kind: str
    rows: tuple[Sample, ...]
    fitted: int
    """Rows among them that coefficients are fitted to, and that this fit left out."""
    left_out: tuple[float, ...]
    """Predicted over measured less one, row by row."""


@cache
def reported() -> tuple[Sample, ...]:
    """Published figures that no fit has used."""
    return prepared(read_rows(REPORTED))


def kinds_judged(kinds: Collection[str] = KINDS.keys()) -> Iterator[KindJudged]:
    """Yield the kinds that have rows, judged; where no fitted row is of a kind, by the fit of all of them."""
    [whole] = (each.state for each in fitted_sources() if each.kind == "memory")
    fitted = whole.design.samples
    slopes, target = at_priors(whole.design)
    for kind, holds in KINDS.items():
        if kind not in kinds:
            continue
        mine = np.array([holds(each) for each in fitted])
        rows = (*(fitted[at] for at in np.flatnonzero(mine)), *(each for each in reported() if holds(each)))
        if not rows:
            continue
        rest = whole
        if mine.any():
            others = [fitted[at] for at in np.flatnonzero(~mine)]
            rest = hierarchical(design("memory", others), start=(slopes[~mine], target[~mine]))
        yield KindJudged(kind, rows, int(mine.sum()), tuple(_errors(rest, rows)))


def _errors(state: Hierarchy, rows: Sequence[Sample]) -> Iterator[float]:
    """Yield predicted over measured less one, by what is known of a row's family without its own source's rows."""
    judged = design("memory", rows)
    for index, family in enumerate(judged.families.tolist()):
        known = state.unseen(family, {str(judged.sources[index])})
        yield float(np.expm1(judged.errors(index, [state.point(known)])[0]))


def kinds_section(kinds: Collection[str] = KINDS.keys()) -> Section:
    """The table of the kinds that have rows."""
    lines = []
    for judged in kinds_judged(kinds):
        errors = 100.0 * np.array(judged.left_out)
        rows = f"{judged.fitted}+{len(judged.rows) - judged.fitted}"
        lines.append([judged.kind, rows, f"{np.abs(errors).mean():.1f}", f"{errors.mean():+.1f}"])
    headers = ("kind", "rows", "left out %", "bias %")
    return Section("Memory by kind of fault", (), headers, lines, text_columns=(0,))
