"""Engines: the reference trainer that ships, and outside frameworks (experimental), whose log becomes a row.

Of the reference trainer a job is written, a rank started for each device, and the ranks' results read; ranks
(`lab.trainer`) import torch in processes of their own, this module does not. Of a framework that the user has
installed the recipe of `simulate emit` is started, in the user's own environment, of which it changes nothing; figures
come from the log alone, and the log of another layout is refused.
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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, SimulateError, UnsupportedError, one_line
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.files import write_file
from simulator.frameworks.logs import LoggedStep
from simulator.lab.runner import engine
from simulator.lab.runner.engine import Command, LaunchOutcome, Pick
from simulator.lab.runner.processes import Ended, with_package
from simulator.lab.trainer.job import RESULT_NAME, RankResult, TrainingJob, check_job, from_json, to_json
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.units import GIB, MIB, to_mib
from simulator.question.vocabulary import RecipeFormat
from simulator.recipes.emit.write import emit
from simulator.recipes.logs import read_log, steady
from simulator.records import Record, field, replace
from simulator.search.build import bare_estimate

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
)  # script that asks torch in a process of its own: this one never imports it, and holds no device while ranks run


class ReferenceEngine(Record, kw_only=True):
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
        if pick.options:
            option = next(iter(pick.options))
            raise UnsupportedError(f"--option {option}: the reference trainer has its own profile's switches only")
        check_columns(pick)
        usable = pick.scenario.hardware.usable_memory_bytes
        job = TrainingJob.of(
            pick.scenario,
            pick.layout,
            steps=pick.steps,
            warmup_steps=pick.warmup_steps,
            backend=self.backend,
            communication=self.communication,
            # A processor's memory is limited to the verdict's usable memory; a device limits itself.
            memory_limit_bytes=int(usable) if self.backend == "cpu" else None,
        )
        check_job(job)
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
        until = time.monotonic() + (ARRIVE_SECONDS if ended.exit_code == 0 else 0.0)
        while len(list(folder.glob(RESULT_NAME.format(rank="*")))) < pick.scenario.devices and time.monotonic() < until:
            time.sleep(0.1)
        ranks, problem = _ranks(folder, pick.scenario.devices)
        if ended.interrupted:
            return engine.LaunchOutcome(kind="interrupted", row=None, ranks=ranks)
        if ended.exit_code == 0 and not ended.timed_out and not problem:
            return engine.LaunchOutcome(kind="ok", row=_row(pick, self.backend, ranks), ranks=ranks)
        failure = engine.diagnosis(ended, more=sorted(folder.glob(engine.NODE_LOG_NAME.format(node="*"))))
        if ended.exit_code == 0 and failure.kind == "error":
            failure = replace(failure, error=problem)
        return replace(_failed(pick, failure), ranks=ranks)


def usual_backend(family: str) -> str:
    """Return the kind of device of a hardware family, in torch's words."""
    if family == "cpu":
        return "cpu"
    return "npu" if family.startswith("ascend") else "cuda"


def check_columns(pick: engine.Pick) -> None:
    """Raise UnsupportedError for a launch that a measured row cannot express."""
    if pick.layout.recompute_method == "list":
        raise UnsupportedError("--recompute-layer-list: a measured row has no words for it")


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


def _row(pick: engine.Pick, backend: str, ranks: tuple[RankResult, ...]) -> MeasuredRow:
    seconds = [max(step) for step in zip(*(rank.step_seconds for rank in ranks), strict=False)]  # of the slowest rank
    timed = steady("", [LoggedStep(iteration=at, seconds=value) for at, value in enumerate(seconds, start=1)], warmup=0)
    first = ranks[0]
    notes = [f"backend {backend}", first.device_name, *(f"{name} {text}" for name, text in first.versions.items())]
    used = [rank.device_bytes for rank in ranks if rank.device_bytes]
    if used:
        notes.append(f"device memory {max(used) / MIB:.0f} MiB as its tool shows it")
    figures: dict[str, Any] = {
        "step_time_s": round(statistics.median(seconds), 6),
        **timed.columns,
        "memory_mib": round(max(rank.peak_bytes for rank in ranks) / MIB, 6),
        "memory_kind": "allocated",
        "source_notes": one_line("; ".join(filter(None, notes))),
    }
    reserved = [rank.reserved_bytes for rank in ranks if rank.reserved_bytes]
    if reserved:
        figures["memory_reserved_mib"] = round(max(reserved) / MIB, 6)
    return engine.launched_row(pick, "ok", **figures)


