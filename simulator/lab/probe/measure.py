"""Job that times a machine's operations: starts its ranks and reads their rates.

Interprets no figure; `summary` does.
"""

from __future__ import annotations

import os
import sys

from simulator.errors import UnsupportedError, one_line
from simulator.lab.probe.request import ProbeRequest
from simulator.lab.probe.sizes import rates_job
from simulator.lab.runner.campaign import Tell
from simulator.lab.runner.diagnosis import diagnosis
from simulator.lab.runner.engine import Command
from simulator.lab.runner.launch import LOG_NAME
from simulator.lab.runner.processes import run_guarded
from simulator.lab.trainer.measured_rates import RATES_NAME, MeasuredRates, RatesJob

_WORKER = "simulator.lab.trainer.rates"
_BUSY = 0.3
"""Load of a processor, per rank, from which timings are off."""


def rates_command(request: ProbeRequest) -> Command:
    """Return the command that measures the rates; write nothing."""
    job = request.rates_folder.absolute() / "job.json"
    ranks = ("--standalone", "--nproc-per-node", str(request.devices), "--max-restarts", "0")
    return Command(
        arguments=(sys.executable, "-m", "torch.distributed.run", *ranks, "-m", _WORKER, str(job)),
        environment={"OMP_NUM_THREADS": "1"} if request.backend == "cpu" else {},
        folder=job.parent,
    )


def known_rates(request: ProbeRequest) -> MeasuredRates | None:
    """Return the rates of an earlier probe in the folder; None without. Raises UnsupportedError for another file."""
    path = request.rates_folder / RATES_NAME
    try:
        return MeasuredRates.read(path) if path.exists() else None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnsupportedError(f"{path}: not the rates of a probe: {one_line(str(error))}; remove it") from error


def measured_rates(request: ProbeRequest, tell: Tell, job: RatesJob | None = None) -> MeasuredRates:
    """Measure the rates. Raises UnsupportedError with the reason where that fails."""
    folder = request.rates_folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RATES_NAME).unlink(missing_ok=True)
    job = job or rates_job(request.devices, request.backend)
    (folder / "job.json").write_text(job.to_json(), encoding="utf-8")
    busy = os.getloadavg()[0] / request.devices
    if request.backend == "cpu" and busy > _BUSY:
        tell(f"the machine is busy (load {os.getloadavg()[0]:.1f}): what is measured now will be too slow")
    tell(f"rates: {len(job.timings)} operations on {request.devices} ranks")
    command, log = rates_command(request), folder / LOG_NAME
    ended = run_guarded(
        command.arguments,
        folder=command.folder,
        environment=command.environment,
        log=log,
        limit_seconds=request.limit_seconds,
    )
    if ended.interrupted:
        raise KeyboardInterrupt
    tell(f"rates: after {ended.wall_seconds:.1f} s")
    measured = known_rates(request) if ended.exit_code == 0 else None
    if measured is None:
        raise UnsupportedError(f"--probe: rates could not be measured: {diagnosis(ended).error}; see {log}")
    return measured
