"""The layouts that a search recommends beside published ones, with measured speeds: a table of docs/plan.md.

    python -m benchmarks.pairs

Both have the switches of the measured row. `benchmarks.accuracy.vendors` judges all rows that are published as tuned.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simulator.answers.cases import case_of, priceable
from simulator.answers.ranking import estimate_of, query_of
from simulator.cost.pricing.estimate import Estimate
from simulator.evidence.measurements.question import measured_tokens_per_second_per_device, row_question
from simulator.evidence.measurements.rows import MeasuredRow, read_rows
from simulator.question.frameworks.stacks import DEFAULT
from simulator.question.question import SEARCH, Question
from simulator.search.build import estimates_of
from simulator.search.rank import best_of
from simulator.search.space import MIN_FIT_PROBABILITY
from simulator.show.report.estimate import brief_layout

TABLES = Path(__file__).resolve().parents[1] / "calibration" / "measured" / "public"
PAIRS = (
    *(("megatron-bridge-h100", row) for row in (26, 14, 18)),
    *(("megatron-bridge-b200", row) for row in (12, 7, 15)),
)
"""Table and row of each measured run."""
HEAD = "| model, devices | published | measured | predicted | recommended | predicted |"


def main() -> None:
    """Print the table."""
    sys.stdout.write("\n".join([*table(), ""]))


def table() -> Iterator[str]:
    """Yield the lines of the table, in Markdown; speeds are tokens/s of a device."""
    yield from (HEAD, "|---|---|---|---|---|---|")
    for name, number in PAIRS:
        row = measured(name, number)
        query = query_of(replace(switched(row), layout={}), min_fit_probability=MIN_FIT_PROBABILITY)
        best = best_of(query)
        recommended = "nothing | -" if best is None else figures(estimates_of([best])[0])
        yield f"{published_cells(row)} {recommended} |"


def measured(name: str, number: int) -> MeasuredRow:
    """Return a row of a measured table."""
    return next(row for row in read_rows(TABLES / f"{name}.csv") if row.key.endswith(f":{number}"))


def switched(row: MeasuredRow) -> Question:
    """Return the question of a row under its own switches: a search would add those published for the device."""
    question = row_question(row)
    return question if question.stated("stack") else question.changed(SEARCH, stack=DEFAULT)


def published_cells(row: MeasuredRow) -> str:
    """Return the cells of the published layout: question, layout, measured and predicted speed."""
    own = estimate_of(priceable(case_of(switched(row))))
    speed = measured_tokens_per_second_per_device(row)
    question = f"{row.model}, {row.devices} {row.hardware}, {row.precision}"
    layout, predicted = figures(own).split(" | ")
    return f"| {question} | {layout} | {speed:,.0f} | {predicted} |"


def figures(estimate: Estimate) -> str:
    """Return a layout and its predicted speed, in two cells."""
    layout = brief_layout(estimate.layout, estimate.framework).split(", layers")[0]
    layout = (
        layout.replace("micro batch ", "mbs")
        .replace(", no recompute", "")
        .replace("recompute selective ", "recompute ")
    )
    return f"{layout} | {estimate.throughput.tokens_per_second_per_device:,.0f}"


if __name__ == "__main__":
    main()
