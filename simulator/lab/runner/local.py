"""Launcher of this machine: one node alone, or one of several that are started by themselves."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from simulator.errors import InputError
from simulator.lab.runner.engine import Ended
from simulator.lab.runner.launch import NODE_LOG_NAME, Launch, shell_line
from simulator.lab.runner.processes import python_path, run_guarded

_HERE: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher:
    """Launcher that starts the command of one node here: the only node, or one of several started alike."""

    endpoint: str = ""
    """Host and port where the first of several nodes waits for the others; each launch takes the next port."""
    node_rank: int = 0
    """Number of this node, from 0."""
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

    def command_text(self, launch: Launch) -> str:
        """Return the command line, with the folder it runs in."""
        command = launch.command
        environment = {name: text for name, text in self._node(launch, 0).items() if name != "MASTER_PORT"}
        line = shell_line(command.arguments, python_path() | environment | dict(command.environment))
        return f"cd {shlex.quote(str(command.folder))}\n{line}\n"

    def run(self, launch: Launch) -> Ended:
        """Start the command and wait for its end, its time limit, or an interruption."""
        command = launch.command
        log = launch.log if self.node_rank == 0 else launch.folder / NODE_LOG_NAME.format(node=self.node_rank)
        with held_port() as port:
            return run_guarded(
                command.arguments,
                folder=command.folder,
                environment=self._node(launch, port) | dict(command.environment),
                log=log,
                limit_seconds=launch.limit_seconds,
            )

    def _node(self, launch: Launch, port: int) -> dict[str, str]:
        """Return the variables for the command of a node; torchrun reads its own options from variables too.

        Ranks meet at the endpoint of the nodes, or at a port here.
        """
        host, _, first = self.endpoint.rpartition(":")
        address, number = (host, int(first) + launch.number - 1) if host else (_HERE, port)
        variables = {
            "NNODES": str(launch.nodes),
            "NODE_RANK": str(self.node_rank),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(number),
        }
        if not host:
            return variables
        return variables | {"PET_NODE_RANK": str(self.node_rank), "PET_RDZV_ENDPOINT": f"{address}:{number}"}


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port that nobody listens on, so that the system gives it to nobody else.

    Bound and never listened on: a program that is told the port and sets SO_REUSEADDR, as servers do, can take it.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HERE, 0))
        yield bound.getsockname()[1]
