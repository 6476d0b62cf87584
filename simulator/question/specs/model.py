"""Spec of a language model: the shape of its layers and its tables. Counts no parameters; `operations` does."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simulator.errors import InputError
from simulator.question.specs.architectures import Architecture
from simulator.question.specs.configuration import MAXIMUM_LAYERS
from simulator.question.specs.mixers import PREDICTING, Mixer
from simulator.question.specs.model_checks import SHARED_EXPERT_FIELDS, problems
from simulator.question.specs.provenance import (
    Frozen,
    ModelId,
    Name,
    Sourced,
    Sources,
    Text,
    refuse,
    undefined_sources,
)
from simulator.question.units import parse_count

Size = Annotated[int, Field(ge=1, le=2**31, strict=True)]
"""Width or count of at least one."""
SizeOrZero = Annotated[int, Field(ge=0, le=2**31, strict=True)]
"""Width or count that may be zero."""
Layers = Annotated[int, Field(ge=1, le=MAXIMUM_LAYERS, strict=True)]
"""Number of layers of at least one."""
LayersOrZero = Annotated[int, Field(ge=0, le=MAXIMUM_LAYERS, strict=True)]
"""Number of layers that may be zero."""
Boolean = Annotated[bool, Field(strict=True)]
"""True or false, written as such."""

_PROVENANCE_FIELDS: Final = frozenset({"name", "aliases", "note", "sources", "provenance", "published"})
_EXTENSIONS: Final = (
    *("attention_output_bias", "mlp_bias", "activation", "gated", "norm", "norm_placement", "parallel_residual"),
    *("rotary", "learned_positions", "embedding_norm", "qk_norm_span", "attention_gate", "attention_sinks"),
    *("logit_softcap", "keys_as_values", "value_norm", "mixers", "feed_forwards", "intermediate_sizes"),
    *("prediction_mixer", "residual_streams", "residual_block", "layer_embedding_size", *SHARED_EXPERT_FIELDS),
)


FeedForward = Literal["gated", "plain", "linear", "experts", "hashed_experts", "experts_beside", "none"]
"""Feed-forward part of a layer: a network every token passes, gated, plain or a single product, or routed experts,
shared ones beside them. `hashed_experts`: experts that a table chooses by the token's number. `experts_beside`: a
network and experts of the same tokens, each with norms of its own (Gemma 4)."""
ROUTED: Final = frozenset[FeedForward]({"experts", "hashed_experts", "experts_beside"})
"""Feed-forward parts with routed experts."""
Activation = Literal["silu", "gelu", "relu", "squared_relu"]
"""Nonlinearity of the feed-forward networks, gated or not; variants of one function are one word."""


class LayerKind(NamedTuple):
    """Kind of a decoder layer: its parts, each behind a norm, with a residual addition; `none` has neither."""

    mixer: Mixer
    feed_forward: FeedForward
    width: int = 0
    """Width of the layer's own feed-forward network that every token passes; 0: the model's."""

    @property
    def routed(self) -> bool:
        """Whether it has routed experts."""
        return self.feed_forward in ROUTED

    @property
    def has_network(self) -> bool:
        """Whether it has a feed-forward network of the model's or its own width, which every token passes."""
        return self.feed_forward in ("gated", "plain", "experts_beside")


class Heads(NamedTuple):
    """Heads of one attention mixer."""

    queries: int
    """Query heads, a count."""
    shared: int
    """Key and value heads, a count."""
    size: int
    """Features of one query-key head."""
    value_size: int
    """Features of one value head."""

    @property
    def query_width(self) -> int:
        """Features of all query heads together."""
        return self.queries * self.size

    @property
    def key_width(self) -> int:
        """Features of all key heads together."""
        return self.shared * self.size

    @property
    def value_width(self) -> int:
        """Features of all value heads together."""
        return self.shared * self.value_size

    @property
    def output_width(self) -> int:
        """Features that attention hands to its output projection."""
        return self.queries * self.value_size


