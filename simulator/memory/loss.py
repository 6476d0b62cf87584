"""The output layer and the loss: logits are the largest single tensors of most steps."""

from __future__ import annotations

import numpy as np

from simulator.memory.activations import ELEMENT, FP32, norm_tensors, tokens_per_device, total
from simulator.scenario.block import Array, LayoutBlock
from simulator.scenario.scenario import Scenario


def loss_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """Bytes at the loss on the last rank for one micro batch, `c T V / t`, shape (n,).

    The 16-bit logits, fp32 copies and the gradient (`loss_bytes_per_logit`); an unfused loss has further passing
    copies. Chunking holds one chunk's logits, the hidden gradient and an fp32 gradient of the output weight.
    """
    model, profile = scenario.model, scenario.framework
    tokens = tokens_per_device(scenario, block)
    vocabulary = model.vocab_size / block.tensor_parallel
    extra = 0.0 if profile.fused_cross_entropy else scenario.coefficients.memory.unfused_loss_bytes_per_logit
    per_logit = float(profile.loss_bytes_per_logit) + extra
    if not profile.cross_entropy_chunk_tokens:
        return per_logit * tokens * vocabulary
    chunk = np.minimum(tokens, float(profile.cross_entropy_chunk_tokens))
    gradients = ELEMENT * tokens * model.hidden_size + FP32 * vocabulary * model.hidden_size
    return np.minimum(per_logit * chunk * vocabulary + gradients, per_logit * tokens * vocabulary)


def head_input_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """What the final norm and the output layer keep, shape (n,). The output layer stays 16 bit under fp8."""
    kept = norm_tensors(scenario, block, "final_norm")
    if scenario.precision == "fp8":
        kept["final_norm_output"] = kept["final_norm_output"] * ELEMENT
    return total(kept)
