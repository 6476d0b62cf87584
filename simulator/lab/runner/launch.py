"""A launch: a layout with its prediction, its command, its folder and how it ended; and what a launcher is.

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
"""File of a launch's folder that holds what its nodes printed."""
NODE_LOG_NAME = "log-{node}.txt"
"""The same of one further node, where each is started by itself."""
ARRIVE_SECONDS = 15.0
"""How long a file of a shared folder may take to be seen here after it was written on another node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A layout that is ready to be started."""

    title: str
    """Model and layout in a word, as its folder is called."""
    pick: Pick
    estimate: Estimate
    """What is predicted for it."""
    command: Command
    repeat: int = 1
    """How often the layout has been launched with this one."""
    number: int = 1
    """Its place in the campaign, from 1."""
    limit_seconds: float = 600.0
    """Longest time it may run."""

    @property
    def folder(self) -> Path:
        """Folder in which the launch runs and leaves what it measured."""
        return self.command.folder

    @property
    def log(self) -> Path:
        """File with what all its nodes printed."""
        return self.folder / LOG_NAME

    @property
    def nodes(self) -> int:
        """Nodes it takes."""
        return self.pick.scenario.nodes

    @property
    def devices_per_node(self) -> int:
        """Ranks that each node runs."""
        return self.pick.scenario.devices // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch that was started, and what became of it."""

    launch: Launch
    ended: Ended
    outcome: LaunchOutcome


class Launcher(Protocol):
    """A way to start a launch's processes, and to end all of them."""

    @property
    def name(self) -> str:
        """Name that `--launcher` takes."""

    def check(self, nodes: int) -> None:
        """Raise InputError or UnsupportedError where nothing can be started this way, on so many nodes."""

    def shown(self, launch: Launch) -> str:
        """Command that would be started, as text that a shell takes."""

    def run(self, launch: Launch) -> Ended:
        """Start a launch and wait for its end; none of its processes is left."""


def slug(model: str, layout: Layout) -> str:
    """Model and layout as a folder's name."""
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
    """A command with the variables that are set for it."""
    return " ".join([*(f"{name}={shlex.quote(text)}" for name, text in environment.items()), shlex.join(arguments)])
