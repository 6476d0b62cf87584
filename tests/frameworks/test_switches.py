"""No switch is silently ignored: each changes memory or time of some layout, in every profile where it can.

Which figures it moves, and which way, `tests/directions` has.
"""

import dataclasses
from functools import cache
from typing import Any

import pytest

from simulator.cost.pricing.estimate import Estimate
from simulator.question.frameworks.profile import switches
from simulator.question.frameworks.stacks import PROFILES
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import estimate_layout
from tests.scenario.cases import layout_of, scenario_of

# Scenarios that between them use attention without a flash kernel, fp8, expert and context parallelism, chunks, MTP.
SETTINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"model": "llama3.1-8b", "devices": 16},
        {"tensor_parallel": 4, "pipeline_parallel": 2, "sequence_parallel": True},
    ),
    (
        {"model": "llama3.1-8b", "devices": 32, "precision": "fp8"},
        {
            "tensor_parallel": 2,
            "sequence_parallel": True,
            "context_parallel": 2,
            "pipeline_parallel": 2,
            "virtual_stages": 2,
        },
    ),
    ({"model": "deepseek-v3", "devices": 64}, {"pipeline_parallel": 4, "expert_parallel": 8, "zero_stage": 1}),
    ({"model": "llama3.1-8b", "devices": 8, "seq_length": 256, "options": {"flash_attention": "false"}}, {}),
    (
        {"model": "deepseek-v3", "devices": 64},
        {"expert_parallel": 8, "recompute": "selective", "recompute_modules": ("mla_up_proj",)},
    ),
    (
        {"model": "llama3.1-8b", "devices": 16},
        {"tensor_parallel": 4, "pipeline_parallel": 2, "sequence_parallel": False},
    ),
    # The optimizer step binds.
    ({"model": "llama3.1-8b", "devices": 1, "seq_length": 128, "options": {"parameter_dtype": "bf16"}}, {}),
    (
        {"model": "llama3.1-8b", "devices": 2, "seq_length": 128, "options": {"parameter_dtype": "bf16"}},
        {"zero_stage": 3},
    ),
    ({"model": "llama3.1-8b", "devices": 8}, {"recompute": "full"}),
    ({"model": "llama3.1-8b", "devices": 8, "hardware": "a100-sxm-80g"}, {}),
    # One micro batch a step; ZeRO 3; state on the host.
    ({"model": "llama3.1-8b", "devices": 8, "global_batch_size": 8}, {"zero_stage": 3, "offload": "optimizer"}),
    ({"model": "llama3.1-8b", "devices": 8}, {"zero_stage": 1, "offload": "optimizer_tensorwise"}),
    ({"model": "llama3.1-8b", "devices": 8, "lora_rank": 8, "seq_length": 256}, {"zero_stage": 1}),
    ({"model": "llama3.1-8b", "devices": 1, "lora_rank": 8, "seq_length": 256}, {"zero_stage": 0}),
    ({"model": "llama3.1-8b", "devices": 16}, {"context_parallel": 16}),
    ({"model": "llama3.1-8b", "devices": 8, "hardware": "ascend-910b-64g-8"}, {"tensor_parallel": 2}),
    ({"model": "nemotron-h-56b", "devices": 16}, {"tensor_parallel": 8}),
    ({"model": "starcoder2-7b", "devices": 4}, {}),
    (
        {"model": "llama3.1-8b", "devices": 16},
        {"pipeline_parallel": 4, "virtual_stages": 2, "schedule": "dualpipev"},
    ),
    # As many micro batches as ranks.
    (
        {"model": "llama3.1-8b", "devices": 8, "global_batch_size": 8},
        {"pipeline_parallel": 4, "virtual_stages": 2, "tensor_parallel": 1},
    ),
    (
        {"model": "deepseek-v3", "devices": 64, "options": {"mtp": "true"}},
        {"expert_parallel": 8, "zero_stage": 1, "recompute": "full"},
    ),
    ({"model": "qwen3-30b-a3b", "devices": 8, "lora_rank": 8}, {"expert_parallel": 8}),
    ({"model": "llama3.1-8b", "devices": 8, "options": {"frozen_reference": "true"}}, {"zero_stage": 0}),
    ({"model": "llama3.1-8b", "devices": 8, "hardware": "mi355x", "precision": "fp4"}, {}),
    # Whole layers are more than what a step needs of them, and so are their buffers beside them.
    ({"model": "llama3.1-8b", "devices": 64, "seq_length": 128, "global_batch_size": 64}, {"zero_stage": 3}),
    ({"model": "llama3.1-8b", "devices": 64, "seq_length": 128, "global_batch_size": 64}, {"zero_stage": 1}),
]
PREPARED = {
    "fully_shard": "true",
    "plain_module": "true",
    "parameter_dtype": "fp32",
    "gradient_dtype": "fp32",
    "foreach_optimizer": "false",
}
DEEPSPEED = {"live_parameters": "1000000000", "fully_shard": "false"}
# A switch that only acts beside another one.
BESIDE = {
    "dummy_weight_gradients": {"fused_gradient_accumulation": "true"},
    "composed_layer_norm_bytes": {"autocast": "true"},
    "attention_dropout": {"flash_attention": "false"},
    "returned_scores": {"flash_attention": "false", "recompute_stops_early": "false"},
    "fused_loss_bytes_per_logit": {"fused_cross_entropy": "true", "fully_shard": "false"},
    "cp_inner_degree": {"cp_communication": "all_to_all_ring"},
    "attention_matrix_bytes": {"flash_attention": "false"},
    "overlap_tensor_gradients": {"tp_comm_overlap": "false", "functional_collectives": "false"},
    # Where gradients are in fp32 that is no other type.
    "reduce_dtype": {"gradient_dtype": "bf16"},
    "master_weights": {"parameter_dtype": "bf16"},
    "master_weight_dtype": {"parameter_dtype": "bf16", "master_weights": "true"},
    "fp32_router": {"parameter_dtype": "bf16"},
    "fully_shard": {"parameter_dtype": "fp32", "gradient_dtype": "fp32"},
    "quantised_head": {"quantised_base": "true"},
    "quantised_bits": {"quantised_base": "true"},
    "quantised_scale_bytes": {"quantised_base": "true"},
    "joint_adapters": {"adapter_dropout": "before", "shared_adapters": "false"},
    "cross_entropy_chunk_mib": {"cross_entropy_chunk_tokens": "1"},
    "quantised_experts": {"quantised_base": "true"},
    "loads_unquantised": {"quantised_base": "true"},
    "quantising_bytes": {"quantised_base": "true"},
    "widened_rest": {"quantised_base": "true"},
    "adapter_copies": {"flat_parameters": "true"},
    "flat_parameters": PREPARED,
    "backward_prefetch": PREPARED | {"flat_parameters": "true"},
    "frozen_dtype": {"plain_module": "true"},
    "sync_each_batch": PREPARED,
    "saved_modules_dtype": {"saved_modules": "both", "master_weights": "false"},
    "reference_gradients": {"fully_shard": "false"},
    "delayed_weight_gradients": {"fully_shard": "false"},
    "release_grads": {"fully_shard": "false"},
    "whole_table_state": {"fully_shard": "false", "optimizer": "muon"},
    "wide_table_moments": {"optimizer": "adamw_8bit"},
    "step_in_backward": {"fully_shard": "false"},
    "fp8_recipe": {"fp8_inputs": "true"},
    "largest_tensor_step": {"fully_shard": "false", "foreach_optimizer": "false", "parameter_dtype": "bf16"},
    "composed_norm_bytes": {"fused_rms_norm": "false"},
    "copied_inputs": {"fused_projections": "false"},
    "live_parameters": DEEPSPEED,
    "reuse_parameters": DEEPSPEED,
    "prefetch_parameters": DEEPSPEED,
    "reduction_parameters": DEEPSPEED,
    "step_parameters": {
        **DEEPSPEED,
        "foreach_optimizer": "false",
        "prefetch_parameters": "1",
        "reduction_parameters": "1",
    },
    "reduction_buffers": DEEPSPEED,
    "kept_gathers": DEEPSPEED,
    "outer_unit": {"parameter_dtype": "bf16", "fully_shard": "true"},
    "split_blocks": {**DEEPSPEED, "expandable_segments": "false", "growing_pool": "false"},
    "step_temporaries": {"foreach_optimizer": "true", "optimizer": "adamw"},
    "unused_output_layer": {"score_head": "true", "fully_shard": "false"},
    "gradient_copies": {"fully_shard": "false", "gradient_dtype": "fp32", "parameter_dtype": "bf16"},
    "master_gradients": {"fully_shard": "false", "gradient_dtype": "bf16", "parameter_dtype": "bf16"},
    "deterministic_kernels": {"growing_pool": "false"},
    "deferred_head_gradients": {"fully_shard": "false"},
    "losses_in_turn": {"fully_shard": "false", "loss_bytes_per_logit": "32", "mtp": "true"},
    "widened_gradients": {
        "fully_shard": "false",
        "parameter_dtype": "bf16",
        "gradient_dtype": "bf16",
        "master_weights": "true",
    },
}


