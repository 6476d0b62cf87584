"""Framework profile: every switch that changes memory or time, with a value.

A switch exists because measured runs, or the saved tensors of real implementations, differ by it. The formulas of
`memory` and `timing` read switches only; they never ask for a framework's name.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.question.frameworks.limits import FrameworkLimits
from simulator.question.frameworks.switch import Switches, switch_of_row
from simulator.question.specs.tables import TABLED, fields_from, rows_of
from simulator.question.vocabulary import ExpertDispatch, OffloadedModule, StackName

DType = Literal["fp32", "bf16"]
MomentDType = Literal["fp32", "bf16", "fp8"]
DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
@fields_from(rows_of("switches"), switch_of_row)
class FrameworkProfile(Switches):
    """Switches of one framework; `simulate frameworks` lists them with these descriptions."""

    name: str
    version: str = ""
    """Release whose defaults the profile has."""
    stack: StackName = "default"
    """Named stack over the framework's defaults, see `stacks`; a user's options override it."""
    limits: FrameworkLimits = field(default_factory=FrameworkLimits)
    stack_assumed: bool = False
    """Whether the stack is a release chosen by default."""
    asked: frozenset[str] = frozenset()
    """Switches that the question names, on a stack that has releases."""
    case: Any = None
    """Model, device and precision for which a release set its switches, see `releases`."""
    release: str = ""
    """Release and recipe of the switches, as text."""
    release_source: str = ""
    """File and line of that recipe."""

    # Tensors that the autograd graph keeps per layer.
    flash_attention: bool = TABLED
    attention_kernel: str = TABLED
    attention_matrix_bytes: int = TABLED
    attention_dropout: bool = TABLED
    hidden_dropout: bool = TABLED
    fused_rms_norm: bool = TABLED
    composed_norm_bytes: int = TABLED
    fused_swiglu: bool = TABLED
    fused_rotary: bool = TABLED
    compiled: bool = TABLED
    recompute_stops_early: bool = TABLED
    keep_qkv_output: bool = TABLED
    rope_tables_per_call: bool = TABLED
    repeat_kv: bool = TABLED
    copy_latent_value: bool = TABLED
    fuse_latent_norm: bool = TABLED
    probabilities_in_experts: bool = TABLED
    recomputed_activation_share: float = TABLED
    recomputed_norm_share: float = TABLED
    fp8_experts: str = TABLED
    recomputed_expert_share: float = TABLED
    recomputed_network_share: float = TABLED
    swapped_attention: bool = TABLED
    offloaded_modules: tuple[OffloadedModule, ...] = TABLED
    composed_scan: bool = TABLED
    keep_gathered_inputs: bool = TABLED

    # Data types of the training state.
    parameter_dtype: DType = TABLED
    gradient_dtype: DType = TABLED
    reduce_dtype: str = TABLED
    optimizer: str = TABLED
    optimizer_dtype: MomentDType = TABLED
    master_weights: bool = TABLED
    master_weight_dtype: DType = TABLED
    fp32_router: bool = TABLED
    release_grads: bool = TABLED
    sharding_degree: int = TABLED
    sharding_replicas: int = TABLED
    live_parameters: int = TABLED
    reuse_parameters: int = TABLED
    prefetch_parameters: int = TABLED
    reduction_parameters: int = TABLED
    step_parameters: int = TABLED
    offload_fraction: float = TABLED
    host_gradient_bytes: float = TABLED
    host_accumulation_bytes: float = TABLED
    host_weight_bytes: float = TABLED
    host_pinned_bytes: float = TABLED
    offload_parameters: bool = TABLED
    fused_projections: bool = TABLED
    shared_adapters: bool = TABLED
    adapter_targets: str = TABLED
    fused_gradient_accumulation: bool = TABLED
    dummy_weight_gradients: str = TABLED
    foreach_optimizer: bool = TABLED
    largest_tensor_step: bool = TABLED
    widened_gradients: bool = TABLED
    master_gradients: bool = TABLED
    gradient_copies: bool = TABLED
    quantised_base: bool = TABLED
    quantised_scale_bytes: float = TABLED
    widened_rest: bool = TABLED
    frozen_reference: bool = TABLED
    reference_gradients: bool = TABLED
    reference_forward: bool = TABLED

    # Training data and objective.
    sequences_per_sample: int = TABLED
    score_head: bool = TABLED
    unused_output_layer: bool = TABLED

    # Memory that lives on between steps beside the training state.
    attention_mask: str = TABLED
    position_bias_tables: int = TABLED
    kept_boundaries: bool = TABLED
    kept_dispatches: float = TABLED
    fully_shard: bool = TABLED
    fp8_weight_cache: bool = TABLED
    fp8_recipe: str = TABLED
    fp4_recipe: str = TABLED
    fp8_param_gather: bool = TABLED
    fp8_attention: bool = TABLED
    fp8_output_layer: bool = TABLED
    fp8_inputs: bool = TABLED

    fp8_activation_inputs: bool = TABLED
    fp8_dispatch: bool = TABLED

    # Output layer and loss.
    fused_cross_entropy: bool = TABLED
    loss_bytes_per_logit: int = TABLED
    fused_loss_bytes_per_logit: int = TABLED
    split_loss_bytes_per_logit: int = TABLED
    losses_in_turn: bool = TABLED
    cross_entropy_chunk_tokens: int = TABLED

    vocabulary_parallel_loss: bool = TABLED
    # 32: PyTorch's log-softmax in one kernel a pass (aten/src/ATen/native/cuda/SoftMax.cu) reads 4 and writes 4 forward
    # and reads 8 and writes 4 backward; the casts around it take 6 each. Assumed for Paddle too.
    loss_traffic_bytes: int = TABLED
    labelled_token_fraction: float = TABLED

    deferred_head_gradients: int = TABLED

    # Communication.
    tp_comm_overlap: bool = TABLED
    functional_collectives: bool = TABLED
    overlap_tensor_gradients: bool = TABLED
    gradient_passes: float = TABLED
    cp_communication: str = TABLED
    cp_inner_degree: int = TABLED
    overlap_grad_reduce: bool = TABLED
    overlap_param_gather: bool = TABLED
    zero_broadcasts: bool = TABLED
    overlap_p2p: bool = TABLED
    scattered_sends: bool = TABLED
    host_paced_layers: bool = TABLED
    cuda_graphs: str = TABLED
    blocking_launches: bool = TABLED
    expandable_segments: bool = TABLED

    communicator_buffer_mib: int = TABLED

    eager_modules: bool = TABLED
    growing_pool: bool = TABLED

    # Mixture of experts and extra layers.
    expert_imbalance: float = TABLED
    expert_dispatch: ExpertDispatch = TABLED
    sliced_experts: bool = TABLED
    indexed_dispatch: bool = TABLED
    overlap_expert_exchange: bool = TABLED
    delayed_weight_gradients: bool = TABLED
    fused_experts: bool = TABLED
    expert_capacity: float = TABLED
    expert_stash: float = TABLED
    warm_up_whole_batch: bool = TABLED
    splits_last_backward: bool = TABLED
    mtp: bool = TABLED
    unmeasured_runtime: bool = TABLED


def switches() -> tuple[dataclasses.Field[Any], ...]:
    """Return every switch as a dataclass field; `metadata` holds description, choices and range."""
    return tuple(f for f in dataclasses.fields(FrameworkProfile) if "about" in f.metadata)
