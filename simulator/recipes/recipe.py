"""A recipe: one run in this project's terms, with its file, its launch and the line of each setting."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from simulator.frameworks.remarks import Place, RecipeFlag, Remark, Severity, Unknown
from simulator.frameworks.run import AskedRun

__all__ = ["UNREAD", "Place", "Recipe", "RecipeFlag", "Remark", "Severity", "Unknown"]


UNREAD: Final = "unread"
"""Dialect of a launch that no reader takes, in a script with others that are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(AskedRun):
    """Model, workload, layout and cluster of one launch, as far as the recipe fixes them."""

    file: str
    title: str = ""
    """Name of the launch within the file; empty for a file's single one."""
    dialect: str
    """Recipe format: `megatron-shell`, `paddle-shell`, `paddle-yaml`, `nemo-yaml`, `torchtitan-toml`, ..."""
    nodes: int | None = None
    devices_per_node: int | None = None

    @property
    def is_question(self) -> bool:
        """Whether it holds options or an estimate, with `simulate estimate`'s defaults, and not a launch."""
        return self.dialect in ("options", "estimate")


def recipe_of(run: AskedRun, file: str, **launch: Any) -> Recipe:
    """Return a run as the recipe of a file, with fields of its launch: title, dialect, nodes, devices per node."""
    return Recipe(file=file, **{field.name: getattr(run, field.name) for field in fields(AskedRun)}, **launch)
