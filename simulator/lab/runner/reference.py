"""Reference trainer as an engine: its job written, a rank started for each device, the ranks' results read.

    >>> ReferenceEngine(backend="cuda").prepare(pick, folder).arguments[:3]
    ('/usr/bin/python', '-m', 'torch.distributed.run')

Also what this machine's devices are, before anything is launched on them. Ranks (`lab.trainer`) import torch in
processes of their own; this module does not. `lab.runner.engine` has the interface of engines.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.errors import UnsupportedError, one_line
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.files import write_file
from simulator.frameworks.logs import LoggedStep
from simulator.lab.runner import engine
from simulator.lab.runner.processes import Ended, with_package
from simulator.lab.trainer.job import RESULT_NAME, RankResult, TrainingJob, from_json, refused, to_json
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.units import GIB, MIB
from simulator.recipes.logs import steady

JOB_NAME: Final = "job.json"
WORKER: Final = "simulator.lab.trainer"
"""Module that a rank runs, with the job's file as its argument."""
ARRIVE_SECONDS: Final = 15.0
"""Time after which a file that another node wrote is visible in a shared folder."""
_ASK_SECONDS: Final = 300.0
_LEAST_MEMORY, _MOST_MEMORY = 0.85, 1.15
"""Memory that torch shows over that of the spec: a driver keeps a few per cent for itself."""
_CODE: Final = (
    "import json, sys, types\n"
    "from simulator.lab.trainer.backend import Backend\n"
    "found = Backend(types.SimpleNamespace(backend=sys.argv[1], threads=1))\n"
    "free, whole = getattr(found.module, 'mem_get_info', lambda: (0, 0))()\n"
    "print(json.dumps({'name': found.name, 'memory_bytes': whole, 'count': found.module.device_count()}))\n"
)
"""Script that asks torch in a process of its own: this one never imports it, and holds no device while ranks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceEngine:
    """Engine that trains with `simulator.lab.trainer`, in the Python that runs this."""

    backend: str = "cpu"
    """Kind of device, in torch's words."""
    communication: str = ""
    """Collective library, in torch's words; empty for the usual one of the backend."""
    name: str = "reference"
    worker: tuple[str, ...] = ("-m", WORKER)
    """Arguments of a rank's Python."""

    @property
    def experimental(self) -> str:
        """Empty on processors, where the tests train with it."""
        return "" if self.backend == "cpu" else "the reference trainer has run in tests on processors only"

    def check(self) -> None:
        """Raise UnsupportedError without torch or psutil."""
        engine.check_installed("torch", "psutil")

    def prepare(self, pick: engine.Pick, folder: Path) -> engine.Command:
        """Write the job, and return the command of its ranks. Raises UnsupportedError for an unsupported job."""
        job = self._job(pick)
        reason = _inexpressible(pick) or refused(job)
        if reason:
            raise UnsupportedError(reason)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder.absolute() / JOB_NAME
        write_file(path, to_json(job))  # as a whole: nodes that are started by themselves each write the same file
        nodes = pick.scenario.nodes
        # With several nodes torchrun reads its own rank and the first node's address from its environment.
        where = ("--standalone",) if nodes == 1 else ("--rdzv-backend", "static")
        ranks = ("--nnodes", str(nodes), "--nproc-per-node", str(pick.scenario.devices // nodes), "--max-restarts", "0")
        logs = ("--tee", "3", "--log-dir", str(folder.absolute() / "ranks"))
        rank = (*self.worker, str(path))
        return engine.Command(
            arguments=(sys.executable, "-m", "torch.distributed.run", *where, *ranks, *logs, *rank),
            environment={"OMP_NUM_THREADS": str(job.threads)} if self.backend == "cpu" else {},
            folder=folder.absolute(),
            files=(path,),
        )

    def outcome(self, pick: engine.Pick, folder: Path, ended: Ended) -> engine.LaunchOutcome:
        """Return the outcome from the results and logs of the ranks."""
        if ended.exit_code == 0:
            _arrive(folder, pick.scenario.devices)
        ranks, problem = _ranks(folder, pick.scenario.devices)
        if ended.interrupted:
            return engine.LaunchOutcome(kind="interrupted", row=None, ranks=ranks)
        if ended.exit_code == 0 and not ended.timed_out and not problem:
            return engine.LaunchOutcome(kind="ok", row=_row(pick, self.backend, ranks), ranks=ranks)
        failure = engine.diagnosis(ended, more=sorted(folder.glob(engine.NODE_LOG_NAME.format(node="*"))))
        error = problem if ended.exit_code == 0 and failure.kind == "error" else failure.error
        row = engine.launched_row(pick, "oom" if failure.kind == "oom" else "error", error)
        return engine.LaunchOutcome(kind=failure.kind, row=row, error=error, tail=failure.tail, ranks=ranks)

    def _job(self, pick: engine.Pick) -> TrainingJob:
        usable = pick.scenario.hardware.usable_memory_bytes
        return TrainingJob.of(
            pick.scenario,
            pick.layout,
            steps=pick.steps,
            warmup_steps=pick.warmup_steps,
            backend=self.backend,
            communication=self.communication,
            # A processor's memory is limited to the verdict's usable memory; a device limits itself.
            memory_limit_bytes=int(usable) if self.backend == "cpu" else None,
        )


def usual_backend(family: str) -> str:
    """Return the kind of device of a hardware family, in torch's words."""
    if family == "cpu":
        return "cpu"
    return "npu" if family.startswith("ascend") else "cuda"


def _inexpressible(pick: engine.Pick) -> str:
    """Return why a job or a measured row cannot express the launch; empty where both can."""
    if pick.options:
        return f"--option {next(iter(pick.options))}: the reference trainer has its own profile's switches only"
    if pick.layout.recompute_method == "list":
        return "--recompute-layer-list: a measured row has no words for it"
    return ""


def _arrive(folder: Path, count: int) -> None:
    """Wait for the results of ranks on other nodes, which a shared folder may show late."""
    until = time.monotonic() + ARRIVE_SECONDS
    while time.monotonic() < until and len(list(folder.glob(RESULT_NAME.format(rank="*")))) < count:
        time.sleep(0.1)


def _ranks(folder: Path, count: int) -> tuple[tuple[RankResult, ...], str]:
    """Return the results of the ranks, and the first problem with the missing ones."""
    results: list[RankResult] = []
    problem = ""
    for rank in range(count):
        try:
            result = from_json(RankResult, (folder / RESULT_NAME.format(rank=rank)).read_text(encoding="utf-8"))
        except FileNotFoundError:
            problem = problem or f"rank {rank} left no result"
        except (OSError, ValueError) as error:
            problem = problem or f"the result of rank {rank} cannot be read: {one_line(str(error))}"
        else:
            if result.step_seconds and all(0.0 < seconds < math.inf for seconds in result.step_seconds):
                results.append(result)
            else:
                problem = problem or f"rank {rank} timed no step"
    return tuple(results), problem


def step_seconds(ranks: tuple[RankResult, ...]) -> tuple[float, ...]:
    """Return the seconds of each timed step: those of the slowest rank."""
    return tuple(max(step) for step in zip(*(rank.step_seconds for rank in ranks), strict=False))


def _row(pick: engine.Pick, backend: str, ranks: tuple[RankResult, ...]) -> MeasuredRow:
    seconds = step_seconds(ranks)
    timed = steady("", [LoggedStep(iteration=at, seconds=value) for at, value in enumerate(seconds, start=1)], warmup=0)
    figures: dict[str, Any] = {
        "step_time_s": round(statistics.median(seconds), 6),
        **timed.columns,
        "memory_mib": round(max(rank.peak_bytes for rank in ranks) / MIB, 6),
        "memory_kind": "allocated",
        "source_notes": _notes(backend, ranks),
    }
    reserved = [rank.reserved_bytes for rank in ranks if rank.reserved_bytes]
    if reserved:
        figures["memory_reserved_mib"] = round(max(reserved) / MIB, 6)
    return engine.launched_row(pick, "ok", **figures)


def _notes(backend: str, ranks: tuple[RankResult, ...]) -> str:
    """Return notes on a launch: device, versions, and memory by the device's own tool."""
    first = ranks[0]
    notes = [f"backend {backend}", first.device_name, *(f"{name} {text}" for name, text in first.versions.items())]
    used = [rank.device_bytes for rank in ranks if rank.device_bytes]
    if used:
        notes.append(f"device memory {max(used) / MIB:.0f} MiB as its tool shows it")
    return one_line("; ".join(filter(None, notes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device as torch shows it."""

    name: str
    """Name in its driver's words."""
    memory_bytes: float
    """Memory; 0 where torch cannot tell."""
    count: int
    """Devices of the kind on this machine."""


def ask(backend: str) -> Device:
    """Return the first device of a kind, not a processor. Raises UnsupportedError where torch sees none here."""
    try:
        done = subprocess.run(  # noqa: S603  this Python, and the backend's name as one argument
            [sys.executable, "-c", _CODE, backend],
            env=with_package(os.environ),
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return Device(**json.loads(done.stdout.splitlines()[-1]))
        message = next(iter(reversed(done.stderr.splitlines())), f"exit code {done.returncode}")
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError, IndexError) as error:
        message = str(error)
    message = message.partition("InputError: ")[2] or f"backend {backend}: torch could not be asked for it: {message}"
    raise UnsupportedError(f"nothing to launch on: {one_line(message)}")


def contradictions(device: Device, hardware: HardwareSpec, known: Iterable[str]) -> Iterator[str]:
    """Yield differences of a device from that of the spec; `known` are the names of all specs."""
    fraction = device.memory_bytes / hardware.memory_capacity_bytes
    if device.memory_bytes and not _LEAST_MEMORY <= fraction <= _MOST_MEMORY:
        yield (
            f"this machine has {device.name} with {device.memory_bytes / GIB:.1f} GiB, {hardware.name} has "
            f"{hardware.memory_capacity_bytes / GIB:.1f}: name the hardware that it is, or its rows mislead"
        )
    other = {chip for name in known if (chip := _chip(name)) and _is(device.name, chip)}
    expected = _chip(hardware.name)
    if expected and other and expected not in other:
        yield f"this machine has {device.name}, which does not sound like {hardware.name}: its rows may mislead"


def crowded(ranks: int) -> str:
    """Return a warning where this machine has too few processors for the ranks; else an empty text."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if ranks > cores:
        return f"{ranks} ranks share {cores} cores: steps take longer than on hardware with a core for each"
    load = os.getloadavg()[0]
    # An idle machine has a load of up to half a process.
    if ranks + load > cores + 0.5:
        return f"other work runs here (load {load:.1f} on {cores} cores, before {ranks} ranks): steps may take longer"
    return ""


def _chip(name: str) -> str:
    """Return the word of a spec's name that names the chip: the first with a digit."""
    return next((word for word in name.split("-") if re.search(r"[0-9]", word)), "")


def _is(device: str, chip: str) -> bool:
    """Tell whether a driver's words name a chip: not h20 in those of an h200."""
    end = "" if chip[-1].isalpha() else "(?![0-9])"
    return re.search(rf"(?<![0-9]){re.escape(chip)}{end}", device.lower()) is not None
