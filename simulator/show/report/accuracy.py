"""The accuracy report for people: targets, groups, families, verdicts, doubtful rows, rules of thumb, every row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from simulator.evidence.calibration.accuracy import Accuracy, RowError
from simulator.evidence.calibration.apply import PRIMARY_FAMILY
from simulator.evidence.calibration.assessment import Assessment, FamilyAccuracy
from simulator.evidence.calibration.doubts import Doubt, describe
from simulator.evidence.calibration.sample import Sample
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.scenario.layout import sizes_text
from simulator.question.units import to_mib
from simulator.show.report.grid import Style
from simulator.show.report.sections import Section, sections_text
from simulator.show.report.text import gib, words

_KINDS = {"memory": "Memory", "time": "TFLOPS"}


def accuracy_text(found: Assessment, style: Style, *, table: str | None = None) -> str:
    """Return the report; with `table` only the groups and rows of that table."""
    return sections_text(accuracy_sections(found, table), style)


def accuracy_sections(found: Assessment, table: str | None) -> Iterator[Section]:
    """Yield the parts of the report; with `table` only the groups and rows of that table."""
    if found.targets:
        yield _targets(found)
    yield from _groups(found, table)
    yield _families(found)
    yield from _verdicts(found, table)
    yield from _doubts(found, table)
    yield from _rules(found)
    yield from _rows(found, table)


def _targets(found: Assessment) -> Section:
    rows = [
        [target.text, target.limit, target.achieved, "met" if target.met else "missed", target.reason]
        for target in found.targets
    ]
    text = (
        f"For the consistent rows of {found.held_to} alone, though the family's fit uses other tables too. A row is "
        "consistent by the annotation beside it; the fit does not read it."
    )
    headers = ("figure", "target", "reached", "", "why missed")
    return Section(
        "Targets", (text,), headers, rows, text_columns=tuple(range(5)), wrapped=("figure", "reached", "why missed")
    )


def _groups(found: Assessment, table: str | None) -> Iterator[Section]:
    for kind, title in _KINDS.items():
        parts = [
            part
            for family in found.families
            if (whole := family.memory if kind == "memory" else family.time) is not None
            if (part := whole.part(table=table)).rows
        ]
        rows = [row for part in parts for row in _group_rows(part)]
        if not rows:
            continue
        text = (
            "Absolute errors of consistent rows in %. Left out: the row itself, or all rows of its model, was left out "
            "and the rest fitted again (rows left out of the fit stay out). Constant: the median of the table's other "
            "rows of the precision, as if nothing were known but the precision."
        )
        headers = (
            *("table", "model", "precision", "rows", "mean", "median", "worst"),
            *("row left out,\nmean", "worst", "model left out,\nmean", "worst", "constant,\nmean", "worst"),
        )
        yield Section(f"{title} by group", (text,), headers, rows, text_columns=(0, 1, 2))


def _group_rows(part: Accuracy) -> Iterator[list[str]]:
    for table in part.tables:
        of_table = part.part(table=table)
        groups = sorted({row.group for row in of_table.rows})
        found = [([table, group[1], group[2]], of_table.part(group=group)) for group in groups]
        if len(found) > 1:
            found.append(([table, "all", "all"], of_table))
        for name, group in found:
            errors = group.errors("fitted")
            if errors is not None:
                cells = [str(errors.rows), _percent(errors.mean), _percent(errors.median), _percent(errors.worst)]
                for which in ("left_out", "left_model_out", "baseline"):
                    cells += _mean_worst(group, which)
                yield [*name, *cells]


def _mean_worst(part: Accuracy, which: str) -> list[str]:
    errors = part.errors(which)
    return ["-", "-"] if errors is None else [_percent(errors.mean), _percent(errors.worst)]


def _families(found: Assessment) -> Section:
    rows, notes = [], []
    for family in found.families:
        for part in family.parts:
            fit = family.fitted.fit(part.kind)
            own, out, carried = (part.errors(which) for which in ("fitted", "left_out", "carried"))
            reason = family.fitted.not_stored(part.kind)
            rows.append(
                [
                    family.fitted.family,
                    _KINDS[part.kind],
                    str(len(fit.keys)) if fit else "-",
                    "-" if own is None else _percent(own.mean),
                    "-" if out is None else _percent(out.mean),
                    "-" if part.coverage is None else f"{100 * part.coverage:.0f}",
                    "-" if carried is None else _percent(carried.mean),
                    "-" if carried is None else _percent(carried.worst),
                ]
            )
            if reason:
                notes.append(f"{reason[:1].upper()}{reason[1:]}.")
    text = (
        "Each family fitted to its own rows, beside what the coefficients of family "
        f"{PRIMARY_FAMILY} say of them as shares of their devices' peaks. Coverage: consistent rows inside the 90 % "
        "interval of the refit without them."
    )
    headers = (
        *("family", "figure", "rows\nused", "own fit,\nmean %", "row left out,\nmean %", "coverage\n%"),
        *("carried over,\nmean %", "worst %"),
    )
    return Section("By family", (text, *notes), headers, rows, text_columns=(0, 1))


def _verdicts(found: Assessment, table: str | None) -> Iterator[Section]:
    verdicts = [v for family in found.families for v in family.verdicts if table in (None, v.sample.row.table)]
    if not verdicts:
        return
    lines = []
    for name in sorted({v.sample.row.table for v in verdicts}):
        mine = [v for v in verdicts if v.sample.row.table == name]
        ran, failed = [v for v in mine if v.ran], [v for v in mine if not v.ran]
        text = f"{name}: {len(ran)} rows ran, {sum(v.said == 'fits' for v in ran)} of them are said to fit"
        if failed:
            caught = sum(v.agrees for v in failed)
            text += f"; {len(failed)} ran out of memory, {caught} of them are said not to fit or to starve"
        lines.append(f"{text}.")
    odd = [v for v in verdicts if not v.agrees or (v.ran and v.said == "starved")]
    rows = [
        [
            v.sample.key,
            _name(v.sample),
            "ran" if v.ran else "out of memory",
            words(v.said),
            gib(v.need_bytes),
            gib(v.capacity_bytes),
            "" if v.agrees else "unexplained" if not v.ran else "wrong",
        ]
        for v in odd
    ]
    headers = ("row", "layout as stated", "outcome", "said", "need GiB", "usable GiB", "")
    yield Section(
        "Rows that ran and rows that ran out of memory",
        tuple(lines),
        headers,
        rows,
        text_columns=(0, 1, 2, 3, 6),
        wrapped=("layout as stated",),
    )


def _doubts(found: Assessment, table: str | None) -> Iterator[Section]:
    rows = []
    for family in found.families:
        samples = {sample.key: sample for sample in family.fitted.samples}
        errors = {(part.kind, row.key): row for part in family.parts for row in part.rows}
        for doubt in sorted(family.fitted.doubts, key=lambda doubt: _order(doubt.key)):
            sample = samples[doubt.key]
            if table in (None, sample.row.table):
                memory, speed = errors.get(("memory", doubt.key)), errors.get(("time", doubt.key))
                rows.append([doubt.key, _name(sample), _measured(sample), *_misfit(doubt, memory, speed), doubt.says])
    if rows:
        text = (
            "Found by the fit and by the rows' own figures, without the annotations. A misfit is predicted over "
            "measured, less one, for the row as it is stated. Hypotheses stand beside the row and change nothing in it."
        )
        headers = ("row", "as stated", "measured", "memory %", "speed %", "what is found")
        yield Section(
            "Rows that cannot be what they say, or stand out",
            (text,),
            headers,
            rows,
            text_columns=(0, 1, 2, 5),
            wrapped=("as stated", "what is found"),
        )
        yield from _hypotheses(found, table)


def _misfit(doubt: Doubt, memory: RowError | None, speed: RowError | None) -> list[str]:
    if doubt.devices is not None:
        return ["-", "-"]
    return ["-" if row is None else _signed(row.fitted) for row in (memory, speed)]


def _hypotheses(found: Assessment, table: str | None) -> Iterator[Section]:
    rows = [
        [doubt.key, describe(h.layout), _signed(h.memory_error), _signed(h.speed_error)]
        for family in found.families
        for doubt in sorted(family.fitted.doubts, key=lambda doubt: _order(doubt.key))
        if table in (None, doubt.key.rpartition(":")[0])
        for h in doubt.hypotheses
    ]
    if rows:
        text = "Layouts of the same model on the same devices, within 3 % of the memory and 4 % of the speed."
        headers = ("row", "layout that would explain it", "memory %", "speed %")
        yield Section("Hypotheses", (text,), headers, rows, text_columns=(0, 1))


def _rules(found: Assessment) -> Iterator[Section]:
    for checked in found.rules:
        yield Section(
            f"Rule of thumb: {checked.rule}: {checked.outcome}",
            tuple(f"{text}." for text in checked.findings),
            listed=True,
        )


def _rows(found: Assessment, table: str | None) -> Iterator[Section]:
    for family in found.families:
        for part in family.parts:
            kept = part.part(table=table)
            if kept.rows:
                yield _row_section(family, kept)


def _row_section(family: FamilyAccuracy, part: Accuracy) -> Section:
    unit = "GiB" if part.kind == "memory" else "TFLOPS"
    rows = [
        [
            row.key,
            _name(row.sample),
            _figure(row, part.kind, row.measured),
            _figure(row, part.kind, row.predicted),
            _signed(row.fitted),
            _signed(row.left_out),
            _signed(row.left_model_out),
            _signed(row.baseline),
            ", ".join(_marks(row)),
        ]
        for row in sorted(part.rows, key=lambda row: _order(row.key))
    ]
    headers = (
        *("row", "as stated", f"measured\n{unit}", f"predicted\n{unit}", "error\n%", "row left\nout %"),
        *("model left\nout %", "constant\n%", ""),
    )
    title = f"Every row: {_KINDS[part.kind]}, family {family.fitted.family}"
    return Section(title, (), headers, rows, text_columns=(0, 1, 8))


def _marks(row: RowError) -> Iterable[str]:
    """What sets the row apart."""
    if not row.used:
        yield "left out of the fit"
    if not row.counted:
        yield "not counted"
    if row.sole_support:
        yield "only one of a feature"


def _figure(row: RowError, kind: CoefficientKind, value: float) -> str:
    if kind == "time":
        return f"{value:.1f}"
    return f"{gib(value)} allocated" if row.sample.row.memory_kind == "allocated" else gib(value)


def _measured(sample: Sample) -> str:
    row = sample.row
    memory = "" if row.memory_bytes is None else f"{to_mib(row.memory_bytes):.0f} MiB"
    speed = "" if sample.measured_tflops is None else f"{sample.measured_tflops:.1f} TFLOPS"
    return ", ".join(text for text in (memory, speed) if text)


def _name(sample: Sample) -> str:
    """The row as stated, in a few words."""
    row, layout = sample.row, sample.layout
    sizes = sizes_text(layout, "tp", "pp", "cp", "vpp", "micro_batch_size")
    return f"{row.model} {row.precision} {sizes} {layout.recompute}"


def _order(key: str) -> tuple[str, int]:
    table, _, row = key.rpartition(":")
    return table, int(row)


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.2f}"
