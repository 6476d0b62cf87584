"""Shape of a transformer language model."""

from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simulator.errors import InputError
from simulator.question.specs.provenance import Frozen, Name, Sourced, Sources, Text, sourced_parts, undefined_source
from simulator.question.units import parse_count

Architecture = Literal[
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
    "ernie4_5",
    "ernie4_5_moe",
]
"""Hugging Face ``model_type`` of the family the model belongs to."""

MAXIMUM_LAYERS: Final = 10_000
"""Most layers a model may have, a count."""
Size = Annotated[int, Field(ge=1, le=2**31, strict=True)]
"""A width or a count of at least one."""
SizeOrZero = Annotated[int, Field(ge=0, le=2**31, strict=True)]
"""A width or a count that may be zero."""
Layers = Annotated[int, Field(ge=1, le=MAXIMUM_LAYERS, strict=True)]
"""A number of layers of at least one."""
LayersOrZero = Annotated[int, Field(ge=0, le=MAXIMUM_LAYERS, strict=True)]
"""A number of layers that may be zero."""
Flag = Annotated[bool, Field(strict=True)]
"""True or false, written as such."""

_PROVENANCE_FIELDS: Final = frozenset({"name", "note", "sources", "provenance", "published"})
_MLA_FIELDS: Final = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_MOE_FIELDS: Final = ("num_experts_per_tok", "moe_intermediate_size")


Mixer = Literal["grouped_query", "latent"]
"""How a layer mixes tokens: heads that share keys and values (all of MHA to MQA), or latent attention (MLA)."""
FeedForward = Literal["gated", "experts"]
"""What follows the mixer: a gated network every token passes, or routed experts, with shared ones or without."""


class LayerKind(NamedTuple):
    """What a decoder layer is made of; each behind a norm, with a residual addition."""

    mixer: Mixer
    feed_forward: FeedForward


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
    note: Text = ""
    """What a reader should know about this shape."""
    sources: Sources = Field(default_factory=dict)
    """Key to document; the other blocks refer to these keys."""
    provenance: Sourced | None = None
    """Where the shape comes from; None for a shape the user brought."""
    published: Published | None = None
    """Published parameter counts; None for a shape the user brought."""

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
    tie_word_embeddings: Flag
    """True when the head uses the token table's storage."""
    attention_bias: Flag = False
    """True when the q, k and v projections have a bias."""
    qk_norm: Flag = False
    """True when queries and keys are normalised per head."""
    attention: Literal["gqa", "mla"] = "gqa"
    """``gqa``: heads share keys and values (all of MHA to MQA); ``mla``: latent attention."""
    q_lora_rank: Size | None = None
    """MLA: rank of the query compression; None when queries are not compressed."""
    kv_lora_rank: Size | None = None
    """MLA: rank of the key-value compression; None without MLA."""
    qk_nope_head_dim: Size | None = None
    """MLA: features of a query-key head without rotary position; None without MLA."""
    qk_rope_head_dim: Size | None = None
    """MLA: features of a query-key head with rotary position; None without MLA."""
    v_head_dim: Size | None = None
    """MLA: features of a value head; None without MLA, where ``head_dim`` serves."""
    num_experts: SizeOrZero = 0
    """Routed experts of a mixture-of-experts layer, a count; 0 for a dense model."""
    num_experts_per_tok: SizeOrZero = 0
    """Routed experts each token uses, a count."""
    num_shared_experts: SizeOrZero = 0
    """Experts every token passes, a count; one network of that many widths."""
    moe_intermediate_size: SizeOrZero = 0
    """Width of one expert's feed-forward network, a count of features."""
    first_k_dense_replace: LayersOrZero = 0
    """Leading layers that are dense in a mixture-of-experts model, a count."""
    n_group: SizeOrZero = 0
    """Groups of routed experts of which a token uses some, a count; 0 where it is free in all."""
    topk_group: SizeOrZero = 0
    """Groups of routed experts that a token uses, a count; 0 where it is free in all."""
    router_bias: Flag = False
    """True when the router keeps a correction per expert."""
    num_nextn_predict_layers: LayersOrZero = 0
    """Next-token prediction (MTP) modules the published configuration carries, a count."""
    max_position_embeddings: Size | None = None
    """Longest sequence the configuration names, in tokens; None if unknown."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for check in (_head_problem, _mla_problem, _moe_problem, _group_problem, _source_problem):
            problem = check(self)
            if problem:
                raise ValueError(problem)
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
        """The kind of every decoder layer, first to last."""
        dense = self.first_k_dense_replace if self.is_moe else self.num_hidden_layers
        return _layers(self._mixer, dense, self.num_hidden_layers)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kinds of layers there are, in the order they first appear, that of prediction modules included."""
        return _kinds(self.layers, self.prediction_kind)

    @property
    def prediction_kind(self) -> LayerKind:
        """The kind of layer inside a next-token prediction module: with experts where the model has any."""
        return LayerKind(self._mixer, "experts" if self.is_moe else "gated")

    @property
    def _mixer(self) -> Mixer:
        return "latent" if self.attention == "mla" else "grouped_query"

    @property
    def num_moe_layers(self) -> int:
        """Layers with routed experts, a count."""
        return sum(kind.feed_forward == "experts" for kind in self.layers)

    @property
    def num_dense_layers(self) -> int:
        """Layers without routed experts, a count."""
        return self.num_hidden_layers - self.num_moe_layers

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


@lru_cache(maxsize=256)
def _layers(mixer: Mixer, dense: int, layers: int) -> tuple[LayerKind, ...]:
    """Leading dense layers, and experts behind them."""
    return (LayerKind(mixer, "gated"),) * dense + (LayerKind(mixer, "experts"),) * (layers - dense)


@lru_cache(maxsize=256)
def _kinds(layers: tuple[LayerKind, ...], prediction: LayerKind) -> tuple[LayerKind, ...]:
    return tuple(dict.fromkeys((*layers, prediction)))


def _check_count(text: str) -> None:
    """Refuse text that is no count, with the ValueError pydantic waits for."""
    try:
        parse_count(text)
    except InputError as error:
        raise ValueError(str(error)) from error


def _head_problem(model: ModelSpec) -> str:
    """Return what is wrong with the heads, or an empty text."""
    heads, shared = model.num_attention_heads, model.num_key_value_heads
    if heads % shared:
        return f"num_attention_heads {heads} must be a multiple of num_key_value_heads {shared}"
    return ""


def _mla_problem(model: ModelSpec) -> str:
    """Return what is wrong with the latent attention fields, or an empty text."""
    if model.attention == "gqa":
        given = [field for field in ("q_lora_rank", *_MLA_FIELDS) if getattr(model, field) is not None]
        return f"{given[0]} is for attention 'mla' only; this model has 'gqa'" if given else ""
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
    """Return what is wrong with the expert fields, or an empty text."""
    if not model.is_moe:
        for field in (*_MOE_FIELDS, "num_shared_experts", "first_k_dense_replace", "router_bias", "n_group"):
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
    """Return what is wrong with the groups of experts, or an empty text."""
    groups, used = model.n_group, model.topk_group
    if groups == used == 0 or (groups and model.num_experts % groups == 0 and 1 <= used <= groups):
        return ""
    return (
        f"n_group {groups} and topk_group {used}: the groups must divide num_experts {model.num_experts}, and a token "
        "uses 1 or more of them"
    )


def _source_problem(model: ModelSpec) -> str:
    """Return which source key is not defined, or an empty text."""
    return undefined_source(sourced_parts(model), model.sources)
