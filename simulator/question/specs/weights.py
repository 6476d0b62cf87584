"""Shapes of the weights of a model: the only place that knows them.

A transformer layer is a fixed list of weights that depends on the model's
fields alone. Parameter counts, memory per rank and matrix-multiplication
FLOPs are all derived from the lists made here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from simulator.question.specs.model import ModelSpec

Split = Literal["column", "row", "replicated", "expert_column", "expert_row", "vocabulary"]
"""How tensor parallelism cuts a weight.

``column`` cuts the outputs, ``row`` the inputs, ``vocabulary`` the token axis,
``replicated`` nothing. The ``expert_`` forms belong to routed experts, which
expert parallelism spreads first.
"""


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight of the model, whole (not yet cut over ranks)."""

    name: str
    """Role inside the layer, for example ``q`` or ``expert_gate``; unique in a layer."""
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


def attention_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Return the weights of one layer's attention block, without the norm before it."""
    return _mla_weights(model) if model.attention == "mla" else _gqa_weights(model)


@lru_cache(maxsize=256)
def layer_weights(model: ModelSpec, moe: bool) -> tuple[Weight, ...]:  # noqa: FBT001
    """Return the weights of one decoder layer: a mixture-of-experts one if ``moe``."""
    hidden = model.hidden_size
    feed_forward = _moe_weights(model) if moe else _swiglu("", hidden, model.intermediate_size)
    return (
        _vector("input_norm", hidden),
        *attention_weights(model),
        _vector("post_attention_norm", hidden),
        *feed_forward,
    )


def embedding_weight(model: ModelSpec) -> Weight:
    """Return the input token table, which is looked up and never multiplied."""
    return Weight("embedding", model.vocab_size, model.hidden_size, "vocabulary", matmul=False)


def head_weight(model: ModelSpec) -> Weight:
    """Return the output projection to the vocabulary.

    With ``tie_word_embeddings`` it is the same storage as the input table; the
    multiplication happens all the same, so it is returned for every model.
    """
    return Weight("head", model.hidden_size, model.vocab_size, "vocabulary")


def final_norm(model: ModelSpec) -> Weight:
    """Return the norm before the output projection."""
    return _vector("final_norm", model.hidden_size)


