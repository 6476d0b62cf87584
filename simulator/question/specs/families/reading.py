"""Reader of Hugging Face configurations: the model of a `config.json`, by the row of its `model_type`.

The file is parsed as JSON; nothing is fetched and no code that it names is run. A key that is absent means what the
configuration class of the `transformers` library makes of its absence. What cannot be priced is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.question.specs.configuration import Config
from simulator.question.specs.documents import listed, read_json, read_yaml, validated, wrong_values
from simulator.question.specs.model import (
    EXPERT_FIELDS,
    FAMILIES_FILE,
    NEEDS,
    Activation,
    FeedForward,
    LayerKind,
    Mixer,
    ModelSpec,
    architectures,
)
from simulator.question.specs.names import CONFIG_FILE
from simulator.question.specs.vision import encoder_of
from simulator.records import Record, field

_REFUSED: Final = "_refused"  # entry of refused families, each with the nearest priced one and its difference
_OF_A_FIELD: Final = ("read", "set")
"""Sections keyed by a field of a model spec; a field in one replaces that in the other."""


class Family(Record):
    """Reading of one family's configuration; the sections are those that the head of families.yaml explains."""

    rename: Mapping[str, str] = field(default_factory=dict)
    assume: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    read: Mapping[str, str | int] = field(default_factory=dict)
    set: Mapping[str, Any] = field(default_factory=dict)
    when: tuple[Mapping[str, Any], ...] = ()
    layers: Mapping[str, Any] = field(default_factory=dict)


@lru_cache(maxsize=128)
def family(name: str) -> Family:
    """Return a family merged with the families that its `like` names."""
    sections: dict[str, Any] = {}
    for entry in _lineage(name):
        for section in _OF_A_FIELD:
            other = sections.get(_OF_A_FIELD[section == "read"], {})
            for key in entry.get(section, {}):
                other.pop(key, None)
        for section, values in entry.items():
            if section == "when":
                sections["when"] = (*sections.get("when", ()), *values)
            elif section != "like":
                sections[section] = {**sections.get(section, {}), **values}
    return Family(**sections)


def refusal(name: str) -> str:
    """Return why a family is not priced, in one line: the nearest priced one, and the difference where known."""
    message = f"'{name[:60]}' cannot be priced"
    refused = _table()[_REFUSED]
    if name in refused:
        nearest, differs = refused[name]
        return f"{message}; the nearest that is: {nearest}; it differs by {differs}"
    known = architectures()
    return f"{message}{did_you_mean(name, known) or ';'} known: {', '.join(known)}"