def other(name: str, current: object) -> str:
    """Another allowed value of the switch, as text."""
    if isinstance(current, bool):
        return "false" if current else "true"
    (spec,) = [f for f in switches() if f.name == name]
    if isinstance(current, str):
        named = {"fp8_recipe": "mxfp8", "optimizer": "lion"}
        return named.get(name) or next(choice for choice in spec.metadata["choices"] if choice != current)
    values = {
        "cross_entropy_chunk_tokens": "64",
        "joint_adapters": "padded",
        "cross_entropy_chunk_mib": "16",
        "expert_imbalance": "1.5",
    }
    values |= {"gradient_passes": "2.0", "cp_inner_degree": "1", "offloaded_modules": "core_attn,attn_proj"}
    values |= {"kept_dispatches": "3.0", "labelled_token_fraction": "0.5", "offload_fraction": "0.5"}
    values |= {"quantised_scale_bytes": "4.0", "quantising_bytes": "256", "expert_capacity": "1.5"}
    values |= {"expert_stash": "1.2", "step_parameters": "1000000000000", "split_blocks": "0.3"}
    if name.startswith(("recomputed", "host_")):
        return "0.5"
    return values.get(name) or str(int(str(current)) + 2)


@cache
def priced(setting: int, profile: str, options: tuple[tuple[str, str], ...]) -> tuple[Scenario, Estimate]:
    """A question under a profile with some switches, and its estimate."""
    question, layout = SETTINGS[setting]
    merged = question.get("options", {}) | dict(options)
    scenario = scenario_of(**(question | {"options": merged, "profile": profile}))
    return scenario, estimate_layout(scenario, layout_of(scenario, **layout))


