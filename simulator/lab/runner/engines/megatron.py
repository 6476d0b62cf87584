"""Megatron-LM as an engine (experimental): `pretrain_gpt.py` in the user's own environment.

Writes what a launch reads and reads its log. Starts no process: a launcher does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.errors import InputError, UnsupportedError
from simulator.lab.runner.engine import Command, Ended, LaunchOutcome, Pick
from simulator.lab.runner.engines.recipe import OutsideEngine, read_outcome, write_recipe
from simulator.question.vocabulary import RecipeFormat

_INTERVAL: Final = 2
"""Iterations per line of the log. Some versions report memory at the first line only, and in the first iteration the
optimizer has no state yet: at an interval of 1 they would report a peak that is too low."""
_OWN_DATA: Final = ("DATA_ARGS", "DATA_PATH", "TOKENIZER")
_MOCK_TOKENS: Final = 4096
"""Token ids that Megatron-LM's mock data may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronEngine(OutsideEngine):
    """Engine that runs the recipe of `simulate emit --framework megatron`."""

    name: RecipeFormat = "megatron"
    path_variable: str = "MEGATRON_PATH"

    def check(self) -> None:
        """Raise InputError where the folder of Megatron-LM is not known or does not hold its training script."""
        script = self.folder("Megatron-LM") / "pretrain_gpt.py"
        if not script.is_file():
            raise InputError(f"--engine megatron: {script}: no such file; expected the folder of Megatron-LM")

    def prepare(self, pick: Pick, folder: Path) -> Command:
        """Write the recipe, and return the command of each node."""
        settings = self.settings() | {
            "TRAIN_ITERS": str(_INTERVAL * (_lines(pick.warmup_steps) + _lines(pick.steps))),
            "LOG_INTERVAL": str(_INTERVAL),
            "EVAL_ITERS": "0",
        }
        if not any(self.environment.get(name) for name in _OWN_DATA):
            settings["DATA_ARGS"] = _mock_data(pick)
        return write_recipe(pick, self.name, folder, settings)

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:  # noqa: ARG002  all of it is in the log
        """Read the log, which reports memory of every stage and tensor-parallel rank and needs no correction."""
        return read_outcome(pick, ended, _lines(pick.warmup_steps), lambda row: row)


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
