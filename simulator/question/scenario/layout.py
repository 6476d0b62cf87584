"""One layout: how a model is cut over devices and what is recomputed or moved off them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.errors import InputError, did_you_mean

RecomputeMode = Literal["none", "selective", "full", "attention"]
RecomputeMethod = Literal["uniform", "block", "list"]
Offload = Literal["none", "optimizer", "optimizer_tensorwise", "activations"]

RECOMPUTE_MODES: tuple[RecomputeMode, ...] = ("none", "selective", "full", "attention")
SEARCHED_RECOMPUTE_MODES: tuple[RecomputeMode, ...] = ("none", "selective", "full")
"""What a search tries unless told otherwise."""
RECOMPUTE_METHODS: tuple[RecomputeMethod, ...] = ("uniform", "block", "list")
OFFLOADS: tuple[Offload, ...] = ("none", "optimizer", "optimizer_tensorwise", "activations")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one training run is spread over its devices. All counts are per the whole run unless said."""

    tensor_parallel: int = 1
    """Ranks that share every weight matrix."""
    pipeline_parallel: int = 1
    """Pipeline ranks; each holds one stage, or `virtual_stages` chunks of one."""
    context_parallel: int = 1
    """Ranks that share one sequence."""
    expert_parallel: int = 1
    """Ranks over which whole routed experts are spread."""
    expert_tensor_parallel: int = 1
    """Ranks that share every routed expert's matrices."""
    data_parallel: int = 1
    """Replicas: devices / (tensor x pipeline x context)."""
    virtual_stages: int = 1
    """Model chunks per pipeline rank; 1 is plain 1F1B, more is the interleaved schedule."""
    micro_batch_size: int = 1
    """Sequences per micro batch on one replica."""
    sequence_parallel: bool = False
    """Split the activations between the tensor-parallel regions over the tensor-parallel group."""
    zero_stage: int = 1
    """0 none, 1 optimizer state (Megatron's distributed optimizer), 2 also gradients, 3 also parameters."""
    recompute: RecomputeMode = "none"
    """What the backward pass computes again: nothing, the attention core, whole layers, or the attention block."""
    recompute_method: RecomputeMethod = "uniform"
    """For full recompute: every layer in units (`uniform`), the first layers of each chunk (`block`), or a list."""
    recompute_layers: int = 1
    """Layers per unit (`uniform`) or recomputed layers per chunk (`block`)."""
    recompute_layer_list: tuple[int, ...] = ()
    """Indices of the recomputed layers (`list`)."""
    offload: Offload = "none"
    """What is kept in host memory between uses."""
    stage_layers: tuple[int, ...] = ()
    """Layers on each pipeline rank, first to last; empty means the default cut."""

    def __post_init__(self) -> None:
        """Refuse values that no layout has. Raises InputError naming the field."""
        for name in _COUNTS:
            check_count(name, getattr(self, name))
        check_choice("zero_stage", self.zero_stage, (0, 1, 2, 3))
        check_choice("recompute", self.recompute, RECOMPUTE_MODES)
        check_choice("recompute_method", self.recompute_method, RECOMPUTE_METHODS)
        check_choice("offload", self.offload, OFFLOADS)
        if len(set(self.recompute_layer_list)) != len(self.recompute_layer_list):
            raise InputError(f"recompute_layer_list {list(self.recompute_layer_list)}: names a layer twice")
        if any(layers < 1 for layers in self.stage_layers):
            raise InputError(
                f"stage_layers {list(self.stage_layers)}: every stage needs a whole number of layers from 1"
            )

    @property
    def devices(self) -> int:
        """Devices the layout occupies."""
        return self.tensor_parallel * self.pipeline_parallel * self.context_parallel * self.data_parallel


_COUNTS = (
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "expert_parallel",
    "expert_tensor_parallel",
    "data_parallel",
    "virtual_stages",
    "micro_batch_size",
    "recompute_layers",
)
LARGEST_COUNT = 2**24


def check_count(name: str, value: object, largest: int = LARGEST_COUNT) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `largest`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise InputError(f"{name} {value!r}: must be a whole number from 1 to {largest}")


def check_share(name: str, value: object) -> None:
    """Raise InputError unless `value` is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value <= 1.0:
        raise InputError(f"{name} {value!r}: must be a number from 0 to 1")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    if value not in choices:
        allowed = ", ".join(str(choice) for choice in choices)
        raise InputError(
            f"{name} {value!r}: allowed are {allowed}{did_you_mean(str(value), [str(c) for c in choices])}"
        )


def default_cut(layers: int, pipeline_parallel: int) -> tuple[int, ...]:
    """Layers per pipeline rank when the user gives no cut.

    An even cut where it exists. Otherwise the layers left over go to the middle stages, since the first and the
    last also hold the embedding and the output layer (what Megatron's first/last-stage options are used for).
    """
    base, left = divmod(layers, pipeline_parallel)
    cut = [base] * pipeline_parallel
    # Middle stages first, then the first, and the last only when every other stage has one more.
    order = [*range(1, pipeline_parallel - 1), 0, pipeline_parallel - 1]
    for stage in order[:left]:
        cut[stage] += 1
    return tuple(cut)


def model_chunks(stage_layers: tuple[int, ...], virtual_stages: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """(first layer, layers) of every model chunk of every pipeline rank.

    Interleaved chunks take turns: chunk c of rank i starts at layer `(c p + i) L / (p v)` (Narayanan et al. 2021).
    A cut that does not divide into equal chunks is one chunk on each rank.
    """
    v, p = virtual_stages, len(stage_layers)
    if v > 1 and len(set(stage_layers)) == 1 and stage_layers[0] % v == 0:
        size = stage_layers[0] // v
        return tuple(tuple(((c * p + i) * size, size) for c in range(v)) for i in range(p))
    starts = (sum(stage_layers[:i]) for i in range(p))
    return tuple(((start, layers),) for start, layers in zip(starts, stage_layers, strict=True))
