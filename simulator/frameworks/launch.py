"""A training command as readers see it: launcher, script, arguments, environment. Interprets no argument."""

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
    """A command that starts training."""

    launcher: LauncherName
    program: str
    """Name of the program that is called: `torchrun`, `swift`, `python`."""
    line: int
    script: PlainValue
    """Training script, or subcommand of a command line tool."""
    arguments: tuple[PlainValue, ...]
    options: Mapping[str, PlainValue]
    """Options of the launcher, by name with underscores."""
    environment: Mapping[str, PlainValue]
    conditions: frozenset[Cause] = field(default_factory=frozenset)
    """What decides whether the command runs at all."""
    spread: Mapping[str, PlainValue] = field(default_factory=dict)
    """How `srun` or `mpirun` distributes it: `starter`, `nodes`, `tasks`, `tasks_per_node`."""
    in_front: frozenset[Cause] = field(default_factory=frozenset)
    """What unknown words in front of the program depend on; they may start it on any machines."""
    open_options: frozenset[Cause] = field(default_factory=frozenset)
    """What unknown words among the launcher's options depend on."""
    files: Mapping[str, PlainValue] = field(default_factory=dict)
    """Text of files that the script wrote earlier, by name."""

    @property
    def flags(self) -> frozenset[str]:
        """Names of the flags among its arguments, as tables spell them."""
        texts = (value.text.partition("=")[0] for value in self.arguments if value.text.startswith("--"))
        return frozenset(map(plain, texts))

    def written(self, name: str) -> PlainValue | None:
        """Return the text that the script wrote to a file; None if it wrote none of this name."""
        return self.files.get(plain_path(name))


def plain_path(name: str) -> str:
    """Return a file's name without leading `./` or `$PWD/`."""
    return re.sub(r"^((?:\.|\$PWD|\$\{PWD\}|\$\(pwd\)|`pwd`)/+)+", "", name)
