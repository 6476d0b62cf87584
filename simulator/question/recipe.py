"""Record of a recipe: a training run as a file describes it, in this project's terms, with each setting's line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.question.origin import Origin, Place, RecipeFlag, Remark, Unknown
from simulator.question.scenario.layout import Layout
from simulator.question.vocabulary import FrameworkName, StackName
from simulator.records import Record, field

UNREAD: Final = "unread"
"""Dialect of a launch that no reader takes, in a script with others that are read."""
A_NODE: Final = "node"
"""Value of the switch `sharding_degree` where state is sharded within each node, whatever the node's size."""


class Recipe(Record, kw_only=True):
    """Model, workload, layout and machines of one run, as far as its words fix them; None for what they leave out."""

    file: str = ""
    """Name of the file, as the user wrote it."""
    title: str = ""
    """Name of the launch within the file; empty for a file's single one."""
    dialect: str = ""
    """Recipe format: `megatron-shell`, `paddle-shell`, `paddle-yaml`, `nemo-yaml`, `torchtitan-toml`, ..."""
    nodes: int | None = None
    devices_per_node: int | None = None
    hardware: str | None = None
    """Device that the words name, by their word if it leaves the memory open; None without one, or for several."""
    maker: str = ""
    """Maker of the devices that the words name; empty where they name none."""
    device_word: str = ""
    """Word that names them, such as `device=npu`; empty without one."""
    device_choice: tuple[str, ...] = ()
    """Shipped specs that the words allow; empty where they name none, or a maker of which none ships."""
    framework: FrameworkName
    model: str | None = None
    """Name of a shipped spec or a config path; None where the words state only shapes or no known model."""
    model_fields: Mapping[str, object] = field(default_factory=dict)
    """ModelSpec fields that the words set (Megatron's shapes); they replace the model's."""
    shape: Mapping[str, object] = field(default_factory=dict)
    """All ModelSpec fields that the words state, including those that agree with the named model."""
    seq_length: int | None = None
    global_batch_size: int | None = None
    precision: str | None = None
    lora_rank: int | None = None
    gradient_accumulation_steps: int | None = None
    """Micro batches per step, where stated instead of a global batch."""
    stack: StackName | None = None
    """Stack that supplies the default switches; None where none is named."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Framework switches that the words set, as in `--option`."""
    layout: Layout | None = None
    """Sizes as stated; data parallel follows from the devices. None where unknown values prevent a layout."""
    encoder_training: str = ""
    """What of an encoder of images is trained, as in `--images`; empty where the words do not say it."""
    unpriced_bytes: float = 0.0
    """Upper bound, in bytes per device, of a part that is not priced."""
    experts_open: bool = False
    """Whether the release of a library decides which routed experts have adapters, or are narrow as the rest."""
    virtual_stage_layers: int | None = None
    """Layers per virtual stage, where stated."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Line that sets each setting, by option name (`tp`, `pp`, `micro_batch_size`, `model`, ...)."""
    flags: tuple[RecipeFlag, ...] = ()
    """Flags of the command line or keys of the file that are surely set, the last occurrence of each."""
    unknowns: tuple[Unknown, ...] = ()
    remarks: tuple[Remark, ...] = ()

    def origin(self, *settings: str) -> Origin:
        """Return who says a setting, by the first of its names with a line; the framework's default without one."""
        place = next((self.places[name] for name in settings if name in self.places), None)
        return Origin("framework", self.framework) if place is None else place.origin
