"""Predicted against measured as JSON, with the estimate objects of `simulate estimate` inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator import __version__
from simulator.cost.pricing.estimate import Estimate
from simulator.evidence.measurements.row import MeasuredRow
from simulator.lab.runner.campaign import Campaign
from simulator.lab.runner.compare import ComparedFigure, LayoutComparison
from simulator.lab.runner.launch import Launched
from simulator.lab.runner.learn import Learned
from simulator.question.scenario.layout import layout_object
from simulator.show.report.as_json import SCHEMA_VERSION, dumps, estimate_object, mib, significant, told
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import sharded_layout_text

_PLAIN = Presentation()


def validate_json(campaign: Campaign, rows_file: Path, learned: Learned | None = None) -> str:
    """Return what a campaign measured as JSON text, and what was learned from it."""
    found = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "all_well": campaign.all_well,
        "interrupted_by_signal": campaign.interrupted_by or None,
        "rows_file": str(rows_file),
        "layouts": [_layout(one) for one in campaign.comparisons],
        "refused": [{"layout": sharded_layout_text(one.layout), "reason": one.reason} for one in campaign.plan.refused],
        "calibration": None if learned is None else _learned(learned),
    }
    return dumps(found) + "\n"


def _learned(found: Learned) -> dict[str, Any]:
    return {
        "file": str(found.path) if found.stored else None,
        "rows_used": found.rows,
        "reasons": list(found.reasons),
        "ranking": [
            {
                "layout": layout_object(one.layout),
                "place_before": one.before,
                "place": one.after,
                "step_time_s_before": _step(one.estimate_before),
                "step_time_s": _step(one.estimate_after),
                "measured_step_time_s": None if one.measured_seconds is None else significant(one.measured_seconds),
            }
            for one in found.moved
        ],
    }


def _step(estimate: Estimate | None) -> float | None:
    return None if estimate is None else significant(estimate.throughput.step_seconds)


def _layout(one: LayoutComparison) -> dict[str, Any]:
    memory, step = one.memory, one.step
    return {
        "title": one.title,
        "estimate": estimate_object(one.estimate, _PLAIN),
        "memory_mib": None if memory is None else _figure(memory, mib),
        "step_time_s": None if step is None else _figure(step, significant),
        "ranks": [
            {
                **told(rank, "rank", "stage"),
                "predicted_mib": mib(rank.predicted),
                "measured_mib": mib(rank.measured),
                **told(rank, "error", "predicted_forward_seconds", "forward_seconds", "predicted_backward_seconds"),
                **told(rank, "predicted_device_bytes", "device_bytes", "backward_seconds"),
            }
            for rank in one.ranks
        ],
        "runs": len(one.ran),
        "earlier_rows": one.earlier,
        "step_scatter": significant(one.scatter),
        "failures": list(one.failures),
        "contradiction": one.contradiction or None,
        "rows": [_row(row) for row in one.rows],
        "launches": [_launch(launched) for launched in one.launched],
    }


def _row(row: MeasuredRow) -> dict[str, Any]:
    spread = row.step_time_spread
    return {
        "row": row.key,
        "outcome": row.outcome,
        "error": row.error or None,
        "memory_mib": None if row.memory_bytes is None else mib(row.memory_bytes),
        "memory_kind": row.memory_kind,
        "step_time_s": None if row.step_seconds is None else significant(row.step_seconds),
        "step_spread_s": None if spread is None else dataclasses.asdict(spread),
        "notes": row.source_notes,
    }


def _figure(figure: ComparedFigure, rounded: Callable[[float], float]) -> dict[str, Any]:
    interval = figure.interval
    return {
        "predicted": rounded(figure.predicted),
        "interval": None if interval is None else {"low": rounded(interval.low), "high": rounded(interval.high)},
        "measured": rounded(figure.measured),
        "error": significant(figure.error),
        "inside_interval": figure.inside,
    }


def _launch(launched: Launched) -> dict[str, Any]:
    outcome = launched.outcome
    return {
        "folder": str(launched.launch.folder),
        "repeat": launched.launch.repeat,
        "outcome": outcome.kind,
        "error": outcome.error or None,
        "wall_s": significant(launched.ended.wall_seconds),
        "log": str(launched.ended.log),
        "log_tail": list(outcome.tail),
        "ranks": [dataclasses.asdict(rank) for rank in outcome.ranks],
    }
