"""The type `AskedRun`: one training run in this project's terms, which every framework's reader returns.

`--tensor-model-parallel-size 2` of Megatron-LM and `--tensor_parallel_degree 2` of Paddle both set
`layout.tensor_parallel` here. Reads no flags and computes nothing: the readers are in the frameworks' folders.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.remarks import Place, RecipeFlag, Remark, Unknown
from simulator.question.scenario.layout import SETTINGS, Layout
from simulator.question.scenario.typed import StatedWorkload
from simulator.question.vocabulary import FrameworkName, StackName

LAYOUT_OPTIONS: Final = frozenset(setting.key for setting in SETTINGS) - {"dp", "recompute_layer_list"}
"""Settings without which a layout is incomplete."""

A_NODE: Final = "node"
"""Value of the switch `sharding_degree` where state is sharded within each node, whatever the node's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRun(StatedWorkload):
    """Model, workload and layout of one run, as far as its words fix them, with the line that sets each."""

    framework: FrameworkName
    model: str | None = None
    """Name of a shipped spec or a config path; None where the words state only shapes or no known model."""
    model_fields: Mapping[str, object] = field(default_factory=dict)
    """ModelSpec fields that the words set (Megatron's shapes); they replace the model's."""
    shape: Mapping[str, object] = field(default_factory=dict)
    """All ModelSpec fields that the words state, including those that agree with the named model."""
    gradient_accumulation_steps: int | None = None
    """Micro batches per step, where stated instead of a global batch."""
    stack: StackName | None = None
    """Stack that supplies the default switches; None where none is named."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Framework switches that the words set, as in `--option`."""
    layout: Layout | None = None
    """Sizes as stated; data parallel follows from the devices. None where unknown values prevent a layout."""
    unpriced_bytes: float = 0.0
    """Upper bound, in bytes per device, of a part that is not priced."""
    virtual_stage_layers: int | None = None
    """Layers per virtual stage, where stated."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """Line that sets each setting, by option name (`tp`, `pp`, `micro_batch_size`, `model`, ...)."""
    flags: tuple[RecipeFlag, ...] = ()
    """Flags of the command line or keys of the file that are surely set, the last occurrence of each."""
    unknowns: tuple[Unknown, ...] = ()
    remarks: tuple[Remark, ...] = ()


AnyRun = TypeVar("AnyRun", bound=AskedRun)


def finished(arguments: Arguments, run: AnyRun) -> AnyRun:
    """Return the run with all remarks, unknowns and places; its layout is None where a part of it is unknown."""
    arguments.remark_repeated()
    arguments.remark_unread()
    arguments.note_others()
    shaped = run.model is not None or "num_hidden_layers" in run.model_fields
    arguments.note_bags({"model": not shaped, "seq_length": run.seq_length is None, "precision": not run.precision})
    layout = None if arguments.incomplete & LAYOUT_OPTIONS else run.layout
    if layout and arguments.devices:
        replica = layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel
        if arguments.devices % replica == 0:
            layout = dataclasses.replace(layout, data_parallel=arguments.devices // replica)
            arguments.places["dp"] = arguments.places["devices"]
    return dataclasses.replace(
        run,
        layout=layout,
        places=arguments.places,
        flags=arguments.flags(),
        unknowns=arguments.unknowns(),
        remarks=tuple(sorted(arguments.remarks, key=lambda remark: remark.place.line if remark.place else 0)),
    )
