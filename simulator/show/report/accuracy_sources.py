"""The errors by source, platform and class, the choices, and every public row with its switches: text and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.evidence.calibration.own import OwnError
from simulator.evidence.calibration.sources import DRAWS, FEW, SEED, Residual, RowJudged, SourcesJudged, chosen, summary
from simulator.evidence.calibration.vendors import LEAST_TAU, WITHIN
from simulator.question.coefficients.values import CoefficientKind
from simulator.question.scenario.layout import layout_object
from simulator.question.units import GIB
from simulator.show.report.as_json import significant
from simulator.show.report.grid import Style
from simulator.show.report.sections import Section, sections_text
from simulator.show.report.text import layout_text

_TITLES: Mapping[CoefficientKind, str] = {"memory": "Memory", "time": "Speed"}
_ERRORS = ("fitted %", "source\nleft out %", "organisation\nleft out %", f"{FEW} own\nrows %")
_COVERAGE = ("inside 90 %", "half-width\n± %", "known:\ninside %", "half-width\n± %")
GroupKey = Callable[[RowJudged], tuple[str, ...]]


def sources_text(found: Sequence[SourcesJudged], style: Style, *, table: str | None = None) -> str:
    """Return the report; with `table` only the rows of that table."""
    return sections_text((section for one in found for section in source_sections(one, table)), style)


def source_sections(found: SourcesJudged, table: str | None) -> Iterator[Section]:
    """Yield the parts of the report on one figure; with `table` only the rows of that table."""
    rows = [row for row in found.rows if table in (None, row.source)]
    if not rows:
        return
    title = _TITLES[found.kind]
    text = (
        "Mean absolute errors of the rows that count. Left out: the spreads and coefficients were learned without the "
        f"source, or without all of its organisation. {FEW} own rows: that many of the source were known, the others "
        f"predicted ({DRAWS} random subsets, seed {SEED}). Inside: rows in the 90 % interval with their source left "
        "out; known: with the other rows of their source."
    )
    by_source = _table(rows, lambda row: (row.source, row.sample.row.organisation or "own", row.platform))
    headers = ("source", "organisation", "platform", "rows", *_ERRORS, *_COVERAGE)
    yield Section(f"{title} by source", (text,), headers, by_source, text_columns=(0, 1, 2))
    by_class = _table(rows, lambda row: (row.platform, row.sort))
    yield Section(f"{title} by class", (), ("platform", "class", "rows", *_ERRORS, *_COVERAGE), by_class, (0, 1))
    yield from _choices(found, table)
    yield from _published(found, table)
    yield _every(found.kind, rows)


def _table(rows: Sequence[RowJudged], key: GroupKey) -> list[list[str]]:
    lines = []
    for name in sorted({key(row) for row in rows}):
        part = summary(row for row in rows if key(row) == name)
        errors = (part.fitted, part.source_out, part.organisation_out, part.few)
        shares = (part.coverage, part.half_width, part.known_coverage, part.known_half_width)
        lines.append([*name, str(part.rows), *map(_percent, errors), *(f"{100 * share:.0f}" for share in shares)])
    return lines


def _choices(found: SourcesJudged, table: str | None) -> Iterator[Section]:
    kept = [choice for choice in found.choices if table is None or choice.name.startswith(f"{table} ")]
    if not kept:
        return
    text = (
        "Rows of one model, cluster and batch, predicted with their source left out. Regret: speed of the layout "
        "predicted best, behind the best measured. Tau: Kendall's rank correlation of predicted with measured speed."
    )
    lines = [
        [
            str(one.least_layouts),
            str(one.groups),
            *(f"{100 * x:.2f}" for x in (one.regret, one.worst_regret)),
            f"{one.tau:.2f}",
        ]
        for one in chosen(kept)
    ]
    headers = ("layouts\nat least", "groups", "regret %\nmean", "\nworst", "tau\nmean")
    yield Section("Does it choose well?", (text,), headers, lines)
    rows = [[c.name, str(c.layouts), f"{100 * c.regret:.2f}", f"{c.tau:.2f}"] for c in kept]
    yield Section("Every choice", (), ("rows", "layouts", "regret %", "tau"), rows, wrapped=("rows",))


def _published(found: SourcesJudged, table: str | None) -> Iterator[Section]:
    kept = [one for one in found.published if table is None or one.key.startswith(f"{table}:")]
    if not kept:
        return
    near, ordered = sum(one.within for one in kept), [one for one in kept if one.tau is not None]
    text = (
        f"Rows that vendors publish as tuned, the fastest of each question, under the shipped coefficients and the "
        f"row's own switches. Short: predicted speed behind that of the best layout that is likely to fit, at most "
        f"{100 * WITHIN:.0f} %: {near} of {len(kept)}. Faster: layouts predicted to be. Tau of three ways of running "
        f"the question and more, at least {LEAST_TAU}: "
        f"{sum((one.tau or 0.0) >= LEAST_TAU for one in ordered)} of {len(ordered)}."
    )
    lines = [
        [
            *(one.key, one.question, layout_text(one.layout), "yes" if one.fits else "no"),
            *(f"{100 * one.error:+.1f}", f"{100 * one.lacks:.1f}", str(one.faster)),
            *("-" if one.tau is None else f"{one.tau:.2f}", layout_text(one.best) if one.faster else "the same"),
        ]
        for one in kept
    ]
    headers = ("row", "question", "published", "fits", "speed %", "short %", "faster", "tau", "predicted best")
    wide = ("question", "published", "predicted best")
    yield Section("Layouts that vendors publish", (text,), headers, lines, text_columns=(0, 1, 2, 3, 8), wrapped=wide)


def _every(kind: CoefficientKind, rows: Sequence[RowJudged]) -> Section:
    unit = "GiB" if kind == "memory" else "TFLOPS"
    lines = [
        [
            row.sample.key,
            *_figures(kind, row),
            *(_signed(judged) for judged in (row.fitted, row.source_out, row.organisation_out)),
            " ".join("=".join(pair) for pair in row.sample.row.options) or "the profile's",
            row.sample.row.options_source or "a reading",
        ]
        for row in rows
    ]
    headers = ("row", f"measured\n{unit}", f"source left\nout {unit}", *_ERRORS[:3], "switches", "documented")
    return Section(
        f"Every row by source: {_TITLES[kind].lower()}",
        (),
        headers,
        lines,
        text_columns=(0, 6, 7),
        wrapped=("switches", "documented"),
    )


def _figures(kind: CoefficientKind, row: RowJudged) -> tuple[str, str]:
    measured = (row.sample.row.memory_bytes or 0.0) / GIB if kind == "memory" else row.sample.measured_tflops or 0.0
    return f"{measured:.1f}", f"{measured * np.exp(row.source_out.error):.1f}"


def sources_object(found: Sequence[SourcesJudged], *, table: str | None = None) -> dict[str, Any]:
    """Return the same as plain values; errors and widths are shares."""
    return {_TITLES[one.kind].lower(): _object(one, table) for one in found}


def _object(found: SourcesJudged, table: str | None) -> dict[str, Any]:
    rows = [row for row in found.rows if table in (None, row.source)]
    hyper = found.state.hyper
    return {
        "seed": SEED,
        "family_spread": significant(hyper.family),
        "cluster_spread": significant(hyper.cluster),
        "by_source": _summaries(rows, ("source", "platform"), lambda row: (row.source, row.platform)),
        "by_class": _summaries(rows, ("platform", "class"), lambda row: (row.platform, row.sort)),
        "choices": [dataclasses.asdict(choice) for choice in found.choices],
        "chosen": [dataclasses.asdict(one) for one in chosen(found.choices)],
        "published": [
            {
                "row": one.key,
                "question": one.question,
                "layout": layout_object(one.layout),
                "fits": one.fits,
                "error": significant(one.error),
                "short": significant(one.lacks),
                "faster": one.faster,
                "best": layout_object(one.best),
                "layouts": one.layouts,
                "tau": one.tau,
            }
            for one in found.published
        ],
        "rows": [
            {
                "row": row.sample.key,
                "fitted": significant(row.fitted.relative),
                "source_left_out": significant(row.source_out.relative),
                "organisation_left_out": significant(row.organisation_out.relative),
                "half_width": significant(row.source_out.half_width),
                "inside": row.source_out.inside,
                "options": dict(row.sample.row.options),
                "options_source": row.sample.row.options_source or None,
            }
            for row in rows
        ],
    }


def _summaries(rows: Sequence[RowJudged], names: Sequence[str], key: GroupKey) -> list[dict[str, Any]]:
    return [
        dict(zip(names, name, strict=True)) | dataclasses.asdict(summary(row for row in rows if key(row) == name))
        for name in sorted({key(row) for row in rows})
    ]


def own_text(found: Sequence[OwnError], style: Style) -> str:
    """Return own rows before and after their calibration, with the means."""
    return sections_text(own_sections(found), style)


def own_sections(found: Sequence[OwnError]) -> Iterator[Section]:
    """Yield the same in parts."""
    for kind, title in _TITLES.items():
        mine = [one for one in found if one.kind == kind]
        rows = [[one.key, *(_share(value) for value in (one.before, one.after, one.left_out))] for one in mine]
        means = [_mean([getattr(one, name) for one in mine]) for name in ("before", "after", "left_out")]
        if mine:
            headers = ("row", "before %", "after %", "left out %")
            yield Section(f"{title} of own rows", (), headers, [*rows, ["mean, absolute", *means]])


def own_object(found: Sequence[OwnError]) -> dict[str, Any]:
    """Return the same as plain values; errors are shares."""
    return {"own_rows": [dataclasses.asdict(one) for one in found]}


def _mean(values: Sequence[float | None]) -> str:
    kept = [abs(value) for value in values if value is not None]
    return _percent(float(np.mean(kept))) if kept else "-"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _signed(found: Residual) -> str:
    return f"{100 * found.relative:+.1f}"
