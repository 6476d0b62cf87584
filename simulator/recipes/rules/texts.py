"""Texts of fixes with numbers of the launch (`--tp 4`), which rules name in braces. States no rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from simulator.cost.operations.sums import total_parameters
from simulator.question.scenario.layout import default_cut
from simulator.question.specs.model import ModelSpec
from simulator.question.units import GIGA
from simulator.recipes.rules.launch import LaunchFacts


def other_heads(model: ModelSpec, tensor_parallel: int) -> tuple[int, int] | None:
    """Return the nearest heads and key-value heads that tensor parallelism can split, at the same hidden size."""
    shared = -(-model.num_key_value_heads // tensor_parallel) * tensor_parallel
    fitting = [n for n in range(shared, 4 * model.num_attention_heads + 1, shared) if model.hidden_size % n == 0]
    if model.attention == "mla" or not fitting:
        return None
    return min(fitting, key=lambda n: (abs(n - model.num_attention_heads), n)), shared


def _other_heads(launch: LaunchFacts) -> str:
    model, size = launch.scenario.model, launch.layout.tensor_parallel
    limit = min(model.num_attention_heads, model.num_key_value_heads)
    fits = [d for d in range(1, limit + 1) if model.num_attention_heads % d == 0 and model.num_key_value_heads % d == 0]
    text = f"--tp {max(fits)}"
    other = other_heads(model, size)
    if other is None:
        return text
    heads, shared = other
    fields = f"--model-field num_attention_heads={heads} --model-field num_key_value_heads={shared}"
    even = model.head_dim * model.num_attention_heads == model.hidden_size
    changed = model.model_copy(
        update={
            "num_attention_heads": heads,
            "num_key_value_heads": shared,
            "head_dim": model.hidden_size // heads if even else model.head_dim,
        }
    )
    counts = f"{total_parameters(model) / GIGA:.2f}B -> {total_parameters(changed) / GIGA:.2f}B parameters"
    return (
        f"{text}; or another model with heads {heads}/{shared} ({fields}): head_dim {model.head_dim} -> "
        f"{changed.head_dim}, {counts}, and the published weights no longer match"
    )


def _other_chunks(launch: LaunchFacts) -> str:
    cut, pipeline = launch.layout.stage_layers, launch.layout.pipeline_parallel
    if pipeline < 2:
        return "--vpp 1: chunks need a pipeline"
    if len(set(cut)) != 1:
        return "--vpp 1, or a pipeline size that divides the layers"
    sizes = ", ".join(str(d) for d in range(1, cut[0]) if cut[0] % d == 0)
    return f"--layers-per-virtual-stage {sizes}, and micro batches of a step that are a multiple of {pipeline}"


def _other_cuts(launch: LaunchFacts) -> str:
    layers, stages = launch.scenario.model.num_hidden_layers, launch.layout.pipeline_parallel
    sizes = ", ".join(str(d) for d in range(1, min(layers, 2 * stages) + 1) if layers % d == 0)
    cut = default_cut(layers, stages)
    ends = f"--decoder-first-pipeline-num-layers {cut[0]} --decoder-last-pipeline-num-layers {cut[-1]}"
    spread = f"{ends} in the recipe" if len(set(cut[1:-1])) <= 1 else "--pipeline-model-parallel-layout in the recipe"
    return f"--pp {sizes}; or {spread}"


TEXTS: Final[Mapping[str, Callable[[LaunchFacts], str]]] = {
    "other_heads": _other_heads,
    "other_chunks": _other_chunks,
    "other_cuts": _other_cuts,
    "samples_at_once": lambda launch: str(launch.layout.micro_batch_size * launch.layout.data_parallel),
}
