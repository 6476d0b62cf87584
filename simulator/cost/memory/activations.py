"""Activations that one decoder layer keeps from its forward pass until its backward pass.

Every kept tensor is named and sized here, per micro batch, layer and device. Notation of the docstrings: T tokens on
the device (micro batch x sequence / context parallel), t tensor parallel, h hidden size, f feed-forward width. Bytes
are those of 16-bit training; in fp32 an element takes four.
"""

from __future__ import annotations

import numpy as np

from simulator.cost.memory.elements import FP32, HALF, element_bytes, narrow_element_bytes
from simulator.question.scenario.block import Array, LayoutBlock
from simulator.question.scenario.layout import RECOMPUTE_MODES
from simulator.question.scenario.scenario import Scenario

SavedTensors = dict[str, Array]
"""Bytes by tensor name; each array has shape (n,)."""


def tokens_per_device(scenario: Scenario, block: LayoutBlock) -> Array:
    """T: tokens of one micro batch that a device sees, `b s / cp`."""
    return block.micro_batch_size * float(scenario.seq_length) / block.context_parallel


def sequence_split(block: LayoutBlock) -> Array:
    """Ranks over which the tensors between tensor-parallel regions are spread: t with sequence parallelism, else 1."""
    return np.where(block.sequence_parallel > 0, block.tensor_parallel, 1.0)


def layer_input_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """The residual stream at a layer boundary, `2 T h`: what full recompute keeps of a layer."""
    split = sequence_split(block)
    return element_bytes(scenario) * tokens_per_device(scenario, block) * scenario.model.hidden_size / split


def norm_tensors(scenario: Scenario, block: LayoutBlock, name: str) -> SavedTensors:
    """One RMSNorm with the linear layer behind it: its input, one fp32 number per token, and its output.

    A fused norm keeps its 16-bit input; one composed of elementwise operations keeps two fp32 copies instead. fp8
    keeps the output in 8 bits. Without `keep_gathered_inputs` the output is kept split over the sequence-parallel
    group and gathered again in the backward pass (Korthikanti et al. 2022, section 4.2.2).
    """
    profile = scenario.framework
    tokens, split = tokens_per_device(scenario, block), sequence_split(block)
    hidden = tokens * scenario.model.hidden_size
    kept_split = np.ones_like(split) if profile.keep_gathered_inputs else split
    input_bytes = element_bytes(scenario) * hidden / split if profile.fused_rms_norm else 2.0 * FP32 * hidden / split
    output_element = narrow_element_bytes(scenario)
    return {
        f"{name}_input": input_bytes,
        f"{name}_statistics": FP32 * tokens / split,
        f"{name}_output": output_element * hidden / kept_split,
    }


def attention_tensors(scenario: Scenario, block: LayoutBlock) -> SavedTensors:
    """The attention block: norm, q, k, v, softmax statistics or scores, and output."""
    model, profile = scenario.model, scenario.framework
    tokens, t = tokens_per_device(scenario, block), block.tensor_parallel
    heads = float(model.num_attention_heads)
    kept = norm_tensors(scenario, block, "attention_norm")
    if model.attention == "mla":
        kept |= _latent_tensors(scenario, block)
    else:
        kept |= _grouped_query_tensors(scenario, block)
    kept["attention_output"] = element_bytes(scenario) * tokens * model.value_width / t
    if scenario.precision == "fp8":
        # Flash attention keeps its 16-bit output, the output projection an 8-bit copy of it.
        kept["attention_output_fp8"] = tokens * model.value_width / t
    if profile.flash_attention:
        kept["attention_statistics"] = FP32 * tokens * heads / t
    else:
        kept["attention_scores"] = attention_score_bytes(scenario, block)
    if profile.rope_tables_per_call:
        # cos and sin, for q and for k, each one head wide; shared by the micro batch and by all heads.
        positions = float(scenario.seq_length) / block.context_parallel
        kept["rope_tables"] = 4.0 * element_bytes(scenario) * positions * _rotary_width(scenario)
    return kept


def attention_score_bytes(scenario: Scenario, block: LayoutBlock) -> Array:
    """The `a s s` score matrix that attention without a flash kernel keeps, per layer and device."""
    per_score = scenario.framework.attention_matrix_bytes * (element_bytes(scenario) / HALF)
    scores = tokens_per_device(scenario, block) * float(scenario.seq_length)
    return per_score * scores * scenario.model.num_attention_heads / block.tensor_parallel


