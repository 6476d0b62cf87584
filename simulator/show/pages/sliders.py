"""A page with sliders: the best layout of every combination of some inputs, priced beforehand.

The browser computes no figure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from itertools import product
from math import prod
from typing import Any

from simulator.answers.command import estimate_command
from simulator.answers.ranking import fastest
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import SimulateError
from simulator.question.origin import ARGUMENT
from simulator.question.scenario.inputs import MOST_DEVICES, MOST_TOKENS
from simulator.question.specs.catalogue import load_hardware
from simulator.search.result import Ranking
from simulator.show.pages.answers import answer_sources, has_experts, panel, panel_boxes
from simulator.show.pages.page import PageSection, Table, page_html
from simulator.show.report.first_screen import fastest_line, speed_sentence
from simulator.show.report.presentation import Presentation
from simulator.show.report.ranking_table import ranking_footer, ranking_question
from simulator.show.report.text import cluster_speed, gib, grouped, layout_text, sharded_layout_text, verdict_sentence

_NODES, _LENGTHS, _BATCHES = (0.5, 1, 2, 4), (0.5, 1, 2, 4), (0.5, 1, 2)
"""Factors of an input, by position of its slider."""


@dataclass(frozen=True, slots=True)
class Knob:
    """An input with the values of its slider, which begins at index `start`."""

    name: str
    label: str
    values: tuple[Any, ...]
    start: int

    def text(self, value: Any) -> str:
        """Return the text of a value beside the slider."""
        return grouped(value) if isinstance(value, int) else str(value)


Cells = dict[tuple[Any, ...], Estimate | None]
"""Estimate of the best layout by the values of all knobs; None where none is likely enough to fit."""


def sliders_page(ranking: Ranking, presentation: Presentation) -> str:
    """Return the page of sliders. Raises UnsupportedError without plotly."""
    knobs = tuple(knobs_of(ranking))
    cells = _priced(knobs, presentation)
    layouts = [_cell(values, estimate, knobs, presentation) for values, estimate in cells.items()]
    detailed = replace(presentation, verbosity=1, colour=False)
    best = ranking.estimates[:1]
    sections = [
        PageSection(title="Knobs", html=f'<div class="knobs">{"".join(_sliders(knobs))}</div>{panel_boxes()}'),
        PageSection(
            title="Every position",
            text=["The fastest layout that is likely enough to fit; a dash where there is none."],
            table=_table(knobs, cells),
            folded=True,
        ),
    ]
    return page_html(
        title=ranking_question(ranking),
        lead=fastest_line(best[0], detailed) if best else "Nothing fits as it was asked: turn the knobs.",
        sections=sections,
        figures={},
        layouts=layouts,
        command=presentation.command,
        notes=[*ranking_footer(ranking, detailed), *(answer_sources(best[0], presentation) if best else ())],
    )


def knobs_of(ranking: Ranking) -> Iterator[Knob]:
    """Yield the inputs of a ranking's question that have a slider, with values around the question's."""
    query = ranking.query
    nodes, hardware = query.get("nodes"), str(query["hardware"])
    if isinstance(nodes, int) and ":" not in hardware:
        yield _knob("nodes", "nodes", nodes, _NODES, MOST_DEVICES // load_hardware(hardware).devices_per_node)
    yield _knob("seq_length", "sequence length", _count(query["seq_length"]), _LENGTHS, MOST_TOKENS)
    yield _knob("global_batch_size", "sequences a step", _count(query["global_batch_size"]), _BATCHES, MOST_TOKENS)
    precision = str(query["precision"])
    words = tuple(dict.fromkeys((precision, "fp8"))) if ranking.fp8 is not None else (precision,)
    yield Knob("precision", "precision", words, 0)


def _count(value: object) -> int:
    return value if isinstance(value, int) else 1


def _knob(name: str, label: str, asked: int, factors: Sequence[float], most: int) -> Knob:
    values = sorted({min(max(int(asked * factor), 1), most) for factor in factors})
    return Knob(name, label, tuple(values), values.index(asked))


def _priced(knobs: Sequence[Knob], presentation: Presentation) -> Cells:
    """Price all combinations of values, the last knob varying fastest."""
    cells: Cells = {}
    total = prod(len(knob.values) for knob in knobs)
    for values in product(*(knob.values for knob in knobs)):
        turned = {knob.name: value for knob, value in zip(knobs, values, strict=True)}
        question = presentation.question.changed(ARGUMENT, **turned)
        cells[values] = None
        with suppress(SimulateError):
            cells[values] = fastest(question, space=presentation.space).recommended
        if presentation.progress is not None:
            presentation.progress(len(cells), total)
    return cells


def _cell(
    values: Sequence[Any], estimate: Estimate | None, knobs: Sequence[Knob], presentation: Presentation
) -> Mapping[str, Any]:
    """Return the panel of one combination of values."""
    if estimate is None:
        asked = ", ".join(f"{knob.label} {knob.text(value)}" for knob, value in zip(knobs, values, strict=True))
        return {"title": "Nothing is likely enough to fit.", "verdict": asked, "command": ""}
    verdict = f"{speed_sentence(estimate, presentation)}; {verdict_sentence(estimate, colour=False)}"
    command = estimate_command(estimate, has_experts=has_experts(presentation))
    return panel(estimate, {"title": sharded_layout_text(estimate.layout), "verdict": verdict, "command": command})


def _sliders(knobs: Sequence[Knob]) -> Iterator[str]:
    """Yield a slider for each knob with several values; its stride counts the cells between two positions."""
    for number, knob in enumerate(knobs):
        texts = [knob.text(value) for value in knob.values]
        stride = prod(len(other.values) for other in knobs[number + 1 :])
        if len(texts) > 1:
            yield (
                f'<label>{escape(knob.label)} <output>{escape(texts[knob.start])}</output><input type="range" min="0" '
                f'max="{len(texts) - 1}" value="{knob.start}" data-stride="{stride}" '
                f'data-values="{escape(json.dumps(texts))}"></label>'
            )
        else:
            yield f"<span>{escape(knob.label)} <output>{escape(texts[0])}</output></span>"


def _table(knobs: Sequence[Knob], cells: Cells) -> Table:
    rows = []
    for values, estimate in cells.items():
        asked = [knob.text(value) for knob, value in zip(knobs, values, strict=True)]
        if estimate is None:
            rows.append([*asked, "-", "-", "-"])
        else:
            figures = grouped(cluster_speed(estimate)), gib(estimate.memory.device_bytes)
            rows.append([*asked, *figures, layout_text(estimate.layout)])
    headers = [*(knob.label for knob in knobs), "tokens/s", "GiB", "layout"]
    return Table(headers=headers, rows=rows, text_columns=frozenset({len(headers) - 1}))
