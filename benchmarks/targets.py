"""What the calibration is held to: each target with what is reached and, where it is missed, the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.thumb import check
from simulator.evidence.calibration.accuracy import Accuracy, Errors, Ordering
from simulator.evidence.calibration.apply import PRIMARY_FAMILY
from simulator.evidence.calibration.assessment import ORDERED, Assessment, Target
from simulator.evidence.calibration.doubts import Doubt
from simulator.evidence.calibration.verdicts import RowVerdict

TABLE = ORDERED
"""The user's own experiments: the targets are for its rows, whatever else the family's fit uses."""
ALLOCATED_TABLE = "b200-megatron"
"""The table that holds allocated memory."""
COVERAGE = (0.80, 0.97)
"""Share of rows that a 90 % interval may hold; with some 25 rows it cannot be told from 90 % inside of this."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the targets are judged by."""

    memory: Accuracy
    """Of the table's rows."""
    time: Accuracy
    ordering: Ordering
    verdicts: Sequence[RowVerdict]
    doubts: Sequence[Doubt]
    allocated: Accuracy | None


def held(found: Assessment) -> Assessment:
    """The report with the targets and the rules of thumb, where the table they speak of is among its rows."""
    main = next((family for family in found.families if family.fitted.family == PRIMARY_FAMILY), None)
    if main is None or not any(sample.row.table == TABLE for sample in main.fitted.samples):
        return found
    coefficients = main.fitted.coefficients()
    order = found.ordering
    if order is None or main.memory is None or main.time is None:
        return replace(found, rules=check(coefficients))
    others = [part for family in found.families if (part := family.memory) and ALLOCATED_TABLE in part.tables]
    evidence = Evidence(
        memory=main.memory.part(table=TABLE),
        time=main.time.part(table=TABLE),
        ordering=order,
        verdicts=[verdict for verdict in main.verdicts if verdict.sample.row.table == TABLE],
        doubts=main.fitted.doubts,
        allocated=others[0].part(table=ALLOCATED_TABLE) if others else None,
    )
    return replace(found, held_to=TABLE, targets=targets(evidence), rules=check(coefficients))


def targets(found: Evidence) -> tuple[Target, ...]:
    """All targets, in the order in which they were set."""
    return tuple(_targets(found))


def _targets(found: Evidence) -> Iterator[Target]:
    for kind, name, part, limits in (
        ("memory", "memory", found.memory, (0.010, 0.04, 0.015, None, None)),
        ("tflops", "TFLOPS", found.time, (0.015, None, 0.022, 0.07, 0.04)),
    ):
        mean, worst, left_out, left_out_worst, left_model_out = limits
        fitted, out = part.errors("fitted"), part.errors("left_out", sole_support=False)
        model = part.errors("left_model_out")
        if fitted is None or out is None or model is None:
            continue
        alone = _sole_support(part)
        yield _share(f"{kind}_mean", f"{name}, mean absolute error, consistent rows", mean, fitted.mean)
        if worst is not None:
            yield _worst(f"{kind}_worst", f"{name}, worst consistent row", worst, fitted, found.doubts)
        yield _share(f"{kind}_left_out_mean", f"{name}, leave-one-out, mean{alone}", left_out, out.mean)
        if left_out_worst is not None:
            yield _worst(f"{kind}_left_out_worst", f"{name}, leave-one-out, worst", left_out_worst, out, found.doubts)
        if left_model_out is not None:
            yield _share(
                f"{kind}_left_model_out_mean", f"{name}, leave-one-model-out, mean", left_model_out, model.mean
            )
    yield from _of_order(found.ordering)
    yield from _of_verdicts(found.verdicts)
    if found.allocated is not None and (errors := found.allocated.errors("fitted")) is not None:
        text = f"allocated memory, mean absolute error, {ALLOCATED_TABLE}"
        yield _share("allocated_mean", text, 0.010, errors.mean)
    for kind, part in (("memory", found.memory), ("tflops", found.time)):
        if part.coverage is not None:
            yield _coverage(kind, part.coverage)