def _lineage(name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the entries that make up a family, those of `like` first."""
    entry = _table()[name]
    like = entry.get("like", [])
    for parent in [like] if isinstance(like, str) else like:
        yield from _lineage(parent)
    yield entry


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(FAMILIES_FILE)
    return table


WordT = TypeVar("WordT")
Fields = dict[str, Any]
"""Fields of a model spec by name."""
How = Mapping[str, Any]
"""Entry `layers` of a family in the table."""


def sequence(config: Config, fields: Fields, how: How) -> Fields:
    """Return the fields of a sequence of layers in their shortest form; nothing where all layers are alike."""
    if "mixers" not in how and "networks" not in how:
        return {}
    mixed: Fields = MIXERS[how["mixers"]](config, fields, how) if "mixers" in how else {}
    layers = int(({**fields, **mixed})["num_hidden_layers"])
    if "networks" in how:
        mixed |= NETWORKS[how["networks"]](config, fields | mixed, how)
    mixers, networks = mixed.pop("mixers", ()), mixed.pop("feed_forwards", ())
    if widths := mixed.pop("intermediate_sizes", ()):
        mixed["intermediate_sizes"] = period(widths)
    usual = "latent" if fields.get("attention") == "mla" else "grouped_query"
    if not set(mixers) <= {usual}:
        mixed["mixers"] = period(mixers)
    if "sliding" in mixers:
        mixed["sliding_window"] = fields.get("sliding_window") or config.integer("sliding_window")
    leading = next((i for i, word in enumerate(networks) if word == "experts"), layers)
    if set(networks[leading:]) - {"experts"} or set(networks[:leading]) - {"gated"}:
        return mixed | {"feed_forwards": period(networks)}
    return mixed | ({"first_k_dense_replace": leading} if "experts" in networks else {})


def period(words: Sequence[WordT]) -> tuple[WordT, ...]:
    """Return the shortest start that the sequence repeats."""
    return tuple(
        next(
            words[:length]
            for length in range(1, len(words) + 1)
            if all(word == words[i % length] for i, word in enumerate(words))
        )
    )


def translated(config: Config, key: str, words: Sequence[str], known: Mapping[str, WordT]) -> list[WordT]:
    """Return words of a configuration in the spec's terms; UnsupportedError for one that has none."""
    for word in words:
        if word not in known:
            raise config.unsupported(key, f"'{word[:40]}' cannot be priced; known: {', '.join(known)}")
    return [known[word] for word in words]


def _words(config: Config, key: str, layers: int, default: Sequence[str]) -> list[str]:
    """Return the words under a key, else the class's default, one per layer."""
    words = config.texts(key) or list(default)
    if len(words) < layers:
        raise InputError(f"{config.where}: {key}: {len(words)} words for {layers} layers")
    return words[:layers]


def _every_window(config: Config, fields: Fields, _how: How) -> Fields:
    """Read windows in every layer, unless `sliding_window` is absent or null."""
    window = config.optional("sliding_window")
    return {} if window is None else {"mixers": ["sliding"] * fields["num_hidden_layers"]}


def _step_rank(config: Config, fields: Fields, _how: How) -> Fields:
    """Check that the steps of Mamba-1 have the rank of all published ones. Raises UnsupportedError."""
    usual = -(-fields["hidden_size"] // 16)
    if config.value("time_step_rank", usual) not in ("auto", usual):
        raise config.unsupported("time_step_rank", f"only {usual} can be priced")
    return {}


def _layer_types(config: Config, fields: Fields, how: How) -> Fields:
    """Read the words of `layer_types`, else every n-th layer with full attention and the others with the usual kind."""
    layers, usual = fields["num_hidden_layers"], how["usual"]
    if usual == "sliding_attention" and "full_every" not in how and config.optional("sliding_window") is None:
        usual = "full_attention"
    stated = how.get("full_every", layers + 1)  # a number of layers, or the key of one
    every = config.layers(stated) if isinstance(stated, str) else int(stated)
    default = [usual if (i + 1) % every else "full_attention" for i in range(layers)]
    if "listed" in how:
        listed = config.integers(how["listed"])
        default = ["full_attention" if is_full else usual for is_full in listed] or default
    known: dict[str, Mixer] = {"full_attention": "grouped_query", "attention": "grouped_query"}
    linear = how.get("linear")
    known |= {"linear_attention": linear, "mamba": linear} if linear else {"sliding_attention": "sliding"}
    return {"mixers": translated(config, "layer_types", _words(config, "layer_types", layers, default), known)}


def _windows_behind(config: Config, fields: Fields, _how: How) -> Fields:
    """Qwen's rule: with `use_sliding_window` the layers from `max_window_layers` on have the window."""
    layers = fields["num_hidden_layers"]
    windowed = config.flag("use_sliding_window", default=False) and config.optional("sliding_window") is not None
    first = config.integer("max_window_layers", 28) if windowed else layers
    default = ["full_attention" if i < first else "sliding_attention" for i in range(layers)]
    known: dict[str, Mixer] = {"full_attention": "grouped_query", "sliding_attention": "sliding"}
    return {"mixers": translated(config, "layer_types", _words(config, "layer_types", layers, default), known)}


def _chosen(config: Config, fields: Fields, how: How) -> Fields:
    """Read one mixer where a list has a number other than 0, another where it has 0."""
    choice, layers = how["chosen"], fields["num_hidden_layers"]
    listed = config.nested(choice["key"]).integers(choice["key"].rpartition(".")[2])
    listed = listed or [_ABSENT[choice["absent"]](i) for i in range(layers)]
    return {"mixers": [choice["nonzero"] if flag else choice["zero"] for flag in listed[:layers]]}


_ABSENT: Final[Mapping[str, Callable[[int], int]]] = {
    "none": lambda _: 0,
    "all": lambda _: 1,
    "all_but_first": lambda i: int(i > 0),
    "all_but_first_and_sixth": lambda i: int(i > 0 and (i + 1) % 6 != 0),
}  # number of a layer where the list is absent


def _rotated_windows(config: Config, fields: Fields, _how: How) -> Fields:
    """Llama 4's rule: windows in the layers that rotate, all but every n-th."""
    layers, every = fields["num_hidden_layers"], config.layers("no_rope_layer_interval", 4)
    rotated = config.integers("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
    bounded = config.optional("sliding_window") is not None
    return {"mixers": ["sliding" if is_rotated and bounded else "grouped_query" for is_rotated in rotated[:layers]]}


def _indexer_types(config: Config, fields: Fields, _how: How) -> Fields:
    """GLM's rule: an indexer of its own in all layers before an offset, and in every n-th from there."""
    layers = fields["num_hidden_layers"]
    every, offset = max(config.integer("index_topk_freq", 1), 1), config.integer("index_skip_topk_offset", 2)
    default = ["shared" if max(i - offset + 1, 0) % every else "full" for i in range(layers)]
    known: dict[str, Mixer] = {"full": "sparse_latent", "shared": "shared_sparse_latent"}
    return {"mixers": translated(config, "indexer_types", _words(config, "indexer_types", layers, default), known)}


_BLOCKS: Final[Mapping[str, LayerKind]] = {
    "M": LayerKind("mamba", "none"),
    "*": LayerKind("grouped_query", "none"),
    "-": LayerKind("none", "plain"),
    "E": LayerKind("none", "experts"),
}
_BLOCK_WORDS: Final[Mapping[str, LayerKind]] = {
    "mamba": _BLOCKS["M"],
    "linear_attention": _BLOCKS["M"],
    "attention": _BLOCKS["*"],
    "full_attention": _BLOCKS["*"],
    "mlp": _BLOCKS["-"],
    "moe": _BLOCKS["E"],
}


def _blocks_of_one_part(config: Config, fields: Fields, _how: How) -> Fields:
    """Nemotron-H's rule: layers of one part each, a state space, attention, a network or experts."""
    words = config.texts("layers_block_type") or config.texts("layer_types")
    pattern = config.text("hybrid_override_pattern", "")
    if words:
        blocks = translated(config, "layers_block_type", words, _BLOCK_WORDS)
    else:
        blocks = translated(config, "hybrid_override_pattern", list(pattern), _BLOCKS)
    if not blocks:
        raise InputError(f"{config.where}: hybrid_override_pattern: is missing")
    if fields.get("num_nextn_predict_layers") and any(kind.feed_forward == "experts" for kind in blocks):
        predicted = config.texts("mtp_layers_block_type") or list(config.text("mtp_hybrid_override_pattern", "*E"))
        if [_BLOCK_WORDS.get(word) or _BLOCKS.get(word) for word in predicted] != [_BLOCKS["*"], _BLOCKS["E"]]:
            raise config.unsupported("mtp_hybrid_override_pattern", "only attention and experts can be priced")
    # Mixers and networks must repeat with one common period.
    both = period(blocks)
    repeated = [both[i % len(both)] for i in range(len(blocks))]
    return {
        "num_hidden_layers": len(blocks),
        "mixers": [kind.mixer for kind in repeated],
        "feed_forwards": [kind.feed_forward for kind in repeated],
    }


_RATIOS: Final[Mapping[int, Mixer]] = {0: "window_shared", 4: "compressed_sparse", 128: "heavily_compressed"}


def _compressed(config: Config, fields: Fields, _how: How) -> Fields:
    """DeepSeek-V4's rule: `layer_types`, else the tokens for each compressed key of every layer, 0 for none.

    Where both are absent: two heavily compressed layers, then heavily compressed and sparse ones in turn.
    """
    layers = fields["num_hidden_layers"]
    if listed := config.integers("compress_ratios"):
        known = {fields["compression"]: _RATIOS[4], fields["heavy_compression"]: _RATIOS[128], 0: _RATIOS[0]}
        unknown = next((ratio for ratio in listed[:layers] if ratio not in known), None)
        if unknown is not None:
            raise config.unsupported("compress_ratios", f"{unknown} cannot be priced; known: {sorted(known)}")
        return {"mixers": [known[ratio] for ratio in listed[:layers]]}
    words: dict[str, Mixer] = {
        "sliding_attention": _RATIOS[0],
        "compressed_sparse_attention": _RATIOS[4],
        "heavily_compressed_attention": _RATIOS[128],
    }
    sparse, heavy = "compressed_sparse_attention", "heavily_compressed_attention"
    default = [sparse if i > 2 and i % 2 else heavy for i in range(layers)]
    return {"mixers": translated(config, "layer_types", _words(config, "layer_types", layers, default), words)}


def _gemma4(config: Config, fields: Fields, _how: How) -> Fields:
    """Gemma 4's rule: five layers with windows, one without; the last ones reuse keys and values.

    Those that do may have networks of twice the width; with `enable_moe_block` experts stand beside every network.
    """
    layers, reusing = fields["num_hidden_layers"], config.integer("num_kv_shared_layers", 0)
    default = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)]
    words = _words(config, "layer_types", layers, default)
    words[-1] = "full_attention"
    known: dict[str, Mixer] = {"full_attention": "grouped_query", "sliding_attention": "sliding"}
    again: dict[str, Mixer] = {"full_attention": "reused_grouped_query", "sliding_attention": "reused_sliding"}
    own = layers - reusing
    mixers = translated(config, "layer_types", words[:own], known)
    mixers += translated(config, "layer_types", words[own:], again)
    read: Fields = {"mixers": mixers}
    if config.flag("enable_moe_block", default=False):
        read["feed_forwards"] = ["experts_beside"] * layers
    if reusing and config.flag("use_double_wide_mlp", default=False):
        width = fields["intermediate_size"]
        read["intermediate_sizes"] = [width] * own + [2 * width] * reusing
    return read


def _kimi(config: Config, fields: Fields, _how: How) -> Fields:
    """Kimi-Linear's rule: layers by their number from 1 in two lists, else `layer_types`, else every fourth latent."""
    layers, linear = fields["num_hidden_layers"], config.section("linear_attn_config")
    full = set(linear.integers("full_attn_layers"))
    listed = full or set(linear.integers("kda_layers"))
    default = ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers)]
    default = ["full_attention" if i + 1 in full else "linear_attention" for i in range(layers)] if listed else default
    known: dict[str, Mixer] = {"full_attention": "latent", "linear_attention": "kimi_delta"}
    return {"mixers": translated(config, "layer_types", _words(config, "layer_types", layers, default), known)}