class Published(Sourced):
    """Parameter counts as the publisher states them, kept to check the shape against."""

    total_parameters: str | None = None
    """Published total, a count such as ``8.03B``."""
    active_parameters: str | None = None
    """Published parameters used per token, a count such as ``37B``."""

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        for text in (self.total_parameters, self.active_parameters):
            if text is not None:
                _check_count(text)
        return self


class ModelSpec(Frozen):
    """Shape of a model; field names as in Hugging Face configurations.

    Read from ``model_specs/<name>.yaml``, a file of the same form, or a
    Hugging Face ``config.json``.
    """

    name: Name
    """Name the model is asked for by."""
    aliases: tuple[ModelId, ...] = ()
    """Other names, and ids on Hugging Face, of checkpoints of this very shape."""
    note: Text = ""
    """Note on the shape for readers."""
    sources: Sources = Field(default_factory=dict)
    """Key to document; the other blocks refer to these keys."""
    provenance: Sourced | None = None
    """Source of the shape; None for a shape of the user's own."""
    published: Published | None = None
    """Published parameter counts; None for a shape of the user's own."""

    architecture: Architecture
    """Family, as Hugging Face's ``model_type``."""
    num_hidden_layers: Layers
    """Decoder layers, a count, without next-token (MTP) modules."""
    hidden_size: Size
    """Width of the residual stream, a count of features."""
    intermediate_size: Size
    """Width of the feed-forward network of a dense layer, a count of features."""
    num_attention_heads: Size
    """Query heads, a count."""
    num_key_value_heads: Size
    """Key and value heads, a count; divides the query heads."""
    head_dim: Size
    """Features of one query-key head; for MLA the rotary part is included."""
    vocab_size: Size
    """Rows of the token table, a count, without padding a framework adds."""
    tie_word_embeddings: Boolean
    """True when the head uses the token table's storage."""
    attention_bias: Boolean = False
    """True when the q, k and v projections have a bias."""
    attention_output_bias: Boolean = False
    """True when the projection behind attention has a bias."""
    mlp_bias: Boolean = False
    """True when the products of the feed-forward networks have biases, experts' included."""
    activation: Activation = "silu"
    """Nonlinearity of the feed-forward networks."""
    gated: Boolean = True
    """False when feed-forward networks have one product before the activation instead of gate and up."""
    norm: Literal["rms_norm", "layer_norm", "layer_norm_without_bias", "layer_norm_unweighted"] = "rms_norm"
    """Kind of the norms over the hidden size."""
    norm_placement: Literal["before", "after", "around"] = "before"
    """Whether norms stand before mixer and feed-forward network, after them, or both."""
    parallel_residual: Boolean = False
    """True when the feed-forward network reads the layer's input, not the mixer's result."""
    shared_norm: Boolean = False
    """True when a parallel residual has one norm for both branches."""
    rotary: Boolean = True
    """True when attention rotates queries and keys; False with learned positions, ALiBi or none."""
    learned_positions: SizeOrZero = 0
    """Rows of a learned table of positions that is added to the tokens', a count."""
    embedding_norm: Boolean = False
    """True when the embedded tokens pass a norm."""
    qk_norm: Boolean = False
    """True when queries and keys are normalised."""
    qk_norm_span: Literal["head", "projection", "unweighted"] = "head"
    """Span of the norm of queries and keys: each head with shared weights, the projection, or heads without any."""
    attention_gate: Literal["none", "head", "element"] = "none"
    """Whether a gate multiplies attention's output: one number per head, or one per feature."""
    attention_sinks: Literal["none", "sliding", "all"] = "none"
    """Layers whose attention has a learned sink per head."""
    logit_softcap: Boolean = False
    """True when a tanh bounds the logits."""
    attention: Literal["gqa", "mla"] = "gqa"
    """``gqa``: heads share keys and values (all of MHA to MQA); ``mla``: latent attention."""
    keys_as_values: Boolean = False
    """True when attention over all tokens takes the keys' projection for values; that of sliding layers never does."""
    value_norm: Boolean = False
    """True when values are normalised, by a norm without weights."""
    mixers: tuple[Mixer, ...] = ()
    """Mixer of every layer, a pattern that repeats; empty: attention in all layers."""
    feed_forwards: tuple[FeedForward, ...] = ()
    """Feed-forward part of every layer, a pattern that repeats; empty: dense layers first, then experts if any."""
    intermediate_sizes: tuple[SizeOrZero, ...] = ()
    """Width of every layer's feed-forward network, a pattern that repeats, 0 where it has none; empty: all alike."""
    prediction_mixer: Mixer | None = None
    """Mixer of a prediction module; None: the last of the layers' that attends to all tokens."""
    residual_streams: Size = 1
    """Residual streams side by side that hyper-connections mix, a count."""
    residual_block: LayersOrZero = 0
    """Layers after which the residual stream starts anew; blocks read those before by attention; 0: never."""
    layer_embedding_size: SizeOrZero = 0
    """Features of a second token embedding, of which every layer reads its own part; 0 without."""
    layer_embedding_rows: SizeOrZero = 0
    """Rows of that embedding's table, a count of tokens."""
    sliding_window: Size | None = None
    """Tokens that a sliding layer attends to at most, itself included; None without such layers."""
    window_chunked: Boolean = False
    """True when a sliding layer attends within consecutive chunks of that many tokens instead."""
    sliding_attention_heads: Size | None = None
    """Query heads of sliding layers where they have a number of their own, a count."""
    sliding_key_value_heads: Size | None = None
    """Key and value heads of sliding layers where they have a number of their own, a count."""
    sliding_head_dim: Size | None = None
    """Features of a query-key head of sliding layers where they have a number of their own."""
    sliding_value_head_dim: Size | None = None
    """Features of a value head of sliding layers where they have a number of their own."""
    index_heads: SizeOrZero = 0
    """Heads of the indexer of sparse attention, a count; 0 without one."""
    index_head_dim: SizeOrZero = 0
    """Features of an indexer head."""
    index_topk: SizeOrZero = 0
    """Keys that sparse attention attends to at most, a count."""
    compression: SizeOrZero = 0
    """Compressed attention: tokens that one of the keys an indexer chooses from stands for, a count."""
    heavy_compression: SizeOrZero = 0
    """Heavily compressed attention: tokens that one key stands for, a count."""
    output_groups: SizeOrZero = 0
    """Compressed attention: groups of heads that are projected apart, a count."""
    output_lora_rank: SizeOrZero = 0
    """Compressed attention: features that each group of heads is projected to."""
    linear_key_heads: SizeOrZero = 0
    """Gated delta net: query and key heads, a count."""
    linear_value_heads: SizeOrZero = 0
    """Gated delta net: value heads, a count."""
    linear_key_head_dim: SizeOrZero = 0
    """Gated delta net: features of a query-key head."""
    linear_value_head_dim: SizeOrZero = 0
    """Gated delta net: features of a value head."""
    delta_gate_rank: SizeOrZero = 0
    """Kimi delta attention: rank of the projection of decays, and of the output gate; see `delta_output_gate`."""
    delta_output_gate: Literal["low_rank", "full"] = "low_rank"
    """Kimi delta attention: whether the output gate is projected through that rank or at once."""
    mamba_heads: SizeOrZero = 0
    """Mamba-2: heads, Mamba-1: channels, a count; 0 without such layers."""
    mamba_head_dim: SizeOrZero = 0
    """Mamba-2: features of a head."""
    mamba_groups: SizeOrZero = 0
    """Mamba-2: groups that share input and output matrices of the state, a count."""
    mamba_state: SizeOrZero = 0
    """Mamba: size of the state per feature."""
    convolution: SizeOrZero = 0
    """Taps of the causal convolution of gated delta net and Mamba, a count."""
    convolution_bias: Boolean = False
    """True when that convolution has a bias."""
    chunk_tokens: SizeOrZero = 0
    """Tokens that linear attention, delta net and Mamba-2 treat at once, a count."""
    q_lora_rank: Size | None = None
    """MLA: rank of the query compression; None when queries are not compressed."""
    kv_lora_rank: Size | None = None
    """MLA: rank of the key-value compression; None without MLA."""
    qk_nope_head_dim: Size | None = None
    """MLA: features of a query-key head without rotary position; None without MLA."""
    qk_rope_head_dim: Size | None = None
    """MLA: features of a query-key head with rotary position; None without MLA."""
    v_head_dim: Size | None = None
    """Features of a value head; None where ``head_dim`` serves."""
    num_experts: SizeOrZero = 0
    """Routed experts of a mixture-of-experts layer, a count; 0 for a dense model."""
    num_experts_per_tok: SizeOrZero = 0
    """Routed experts each token uses, a count."""
    num_shared_experts: SizeOrZero = 0
    """Experts every token passes, a count; one network of that many widths."""
    moe_intermediate_size: SizeOrZero = 0
    """Width of one expert's feed-forward network, a count of features."""
    shared_expert_intermediate_size: SizeOrZero = 0
    """Width of the shared experts together where it is no multiple of an expert's; 0: that multiple."""
    shared_expert_gate: Boolean = False
    """True when a gate of one number per token weighs the shared experts."""
    expert_latent_size: SizeOrZero = 0
    """Width that tokens are projected to before routed experts and back behind them; 0: the hidden size."""
    expert_latent_norm: Boolean = False
    """True when a norm stands before tokens are projected back from that width."""
    first_k_dense_replace: LayersOrZero = 0
    """Leading layers that are dense in a mixture-of-experts model, a count."""
    n_group: SizeOrZero = 0
    """Groups of routed experts of which a token uses some, a count; 0 where it is free in all."""
    topk_group: SizeOrZero = 0
    """Groups of routed experts that a token uses, a count; 0 where it is free in all."""
    router_bias: Boolean = False
    """True when the router keeps a correction per expert."""
    num_nextn_predict_layers: LayersOrZero = 0
    """Next-token prediction (MTP) modules the published configuration carries, a count."""
    max_position_embeddings: Size | None = None
    """Longest sequence the configuration names, in tokens; None if unknown."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse([*problems(self), *undefined_sources(self, self.sources)])
        return self

    def __hash__(self) -> int:
        """Hash by the fields that tell models apart, so that derived values can be cached."""
        return hash((self.name, self.num_hidden_layers, self.hidden_size, self.vocab_size))

    @property
    def is_moe(self) -> bool:
        """True when some layers have routed experts."""
        return self.num_experts > 0

    @property
    def layers(self) -> tuple[LayerKind, ...]:
        """Kind of every decoder layer, first to last."""
        return _layers(self)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """Distinct kinds of layers in order of appearance, that of prediction modules included."""
        return _kinds(self)

    @property
    def prediction_kind(self) -> LayerKind:
        """Kind of layer inside a next-token prediction module: full attention, with experts where there are any."""
        if not self.num_nextn_predict_layers:
            return self.layers[-1]
        full = [self.prediction_mixer] if self.prediction_mixer else [m for m in self.mixers if m in PREDICTING]
        return LayerKind(full[-1] if full else self._mixer, "experts" if self.is_moe else self._dense)

    def of_kind(self, kind: LayerKind) -> ModelSpec:
        """Return this model with the width that the feed-forward network of a kind of layer has."""
        return self if kind.width in (0, self.intermediate_size) else _of_width(self, kind.width)

    @property
    def stream_width(self) -> int:
        """Features that a layer hands to the next: all residual streams."""
        return self.residual_streams * self.hidden_size

    @property
    def _mixer(self) -> Mixer:
        return "latent" if self.attention == "mla" else "grouped_query"

    @property
    def _dense(self) -> FeedForward:
        return "gated" if self.gated else "plain"

    def heads(self, mixer: Mixer) -> Heads:
        """Return the heads of an attention mixer."""
        if mixer not in ("sliding", "reused_sliding"):
            value = self.v_head_dim or self.head_dim
            return Heads(self.num_attention_heads, self.num_key_value_heads, self.head_dim, value)
        size = self.sliding_head_dim or self.head_dim
        return Heads(
            self.sliding_attention_heads or self.num_attention_heads,
            self.sliding_key_value_heads or self.num_key_value_heads,
            size,
            self.sliding_value_head_dim or (size if self.sliding_head_dim else self.v_head_dim or size),
        )

    @property
    def expert_width(self) -> int:
        """Features of a token inside routed experts' dispatch: the hidden size, or the latent one."""
        return self.expert_latent_size or self.hidden_size

    @property
    def shared_width(self) -> int:
        """Width of all shared experts together, a count of features."""
        return self.shared_expert_intermediate_size or self.num_shared_experts * self.moe_intermediate_size

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts, a count."""
        return sum(kind.routed for kind in self.layers)

    @property
    def num_dense_layers(self) -> int:
        """Layers with a feed-forward network that every token passes, a count."""
        return sum(kind.has_network for kind in self.layers)

    @property
    def query_width(self) -> int:
        """Features of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Features of all key heads together."""
        return self.num_key_value_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Features that attention hands to its output projection."""
        return self.num_attention_heads * (self.v_head_dim or self.head_dim)

    @property
    def extensions(self) -> tuple[str, ...]:
        """Fields in which the model differs from a plain decoder: RMSNorm, rotary SwiGLU layers, dense ones first."""
        fields = type(self).model_fields
        names = (name for name in _EXTENSIONS if getattr(self, name) != fields[name].default)
        valued = ("v_head_dim",) if self.attention == "gqa" and self.v_head_dim is not None else ()
        return (*names, *valued)

    def with_layers(self, layers: int) -> Self:
        """Return this model with ``layers`` decoder layers instead; leading dense layers stay first."""
        if not 1 <= layers <= MAXIMUM_LAYERS:
            raise InputError(f"num_hidden_layers {layers}: must be from 1 to {MAXIMUM_LAYERS}")
        values = self.model_dump()
        values["num_hidden_layers"] = layers
        values["first_k_dense_replace"] = min(self.first_k_dense_replace, layers)
        return self.model_validate(values)

    def shape(self) -> dict[str, Any]:
        """Return the fields that describe the shape, without name, notes and sources."""
        return self.model_dump(exclude=set(_PROVENANCE_FIELDS))


