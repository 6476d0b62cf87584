"""Outside frameworks as engines (experimental): the recipe of `simulate emit` is launched, its log becomes a row.

    >>> MegatronEngine(path="Megatron-LM").prepare(pick, folder).arguments
    ('bash', 'recipe.sh')

An engine starts what the user has installed, in the user's own environment, and changes nothing of it. Figures come
from the log alone, and the log of another layout is refused. `lab.runner.reference` is the engine that ships.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, SimulateError, UnsupportedError
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.lab.runner.engine import (
    Command,
    Diagnosis,
    LaunchOutcome,
    Pick,
    check_installed,
    diagnosis,
    launched_row,
    tail_of,
)
from simulator.lab.runner.processes import Ended
from simulator.question.units import to_mib
from simulator.question.vocabulary import RecipeFormat
from simulator.recipes.emit.write import emit
from simulator.recipes.logs import read_log
from simulator.search.build import bare_estimate

RECIPE_NAME: Final = "recipe.sh"
_SAME: Final = (
    *("devices", "precision", "seq_length", "micro_batch_size", "global_batch_size", "tensor_parallel"),
    *("pipeline_parallel", "context_parallel", "expert_parallel", "zero_stage", "recompute"),
)
"""Columns of a log that must equal those of the launch."""
_MEMORY: Final = ("memory_mib", "memory_gib", "memory_reserved_mib", "memory_reserved_gib", "memory_kind")
_FIGURES: Final = (
    *("tflops_per_device", "tokens_per_second_per_device", "step_time_ms", "step_time_s"),
    *("step_samples", "step_min_s", "step_max_s", "step_iqr_s", *_MEMORY, "evidence"),
)
"""Columns that a log measures."""
_INTERVAL: Final = 2
"""Iterations per line of the log. Some versions report memory at the first line only, and in the first iteration the
optimizer has no state yet: at an interval of 1 they would report a peak that is too low."""
_USER_DATA: Final = ("DATA_ARGS", "DATA_PATH", "TOKENIZER")
_MOCK_TOKENS: Final = 4096
"""Token ids that Megatron-LM's mock data may hold."""
_NEEDED: Final = {
    "MODEL_PATH": "folder or name of the model, with its config.json",
    "DATA_PATH": "training data in the trainer's own format",
}
"""Variables that the user has to set: these trainers have no mock data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideEngine:
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
        check_installed("psutil")
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
    """Write the recipe of a layout into `folder`, and return the command that runs it on a node.

    Raises UnsupportedError for a layout that the framework, or a measured row, has no words for.
    """
    if pick.layout.recompute_method == "list":
        raise UnsupportedError("--recompute-layer-list: a measured row has no words for it")
    text = emit(pick.case, target)
    path = folder / RECIPE_NAME
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return Command(arguments=("bash", RECIPE_NAME), environment=environment, folder=folder, files=(path,))


def read_outcome(pick: Pick, ended: Ended, warmup: int, more: Iterable[Path] = ()) -> LaunchOutcome:
    """Return the outcome of a launch, by how it ended and its log.

    `warmup` counts logged intervals. `more` are logs of single ranks, where an error may stand alone.
    """
    if ended.interrupted:
        return LaunchOutcome(kind="interrupted", row=None)
    if ended.exit_code == 0 and not ended.timed_out:
        try:
            return LaunchOutcome(kind="ok", row=_measured(pick, ended.log, warmup))
        except SimulateError as error:
            return _failed(pick, Diagnosis("error", str(error), tail_of(ended.log)))
    return _failed(pick, diagnosis(ended, more))


def _measured(pick: Pick, log: Path, warmup: int) -> MeasuredRow:
    """Return the last run of a log as a row of this launch. Raises InputError where the log is another's."""
    logged = read_log(log, hardware=pick.hardware, model=pick.model, options=pick.options, warmup=warmup)[-1]
    if logged.outcome != "ok":
        raise InputError(f"{log}: {logged.error}")
    row = launched_row(pick, "ok", **{name: getattr(logged, name) for name in _FIGURES})
    for name in _SAME:
        logged_value, launched = getattr(logged, name), getattr(row, name)
        if logged_value != launched:
            raise InputError(f"{log}: the log says {name} {logged_value}, launched was {launched}")
    return row


def _failed(pick: Pick, diagnosis: Diagnosis) -> LaunchOutcome:
    row = launched_row(pick, "oom" if diagnosis.kind == "oom" else "error", diagnosis.error)
    return LaunchOutcome(kind=diagnosis.kind, row=row, error=diagnosis.error, tail=diagnosis.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronEngine(OutsideEngine):
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
            settings["DATA_ARGS"] = _mock_data(pick)
        return write_recipe(pick, self.name, folder, settings)

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:  # noqa: ARG002  all of it is in the log
        """Read the log, which reports memory of every stage and tensor-parallel rank and needs no correction."""
        return read_outcome(pick, ended, _lines(pick.warmup_steps))


def _lines(iterations: int) -> int:
    """Return the number of log lines of `iterations` iterations."""
    return -(-iterations // _INTERVAL)


def _mock_data(pick: Pick) -> str:
    vocabulary = pick.scenario.model.vocab_size
    if vocabulary < _MOCK_TOKENS:
        raise UnsupportedError(
            f"vocabulary {vocabulary}: Megatron-LM's mock data has token ids up to {_MOCK_TOKENS - 1}; name your own "
            "data (DATA_PATH and TOKENIZER, or DATA_ARGS)"
        )
    # NullTokenizer adds one id, for the end of a document.
    return f"--mock-data --tokenizer-type NullTokenizer --vocab-size {vocabulary - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddleEngine(OutsideEngine):
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
