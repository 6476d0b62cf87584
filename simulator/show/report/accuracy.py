"""The report of errors: by class of rows, row by row, own rows before and after. Fits nothing: `evidence` does."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from simulator._version import __version__
from simulator.evidence.calibration.judge import (
    DRAWS,
    FEW,
    SEED,
    WORSE_BY,
    Residual,
    RowJudged,
    SourcesJudged,
    WithErrors,
    draws_judged,
    summary,
)
from simulator.evidence.calibration.own import OwnError
from simulator.evidence.calibration.uncertainty import NORMAL_90
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.units import GIB
from simulator.show.report.as_csv import table_csv
from simulator.show.report.as_json import dumps, significant
from simulator.show.report.coverage import TITLES, coverage_object, coverage_sections, pairs_judged, pairs_section
from simulator.show.report.grid import Style
from simulator.show.report.presentation import Presentation
from simulator.show.report.sections import Section, sections_text

SCHEMA_VERSION: Final = 3
HEADERS: Final = (
    *("rows", "sources", "priors\n%", "row left\nout %", "source\nleft out %", "mean over\nsources %", "bias\n%"),
    *("organisation\nleft out %", f"{FEW} own\nrows %", "inside\n90 %", "half-width\n± %"),
)
"""Columns of a group of rows."""
_EXPLAINED: Final = (
    "Mean absolute errors of the rows that count, predicted over measured less one. Priors: without any calibration. "
    "Left out: the coefficients and their spreads were learned without the row, its source, or all of its "
    f"organisation. {FEW} own rows: that many of the source were known, the others predicted ({DRAWS} random subsets, "
    f"seed {SEED}). Inside: rows in their 90 % interval with their source left out."
)
_Row = TypeVar("_Row", bound=WithErrors)


def class_table(judged: Sequence[SourcesJudged], _presentation: Presentation, style: Style) -> str:
    """Return the errors by class."""
    return sections_text(class_sections(judged), style)


def row_table(judged: Sequence[SourcesJudged], _presentation: Presentation, style: Style) -> str:
    """Return the errors of every row."""
    return sections_text(row_sections(judged), style)


def own_table(errors: Sequence[OwnError], _presentation: Presentation, style: Style) -> str:
    """Return the errors of own rows before and after their calibration."""
    return sections_text(own_sections(errors), style)


def class_sections(judged: Sequence[SourcesJudged]) -> Iterator[Section]:
    """Yield errors by class of device and of model, or kind of memory figure."""
    lines: tuple[str, ...] = (_EXPLAINED,)
    for sources in judged:
        if sources.rows:
            title = f"{TITLES[sources.kind]} by class"
            yield grouped(title, sources.rows, ("platform", "class"), lambda row: (row.platform, row.sort), lines)
            lines = ()
    yield from coverage_sections({sources.kind: sources.rows for sources in judged})
    for sources in judged:
        if (order := pairs_judged(pair_widths(sources))) is not None:
            yield pairs_section(order)
    yield from draws_sections({sources.kind: sources.rows for sources in judged})


def draws_sections(rows: Mapping[CoefficientKind, Sequence[WithErrors]]) -> Iterator[Section]:
    """Yield what a few own rows do to the other rows of their source, one line a kind of figure."""
    judged = {TITLES[kind]: draws_judged(of_kind) for kind, of_kind in rows.items()}
    cells = [
        [
            *(title, str(draws.draws), str(draws.unlearned), f"{draws.worse} ({74 * draws.worse / draws.draws:.1f})"),
            *map(_percent, (draws.none, draws.few, draws.every)),
        ]
        for title, draws in judged.items()
        if draws is not None
    ]
    text = (
        f"Random subsets of {FEW} rows of each source that has more, {DRAWS} a source, seed {SEED}. Nothing is learned "
        "of those that do not predict one another better than what was known before. Worse: the source's other rows "
        f"are missed by {100 * WORSE_BY:g} points more than without own rows. All rows: fitted with every row of the "
        "source, themselves too, which is what the coefficients cannot explain."
    )
    headers = ("", "draws", "nothing\nlearned", "worse\n(of 74)", "no own\nrow %", f"{FEW} own\nrows %", "all\nrows %")
    if cells:
        yield Section(f"{FEW} own rows", (text,), headers, cells, text_columns=(0,))


def pair_widths(judged: SourcesJudged) -> Iterator[tuple[float, float, float]]:
    """Yield measured and predicted difference of every pair, and the half-width of its range, in the logarithm."""
    for pair, deviation in judged.judged_pairs():
        yield pair.measured, pair.predicted, NORMAL_90 * deviation


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
    errors = (
        figures.uncalibrated,
        figures.known,
        figures.source_out,
        figures.over_sources,
    )
    return [
        *(
            str(figures.rows),
            str(figures.sources),
            *map(_percent, errors),
            f"{100 * figures.bias:+.1f}",
        ),
        *map(_percent, (figures.organisation_out, figures.few)),
        *(f"{100 * share:.0f}" for share in (figures.coverage, figures.half_width)),
    ]


def row_sections(judged: Sequence[SourcesJudged]) -> Iterator[Section]:
    """Yield every row."""
    for sources in judged:
        unit = _UNITS[sources.kind]
        cells = [
            [
                *(row.sample.key, row.platform, row.sort, *(f"{value:.1f}" for value in _figures(sources.kind, row))),
                f"{100 * np.expm1(row.uncalibrated):+.1f}",
                *map(_signed, (row.known, row.source_out, row.organisation_out)),
                f"{100 * row.source_out.half_width:.0f}",
            ]
            for row in sources.rows
        ]
        headers = (
            *("row", "platform", "class", f"measured\n{unit}", f"source left\nout {unit}", "priors\n%"),
            *("row left\nout %", "source\nleft out %", "organisation\nleft out %", "half-width\n± %"),
        )
        if cells:
            yield Section(f"{TITLES[sources.kind]}, every row", (), headers, cells, text_columns=(0, 1, 2))


_UNITS: Final[Mapping[CoefficientKind, str]] = {"memory": "GiB", "time": "TFLOPS"}


def _figures(kind: CoefficientKind, row: RowJudged) -> tuple[float, float]:
    """Measured figure, and the one predicted without the source: GiB, or TFLOP/s per device."""
    measured = (row.sample.figure(kind) or 0.0) / (GIB if kind == "memory" else 1.0)
    return measured, measured * float(np.exp(row.source_out.error))


def accuracy_json(judged: Sequence[SourcesJudged], _presentation: Presentation) -> str:
    """Return classes, sources and rows as JSON; errors and widths are shares."""
    parts = {
        TITLES[sources.kind].lower(): {
            "coverage": coverage_object(sources.kind, sources.rows),
            "pairs": None if (order := pairs_judged(pair_widths(sources))) is None else dataclasses.asdict(order),
            "own_rows": None if (draws := draws_judged(sources.rows)) is None else dataclasses.asdict(draws),
            "by_class": _summaries(sources.rows, ("platform", "class"), lambda row: (row.platform, row.sort)),
            "by_source": _summaries(sources.rows, ("source", "platform"), lambda row: (row.source, row.platform)),
            "rows": [_row_object(sources.kind, row) for row in sources.rows],
        }
        for sources in judged
    }
    document = {"schema_version": SCHEMA_VERSION, "tool_version": __version__, "seed": SEED, **parts}
    return dumps(document) + "\n"


def _summaries(
    rows: Sequence[RowJudged], names: Sequence[str], key: Callable[[RowJudged], tuple[str, ...]]
) -> list[dict[str, Any]]:
    return [
        dict(zip(names, name, strict=True)) | dataclasses.asdict(summary(row for row in rows if key(row) == name))
        for name in sorted({key(row) for row in rows})
    ]


def _row_object(kind: CoefficientKind, row: RowJudged) -> dict[str, Any]:
    measured, predicted = _figures(kind, row)
    return {
        "row": row.sample.key,
        "organisation": row.sample.row.organisation or None,
        "platform": row.platform,
        "class": row.sort,
        "unit": _UNITS[kind],
        "measured": significant(measured),
        "predicted": significant(predicted),
        "priors": significant(float(np.expm1(row.uncalibrated))),
        "fitted": significant(row.fitted.relative),
        "row_left_out": significant(row.known.relative),
        "source_left_out": significant(row.source_out.relative),
        "organisation_left_out": significant(row.organisation_out.relative),
        "left_out": {
            name: {
                "error": significant(residual.relative),
                "half_width": significant(residual.half_width),
                "inside": residual.inside,
            }
            for name, residual in row.left_out.items()
        },
        "half_width": significant(row.source_out.half_width),
        "inside": row.source_out.inside,
        "options": ";".join("=".join(pair) for pair in row.sample.row.options),
        "options_source": row.sample.row.options_source or None,
    }


def rows_csv(judged: Sequence[SourcesJudged], _presentation: Presentation) -> str:
    """Return every row as CSV, errors as shares."""
    objects = [{"kind": sources.kind} | _row_object(sources.kind, row) for sources in judged for row in sources.rows]
    for line in objects:
        del line["left_out"]  # columns that few rows have
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
    return _percent(float(np.mean(present))) if present else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _signed(residual: Residual) -> str:
    return f"{100 * residual.relative:+.1f}"
