"""Estimates as CSV: one row each, the unit in every column's name. Figures are those of the JSON, no others."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from simulator.cost.pricing.estimate import Estimate
from simulator.search.result import Ranking
from simulator.show.report.as_json import json_object
from simulator.show.report.presentation import Presentation


def estimates_csv(answer: Estimate | Ranking, presentation: Presentation) -> str:
    """Return an estimate, or those of a ranking, as rows; parts that only some have are empty in the others."""
    estimates = answer.estimates if isinstance(answer, Ranking) else (answer,)
    rows = [
        {"rank": rank, **_row(json_object(estimate, presentation))} for rank, estimate in enumerate(estimates, start=1)
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return table_csv(columns or _EMPTY_COLUMNS, ([row.get(name) for name in columns] for row in rows))


def table_csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return rows under column names; None becomes an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


_EMPTY_COLUMNS = ("rank", "model", "hardware", "devices", "precision", "verdict")
"""Header of a table without rows."""


def _row(answer: Mapping[str, Any]) -> dict[str, Any]:
    memory, speed = answer["memory"], answer["throughput"]
    row = {name: answer[name] for name in ("model", "hardware", "devices", "precision", "verdict")}
    row |= answer["layout"]
    row |= {
        name: memory[name] for name in ("device_mib", "reserved_mib", "allocated_mib", "capacity_mib", "headroom_mib")
    }
    row |= {f"device_{end}_mib": (memory["interval"] or {}).get(f"{end}_mib") for end in ("low", "high")}
    row |= {name: memory[name] for name in ("fits", "fit_probability", "binding_stage", "moment")}
    row |= {f"{name}_mib": size for name, size in memory["breakdown_mib"].items()}
    row |= {name: value for name, value in speed.items() if not isinstance(value, dict | list) and name != "interval"}
    row |= {f"step_time_{end}_s": (speed["interval"] or {}).get(end) for end in ("low", "high")}
    row |= {f"{name}_s": seconds for name, seconds in speed["breakdown_s"].items()}
    row |= {f"training_{name}": value for name, value in answer.get("training", {}).items()}
    row["violations"] = [broken["rule"] for broken in answer["violations"]]
    row |= {name: answer["provenance"][name] for name in ("calibration", "status")}
    row["notes"] = "; ".join(answer["provenance"]["notes"])
    return row


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return " ".join(map(str, value))
    return value
