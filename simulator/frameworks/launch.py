"""A training command as readers see it: launcher, script, arguments, environment. Interprets no argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    written: Callable[[str], PlainValue | None] = field(default=lambda _name: None, compare=False)
    """Return the text that the script left in a file by its name; None if it wrote none that may be this one."""
    folder: str = ""
    """Folder that the command runs in, from the script's own on; empty for that, or an unknown one."""

    @property
    def flags(self) -> frozenset[str]:
        """Names of the flags among its arguments, as tables spell them."""
        texts = (value.text.partition("=")[0] for value in self.arguments if value.text.startswith("--"))
        return frozenset(map(plain, texts))
