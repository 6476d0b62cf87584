"""Common part of engines of outside frameworks: a recipe in the launch's folder, its log read into a row.

An engine starts what the user has installed and changes nothing of it. It guesses no figure that the log lacks, and
refuses the log of another layout.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulator.errors import InputError, SimulateError, UnsupportedError
from simulator.evidence.measurements.row import MeasuredRow
from simulator.lab.runner.diagnosis import Diagnosis, diagnosis, tail_of
from simulator.lab.runner.engine import Command, Ended, LaunchOutcome, Pick
from simulator.lab.runner.engines.launched import launched_row
from simulator.question.vocabulary import RecipeFormat
from simulator.recipes.emit.write import emit
from simulator.recipes.logs import read_log

RECIPE_NAME: Final = "recipe.sh"
_SAME: Final = (
    "devices",
    "precision",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "zero_stage",
    "recompute",
)
"""Columns of a log that must equal those of the launch."""
_FIGURES: Final = (
    "tflops_per_device",
    "tokens_per_second_per_device",
    "step_time_ms",
    "step_time_s",
    "step_samples",
    "step_min_s",
    "step_max_s",
    "step_iqr_s",
    "memory_mib",
    "memory_gib",
    "memory_reserved_mib",
    "memory_reserved_gib",
    "memory_kind",
    "evidence",
)
"""Columns that a log measures."""


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

    def folder(self, purpose: str) -> Path:
        """Return the framework's folder. Raises InputError where it is not known."""
        path = self.path or self.environment.get(self.path_variable, "")
        if not path:
            raise InputError(
                f"--engine {self.name}: the folder of {purpose} is not known; name it with --engine-path DIR or "
                f"{self.path_variable}"
            )
        return Path(path)

    def settings(self) -> dict[str, str]:
        """Return the recipe's variable of the folder; empty where the folder is not known."""
        path = self.path or self.environment.get(self.path_variable, "")
        return {self.path_variable: str(Path(path).absolute())} if path else {}


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


Correction = Callable[[MeasuredRow], MeasuredRow]
"""Function that corrects the row of a framework's log."""


def read_outcome(
    pick: Pick, ended: Ended, warmup: int, correct: Correction, more: Iterable[Path] = ()
) -> LaunchOutcome:
    """Return the outcome of a launch, by how it ended and its log.

    `warmup` counts logged intervals. `more` are logs of single ranks, where an error may stand alone.
    """
    if ended.interrupted:
        return LaunchOutcome(kind="interrupted", row=None)
    if ended.exit_code == 0 and not ended.timed_out:
        try:
            return LaunchOutcome(kind="ok", row=correct(_measured(pick, ended.log, warmup)))
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
