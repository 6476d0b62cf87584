"""Everything `simulate accuracy` tells: fitted, left out, targets, verdicts, doubtful rows, rules of thumb."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from simulator.errors import InputError, did_you_mean
from simulator.evidence.calibration.accuracy import Accuracy, Ordering, accuracy, ordering
from simulator.evidence.calibration.apply import PRIMARY_FAMILY, applied
from simulator.evidence.calibration.run import FamilyFit, fit_family, prepared
from simulator.evidence.calibration.targets import ALLOCATED_TABLE, TABLE, Evidence, Target, targets
from simulator.evidence.calibration.thumb import Checked, check
from simulator.evidence.calibration.verdicts import RowVerdict, row_verdicts
from simulator.evidence.measurements.row import MeasuredRow
from simulator.question.coefficients import Coefficients


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
    """Of the main table's rows; None where it is not among the rows."""
    targets: tuple[Target, ...]
    rules: tuple[Checked, ...]


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
    if main is None or not any(s.row.table == TABLE for s in main.fitted.samples):
        return Assessment(tuple(judged), None, (), ())
    coefficients = main.fitted.coefficients()
    order = ordering(main.fitted, coefficients, table=TABLE)
    return Assessment(tuple(judged), order, _targets(judged, main, order), check(coefficients))


def _shipped() -> Coefficients:
    return applied(PRIMARY_FAMILY).coefficients()


def _judge(fitted: FamilyFit, rows: Sequence[MeasuredRow], primary: Coefficients | None) -> FamilyAccuracy:
    memory = accuracy(fitted, "memory", primary=primary)
    time = accuracy(fitted, "time", primary=primary)
    # Without memory of its own a family is judged as it is priced: with the primary family's.
    coefficients = fitted.coefficients(primary)
    return FamilyAccuracy(fitted, memory, time, tuple(row_verdicts(rows, coefficients, fitted.family)))


def _targets(judged: Sequence[FamilyAccuracy], main: FamilyAccuracy, order: Ordering) -> tuple[Target, ...]:
    if main.memory is None or main.time is None:
        return ()
    others = [part for f in judged if (part := f.memory) is not None and ALLOCATED_TABLE in part.tables]
    return targets(
        Evidence(
            memory=main.memory.part(table=TABLE),
            time=main.time.part(table=TABLE),
            ordering=order,
            verdicts=[v for v in main.verdicts if v.sample.row.table == TABLE],
            doubts=main.fitted.doubts,
            allocated=others[0].part(table=ALLOCATED_TABLE) if others else None,
        )
    )


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
