"""PaddleNLP and ERNIEKit as an engine (experimental): the recipe of a launch, and the measured row of its log.

Starts no trainer: a launcher does, in the user's own environment.

Only the first rank of a node logs memory. Where a later stage holds more, the row has no figure of memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.evidence.measurements.row import MeasuredRow
from simulator.lab.runner.engine import Command, Ended, LaunchOutcome, Pick
from simulator.lab.runner.engines.recipe import OutsideEngine, read_outcome, write_recipe
from simulator.question.units import to_mib
from simulator.question.vocabulary import RecipeFormat
from simulator.search.build import bare_estimate

_NEEDED: Final = {
    "MODEL_PATH": "folder or name of the model, with its config.json",
    "DATA_PATH": "training data in the trainer's own format",
}
"""Variables that the user has to set: these trainers have no mock data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddleEngine(OutsideEngine):
    """Engine that runs the recipe of `simulate emit --framework paddle`."""

    name: RecipeFormat = "paddle"
    path_variable: str = "PADDLE_PATH"

    def check(self) -> None:
        """Raise InputError where the trainer's folder, the model or the data are not known."""
        path = self.folder("PaddleNLP or ERNIEKit")
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
        ranks = sorted((folder / "logs").glob("*/workerlog.*"))
        return read_outcome(pick, ended, pick.warmup_steps, lambda row: _of_first_rank(pick, row), ranks)


def _of_first_rank(pick: Pick, row: MeasuredRow) -> MeasuredRow:
    """Return the row, without memory where the fullest stage is not the first: only the first rank logs memory."""
    fullest = bare_estimate(pick.scenario, pick.layout).memory.binding_stage
    if row.memory_bytes is None or fullest == 0:
        return row
    logged = f"{to_mib(row.memory_bytes):.0f} MiB"
    note = f"Its log has the memory of the first stage only, {logged}; stage {fullest} is expected to be fuller."
    return replace(
        row,
        memory_mib=None,
        memory_gib=None,
        memory_reserved_mib=None,
        memory_reserved_gib=None,
        memory_kind=None,
        evidence=f"{row.evidence} {note}".strip(),
    )