class Device(Record, kw_only=True):
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


RECIPE_NAME: Final = "recipe.sh"
_SAME: Final = (
    *("devices", "precision", "seq_length", "micro_batch_size", "global_batch_size", "tensor_parallel"),
    *("pipeline_parallel", "context_parallel", "expert_parallel", "zero_stage", "recompute"),
)  # columns of a log that must equal those of the launch
_MEMORY: Final = ("memory_mib", "memory_gib", "memory_reserved_mib", "memory_reserved_gib", "memory_kind")
_FIGURES: Final = (
    *("tflops_per_device", "tokens_per_second_per_device", "step_time_ms", "step_time_s"),
    *("step_samples", "step_min_s", "step_max_s", "step_iqr_s", *_MEMORY, "evidence"),
)  # columns that a log measures
_INTERVAL: Final = 2
"""Iterations per line of the log. Some versions report memory at the first line only, and in the first iteration the
optimizer has no state yet: at an interval of 1 they would report a peak that is too low."""
_USER_DATA: Final = ("DATA_ARGS", "DATA_PATH", "TOKENIZER")
_MOCK_TOKENS: Final = 4096  # token ids that Megatron-LM's mock data may hold
_NEEDED: Final = {
    "MODEL_PATH": "folder or name of the model, with its config.json",
    "DATA_PATH": "training data in the trainer's own format",
}  # variables that the user has to set: these trainers have no mock data


class OutsideEngine(Record, kw_only=True):
    """Engine that runs the recipe of `simulate emit` in the user's own environment; base of each framework's."""

    name: RecipeFormat
    path: str = ""
    """Folder of the framework's own code; empty for the one in the environment."""
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    """The user's environment, with folder, model and data."""
    path_variable: str
    """Variable that names the folder, also in the recipe."""

    @property
    def experimental(self) -> str:
        """Reason why its figures are not proven: no test launches the framework itself."""
        return f"--engine {self.name} has met recorded logs and stand-ins only, no run on an accelerator"

    def known_folder(self, purpose: str) -> Path:
        """Return the framework's folder. Raises InputError where it is not known, UnsupportedError without psutil."""
        engine.check_installed("psutil")
        if not self.folder:
            raise InputError(
                f"--engine {self.name}: the folder of {purpose} is not known; name it with --engine-path DIR or "
                f"{self.path_variable}"
            )
        return Path(self.folder)

    @property
    def folder(self) -> str:
        """Folder of the framework, empty where it is not known."""
        return self.path or self.environment.get(self.path_variable, "")

    def settings(self) -> dict[str, str]:
        """Return the recipe's variable of the folder; empty where the folder is not known."""
        return {self.path_variable: str(Path(self.folder).absolute())} if self.folder else {}


def write_recipe(pick: Pick, target: RecipeFormat, folder: Path, environment: Mapping[str, str]) -> Command:
    """Write the recipe of a layout into `folder`, and return its command; UnsupportedError if it has none."""
    check_columns(pick)
    text = emit(pick.case, target)
    path = folder / RECIPE_NAME
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return Command(arguments=("bash", RECIPE_NAME), environment=environment, folder=folder, files=(path,))


def read_outcome(pick: Pick, ended: Ended, warmup: int, more: Iterable[Path] = ()) -> LaunchOutcome:
    """Return the outcome of a launch by its end, its log, and `more` of single ranks; `warmup` in logged intervals."""
    if ended.interrupted:
        return LaunchOutcome(kind="interrupted", row=None)
    if ended.exit_code == 0 and not ended.timed_out:
        try:
            return LaunchOutcome(kind="ok", row=_measured(pick, ended.log, warmup))
        except SimulateError as error:
            tail = engine.tail_of(ended.log)
            return _failed(pick, LaunchOutcome(kind="error", row=None, error=str(error), tail=tail))
    return _failed(pick, engine.diagnosis(ended, more))


def _measured(pick: Pick, log: Path, warmup: int) -> MeasuredRow:
    """Return the last run of a log as a row of this launch. Raises InputError where the log is another's."""
    logged = read_log(log, hardware=pick.hardware, model=pick.model, options=pick.options, warmup=warmup)[-1]
    if logged.outcome != "ok":
        raise InputError(f"{log}: {logged.error}")
    row = engine.launched_row(pick, "ok", **{name: getattr(logged, name) for name in _FIGURES})
    for name in _SAME:
        logged_value, launched = getattr(logged, name), getattr(row, name)
        if logged_value != launched:
            raise InputError(f"{log}: the log says {name} {logged_value}, launched was {launched}")
    return row


