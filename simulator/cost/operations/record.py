"""Record of one operation of a layer: weights, saved tensors, products, traffic, collectives, in numbers per token.

Every figure of the simulator is a sum over records. A record also says how each number spreads over devices, which
`operations.sums` turns into bytes of a block of layouts. A list of operations depends on model and stack alone.

Offload inside a layer (M27), Megatron-LM d98e8a6, core/pipeline_parallel/fine_grained_activation_offload.py: a module
of `--offload-modules` moves the tensors that autograd saves between its start and its end to the host, to return in the
backward pass (core/transformer/attention.py, multi_latent_attention.py, transformer_layer.py, moe/experts.py). Row
statistics, below its minimum of a million numbers, stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from simulator.cost.derived import remembered
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.frameworks.stacks import MEGATRON
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import LATENT, LayerKind, ModelSpec
from simulator.question.vocabulary import NARROW
from simulator.records import NamedTuple

Split = Literal["column", "row", "replicated", "expert_column", "expert_row", "vocabulary"]
"""How a weight is split: by outputs, by inputs, not at all, or by tokens of the vocabulary.

The `expert_` forms split first over the expert-parallel, then over the expert-tensor-parallel group.
"""

HeadSpread = Literal[
    "key_value",
    "projection",
    "gathered",
    "ring",
    "sliding_key_value",
    "sliding_projection",
    "sliding_gathered",
    "sliding_ring",
    "key_value_context",
    "sliding_key_value_context",
    "window",
]
"""Spreads by the number of key-value heads."""
CopySpread = Literal["copies", "copies_exchanged", "copies_tensor", "reached", "pooled", "pooled_choices"]
"""Spreads by the token copies that experts process."""
ContextSpread = Literal["tensor_exchanged", "positions"]
"""Spreads by the context-parallel group."""
Spread = Literal["whole", "unsplit", "sequence", "scattered", "tensor", "scores", ContextSpread, CopySpread, HeadSpread]
"""Factor of a number per token on a device; T tokens of the micro batch, t tensor parallel, s sequence.

`whole`: T. `unsplit`: the same with tensor and without sequence parallelism, else 0. `sequence`: T over the
sequence-parallel group. `scattered`: the same if tensor parallel is above 1, else 0. `tensor`: T / t.
`tensor_exchanged`: the same if context parallel is above 1, else 0. `scores`: T s / t. `positions`: s over the
context-parallel group, whatever the micro batch. `copies`: routed token copies. `copies_exchanged`: the same if expert
parallel is above 1. `copies_tensor`: the same over the expert-tensor-parallel group. `reached`: a copy of each token
per rank with experts of it. `pooled`: the tokens of all ranks that share the experts. `pooled_choices`: the same over
the expert-parallel group.

`key_value`: T over the smaller of t and the key-value heads, as a rank holds at least one head. `ring`: the same with
context parallelism, else 0. `projection`: T / t, but T with fewer key-value heads than ranks, which gather the
projection for their heads. `gathered`: T there, else 0. `key_value_context`: `key_value` of the whole context.
`window`: a ring step's tokens where only those in the window are needed, 2 b w over c - 1 steps, at most `key_value`.
The `sliding_` forms use the key-value heads of sliding layers.
"""

OperationGroup = Literal[
    "norm",
    "attention_projection",
    "position",
    "context_exchange",
    "core_attention",
    "indexer",
    "residual",
    "feed_forward",
    "router",
    "dispatch",
    "experts",
    "shared_experts",
    "adapter",
    "embedding",
    "output",
    "prediction",
]
"""Groups that recompute policies, overlaps and pictures refer to."""


class Weight(NamedTuple):
    """One weight of the model, unsharded."""

    name: str
    """Role inside the layer, for example `q` or `expert_gate`; unique in a layer."""
    inputs: int
    """Number of input features; 1 for a vector (norm or bias)."""
    outputs: int
    """Number of output features; the length for a vector."""
    split: Split
    """Axis that tensor or expert parallelism splits."""
    copies: int = 1
    """Number of equal weights: the routed experts."""
    matmul: bool = True
    """Whether tokens are multiplied by it; False for norms, biases, the lookup table."""

    @property
    def parameters(self) -> int:
        """Number of parameters of all copies."""
        return self.inputs * self.outputs * self.copies

    @property
    def routed(self) -> bool:
        """Whether it belongs to routed experts."""
        return self.split in ("expert_column", "expert_row")

    @property
    def output_spread(self) -> Spread:
        """Spread of its product's outputs over ranks."""
        return _SPREADS.get(self.split, "sequence")


