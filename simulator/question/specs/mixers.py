"""Mixers: how a layer mixes tokens, with the traits of each kind that its operations do not tell.

A layer of Llama has grouped-query attention, with key-value heads that tensor parallelism divides. One of DeepSeek-V2
has latent attention, which has none. One of Mamba-2 attends to no token: a scan hands a state on.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

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
