"""Judged rows summed up in tables: by class, source and organisation, choices, and every row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from benchmarks.accuracy.choices import choices, chosen
from benchmarks.accuracy.rows import JudgedRow
from simulator.evidence.calibration.sources import Residual
from simulator.show.report.sections import Section

Under = Literal["fitted", "known", "source_out", "organisation_out"]
"""Which fit a row is predicted by."""
TITLES: Final = {"time": "Speed", "memory": "Memory"}
_HEADERS: Final = (
    *("rows", "sources", "priors\n%", "fitted\n%", "row out\n%", "source out\n%", "mean over\nsources %", "bias\n%"),
    *("organisation\nout %", "3 own\nrows %", "inside\n90 %", "half-width\n± %"),
)


@dataclass(frozen=True, slots=True)
class Errors:
    """A group of rows under one fit; all but the counts are shares."""

    rows: int
    sources: int
    mean: float
    """Mean absolute error over rows."""
    over_sources: float
    """Mean over sources of each one's mean absolute error."""
    worst_source: float
    bias: float
    """Mean error, predicted over measured less one."""
    inside: float
    """Share of rows inside the 90 % interval."""
    half_width: float
    """Mean half-width of that interval."""


def residual(row: JudgedRow, under: Under) -> Residual:
    """How far off a row is under one fit."""
    found: Residual = getattr(row, under)
    return found


def errors(rows: Sequence[JudgedRow], under: Under = "source_out") -> Errors | None:
    """Sum up some rows; None without any."""
    if not rows:
        return None
    found = [residual(row, under) for row in rows]
    by_source: dict[str, list[float]] = {}
    for row, one in zip(rows, found, strict=True):
        by_source.setdefault(row.source, []).append(abs(one.relative))
    means = [float(np.mean(values)) for values in by_source.values()]
    return Errors(
        rows=len(rows),
        sources=len(means),
        mean=float(np.mean([abs(one.relative) for one in found])),
        over_sources=float(np.mean(means)),
        worst_source=max(means),
        bias=float(np.mean([one.relative for one in found])),
        inside=float(np.mean([one.inside for one in found])),
        half_width=float(np.mean([one.half_width for one in found])),
    )


def uncalibrated(rows: Iterable[JudgedRow]) -> float:
    """Mean absolute error of some rows with the priors."""
    return float(np.mean([abs(np.expm1(row.uncalibrated)) for row in rows]))


def by_class(rows: Sequence[JudgedRow]) -> Iterator[Section]:
    """Errors by class of device and of what scatters alike."""
    yield from _grouped(rows, ("platform", "class"), lambda row: (row.platform, row.sort))


def by_source(rows: Sequence[JudgedRow]) -> Iterator[Section]:
    """Errors by source."""
    headers = ("source", "organisation", "platform")
    yield from _grouped(rows, headers, lambda row: (row.source, row.organisation, row.platform))


def by_organisation(rows: Sequence[JudgedRow]) -> Iterator[Section]:
    """Errors by who ran the rows."""
    yield from _grouped(rows, ("organisation",), lambda row: (row.organisation,))


def by_news(rows: Sequence[JudgedRow]) -> Iterator[Section]:
    """Errors of sources whose organisation has other sources, and of those nothing else is known of."""
    sources: dict[str, set[str]] = {}
    for row in rows:
        sources.setdefault(row.organisation, set()).add(row.source)

    def news(row: JudgedRow) -> tuple[str]:
        return ("others of its organisation" if len(sources[row.organisation]) > 1 else "none of its organisation",)

    yield from _grouped(rows, ("sources in the fit",), news)


def _grouped(
    rows: Sequence[JudgedRow], headers: tuple[str, ...], key: Callable[[JudgedRow], tuple[str, ...]]
) -> Iterator[Section]:
    for kind, title in TITLES.items():
        of_kind = [row for row in rows if row.kind == kind]
        lines = [
            [*name, *_cells([row for row in of_kind if key(row) == name])] for name in sorted({*map(key, of_kind)})
        ]
        lines.append(["all", *[""] * (len(headers) - 1), *_cells(of_kind)])
        named = f"{title} by {headers[0] if headers[0] != 'platform' else 'class'}"
        yield Section(named, (), (*headers, *_HEADERS), lines, text_columns=tuple(range(len(headers))))


def _cells(rows: Sequence[JudgedRow]) -> list[str]:
    source, fitted, known, organisation = (
        errors(rows, under) for under in ("source_out", "fitted", "known", "organisation_out")
    )
    if source is None or fitted is None or known is None or organisation is None:
        return ["-"] * len(_HEADERS)
    few = [abs(one.relative) for row in rows for one in row.few]
    return [
        *(str(source.rows), str(source.sources)),
        *map(percent, (uncalibrated(rows), fitted.mean, known.mean, source.mean, source.over_sources)),
        f"{100 * source.bias:+.1f}",
        percent(organisation.mean),
        percent(float(np.mean(few))) if few else "-",
        *(f"{100 * share:.0f}" for share in (source.inside, source.half_width)),
    ]


def of_choices(rows: Sequence[JudgedRow]) -> Iterator[Section]:
    """Whether the layout predicted best is fast, and whether the order is kept."""
    found = list(choices(rows))
    text = (
        "Rows of one model, cluster and batch, predicted with their source left out. Regret: speed of the layout "
        "predicted best, behind the best measured. Tau: Kendall's rank correlation of predicted with measured speed."
    )
    lines = [
        [str(one.least_layouts), str(one.groups), percent2(one.regret), percent2(one.worst_regret), f"{one.tau:.2f}"]
        for one in chosen(found)
    ]
    yield Section("Choices", (text,), ("layouts\nat least", "groups", "regret %\nmean", "\nworst", "tau\nmean"), lines)
    every = [[one.name, str(one.layouts), percent2(one.regret), f"{one.tau:.2f}"] for one in found]
    yield Section("Every choice", (), ("rows", "layouts", "regret %", "tau"), every, text_columns=(0,))


def every_row(rows: Sequence[JudgedRow]) -> Iterator[Section]:
    """Every row under every fit."""
    for kind, title in TITLES.items():
        lines = [
            [
                *(row.key, row.platform, row.sort, str(row.devices)),
                f"{row.measured:.1f}" if kind == "time" else f"{row.measured / 2**30:.2f}",
                *(f"{100 * np.expm1(error):+.1f}" for error in (row.uncalibrated, row.shipped)),
                *(signed(residual(row, under)) for under in ("fitted", "known", "source_out", "organisation_out")),
                f"{100 * row.source_out.half_width:.0f}",
            ]
            for row in rows
            if row.kind == kind
        ]
        headers = (
            *("row", "platform", "class", "devices", "TFLOPS" if kind == "time" else "GiB", "priors %", "shipped %"),
            *("fitted %", "row out %", "source out %", "organisation out %", "± %"),
        )
        yield Section(f"Every row: {title.lower()}", (), headers, lines, text_columns=(0, 1, 2))


def percent(value: float) -> str:
    """A share in per cent with one decimal."""
    return f"{100 * value:.1f}"


def percent2(value: float) -> str:
    """A share in per cent with two decimals."""
    return f"{100 * value:.2f}"


def signed(found: Residual) -> str:
    """A residual in per cent with its sign."""
    return f"{100 * found.relative:+.1f}"
