"""The trace of docs/measure.md and the predictions of docs/traced.csv: `python -m tools.regenerate traces` writes both.

The traced figures themselves are measured: each is the peak that `simulate trace` printed for its row.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import re
from collections.abc import Mapping
from pathlib import Path

from simulator.api import scenario_of
from simulator.lab.trace.tracing import tensors_only
from simulator.question.units import MIB
from simulator.search.build import estimate_layout
from tests.cli.running import run
from tests.docs.pages import DOCS
from tests.scenario.cases import complete_layout

PAGE = DOCS / "measure.md"
TABLE = DOCS / "traced.csv"
SIZES = ("tensor_parallel", "pipeline_parallel", "data_parallel", "zero_stage")
_EXAMPLE = re.compile(r"```sh\nsimulate (trace [^\n]*)\n```\n\n```text\n.*?```\n", re.DOTALL)


def rows() -> list[dict[str, str]]:
    """Stages that were traced, with what was predicted of them."""
    with TABLE.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def predicted_mib(row: Mapping[str, str]) -> float:
    """Allocated bytes of a row's stage as they are predicted now, in MiB."""
    layout = {name: int(row[name]) for name in SIZES}
    scenario = scenario_of(
        model=row["model"],
        hardware="h100-sxm-80g",
        devices=layout["tensor_parallel"] * layout["pipeline_parallel"] * layout["data_parallel"],
        global_batch_size=512,
        framework="torch",
        calibration="none",
    )
    chosen = complete_layout(scenario, **layout, recompute=row["recompute"])
    return estimate_layout(tensors_only(scenario), chosen).memory.stages[int(row["stage"])].allocated_bytes / MIB


def _table() -> str:
    found = rows()
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(found[0]), lineterminator="\n")
    writer.writeheader()
    for row in found:
        now = predicted_mib(row)
        error = f"{100 * (now / float(row['traced_mib']) - 1):+.2f}"
        writer.writerow({**row, "predicted_mib": f"{now:.1f}", "difference_percent": error})
    return stream.getvalue()


def _page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    if importlib.util.find_spec("torch") is None:
        return text
    example = _EXAMPLE.search(text)
    assert example is not None
    shown = f"```sh\nsimulate {example[1]}\n```\n\n```text\n{run(*example[1].split()).stdout}```\n"
    return text.replace(example[0], shown)


def generated() -> Mapping[Path, str]:
    """The page where torch is installed, and the table."""
    return {PAGE: _page(), TABLE: _table()}
