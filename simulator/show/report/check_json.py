"""Verdicts as JSON, with the estimate objects of `simulate estimate` inside."""

from __future__ import annotations

import dataclasses
import json
from importlib.resources import files
from typing import Any

from simulator import __version__
from simulator.recipes.check.baseline import Changed
from simulator.recipes.check.peaks import Peak
from simulator.recipes.check.verdict import OUTCOMES, Change, Checked
from simulator.recipes.recipe import Place, Remark
from simulator.show.report.as_json import SCHEMA_VERSION, dumps, estimate_object, significant, told
from simulator.show.report.check_answer import Answer
from simulator.show.report.presentation import Presentation

_PLAIN = Presentation()


def check_json(answer: Answer) -> str:
    """Return the verdicts as JSON text."""
    return dumps(check_object(answer)) + "\n"


def check_object(answer: Answer) -> dict[str, Any]:
    """Return the verdicts as plain values."""
    results = answer.results
    return {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "exit_code": answer.exit_code,
        "gates": dataclasses.asdict(answer.gates),
        "counts": {
            "recipes": len(results),
            "passed": sum(result.passed for result in results),
            "failed": sum(not result.passed for result in results),
            **{outcome: sum(result.outcome == outcome for result in results) for outcome in OUTCOMES},
        },
        "results": [_result(result) for result in results],
        "changed": None if answer.changed is None else [_changed(change) for change in answer.changed],
    }


def check_schema() -> dict[str, Any]:
    """Return the JSON Schema of `simulate check --format json`; estimates are described by `schema.json`."""
    text = files("simulator.show.report").joinpath("check_schema.json").read_text("utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _result(result: Checked) -> dict[str, Any]:
    peaks = result.peaks
    return {
        **told(result, "file", "title", "framework", "dialect", "outcome", "passed", "known"),
        "reasons": list(result.reasons),
        "blame": _place(result.blame),
        "remarks": [_remark(remark) for remark in result.remarks],
        "estimate": None if result.estimate is None else estimate_object(result.estimate, _PLAIN),
        "peaks": None
        if peaks is None
        else {"passes": _peak(peaks.passes), "optimizer_step": _peak(peaks.optimizer_step)},
        "without_offload": None if result.without_offload is None else estimate_object(result.without_offload, _PLAIN),
        "changes": [_change(change) for change in result.changes],
        "largest": None if result.room is None else told(result.room, "seq_length", "micro_batch_size"),
    }


def _peak(peak: Peak) -> dict[str, Any]:
    return {
        **told(peak, "stage", "device_bytes", "capacity_bytes"),
        "fits": peak.device_bytes <= peak.capacity_bytes,
    }


def _remark(remark: Remark) -> dict[str, Any]:
    return {**told(remark, "rule", "severity", "message", "fix", "source"), "place": _place(remark.place)}


def _place(place: Place | None) -> dict[str, Any] | None:
    return None if place is None else told(place, "file", "line")


def _change(change: Change) -> dict[str, Any]:
    return {
        "options": change.text,
        "speed_ratio": significant(change.speed_ratio),
        "patch": change.patch,
        "estimate": estimate_object(change.estimate, _PLAIN),
    }


def _changed(change: Changed) -> dict[str, Any]:
    return {
        **told(change, "file", "title", "kind"),
        "before": None if change.before is None else dataclasses.asdict(change.before),
        "after": None if change.after is None else dataclasses.asdict(change.after),
    }
