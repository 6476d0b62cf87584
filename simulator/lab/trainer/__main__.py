"""Program of a rank, started by torchrun: it trains (`worker`), or times operations of a machine (`rates`).

    torchrun --nproc-per-node 2 -m simulator.lab.trainer JOB.json
    torchrun --nproc-per-node 2 -m simulator.lab.trainer rates JOB.json

It ends with an exit code that `lab.runner.engine` reads.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from simulator.errors import InputError
from simulator.lab.trainer.job import RatesJob, TrainingJob, check_job, from_json
from simulator.lab.trainer.process import end_with_parent, failed, leave, rank_from_environment


def main(arguments: list[str]) -> int:
    """Run the rank and return its exit code: 0, 3 where memory ran out, 1 for anything else."""
    text = os.environ.get("RANK", "")
    rank = int(text) if text.isdecimal() else 0  # the one to name before the job is known
    try:
        path = _path(arguments)
        kind: type[RatesJob | TrainingJob] = RatesJob if len(arguments) > 1 else TrainingJob
        job = from_json(kind, path.read_text(encoding="utf-8"))
        rank = rank_from_environment(os.environ, job.layout.devices)
        # Imported here, so that a missing or broken torch is a failure like any other.
        if isinstance(job, TrainingJob):
            check_job(job)
            from simulator.lab.trainer.worker import train  # noqa: PLC0415

            train(job, path.parent, rank)
        else:
            from simulator.lab.trainer.rates import measure  # noqa: PLC0415

            measure(job, path.parent, rank)
    except Exception as error:  # noqa: BLE001 - whatever it is, the launcher reads of it in one line
        return failed(error, rank)
    return 0


def _path(arguments: list[str]) -> Path:
    if len(arguments) == 1 or (len(arguments) == 2 and arguments[0] == "rates"):
        return Path(arguments[-1])
    raise InputError("usage: python -m simulator.lab.trainer [rates] JOB.json")


if __name__ == "__main__":
    end_with_parent()
    leave(main(sys.argv[1:]))
