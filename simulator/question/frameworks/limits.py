"""Limits of a framework: which layouts it accepts. Data that the rules of `search.rules` read; judges nothing."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.question.vocabulary import ExpertDispatch, Offload, RecomputeModule, ScheduleName


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkLimits:
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
    """Pipeline schedules of the framework."""
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
    replicates_kv_heads: bool = False
    """Whether tensor parallelism beyond the key-value heads gives every rank a copy of one."""
    unequal_chunks: bool = False
    """Whether the model chunks of interleaved pipeline ranks may hold different numbers of layers, or none."""
    splits_experts_as_layers: bool = False
    """Whether experts are split over the tensor-parallel group by default, as the other layers are."""
    expert_dispatches: tuple[ExpertDispatch, ...] = ()
    """Ways of sending tokens to experts that a search tries beside the usual one, overlapped with compute."""
    optimizers: tuple[str, ...] = ("adamw",)
    """Optimizers that the framework has."""
    offloads: tuple[Offload, ...] = ()
    """Offloads of the framework that can make a layout fit, least intrusive first."""
