"""Measured rows asked plainly: model, device, number of devices, batch, layout and framework, no switch and no stack.

Beside it they are asked with the stack of the trainer and year alone that their document names (`trainers.csv`).
The error of a row is that with its source left out (`calibration/judged.csv`), times what leaving its switches unsaid
moves; its range is the one with its source left out, joined with what is open as `simulate estimate` joins it.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from simulator.answers.unsaid import over_open
from simulator.cost.derived import pricing_of
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.cost.pricing.price import Priced, price
from simulator.errors import SimulateError
from simulator.evidence.calibration.apply import applied
from simulator.evidence.measurements.question import question as row_case
from simulator.evidence.measurements.rows import MeasuredRow, public_tables, read_rows, shipped_tables
from simulator.question.coefficients import CoefficientKind
from simulator.question.frameworks.stacks import framework
from simulator.question.question import question_of
from simulator.question.specs.catalogue import load_hardware
from simulator.search.build import estimates_of_block
from simulator.show.report.presentation import Section

_JUDGED: Final = Path(__file__).resolve().parents[2] / "calibration" / "judged.csv"
_TRAINERS: Final = Path(__file__).with_name("trainers.csv")
_USUAL_WIDTH: Final = {"time": 0.16, "memory": 0.12}
"""Half width of a row that was not judged with its source left out."""
_MANY: Final = 512


@dataclass(frozen=True, slots=True)
class PlainRow:
    """A measured row asked plainly; errors are ln(predicted / measured)."""

    key: str
    source: str
    classes: tuple[str, ...]
    verdict: str
    probability: float
    documented: Mapping[str, float]
    with_stack: Mapping[str, float]
    plain: Mapping[str, float]
    """By kind; absent where the row has no figure of it."""
    half_widths: Mapping[str, float]
    inside: Mapping[str, bool]


def plain_rows(every: int = 1, known: Container[str] = ()) -> Iterator[PlainRow]:
    """Yield public rows that ran, asked plainly: one in `every` of each table, and all whose keys are not known."""
    judged, trainers = _judged(), _trainers()
    for table in (*shipped_tables(), *public_tables()):
        ran = [row for row in read_rows(table) if row.asks and row.outcome == "ok"]
        for row in [row for number, row in enumerate(ran) if number % every == 0 or row.key not in known]:
            try:
                yield _asked(row, judged, trainers)
            except SimulateError:
                continue


def _judged() -> Mapping[tuple[str, str], tuple[float, float]]:
    with _JUDGED.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return {
        (row["kind"], row["row"]): (math.log1p(float(row["source_left_out"])), float(row["half_width"])) for row in rows
    }


def _trainers() -> Mapping[str, str]:
    """Return the stack of the trainer and year that a table's document names, by table."""
    with _TRAINERS.open(newline="", encoding="utf-8") as stream:
        return {line["table"]: line["stack"] for line in csv.DictReader(stream)}


def _asked(
    row: MeasuredRow, judged: Mapping[tuple[str, str], tuple[float, float]], trainers: Mapping[str, str]
) -> PlainRow:
    coefficients = applied(load_hardware(row.hardware).family, None, None).coefficients()
    scenario, layout = row_case(row, coefficients)
    stacks = (scenario.hardware.stack, trainers.get(row.table, scenario.framework.stack))
    plainly, trained = (framework(scenario.framework.name, {}, stack) for stack in stacks)
    documented, plain, with_stack = (
        price(pricing_of(replace(scenario, framework=profile), layout))
        for profile in (scenario.framework, plainly, trained)
    )
    kinds: tuple[CoefficientKind, ...] = ("time", "memory")
    widths = {kind: judged[kind, row.key][1] or _USUAL_WIDTH[kind] for kind in kinds if (kind, row.key) in judged}
    estimate = _with_ranges(estimates_of_block(plain)[0], _USUAL_WIDTH | widths)
    answer = over_open(question_of({"model": row.model, "hardware": row.hardware}), estimate, plain.pricing)
    errors: dict[str, float] = {kind: judged[kind, row.key][0] for kind in widths}
    stacked, moved = (
        {str(kind): errors[kind] + _moved(kind, row, documented, priced) for kind in widths}
        for priced in (with_stack, plain)
    )
    halves: dict[str, float] = {kind: _half_width(kind, answer) for kind in widths}
    model = "mixture" if scenario.model.is_moe else "dense"
    size = f"{_MANY} devices and more" if scenario.devices >= _MANY else f"fewer than {_MANY} devices"
    return PlainRow(
        key=row.key,
        source=row.table,
        classes=("all", model, scenario.hardware.family, scenario.framework.name, size),
        verdict=answer.verdict,
        probability=answer.memory.fit_probability or 0.0,
        documented=errors,
        with_stack=stacked,
        plain=moved,
        half_widths=halves,
        inside={kind: _is_inside(kind, answer, moved[kind]) for kind in widths},
    )


