"""What readers of several families share: sizes, heads, biases, activations, sequences of layer kinds."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from simulator.errors import InputError
from simulator.question.specs.configuration import Config
from simulator.question.specs.model import Activation, FeedForward, Mixer

WordT = TypeVar("WordT")
Fields = dict[str, Any]
"""Fields of a model spec by name."""

_ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "swigluoai": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "squared_relu",
}
"""Names that configurations give activations, and what they cost like."""


def activation(config: Config, default: str = "silu", *, keys: Sequence[str] = ("hidden_act",)) -> Fields:
    """The activation; UnsupportedError for one that is not priced."""
    key = next((key for key in keys if config.has(key)), keys[0])
    word = config.text(key, default)
    if word not in _ACTIVATIONS:
        raise config.unsupported(key, f"'{word[:40]}' cannot be priced; known: {', '.join(_ACTIVATIONS)}")
    return {"activation": _ACTIVATIONS[word]}


def sizes(config: Config, *, tied: bool = False) -> Fields:
    """The fields most families write the same way."""
    return {
        "num_hidden_layers": config.layers("num_hidden_layers"),
        "hidden_size": config.integer("hidden_size"),
        "intermediate_size": config.integer("intermediate_size"),
        "num_attention_heads": config.integer("num_attention_heads"),
        "vocab_size": config.integer("vocab_size"),
        "tie_word_embeddings": config.flag("tie_word_embeddings", default=tied),
        "max_position_embeddings": config.optional("max_position_embeddings"),
    }


def heads(config: Config, fields: Fields, *, kv_heads: int | None = None, head_dim: int | None = None) -> Fields:
    """Key-value heads and the size of a head.

    ``kv_heads`` and ``head_dim`` are what the class assumes for an absent key; None, like a null in the file, means one
    per query head and an even share of the hidden size.
    """
    queries = fields["num_attention_heads"]
    absent_heads = queries if config.has("num_key_value_heads") else kv_heads
    shared = config.integer("num_key_value_heads", absent_heads or queries)
    absent_dim = None if config.has("head_dim") else head_dim
    size = config.optional("head_dim") or absent_dim
    return {"num_key_value_heads": shared, "head_dim": even_share(config, fields) if size is None else size}


def even_share(config: Config, fields: Fields) -> int:
    """The hidden size over the query heads."""
    hidden, queries = fields["hidden_size"], fields["num_attention_heads"]
    if queries < 1 or hidden % queries:
        raise InputError(
            f"{config.where}: num_attention_heads: {queries} must divide hidden_size {hidden} without head_dim"
        )
    return int(hidden // queries)


def grouped(config: Config, *, kv_heads: int | None = None, head_dim: int | None = None, tied: bool = False) -> Fields:
    """A decoder of gated layers and attention with shared key-value heads, whose biases are on all four projections."""
    fields = sizes(config, tied=tied) | activation(config)
    fields |= heads(config, fields, kv_heads=kv_heads, head_dim=head_dim)
    return fields | all_biases(config)


def routed_experts(  # noqa: PLR0913 - one argument for each number
    config: Config, key: str, experts: int, chosen: int, *, width: int | None = None, usual: int = 0
) -> Fields:
    """Routed experts: how many, by a key of the family's own, those of a token, and their width where it has no key."""
    return {
        "num_experts": config.integer(key, experts),
        "num_experts_per_tok": config.integer("num_experts_per_tok", chosen),
        "moe_intermediate_size": config.integer("moe_intermediate_size", usual) if width is None else width,
    }


def all_biases(config: Config, *, default: bool = False) -> Fields:
    """`attention_bias` on q, k, v and the output projection, `mlp_bias` on the feed-forward products."""
    biased = config.flag("attention_bias", default=default)
    return {
        "attention_bias": biased,
        "attention_output_bias": biased,
        "mlp_bias": config.flag("mlp_bias", default=False),
    }


def attention_layers(config: Config, layers: int, default: Sequence[str]) -> list[str]:
    """The words of `layer_types`, or those of the class; as many as layers."""
    words = config.texts("layer_types") or list(default)
    if len(words) < layers:
        raise InputError(f"{config.where}: layer_types: {len(words)} words for {layers} layers")
    return words[:layers]


def kinds(
    config: Config,
    mixers: Sequence[Mixer],
    networks: Sequence[FeedForward] = (),
    *,
    usual: Mixer = "grouped_query",
) -> Fields:
    """The fields of a sequence of kinds in their shortest form: nothing where all mixers are the usual one."""
    fields: Fields = {} if set(mixers) <= {usual} else {"mixers": period(mixers)}
    if "sliding" in mixers:
        fields["sliding_window"] = config.integer("sliding_window")
    leading = next((i for i, word in enumerate(networks) if word == "experts"), len(networks))
    if "none" in networks or set(networks[leading:]) - {"experts"}:
        return fields | {"feed_forwards": period(networks)}
    return fields | ({"first_k_dense_replace": leading} if "experts" in networks else {})


def period(words: Sequence[WordT]) -> tuple[WordT, ...]:
    """The shortest start that the sequence repeats."""
    return tuple(
        next(
            words[:length]
            for length in range(1, len(words) + 1)
            if all(word == words[i % length] for i, word in enumerate(words))
        )
    )


def sliding_layers(config: Config, layers: int, default: Sequence[str]) -> list[Mixer]:
    """Mixers of a model whose layers attend to all tokens or to a window."""
    known: dict[str, Mixer] = {
        "full_attention": "grouped_query",
        "attention": "grouped_query",
        "sliding_attention": "sliding",
    }
    return translated(config, "layer_types", attention_layers(config, layers, default), known)


def translated(config: Config, key: str, words: Sequence[str], known: Mapping[str, WordT]) -> list[WordT]:
    """Words of a configuration in the spec's terms; UnsupportedError for one that has none."""
    for word in words:
        if word not in known:
            raise config.unsupported(key, f"'{word[:40]}' cannot be priced; known: {', '.join(known)}")
    return [known[word] for word in words]


def every_layer_slides(config: Config, layers: int, window: int | None = None) -> Fields:
    """A family whose layers all attend to `sliding_window` tokens where the key is not null."""
    bound = config.optional("sliding_window") if config.has("sliding_window") else window
    return {} if bound is None else {"mixers": ("sliding",) * min(layers, 1), "sliding_window": bound}


def windowed_from(config: Config, layers: int) -> Fields:
    """Qwen's rule: with `use_sliding_window` the layers from `max_window_layers` on have the window."""
    first = config.integer("max_window_layers", 28) if config.flag("use_sliding_window", default=False) else layers
    if not config.has("sliding_window") or config.optional("sliding_window") is None:
        first = layers
    default = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    return kinds(config, sliding_layers(config, layers, default))
