"""Profile of a framework: its switches, each with default, meaning and allowed values, and its limits.

A switch is a behaviour that changes memory or time, and `--option` sets it; a limit is what the framework supports,
which rules and search read. Measured runs, or the saved tensors of real implementations, differ by each switch. Values
stand in files of `simulator/frameworks`; `specs.stacks` reads them, `frameworks.stacks` makes profiles of releases and
clusters. Formulas in `cost` read the profile and never the name of a framework.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal, get_args
from zlib import crc32

from simulator.errors import InputError
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
        if text not in spec.metadata["choices"]:
            raise InputError(f"--option {spec.name}={text}: allowed are {', '.join(spec.metadata['choices'])}")
        return text
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


def switch(  # noqa: PLR0913  what is known of a switch
    *,
    default: Any,
    about: str,
    choices: tuple[Any, ...] = (),
    low: float = 0,
    high: float = 1,
    moves: tuple[SwitchEffect, ...] = SWITCH_EFFECTS,
    concerns: Literal["every", "experts", "fp8"] = "every",
) -> Any:
    """Return the profile field of a switch: its default, meaning, allowed words or range.

    `moves` lists the effects that it may have, `concerns` the questions that it applies to.
    """
    meta = {"about": about, "choices": choices, "low": low, "high": high, "moves": moves, "concerns": concerns}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Switches:
    """Record of many switches that serves as a cache key, with its hash stored.

    Classes that add switches are made with `eq=False`: code for each of a hundred fields takes long to start.
    """

    hashed: int = field(init=False, repr=False)
    """Hash of the switches, the same in every process."""

    def __post_init__(self) -> None:
        """Compute the hash."""
        kind: Any = type(self)
        object.__setattr__(self, "hashed", crc32(repr(_values(kind)(self)).encode()))

    def __hash__(self) -> int:
        """Hash by the switches."""
        return self.hashed

    def __eq__(self, other: object) -> bool:
        """Compare the hashes of the switches, then all fields."""
        if not isinstance(other, Switches):
            return NotImplemented
        kind: Any = type(self)
        return self.hashed == other.hashed and bool(_fields(kind)(self) == _fields(kind)(other))


@lru_cache(maxsize=4)
def _values(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of a record's switch values."""
    return attrgetter(*(each.name for each in fields(kind) if "about" in each.metadata))


