"""What a refusal says about a family without a reader: the nearest one that has, and what differs."""

from collections.abc import Iterable, Mapping
from typing import Final

from simulator.errors import did_you_mean

_NEAREST: Final[Mapping[str, tuple[str, str]]] = {
    "deepseek_v4": ("deepseek_v32", "attention over compressed keys and four residual streams (hyper-connections)"),
    "deepseek_ref": ("deepseek_v32", "attention over compressed keys and four residual streams (hyper-connections)"),
    "falcon": ("gpt_neox", "key-value heads inside a fused projection and one norm for both branches"),
    "falcon_h1": ("nemotron_h", "attention and a state space side by side in one layer"),
    "gptj": ("gpt_neox", "one norm for both branches and a bias on the output layer"),
    "phi": ("gpt_neox", "one norm for both branches and a bias on the output layer"),
    "cohere": ("llama", "one LayerNorm for attention and feed-forward network side by side"),
    "cohere2": ("llama", "one LayerNorm for attention and feed-forward network side by side"),
    "granite": ("llama", "multipliers of embeddings, attention, residuals and logits"),
    "granitemoehybrid": ("nemotron_h", "a state space and experts in the same layer"),
    "jamba": ("nemotron_h", "layers of Mamba-1"),
    "bamba": ("nemotron_h", "a gated network behind every state space"),
    "zamba2": ("nemotron_h", "attention layers that share their weights"),
    "mamba": ("nemotron_h", "the state space of Mamba-1"),
    "mamba2": ("nemotron_h", "no attention at all"),
    "rwkv": ("qwen3_next", "another recurrence than the gated delta rule"),
    "kimi_linear": ("qwen3_next", "a decay per channel in the delta rule, beside latent attention"),
    "gemma3n_text": ("gemma3_text", "alternating updates and embeddings per layer"),
    "gemma4_text": ("gemma3_text", "heads of another size in global layers and embeddings per layer"),
    "longcat_flash": ("deepseek_v3", "two attention blocks a layer and experts that do nothing"),
    "dbrx": ("mixtral", "LayerNorm without bias and a clipped fused projection"),
    "t5": ("gpt2", "an encoder beside the decoder"),
}
"""Family to the nearest one that is priced, and what it has otherwise."""


def unpriced(architecture: str, known: Iterable[str]) -> str:
    """Why a family is not priced, in one line."""
    said = f"'{architecture[:60]}' cannot be priced"
    if architecture in _NEAREST:
        nearest, differs = _NEAREST[architecture]
        return f"{said}; the nearest that is: {nearest}; it differs by {differs}"
    names = tuple(known)
    return f"{said}{did_you_mean(architecture, names) or ';'} known: {', '.join(names)}"
