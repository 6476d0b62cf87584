"""What the predictions are held to on rows that the fit has not seen, line by line.

Unless a line says otherwise, figures are mean absolute errors over rows, each predicted with its source left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.accuracy.choices import choices, chosen
from benchmarks.accuracy.rows import JudgedRow
from benchmarks.accuracy.tables import Errors, Under, errors, percent, percent2, uncalibrated
from simulator.show.report.sections import Section

OWN: Final = "z2000-megatron"
"""The user's own experiments, which have a calibration of their own."""
SIMUMAX: Final = "b200-megatron"
"""The table whose authors publish the errors of their own simulator."""
WORSE_BY: Final = 0.005
"""Share by which a source may come out worse than with the priors."""
MANY_DEVICES: Final = 512


@dataclass(frozen=True, slots=True)
class Line:
    """One target: what is reached, in per cent or counts, and whether that is enough."""

    id: str
    text: str
    reached: str
    target: str
    met: bool | None
    """None where no row tells."""
    value: float | None
    """What is compared: a share, or a count."""
    detail: str = ""


def target_lines(rows: Sequence[JudgedRow]) -> tuple[Line, ...]:
    """All lines, in the order in which the targets were set."""
    time = [row for row in rows if row.kind == "time"]
    memory = [row for row in rows if row.kind == "memory"]
    return (*_speed(time), *_memory(memory), *_verdicts(rows), *_against_priors(rows), *_order(time), *_own(rows))


@dataclass(frozen=True, slots=True)
class _Aim:
    """The largest mean error that a line allows."""

    id: str
    text: str
    most: float

    @property
    def target(self) -> str:
        """In words."""
        return f"at most {100 * self.most:g} %"


def _speed(time: Sequence[JudgedRow]) -> Iterator[Line]:
    many = [row for row in time if row.devices >= MANY_DEVICES]
    yield _line(_Aim("many_devices", f"speed, {MANY_DEVICES} devices and more", 0.065), many)
    dense, experts = ([row for row in time if row.moe == moe] for moe in (False, True))
    yield _line(_Aim("dense", "speed, dense, mean over sources", 0.06), dense, over_sources=True)
    documented = [row for row in experts if row.documented]
    yield _line(_Aim("moe", "speed, mixtures of experts whose switches are documented", 0.10), documented)
    torch = [row for row in time if row.framework == "torch" and row.tensor_parallel > 1 and not row.lora]
    yield _line(_Aim("torch_tp_fitted", "speed, PyTorch's tensor parallelism, fitted", 0.08), torch, "fitted")
    yield _line(_Aim("torch_tp", "the same, source left out (and inside its range)", 0.20), torch)
    others = [row for row in time if not row.organisation.startswith("NVIDIA") and row.source != OWN]
    yield _line(_Aim("others", "speed, runs that are not NVIDIA's", 0.10), others)
    b200 = [row for row in dense if row.platform == "Blackwell"]
    yield _line(_Aim("b200_dense", "speed, dense on B200", 0.06), b200)
    yield _line(_Aim("simumax_time", f"speed, {SIMUMAX}", 0.05), [row for row in time if row.source == SIMUMAX])
    amd = [row for row in time if row.platform == "MI300" and row.precision == "fp8"]
    text = "speed, fp8 on MI300X and MI325X, organisation left out"
    yield _line(_Aim("amd_fp8", text, 0.12), amd, "organisation_out")


def _memory(memory: Sequence[JudgedRow]) -> Iterator[Line]:
    plain = [row for row in memory if row.source == SIMUMAX]
    yield _line(_Aim("simumax_memory", f"memory, {SIMUMAX}", 0.005), plain)
    for sort in ("device", "reserved"):
        of_sort = [row for row in memory if row.platform == "H-class" and row.sort == sort]
        yield _line(_Aim(f"memory_{sort}", f"memory of H-class devices, {sort}", 0.04), of_sort)
    zero = [row for row in memory if row.zero_stage == 3 and "deepspeed" in row.source]
    yield _line(_Aim("deepspeed", "memory, DeepSpeed's ZeRO 3", 0.06), zero)