def _rotary_width(scenario: Scenario) -> float:
    model = scenario.model
    return float(model.qk_rope_head_dim or model.head_dim)


def _grouped_query_tensors(scenario: Scenario, block: LayoutBlock) -> SavedTensors:
    """q, k and v of grouped-query attention; `q` and `k` widths are heads x head size.

    With `keep_qkv_output` the fused projection's output `2 T (q + 2k)` stays alive through v, next to rotated q, k.
    """
    model, profile = scenario.model, scenario.framework
    per_width = element_bytes(scenario) * tokens_per_device(scenario, block) / block.tensor_parallel
    query, key = float(model.query_width), float(model.kv_width)
    expanded = query if profile.repeat_kv else key
    kept: SavedTensors = {"rotated_query_key": per_width * (query + expanded)}
    if profile.keep_qkv_output:
        kept["qkv_output"] = per_width * (query + 2.0 * key)
    else:
        kept["value"] = per_width * expanded
    kept |= _ring_tensors(scenario, block, 2.0 * expanded)
    if model.qk_norm:
        heads = float(model.num_attention_heads + model.num_key_value_heads)
        kept["qk_norm_statistics"] = FP32 * tokens_per_device(scenario, block) * heads / block.tensor_parallel
        if not profile.keep_qkv_output:
            kept["qk_norm_input"] = per_width * (query + key)
    return kept


def _ring_tensors(scenario: Scenario, block: LayoutBlock, width: float) -> SavedTensors:
    """The ring sends k and v as one joined tensor of this width, which the backward pass starts from."""
    if scenario.framework.cp_communication != "ring":
        return {}
    joined = element_bytes(scenario) * tokens_per_device(scenario, block) * width / block.tensor_parallel
    return {"ring_key_value": np.where(block.context_parallel > 1.0, joined, 0.0)}


def _latent_tensors(scenario: Scenario, block: LayoutBlock) -> SavedTensors:
    """Multi-head latent attention: compressed latents, their norms, and the expanded q, k, v.

    The expanded keys and values leave one projection; keys are joined with the shared rotary part into a new tensor
    while the projection's output stays alive through v.
    """
    model = scenario.model
    tokens, split = tokens_per_device(scenario, block), sequence_split(block)
    per_width = element_bytes(scenario) * tokens / block.tensor_parallel
    heads = float(model.num_attention_heads)
    rope, no_rope = float(model.qk_rope_head_dim or 0), float(model.qk_nope_head_dim or 0)
    value = float(model.v_head_dim or 0)
    latents = float(model.kv_lora_rank or 0) + rope
    normed = float(model.kv_lora_rank or 0)
    if model.q_lora_rank:
        latents, normed = latents + float(model.q_lora_rank), normed + float(model.q_lora_rank)
    return {
        "latents": element_bytes(scenario) * tokens * latents / split,
        "latent_norm_outputs": element_bytes(scenario) * tokens * normed / split,
        "query": per_width * heads * (no_rope + rope),
        "key": per_width * heads * (no_rope + rope),
        "key_value_projection": per_width * heads * (no_rope + value),
    } | _ring_tensors(scenario, block, heads * (no_rope + rope + value))


def dense_ffn_tensors(scenario: Scenario, block: LayoutBlock) -> SavedTensors:
    """Norm and SwiGLU feed-forward of a dense layer."""
    width = scenario.model.intermediate_size / block.tensor_parallel
    tokens = tokens_per_device(scenario, block)
    return norm_tensors(scenario, block, "ffn_norm") | _swiglu_tensors(scenario, "ffn", tokens * width)


def _swiglu_tensors(scenario: Scenario, name: str, inner: Array) -> SavedTensors:
    """SwiGLU over `inner` token-width products: gate and up `4 T f`, (silu `2 T f`,) product `2 T f` (fp8: half)."""
    kept: SavedTensors = {f"{name}_gate_up": 2.0 * element_bytes(scenario) * inner}
    if not scenario.framework.fused_swiglu:
        kept[f"{name}_silu"] = element_bytes(scenario) * inner
    kept[f"{name}_product"] = narrow_element_bytes(scenario) * inner
    return kept


