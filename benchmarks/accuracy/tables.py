"""Judged rows summed up in tables: by class, source and organisation, choices, what vendors publish, and every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from benchmarks.accuracy.choices import choices, chosen
from benchmarks.accuracy.judge import Residual
from benchmarks.accuracy.rows import KINDS, JudgedRow, Judgement, published
from benchmarks.accuracy.vendors import LEAST_TAU, WITHIN
from simulator.question.coefficients import CoefficientKind
from simulator.show.report.calibration import TITLES, error_section
from simulator.show.report.presentation import Section

_UNITS: Final = {"time": "TFLOPS", "memory": "GiB"}


def by_class(found: Judgement) -> Iterator[Section]:
    """Errors by class of device and of what scatters alike."""
    yield from _error_section(found, "class", ("platform", "class"), lambda row: (row.platform, row.sort))


def by_source(found: Judgement) -> Iterator[Section]:
    """Errors by source."""
    headers = ("source", "organisation", "platform")
    yield from _error_section(found, "source", headers, lambda row: (row.source, row.organisation, row.platform))


def by_organisation(found: Judgement) -> Iterator[Section]:
    """Errors by who ran the rows."""
    yield from _error_section(found, "organisation", ("organisation",), lambda row: (row.organisation,))


def by_news(found: Judgement) -> Iterator[Section]:
    """Errors of sources whose organisation has other sources in the fit, and of strangers'."""
    alone = _alone(found)

    def news(row: JudgedRow) -> tuple[str]:
        return ("none" if row.organisation in alone else "others",)

    yield from _error_section(found, "what the fit has of its organisation", ("sources",), news)


def strangers(found: Judgement, kind: CoefficientKind) -> tuple[list[JudgedRow], list[JudgedRow]]:
    """Rows of whose organisation the fit has no other source, and the others."""
    alone, rows = _alone(found), found.of_kind(kind)
    return [row for row in rows if row.organisation in alone], [row for row in rows if row.organisation not in alone]


def _alone(found: Judgement) -> set[str]:
    """Organisations with one source."""
    sources: dict[str, set[str]] = {}
    for row in found.rows:
        sources.setdefault(row.organisation, set()).add(row.source)
    return {organisation for organisation, named in sources.items() if len(named) == 1}


def _error_section(
    found: Judgement, by: str, headers: tuple[str, ...], key: Callable[[JudgedRow], tuple[str, ...]]
) -> Iterator[Section]:
    for kind in KINDS:
        if rows := found.of_kind(kind):
            yield error_section(f"{TITLES[kind]} by {by}", rows, headers, key)


def of_choices(found: Judgement) -> Iterator[Section]:
    """Whether the layout predicted best is fast, and whether the order is kept."""
    every = list(choices(found.rows))
    text = (
        "Rows of one model, cluster and batch, predicted with their source left out. Regret: speed of the layout "
        "predicted best, behind the best measured. Tau: Kendall's rank correlation of predicted with measured speed."
    )
    lines = [
        [str(one.least_layouts), str(one.groups), percent(one.regret), percent(one.worst_regret), f"{one.tau:.2f}"]
        for one in chosen(every)
    ]
    yield Section("Choices", (text,), ("layouts\nat least", "groups", "regret %\nmean", "\nworst", "tau\nmean"), lines)
    rows = [[one.name, str(one.layouts), percent(one.regret), f"{one.tau:.2f}"] for one in every]
    yield Section("Every choice", (), ("rows", "layouts", "regret %", "tau"), rows, text_columns=(0,))


def of_vendors(_: Judgement) -> Iterator[Section]:
    """Where a search puts the layouts that vendors publish as tuned."""
    every = published()
    ordered = [one for one in every if one.tau is not None]
    text = (
        "Rows that vendors publish as tuned, the fastest of each question, under the shipped coefficients and the "
        "row's own switches. Short: predicted speed behind that of the best layout that is likely to fit, at most "
        f"{100 * WITHIN:.0f} %: {sum(one.within for one in every)} of {len(every)}. Faster: "
        f"layouts predicted to be. Tau of three ways of running the question and more, at least {LEAST_TAU}: "
        f"{sum((one.tau or 0.0) >= LEAST_TAU for one in ordered)} of {len(ordered)}."
    )
    lines = [
        [
            *(one.key, one.question, one.layout, "yes" if one.fits else "no"),
            *(f"{100 * one.error:+.1f}", f"{100 * one.lacks:.1f}", str(one.faster)),
            *("-" if one.tau is None else f"{one.tau:.2f}", one.best if one.faster else "the same"),
        ]
        for one in every
    ]
    headers = ("row", "question", "published", "fits", "speed %", "short %", "faster", "tau", "predicted best")
    wide = ("question", "published", "predicted best")
    yield Section("Layouts that vendors publish", (text,), headers, lines, text_columns=(0, 1, 2, 3, 8), wrapped=wide)


def every_row(found: Judgement) -> Iterator[Section]:
    """Every row under every fit."""
    for kind in KINDS:
        lines = [
            [
                *(row.key, row.platform, row.sort, str(row.devices)),
                f"{row.measured:.1f}" if kind == "time" else f"{row.measured / 2**30:.2f}",
                *(f"{100 * np.expm1(error):+.1f}" for error in (row.uncalibrated, row.shipped)),
                *map(_signed, (row.fitted, row.known, row.source_out, row.organisation_out)),
                f"{100 * row.source_out.half_width:.0f}",
            ]
            for row in found.of_kind(kind)
        ]
        headers = (
            *("row", "platform", "class", "devices", _UNITS[kind], "priors %", "shipped %"),
            *("fitted %", "row out %", "source out %", "organisation out %", "± %"),
        )
        yield Section(f"{TITLES[kind]}, every row", (), headers, lines, text_columns=(0, 1, 2))


def percent(value: float) -> str:
    """A share in per cent with two decimals."""
    return f"{100 * value:.2f}"


def _signed(found: Residual) -> str:
    return f"{100 * found.relative:+.1f}"
