"""A command that starts training, as a framework's reader sees it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from simulator.frameworks.values import PlainValue

LauncherName = Literal["torch", "paddle", "deepspeed", "msrun", "python", "accelerate", "other"]


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A program or training script with its arguments, environment and files."""

    launcher: LauncherName
    program: str
    """Name of the program that was called: `torchrun`, `swift`, `python`."""
    line: int
    script: PlainValue
    """The training script, or the subcommand of a command line tool."""
    arguments: tuple[PlainValue, ...]
    environment: Mapping[str, PlainValue]
    files: Mapping[str, PlainValue] = field(default_factory=dict)
    """Text of the files that the script has written before, by name."""

    def written(self, name: str) -> PlainValue | None:
        """Text of a file that the script has written under this name."""
        return self.files.get(plain_path(name))


def plain_path(name: str) -> str:
    """A file's name without leading `./`."""
    return re.sub(r"^(\./+)+", "", name)
