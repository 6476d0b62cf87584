"""What the predictions are held to on rows that the fit has not seen, line by line.

Unless a line says otherwise, figures are mean absolute errors over rows, each predicted with its source left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from benchmarks.accuracy.choices import choices, chosen
from benchmarks.accuracy.coverage import APART, KNOWN_STACKS, coverages, pairs_judged
from benchmarks.accuracy.draws import WORSE_BY, draws_judged
from benchmarks.accuracy.judge import Residual
from benchmarks.accuracy.own import CLUSTER, OWN, OwnRow, in_order, mean, own_verdicts, worst
from benchmarks.accuracy.rows import KINDS, JudgedRow, Judgement
from benchmarks.accuracy.tables import percent
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.own import summary
from simulator.evidence.measurements.rows import read_rows, shipped_tables
from simulator.question.coefficients import CoefficientKind
from simulator.show.report.calibration import TITLES
from simulator.show.report.presentation import Section

SIMUMAX: Final = "b200-megatron"
"""The table whose authors publish the errors of their own simulator."""
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


def target_lines(found: Judgement) -> tuple[Line, ...]:
    """All lines, in the order in which the targets were set."""
    time, memory = found.of_kind("time"), found.of_kind("memory")
    return (
        *_speed(time),
        *_memory(memory),
        *_verdicts(found),
        *_against_priors(found.rows),
        *_order(time),
        *_ranges(found),
        *_pairs(found),
        *_draws(found),
    )


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
    documented = [row for row in experts if row.options_source]
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


def _verdicts(found: Judgement) -> Iterator[Line]:
    ran = {row.key: row for row in found.rows if row.precision == "fp8" and row.tuned}
    wrong = [key for key, row in ran.items() if not row.said_to_fit]
    text = f"fp8 runs that vendors publish as tuned, said not to fit, of {len(ran)}"
    yield Line("fp8_fits", text, str(len(wrong)), "0", not wrong, float(len(wrong)), ", ".join(wrong))


def _against_priors(rows: Sequence[JudgedRow]) -> Iterator[Line]:
    worse = []
    for kind, source in sorted({(row.kind, row.source) for row in rows}):
        mine = [row for row in rows if (row.kind, row.source) == (kind, source)]
        told = summary(mine)
        if told.source_out > told.uncalibrated + WORSE_BY:
            worse.append(f"{source} {kind} {percent(told.source_out)} for {percent(told.uncalibrated)}")
    text = f"sources predicted worse than with the priors by {100 * WORSE_BY:g} points"
    yield Line("worse_than_priors", text, str(len(worse)), "0", not worse, float(len(worse)), "; ".join(worse))


def _order(time: Sequence[JudgedRow]) -> Iterator[Line]:
    many = next(iter(chosen(list(choices(time)))))
    text = f"choices of {many.least_layouts} layouts and more ({many.groups} groups)"
    yield _at_most(_Aim("regret", f"{text}: regret, mean", 0.006), many.regret)
    yield _at_most(_Aim("regret_worst", f"{text}: regret, worst", 0.04), many.worst_regret)
    yield Line("tau", f"{text}: order kept (tau)", f"{many.tau:.2f}", "at least 0.9", many.tau >= 0.9, many.tau)


def _ranges(found: Judgement) -> Iterator[Line]:
    """Whether 90 % ranges hold as many rows as they say, and how wide they are where all is known."""
    judged = [(kind, one) for kind in KINDS for one in coverages(kind, found.of_kind(kind))]
    asked = [(kind, one) for kind, one in judged if one.left_out in ("source", "device")]
    apart = [f"{TITLES[kind]} {one.name} {one.inside:.0%}" for kind, one in asked if not one.held]
    text = f"classes ({len(asked)}) whose ranges do not hold what they say"
    yield Line("ranges_held", text, str(len(apart)), "0", not apart, float(len(apart)), ", ".join(apart))
    known = next(one for kind, one in judged if kind == "time" and one.name.startswith(KNOWN_STACKS))
    text = f"speed, half-width, {known.name}"
    yield _at_most(_Aim("known_width", text, 0.15), known.half_width)


def _pairs(found: Judgement) -> Iterator[Line]:
    """Whether two layouts that are said to differ do, and how many are said to."""
    order = pairs_judged(found.pairs)
    if order is not None:
        text = f"pairs said to differ beyond their range ({order.said_to_differ}), in the measured order"
        yield _at_least("pairs_right", text, order.right, 0.95)
        text = f"pairs measured more than {100 * APART:.0f} % apart ({order.apart}), said to differ"
        yield _at_least("pairs_told", text, order.apart_said_to_differ, 0.5)


def _draws(found: Judgement) -> Iterator[Line]:
    """What three own rows do to the other rows of their source."""
    judged = {kind: draws_judged(found.of_kind(kind)) for kind in KINDS}
    told = [one for one in judged.values() if one is not None]
    if (time := judged["time"]) is not None:
        yield _at_most(_Aim("few", "speed, three own rows", 0.045), time.few)
        draws, worse = (sum(getattr(one, name) for one in told) for name in ("draws", "worse"))
        text = f"draws of three own rows (of {draws}) that make their source's other rows worse by 0.5 points"
        share = worse / draws
        most = 2 / 74
        yield Line("few_worse", text, str(worse), f"at most {most * draws:.0f} (2 of 74)", share <= most, share)


def _at_least(name: str, text: str, value: float, least: float) -> Line:
    return Line(name, text, f"{100 * value:.1f} %", f"at least {100 * least:g} %", value >= least, value)


def _line(aim: _Aim, rows: Sequence[JudgedRow], under: str = "source_out", *, over_sources: bool = False) -> Line:
    if not rows:
        return Line(aim.id, aim.text, "no row", aim.target, None, None)
    found: list[Residual] = [getattr(row, under) for row in rows]
    by_source: dict[str, list[float]] = {}
    for row, one in zip(rows, found, strict=True):
        by_source.setdefault(row.source, []).append(abs(one.relative))
    over_rows = float(np.mean([abs(one.relative) for one in found]))
    of_sources = float(np.mean([np.mean(values) for values in by_source.values()]))
    value = of_sources if over_sources else over_rows
    detail = (
        f"{len(rows)} rows of {len(by_source)} sources, mean over rows {percent(over_rows)}, over sources "
        f"{percent(of_sources)}, bias {100 * np.mean([one.relative for one in found]):+.1f}, inside "
        f"{100 * np.mean([one.inside for one in found]):.0f} % "
        f"(± {100 * np.mean([one.half_width for one in found]):.0f} %)"
    )
    return Line(aim.id, aim.text, f"{percent(value)} %", aim.target, value <= aim.most, value, detail)


def _at_most(aim: _Aim, value: float) -> Line:
    return Line(aim.id, aim.text, f"{percent(value)} %", aim.target, value <= aim.most, value)


def own_lines(found: Judgement) -> tuple[Line, ...]:
    """What the user's own table is held to, fitted as own rows are."""
    return (*_own_errors(found.own), *_own_order(found.own), *_own_verdicts())