def _share(name: str, text: str, limit: float | None, value: float) -> Target:
    limit = 1.0 if limit is None else limit
    return Target(
        id=name,
        text=text,
        limit=f"at most {100 * limit:.1f} %",
        achieved=f"{100 * value:.2f} %",
        value=value,
        met=value <= limit,
        reason="" if value <= limit else "the rows scatter more than the target allows",
    )


def _worst(name: str, text: str, limit: float, errors: Errors, doubts: Sequence[Doubt]) -> Target:
    """A target on the worst row; where it is missed, the reason is what is known of that row."""
    met = errors.worst <= limit
    known = next((doubt.says for doubt in doubts if doubt.key == errors.worst_row), "nothing else is odd about it")
    return Target(
        id=name,
        text=text,
        limit=f"at most {100 * limit:.1f} %",
        achieved=f"{100 * errors.worst:.2f} % ({errors.worst_row})",
        value=errors.worst,
        met=met,
        reason=""
        if met
        else f"{errors.worst_row} {known}. No coefficient that has a meaning moves it without the rows that fit",
    )


def _sole_support(part: Accuracy) -> str:
    """The rows reported apart, with their errors."""
    alone = [row for row in part.rows if row.counted and row.sole_support and row.left_out is not None]
    if not alone:
        return ""
    told = ", ".join(f"{row.key.rpartition(':')[2]}: {100 * (row.left_out or 0.0):+.1f} %" for row in alone)
    return f" (apart, as the only ones of a feature, rows {told})"


def _of_order(found: Ordering) -> Iterator[Target]:
    share = found.right / found.pairs if found.pairs else 0.0
    yield Target(
        id="ordering",
        text="pairs of one model and precision, more than 2 % apart, in the right order",
        limit="at least 95 %",
        achieved=f"{100 * share:.0f} % ({found.right} of {found.pairs})",
        value=share,
        met=share >= 0.95,
        reason="" if share >= 0.95 else "the pairs in the wrong order are near each other",
    )
    yield Target(
        id="best_within",
        text="row predicted best, behind the best measured",
        limit="at most 1.0 %",
        achieved=f"{100 * found.best_within:.2f} %",
        value=found.best_within,
        met=found.best_within <= 0.01,
        reason="" if found.best_within <= 0.01 else "the fastest rows are near each other",
    )


def _of_verdicts(found: Sequence[RowVerdict]) -> Iterator[Target]:
    ran, failed = [v for v in found if v.ran], [v for v in found if not v.ran]
    starved = [v for v in ran if v.said == "starved"]
    good = [v for v in ran if v.agrees and (v.said == "fits" or v.sample.row.status == "starved")]
    wrong = [v.sample.key for v in ran if v not in good]
    told = f", {_names(v.sample.key for v in starved)} of them starved" if starved else ""
    yield Target(
        id="ran_fits",
        text="rows that ran and are said to fit (the starved one: starved)",
        limit=f"{len(ran)} of {len(ran)}",
        achieved=f"{len(good)} of {len(ran)}{told}",
        value=float(len(good)),
        met=not wrong,
        reason="" if not wrong else f"said not to fit: {_names(wrong)}",
    )
    right, open_rows = [v for v in failed if v.agrees], [v.sample.key for v in failed if not v.agrees]
    told = f"; unexplained: {_names(open_rows)}" if open_rows else ""
    yield Target(
        id="out_of_memory",
        text="rows out of memory, said not to fit or starved",
        limit=f"10 of {len(failed)}",
        achieved=f"{len(right)} of {len(failed)}{told}",
        value=float(len(right)),
        met=len(right) >= 10,
        reason="" if len(right) >= 10 else "their need is near capacity",
    )


def _names(keys: Iterable[str]) -> str:
    return ", ".join(keys)


def _coverage(kind: str, value: float) -> Target:
    low, high = COVERAGE
    name = "memory" if kind == "memory" else "step time"
    met = low <= value <= high
    return Target(
        id=f"{kind}_coverage",
        text=f"90 % intervals of {name}, leave-one-out: rows inside",
        limit=f"{100 * low:.0f} to {100 * high:.0f} %",
        achieved=f"{100 * value:.0f} %",
        value=value,
        met=met,
        reason="" if met else "the scatter of the rows is not that of the interval",
    )