def _feed_forwards(
    pattern: tuple[FeedForward, ...], network: FeedForward, dense: int, layers: int
) -> tuple[FeedForward, ...]:
    """Return the feed-forward parts of the pattern, else dense layers with experts behind them."""
    routed: tuple[FeedForward, ...] = ("experts",)
    return pattern or (network,) * dense + routed * (layers - dense)


@lru_cache(maxsize=256)
def _layers(model: ModelSpec) -> tuple[LayerKind, ...]:
    """Return mixer, feed-forward part and width of every layer, repeating their patterns."""
    layers = model.num_hidden_layers
    dense = model.first_k_dense_replace if model.is_moe else layers
    networks = _feed_forwards(model.feed_forwards, model._dense, dense, layers)  # noqa: SLF001  of this file
    mixers, widths = model.mixers or (model._mixer,), model.intermediate_sizes or (0,)  # noqa: SLF001  of this file
    return tuple(
        LayerKind(mixers[i % len(mixers)], networks[i % len(networks)], widths[i % len(widths)]) for i in range(layers)
    )


@lru_cache(maxsize=256)
def _of_width(model: ModelSpec, width: int) -> ModelSpec:
    return model.model_copy(update={"intermediate_size": width, "intermediate_sizes": ()})


@lru_cache(maxsize=256)
def _kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    return tuple(dict.fromkeys((*model.layers, model.prediction_kind)))


def _check_count(text: str) -> None:
    """Raise ValueError, as pydantic expects, for text that is no count."""
    try:
        parse_count(text)
    except InputError as error:
        raise ValueError(str(error)) from error
