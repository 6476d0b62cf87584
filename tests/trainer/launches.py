"""Jobs of a tiny model, and launches of the reference trainer on this machine's processor."""

import importlib
import importlib.util
import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.lab.runner.engine import held_port
from simulator.lab.runner.processes import Ended, run_guarded
from simulator.lab.trainer.job import RESULT_NAME, RankResult, TrainingJob, from_json, to_json
from simulator.lab.trainer.process import Failure, failure_in
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.model import ModelSpec
from tests.project.tree import ROOT
from tests.trainer import forked

NEEDS_TORCH = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None,
    reason="torch is not installed; pip install '.[runner]' in a checkout brings it",
)


class Late:
    """A module that is imported at its first use: every worker collects this folder, and one runs it."""

    def __init__(self, name: str) -> None:
        self._module = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("__", "_pytest", "_mock_name")):  # pytest asks them of all that a module names
            raise AttributeError(name)
        return getattr(importlib.import_module(self._module), name)


TINY = ROOT / "examples" / "models" / "tiny.yaml"
TRAINER = "simulator.lab.trainer"
LIMIT_SECONDS = 240


def tiny_model(**changes: Any) -> ModelSpec:
    return replace(load_model(str(TINY)), **changes)


def job_of(
    layout: dict[str, Any] | None = None, *, model: ModelSpec | None = None, global_batch_size: int = 4, **fields: Any
) -> TrainingJob:
    """A job of a few short steps in fp32, which makes losses of different layouts comparable."""
    model = model or tiny_model()
    values = dict(layout or {})
    values.setdefault("stage_layers", default_cut(model.num_hidden_layers, values.get("pipeline_parallel", 1)))
    usual: dict[str, Any] = {"seq_length": 64, "precision": "fp32", "steps": 1, "warmup_steps": 1}
    return TrainingJob(model=model, layout=Layout(**values), global_batch_size=global_batch_size, **usual | fields)


def launch(job: TrainingJob, folder: Path, module: str = TRAINER) -> tuple[RankResult, ...]:
    """Results of all ranks, each started as srun starts it."""
    for code, errors in run_ranks(job, folder, module):
        assert code == 0, (code, errors)
    return results(job, folder)


def results(job: TrainingJob, folder: Path) -> tuple[RankResult, ...]:
    return tuple(
        from_json(RankResult, (folder / RESULT_NAME.format(rank=rank)).read_text(encoding="utf-8"))
        for rank in range(job.layout.devices)
    )


def written(job: TrainingJob, folder: Path) -> Path:
    path = folder / "job.json"
    path.write_text(to_json(job), encoding="utf-8")
    return path


def run_ranks(job: TrainingJob, folder: Path, module: str = TRAINER) -> list[tuple[int, str]]:
    """(exit code, error output) of every rank."""
    path = written(job, folder)
    count = job.layout.devices
    usual = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "RANK", "WORLD_", "LOCAL_"))
    }
    usual |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    ranks = []
    with held_port() as port:
        for rank in range(count):
            own = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)}
            environment = usual | own | {"MASTER_PORT": str(port)}
            ranks.append(forked.start(module, [str(path)], environment, folder / f"streams-{rank}"))
        try:
            codes = [forked.ended(process, LIMIT_SECONDS) for process in ranks]
        finally:
            for process in ranks:
                with suppress(ValueError):  # closed, as it should be
                    process.kill()
    return [
        (code, (folder / f"streams-{rank}" / "stderr").read_text(encoding="utf-8")) for rank, code in enumerate(codes)
    ]


def in_forked_ranks(arguments: tuple[str, ...], *, log: Path, **others: Any) -> Ended:
    """In the place of `run_guarded`: a training by torchrun's words, in ranks that import nothing anew."""
    if "rates" in arguments:
        return run_guarded(arguments, log=log, **others)
    job = Path(arguments[-1])
    launch(from_json(TrainingJob, job.read_text(encoding="utf-8")), job.parent)
    log.touch()
    return Ended(exit_code=0, log=log, wall_seconds=1.0, timed_out=False, interrupted=False)


def last_failure(errors: str) -> Failure:
    """The failure that the last line of a rank's error output tells of."""
    found = failure_in(re.split(r"\n", errors.rstrip())[-1])
    assert found is not None, errors
    return found