def _own_errors(own: Sequence[OwnRow]) -> Iterator[Line]:
    limits: Mapping[CoefficientKind, tuple[float, float, float]] = {
        "memory": (0.008, 0.04, 0.015),
        "time": (0.010, 0.05, 0.022),
    }
    for kind, (most, most_worst, most_left_out) in limits.items():
        name = {"memory": "memory", "time": "speed"}[kind]
        yield _at_most(_Aim(f"own_{kind}", f"{OWN}, {name}", most), mean(own, kind, "fitted"))
        far = worst(own, kind, "fitted")
        yield _at_most(_Aim(f"own_{kind}_worst", f"{OWN}, {name}, worst row ({far.key})", most_worst), abs(far.fitted))
        apart = mean(own, kind, "left_out", sole_support=False)
        yield _at_most(_Aim(f"own_{kind}_left_out", f"{OWN}, {name}, row left out", most_left_out), apart)
        model = mean(own, kind, "left_model_out")
        yield _at_most(_Aim(f"own_{kind}_model_out", f"{OWN}, {name}, model left out", 0.04), model)
        counted = [row for row in own if row.kind == kind and row.counted]
        share = sum(row.inside for row in counted) / len(counted)
        text = f"{OWN}, {name}, row left out: inside the 90 % interval"
        reached = f"{100 * share:.0f} % of {len(counted)}"
        yield Line(f"own_{kind}_inside", text, reached, "80 to 100 %", share >= _INSIDE, share)


_INSIDE: Final = 0.80
"""Share of rows that a 90 % interval holds at least: of some 25 rows it cannot be told from 90 % inside of that."""


def _own_order(own: Sequence[OwnRow]) -> Iterator[Line]:
    pairs, right, loss = in_order(own)
    share = right / pairs if pairs else 0.0
    text = f"{OWN}, pairs more than 2 % apart in the right order"
    yield Line("own_order", text, f"{right} of {pairs}", "at least 95 %", share >= 0.95, share)
    yield _at_most(_Aim("own_best", f"{OWN}, row predicted best, behind the best measured", 0.01), loss)


def _own_verdicts() -> Iterator[Line]:
    rows = [row for path in shipped_tables() if path.stem == OWN for row in read_rows(path)]
    verdicts = list(own_verdicts(rows, applied("hopper", None, CLUSTER).coefficients()))
    for ran, text, least in ((True, "rows that ran, said to fit", None), (False, "rows out of memory, said so", 10)):
        mine = [one for one in verdicts if one.ran is ran]
        right = [one for one in mine if one.right]
        needed = len(mine) if least is None else least
        wrong = ", ".join(one.key for one in mine if not one.right)
        name = "own_ran" if ran else "own_out_of_memory"
        reached, target = f"{len(right)} of {len(mine)}", f"at least {needed}"
        yield Line(name, f"{OWN}, {text}", reached, target, len(right) >= needed, float(len(right)), wrong)


def target_table(lines: Sequence[Line], title: str) -> Section:
    """Lines as a table."""
    rows = [
        [line.text, line.reached, line.target, {True: "met", False: "missed", None: "-"}[line.met], line.detail]
        for line in lines
    ]
    headers = ("figure", "reached", "target", "", "of")
    return Section(title, (), headers, rows, text_columns=(0, 3, 4), wrapped=("figure", "of"))
