"""Everything `simulate accuracy` tells: fitted, left out, verdicts, doubtful rows.

What a project holds its rows to, targets and rules of thumb, it adds itself; `benchmarks.targets` does for this one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.errors import InputError, did_you_mean
from simulator.evidence.calibration.accuracy import Accuracy, Ordering, accuracy, ordering
from simulator.evidence.calibration.apply import PRIMARY_FAMILY, applied
from simulator.evidence.calibration.run import FamilyFit, fit_family, prepared
from simulator.evidence.calibration.verdicts import RowVerdict, row_verdicts
from simulator.evidence.measurements.row import MeasuredRow
from simulator.question.coefficients import Coefficients

ORDERED = "z2000-megatron"
"""Table that the report's `ordering` speaks of: programs read it as that one's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One figure that a project holds its calibration to."""

    id: str
    text: str
    limit: str
    """In words."""
    achieved: str
    """In words, with what a reader must know."""
    value: float
    """What is compared: a share, or a count."""
    met: bool
    reason: str = ""
    """Why it is missed; empty where it is met."""


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """One rule of thumb and what the ranking says of it."""

    rule: str
    outcome: Literal["comes out", "in part", "does not come out"]
    findings: tuple[str, ...]
    """One sentence each, with the figures."""


@dataclass(frozen=True, slots=True)
class FamilyAccuracy:
    """One family, fitted and judged."""

    fitted: FamilyFit
    memory: Accuracy | None
    time: Accuracy | None
    verdicts: tuple[RowVerdict, ...]

    @property
    def parts(self) -> tuple[Accuracy, ...]:
        """The kinds that have rows."""
        return tuple(part for part in (self.memory, self.time) if part is not None)


@dataclass(frozen=True, slots=True)
class Assessment:
    """The whole report, before it is text."""

    families: tuple[FamilyAccuracy, ...]
    ordering: Ordering | None
    """Of the rows of the table ORDERED; None where that is not among them."""
    family_ordering: Ordering | None = None
    """Of all rows of the primary family, whatever their table; None where the family has none."""
    held_to: str = ""
    """Table that the targets are for."""
    targets: tuple[Target, ...] = ()
    rules: tuple[RuleCheck, ...] = ()


def families_of(rows: Iterable[MeasuredRow]) -> tuple[str, ...]:
    """Hardware families with rows that can be fitted, the primary one first."""
    names = {sample.scenario.hardware.family for sample in prepared(rows)}
    return tuple(sorted(names, key=lambda name: (name != PRIMARY_FAMILY, name)))


def chosen_families(rows: Sequence[MeasuredRow], asked: Sequence[str]) -> tuple[str, ...]:
    """The families to work on: those asked for, else all. Raises InputError for one without rows."""
    known = families_of(rows)
    for name in asked:
        if name not in known:
            have = ", ".join(known) or "none"
            raise InputError(f"--family {name}: no row that ran{did_you_mean(name, known)}; families with rows: {have}")
    if not known:
        raise InputError("no row that ran names a model and hardware that are known")
    return tuple(name for name in known if not asked or name in asked)


def assess(rows: Sequence[MeasuredRow], families: Sequence[str] = ()) -> Assessment:
    """Fit the families of the rows and judge them. Raises InputError where there is nothing to judge."""
    names = chosen_families(rows, families)
    samples = prepared(rows)
    judged: list[FamilyAccuracy] = []
    primary: Coefficients | None = None
    for name in names:
        fitted = fit_family(name, samples)
        if name == PRIMARY_FAMILY:
            primary = fitted.coefficients()
        judged.append(_judge(fitted, rows, None if name == PRIMARY_FAMILY else primary or _shipped()))
    main = next((f for f in judged if f.fitted.family == PRIMARY_FAMILY), None)
    if main is None:
        return Assessment(tuple(judged), None)
    known = any(sample.row.table == ORDERED for sample in main.fitted.samples)
    coefficients = main.fitted.coefficients()
    return Assessment(
        tuple(judged),
        ordering(main.fitted, coefficients, table=ORDERED) if known else None,
        ordering(main.fitted, coefficients),
    )


def _shipped() -> Coefficients:
    return applied(PRIMARY_FAMILY).coefficients()


def _judge(fitted: FamilyFit, rows: Sequence[MeasuredRow], primary: Coefficients | None) -> FamilyAccuracy:
    memory = accuracy(fitted, "memory", primary=primary)
    time = accuracy(fitted, "time", primary=primary)
    # Without memory of its own a family is judged as it is priced: with the primary family's.
    coefficients = fitted.coefficients(primary)
    return FamilyAccuracy(fitted, memory, time, tuple(row_verdicts(rows, coefficients, fitted.family)))


def figures(found: Assessment) -> dict[str, float]:
    """The figures that are recorded and must not get worse, by name."""
    result = {f"target.{target.id}": target.value for target in found.targets}
    for family in found.families:
        for part in family.parts:
            for table in part.tables:
                for which in ("fitted", "left_out", "left_model_out"):
                    errors = part.part(table=table).errors(which)
                    if errors is not None:
                        name = f"{table}.{part.kind}.{which}"
                        result |= {f"{name}.mean": errors.mean, f"{name}.worst": errors.worst}
    return {name: round(value, 6) for name, value in result.items()}