def _pruned_blocks(config: Config, fields: Fields, _how: How) -> Fields:
    """Nemotron's pruned networks (Puzzle): the parts of every layer, and the width of its network.

    megatron-core 0.16, transformer/heterogeneous/heterogeneous_config.py: widths are multiples of 256. A layer with
    neither part does nothing and is left out.
    """
    hidden, queries = fields["hidden_size"], fields["num_attention_heads"]
    mixers: list[Mixer] = []
    networks: list[FeedForward] = []
    widths: list[int] = []
    shared: set[int] = set()
    for number, block in enumerate(config.sections("block_configs")):
        attention, network = block.section("attention"), block.section("ffn")
        mixer: Mixer = "linear" if attention.flag("replace_with_linear", default=False) else "grouped_query"
        follows: FeedForward = "linear" if network.flag("replace_with_linear", default=False) else "gated"
        mixer = "none" if attention.flag("no_op", default=False) else mixer
        follows = "none" if network.flag("no_op", default=False) else follows
        if mixer == "grouped_query":
            shared.add(queries // max(attention.integer("n_heads_in_group"), 1))
        for part, key in ((attention, "sparsify"), (attention, "window_length"), (network, "sparsify")):
            if part.value(key):
                raise part.unsupported(key, f"block {number}: only null can be priced")
        if (mixer, follows) != ("none", "none"):
            mixers.append(mixer)
            networks.append(follows)
            widths.append(-(-int(2 * network.real("ffn_mult") * hidden / 3) // 256) * 256 if follows == "gated" else 0)
    if len(shared) != 1:
        raise config.unsupported("block_configs", f"{len(shared)} numbers of key-value heads: only one can be priced")
    return {
        "num_hidden_layers": len(mixers),
        "num_key_value_heads": shared.pop(),
        "intermediate_size": max(widths),
        "mixers": mixers,
        "feed_forwards": networks,
        "intermediate_sizes": widths,
    }


def _behind_hashed(config: Config, fields: Fields, _how: How) -> Fields:
    """DeepSeek-V4's rule: leading layers whose experts a table chooses, then those that a router does."""
    layers, hashed = fields["num_hidden_layers"], config.integer("num_hash_layers", 3)
    default = ["hash_moe" if i < hashed else "moe" for i in range(layers)]
    known: dict[str, FeedForward] = {"hash_moe": "hashed_experts", "moe": "experts"}
    words = _words(config, "mlp_layer_types", layers, default)
    return {"feed_forwards": translated(config, "mlp_layer_types", words, known)}


def _routed(layers: int, routed: Callable[[int], object]) -> Fields:
    networks: list[FeedForward] = ["experts" if routed(i) else "gated" for i in range(layers)]
    return {"feed_forwards": networks}


def _by_step(config: Config, fields: Fields, _how: How) -> Fields:
    """Qwen's rule: experts in every `decoder_sparse_step`-th layer but those of `mlp_only_layers`."""
    step, dense = config.layers("decoder_sparse_step", 1), set(config.integers("mlp_only_layers"))
    return _routed(fields["num_hidden_layers"], lambda i: i not in dense and (i + 1) % step == 0)


def _experts_chosen(config: Config, fields: Fields, how: How) -> Fields:
    """Read experts where a list has a number other than 0."""
    layers = fields["num_hidden_layers"]
    listed = config.integers(how["routed"]) or [_ABSENT[how.get("absent", "all")](i) for i in range(layers)]
    return _routed(min(layers, len(listed)), lambda i: listed[i])


def _interleaved(config: Config, fields: Fields, _how: How) -> Fields:
    """Llama 4's rule: experts in the layers of `moe_layers`, else in every n-th."""
    layers, step = fields["num_hidden_layers"], config.layers("interleave_moe_layer_step", 1)
    routed = set(config.integers("moe_layers") or range(step - 1, layers, step))
    return _routed(layers, lambda i: i in routed)


def _listed(config: Config, fields: Fields, _how: How) -> Fields:
    """Step's rule: experts in the layers of `moe_layers_enum`, else behind the leading ones."""
    layers, leading = fields["num_hidden_layers"], config.layers("first_k_dense_replace", low=0)
    routed = set(config.numbers_of_text("moe_layers_enum") or range(leading, layers))
    return _routed(layers, lambda i: i in routed)


def _between(config: Config, fields: Fields, _how: How) -> Fields:
    """ERNIE's rule: experts in every n-th layer from a first one to a last one."""
    layers, start = fields["num_hidden_layers"], config.single("moe_layer_start_index", 1)
    every = config.replaced(moe_layer_interval=config.single("moe_layer_interval", 1)).layers("moe_layer_interval")
    end = config.single("moe_layer_end_index", -1)
    last = layers - 1 if end == -1 else end
    return _routed(layers, lambda i: start <= i <= last and (i + 1) % every == 0)


def _mlp_layer_types(config: Config, fields: Fields, _how: How) -> Fields:
    """Read the words of `mlp_layer_types`, else experts behind the leading dense layers."""
    layers = fields["num_hidden_layers"]
    default = ["dense" if i < fields["first_k_dense_replace"] else "sparse" for i in range(layers)]
    known: dict[str, FeedForward] = {"dense": "gated", "sparse": "experts"}
    words = _words(config, "mlp_layer_types", layers, default)
    return {"feed_forwards": translated(config, "mlp_layer_types", words, known)}


LayerRule = Callable[[Config, Fields, How], Fields]
MIXERS: Final[Mapping[str, LayerRule]] = {
    "every_window": _every_window,
    "step_rank": _step_rank,
    "layer_types": _layer_types,
    "windows_behind": _windows_behind,
    "chosen": _chosen,
    "rotated_windows": _rotated_windows,
    "indexer_types": _indexer_types,
    "blocks_of_one_part": _blocks_of_one_part,
    "compressed": _compressed,
    "gemma4": _gemma4,
    "kimi": _kimi,
    "pruned_blocks": _pruned_blocks,
}
"""Rules of mixers by their name in the table; one that describes both parts of a layer gives both."""
NETWORKS: Final[Mapping[str, LayerRule]] = {
    "experts_by_step": _by_step,
    "experts_chosen": _experts_chosen,
    "experts_interleaved": _interleaved,
    "experts_listed": _listed,
    "experts_between": _between,
    "mlp_layer_types": _mlp_layer_types,
    "experts_behind_hashed": _behind_hashed,
}
"""Rules of feed-forward parts by their name in the table."""


_PRICED_AS: Final[Mapping[Activation, str]] = {
    "silu": "silu swish swigluoai situ",
    "gelu": "gelu gelu_pytorch_tanh",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_fast",
    "relu": "relu",
    "squared_relu": "relu2",
}
ACTIVATIONS: Final = {word: activation for activation, words in _PRICED_AS.items() for word in words.split()}
"""Activation names of configurations, with the activation that each is priced as."""


def fields_of(architecture: str, config: Config) -> Fields:
    """Return the fields of a model spec that a configuration of a known family gives.

    Raises InputError for what is missing or of another type, UnsupportedError for what cannot be priced.
    """
    return _Reading(family(architecture), config).fields()


class _Reading:
    """Configuration with its family; fields are read when another field or the result needs them."""

    def __init__(self, entry: Family, config: Config) -> None:
        config = config.renamed(**entry.rename)
        assumed = dict(entry.assume)
        self._read, self._set = dict(entry.read), dict(entry.set)
        for change in entry.when:
            if config.value(change["key"], assumed.get(change["key"])) == change["is"]:
                self._read |= change.get("read", {})
                self._set |= change.get("set", {})
        self._entry, self._config, self._assumed = entry, config, assumed
        self._known: dict[str, Any] = {}

    def fields(self) -> Fields:
        """Return all fields, without those of parts that the model does not have."""
        for key, only in self._entry.only.items():
            priced = self._field(only[1:]) if isinstance(only, str) and only.startswith("=") else only
            if self._config.value(key, priced) not in (priced, None):
                raise self._config.unsupported(key, f"only {str(priced).lower()} can be priced")
        problems = [problem for name in self._read if (problem := self._problem(name))]
        if problems:
            raise InputError(listed(self._config.where, [*problems, *wrong_values(ModelSpec, self._known)]))
        fields = self._known | self._set
        assumed = {key: value for key, value in self._assumed.items() if "." not in key and not _refers(value)}
        fields |= sequence(self._config.assuming(**assumed), fields, self._entry.layers)
        return _without_absent_parts(fields)

    def _problem(self, name: str) -> str:
        """Return the problem with the keys of a field; empty where they can be read."""
        try:
            self._field(name)
        except InputError as error:
            return str(error).removeprefix(f"{self._config.where}: ")
        return ""

    def _field(self, name: str) -> Any:
        if name not in self._known:
            if name in self._set:
                return self._set[name]
            is_flag = isinstance(getattr(ModelSpec, name, None), bool) or name == "tie_word_embeddings"
            text = str(self._read[name])
            if name == "activation":
                value: Any = self._activation(text)
            elif is_flag:
                value = self._flag(text)
            else:
                value = self._number(name, text)
            self._known[name] = value
        return self._known[name]

    def _activation(self, text: str) -> Activation:
        keys = text.split(" or ")
        key = next((key for key in keys if self._config.has(key)), keys[-1])
        word = self._config.text(key, str(self._assumed.get(keys[-1], "")))
        if word not in ACTIVATIONS:
            raise self._config.unsupported(key, f"'{word[:40]}' cannot be priced; known: {', '.join(ACTIVATIONS)}")
        return ACTIVATIONS[word]

    def _flag(self, text: str) -> bool:
        key, _, is_set = text.partition(" is set")
        if is_set or text.endswith(" is set"):
            return self._config.value(key, self._assumed.get(key)) is not None
        return self._config.flag(key, default=bool(self._assumed.get(key, False)))

    def _number(self, name: str, text: str) -> int | None:
        """Return the first alternative that has a value. Raises InputError for a required field without one."""
        for alternative in text.split(" or "):
            parts = [self._product(part) for part in alternative.split(" + ")]
            value = None if None in parts else sum(part for part in parts if part is not None)
            if value is not None:
                return value
        if name == "sliding_window" or not hasattr(ModelSpec, name):
            raise InputError(f"{self._config.where}: {text.partition(' ')[0]}: is missing")
        default = getattr(ModelSpec, name)
        return None if default is None else int(default)

    def _product(self, text: str) -> int | None:
        if " / " in text:
            return self._share(*text.split(" / "))
        result = 1
        for term in text.split(" * "):
            value = self._term(term)
            if value is None:
                return None
            result *= value
        return result

    def _share(self, whole: str, parts: str) -> int:
        """Return one field divided evenly by another."""
        dividend, divisor = self._term(whole), self._term(parts)
        if not dividend or not divisor or dividend % divisor:
            name, divided = parts.lstrip("="), whole.lstrip("=")
            raise InputError(
                f"{self._config.where}: {name}: {divisor} must divide {divided} {dividend} without head_dim"
            )
        return dividend // divisor

    def _term(self, text: str) -> int | None:
        if text.isdecimal():
            return int(text)
        if _refers(text):
            value: int | None = self._field(text[1:])
            return value
        if text == "num_hidden_layers" and self._config.present(text):
            return self._config.layers(text)
        assumed: Any = self._assumed.get(text)
        if _refers(assumed) and not self._config.has(text):
            return self._term(assumed)
        return self._config.number(text, assumed)


_SLIDING: Final = {
    "sliding_attention_heads": "num_attention_heads",
    "sliding_key_value_heads": "num_key_value_heads",
    "sliding_head_dim": "head_dim",
    "sliding_value_head_dim": "v_head_dim",
}  # fields of sliding layers with those of other layers; equal ones are left out


def _refers(value: object) -> bool:
    """Tell whether a value stands for a field of the spec."""
    return isinstance(value, str) and value.startswith("=")


def _without_absent_parts(fields: Fields) -> Fields:
    """Return the fields without those of experts, norms and mixers that the model lacks."""
    absent: set[str] = set()
    networks = fields.get("feed_forwards") or ()
    routed = any("experts" in word for word in networks) if networks else fields.get("num_experts")
    if not fields.get("num_experts") or not routed:
        absent |= EXPERT_FIELDS
    if fields.get("n_group", 0) is not None and fields.get("n_group", 0) <= 1:
        absent |= {"n_group", "topk_group"}
    if not fields.get("layer_embedding_size"):
        absent |= {"layer_embedding_rows"}
    if not fields.get("qk_norm"):
        absent |= {"qk_norm_span"}
    if "first_k_dense_replace" in fields and networks:
        absent |= {"first_k_dense_replace"}
    used = set(fields.get("mixers") or ())
    absent |= {name for mixers, name in NEEDS if not used & mixers}
    for name, usual in _SLIDING.items():
        own = fields.get(usual) or (fields.get("head_dim") if usual == "v_head_dim" else None)
        absent |= {name} if "sliding" not in used or fields.get(name) == own else set()
    absent |= set() if "sliding" in used else {"window_chunked"}
    return {name: value for name, value in fields.items() if name not in absent}


def read_config(file: Path, name: str = "") -> ModelSpec:
    """Return the model a Hugging Face configuration describes, named as its folder or file. Raises like `fields_of`."""
    # State-space configurations bound their time steps by infinity, which nothing here reads.
    values = read_json(file, infinite=True)
    if not isinstance(values, dict):
        raise InputError(f"{file}: must hold a mapping of keys to values")
    beside = file.with_name("preprocessor_config.json")
    pixels = read_json(beside, infinite=True) if "vision_config" in values and beside.is_file() else {}
    # The folder of a `config.json`, the stem of any other file.
    stem = file.absolute().parent.name if file.name == CONFIG_FILE else file.stem
    name = name or re.sub(r"[^A-Za-z0-9._+-]+", "-", stem).lstrip("._+-")[:100] or "config"
    return model_of_config(values, str(file), name, pixels if isinstance(pixels, dict) else {})


def model_of_config(
    values: Mapping[str, Any], where: str, name: str, pixels: Mapping[str, Any] = MappingProxyType({})
) -> ModelSpec:
    """Return the model that a Hugging Face configuration describes; `pixels` are the keys of its preprocessor's."""
    whole = Config(where, dict(values))
    if not whole.has("model_type"):
        raise InputError(f"{where}: model_type: is missing; this is not a Hugging Face model configuration")
    config = _text_part(whole)
    architecture = config.text("model_type", "")
    if architecture not in architectures():
        raise UnsupportedError(f"{config.where}: model_type: {refusal(architecture)}")
    fields: dict[str, Any] = {"name": name, "architecture": architecture, "note": _note(whole, config)}
    if (encoder := encoder_of(values, pixels, where)) is not None:
        fields["encoder"] = encoder
    return validated(config.where, ModelSpec, fields | fields_of(architecture, config))


def _text_part(config: Config) -> Config:
    """Return the language model's configuration inside a multimodal one; return any other unchanged."""
    if not config.present("text_config"):
        return config
    text = config.section("text_config")
    if not config.present("tie_word_embeddings"):
        return text
    tied = {"tie_word_embeddings": config.flag("tie_word_embeddings", default=False)}
    # transformers 5 ties by the outer key (modeling_utils.py, `tie_weights`), older ones by the text's.
    newer = config.text("transformers_version", "").startswith("5.")
    return text.replaced(**tied) if newer else text.assuming(**tied)


def _note(whole: Config, config: Config) -> str:
    """Return a note on the settings that are left out."""
    notes = []
    if whole is not config:
        kind = whole.text("model_type", "")
        notes.append(f"the text part of a '{kind}' configuration: what reads images, sound or video is not priced.")
    if whole.has("quantization_config") or config.has("quantization_config"):
        notes.append("quantization_config is not applied: the precision asked for is priced.")
    return " ".join(notes)
