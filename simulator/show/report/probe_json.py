"""What a probe measured, launched and fitted, as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simulator.lab.probe.launches import Compared, Probed
from simulator.lab.probe.plan import Planned
from simulator.lab.probe.prepare import Prepared
from simulator.show.report.as_json import dumps


def probe_json(probed: Probed) -> str:
    """Return everything that the tables show."""
    ready = probed.prepared
    document = _prepared(ready) | {
        "launches": [_launch(one) for one in probed.compared],
        "undetermined": list(probed.undetermined),
        "rows": str(ready.request.rows_file),
        "calibration": None if probed.calibration_file is None else str(probed.calibration_file),
        "interrupted": bool(probed.campaign.interrupted_by),
    }
    return dumps(document) + "\n"


def outlook_json(ready: Prepared) -> str:
    """Return the plan."""
    return dumps(_prepared(ready) | {"launches": [_planned(one) for one in ready.design.launches]}) + "\n"


def _prepared(ready: Prepared) -> dict[str, Any]:
    return {
        "hardware": str(ready.spec_file),
        "devices": ready.request.devices,
        "precision": ready.request.precision,
        "backend": ready.request.backend,
        "rates": asdict(ready.rates),
        "rates_measured": ready.measured is not None,
        "prior_share_left": ready.design.left,
    }


def _planned(planned: Planned) -> dict[str, Any]:
    return {
        "title": planned.candidate.title,
        "predicted_step_s": planned.step_seconds,
        "launch_s": planned.launch_seconds,
        "pins": list(planned.pins),
    }


def _launch(one: Compared) -> dict[str, Any]:
    return _planned(one.planned) | {"measured_step_s": one.measured_seconds, "fitted_step_s": one.after_seconds}
