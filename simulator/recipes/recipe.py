"""A recipe: one run in this project's words, with its file, its launch and the line of each setting. A value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from simulator.frameworks.remarks import GivenFlag, Place, Remark, Severity, Unknown
from simulator.frameworks.run import AskedRun

__all__ = ["UNREAD", "GivenFlag", "Place", "Recipe", "Remark", "Severity", "Unknown"]


UNREAD: Final = "unread"
"""Dialect of a launch that no reader takes, in a script with others that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(AskedRun):
    """Workload, layout and cluster of one launch, as far as the recipe fixes them."""

    file: str
    title: str = ""
    """Which launch of the file, where there are several."""
    dialect: str
    """What was read: `megatron-shell`, `paddle-shell`, `paddle-yaml`, `nemo-yaml`, `torchtitan-toml`, ..."""
    nodes: int | None = None
    devices_per_node: int | None = None

    @property
    def is_question(self) -> bool:
        """Whether it is options or an estimate, completed as `simulate estimate` completes them, and no launch."""
        return self.dialect in ("options", "estimate")


def recipe_of(run: AskedRun, file: str, **launch: Any) -> Recipe:
    """A run as the recipe of a file, with what its launch says: title, dialect, nodes, devices of a node."""
    return Recipe(file=file, **{field.name: getattr(run, field.name) for field in fields(AskedRun)}, **launch)