@lru_cache(maxsize=4)
def _fields(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return a getter of all field values of a record."""
    return attrgetter(*(each.name for each in fields(kind)))


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
    """Optimizers that the framework has."""
    lora_rank: int = 8
    """Rank of adapters by its library's default (peft, torchtune and PaddleNLP: 8)."""
    offloads: tuple[Offload, ...] = ()
    """Offloads of the framework that can make a layout fit, least intrusive first."""


DType = Literal["fp32", "bf16"]
MomentDType = Literal["fp32", "bf16", "fp8"]
DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
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
    flash_attention: bool = switch(
        default=True, about="attention never stores the sequence x sequence matrix, only q, k, v, output and row sums"
    )
    attention_kernel: str = switch(
        default="device",
        about="attention kernel, which sets its speed: `device` is the hardware's own where it has one, else flash_2; "
        "`sdpa` what PyTorch 2.11 and later take, `sdpa_flash` what earlier ones do",
        choices=("device", *ATTENTION_KERNELS),
    )
    attention_matrix_bytes: int = switch(
        default=2,
        about="bytes kept per attention score without flash attention (softmax output; fp32 doubles it)",
        low=2,
        high=16,
    )
    attention_dropout: bool = switch(
        default=False,
        about="probabilities of attention are dropped at random: without a flash kernel mask and product are kept too",
    )
    hidden_dropout: bool = switch(
        default=False,
        about="additions to the residual stream are dropped at random: a byte of mask is kept for each number",
    )
    fused_rms_norm: bool = switch(
        default=True, about="the norm keeps its input and one fp32 number per token, not two fp32 copies of the input"
    )
    composed_norm_bytes: int = switch(
        default=8,
        about="bytes that a norm of elementwise operations keeps of a feature: two fp32 copies of its input (8), or "
        "one and a 16-bit copy before the scale (6, LlamaRMSNorm of PaddleNLP)",
        low=2,
        high=16,
    )
    fused_swiglu: bool = switch(default=True, about="SwiGLU keeps the gate and up outputs only, not silu(gate)")
    fused_rotary: bool = switch(
        default=True, about="queries and keys are rotated in one kernel each, not by operations of fp32 copies"
    )
    compiled: bool = switch(
        default=False,
        about="each layer is compiled (torch.compile): norms, rotation and activation are one kernel each, and what "
        "no gradient reads is neither kept nor computed again",
    )
    recompute_stops_early: bool = switch(
        default=False,
        about="recomputing a layer ends with the last tensor that its backward pass reads (torch.utils.checkpoint)",
    )
    keep_qkv_output: bool = switch(
        default=False, about="the fused qkv projection's output stays alive through v while rotated q and k are new"
    )
    rope_tables_per_call: bool = switch(
        default=False, about="rotary cos and sin are cast for q and for k in each layer and kept"
    )
    repeat_kv: bool = switch(default=False, about="k and v are expanded to all heads before attention")
    copy_latent_value: bool = switch(
        default=False,
        about="latent attention copies v out of the kv projection, whose output is then not kept (megatron-core "
        "0.10 and later, multi_latent_attention.py)",
    )
    fuse_latent_norm: bool = switch(
        default=False,
        about="latent attention's norms belong to the up projections, and recomputing those drops what the norms "
        "put out (TransformerEngine with qk-layernorm)",
    )
    probabilities_in_experts: bool = switch(
        default=False,
        about="router probabilities are applied inside the experts' activation, so that the experts' outputs are "
        "not kept (megatron-core 0.12.1 and later, experts.py)",
    )
    recomputed_activation_share: float = switch(
        default=0.0,
        about="share of the layers that do their activation function again instead of keeping what it makes",
    )
    recomputed_norm_share: float = switch(
        default=0.0, about="share of the layers that do their norms again instead of keeping what they make"
    )
    fp8_experts: str = switch(
        default="none",
        about="routed experts compute in fp8: input kept in 8 bits, activation done again; weights `cast`, or "
        "`kept` so too",
        choices=("none", "cast", "kept"),
    )
    recomputed_expert_share: float = switch(
        default=0.0,
        about="share of what routed experts keep that is done again instead (--moe-zero-memory of MindSpeed)",
    )
    recomputed_network_share: float = switch(
        default=0.0, about="share of the layers that do their feed-forward network, dense or experts, again"
    )
    swapped_attention: bool = switch(default=False, about="what attention keeps is on the host, but for two layers")
    offloaded_modules: tuple[OffloadedModule, ...] = switch(
        default=(),
        about="parts of a layer, by comma, whose saved tensors are on the host, but for three layers "
        "(--offload-modules)",
        choices=(*OFFLOADED_MODULES,),
    )
    composed_scan: bool = switch(
        default=False,
        about="the state-space scan is composed of matrix products, and keeps their matrices in fp32, not one kernel",
    )
    keep_gathered_inputs: bool = switch(
        default=False,
        about="with sequence parallelism the all-gathered norm outputs are kept whole instead of gathered again",
    )

    # Data types of the training state.
    parameter_dtype: DType = switch(default="bf16", about="stored parameters", choices=("bf16", "fp32"))
    gradient_dtype: DType = switch(default="fp32", about="accumulated gradients", choices=("fp32", "bf16"))
    reduce_dtype: str = switch(
        default="gradient",
        about="type of exchanged gradients: the accumulated ones', or another",
        choices=("gradient", "fp32", "bf16"),
    )
    optimizer: str = switch(default="adamw", about="what updates parameters (--optimizer)", choices=(*OPTIMIZERS,))
    optimizer_dtype: MomentDType = switch(
        default="fp32", about="the optimizer's moments", choices=("fp32", "bf16", "fp8")
    )
    master_weights: bool = switch(default=True, about="the optimizer keeps fp32 copies of parameters stored in 16 bits")
    master_weight_dtype: DType = switch(
        default="fp32", about="the optimizer's copy of 16-bit parameters", choices=("fp32", "bf16")
    )
    fp32_router: bool = switch(
        default=False, about="routers of experts are stored in fp32, with fp32 gradients and no master copy"
    )
    release_grads: bool = switch(
        default=False, about="gradients are freed after the optimizer step and come back in the next backward pass"
    )
    step_in_backward: bool = switch(
        default=False,
        about="the optimizer updates each weight in the backward pass as its gradient comes, so that no more than one "
        "layer's gradients are alive (torchtune's optimizer_in_bwd, LOMO)",
    )
    sharding_degree: int = switch(
        default=0,
        about="ranks that ZeRO shards over, of those with the same parameters; 0 is all of them",
        low=0,
        high=16777216,
    )
    sharding_replicas: int = switch(
        default=1,
        about="groups of ranks with the same parameters, within each of which ZeRO shards: replicas of the sharded "
        "state",
        low=1,
        high=1048576,
    )
    live_parameters: int = switch(
        default=0, about="parameters up to which ZeRO 3 gathers more; 0 is two layers", high=1125899906842624
    )
    reuse_parameters: int = switch(
        default=0, about="parameters passed within which a live one comes again and stays", high=1125899906842624
    )
    prefetch_parameters: int = switch(
        default=0, about="live ones fetched ahead; 0 is 0.9 of hidden size squared", high=1125899906842624
    )
    reduction_parameters: int = switch(
        default=0, about="gradients reduced from one buffer; 0 is hidden size squared", high=1125899906842624
    )
    reduction_buffers: int = switch(
        default=1, about="such buffers of ZeRO 1 and 2: two where reduction overlaps (DeepSpeed's overlap_comm)", high=8
    )
    step_parameters: int = switch(
        default=0,
        about="parameters that DeepSpeed's ZeRO 3 updates at a time, its gradients copied and cast to fp32; ZeRO 1 and "
        "2 update all of a rank at once; 0 is another optimizer",
        high=1125899906842624,
    )
    step_temporaries: int = switch(
        default=1,
        about="fp32 numbers that Adam's step makes for each parameter it works on: none (fused kernels), a root "
        "(torch.optim for all tensors at once) or root and quotient (tensor by tensor)",
        high=4,
    )
    offload_fraction: float = switch(
        default=1.0, about="share of the optimizer state that optimizer offload keeps on the host"
    )
    host_gradient_bytes: float = switch(default=0.0, about="bytes of a gradient on the host", high=16, moves=("host",))
    host_accumulation_bytes: float = switch(
        default=0.0, about="bytes of a sum of gradients there", high=16, moves=("host",)
    )
    host_weight_bytes: float = switch(
        default=0.0, about="bytes of a new weight there, below ZeRO 3", high=16, moves=("host",)
    )
    host_pinned_bytes: float = switch(
        default=0.0, about="bytes of state in pinned blocks there", high=64, moves=("host",)
    )
    offload_parameters: bool = switch(
        default=False, about="ZeRO 3 keeps a rank's part of the parameters on the host and copies it in for every pass"
    )
    builds_whole_layers: bool = switch(
        default=False, about="a rank builds its layers whole before ZeRO 3 cuts them (Paddle)", moves=("memory",)
    )
    fused_projections: bool = switch(
        default=True, about="q, k and v are one matrix product, and so are gate and up; off, each is its own"
    )
    shared_adapters: bool = switch(default=False, about="LoRA has one adapter for q, k and v, one for gate and up")
    adapter_targets: str = switch(
        default="all",
        about="linear layers with LoRA adapters; others keep no inputs (query_value is what PEFT takes by default)",
        choices=("all", "attention", "query_value"),
    )
    adapter_copies: bool = switch(
        default=False,
        about="each adapter keeps a 16-bit copy of its input, cast to its own fp32 and back (PEFT under autocast)",
        moves=("memory", "host"),
    )
    fused_gradient_accumulation: bool = switch(
        default=True,
        about="a weight gradient's product adds into the accumulated gradients itself, instead of a kernel behind it",
    )
    dummy_weight_gradients: str = switch(
        default="none",
        about="modules that keep an unused gradient for each shape (TransformerEngine since 2.3; since 2.10 "
        "experts' too)",
        choices=("none", "linear", "all"),
    )
    foreach_optimizer: bool = switch(
        default=False, about="the optimizer step works on all tensors at once and needs one parameter-sized temporary"
    )
    largest_tensor_step: bool = switch(
        default=False,
        about="the optimizer step needs an fp32 temporary of the largest tensor it works on (fused AdamW of "
        "torch_npu up to MindSpeed-LLM v2.3)",
    )
    widened_gradients: bool = switch(
        default=False,
        about="the optimizer copies 16-bit gradients to fp32 for its master weights, and the copy lives until the "
        "gradients are zeroed",
    )
    master_gradients: bool = switch(
        default=False, about="a rank keeps an fp32 copy of its part of 16-bit gradients through the whole step"
    )
    gradient_copies: bool = switch(
        default=False,
        about="16-bit gradients of all parameters stay beside the accumulated fp32 ones, and neither is sharded "
        "(BF16_Optimizer of DeepSpeed)",
    )
    quantised_base: bool = switch(
        default=False, about="LoRA's frozen linear weights are 4 bits each, with a scale for every 64 (QLoRA)"
    )
    quantised_scale_bytes: float = switch(
        default=2.0,
        about="bytes of the scale that 64 weights of a quantised base share (bitsandbytes: 4, nested 1.016)",
        high=8.0,
    )
    widened_rest: bool = switch(
        default=False, about="what a quantised base leaves out (tables, norms) is stored in fp32, as peft prepares it"
    )
    frozen_reference: bool = switch(default=False, about="a frozen copy of the model runs beside it (DPO, KTO)")
    reference_gradients: bool = switch(
        default=False, about="a frozen copy of the model has a gradient buffer too where ZeRO shards nothing (Megatron)"
    )
    reference_forward: bool = switch(
        default=False,
        about="a forward pass without gradients scores every micro batch before it is trained on (DPO, KTO)",
    )

    # Training data and objective.
    sequences_per_sample: int = switch(
        default=1, about="sequences in a sample: 2 where a chosen and a rejected answer are compared", low=1, high=64
    )
    score_head: bool = switch(
        default=False, about="one score per token in place of the output layer over the vocabulary (reward models)"
    )
    unused_output_layer: bool = switch(default=False, about="a reward model holds an output layer that it does not use")

    # Memory that lives on between steps beside the training state.
    attention_mask: str = switch(
        default="none",
        about="masks kept: none, one compressed mask of 2048 x 2048, one of the whole sequence, or one of it for "
        "every layer",
        choices=("none", "compressed", "sequence", "layers"),
    )
    position_bias_tables: int = switch(
        default=0,
        about="ALiBi's tables of 16 bits a score: 1 is one for every sequence, 2 and 3 have one or two beside",
        high=3,
    )
    kept_boundaries: bool = switch(
        default=False,
        about="a pipeline rank keeps the last tensors it sent and received until it sends and receives again",
    )
    kept_dispatches: float = switch(
        default=0.0,
        about="routed hidden states, 2 T h, that a token dispatcher keeps of the last micro batch",
        high=64.0,
    )
    fully_shard: bool = switch(
        default=False,
        about="parameters are stored in parts and gathered, and gradients reduced, layer by layer, as FSDP2 does",
    )
    fp8_weight_cache: bool = switch(
        default=True, about="fp8 keeps an 8-bit copy and its transpose of every linear weight between micro batches"
    )
    fp8_recipe: str = switch(
        default="delayed",
        about="how fp8 scales numbers: by tensor (delayed, tensorwise), by block (blockwise), or by 32 numbers (mxfp8)",
        choices=(*FP8_RECIPES,),
        concerns="fp8",
    )
    fp4_recipe: str = switch(
        default="nvfp4",
        about="how fp4 scales numbers: by 16 and the tensor (nvfp4, NVIDIA), or by 32 (mxfp4, AMD)",
        choices=(*FP4_RECIPES,),
        concerns="fp8",
    )
    fp8_param_gather: bool = switch(
        default=False,
        about="linear weights are stored in the bits they are computed with (8, or 4), and no 16-bit ones beside them",
    )
    fp8_attention: bool = switch(
        default=False,
        about="fp8 computes attention's two products in 8 bits too (--fp8-dot-product-attention)",
        moves=("passes", "step"),
        concerns="fp8",
    )
    fp8_output_layer: bool = switch(
        default=False,
        about="fp8 computes the output layer's product in 8 bits too (--fp8-output-proj)",
        moves=("passes", "step"),
        concerns="fp8",
    )
    fp8_inputs: bool = switch(
        default=True, about="fp8 keeps the inputs of matrix products in 8 bits; off, in 16, and casts them again"
    )

    fp8_activation_inputs: bool = switch(default=False, about="activation functions keep gate and up in 8 bits")
    fp8_dispatch: bool = switch(default=False, about="tokens travel to their experts in 8 bits, and back in 16")

    # Output layer and loss.
    fused_cross_entropy: bool = switch(
        default=False,
        about="the loss is one kernel: no passing copies of the logits, fewer passes over them",
        moves=("memory", "passes", "step"),
    )
    loss_bytes_per_logit: int = switch(
        default=8, about="bytes alive per logit at the loss: 16-bit logits, fp32 copies and gradient", low=2, high=32
    )
    fused_loss_bytes_per_logit: int = switch(
        default=0, about="the same where the loss is one kernel; 0 is as many as where it is not", low=0, high=32
    )
    split_loss_bytes_per_logit: int = switch(
        default=0,
        about="further bytes per logit where the loss is computed on logits split over the vocabulary",
        low=0,
        high=32,
    )
    loss_chunks: int = switch(
        default=0,
        about="chunks of tokens that the loss takes one after the other, each with its graph kept: 4 bytes a logit "
        "(compiled 2), and 8 of one chunk; 0 is all at once",
        low=0,
        high=65536,
        moves=("memory",),
    )
    losses_in_turn: bool = switch(
        default=False, about="logits of next-token modules and of the main model are not alive together"
    )
    cross_entropy_chunk_tokens: int = switch(
        default=0,
        about="compute the output layer and loss in chunks of this many tokens; 0 is all at once",
        low=0,
        high=2147483648,
    )

    vocabulary_parallel_loss: bool = switch(
        default=True, about="each tensor-parallel rank works on its own part of the logits; off, it gathers them all"
    )
    # 32: PyTorch's log-softmax in one kernel a pass (aten/src/ATen/native/cuda/SoftMax.cu) reads 4 and writes 4 forward
    # and reads 8 and writes 4 backward; the casts around it take 6 each. Assumed for Paddle too.
    loss_traffic_bytes: int = switch(
        default=32,
        about="bytes that a loss in several kernels reads and writes for each logit over both passes",
        low=8,
        high=256,
    )
    labelled_token_fraction: float = switch(
        default=1.0,
        about="share of the tokens that have a label; the output layer and the loss skip the others",
        low=0.001,
    )

    deferred_head_gradients: int = switch(
        default=0,
        about="micro batches whose gradient of the output layer waits for the end of a pipeline, with what it is "
        "made of",
        low=0,
        high=2147483648,
    )

    # Communication.
    tp_comm_overlap: bool = switch(
        default=False,
        about="tensor-parallel collectives run under the products of their own operations, through pre-allocated "
        "user buffers",
        moves=("memory", "passes", "step"),
    )
    functional_collectives: bool = switch(
        default=False,
        about="PyTorch's tensor-parallel collectives: they copy along the sequence; overlapped they hide gathers alone",
    )
    overlap_tensor_gradients: bool = switch(
        default=False,
        about="in the backward pass collectives of input gradients run under the weight gradients' products "
        "(LinearWithGradAccumulationAndAsyncCommunication of Megatron-LM since 2022, TransformerEngine)",
    )
    gradient_passes: float = switch(
        default=0.0, about="passes over all accumulated gradients in a step: cleared, scaled, their norm", high=64
    )
    cp_communication: str = switch(
        default="ring",
        about="how context parallelism exchanges: keys and values in a ring, gathered for a ring's steps "
        "(gathered_ring) or before attention (all_gather), tokens for heads (all_to_all), or tokens for heads "
        "within a ring",
        choices=(*CONTEXT_EXCHANGES,),
    )
    cp_inner_degree: int = switch(
        default=0,
        about="ranks that exchange tokens for heads within a ring (all_to_all_ring); 0: all of a node",
        high=65536,
    )
    overlap_grad_reduce: bool = switch(default=False, about="reduction runs under the backward pass", moves=("step",))
    overlap_param_gather: bool = switch(default=False, about="gathering runs under the forward pass", moves=("step",))
    zero_broadcasts: bool = switch(
        default=False,
        about="ZeRO 1 and 2 send updated parameters by one broadcast of every rank's share after the other (InternEvo)",
    )
    overlap_p2p: bool = switch(
        default=True, about="the interleaved schedule sends activations while it computes (1F1B without chunks waits)"
    )
    scattered_sends: bool = switch(
        default=False,
        about="tensor-parallel ranks that hold one activation send a part each to the next pipeline rank, where it "
        "is gathered (DeepSpeed's pipeline; Megatron-LM before sequence parallelism)",
    )
    host_paced_layers: bool = switch(
        default=False,
        about="no layer takes less than the host needs for its operations (Megatron-LM and Megatron-DeepSpeed of "
        "2022, on PyTorch 1)",
    )
    cuda_graphs: str = switch(
        default="none",
        about="what is captured in CUDA graphs and then starts without the host: attention, attention and router, "
        "the network, whole layers, or all passes of a step (--cuda-graph-impl, --cuda-graph-scope)",
        choices=(*CAPTURES,),
    )
    blocking_launches: bool = switch(
        default=False,
        about="the host waits for every kernel before it starts the next (CUDA_LAUNCH_BLOCKING=1): what it needs "
        "for a layer's operations adds to what the device does",
    )
    deterministic_kernels: str = switch(
        default="none",
        about="what gives the same numbers again: `products` has cuBLAS' workspaces of 32 MiB on every device "
        "(CUBLAS_WORKSPACE_CONFIG=:4096:8), `all` also keeps what experts put out (--deterministic-mode)",
        choices=("none", "products", "all"),
        moves=("memory", "host"),
    )
    expandable_segments: bool = switch(
        default=False,
        about="the allocator grows segments in place, which leaves little unusable space",
        moves=("memory",),
    )

    communicator_buffer_mib: int = switch(
        default=0,
        about="buffer of every group of the collective library (HCCL_BUFFSIZE); 0 is the device's own",
        low=0,
        high=1048576,
    )

    eager_modules: bool = switch(
        default=False, about="the driver loads all kernels with the context, as it did for PyTorch 1 (CUDA before 11.7)"
    )
    growing_pool: bool = switch(
        default=False,
        about="the framework's own allocator grows its pool by what is asked for (Paddle's auto_growth), and holds "
        "no more than a share of the tensors beside them",
    )

    # Mixture of experts and extra layers.
    expert_imbalance: float = switch(
        default=1.0,
        about="tokens of the busiest expert-parallel rank over the mean; below 1 where experts drop some",
        low=0.01,
        high=64.0,
    )
    expert_dispatch: ExpertDispatch = switch(
        default="alltoall",
        about="tokens to experts: a copy for each (alltoall), all to all (allgather), one a rank and node (deepep, "
        "hybridep)",
        choices=(*EXPERT_DISPATCHES,),
        concerns="experts",
    )
    grouped_experts: bool = switch(
        default=False,
        about="the products of a device's experts are one call of TransformerEngine on several streams, each with a "
        "workspace (--moe-grouped-gemm)",
        moves=("memory",),
        concerns="experts",
    )
    sliced_experts: bool = switch(
        default=False,
        about="the experts of a device run one after the other on slices of one tensor, which each copies whole in "
        "the backward pass (SequentialMLP of megatron-core up to 0.8), instead of in grouped products",
    )
    indexed_dispatch: bool = switch(
        default=False,
        about="tokens are permuted element by element, with an 8-byte index for each (gather and scatter of the "
        "all-gather dispatcher of MindSpeed up to v2.0), instead of row by row",
    )
    overlap_expert_exchange: bool = switch(
        default=False,
        about="the experts' exchange runs under another micro batch's compute (--overlap-moe-expert-parallel-comm)",
        concerns="experts",
    )
    delayed_weight_gradients: bool = switch(
        default=False,
        about="gradients of a layer's outputs stay till those of its weights follow (MindSpeed's --moe-fb-overlap)",
        moves=("memory",),
        concerns="experts",
    )
    fused_experts: bool = switch(
        default=False,
        about="routed experts' activation and casts are in their products' kernels (--use-transformer-engine-op-fuser)",
        moves=("passes", "step"),
        concerns="experts",
    )
    expert_capacity: float = switch(
        default=1.0,
        about="tokens that buffers of a rank's experts hold, over the mean (--moe-expert-rank-capacity-factor)",
        low=1.0,
        high=64.0,
        moves=("memory",),
        concerns="experts",
    )
    expert_stash: float = switch(
        default=1.0,
        about="tokens that routed experts keep tensors for, over the mean (--moe-paged-stash-buffer-size-factor-cuda)",
        low=1.0,
        high=64.0,
        moves=("memory", "host"),
        concerns="experts",
    )
    warm_up_whole_batch: bool = switch(
        default=False,
        about="interleaving does all forward passes first for as many micro batches as ranks (Megatron before 0.10)",
    )
    splits_last_backward: bool = switch(
        default=True,
        about="DualPipe's last backward passes are split, weights apart (MindSpeed's --dualpipev-dw-detach)",
    )
    mtp: bool = switch(default=False, about="train the model's multi-token-prediction layers, on the last stage")
    unmeasured_runtime: bool = switch(
        default=False,
        about="operations run on a runtime that no measured run had (MindSpore below Megatron's code): ranges are "
        "those of a framework that was never measured",
    )


def switches() -> tuple[dataclasses.Field[Any], ...]:
    """Return every switch as a dataclass field; `metadata` holds description, choices and range."""
    return tuple(f for f in dataclasses.fields(FrameworkProfile) if "about" in f.metadata)