def figures(setting: int, profile: str, options: tuple[tuple[str, str], ...]) -> tuple[object, ...]:
    """Memory by stage and part, and time by part."""
    _, found = priced(setting, profile, options)
    stages = tuple((s.device_bytes, tuple(s.parts_bytes.items())) for s in found.memory.stages)
    host = found.memory.host_bytes_per_node, found.memory.host_most_bytes
    return stages, host, tuple(found.throughput.parts_seconds.items()), found.throughput.flops_per_second_per_device


FOUND: dict[str, int] = {}
"""Setting that showed a switch under another profile, which is tried first."""


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", [f.name for f in switches() if f.name != "unmeasured_runtime"])  # widens ranges alone
def test_a_switch_changes_a_figure(name: str, profile: str) -> None:
    beside = BESIDE.get(name, {})
    usual = scenario_of(profile=profile).framework
    if name == "optimizer" and len(usual.limits.optimizers) == 1:
        return
    if beside.get("optimizer", "adamw") not in usual.limits.optimizers:
        return
    changed = beside | {name: other(name, getattr(usual, name))}
    first = FOUND.get(name, 0)
    found = (
        i
        for i in sorted(range(len(SETTINGS)), key=lambda i: i != first)
        if figures(i, profile, tuple(beside.items())) != figures(i, profile, tuple(changed.items()))
    )
    at = next(found, None)
    assert at is not None
    FOUND[name] = at


def test_profiles_differ_in_memory_and_time() -> None:
    answers = [figures(0, name, ()) for name in PROFILES]
    assert len({answer[0] for answer in answers}) == len(PROFILES)
    assert len({answer[2] for answer in answers}) == len(PROFILES)


def test_formulas_read_switches_not_names() -> None:
    # A profile under another name gives the same figures.
    question, layout = SETTINGS[0]
    scenario = scenario_of(**question)
    renamed = dataclasses.replace(scenario, framework=dataclasses.replace(scenario.framework, name="torch"))
    one, two = (estimate_layout(s, layout_of(s, **layout)) for s in (scenario, renamed))
    assert one.memory == two.memory
    assert one.throughput == two.throughput
