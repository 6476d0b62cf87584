"""Profile of a framework: its switches, each with default and allowed values, and its limits.

A switch is a behaviour that changes memory or time, and `--option` sets it; a limit is what the framework supports,
which rules and search read. `switches.csv` says what each switch means. Formulas read the profile, never its name.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import field, fields
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, Final, Literal, ParamSpec, TypeVar, get_args
from zlib import crc32

from simulator.errors import InputError
from simulator.files import read_table
from simulator.question.vocabulary import (
    ATTENTION_KERNELS,
    CAPTURES,
    CONTEXT_EXCHANGES,
    EXPERT_DISPATCHES,
    FP4_RECIPES,
    FP8_RECIPES,
    OFFLOADED_MODULES,
    OPTIMIZERS,
    ExpertDispatch,
    Offload,
    OffloadedModule,
    RecomputeModule,
    ScheduleName,
    StackName,
)
from simulator.records import Record

P = ParamSpec("P")
T = TypeVar("T")
_ON = ("true", "1", "on", "yes")
_OFF = ("false", "0", "off", "no")


NO_WORD = "none"
"""Text of a switch whose value is a set of words, for the empty set."""


def switch_value(spec: dataclasses.Field[Any], text: str, current: object) -> object:
    """Return `text` as the switch's own type, checked against its choices or range. Raises InputError."""
    if isinstance(current, bool):
        if text.lower() not in (*_ON, *_OFF):
            raise InputError(f"--option {spec.name}={text}: allowed are true and false")
        return text.lower() in _ON
    if isinstance(current, tuple):
        words = [word for word in text.split(",") if word and text != NO_WORD]
        if wrong := next((word for word in words if word not in spec.metadata["choices"]), None):
            raise InputError(f"--option {spec.name}={wrong}: allowed are {', '.join(spec.metadata['choices'])}")
        return tuple(word for word in spec.metadata["choices"] if word in words)
    if isinstance(current, str):
        choices = spec.metadata["choices"]
        parts = [part for choice in choices if "+" in choice for part in choice.split("+")]
        if text in choices:
            return text
        if not set(text.split("+")) <= set(parts):
            raise InputError(f"--option {spec.name}={text}: allowed are {', '.join(choices)}")
        return "+".join(part for part in parts if part in text.split("+"))
    kind = int if isinstance(current, int) else float
    low, high = spec.metadata["low"], spec.metadata["high"]
    try:
        value: float = kind(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        expected = "a whole number" if kind is int else "a number"
        raise InputError(f"--option {spec.name}={text}: must be {expected} from {low} to {high}")
    return value


SwitchEffect = Literal["memory", "host", "passes", "step", "rules"]
"""Part of an answer that a switch may change: memory of a device or of a node's host, time of a micro batch's passes or
of the rest of a step, rules."""
SWITCH_EFFECTS: tuple[SwitchEffect, ...] = get_args(SwitchEffect)


def switch(
    *,
    default: Any,
    choices: tuple[Any, ...] = (),
    low: float = 0,
    high: float = 1,
    moves: tuple[SwitchEffect, ...] = SWITCH_EFFECTS,
) -> Any:
    """Return the profile field of a switch: default, words or range, its effects; of a word with + parts are words."""
    meta = {"choices": choices, "low": low, "high": high, "moves": moves}
    return field(default=default, metadata=meta)


class Switches(Record, kw_only=True):
    """Record of many switches that serves as a cache key, with its hash stored."""

    hashed: int = field(init=False, repr=False)
    """Hash of the switches, the same in every process."""

    def __post_init__(self) -> None:
        """Compute the hash."""
        kind: Any = type(self)
        object.__setattr__(self, "hashed", crc32(repr(_values(kind)(self)).encode()))

    def __hash__(self) -> int:
        """Hash by the switches."""
        return self.hashed


@lru_cache(maxsize=4)
def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of a record's switch values."""
    return attrgetter(*(each.name for each in fields(kind) if "moves" in each.metadata))


class FrameworkLimits(Record, kw_only=True):
    """Limits of a framework that the layout rules read."""

    zero_stage: int = 3
    """Highest ZeRO stage without a pipeline."""
    zero_stage_with_pipeline: int = 3
    """Highest ZeRO stage beside a pipeline."""
    default_zero_stage: int = 1
    """ZeRO stage of the framework's runs by default."""
    pads_vocabulary: bool = True
    """Whether a vocabulary that does not divide by tensor parallel is padded or split unevenly."""
    experts_need_sequence_parallel: bool = False
    """Whether experts beside tensor parallelism are refused without sequence parallelism."""
    activation_offload_with_pipeline: bool = True
    """Whether activations can be offloaded beside a pipeline."""
    activation_offload_with_recompute: bool = True
    """Whether activations can be offloaded beside recomputation of others."""
    schedules: tuple[ScheduleName, ...] = ("1f1b",)
    interleaving_of_two_stages_without_overlap: bool = True
    """Whether two pipeline ranks can interleave chunks with sends that nothing overlaps."""
    recompute_modules: tuple[RecomputeModule, ...] = ("core_attn",)
    """Parts of a layer that selective recompute can do again."""
    recomputes_operations: bool = False
    """Whether recompute can keep the outputs of listed operations and repeat a layer's others."""
    offloads_modules: bool = False
    """Whether the tensors that parts of a layer keep can be moved to the host."""
    recomputes_leading_layers: bool = False
    """Whether full recompute can cover the first layers of every model chunk alone."""
    trains_adapters: bool = True
    """Whether its own trainer trains LoRA adapters."""
    replicates_kv_heads: bool = False
    """Whether tensor parallelism beyond the key-value heads gives every rank a copy of one."""
    unequal_chunks: bool = False
    """Whether the model chunks of interleaved pipeline ranks may hold different numbers of layers, or none."""
    splits_experts_as_layers: bool = False
    """Whether experts are split over the tensor-parallel group by default, as the other layers are."""
    expert_dispatches: tuple[ExpertDispatch, ...] = ()
    """Ways of sending tokens to experts that a search tries beside the usual one, overlapped with compute."""
    optimizers: tuple[str, ...] = ("adamw",)
    lora_rank: int = 8
    """Rank of adapters by its library's default (peft, torchtune and PaddleNLP: 8)."""
    offloads: tuple[Offload, ...] = ()
    """Offloads of the framework that can make a layout fit, least intrusive first."""


DType = Literal["fp32", "bf16"]
MomentDType = Literal["fp32", "bf16", "fp8"]
DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp8": 1}


class FrameworkProfile(Switches, kw_only=True):
    """Switches of one framework; `simulate frameworks` lists them with these descriptions."""

    name: str
    version: str = ""
    """Release whose defaults the profile has."""
    stack: StackName = "default"
    """Named stack over the framework's defaults, see `stacks`; a user's options override it."""
    limits: FrameworkLimits = field(default_factory=FrameworkLimits)
    stack_assumed: bool = False
    """Whether the stack is a release chosen by default."""
    stated: frozenset[str] = frozenset()
    """Switches that the question names, on a stack that has releases."""
    case: Any = None
    """Model, device and precision for which a release set its switches, see `releases`."""
    release: str = ""
    """Release and recipe of the switches, as text."""
    release_source: str = ""
    """File and line of that recipe."""

    def zero_stage_on(self, devices: int) -> int:
        """Return the usual ZeRO stage on a number of devices: FSDP2 wraps nothing on one, a plain module stays."""
        return 0 if devices == 1 and self.fully_shard else self.limits.default_zero_stage

    # Tensors that the autograd graph keeps per layer.
    flash_attention: bool = switch(default=True)
    attention_kernel: str = switch(default="device", choices=("device", "math", *ATTENTION_KERNELS))
    attention_matrix_bytes: int = switch(default=2, low=2, high=16)
    attention_dropout: bool = switch(default=False)
    hidden_dropout: bool = switch(default=False)
    fused_rms_norm: bool = switch(default=True)
    composed_norm_bytes: int = switch(default=8, low=2, high=16)
    composed_layer_norm_bytes: int = switch(default=0, high=32)
    fused_swiglu: bool = switch(default=True)
    composed_activation_bytes: int = switch(default=0, high=32)
    gradients_in_place: bool = switch(default=False, moves=("memory",))
    fused_rotary: bool = switch(default=True)
    compiled: bool = switch(default=False)
    recompute_stops_early: bool = switch(default=False)
    returned_scores: bool = switch(default=False, moves=("memory",))
    keep_qkv_output: bool = switch(default=False)
    rope_tables_per_call: bool = switch(default=False)
    repeat_kv: bool = switch(default=False)
    dense_masks: str = switch(default="none", choices=("none", "windows", "all"))
    copy_latent_value: bool = switch(default=False)
    fuse_latent_norm: bool = switch(default=False)
    probabilities_in_experts: bool = switch(default=False)
    recomputed_activation_share: float = switch(default=0.0)
    recomputed_norm_share: float = switch(default=0.0)
    fp8_experts: str = switch(default="none", choices=("none", "cast", "kept"))
    recomputed_expert_share: float = switch(default=0.0)
    recomputed_network_share: float = switch(default=0.0)
    swapped_attention: bool = switch(default=False)
    offloaded_modules: tuple[OffloadedModule, ...] = switch(default=(), choices=(*OFFLOADED_MODULES,))
    composed_scan: bool = switch(default=False)
    keep_gathered_inputs: bool = switch(default=False)
    copied_inputs: bool = switch(default=False)

    # Data types of the training state.
    parameter_dtype: DType = switch(default="bf16", choices=("bf16", "fp32"))
    gradient_dtype: DType = switch(default="fp32", choices=("fp32", "bf16"), moves=("memory", "host", "passes", "step"))
    reduce_dtype: str = switch(default="gradient", choices=("gradient", "fp32", "bf16"))
    optimizer: str = switch(default="adamw", choices=(*OPTIMIZERS,))
    optimizer_dtype: MomentDType = switch(
        default="fp32", choices=("fp32", "bf16", "fp8"), moves=("memory", "host", "step")
    )
    master_weights: bool = switch(default=True)
    master_weight_dtype: DType = switch(default="fp32", choices=("fp32", "bf16"))
    fp32_router: bool = switch(default=False)
    router_input_bytes: int = switch(default=0, high=8, moves=("memory", "host"))
    whole_table_state: bool = switch(default=False)
    wide_table_moments: bool = switch(default=False)
    release_grads: bool = switch(default=False)
    step_in_backward: bool = switch(default=False)
    sharding_degree: int = switch(default=0, low=0, high=16777216)
    sharding_replicas: int = switch(default=1, low=1, high=1048576)
    live_parameters: int = switch(default=0, high=1125899906842624)
    reuse_parameters: int = switch(default=0, high=1125899906842624)
    prefetch_parameters: int = switch(default=0, high=1125899906842624)
    reduction_parameters: int = switch(default=0, high=1125899906842624)
    kept_gathers: bool = switch(default=False)
    outer_unit: bool = switch(default=False, moves=("memory",))
    split_blocks: float = switch(default=0.0, high=8.0, moves=("memory",))
    reduction_buffers: int = switch(default=1, high=8)
    step_parameters: int = switch(default=0, high=1125899906842624)
    step_temporaries: int = switch(default=1, high=4)
    offload_fraction: float = switch(default=1.0)
    host_gradient_bytes: float = switch(default=0.0, high=16, moves=("host",))
    host_accumulation_bytes: float = switch(default=0.0, high=16, moves=("host",))
    host_weight_bytes: float = switch(default=0.0, high=16, moves=("host",))
    host_pinned_bytes: float = switch(default=0.0, high=64, moves=("host",))
    offload_parameters: bool = switch(default=False)
    builds_whole_layers: bool = switch(default=False, moves=("memory",))
    builds_in_fp32: bool = switch(default=False, moves=("memory",))
    buffers_weights: bool = switch(default=False, moves=("memory",))
    saves_on_host: str = switch(default="none", choices=("none", "weights", "state"), moves=("host",))
    loads_on_host: str = switch(default="none", choices=("none", "sharded", "always"), moves=("host",))
    fused_projections: bool = switch(default=True)
    shared_adapters: str = switch(default="false", choices=("false", "network", "attention", "mixers", "gates", "true"))
    joint_adapters: str = switch(default="none", choices=("none", "whole", "padded"), moves=("memory", "host"))
    adapter_targets: str = switch(
        default="all", choices=("q+k+v+o+gate+up+down+head", "all", "attention", "query_value")
    )
    expert_adapters: str = switch(default="true", choices=("false", "router", "true"))
    merged_expert_adapters: str = switch(default="none", choices=("none", "folded", "added"))
    decomposed_adapters: str = switch(default="none", choices=("none", "joint", "apart"))
    saved_modules: str = switch(default="none", choices=("none", "embedding", "output", "both"))
    saved_modules_dtype: DType = switch(default="bf16", choices=("bf16", "fp32"))
    adapter_copies: bool = switch(default=False, moves=("memory", "host"))
    adapter_dropout: str = switch(default="none", choices=("none", "before", "after"), moves=("memory", "host"))
    fused_gradient_accumulation: bool = switch(default=True)
    dummy_weight_gradients: str = switch(default="none", choices=("none", "linear", "all"))
    foreach_optimizer: bool = switch(default=False)
    largest_tensor_step: bool = switch(default=False)
    widened_gradients: bool = switch(default=False)
    master_gradients: bool = switch(default=False)
    gradient_copies: bool = switch(default=False)
    quantised_base: bool = switch(default=False)
    quantised_bits: str = switch(default="4", choices=("4", "8"))
    quantised_head: bool = switch(default=False, moves=("memory",))
    quantised_scale_bytes: float = switch(default=2.0, high=8.0)
    quantised_experts: bool = switch(default=True)
    loads_unquantised: bool = switch(default=False, moves=("memory",))
    quantising_bytes: int = switch(default=0, high=256, moves=("memory",))
    widened_rest: bool = switch(default=False)
    frozen_dtype: str = switch(default="compute", choices=("compute", "fp32"), moves=("memory",))
    frozen_reference: bool = switch(default=False)
    reference_gradients: bool = switch(default=False)
    reference_forward: bool = switch(default=False)

    # Training data and objective.
    sequences_per_sample: int = switch(default=1, low=1, high=64)
    score_head: bool = switch(default=False)
    unused_output_layer: bool = switch(default=False)

    # Memory that lives on between steps beside the training state.
    attention_mask: str = switch(default="none", choices=("none", "compressed", "sequence", "layers"))
    rotary_tables: int = switch(default=0, low=0, high=2147483648, moves=("memory",))
    position_bias_tables: int = switch(default=0, high=3)
    kept_boundaries: bool = switch(default=False)
    kept_dispatches: float = switch(default=0.0, high=64.0)
    fully_shard: bool = switch(default=False)
    autocast: bool = switch(default=False, moves=("memory", "host"))
    plain_module: bool = switch(default=False, moves=("memory",))
    flat_parameters: bool = switch(default=False, moves=("memory",))
    backward_prefetch: bool = switch(default=False, moves=("memory",))
    sync_each_batch: bool = switch(default=False, moves=("memory",))
    fp8_weight_cache: bool = switch(default=True)
    fp8_recipe: str = switch(default="delayed", choices=(*FP8_RECIPES,))
    fp4_recipe: str = switch(default="nvfp4", choices=(*FP4_RECIPES,))
    fp8_param_gather: bool = switch(default=False)
    fp8_attention: bool = switch(default=False, moves=("passes", "step"))
    fp8_output_layer: bool = switch(default=False, moves=("passes", "step"))
    fp8_inputs: bool = switch(default=True)

    fp8_activation_inputs: bool = switch(default=False)
    fp8_dispatch: bool = switch(default=False)

    # Output layer and loss.
    fused_cross_entropy: bool = switch(default=False, moves=("memory", "passes", "step"))
    loss_bytes_per_logit: int = switch(default=8, low=2, high=32)
    fused_loss_bytes_per_logit: int = switch(default=0, low=0, high=32)
    split_loss_bytes_per_logit: int = switch(default=0, low=0, high=32)
    loss_chunks: int = switch(default=0, low=0, high=65536, moves=("memory",))
    losses_in_turn: bool = switch(default=False)
    cross_entropy_chunk_tokens: int = switch(default=0, low=0, high=2147483648)
    cross_entropy_chunk_mib: int = switch(default=0, high=1048576, moves=("memory",))

    vocabulary_parallel_loss: bool = switch(default=True)
    # 32: PyTorch's log-softmax in one kernel a pass (aten/src/ATen/native/cuda/SoftMax.cu) reads 4 and writes 4 forward
    # and reads 8 and writes 4 backward; the casts around it take 6 each. Assumed for Paddle too.
    loss_traffic_bytes: int = switch(default=32, low=8, high=256)
    labelled_token_fraction: float = switch(default=1.0, low=0.001)

    deferred_head_gradients: int = switch(default=0, low=0, high=2147483648)

    # Communication.
    tp_comm_overlap: bool = switch(default=False, moves=("memory", "passes", "step"))
    functional_collectives: bool = switch(default=False)
    overlap_tensor_gradients: bool = switch(default=False)
    gradient_passes: float = switch(default=0.0, high=64)
    cp_communication: str = switch(default="ring", choices=(*CONTEXT_EXCHANGES,))
    cp_inner_degree: int = switch(default=0, high=65536)
    overlap_grad_reduce: bool = switch(default=False, moves=("step",))
    overlap_param_gather: bool = switch(default=False, moves=("step",))
    zero_broadcasts: bool = switch(default=False)
    overlap_p2p: bool = switch(default=True)
    scattered_sends: bool = switch(default=False)
    host_paced_layers: bool = switch(default=False)
    cuda_graphs: str = switch(default="none", choices=(*CAPTURES,))
    blocking_launches: bool = switch(default=False)
    deterministic_kernels: str = switch(default="none", choices=("none", "products", "all"), moves=("memory", "host"))
    expandable_segments: bool = switch(default=False, moves=("memory",))

    communicator_buffer_mib: int = switch(default=0, low=0, high=1048576)

    eager_modules: bool = switch(default=False)
    growing_pool: bool = switch(default=False)

    # Mixture of experts and extra layers.
    expert_imbalance: float = switch(default=1.0, low=0.01, high=64.0)
    expert_dispatch: ExpertDispatch = switch(default="alltoall", choices=(*EXPERT_DISPATCHES,))
    grouped_experts: bool = switch(default=False, moves=("memory",))
    sliced_experts: bool = switch(default=False)
    indexed_dispatch: bool = switch(default=False)
    overlap_expert_exchange: bool = switch(default=False)
    delayed_weight_gradients: bool = switch(default=False, moves=("memory",))
    fused_experts: bool = switch(default=False, moves=("passes", "step"))
    expert_capacity: float = switch(default=1.0, low=1.0, high=64.0, moves=("memory",))
    expert_stash: float = switch(default=1.0, low=1.0, high=64.0, moves=("memory", "host"))
    warm_up_whole_batch: bool = switch(default=False)
    splits_last_backward: bool = switch(default=True)
    mtp: bool = switch(default=False)
    unmeasured_runtime: bool = switch(default=False)


def merges_experts(profile: FrameworkProfile) -> bool:
    """Return whether adapters of routed experts multiply a merged copy of all experts' weights (M40)."""
    merges = profile.merged_expert_adapters != "none" and profile.expert_adapters == "true"
    return merges and not {"all", "down"}.isdisjoint(profile.adapter_targets.split("+"))


def switches() -> tuple[dataclasses.Field[Any], ...]:
    """Return every switch as a dataclass field; `metadata` holds choices, range and effects."""
    return tuple(f for f in dataclasses.fields(FrameworkProfile) if "moves" in f.metadata)


@cache
def switch_meanings() -> Mapping[str, str]:
    """Return the sentence that says what a switch means when it is on, or is larger, by the switch's name."""
    return {row["name"]: row["about"] for row in read_table(__file__, "switches")}


@cache
def acts_beside() -> Mapping[str, tuple[str, ...]]:
    """Return what a switch acts beside, by its name: other settings, or their values."""
    return {row["name"]: tuple(row["beside"].split()) for row in read_table(__file__, "switches")}


_NAMES: Final[ContextVar[set[str] | None]] = ContextVar("names", default=None)
"""What is read of watched profiles meanwhile; None where nobody notes it."""


def noted(figure: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> tuple[T, set[str]]:
    """Return a figure with what it read of watched profiles."""
    names = set[str]()
    outer = _NAMES.set(names)
    try:
        return figure(*args, **kwargs), names
    finally:
        _NAMES.reset(outer)
        note(names)


def note(names: Iterable[str]) -> None:
    """Note what was read, where somebody does."""
    if (known := _NAMES.get()) is not None:
        known.update(names)


class Watched(FrameworkProfile, kw_only=True):
    """Profile that notes what is read of it."""

    def __getattribute__(self, name: str) -> Any:
        note((name,))
        return object.__getattribute__(self, name)