def _with_ranges(estimate: Estimate, widths: Mapping[str, float]) -> Estimate:
    """Return an estimate with the ranges of its row's left-out source."""
    memory, speed = estimate.memory, estimate.throughput
    high, slow = math.exp(widths["memory"]), math.exp(widths["time"])
    return replace(
        estimate,
        memory=replace(
            memory,
            interval_bytes=Interval(memory.device_bytes / high, memory.device_bytes * high),
            fit_probability=0.5,
        ),
        throughput=replace(speed, interval_seconds=Interval(speed.step_seconds / slow, speed.step_seconds * slow)),
    )


def _moved(kind: str, row: MeasuredRow, documented: Priced, plain: Priced) -> float:
    """Return how far the plain figure lies above the documented one, in the logarithm; a longer step is less speed."""
    if kind == "time":
        return float(math.log(documented.step.total[0] / plain.step.total[0]))
    first, second = (float(getattr(each.memory, row.compares_with or "device").max()) for each in (documented, plain))
    return math.log(second / first)


def _is_inside(kind: str, answer: Estimate, moved: float) -> bool:
    """Whether the measured figure lies inside the range; `moved` is ln(predicted / measured), of speed for time."""
    if kind == "time":
        figure, middle, away = answer.throughput.interval_seconds, answer.throughput.step_seconds, moved
    else:
        figure, middle, away = answer.memory.interval_bytes, answer.memory.device_bytes, -moved
    return figure is not None and figure.low <= middle * math.exp(away) <= figure.high


def _half_width(kind: str, answer: Estimate) -> float:
    """Return half of a 90 % range, in the logarithm."""
    figure = answer.throughput.interval_seconds if kind == "time" else answer.memory.interval_bytes
    return 0.0 if figure is None else 0.5 * math.log(figure.high / figure.low)


def plain_sections(rows: Iterable[PlainRow]) -> Iterator[Section]:
    """Yield the table by class: mean error of sources, rows inside their ranges, verdicts."""
    found = tuple(rows)
    headers = ["class", "rows", "speed, documented %", "with stack %", "plain %", "inside %", "± %"]
    headers += ["memory, documented %", "plain %", "inside %", "± %", "firm %", "P < 5 %"]
    lines = []
    for name in dict.fromkeys(each for row in found for each in row.classes):
        of_class = [row for row in found if name in row.classes]
        cells = [name, str(len(of_class))]
        for kind, whens in _WHENS.items():
            judged = [row for row in of_class if kind in row.plain]
            means = [_of_sources((row.source, getattr(row, when)[kind]) for row in judged) for when in whens]
            inside = 100.0 * fmean(row.inside[kind] for row in judged) if judged else 0.0
            width = 100.0 * fmean(math.sinh(row.half_widths[kind]) for row in judged) if judged else 0.0
            cells += [f"{each:.1f}" for each in means] + [f"{inside:.0f}", f"{width:.0f}"]
        firm = 100.0 * fmean(row.verdict != "depends" for row in of_class)
        unlikely = 100.0 * fmean(row.probability < 0.05 for row in of_class)
        lines.append([*cells, f"{firm:.0f}", f"{unlikely:.1f}"])
    yield Section("Asked plainly", headers=tuple(headers), rows=lines)


_WHENS: Final = {"time": ("documented", "with_stack", "plain"), "memory": ("documented", "plain")}


def _of_sources(errors: Iterable[tuple[str, float]]) -> float:
    """Return the mean over sources of their mean absolute error, in percent."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for source, error in errors:
        by_source[source].append(abs(math.expm1(error)))
    return 100.0 * fmean(fmean(values) for values in by_source.values()) if by_source else 0.0
