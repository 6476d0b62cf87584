"""Rank of the reference trainer: `torchrun --nproc-per-node N -m simulator.lab.trainer JOB.json`, or by srun.

Ends with an exit code that launchers read; `worker` does the training. Starts no other rank.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from simulator.errors import InputError
from simulator.lab.trainer.environment import end_with_parent, leave, rank_from_environment
from simulator.lab.trainer.failure import failed
from simulator.lab.trainer.job import TrainingJob
from simulator.lab.trainer.limits import check_job


def main(arguments: list[str]) -> int:
    """Run the rank and return its exit code: 0, 3 where memory ran out, 1 for anything else."""
    rank = _rank()
    try:
        path = _path(arguments)
        job = TrainingJob.from_json(path.read_text(encoding="utf-8"))
        rank = rank_from_environment(os.environ, job.layout.devices)
        check_job(job)
        # Imported here, so that a missing or broken torch is a failure like any other.
        from simulator.lab.trainer.worker import run  # noqa: PLC0415

        run(job, path.parent, rank)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher reads of it in one line
        return failed(error, rank)
    return 0


def _rank() -> int:
    """Return the rank to name before the job is known."""
    text = os.environ.get("RANK") or os.environ.get("SLURM_PROCID", "")
    return int(text) if text.isdecimal() else 0


def _path(arguments: list[str]) -> Path:
    if len(arguments) != 1:
        raise InputError("usage: python -m simulator.lab.trainer JOB.json")
    return Path(arguments[0])


if __name__ == "__main__":
    end_with_parent()
    leave(main(sys.argv[1:]))