_SPREADS: Final[dict[str, Spread]] = {"column": "tensor", "expert_column": "copies_tensor", "expert_row": "copies"}


class Amount(NamedTuple):
    """Bytes per token (or per what the spread counts) with their spread over devices."""

    amount: float
    spread: Spread


class Saved(NamedTuple):
    """A tensor saved from the forward pass until the backward pass of its operation."""

    name: str
    """Unique in a layer; recompute policies refer to it."""
    amount: float
    """Bytes per token, or per what the spread counts."""
    spread: Spread


CollectiveGroup = Literal[
    "tensor", "context", "context_inner", "context_outer", "expert", "expert_tensor", "expert_ranks"
]
"""Process group of a collective; `expert_ranks` is expert parallel times expert tensor parallel.

`context_inner`: neighbours of the context-parallel group that exchange tokens for heads; `context_outer`: their ring.
"""
Hiding = Literal["products", "core_attention", "first_block", "experts", "nothing", "attention_apart"]
"""Work that may hide a collective, where the stack overlaps it.

`first_block`: attention over a rank's own tokens. `nothing`, `attention_apart`: exposed tensor- and context-parallel
time.
"""


class Collective(NamedTuple):
    """One collective of the forward pass; the backward pass mirrors it."""

    group: CollectiveGroup
    pattern: Literal["gather", "reduce", "all_to_all", "ring", "gather_each", "reduce_each", "once"]
    amount: float
    """Bytes per token: gathered in total, sent by a member, or passed on in one step of a ring.

    `gather_each` and `reduce_each`: of every member; `once`: of one copy to every rank that a token reaches.
    """
    spread: Spread
    beside: Hiding
    backward: float = 1.0
    """Backward volume relative to the forward pass."""


class Window(NamedTuple):
    """A bound on the tokens that attention is over."""

    tokens: int
    """Largest number of tokens that one token attends to."""
    chunked: bool = False
    """Whether attention stays within consecutive chunks of that many tokens."""


class Operation(NamedTuple):
    """One operation of a layer."""

    name: str
    """Unique in a layer."""
    group: OperationGroup
    weights: tuple[Weight, ...] = ()
    """Matrix weights share their input: a fused kernel multiplies them at once."""
    saved: tuple[Saved, ...] = ()
    temporary: tuple[Amount, ...] = ()
    """Gradients alive inside the operation's backward pass, beside the incoming one."""
    moved: tuple[Amount, ...] = ()
    """Bytes that memory-bound kernels read and write in the forward pass; twice as many backward."""
    moved_backward: tuple[Amount, ...] = ()
    """Further bytes that such kernels move in the backward pass alone."""
    core_width: float = 0.0
    """Width of attention's two products per token and score: `heads (query-key size + value size) / 2`."""
    core_window: Window | None = None
    """Bound on the tokens that a token attends to; None for all before it."""
    core_flops: float = 0.0
    """Forward FLOP per token of a mixer whose work does not grow with the sequence, at the rate of attention."""
    collectives: tuple[Collective, ...] = ()
    calls: float = 0.0
    """Share of a layer's launches and small kernels that no rate explains."""
    captured: float = 0.0
    """Part of `calls` inside CUDA graphs."""


def summed(amounts: Iterable[Amount | Saved]) -> Mapping[Spread, float]:
    """Return the amounts summed by spread, in the order of first appearance."""
    result: dict[Spread, float] = {}
    for amount in amounts:
        result[amount.spread] = result.get(amount.spread, 0.0) + amount.amount
    return result


