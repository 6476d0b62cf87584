"""What layers are made of by Megatron's and MindSpeed's flags: network, norms, biases, positions, experts' places."""

from __future__ import annotations

import re
from typing import Any, Final

from simulator.frameworks.arguments import Arguments as Given

_GATES: Final = {"swiglu": "silu", "geglu": "gelu", "quick-geglu": "gelu", "gelu-tanh": "gelu"}
_PLAIN: Final = {"squared-relu": "squared_relu", "openai-gelu": "gelu"}
_UNBIASED: Final = ("disable-bias-linear", "no-add-bias-linear")
_ROTARY: Final = ("rope", "rotary", "mrope", "yarn", "deepseek4")
"""Positions that turn queries and keys, by Megatron-LM's, Pai's and MindSpeed's names."""
_ROTATED: Final = (
    "use-rotary-position-embeddings",
    "use-llama2-rotary-position-embeddings",
    "use-mistral-rotary-position-embeddings",
)
_TERM: Final = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,4}))?", re.ASCII)
_MOST_LAYERS: Final = 100_000


def is_gated(given: Given) -> bool:
    """Whether the feed-forward network has a gate; `--fc-type up_down` of MindSpeed-LLM c77308a takes it away."""
    if given.text("intermediate_size", "fc-type") == "up_down":
        return False
    return any(given.switch("intermediate_size", name) for name in _GATES)


def parts_of(given: Given, longest: int | None) -> dict[str, Any]:
    """The fields of a layer's parts; `longest` are the positions that a learned table has."""
    words = {name: word for names in (_GATES, _PLAIN) for name, word in names.items()}
    activation = next((word for name, word in words.items() if given.switch("activation", name)), "gelu")
    biased = not any(given.switch("mlp_bias", name) for name in _UNBIASED)
    plain = biased or given.switch("attention_output_bias", "add-dense-bias")
    return {
        "gated": is_gated(given),
        "activation": activation,
        "norm_placement": "around" if given.switch("norm_placement", "post-norm") else "before",
        "norm": "rms_norm" if (given.text("norm", "normalization") or "").lower() == "rmsnorm" else "layer_norm",
        "attention_bias": given.switch("attention_bias", "add-qkv-bias") or biased,
        "attention_output_bias": plain,
        "mlp_bias": biased,
        "embedding_norm": given.switch("embedding_norm", "embed-layernorm"),
        **_positions(given, longest),
    }


def _positions(given: Given, longest: int | None) -> dict[str, Any]:
    """Rotary positions, a learned table of as many rows as positions, or neither."""
    kind = (given.text("rotary", "position-embedding-type") or "").lower()
    rotary = kind in _ROTARY or any(given.switch("rotary", name) for name in _ROTATED)
    learned = not rotary and kind in ("", "learned_absolute", "absolute") and not given.has("no-position-embedding")
    return {"rotary": rotary, "learned_positions": (longest or 0) if learned else 0}


def places_of_experts(given: Given, layers: int | None) -> dict[str, Any]:
    """Which layers have experts: MindSpeed's count of dense ones, and every how manieth, or a list, of the others."""
    leading = max(given.integer("first_k_dense_replace", "first-k-dense-replace", low=-1) or 0, 0)
    text = (given.text("first_k_dense_replace", "moe-layer-freq") or "1").replace(" ", "").strip("\"'")
    if text in ("1", "-1"):
        return {"first_k_dense_replace": leading}
    step = int(text) if re.fullmatch(r"[0-9]{1,4}", text, re.ASCII) and int(text) else 0
    digits = "".join("01"[i % step == 0 and i >= leading] for i in range(layers or 0)) if step else written_out(text)
    if "1" not in digits or (layers is not None and len(digits) != layers):
        said = f"--moe-layer-freq {text[:40]}: no list of {layers or 'all'} layers of which some have experts"
        given.not_modelled(said, "moe-layer-freq")
        return {"first_k_dense_replace": 0}
    first = digits.find("1")
    if "0" not in digits[first:]:
        return {"first_k_dense_replace": first}
    plain = "gated" if is_gated(given) else "plain"
    return {"feed_forwards": tuple("experts" if digit == "1" else plain for digit in digits)}


def written_out(text: str) -> str:
    """`([0]*1+[1,1]*13)` as one digit per layer; empty where it is no such list."""
    found = ""
    if text.startswith("(") and text.endswith(")") and text.count("(") == text.count(")") == 1:
        text = text[1:-1]
    for term in text.split("+"):
        match = _TERM.fullmatch(term)
        if match is None or len(match[1]) * int(match[2] or 1) + len(found) > _MOST_LAYERS:
            return ""
        found += match[1].replace(",", "") * int(match[2] or 1)
    return found
