"""Report of errors: by class of rows, row by row, own rows before and after. Fits nothing: `evidence` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from simulator._version import __version__
from simulator.evidence.calibration.judged import JudgedRun, WithErrors, is_inside, summary
from simulator.evidence.calibration.own import OwnError
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.units import GIB
from simulator.show.report.as_csv import table_csv
from simulator.show.report.as_json import dumps, significant
from simulator.show.report.grid import Style
from simulator.show.report.presentation import Presentation
from simulator.show.report.sections import Section, sections_text
from simulator.show.report.text import percent

SCHEMA_VERSION: Final = 4
TITLES: Final[Mapping[CoefficientKind, str]] = {"memory": "Memory", "time": "Speed"}
HEADERS: Final = (
    *("rows", "sources", "priors\n%", "row left\nout %", "source\nleft out %", "mean over\nsources %", "bias\n%"),
    *("organisation\nleft out %", "inside\n90 %", "half-width\n± %"),
)
"""Columns of a group of rows."""
_EXPLAINED: Final = (
    "Mean absolute errors of the rows that count, predicted over measured less one. Priors: without any calibration. "
    "Left out: the coefficients and their spreads were learned without the row, its source, or all of its "
    "organisation. Inside: rows in their 90 % interval with their source left out."
)
_Row = TypeVar("_Row", bound=WithErrors)


def class_table(judged: Sequence[JudgedRun], _presentation: Presentation, style: Style) -> str:
    """Return the errors by class."""
    return sections_text(class_sections(judged), style)


def row_table(judged: Sequence[JudgedRun], _presentation: Presentation, style: Style) -> str:
    """Return the errors of every row."""
    return sections_text(row_sections(judged), style)


def own_table(errors: Sequence[OwnError], _presentation: Presentation, style: Style) -> str:
    """Return the errors of own rows before and after their calibration."""
    return sections_text(own_sections(errors), style)


def by_kind(judged: Sequence[JudgedRun]) -> Iterator[tuple[CoefficientKind, list[JudgedRun]]]:
    """Yield the rows of each kind of figure, speed first."""
    kinds: tuple[CoefficientKind, ...] = ("time", "memory")
    yield from ((kind, [row for row in judged if row.kind == kind]) for kind in kinds)


def class_sections(judged: Sequence[JudgedRun]) -> Iterator[Section]:
    """Yield errors by class of device and of model, or kind of memory figure."""
    lines: tuple[str, ...] = (_EXPLAINED,)
    for kind, rows in by_kind(judged):
        if rows:
            title = f"{TITLES[kind]} by class"
            yield grouped(title, rows, ("platform", "class"), lambda row: (row.platform, row.sort), lines)
            lines = ()


def grouped(
    title: str,
    rows: Sequence[_Row],
    headers: Sequence[str],
    key: Callable[[_Row], tuple[str, ...]],
    lines: tuple[str, ...] = (),
) -> Section:
    """Return the errors of groups of rows, one line a group and one for all."""
    groups = sorted({key(row) for row in rows})
    cells = [[*name, *_cells(row for row in rows if key(row) == name)] for name in groups]
    if len(groups) > 1:
        cells.append(["all", *[""] * (len(headers) - 1), *_cells(rows)])
    return Section(title, lines, (*headers, *HEADERS), cells, text_columns=tuple(range(len(headers))))


def _cells(rows: Iterable[WithErrors]) -> list[str]:
    figures = summary(rows)
    errors = (figures.uncalibrated, figures.known, figures.source_out, figures.over_sources)
    return [
        *(str(figures.rows), str(figures.sources), *map(percent, errors), f"{100 * figures.bias:+.1f}"),
        *(percent(figures.organisation_out), f"{100 * figures.coverage:.0f}", f"{100 * figures.half_width:.0f}"),
    ]


def row_sections(judged: Sequence[JudgedRun]) -> Iterator[Section]:
    """Yield every row."""
    shown = ("priors", "row_left_out", "source_left_out", "organisation_left_out")
    for kind, rows in by_kind(judged):
        unit = _UNITS[kind]
        cells = [
            [
                *(row.row.key, row.platform, row.sort, *(f"{value:.1f}" for value in _figures(row))),
                *(_share(row.errors[name]) for name in shown),
                f"{100 * row.half_width:.0f}",
            ]
            for row in rows
        ]
        headers = (
            *("row", "platform", "class", f"measured\n{unit}", f"source left\nout {unit}", "priors\n%"),
            *("row left\nout %", "source\nleft out %", "organisation\nleft out %", "half-width\n± %"),
        )
        if cells:
            yield Section(f"{TITLES[kind]}, every row", (), headers, cells, text_columns=(0, 1, 2))


_UNITS: Final[Mapping[CoefficientKind, str]] = {"memory": "GiB", "time": "TFLOPS"}


def _figures(row: JudgedRun) -> tuple[float, float]:
    """Return the measured figure, and the one predicted without the source: GiB, or TFLOP/s per device."""
    measured = row.measured / (GIB if row.kind == "memory" else 1.0)
    return measured, measured * (1.0 + row.errors["source_left_out"])


def accuracy_json(judged: Sequence[JudgedRun], _presentation: Presentation) -> str:
    """Return classes, sources and rows as JSON; errors and widths are shares."""
    parts = {
        TITLES[kind].lower(): {
            "by_class": _summaries(rows, ("platform", "class"), lambda row: (row.platform, row.sort)),
            "by_source": _summaries(rows, ("source", "platform"), lambda row: (row.source, row.platform)),
            "rows": [_row_object(row) for row in rows],
        }
        for kind, rows in by_kind(judged)
    }
    return dumps({"schema_version": SCHEMA_VERSION, "tool_version": __version__, **parts}) + "\n"


def _summaries(
    rows: Sequence[JudgedRun], names: Sequence[str], key: Callable[[JudgedRun], tuple[str, ...]]
) -> list[dict[str, Any]]:
    return [
        dict(zip(names, name, strict=True)) | dataclasses.asdict(summary(row for row in rows if key(row) == name))
        for name in sorted({key(row) for row in rows})
    ]


def _row_object(row: JudgedRun) -> dict[str, Any]:
    measured, predicted = _figures(row)
    return {
        "row": row.row.key,
        "organisation": row.row.organisation or None,
        "platform": row.platform,
        "class": row.sort,
        "unit": _UNITS[row.kind],
        "measured": significant(measured),
        "predicted": significant(predicted),
        **row.errors,
        "half_width": row.half_width,
        "inside": is_inside(row),
        "options": ";".join("=".join(pair) for pair in row.row.options),
        "options_source": row.row.options_source or None,
    }


def rows_csv(judged: Sequence[JudgedRun], _presentation: Presentation) -> str:
    """Return every row as CSV, errors as shares."""
    objects = [{"kind": row.kind} | _row_object(row) for row in judged]
    return table_csv(tuple(objects[0]), (tuple(row.values()) for row in objects))


def own_sections(errors: Sequence[OwnError]) -> Iterator[Section]:
    """Yield own rows before and after their calibration, with the means."""
    for kind, title in TITLES.items():
        mine = [error for error in errors if error.kind == kind]
        rows = [
            [error.key, *(_share(value) for value in (error.before, error.after, error.left_out))] for error in mine
        ]
        means = [_mean([getattr(error, name) for error in mine]) for name in ("before", "after", "left_out")]
        if mine:
            headers = ("row", "before %", "after %", "left out %")
            yield Section(f"{title} of own rows", (), headers, [*rows, ["mean, absolute", *means]])


def own_json(errors: Sequence[OwnError], _presentation: Presentation) -> str:
    """Return the same as JSON; errors are shares."""
    return dumps({"own_rows": [dataclasses.asdict(error) for error in errors]}) + "\n"


def own_csv(errors: Sequence[OwnError], _presentation: Presentation) -> str:
    """Return the same as CSV."""
    columns = tuple(field.name for field in dataclasses.fields(OwnError))
    return table_csv(columns, (dataclasses.astuple(error) for error in errors))


def _mean(values: Sequence[float | None]) -> str:
    present = [abs(value) for value in values if value is not None]
    return percent(float(np.mean(present))) if present else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"
