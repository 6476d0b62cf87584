"""What a recipe says, in this project's words, with the line each setting came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from simulator.question.scenario.layout import Layout
from simulator.question.scenario.typed import StatedWorkload
from simulator.question.vocabulary import FrameworkName, StackName

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file."""

    file: str
    line: int
    """From 1."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only the run's environment knows: `$WORLD_SIZE`, `$1`, `$(command)`."""

    name: str
    """As given to `--set NAME=VALUE`."""
    place: Place
    affects: tuple[str, ...] = ()
    """Settings that need it; empty when nothing that matters does."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something a reader of the recipe should know: an unknown, repeated or contradictory flag, a rule broken."""

    rule: str
    """Stable id, such as `repeated-flag`."""
    severity: Severity
    message: str
    place: Place | None = None
    fix: str = ""
    source: str = ""
    """Where the framework checks it: repository, version, file and line."""


@dataclass(frozen=True, slots=True)
class GivenFlag:
    """A flag as the recipe gives it."""

    spelled: str
    """Without the dashes in front."""
    text: str
    """Its values, joined; empty for a switch."""
    place: Place

    @property
    def name(self) -> str:
        """As the framework's own tables spell it, with underscores."""
        return self.spelled.replace("-", "_").lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(StatedWorkload):
    """Workload, layout and cluster of one launch, as far as the recipe fixes them."""

    file: str
    title: str = ""
    """Which launch of the file, where there are several."""
    framework: FrameworkName
    dialect: str
    """What was read: `megatron-shell`, `paddle-shell`, `paddle-yaml`, `nemo-yaml`, `torchtitan-toml`, ..."""
    model: str | None
    """A shipped spec's name or a config path; None when the recipe only gives shapes or names nothing known."""
    model_fields: Mapping[str, object] = field(default_factory=dict)
    """ModelSpec fields that the recipe sets itself (Megatron's shapes); they replace the model's."""
    gradient_accumulation_steps: int | None = None
    """Where given instead of a global batch."""
    stack: StackName | None = None
    """Named stack under the switches, where one is named."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Framework switches that the recipe sets, as for `--option`."""
    layout: Layout | None
    """Sizes as given; data parallel follows from the devices. None when unknowns stand in the way."""
    virtual_stage_layers: int | None = None
    """Layers per virtual stage, where given so."""
    nodes: int | None = None
    devices_per_node: int | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    """Line of each setting, by this project's option name (`tp`, `pp`, `micro_batch_size`, `model`, ...)."""
    flags: tuple[GivenFlag, ...] = ()
    """Flags of the command line or keys of the file, the last of each; those that are there for sure."""
    unknowns: tuple[Unknown, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def is_question(self) -> bool:
        """Whether it is options or an estimate, completed as `simulate estimate` completes them, and no launch."""
        return self.dialect in ("options", "estimate")