def _verdicts(rows: Sequence[JudgedRow]) -> Iterator[Line]:
    ran = {row.key: row for row in rows if row.precision == "fp8" and row.tuned}
    wrong = [key for key, row in ran.items() if not row.said_to_fit]
    text = f"fp8 runs that vendors publish as tuned, said not to fit, of {len(ran)}"
    yield Line("fp8_fits", text, str(len(wrong)), "0", not wrong, float(len(wrong)), ", ".join(wrong))


def _against_priors(rows: Sequence[JudgedRow]) -> Iterator[Line]:
    worse = []
    for kind, source in sorted({(row.kind, row.source) for row in rows}):
        mine = [row for row in rows if (row.kind, row.source) == (kind, source)]
        apart, prior = errors(mine), uncalibrated(mine)
        if apart is not None and apart.mean > prior + WORSE_BY:
            worse.append(f"{source} {kind} {percent(apart.mean)} for {percent(prior)}")
    text = f"sources predicted worse than with the priors by {100 * WORSE_BY:g} points"
    yield Line("worse_than_priors", text, str(len(worse)), "0", not worse, float(len(worse)), "; ".join(worse))


def _order(time: Sequence[JudgedRow]) -> Iterator[Line]:
    many = next(iter(chosen(list(choices(time)))))
    text = f"choices of {many.least_layouts} layouts and more ({many.groups} groups)"
    yield _at_most(_Aim("regret", f"{text}: regret, mean", 0.006), many.regret)
    yield _at_most(_Aim("regret_worst", f"{text}: regret, worst", 0.04), many.worst_regret)
    yield Line("tau", f"{text}: order kept (tau)", f"{many.tau:.2f}", "at least 0.9", many.tau >= 0.9, many.tau)


def _own(rows: Sequence[JudgedRow]) -> Iterator[Line]:
    for kind, limit in (("memory", 0.008), ("time", 0.010)):
        mine = {row.key: abs(float(np.expm1(row.shipped))) for row in rows if (row.kind, row.source) == (kind, OWN)}
        if mine:
            name = {"memory": "memory", "time": "speed"}[kind]
            yield _at_most(_Aim(f"own_{kind}", f"{OWN}, {name}", limit), float(np.mean([*mine.values()])))
        if mine and kind == "memory":
            worst = max(mine, key=lambda key: mine[key])
            yield _at_most(_Aim("own_memory_worst", f"{OWN}, memory, worst row ({worst})", 0.04), mine[worst])


def _line(aim: _Aim, rows: Sequence[JudgedRow], under: Under = "source_out", *, over_sources: bool = False) -> Line:
    found = errors(rows, under)
    if found is None:
        return Line(aim.id, aim.text, "no row", aim.target, None, None)
    value = found.over_sources if over_sources else found.mean
    return Line(aim.id, aim.text, f"{percent(value)} %", aim.target, value <= aim.most, value, _detail(found))


def _detail(found: Errors) -> str:
    return (
        f"{found.rows} rows of {found.sources} sources, mean over rows {percent(found.mean)}, over sources "
        f"{percent(found.over_sources)}, bias {100 * found.bias:+.1f}, inside {100 * found.inside:.0f} % "
        f"(± {100 * found.half_width:.0f} %)"
    )


def _at_most(aim: _Aim, value: float) -> Line:
    return Line(aim.id, aim.text, f"{percent2(value)} %", aim.target, value <= aim.most, value)


def target_table(rows: Sequence[JudgedRow]) -> Section:
    """The lines as a table."""
    lines = [
        [line.text, line.reached, line.target, {True: "met", False: "missed", None: "-"}[line.met], line.detail]
        for line in target_lines(rows)
    ]
    headers = ("figure", "reached", "target", "", "of")
    return Section("Targets", (), headers, lines, text_columns=(0, 3, 4), wrapped=("figure", "of"))
