"""Launches on this machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from simulator.errors import InputError
from simulator.runner.engine import Ended
from simulator.runner.launch import Launch, shell_line
from simulator.runner.processes import run_guarded

_HERE: Final = "127.0.0.1"
_ONLY_NODE: Final = {"NNODES": "1", "NODE_RANK": "0", "MASTER_ADDR": _HERE}


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Starts the command of a launch's only node here."""

    name: str = "local"

    def check(self, nodes: int) -> None:
        """Raise InputError for more than one node."""
        if nodes > 1:
            raise InputError(
                f"--launcher local: starts one node, the layouts take {nodes}; use --launcher slurm, or fewer --devices"
            )

    def shown(self, launch: Launch) -> str:
        """The command line, with the folder it runs in."""
        command = launch.command
        return f"cd {command.folder}\n{shell_line(command.arguments, _ONLY_NODE | dict(command.environment))}\n"

    def run(self, launch: Launch) -> Ended:
        """Start the command and wait for its end, its time limit, or an interruption."""
        command = launch.command
        found = run_guarded(
            command.arguments,
            folder=command.folder,
            environment=_ONLY_NODE | {"MASTER_PORT": str(_free_port())} | dict(command.environment),
            log=launch.log,
            limit_seconds=launch.limit_seconds,
        )
        return Ended(
            exit_code=found.exit_code,
            log=launch.log,
            wall_seconds=found.wall_seconds,
            timed_out=found.timed_out,
            interrupted=found.interrupted,
        )


def _free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((_HERE, 0))
        port: int = probe.getsockname()[1]
    return port
