"""Predictions beside measured runs, and fitted coefficients, as tables, JSON, CSV and YAML.

    platform  class  rows  source left out %  ...         simulate accuracy
    coefficient  value  standard error  prior  ...        simulate calibrate mine.csv

Deviations are shares: predicted over measured, less one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final, TypeVar

import numpy as np

from simulator._version import __version__
from simulator.evidence.calibration.apply import NORMAL_90
from simulator.evidence.calibration.cluster import UNFITTED
from simulator.evidence.calibration.own import JudgedRun, OwnError, WithErrors, is_inside, summary
from simulator.evidence.calibration.store import KINDS, Calibration, FittedPart, calibration_text
from simulator.question.coefficients import CoefficientKind, Coefficients, priors
from simulator.question.units import GIB
from simulator.show.report.presentation import Presentation, Section
from simulator.show.report.text import amount, dumps, percent, significant, table_csv

SCHEMA_VERSION: Final = 4
TITLES: Final[Mapping[CoefficientKind, str]] = {"memory": "Memory", "time": "Speed"}
HEADERS: Final = (
    *("rows", "sources", "priors\n%", "row left\nout %", "source\nleft out %", "mean over\nsources %", "bias\n%"),
    *("organisation\nleft out %", "inside\n90 %", "half-width\n± %"),
)
"""Columns of a group of rows."""
_SPARE: Final = dict(zip(HEADERS, (0, 4, 5, 6, 0, 8, 7, 9, 3, 2), strict=True))
"""Order of leaving them out, the highest first; 0 stays."""
_EXPLAINED: Final = (
    "Mean absolute errors of the rows that count, predicted over measured less one. Priors: without any calibration. "
    "Left out: the coefficients and their spreads were learned without the row, its source, or all of its "
    "organisation. Inside: rows in their 90 % interval with their source left out."
)
_Row = TypeVar("_Row", bound=WithErrors)


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
            yield error_section(title, rows, ("platform", "class"), lambda row: (row.platform, row.sort), lines)
            lines = ()


def error_section(
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
    return Section(title, lines, (*headers, *HEADERS), cells, tuple(range(len(headers))), spare=_SPARE)


def _cells(rows: Iterable[WithErrors]) -> list[str]:
    figures = summary(rows)
    errors = (figures.uncalibrated, figures.known, figures.source_out, figures.over_sources)
    return [
        *(str(figures.rows), str(figures.sources), *map(percent, errors), f"{100 * figures.bias:+.1f}"),
        *(percent(figures.organisation_out), f"{100 * figures.coverage:.0f}", f"{100 * figures.half_width:.0f}"),
    ]


def row_sections(judged: Sequence[JudgedRun]) -> Iterator[Section]:
    """Yield every row."""
    names = ("priors", "row_left_out", "source_left_out", "organisation_left_out")
    for kind, rows in by_kind(judged):
        unit, cells = _UNITS[kind], []
        for row in rows:
            figures = (f"{value:.1f}" for value in _figures(row))
            errors = (_share(row.errors[name]) for name in names)
            cells.append([row.row.key, row.platform, row.sort, *figures, *errors, f"{100 * row.half_width:.0f}"])
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


def accuracy_json(judged: Sequence[JudgedRun], _shown: Presentation) -> str:
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


def rows_csv(judged: Sequence[JudgedRun], _shown: Presentation) -> str:
    """Return every row as CSV, errors as shares."""
    objects = [{"kind": row.kind} | _row_object(row) for row in judged]
    return table_csv(tuple(objects[0]), (tuple(row.values()) for row in objects))


def own_sections(errors: Sequence[OwnError]) -> Iterator[Section]:
    """Yield own rows before and after their calibration, with the means."""
    for kind, title in TITLES.items():
        mine = [(error.key, (error.before, error.after, error.left_out)) for error in errors if error.kind == kind]
        if mine:
            columns = zip(*(values for _, values in mine), strict=True)
            sizes = ([abs(value) for value in column if value is not None] for column in columns)
            means = (percent(float(np.mean(present))) if present else "-" for present in sizes)
            rows = [[key, *map(_share, values)] for key, values in mine]
            headers = ("row", "before %", "after %", "left out %")
            yield Section(f"{title} of own rows", (), headers, [*rows, ["mean, absolute", *means]])


def own_json(errors: Sequence[OwnError], _shown: Presentation) -> str:
    """Return the same as JSON; errors are shares."""
    return dumps({"own_rows": [dataclasses.asdict(error) for error in errors]}) + "\n"


def own_csv(errors: Sequence[OwnError], _shown: Presentation) -> str:
    """Return the same as CSV."""
    columns = tuple(field.name for field in dataclasses.fields(OwnError))
    return table_csv(columns, map(dataclasses.astuple, errors))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"


_KIND_TITLES: Final[Mapping[CoefficientKind, str]] = {"memory": "Memory", "time": "Time"}


def calibration_yaml(calibrations: Sequence[Calibration], _shown: Presentation) -> str:
    """Return the calibration files, one document each."""
    return "---\n".join(map(calibration_text, calibrations))


def calibration_json(calibrations: Sequence[Calibration], _shown: Presentation) -> str:
    """Return calibrations as JSON."""
    families = []
    for calibration in calibrations:
        about = {name: getattr(calibration, name) for name in ("family", "tool_version")}
        parts = {kind: _part_object(kind, part) for kind in KINDS if (part := calibration.part(kind)) is not None}
        families.append({**about, "tables": list(calibration.tables), "parts": parts})
    return dumps({"families": families}) + "\n"


def calibration_sections(calibrations: Sequence[Calibration]) -> Iterator[Section]:
    """Yield the coefficients of each calibration, with their sources."""
    for calibration, kind in product(calibrations, KINDS):
        part = calibration.part(kind)
        title = f"{_KIND_TITLES[kind]}, family {calibration.family}"
        if part is None:
            text = (
                f"Nothing is fitted: an estimate takes {_KIND_TITLES[kind].lower()} from what ships for the hardware."
            )
            yield Section(title, (text,))
        elif part.known:
            yield Section(title, (f"Not fitted: {part.known}.",))
        else:
            text = f"{len(part.rows_used)} rows used, scatter {100 * part.noise:.2f} %"
            if part.rows_left_out:
                out = ", ".join(f"{key} ({100 * error:+.1f} %)" for key, error in part.rows_left_out.items())
                text += f"; left out: {out}"
            rows = [_coefficient_row(kind, name, part) for name in part.names]
            headers = ("coefficient", "value", "standard error", "90 % interval", "prior", "bounds", "decided by")
            yield Section(title, (f"{text}.",), headers, rows, text_columns=(0, 6), wrapped=("decided by",))


def _fitted_value(part: FittedPart, name: str) -> tuple[float, float]:
    """Return the value of a coefficient, and its standard error."""
    index = part.names.index(name)
    return float(part.vector[index]), float(np.sqrt(part.covariance[index, index]))


def _coefficient_row(kind: CoefficientKind, name: str, part: FittedPart) -> list[str]:
    prior, (value, error) = priors(kind)[name], _fitted_value(part, name)
    low, high = max(value - NORMAL_90 * error, prior.low), min(value + NORMAL_90 * error, prior.high)
    texts = [_in_unit(number, prior.unit) for number in (value, error, low, high)]
    decided_by = " ".join(part.decided_by.get(name, ())) or "none: the prior"
    return [name, *texts[:2], f"{texts[2]} to {texts[3]}", *_prior_cells(kind, name), decided_by]


def _prior_cells(kind: CoefficientKind, name: str) -> tuple[str, str]:
    """Return the cells of a prior with its spread, and of its bounds."""
    prior = priors(kind)[name]
    at, low, high = (_in_unit(value, prior.unit) for value in (_prior_value(kind, name), prior.low, prior.high))
    return f"{at} ± {100 * prior.spread:.0f} %", f"{low} to {high}"


def _prior_value(kind: CoefficientKind, name: str) -> float:
    return float(getattr(getattr(Coefficients(), kind), name))


def _in_unit(value: float, unit: str) -> str:
    """Return a value in a unit that people read: GiB for large bytes, ms for seconds."""
    if unit == "bytes" and (value == 0.0 or value >= _SMALL_BYTES):
        return f"{amount(value / GIB)} GiB"
    return f"{amount(value * 1e3)} ms" if unit.startswith("seconds") else amount(value)


_SMALL_BYTES: Final = 1024.0  # bytes below which a coefficient is one of an element, not of a device


def _part_object(kind: CoefficientKind, part: FittedPart) -> dict[str, Any]:
    if part.known:
        return {"known": part.known, "noise": part.noise, "coefficients": dict(part.values)}
    coefficients = []
    for name in part.names:
        value, error = _fitted_value(part, name)
        fitted = {"name": name, "value": value, "standard_error": error}
        coefficients.append({**fitted, **_meaning(kind, name), "decided_by": list(part.decided_by.get(name, ()))})
    rows = {"rows_used": list(part.rows_used), "rows_left_out": dict(part.rows_left_out)}
    return {"noise": part.noise, **rows, "coefficients": coefficients}


def _meaning(kind: CoefficientKind, name: str) -> dict[str, Any]:
    prior = priors(kind)[name]
    at = {"prior": _prior_value(kind, name), "prior_spread": prior.spread, "bounds": [prior.low, prior.high]}
    return {"unit": prior.unit, **at, "about": prior.about}


def meaning_sections(_answer: None) -> Iterator[Section]:
    """Yield what each coefficient means, with its unit, prior and bounds, and whether shipped rows fit it."""
    headers, wrapped = ("coefficient", "meaning", "unit", "prior", "bounds", "fitted"), ("meaning", "unit")
    for kind, title in _KIND_TITLES.items():
        rows = [
            [name, prior.about, prior.unit, *_prior_cells(kind, name), "no" if name in UNFITTED else "yes"]
            for name, prior in priors(kind).items()
        ]
        yield Section(f"{title} coefficients", (), headers, rows, (0, 1, 2, 5), wrapped)


def meaning_json(_answer: None, _shown: Presentation) -> str:
    """Return the same as JSON."""
    meanings = {
        kind: [{"name": name, **_meaning(kind, name), "fitted": name not in UNFITTED} for name in priors(kind)]
        for kind in KINDS
    }
    return dumps(meanings) + "\n"
