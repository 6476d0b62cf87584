"""What the tests of formulas share: small models, scenarios with defaults, layouts that fill their cluster."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory import activations
from simulator.cost.memory.activations import RecomputePlan
from simulator.cost.pricing.price import Priced, price
from simulator.cost.stages import StageContents
from simulator.question.coefficients import Coefficients, TimeCoefficients
from simulator.question.frameworks.stacks import framework, stack_for
from simulator.question.scenario.block import LayoutBlock, block_of
from simulator.question.scenario.complete import resolve
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs import catalogue
from simulator.question.specs.documents import validated
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import LayerKind, ModelSpec

MIB = 2.0**20

ROUND = Coefficients(
    name="round",
    time=TimeCoefficients(
        gemm_efficiency=0.5,
        gemm_efficiency_fp8=0.25,
        # On Hopper, where earlier kernels reach 0.63 of the peak, a quarter of it.
        attention_efficiency=0.25 / 0.63,
        attention_efficiency_flash_3=0.25,
        attention_efficiency_unfused=0.25,
        attention_unaligned=0.125,
        attention_tile_tokens=0,
        attention_tile_tokens_flash_3=0,
        # Products take the longer of computing and moving.
        roofline_sharpness=1e6,
        memory_efficiency=0.5,
        link_efficiency=0.75,
        exchange_network_efficiency=0.75,
        exchange_link_efficiency=0.75,
        layer_overhead_seconds=300e-6,
        launch_seconds=0.0,
        tensor_exposed=0.5,
        overlap_slowdown=0.125,
        ring_bytes_per_query_element=16.0,
        product_waves=0.0,
        product_split_seconds=0.0,
        context_exposed=1.0,
        expert_exposed=0.5,
        expert_wait_seconds=1e-3,
        expert_wait_exposed=0.25,
        point_to_point_exposed=0.25,
        data_exposed=0.25,
        shard_exposed=0.25,
        node_doubling_wait=0.0,
        functional_copies=0.0,
        micro_batch_overhead_seconds=1e-3,
        step_overhead_seconds=0.01,
    ),
)
"""Rates that are easy to work with by hand; the tests that name numbers use them, not the priors."""

OUTSIDE = {"probabilities_in_experts": "false", "gradient_passes": "0"}
"""Experts' outputs are weighted behind them, and only the optimizer passes over gradients, in most that is by hand."""
PLAIN = {"megatron": {"keep_qkv_output": "true", "dummy_weight_gradients": "none"}}
"""What TransformerEngine adds is worked by hand where it is tested, and left out elsewhere."""

load_model = lru_cache(catalogue.load_model)


@lru_cache
def load_hardware(name: str) -> HardwareSpec:
    """A shipped device, its products taken to reach the usual share of the peak."""
    return replace(catalogue.load_hardware(name), product_flops=None)


