"""Launches on this machine."""

from __future__ import annotations

import shlex
import socket
from dataclasses import dataclass
from typing import Final

from simulator.errors import InputError
from simulator.lab.runner.engine import Ended
from simulator.lab.runner.launch import NODE_LOG_NAME, Launch, shell_line
from simulator.lab.runner.processes import python_path, run_guarded

_HERE: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher:
    """Starts the command of one node here: the only one, or one of several on which this is started alike."""

    endpoint: str = ""
    """Host and port where the first of several nodes waits for the others; each launch takes the next port."""
    node_rank: int = 0
    """Which of the nodes this is."""
    name: str = "local"

    def check(self, nodes: int) -> None:
        """Raise InputError for several nodes that do not know of each other, or a node that is not one of them."""
        if nodes > 1 and not self.endpoint:
            raise InputError(
                f"--launcher local: starts one node, the layouts take {nodes}; use --launcher slurm, or start this on "
                "each node with --rdzv-endpoint HOST:PORT and its --node-rank"
            )
        if self.node_rank >= nodes:
            raise InputError(f"--node-rank {self.node_rank}: the layouts take {nodes} nodes, numbered from 0")
        if self.endpoint and nodes == 1:
            raise InputError("--rdzv-endpoint: the layouts take one node, which meets no other")

    def shown(self, launch: Launch) -> str:
        """The command line, with the folder it runs in."""
        command = launch.command
        environment = {name: text for name, text in self._node(launch).items() if name != "MASTER_PORT"}
        line = shell_line(command.arguments, python_path() | environment | dict(command.environment))
        return f"cd {shlex.quote(str(command.folder))}\n{line}\n"

    def run(self, launch: Launch) -> Ended:
        """Start the command and wait for its end, its time limit, or an interruption."""
        command = launch.command
        log = launch.log if self.node_rank == 0 else launch.folder / NODE_LOG_NAME.format(node=self.node_rank)
        found = run_guarded(
            command.arguments,
            folder=command.folder,
            environment=self._node(launch) | dict(command.environment),
            log=log,
            limit_seconds=launch.limit_seconds,
        )
        return Ended(
            exit_code=found.exit_code,
            log=log,
            wall_seconds=found.wall_seconds,
            timed_out=found.timed_out,
            interrupted=found.interrupted,
        )

    def _node(self, launch: Launch) -> dict[str, str]:
        """What a launcher tells the command of a node; torchrun takes its own options from variables too."""
        host, _, port = self.endpoint.rpartition(":")
        address, number = (host, int(port) + launch.number - 1) if host else (_HERE, _free_port())
        told = {
            "NNODES": str(launch.nodes),
            "NODE_RANK": str(self.node_rank),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(number),
        }
        if not host:
            return told
        return told | {"PET_NODE_RANK": str(self.node_rank), "PET_RDZV_ENDPOINT": f"{address}:{number}"}


def _free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((_HERE, 0))
        port: int = probe.getsockname()[1]
    return port