def _failed(pick: Pick, failure: LaunchOutcome) -> LaunchOutcome:
    return replace(failure, row=engine.launched_row(pick, "oom" if failure.kind == "oom" else "error", failure.error))


class MegatronEngine(OutsideEngine, kw_only=True):
    """Engine that runs the recipe of `simulate emit --framework megatron`."""

    name: RecipeFormat = "megatron"
    path_variable: str = "MEGATRON_PATH"

    def check(self) -> None:
        """Raise InputError where the folder of Megatron-LM is not known or does not hold its training script."""
        script = self.known_folder("Megatron-LM") / "pretrain_gpt.py"
        if not script.is_file():
            raise InputError(f"--engine megatron: {script}: no such file; expected the folder of Megatron-LM")

    def prepare(self, pick: Pick, folder: Path) -> Command:
        """Write the recipe, and return the command of each node."""
        settings = self.settings() | {
            "TRAIN_ITERS": str(_INTERVAL * (_lines(pick.warmup_steps) + _lines(pick.steps))),
            "LOG_INTERVAL": str(_INTERVAL),
            "EVAL_ITERS": "0",
        }
        if not any(self.environment.get(name) for name in _USER_DATA):
            vocabulary = pick.scenario.model.vocab_size
            if vocabulary < _MOCK_TOKENS:
                raise UnsupportedError(
                    f"vocabulary {vocabulary}: Megatron-LM's mock data has token ids up to {_MOCK_TOKENS - 1}; name "
                    "your own data (DATA_PATH and TOKENIZER, or DATA_ARGS)"
                )
            # NullTokenizer adds one id, for the end of a document.
            tokenizer = f"--tokenizer-type NullTokenizer --vocab-size {vocabulary - 1}"
            settings["DATA_ARGS"] = f"--mock-data {tokenizer}"
        return write_recipe(pick, self.name, folder, settings)

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:  # noqa: ARG002  all of it is in the log
        """Read the log, which reports memory of every stage and tensor-parallel rank and needs no correction."""
        return read_outcome(pick, ended, _lines(pick.warmup_steps))


def _lines(iterations: int) -> int:
    return -(-iterations // _INTERVAL)


class PaddleEngine(OutsideEngine, kw_only=True):
    """Engine that runs the recipe of `simulate emit --framework paddle`."""

    name: RecipeFormat = "paddle"
    path_variable: str = "PADDLE_PATH"

    def check(self) -> None:
        """Raise InputError where the trainer's folder, the model or the data are not known."""
        path = self.known_folder("PaddleNLP or ERNIEKit")
        if not path.is_dir():
            raise InputError(f"--engine paddle: {path}: no such folder; expected that of PaddleNLP or ERNIEKit")
        for name, need in _NEEDED.items():
            if not self.environment.get(name):
                raise InputError(f"--engine paddle: {name} is not set; expected {need}")

    def prepare(self, pick: Pick, folder: Path) -> Command:
        """Write the recipe, and return the command of each node."""
        settings = self.settings() | {
            "MAX_STEPS": str(pick.warmup_steps + pick.steps),
            "LOGGING_STEPS": "1",
            "OUTPUT_PATH": str(folder.absolute()),
            # Each trainer's own word for leaving out the checkpoint at the end.
            "test_ci_no_save_model": "1",
        }
        if pick.scenario.model.architecture.startswith("ernie"):
            settings["EXTRA_ARGS"] = f"{self.environment.get('EXTRA_ARGS', '')} --sft_benchmark 1".strip()
        return write_recipe(pick, self.name, folder, settings)

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:
        """Read the log; errors of ranks beyond the first are in their own logs."""
        outcome = read_outcome(pick, ended, pick.warmup_steps, sorted((folder / "logs").glob("*/workerlog.*")))
        row, fullest = outcome.row, bare_estimate(pick.scenario, pick.layout).memory.binding_stage
        if row is None or row.memory_bytes is None or fullest == 0:
            return outcome
        # Only the first rank logs memory.
        logged = f"{to_mib(row.memory_bytes):.0f} MiB"
        note = f"Its log has the memory of the first stage only, {logged}; stage {fullest} is expected to be fuller."
        known: dict[str, Any] = dict.fromkeys(_MEMORY)
        return replace(outcome, row=replace(row, **known, evidence=f"{row.evidence} {note}".strip()))