class Conditions(NamedTuple):
    """A model as one stack trains it."""

    model: ModelSpec
    framework: FrameworkProfile = MEGATRON
    precision: str = "bf16"
    """Compute type of the matrix products."""
    lora_rank: int | None = None
    """Rank of the adapters; None trains the weights."""
    windowed: bool = False
    """Whether the window of sliding layers is shorter than the sequence."""


def conditions_of(scenario: Scenario) -> Conditions:
    """Return the conditions on which the operations of a scenario's layers depend."""
    windowed = 0 < (scenario.model.sliding_window or 0) <= scenario.seq_length
    return Conditions(scenario.model, scenario.framework, scenario.precision, scenario.lora_rank, windowed)


SWAPPED: Final = frozenset(("attention_projection", "position", "context_exchange", "core_attention"))
"""Groups of operations swapped with attention (mindspeed/core/memory/adaptive_recomputing, swap_attention)."""
_EXPERT_INPUTS: Final = frozenset(("experts_gate_up", "experts_up", "experts_silu"))
_TENSORS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "attn_norm": frozenset(),
        "qkv_linear": frozenset(("attention_norm_output", "qk_norm_input")),
        "core_attn": frozenset(
            (
                *("rotated_query", "rotated_key", "query", "key", "value", "latent_value", "key_value_projection"),
                *("ring_key_value", "attention_scores", "attention_dropout"),
            )
        ),
        "attn_proj": frozenset(("attention_output_fp8", "exchanged_output", "gated_attention_output")),
        "mlp_norm": frozenset(),
        "expert_fc1": frozenset(("dispatched_tokens",)),
        "moe_act": _EXPERT_INPUTS,
        "fused_group_mlp": _EXPERT_INPUTS | {"dispatched_tokens", "experts_product"},
    }
)  # names of the tensors that each module saves in any layer


@remembered
def _names(conditions: Conditions, kind: LayerKind) -> frozenset[str]:
    """Return the names of a layer's tensors that its offloaded modules move."""
    modules, model = set(conditions.framework.offloaded_modules), conditions.model
    names = frozenset[str]().union(*(_TENSORS[module] for module in modules))
    latent = kind.mixer in LATENT
    # The norm is fused with the product behind it, except in latent attention and before routed experts.
    if ("attn_norm" if latent else "qkv_linear") in modules:
        names |= {"attention_norm_input"}
    if "qkv_linear" in modules and latent:
        names |= {"latents", "latent_norm_outputs"}
    if "mlp_norm" in modules and kind.routed:
        names |= {"ffn_norm_input"}
    # Values are a view of the joint projection's output, which norms of queries and keys save too.
    if "core_attn" in modules and (not model.qk_norm or "qkv_linear" in modules):
        names |= {"qkv_output"}
    copied = conditions.precision in NARROW and conditions.framework.fp8_inputs
    if "core_attn" in modules and ("attn_proj" in modules or copied) and model.attention_gate == "none":
        names |= {"attention_output"}
    return names


def moved(conditions: Conditions, kind: LayerKind, operation: Operation) -> tuple[Saved, ...]:
    """Return the tensors of an operation that leave the device."""
    if conditions.framework.swapped_attention and operation.group in SWAPPED:
        return operation.saved
    if not conditions.framework.offloaded_modules:
        return ()
    names = _names(conditions, kind)
    return tuple(tensor for tensor in operation.saved if tensor.name in names)


def sent(conditions: Conditions, kind: LayerKind, operation: Operation) -> tuple[Saved, ...]:
    """Return an operation's offloaded tensors with the bytes they transfer (M27)."""
    tensors = moved(conditions, kind, operation)
    if conditions.framework.swapped_attention:
        return tensors
    return tuple(tensor._replace(amount=_transfers(conditions, kind, tensor) * tensor.amount) for tensor in tensors)


def _transfers(conditions: Conditions, kind: LayerKind, tensor: Saved) -> float:
    model = conditions.model
    if tensor.name == "qkv_output" and not model.qk_norm:
        heads = model.heads(kind.mixer)
        return heads.value_width / (heads.query_width + heads.key_width + heads.value_width)
    twice = tensor.name == "attention_output" and conditions.precision not in NARROW
    return 2.0 if twice and "attn_proj" in conditions.framework.offloaded_modules else 1.0
