"""Rank of this process, by the variables that torchrun or srun set, and its end with its parent.

Imports no torch: a wrong environment is reported before torch loads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final, NoReturn

from simulator.errors import InputError

_SET_PARENT_DEATH_SIGNAL: Final = 1
_SLURM: Final = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_NTASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def rank_from_environment(environment: MutableMapping[str, str], devices: int) -> int:
    """Return the global rank, as torchrun sets it or else as srun does; a job of one device needs neither.

    Completes the variables that torch reads. Raises InputError where the ranks are not those of the job.
    """
    if "RANK" not in environment and "SLURM_PROCID" in environment and devices > 1:
        environment.update({name: environment.get(slurm, "0") for name, slurm in _SLURM.items()})
    if "RANK" not in environment and devices == 1:
        environment.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
    missing = [name for name in ("RANK", "WORLD_SIZE") if name not in environment]
    if devices > 1:
        missing += [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in environment]
    if missing:
        raise InputError(f"environment: {missing[0]} is not set; start the ranks with torchrun, or with srun and it")
    rank, size = environment["RANK"], environment["WORLD_SIZE"]
    if size != str(devices):
        raise InputError(f"environment: WORLD_SIZE {size}; the job is for {devices} devices")
    if not rank.isdecimal() or int(rank) >= devices:
        raise InputError(f"environment: RANK '{rank}': must be a whole number from 0 to {devices - 1}")
    return int(rank)


def end_with_parent() -> None:
    """Let the system kill this process when its parent dies (Linux), as nobody else may end it."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def leave(code: int) -> NoReturn:
    """End this process after flushing its output, without the interpreter's shutdown.

    The threads of process groups live on through that shutdown: gloo's have crashed in it after the result was written,
    they wait for ranks that are gone, and they write behind the line that a failure ends with.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
