"""`simulate calibrate --probe` once its options are read: rates, launches, coefficients. `lab.probe` does the work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from simulator.errors import UnsupportedError
from simulator.lab.probe.run import FOLDER, ProbeRequest, launch_all, outlook, prepare
from simulator.lab.runner.reference import usual_backend
from simulator.question.specs.catalogue import load_hardware
from simulator.show.cli.streams import note, presentation, write
from simulator.show.report.formats import ANSWERS

_NOT_PROBE = ("files", "family", "from_log", "option", "rows_only")


def probe(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Plan, measure, launch and fit, and write how to use the result."""
    request, form, shown = _request(values), _form(values), presentation(ctx)
    quiet = shown.verbosity < 0
    if values["dry_run"]:
        write(ANSWERS["probe plan"].write(outlook(request), form, shown), None)
        return

    def tell(line: str) -> None:
        note(line, quiet=quiet)

    request.check()
    if request.backend != "cpu":
        tell("experimental: --probe has been walked on processors only, on no accelerator")
    probed = launch_all(prepare(request, tell), tell)
    write(ANSWERS["probe"].write(probed, form, shown), None)
    signal = probed.campaign.interrupted_by
    ctx.exit(128 + signal if signal else 0 if probed.campaign.all_well and probed.calibration_file else 1)


def _request(values: Mapping[str, Any]) -> ProbeRequest:

    for name in _NOT_PROBE:
        if values[name]:
            option = "FILES" if name == "files" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"--probe and {option}: a probe measures rows of its own")
    if values["hardware"] is None:
        raise click.UsageError("--probe needs --hardware: the spec that comes nearest; `simulate hardware` lists them")
    hardware = load_hardware(values["hardware"])
    backend = values["backend"] or usual_backend(hardware.family)
    return ProbeRequest(
        hardware=values["hardware"],
        devices=values["devices"] or (2 if backend == "cpu" else hardware.devices_per_node),
        folder=Path(values["output"] or FOLDER),
        model=values["model"],
        precision=values["precision"] or "bf16",
        backend=backend,
        launches=values["launches"] or 20,
        limit_seconds=float(values["time_limit"] or 600),
        resume=values["resume"],
    )


def _form(values: Mapping[str, Any]) -> str:
    form, allowed = str(values["format"]), ANSWERS["probe"].formats
    if form not in allowed:
        raise UnsupportedError(f"--format {form} and --probe: allowed are {', '.join(allowed)}")
    return form
