"""Spec of a language model: the shape of its layers and its tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal

from simulator.errors import InputError, did_you_mean
from simulator.question.specs.configuration import MAXIMUM_LAYERS, MAXIMUM_PARTS
from simulator.question.specs.documents import (
    Frozen,
    Limits,
    ModelId,
    Name,
    Sourced,
    Sources,
    Taken,
    Text,
    of_fields,
    undefined_sources,
    validated,
)
from simulator.question.specs.vision import Encoder
from simulator.question.units import parse_count
from simulator.records import NamedTuple, replace

Mixer = Literal[
    "grouped_query",
    "sliding",
    "sparse",
    "filtered",
    "latent",
    "sparse_latent",
    "shared_sparse_latent",
    "gated_delta",
    "lightning",
    "mamba",
    "selective_scan",
    "reused_grouped_query",
    "reused_sliding",
    "window_shared",
    "compressed_sparse",
    "heavily_compressed",
    "kimi_delta",
    "linear",
    "none",
]
"""Kind of a layer's mixing of tokens.

`grouped_query`: heads that share keys and values (all of MHA to MQA). `sliding`: the same over a window. `sparse`: the
same over blocks of keys that an indexer chooses. `filtered`: queries and keys of tokens that a local filter mixes.
`latent`: latent attention (MLA). `sparse_latent`: MLA over keys that an indexer chooses; `shared_sparse_latent` takes
an earlier layer's choice. `gated_delta`: gated delta net. `lightning`: linear attention, fixed decay. `mamba`: Mamba-2,
`selective_scan`: Mamba-1.
`reused_grouped_query`, `reused_sliding`: queries alone, over the keys and values of an earlier layer (Gemma 4).
`window_shared`: all heads share one tensor of keys and values, over a window; `compressed_sparse` takes compressed keys
that an indexer chooses beside it, `heavily_compressed` all of a shorter sequence of them (DeepSeek-V4). `kimi_delta`:
the delta rule with a decay of every channel (Kimi-Linear). `linear`: one product in place of attention.
"""


MixerHeads = Literal["key_value", "latent", "undivided", "none"]
"""Heads that tensor parallelism divides beside those of queries: shared key-value heads; none of latent attention (the
spec's `attention` is mla) and of scans. `undivided`: no framework cuts it over tensor or context parallelism."""
MixerContext = Literal["all", "window", "chosen", "earlier_choice", "state", "nothing"]
"""Earlier tokens that a token attends to: all, a window, those that the layer's own indexer or an earlier layer's
chose, or a state that a scan hands on."""


class MixerTraits(NamedTuple):
    """Traits of a mixer that rules, specs and recompute policies ask for; a new one states each."""

    heads: MixerHeads
    context: MixerContext
    fields: tuple[str, ...]
    """Fields of a model's spec that exist for it."""


_INDEX: Final = ("index_heads", "index_head_dim", "index_topk")
_DELTA: Final = ("linear_key_heads", "linear_value_heads", "linear_key_head_dim", "linear_value_head_dim")
_MAMBA: Final = ("mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state")
_SHARED: Final = ("sliding_window", "output_groups", "output_lora_rank")
_SCAN: Final = ("convolution", "chunk_tokens")
TRAITS: Final[Mapping[Mixer, MixerTraits]] = MappingProxyType(
    {
        "grouped_query": MixerTraits("key_value", "all", ()),
        "sliding": MixerTraits("key_value", "window", ("sliding_window",)),
        "sparse": MixerTraits("key_value", "chosen", _INDEX),
        "filtered": MixerTraits("key_value", "all", ()),
        "latent": MixerTraits("latent", "all", ()),
        "sparse_latent": MixerTraits("latent", "chosen", _INDEX),
        "shared_sparse_latent": MixerTraits("latent", "earlier_choice", _INDEX),
        "gated_delta": MixerTraits("none", "state", (*_DELTA, *_SCAN)),
        "lightning": MixerTraits("none", "state", ("chunk_tokens",)),
        "mamba": MixerTraits("none", "state", (*_MAMBA, *_SCAN)),
        "selective_scan": MixerTraits("none", "state", ("mamba_heads", "mamba_state", "convolution")),
        "reused_grouped_query": MixerTraits("key_value", "all", ()),
        "reused_sliding": MixerTraits("key_value", "window", ("sliding_window",)),
        "window_shared": MixerTraits("undivided", "window", _SHARED),
        "compressed_sparse": MixerTraits("undivided", "chosen", (*_SHARED, "compression", *_INDEX)),
        "heavily_compressed": MixerTraits("undivided", "all", (*_SHARED, "heavy_compression")),
        "kimi_delta": MixerTraits("none", "state", (*_DELTA, *_SCAN, "delta_gate_rank")),
        "linear": MixerTraits("none", "nothing", ()),
        "none": MixerTraits("none", "nothing", ()),
    }
)
_WHOLE: Final = ("all", "chosen", "earlier_choice")
LATENT: Final = frozenset(mixer for mixer, traits in TRAITS.items() if traits.heads == "latent")
"""Mixers of latent attention."""
PREDICTING: Final = frozenset(mixer for mixer, traits in TRAITS.items() if traits.context in _WHOLE)
"""Mixers that a prediction module has where the model's layers have them."""
UNDIVIDED: Final = frozenset(mixer for mixer, traits in TRAITS.items() if traits.heads == "undivided")
"""Mixers that run whole on every rank of a tensor-parallel group."""
NEEDS: Final = tuple(
    (frozenset(mixer for mixer, traits in TRAITS.items() if name in traits.fields), name)
    for name in dict.fromkeys(name for traits in TRAITS.values() for name in traits.fields)
)
"""Every field that exists for mixers, with those mixers."""


FAMILIES_FILE: Final = Path(__file__).with_name("families") / "families.yaml"


@lru_cache(maxsize=1)
def architectures() -> tuple[str, ...]:
    """Return the `model_type` of every family, read from the heads of the table's entries without parsing it."""
    text = FAMILIES_FILE.read_text(encoding="utf-8")
    return tuple(re.findall(r"^([a-z][a-z0-9_.-]*):", text, re.MULTILINE))


def _known(name: str) -> str:
    names = architectures()
    if name not in names:
        near = did_you_mean(name, names) or f"; known: {', '.join(names)}"
        raise ValueError(f"'{name[:60]}' is not a family that is priced{near}")
    return name


Architecture = Annotated[str, Taken("after", _known)]
"""Hugging Face ``model_type`` of the family the model belongs to."""


_MLA_FIELDS: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_MOE_FIELDS: Final = ("num_experts_per_tok", "moe_intermediate_size")
_MOE_DETAILS: Final = ("num_shared_experts", "first_k_dense_replace", "router_bias", "n_group")
SHARED_EXPERT_FIELDS: Final = (
    *("shared_expert_intermediate_size", "shared_expert_gate", "expert_latent_size", "expert_latent_norm"),
)
EXPERT_FIELDS: Final = frozenset(("num_experts", "topk_group", *_MOE_FIELDS, *_MOE_DETAILS, *SHARED_EXPERT_FIELDS))
"""Fields that only a model with routed experts has."""


def _head_problem(model: ModelSpec) -> str:
    """Return the problem of the heads, or an empty text."""
    heads, shared = model.num_attention_heads, model.num_key_value_heads
    if heads % shared:
        return f"num_attention_heads {heads} must be a multiple of num_key_value_heads {shared}"
    return ""


def _mla_problem(model: ModelSpec) -> str:
    """Return the problem of the latent attention fields, or an empty text."""
    if model.attention == "gqa":
        latent = ("q_lora_rank", *(field for field in _MLA_FIELDS if field != "v_head_dim"))
        compressed = ("q_lora_rank", "qk_rope_head_dim") if UNDIVIDED.intersection(model.mixers) else ()
        present = [field for field in latent if field not in compressed and getattr(model, field) is not None]
        return f"{present[0]} is for attention 'mla' only; this model has 'gqa'" if present else ""
    missing = [field for field in _MLA_FIELDS if getattr(model, field) is None]
    if missing:
        return f"attention 'mla' needs {missing[0]}"
    if model.attention_bias or model.qk_norm:
        return "attention 'mla' takes neither attention_bias nor qk_norm"
    joined = (model.qk_nope_head_dim or 0) + (model.qk_rope_head_dim or 0)
    if model.head_dim != joined:
        return f"head_dim {model.head_dim} must be qk_nope_head_dim + qk_rope_head_dim = {joined}"
    if model.num_key_value_heads != model.num_attention_heads:
        return "attention 'mla' needs num_key_value_heads equal to num_attention_heads"
    return ""


def _moe_problem(model: ModelSpec) -> str:
    """Return the problem of the expert fields, or an empty text."""
    if not model.is_moe:
        for field in (*_MOE_FIELDS, *_MOE_DETAILS, *SHARED_EXPERT_FIELDS):
            if getattr(model, field):
                return f"{field} needs num_experts of at least 1"
        return ""
    for field in _MOE_FIELDS:
        if not getattr(model, field):
            return f"num_experts {model.num_experts} needs {field} of at least 1"
    if model.num_experts_per_tok > model.num_experts:
        return f"num_experts_per_tok {model.num_experts_per_tok} exceeds num_experts {model.num_experts}"
    if model.first_k_dense_replace > model.num_hidden_layers:
        return (
            f"first_k_dense_replace {model.first_k_dense_replace} exceeds num_hidden_layers {model.num_hidden_layers}"
        )
    return ""


def _group_problem(model: ModelSpec) -> str:
    """Return the problem of the groups of experts, or an empty text."""
    groups, used = model.n_group, model.topk_group
    if groups == used == 0 or (groups and model.num_experts % groups == 0 and 1 <= used <= groups):
        return ""
    return f"n_group {groups}, topk_group {used}: of groups that divide {model.num_experts} experts a token uses some"


def _kind_problem(model: ModelSpec) -> str:
    """Return the problem of the sequence of layer kinds, or an empty text."""
    mixers: set[str] = set(model.mixers)
    for needing, name in NEEDS:
        present = mixers & needing
        if bool(present) != bool(getattr(model, name)):
            says = "needs {} of at least 1" if present else "is what {} is for; this model has none"
            named = next(mixer for mixer in TRAITS if mixer in (present or needing))
            return f"mixer '{named}' {says.format(name)}"
    latent = mixers & LATENT
    if model.attention == "gqa" and latent:
        return f"mixer '{min(latent)}' needs attention 'mla'"
    if model.feed_forwards and model.is_moe != any(kind.routed for kind in model.layer_counts):
        return "feed_forwards and num_experts must agree on whether there are experts"
    if model.feed_forwards and model.first_k_dense_replace:
        return "first_k_dense_replace and feed_forwards both say which layers are dense; give one"
    if any(kind[:2] == ("none", "none") for kind in model.layer_counts):
        return "a layer of mixer 'none' and feed-forward 'none' is empty"
    own = model.sliding_attention_heads or model.sliding_key_value_heads
    heads, shared = model.heads("sliding").queries, model.heads("sliding").shared
    return f"{heads} sliding heads must be a multiple of {shared} key-value heads" if own and heads % shared else ""


def _whole_problem(model: ModelSpec) -> str:
    """Return the problem of the parts around the layers, or an empty text."""
    if bool(model.layer_embedding_size) != bool(model.layer_embedding_rows):
        return "layer_embedding_size and layer_embedding_rows go together"
    if model.residual_streams > 1 and (model.norm_placement != "before" or model.residual_block):
        return (
            f"residual_streams {model.residual_streams} stand with norm_placement 'before', and without residual_block"
        )
    if model.output_groups and model.query_width % model.output_groups:
        return f"output_groups {model.output_groups} must divide the {model.query_width} features of all heads"
    return ""


Size = Annotated[int, Limits(ge=1, le=2**31, strict=True)]
"""Width or count of at least one."""
SizeOrZero = Annotated[int, Limits(ge=0, le=2**31, strict=True)]
"""Width or count that may be zero."""
PartCount = Annotated[int, Limits(ge=1, le=MAXIMUM_PARTS, strict=True)]
"""Number of heads, experts or groups of at least one."""
PartCountOrZero = Annotated[int, Limits(ge=0, le=MAXIMUM_PARTS, strict=True)]
"""Number of heads, experts or groups that may be zero."""
Layers = Annotated[int, Limits(ge=1, le=MAXIMUM_LAYERS, strict=True)]
"""Number of layers of at least one."""
LayersOrZero = Annotated[int, Limits(ge=0, le=MAXIMUM_LAYERS, strict=True)]
"""Number of layers that may be zero."""
Boolean = Annotated[bool, Limits(strict=True)]
"""True or false, written as such."""

_PROVENANCE_FIELDS: Final = frozenset({"name", "aliases", "note", "sources", "provenance", "published"})
_EXTENSIONS: Final = (
    *("attention_output_bias", "mlp_bias", "head_bias", "activation", "gated", "norm", "norm_placement"),
    *("parallel_residual", "rotary", "learned_positions", "embedding_norm", "qk_norm_span", "attention_gate"),
    *("attention_sinks", "logit_softcap", "keys_as_values", "value_norm", "mixers", "feed_forwards"),
    *("intermediate_sizes", "prediction_mixer", "residual_streams", "residual_block", "layer_embedding_size"),
    *SHARED_EXPERT_FIELDS,
)


FeedForward = Literal["gated", "plain", "linear", "experts", "hashed_experts", "experts_beside", "none"]
"""Feed-forward part of a layer: a network every token passes, gated, plain or a single product, or routed experts,
shared ones beside them. `hashed_experts`: experts that a table chooses by the token's number. `experts_beside`: a
network and experts of the same tokens, each with norms of its own (Gemma 4)."""
ROUTED: Final = frozenset[FeedForward]({"experts", "hashed_experts", "experts_beside"})
"""Feed-forward parts with routed experts."""
Activation = Literal["silu", "gelu", "gelu_new", "gelu_fast", "relu", "squared_relu"]
"""Nonlinearity of the feed-forward networks, gated or not; `gelu_new` and `gelu_fast` are made up of operations."""


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

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the counts."""
        try:
            for text in (self.total_parameters, self.active_parameters):
                parse_count("1" if text is None else text)
        except InputError as error:
            yield str(error)


class ModelSpec(Frozen):
    """Shape of a model, read from a spec or a ``config.json``; field names as in Hugging Face configurations."""

    name: Name
    aliases: tuple[ModelId, ...] = ()
    """Other names, and ids on Hugging Face, of checkpoints of this very shape."""
    note: Text = ""
    """Note on the shape for readers."""
    sources: Sources = field(default_factory=dict)
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
    num_attention_heads: PartCount
    """Query heads, a count."""
    num_key_value_heads: PartCount
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
    head_bias: Boolean = False
    """True when the output layer has a bias."""
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
    residual_streams: PartCount = 1
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
    sliding_attention_heads: PartCount | None = None
    """Query heads of sliding layers where they have a number of their own, a count."""
    sliding_key_value_heads: PartCount | None = None
    """Key and value heads of sliding layers where they have a number of their own, a count."""
    sliding_head_dim: Size | None = None
    """Features of a query-key head of sliding layers where they have a number of their own."""
    sliding_value_head_dim: Size | None = None
    """Features of a value head of sliding layers where they have a number of their own."""
    index_heads: PartCountOrZero = 0
    """Heads of the indexer of sparse attention, a count; 0 without one."""
    index_head_dim: SizeOrZero = 0
    """Features of an indexer head."""
    index_topk: SizeOrZero = 0
    """Keys that sparse attention attends to at most, a count."""
    compression: SizeOrZero = 0
    """Compressed attention: tokens that one of the keys an indexer chooses from stands for, a count."""
    heavy_compression: SizeOrZero = 0
    """Heavily compressed attention: tokens that one key stands for, a count."""
    output_groups: PartCountOrZero = 0
    """Compressed attention: groups of heads that are projected apart, a count."""
    output_lora_rank: SizeOrZero = 0
    """Compressed attention: features that each group of heads is projected to."""
    linear_key_heads: PartCountOrZero = 0
    """Gated delta net: query and key heads, a count."""
    linear_value_heads: PartCountOrZero = 0
    """Gated delta net: value heads, a count."""
    linear_key_head_dim: SizeOrZero = 0
    """Gated delta net: features of a query-key head."""
    linear_value_head_dim: SizeOrZero = 0
    """Gated delta net: features of a value head."""
    delta_gate_rank: SizeOrZero = 0
    """Kimi delta attention: rank of the projection of decays, and of the output gate; see `delta_output_gate`."""
    delta_output_gate: Literal["low_rank", "full"] = "low_rank"
    """Kimi delta attention: whether the output gate is projected through that rank or at once."""
    mamba_heads: PartCountOrZero = 0
    """Mamba-2: heads, Mamba-1: channels, a count; 0 without such layers."""
    mamba_head_dim: SizeOrZero = 0
    """Mamba-2: features of a head."""
    mamba_groups: PartCountOrZero = 0
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
    num_experts: PartCountOrZero = 0
    """Routed experts of a mixture-of-experts layer, a count; 0 for a dense model."""
    num_experts_per_tok: PartCountOrZero = 0
    """Routed experts each token uses, a count."""
    num_shared_experts: PartCountOrZero = 0
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
    n_group: PartCountOrZero = 0
    """Groups of routed experts of which a token uses some, a count; 0 where it is free in all."""
    topk_group: PartCountOrZero = 0
    """Groups of routed experts that a token uses, a count; 0 where it is free in all."""
    router_bias: Boolean = False
    """True when the router keeps a correction per expert."""
    num_nextn_predict_layers: LayersOrZero = 0
    """Next-token prediction (MTP) modules the published configuration carries, a count."""
    max_position_embeddings: Size | None = None
    """Longest sequence the configuration names, in tokens; None if unknown."""

    encoder: Encoder | None = None
    """Encoder of images in front of it; None where it reads text alone, or its encoder is unknown."""

    def problems(self) -> Iterator[str]:
        """Yield the contradictions between fields."""
        for check in (_head_problem, _mla_problem, _moe_problem, _group_problem, _kind_problem, _whole_problem):
            if problem := check(self):
                yield problem
        yield from undefined_sources(self, self.sources)

    def __hash__(self) -> int:
        """Hash by the fields that tell models apart, so that derived values can be cached."""
        return hash((self.name, self.num_hidden_layers, self.hidden_size, self.vocab_size))

    @property
    def text_part(self) -> bool:
        """Whether it is the text part of a model that reads more than text."""
        return "text part" in self.note

    @property
    def longest_sequence(self) -> int | None:
        """Longest sequence that it was trained for, in tokens; None if unknown."""
        return self.max_position_embeddings or self.learned_positions or None

    @property
    def is_moe(self) -> bool:
        """True when some layers have routed experts."""
        return self.num_experts > 0

    @cached_property
    def layers(self) -> tuple[LayerKind, ...]:
        """Kind of every decoder layer, first to last."""
        return _layers(self)

    @cached_property
    def layer_counts(self) -> Counter[LayerKind]:
        """Number of decoder layers of each kind, in order of appearance."""
        return _counts(self)

    @cached_property
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
    def num_dense_layers(self) -> int:
        """Layers with a feed-forward network that every token passes, a count."""
        return sum(layers for kind, layers in self.layer_counts.items() if kind.has_network)

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
        differing = of_fields(self, defaults=False)
        names = (name for name in _EXTENSIONS if name in differing)
        valued = ("v_head_dim",) if self.attention == "gqa" and self.v_head_dim is not None else ()
        return (*names, *valued)

    def with_layers(self, layers: int) -> ModelSpec:
        """Return this model with ``layers`` decoder layers instead; leading dense layers stay first."""
        if not 1 <= layers <= MAXIMUM_LAYERS:
            raise InputError(f"num_hidden_layers {layers}: must be from 1 to {MAXIMUM_LAYERS}")
        changed = {"num_hidden_layers": layers, "first_k_dense_replace": min(self.first_k_dense_replace, layers)}
        return validated(self.name, ModelSpec, of_fields(self) | changed)

    def shape(self) -> dict[str, Any]:
        """Return the fields that describe the shape, without name, notes and sources."""
        return {name: value for name, value in asdict(self).items() if name not in _PROVENANCE_FIELDS}


@lru_cache(maxsize=256)
def _layers(model: ModelSpec) -> tuple[LayerKind, ...]:
    """Return mixer, feed-forward part and width of every layer, repeating their patterns."""
    layers = model.num_hidden_layers
    dense = model.first_k_dense_replace if model.is_moe else layers
    routed: tuple[FeedForward, ...] = ("experts",)
    networks = model.feed_forwards or (model._dense,) * dense + routed * (layers - dense)  # noqa: SLF001  of this file
    mixers, widths = model.mixers or (model._mixer,), model.intermediate_sizes or (0,)  # noqa: SLF001  of this file
    return tuple(
        LayerKind(mixers[i % len(mixers)], networks[i % len(networks)], widths[i % len(widths)]) for i in range(layers)
    )


@lru_cache(maxsize=256)
def _counts(model: ModelSpec) -> Counter[LayerKind]:
    return Counter(model.layers)


@lru_cache(maxsize=256)
def _of_width(model: ModelSpec, width: int) -> ModelSpec:
    return replace(model, intermediate_size=width, intermediate_sizes=())


@lru_cache(maxsize=256)
def _kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    return tuple(dict.fromkeys((*model.layer_counts, model.prediction_kind)))
