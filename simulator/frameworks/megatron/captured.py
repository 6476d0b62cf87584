"""What Megatron's words say of CUDA graphs, and of experts' buffers of fixed sizes in them. Prices nothing."""

from __future__ import annotations

import re
from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.take import Targets

_WHOLE: Final = "full_iteration"
_ATTENTION: Final = frozenset(("attn", "mamba"))
_ROUTER: Final = frozenset(("moe_router", "moe_preprocess"))
_NETWORKS: Final = frozenset(("mlp", "moe"))
_IMPLEMENTATIONS: Final = ("local", "transformer_engine", _WHOLE)
_USUAL_STASH: Final = "1.1"
"""Of Megatron's own arguments (core_v0.18.2, megatron/training/arguments.py)."""


def set_captured(arguments: Arguments, targets: Targets) -> None:
    """Set what graphs capture, and how much larger than the mean the experts' buffers are."""
    names = ("cuda-graph-scope", "cuda-graph-modules")
    texts = (arguments.text("cuda_graphs", name) or "" for name in names)
    scope = {word.rpartition(".")[2] for text in texts for word in re.findall(r"[\w.]+", text)}
    words = frozenset(scope - {"full", "none", "null", "layer"})
    kind = arguments.text("cuda_graphs", "cuda-graph-impl") or ""
    if arguments.any_switch("cuda_graphs", "enable-cuda-graph", "external-cuda-graph"):
        kind = kind if kind in _IMPLEMENTATIONS else "local"
    # Where no implementation is chosen, a scope captures nothing (megatron/training/training.py, core_v0.15.3).
    if kind == _WHOLE or (kind == "local" and _WHOLE in words):
        targets["option.cuda_graphs"] = _WHOLE
    elif kind in _IMPLEMENTATIONS:
        targets["option.cuda_graphs"] = _captured(words)
    capacity = arguments.share("expert_capacity", "moe-expert-rank-capacity-factor", most=64.0)
    if capacity is not None:
        targets["option.expert_capacity"] = str(max(float(capacity), 1.0))
    if arguments.switch("expert_stash", "moe-paged-stash"):
        factor = arguments.share("expert_stash", "moe-paged-stash-buffer-size-factor-cuda", most=64.0) or _USUAL_STASH
        targets["option.expert_stash"] = str(max(float(factor), 1.0))


def _captured(words: frozenset[str]) -> str:
    """The word for what is captured of a layer; all of it where nothing is named."""
    parts = (words & _ATTENTION, words & _NETWORKS)
    if not words or all(parts):
        return "layers"
    if parts[1]:
        return "network"
    return "attention_router" if words & _ROUTER else "attention"
