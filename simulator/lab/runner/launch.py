"""Launches: a layout with its prediction, command, folder and end; and the interface of a launcher.

Values and one protocol: nothing is started here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from simulator.cost.pricing.estimate import Estimate
from simulator.lab.runner.engine import Command, Ended, LaunchOutcome, Pick
from simulator.question.scenario.layout import Layout

LOG_NAME = "log.txt"
"""File of a launch's folder with the output of its nodes."""
NODE_LOG_NAME = "log-{node}.txt"
"""File with the output of one further node, where each is started by itself."""
ARRIVE_SECONDS = 15.0
"""Time after which a file that another node wrote is visible in a shared folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Layout that is ready to be started."""

    title: str
    """Model and layout in a word, as its folder is called."""
    pick: Pick
    estimate: Estimate
    """Prediction of the layout."""
    command: Command
    repeat: int = 1
    """Number of this launch among those of the layout, from 1."""
    number: int = 1
    """Place in the campaign, from 1."""
    limit_seconds: float = 600.0
    """Longest time that it may run."""

    @property
    def folder(self) -> Path:
        """Folder of the launch: working directory, log and results."""
        return self.command.folder

    @property
    def log(self) -> Path:
        """File with the output of all its nodes."""
        return self.folder / LOG_NAME

    @property
    def nodes(self) -> int:
        """Nodes of the launch."""
        return self.pick.scenario.nodes

    @property
    def devices_per_node(self) -> int:
        """Ranks of each node."""
        return self.pick.scenario.devices // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Launch that was started, with its end and outcome."""

    launch: Launch
    ended: Ended
    outcome: LaunchOutcome


class Launcher(Protocol):
    """Launcher: starts the processes of a launch, and ends all of them."""

    @property
    def name(self) -> str:
        """Name that `--launcher` takes."""

    def check(self, nodes: int) -> None:
        """Raise InputError or UnsupportedError where nothing can be started this way, on so many nodes."""

    def command_text(self, launch: Launch) -> str:
        """Return the command that would be started, as text that a shell takes."""

    def run(self, launch: Launch) -> Ended:
        """Start a launch and wait for its end; none of its processes is left."""


def slug(model: str, layout: Layout) -> str:
    """Return a folder's name for model and layout."""
    parts = [
        re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"\.(?:ya?ml|json)$", "", Path(model).name)).strip("-.") or "model",
        f"tp{layout.tensor_parallel}",
        f"pp{layout.pipeline_parallel}",
        f"dp{layout.data_parallel}",
    ]
    for name, size in (("cp", layout.context_parallel), ("ep", layout.expert_parallel), ("vp", layout.virtual_stages)):
        if size > 1:
            parts.append(f"{name}{size}")
    parts += [f"mbs{layout.micro_batch_size}", f"zero{layout.zero_stage}"]
    if layout.recompute != "none":
        parts.append(layout.recompute)
    return "-".join(parts)


def shell_line(arguments: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Return a command with its variables as a line of shell."""
    return " ".join([*(f"{name}={shlex.quote(text)}" for name, text in environment.items()), shlex.join(arguments)])
