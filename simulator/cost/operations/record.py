"""One record per operation of a layer, and what it is made of; every figure of the simulator is a sum over records.

A record holds plain numbers per token and says how each is spread over the devices; `extents` turns them into bytes of
a block of layouts. So a listing depends on the model and the stack alone, and is made once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Split = Literal["column", "row", "replicated", "expert_column", "expert_row", "vocabulary"]
"""How a weight is cut: its outputs, its inputs, not at all, over tokens of the vocabulary, or, the `expert_` forms of
routed experts, first over the expert-parallel group and then like the others over the expert-tensor-parallel one."""

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
"""Spreads that go by the number of key-value heads."""
CopySpread = Literal["copies", "copies_exchanged", "copies_tensor", "reached", "pooled", "pooled_choices"]
"""Spreads that go by the copies of tokens that experts work on."""
ContextSpread = Literal["tensor_exchanged", "positions"]
"""Spreads that go by the context-parallel group."""
Spread = Literal["whole", "sequence", "scattered", "tensor", "scores", ContextSpread, CopySpread, HeadSpread]
"""What a number per token is multiplied by on a device; T tokens of the micro batch, t tensor parallel, s sequence.

`whole`: T. `sequence`: T over the sequence-parallel group. `scattered`: the same where tensor parallel is above 1, else
nothing. `tensor`: T / t; `tensor_exchanged`: the same where context parallel is above 1, else nothing. `copies`: routed
token copies; `copies_exchanged`: the same where expert parallel is above 1.
`copies_tensor`: the same over the expert-tensor-parallel group. `scores`: T s / t. `positions`: s over the
context-parallel group, whatever the micro batch.
`reached`: a copy of each token for every rank with experts of it. `pooled`: the tokens of all ranks that share the
experts; `pooled_choices`: the same over the expert-parallel group.
`key_value`: T over the smaller of t and the key-value heads: a rank holds one head at least. `ring`: the same where
context is parallel, else nothing. `projection`: T / t, but T where there are fewer key-value heads than ranks, which
gather the projection to take their heads from it; `gathered`: T there, else nothing. The `sliding_` forms go by the
key-value heads of sliding layers. `key_value_context`: that of the whole context. `window`: what a ring step hands on
where only tokens inside the window are needed:
2 b w over c - 1 steps, and no more than `key_value`.
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
"""What recompute policies, overlaps and pictures name."""


class Weight(NamedTuple):
    """One weight of the model, whole (not yet cut over ranks)."""

    name: str
    """Role inside the layer, for example `q` or `expert_gate`; unique in a layer."""
    inputs: int
    """Input features, a count; 1 for a vector (norm or bias)."""
    outputs: int
    """Output features, a count; the length for a vector."""
    split: Split
    """Axis that tensor or expert parallelism cuts."""
    copies: int = 1
    """How many equal weights this stands for, a count: the routed experts."""
    matmul: bool = True
    """True when tokens are multiplied by it; False for norms, biases, the lookup table."""

    @property
    def parameters(self) -> int:
        """Parameters of all copies, a count."""
        return self.inputs * self.outputs * self.copies

    @property
    def routed(self) -> bool:
        """Whether it belongs to routed experts."""
        return self.split in ("expert_column", "expert_row")


class Amount(NamedTuple):
    """Bytes per token (or per what the spread counts) with their spread over devices."""

    amount: float
    spread: Spread


class Kept(NamedTuple):
    """A tensor that stays from the forward pass until the backward pass of its operation."""

    name: str
    """Unique in a layer; recompute policies say by it what they drop."""
    amount: float
    """Bytes per token, or per what the spread counts."""
    spread: Spread


CollectiveGroup = Literal[
    "tensor", "context", "context_inner", "context_outer", "expert", "expert_tensor", "expert_ranks"
]
"""`expert_ranks`: expert parallel times expert tensor parallel. `context_inner`, `context_outer`: neighbours of the
context-parallel group that exchange tokens for heads, and the ring of such groups."""
Hiding = Literal["products", "core_attention", "first_block", "experts", "nothing", "attention_apart"]
"""What a collective may hide behind, where the stack overlaps it; `first_block`: attention over a rank's own tokens;
`nothing` and `attention_apart` are whole, among what tensor and what context parallelism send."""


class Collective(NamedTuple):
    """One collective of the forward pass; the backward pass mirrors it."""

    group: CollectiveGroup
    pattern: Literal["gather", "reduce", "all_to_all", "ring", "gather_each", "reduce_each", "once"]
    amount: float
    """Bytes per token: gathered in total, sent by a member, or passed on in one step of a ring; `gather_each` and
    `reduce_each`: brought in by every member; `once`: of one copy to every rank that a token reaches."""
    spread: Spread
    beside: Hiding
    backward: float = 1.0
    """Times the forward pass's volume that the backward pass moves."""


class Window(NamedTuple):
    """A bound on the tokens that attention is over."""

    tokens: int
    """Tokens that one token attends to at most, a count."""
    chunked: bool = False
    """Whether attention stays within consecutive chunks of as many tokens."""


class Operation(NamedTuple):
    """One operation of a layer."""

    name: str
    """Unique in a layer."""
    group: OperationGroup
    weights: tuple[Weight, ...] = ()
    """Matrix weights share their input: together they are one product of a fused kernel."""
    kept: tuple[Kept, ...] = ()
    temporary: tuple[Amount, ...] = ()
    """Gradients alive inside the operation's backward pass, beside what came in."""
    moved: tuple[Amount, ...] = ()
    """Bytes that kernels bound by memory read and write in the forward pass; as many again, twice, backward."""
    moved_backward: tuple[Amount, ...] = ()
    """What such kernels read and write beside that in the backward pass alone."""
    core_width: float = 0.0
    """Width of attention's two products per token and score: `heads (query-key size + value size) / 2`."""
    core_window: Window | None = None
    """What a token attends to at most; None is all before it."""
    core_flops: float = 0.0
    """Forward FLOPs per token of a mixer whose work does not grow with the sequence, at the rate of attention."""
    collectives: tuple[Collective, ...] = ()
    calls: float = 0.0
    """Share of a layer's launches and small kernels that no rate explains."""
    captured: float = 0.0
    """The part of `calls` inside CUDA graphs."""


def summed(amounts: Iterable[Amount | Kept]) -> Mapping[Spread, float]:
    """The amounts added up by spread, in the order of first appearance."""
    result: dict[Spread, float] = {}
    for amount in amounts:
        result[amount.spread] = result.get(amount.spread, 0.0) + amount.amount
    return result
