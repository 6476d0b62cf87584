"""Masks of layouts that break a rule about offload, from inputs alone. `rules` has the messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from simulator.cost.derived import Pricing
from simulator.question.arrays import Mask
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.mixers import LATENT
from simulator.search.pipelines import every, mask

_EXPERTS: Final = ("expert_fc1", "moe_act", "fused_group_mlp")
_NORMS: Final = ("attn_norm", "mlp_norm")
_MIXERS: Final = LATENT | {"grouped_query", "sliding"}
"""Mixers whose saved tensors are known by module."""
_BY_MODULE: Final = ("none", "selective")
"""Recompute modes under which layers still save tensors by module."""


def parameters(pricing: Pricing) -> Mask:
    """Return the layouts with parameters on the host below ZeRO 3."""
    return mask((pricing.block.zero_stage < 3) & pricing.scenario.framework.offload_parameters)


def activations(pricing: Pricing) -> Mask:
    """Return the layouts that offload whole layers with a pipeline, where the framework cannot."""
    scenario, block = pricing.scenario, pricing.block
    refused = block.pipeline_parallel > 1 and not scenario.framework.limits.activation_offload_with_pipeline
    return mask(pricing.offloads("activations") & refused)


def beside_recompute(pricing: Pricing) -> Mask:
    """Return the layouts that offload whole layers with recompute, where the framework cannot."""
    if pricing.scenario.framework.limits.activation_offload_with_recompute:
        return every(pricing, broken=False)
    return mask(pricing.offloads("activations") & ~pricing.recomputes("none"))


def modules(pricing: Pricing) -> Mask:
    """Return the layouts that offload modules which stack, graphs or recompute exclude."""
    scenario, block = pricing.scenario, pricing.block
    offloaded = scenario.framework.offloaded_modules
    if not offloaded or any(_refused(scenario)):
        return every(pricing, broken=bool(offloaded))
    experts = int(BY_NAME["recompute_modules"].encoded(("moe",))) if set(_EXPERTS) & set(offloaded) else 0
    again = pricing.recomputes("selective") & ((block.recompute_modules.astype(np.intp) & experts) > 0)
    return mask(~pricing.recomputes(*_BY_MODULE) | pricing.offloads("activations") | again)


def refused_modules(scenario: Scenario, layout: Layout) -> str:
    """Return why a layout may not offload the modules of its stack."""
    stated = f"offloaded modules {','.join(scenario.framework.offloaded_modules)}"
    if reason := next(_refused(scenario), None):
        return f"{stated}: {reason}"
    if layout.recompute not in _BY_MODULE:
        if layout.recompute_method != "uniform":
            return f"{stated} beside full recompute of some layers: the mixture is not priced"
        return f"{stated} beside recompute {layout.recompute}: of layers that are done again nothing is left to move"
    if layout.offload == "activations":
        return f"{stated}: 'fine_grained_activation_offloading cannot be enabled with cpu_offloading.'"
    return (
        f"{stated} beside recompute module moe: 'offloading activations inside it is redundant and will cause errors'"
    )


def _refused(scenario: Scenario) -> Iterator[str]:
    """Yield why no layout may offload the modules (Megatron-LM d98e8a6, core/transformer/transformer_config.py)."""
    profile, chosen = scenario.framework, set(scenario.framework.offloaded_modules)
    if not profile.limits.offloads_modules:
        yield "only Megatron-LM offloads parts of layers"
    if "attn_proj" in chosen and "core_attn" not in chosen:
        yield "'attn_proj cannot be set to offload_modules alone without core_attn'"
    if "fused_group_mlp" in chosen and not profile.fused_experts:
        yield "'fused_group_mlp requires use_transformer_engine_op_fuser.' (--option fused_experts=true)"
    if "fused_group_mlp" in chosen and chosen & {"expert_fc1", "moe_act"}:
        yield "fused_group_mlp offloads the whole network of experts, expert_fc1 and moe_act with it"
    if profile.expert_stash > 1.0 and chosen & set(_EXPERTS):
        yield "'paged stash covers those activations' (--option expert_stash=1)"
    graphs = profile.cuda_graphs
    allowed = {"attention_router": chosen - set(_NORMS), "full_iteration": chosen & set(_EXPERTS)}
    if graphs != "none" and chosen - allowed.get(graphs, set()):
        yield f"CUDA graphs {graphs} hold {', '.join(sorted(chosen - allowed.get(graphs, set())))}"
    foreign = {kind.mixer for kind in scenario.model.layer_kinds} - _MIXERS
    if foreign and chosen - {"mlp_norm", *_EXPERTS}:
        yield f"what layers with {', '.join(sorted(foreign))} save by module is not known"
