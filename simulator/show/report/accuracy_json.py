"""The accuracy report as plain values for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from simulator._version import __version__
from simulator.evidence.calibration.accuracy import Accuracy, Ordering, RowError
from simulator.evidence.calibration.assessment import Assessment, FamilyAccuracy, figures
from simulator.evidence.calibration.doubts import Doubt
from simulator.question.scenario.layout import Layout, layout_object
from simulator.show.report.as_json import mib, told

SCHEMA_VERSION = 1
_WHICH = ("fitted", "left_out", "left_model_out", "baseline", "carried")


def accuracy_object(found: Assessment, *, table: str | None = None) -> dict[str, Any]:
    """Return the report as plain values; with `table` only the groups and rows of that table. Errors are shares."""
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "figures": figures(found),
        "targets": [dataclasses.asdict(target) for target in found.targets],
        "ordering": _ordering(found.ordering),
        "family_ordering": _ordering(found.family_ordering),
        "families": [_family(family, table) for family in found.families],
        "rules_of_thumb": [
            told(checked, "rule", "outcome") | {"findings": list(checked.findings)} for checked in found.rules
        ],
    }


def _ordering(found: Ordering | None) -> dict[str, Any] | None:
    return None if found is None else told(found, "pairs", "right", "best_within")


def _family(family: FamilyAccuracy, table: str | None) -> dict[str, Any]:
    return {
        "family": family.fitted.family,
        "parts": {part.kind: _part(family, part, table) for part in family.parts},
        "verdicts": [
            {
                "row": verdict.sample.key,
                "outcome": verdict.sample.row.outcome,
                "verdict": verdict.said,
                "agrees": verdict.agrees,
                "need_mib": mib(verdict.need_bytes),
                "usable_mib": mib(verdict.capacity_bytes),
            }
            for verdict in family.verdicts
            if table in (None, verdict.sample.row.table)
        ],
        "doubts": [
            doubt_object(doubt) for doubt in family.fitted.doubts if table in (None, doubt.key.rpartition(":")[0])
        ],
    }


def _part(family: FamilyAccuracy, part: Accuracy, table: str | None) -> dict[str, Any]:
    return {
        "unit": "bytes" if part.kind == "memory" else "TFLOP/s per device",
        "not_stored": family.fitted.not_stored(part.kind) or None,
        "coverage": part.coverage,
        "groups": list(_groups(part.part(table=table))),
        "rows": [_row(row) for row in part.part(table=table).rows],
    }


def _groups(part: Accuracy) -> Iterator[dict[str, Any]]:
    for table, model, precision in sorted({row.group for row in part.rows}):
        errors = {which: part.part(group=(table, model, precision)).errors(which) for which in _WHICH}
        yield {
            "table": table,
            "model": model,
            "precision": precision,
            **{which: None if found is None else dataclasses.asdict(found) for which, found in errors.items()},
        }


def _row(row: RowError) -> dict[str, Any]:
    return {
        "row": row.key,
        **told(row, "measured", "predicted", "counted", "used", "sole_support", "inside_interval", *_WHICH),
    }


def doubt_object(doubt: Doubt) -> dict[str, Any]:
    """Return a doubtful row as plain values."""
    return {
        "row": doubt.key,
        "finding": doubt.finding,
        "says": doubt.says,
        "memory_error": doubt.memory_error,
        "speed_error": doubt.speed_error,
        "devices_from_figures": doubt.devices,
        "hypotheses": [
            {"layout": _layout(found.layout), **told(found, "memory_error", "speed_error")}
            for found in doubt.hypotheses
        ],
    }


def _layout(layout: Layout) -> dict[str, Any]:
    """Return the part of a layout that a hypothesis is about."""
    plain = layout_object(layout)
    return {key: plain[key] for key in ("tp", "pp", "cp", "dp", "vpp", "micro_batch_size", "recompute")}