_DENSE: dict[str, Any] = {
    "name": "small-dense",
    "architecture": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 1000,
    "tie_word_embeddings": False,
}
_MOE: dict[str, Any] = _DENSE | {
    "name": "small-moe",
    "architecture": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_shared_experts": 1,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
_MLA: dict[str, Any] = _DENSE | {
    "name": "small-mla",
    "architecture": "deepseek_v2",
    "attention": "mla",
    "num_key_value_heads": 4,
    "head_dim": 24,
    "q_lora_rank": 40,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}

_SHARED: dict[str, Any] = _DENSE | {
    "name": "small-shared",
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 24,
    "qk_rope_head_dim": 8,
    "sliding_window": 8,
    "output_groups": 2,
    "output_lora_rank": 12,
    "attention_sinks": "all",
}
_COMPRESSION: dict[str, dict[str, Any]] = {
    "window_shared": {},
    "compressed_sparse": {"compression": 4, "index_heads": 2, "index_head_dim": 16, "index_topk": 2},
    "heavily_compressed": {"heavy_compression": 16},
}


def small_dense(**changes: Any) -> ModelSpec:
    """4 layers, h 64, f 160, 4 heads and 2 key-value heads of 16, vocabulary 1000."""
    return validated("case", ModelSpec, _DENSE | changes)


def small_moe(**changes: Any) -> ModelSpec:
    """The dense one with 8 experts of width 48, 2 per token, 1 shared; the first layer is dense."""
    return validated("case", ModelSpec, _MOE | changes)


def small_sliding(**changes: Any) -> ModelSpec:
    """The dense one with 6 heads; every second layer attends to a window of 8 tokens."""
    window = {"num_attention_heads": 6, "mixers": ("sliding", "grouped_query"), "sliding_window": 8}
    return validated("case", ModelSpec, _DENSE | window | changes)


def small_mla(**changes: Any) -> ModelSpec:
    """Latent attention: ranks 40 and 32, heads of 16 + 8 rotary, values of 20."""
    return validated("case", ModelSpec, _MLA | changes)


def small_compressed(*mixers: str, **changes: Any) -> ModelSpec:
    """The dense one with 4 heads of 32 over one tensor of keys and values, a window of 8, and DeepSeek-V4's mixers."""
    fields = {key: value for mixer in mixers for key, value in _COMPRESSION[mixer].items()}
    return validated("case", ModelSpec, _SHARED | fields | {"mixers": mixers} | changes)


def scenario_of(
    model: ModelSpec | str = "llama3.1-8b",
    hardware: HardwareSpec | str = "z2000",
    *,
    devices: int = 8,
    profile: str = "megatron",
    options: dict[str, str] | None = None,
    **fields: Any,
) -> Scenario:
    """A scenario; models and hardware by shipped name or as specs."""
    machine = load_hardware(hardware) if isinstance(hardware, str) else hardware
    return Scenario(
        model=load_model(model) if isinstance(model, str) else model,
        hardware=machine,
        devices=devices,
        framework=framework(
            profile, OUTSIDE | PLAIN.get(profile, {}) | (options or {}), stack_for(profile, None, machine.stack)
        ),
        **fields,
    )


def complete_layout(scenario: Scenario, **fields: Any) -> Layout:
    """A layout from its fields by name or key; omitted ones follow as in a question."""
    return resolve(scenario, fields, filled=False)[1]


def layout_of(scenario: Scenario, **fields: Any) -> Layout:
    """A layout that fills the scenario's devices: data parallel and the cut follow unless given."""
    layout = Layout(**fields)
    if "data_parallel" not in fields:
        used = layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel
        layout = replace(layout, data_parallel=scenario.devices // used)
    if not layout.stage_layers:
        cut = default_cut(scenario.model.num_hidden_layers, layout.pipeline_parallel)
        layout = replace(layout, stage_layers=cut)
    return layout


def block(scenario: Scenario, **fields: Any) -> LayoutBlock:
    """A block of one layout."""
    return block_of([layout_of(scenario, **fields)])


def pricing(scenario: Scenario, **fields: Any) -> Pricing:
    """One layout, to be priced."""
    return pricing_of(scenario, layout_of(scenario, **fields))


def priced(scenario: Scenario, **fields: Any) -> Priced:
    """One layout, priced."""
    return price(pricing(scenario, **fields))


def only(values: Any) -> float:
    """The single number of an array of one."""
    return float(np.asarray(values).reshape(-1)[0]) if np.asarray(values).size == 1 else _refuse(values)


def _refuse(values: Any) -> float:
    raise AssertionError(f"one number expected, not {values}")


def by_stage(kinds: Any, has: StageContents) -> list[float]:
    """A figure by kind of rank spread over the pipeline ranks."""
    return [float(x) for x in np.asarray(kinds)[has.kind][:, 0]]


def layer_kind(model: ModelSpec, *, moe: bool = False) -> LayerKind:
    """The model's kind of layer with routed experts, or without."""
    [kind] = {kind for kind in model.layer_kinds if (kind.feed_forward == "experts") == moe}
    return kind


def layer_bytes(scenario: Scenario, here: LayoutBlock, *, moe: bool = False) -> float:
    """What one layer keeps, in bytes."""
    return only(activations.layer_bytes(Pricing(scenario, here), layer_kind(scenario.model, moe=moe)))


def recomputed_layers(plan: RecomputePlan, has: StageContents, *, moe: bool = False) -> list[float]:
    """Layers of a kind that every pipeline rank recomputes."""
    found = [plan.on_rank[i] for i, kind in enumerate(has.layer_kinds) if (kind.feed_forward == "experts") == moe]
    return by_stage(found[0], has) if found else [0.0] * len(has.kind)


def held_layers(has: StageContents, *, moe: bool = False) -> list[float]:
    """Layers of a kind on every pipeline rank."""
    found = [has.layers[i] for i, kind in enumerate(has.layer_kinds) if (kind.feed_forward == "experts") == moe]
    return by_stage(found[0], has) if found else [0.0] * len(has.kind)


def attention_scores(scenario: Scenario, here: LayoutBlock) -> float:
    """Bytes of the score matrix that one layer keeps without a flash kernel."""
    return only(activations.score_bytes(Pricing(scenario, here), scenario.model.layer_kinds[0]))
