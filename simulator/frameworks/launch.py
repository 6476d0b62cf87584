"""A training command as a framework's reader sees it: launcher, script, arguments, environment. Reads no word."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from simulator.frameworks.names import plain
from simulator.frameworks.values import Cause, PlainValue

LauncherName = Literal["torch", "paddle", "deepspeed", "msrun", "python", "accelerate", "other"]


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """One command that starts training: its launcher's options, its script and the script's arguments."""

    launcher: LauncherName
    program: str
    """Name of the program that was called: `torchrun`, `swift`, `python`."""
    line: int
    script: PlainValue
    """The training script, or the subcommand of a command line tool."""
    arguments: tuple[PlainValue, ...]
    options: Mapping[str, PlainValue]
    """The launcher's own, by name with underscores."""
    environment: Mapping[str, PlainValue]
    conditions: frozenset[Cause] = field(default_factory=frozenset)
    """What decides whether the command runs at all."""
    spread: Mapping[str, PlainValue] = field(default_factory=dict)
    """How `srun` or `mpirun` spreads it: `starter`, `nodes`, `tasks`, `tasks_per_node`."""
    in_front: frozenset[Cause] = field(default_factory=frozenset)
    """What words in front of the program depend on that are not known: they may start it on any machines."""
    open_options: frozenset[Cause] = field(default_factory=frozenset)
    """What words among the launcher's options depend on that are not known."""
    files: Mapping[str, PlainValue] = field(default_factory=dict)
    """Text of the files that the script has written before, by name."""

    @property
    def flags(self) -> frozenset[str]:
        """Names of the flags among its arguments, as tables spell them."""
        texts = (value.text.partition("=")[0] for value in self.arguments if value.text.startswith("--"))
        return frozenset(map(plain, texts))

    def written(self, name: str) -> PlainValue | None:
        """Text of a file that the script has written under this name."""
        return self.files.get(plain_path(name))


def plain_path(name: str) -> str:
    """A file's name without leading `./`."""
    return re.sub(r"^(\./+)+", "", name)