def routed_tokens(scenario: Scenario, block: LayoutBlock) -> Array:
    """Token copies that the experts of one device work on per micro batch and layer.

    Each device owns T / t tokens (all T without sequence parallelism) and sends k copies of each; balanced routing
    returns as many. Expert tensor parallelism gathers the copies of its group, which hold the same tokens already
    without sequence parallelism. `expert_imbalance` scales the busiest rank.
    """
    split = sequence_split(block)
    copies = tokens_per_device(scenario, block) / split * scenario.model.num_experts_per_tok
    gathered = np.where((split > 1.0) | (block.tensor_parallel == 1.0), block.expert_tensor_parallel, 1.0)
    return copies * gathered * scenario.framework.expert_imbalance


def moe_ffn_tensors(scenario: Scenario, block: LayoutBlock) -> SavedTensors:
    """Norm, router, shared and routed experts of a mixture-of-experts layer."""
    model = scenario.model
    tokens, split = tokens_per_device(scenario, block), sequence_split(block)
    copies = routed_tokens(scenario, block)
    kept = norm_tensors(scenario, block, "ffn_norm")
    # fp32 logits and probabilities of every expert.
    kept["router"] = 2.0 * FP32 * tokens * model.num_experts / split
    element = narrow_element_bytes(scenario)
    kept["dispatched_tokens"] = element * copies * model.hidden_size
    inner = copies * model.moe_intermediate_size / block.expert_tensor_parallel
    kept |= _swiglu_tensors(scenario, "experts", inner)
    # The routing weights' gradient needs the experts' outputs.
    kept["expert_outputs"] = element_bytes(scenario) * copies * model.hidden_size
    if model.num_shared_experts:
        width = float(model.num_shared_experts * model.moe_intermediate_size)
        kept |= _swiglu_tensors(scenario, "shared_experts", tokens * width / block.tensor_parallel)
    return kept


def layer_tensors(scenario: Scenario, block: LayoutBlock, *, moe: bool) -> SavedTensors:
    """Everything a layer keeps when nothing is recomputed."""
    ffn = moe_ffn_tensors(scenario, block) if moe else dense_ffn_tensors(scenario, block)
    kept = attention_tensors(scenario, block) | ffn
    if scenario.lora_rank is not None:
        # Adapters keep their inner activation; four linear groups (qkv, output, gate-up, down) at the least.
        inner = tokens_per_device(scenario, block) * float(scenario.lora_rank)
        kept["adapter_inner"] = 4.0 * element_bytes(scenario) * inner
    return kept


def layer_bytes(scenario: Scenario, block: LayoutBlock, *, moe: bool) -> Array:
    """Bytes a layer keeps with recompute of its attention applied; full recompute is applied per stage.

    Selective recompute computes the attention core again: the score matrix is not kept. With a flash kernel there
    is none, so it frees nothing (measured: `sel` rows take slightly more memory than `none`).
    """
    kept = layer_tensors(scenario, block, moe=moe)
    if "attention_scores" in kept:
        selective = block.recompute == RECOMPUTE_MODES.index("selective")
        kept["attention_scores"] = np.where(selective, 0.0, kept["attention_scores"])
    whole_block = block.recompute == RECOMPUTE_MODES.index("attention")
    if whole_block.any():
        for name in _inner_attention_tensors(scenario, block):
            kept[name] = np.where(whole_block, 0.0, kept[name])
    return total(kept)


def _inner_attention_tensors(scenario: Scenario, block: LayoutBlock) -> SavedTensors:
    """What recompute of the attention block drops: all of it but the norm and its output, the block's input."""
    kept = attention_tensors(scenario, block)
    return {name: size for name, size in kept.items() if not name.startswith("attention_norm_")}


def attention_working_set(scenario: Scenario, block: LayoutBlock) -> Array:
    """Bytes that recompute of the attention block adds to the backward pass of one layer, shape (n,).

    The block is computed again when the feed-forward block behind it has been passed and freed.
    """
    model = scenario.model
    freed = [total(dense_ffn_tensors(scenario, block))] if model.num_dense_layers else []
    if model.is_moe:
        freed.append(total(moe_ffn_tensors(scenario, block)))
    least = freed[0] if len(freed) == 1 else np.minimum(*freed)
    again: Array = np.maximum(total(_inner_attention_tensors(scenario, block)) - least, 0.0)
    return again


def total(tensors: SavedTensors) -> Array:
    """Sum of the tensors in their fixed order, so that a grid and a single layout round alike."""
    result: Array | None = None
    for value in tensors.values():
        result = value if result is None else result + value
    if result is None:
        raise ValueError("no tensors to add")
    return result