@lru_cache(maxsize=256)
def mtp_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Return the weights of ONE next-token (MTP) module; empty if the model has none.

    As in DeepSeek-V3: two norms over the joined inputs, the projection
    ``eh_proj`` from twice the hidden size, one full layer (mixture-of-experts
    if the model has such layers) and an own norm before the shared head. The
    token table and the head are shared with the main model.
    """
    if model.num_nextn_predict_layers == 0:
        return ()
    hidden = model.hidden_size
    return (
        _vector("mtp_embedding_norm", hidden),
        _vector("mtp_hidden_norm", hidden),
        Weight("eh_proj", 2 * hidden, hidden, "column"),
        *layer_weights(model, model.is_moe),
        _vector("mtp_final_norm", hidden),
    )


def total_parameters(model: ModelSpec) -> int:
    """Return the parameters of the main model: a tied table once, no MTP module."""
    dense, moe = _layer_sums(model, _count)
    return dense + moe + _outside_layers(model) + _input_table_if_apart(model)


def active_parameters(model: ModelSpec, include_input_embedding: bool) -> int:  # noqa: FBT001
    """Return the parameters one token uses: of the routed experts only the chosen ones.

    A tied table is the head, so it always counts; an input table of its own
    counts with ``include_input_embedding`` only. Publishers use both
    conventions.
    """

    def used(weights: Iterable[Weight]) -> int:
        return _count(
            replace(weight, copies=model.num_experts_per_tok)
            if weight.split in ("expert_column", "expert_row")
            else weight
            for weight in weights
        )

    dense, moe = _layer_sums(model, used)
    table = _input_table_if_apart(model) if include_input_embedding else 0
    return dense + moe + _outside_layers(model) + table


def mtp_parameters(model: ModelSpec) -> int:
    """Return the parameters of all MTP modules, which the totals leave out."""
    return _count(mtp_weights(model)) * model.num_nextn_predict_layers


def _count(weights: Iterable[Weight]) -> int:
    """Return the parameters of ``weights`` together."""
    return sum(weight.parameters for weight in weights)


def _layer_sums(model: ModelSpec, measure: Callable[[Iterable[Weight]], int]) -> tuple[int, int]:
    """Return ``measure`` over all dense layers and over all mixture-of-experts layers."""
    dense = model.num_dense_layers * measure(layer_weights(model, moe=False)) if model.num_dense_layers else 0
    moe = model.num_moe_layers * measure(layer_weights(model, moe=True)) if model.num_moe_layers else 0
    return dense, moe


def _outside_layers(model: ModelSpec) -> int:
    """Return the parameters of the last norm and the head."""
    return final_norm(model).parameters + head_weight(model).parameters


def _input_table_if_apart(model: ModelSpec) -> int:
    """Return the parameters of the input table where the head has storage of its own."""
    return 0 if model.tie_word_embeddings else embedding_weight(model).parameters


def _vector(name: str, length: int, split: Split = "replicated") -> Weight:
    """Return a norm scale or a bias."""
    return Weight(name, 1, length, split, matmul=False)


def _swiglu(prefix: str, hidden: int, width: int) -> tuple[Weight, ...]:
    """Return gate, up and down of a feed-forward network every token passes."""
    return (
        Weight(f"{prefix}gate", hidden, width, "column"),
        Weight(f"{prefix}up", hidden, width, "column"),
        Weight(f"{prefix}down", width, hidden, "row"),
    )


def _gqa_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Return the weights of attention with shared key-value heads."""
    hidden, query, key_value = model.hidden_size, model.query_width, model.kv_width
    weights = [
        Weight("q", hidden, query, "column"),
        Weight("k", hidden, key_value, "column"),
        Weight("v", hidden, key_value, "column"),
    ]
    if model.attention_bias:
        weights += [
            _vector("q_bias", query, "column"),
            _vector("k_bias", key_value, "column"),
            _vector("v_bias", key_value, "column"),
        ]
    if model.qk_norm:
        weights += [_vector("q_norm", model.head_dim), _vector("k_norm", model.head_dim)]
    weights.append(Weight("o", query, hidden, "row"))
    return tuple(weights)


def _mla_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Return the weights of multi-head latent attention, cut as Megatron cuts them."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    latent, rotary = model.kv_lora_rank or 0, model.qk_rope_head_dim or 0
    expanded = heads * ((model.qk_nope_head_dim or 0) + (model.v_head_dim or 0))
    if model.q_lora_rank is None:
        query: tuple[Weight, ...] = (Weight("q", hidden, model.query_width, "column"),)
    else:
        query = (
            Weight("q_a", hidden, model.q_lora_rank, "replicated"),
            _vector("q_a_norm", model.q_lora_rank),
            Weight("q_b", model.q_lora_rank, model.query_width, "column"),
        )
    return (
        *query,
        Weight("kv_a", hidden, latent + rotary, "replicated"),
        _vector("kv_a_norm", latent),
        Weight("kv_b", latent, expanded, "column"),
        Weight("o", model.value_width, hidden, "row"),
    )


def _moe_weights(model: ModelSpec) -> tuple[Weight, ...]:
    """Return router, routed experts and shared experts of a mixture-of-experts layer."""
    hidden, width, experts = model.hidden_size, model.moe_intermediate_size, model.num_experts
    weights = [Weight("router", hidden, experts, "replicated")]
    if model.router_bias:
        weights.append(_vector("router_bias", experts))
    weights += [
        Weight("expert_gate", hidden, width, "expert_column", copies=experts),
        Weight("expert_up", hidden, width, "expert_column", copies=experts),
        Weight("expert_down", width, hidden, "expert_row", copies=experts),
    ]
    if model.num_shared_experts:
        weights += _swiglu("shared_", hidden, model.num_shared_experts * width)
    return tuple(weights)
