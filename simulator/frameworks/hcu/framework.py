"""Megatron-LM-das (HYGON): a table of flags beside Megatron-LM's, and models that Megatron-Bridge builds.

Read at HYGON-AI/Megatron-LM-das 0685d1f (`hcu_megatron/training/arguments.py`, `training.py`,
`core/datasets/vlm_args.py`): with `--use-bridge` the network is the checkpoint's own, whatever other flags say of its
shape, and all of it is trained unless a flag freezes a part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.framework import Extension, Framework
from simulator.frameworks.megatron.special import take_model
from simulator.frameworks.models import of_bridged_parts, seeing_by_shape
from simulator.question.recipe import Recipe

_KINDS: Final = {
    "qwen2vl": ("qwen2_vl",),
    "qwen2.5vl": ("qwen2_5_vl",),
    "qwen3vl": ("qwen3_vl", "qwen3_5"),
    "gemma3vl": ("gemma3",),
}  # encoders of `--model-arch`, which stands for Qwen3.5 too


def bridged(arguments: Arguments, run: Recipe, _: LaunchCommand | None) -> Recipe:
    """Return the run with the model that the bridge builds: of the stated kind, layers and width."""
    kinds = _KINDS.get(arguments.text("model", "model_arch") or "")
    if kinds is None or not arguments.switch("model", "use_bridge"):
        return run
    model = seeing_by_shape(kinds, run.shape)
    if model is None:
        arguments.remark("unknown-model", "warning", "no known model has this shape", "model_arch", fix="--model NAME")
        return run
    arguments.remark("model-guessed", "warning", f"its layers and width are those of {model}", "model_arch")
    run = replace(take_model(arguments, run, model), model_fields={}, shape={})
    return of_bridged_parts(arguments, run)


FRAMEWORK: Final = Framework(
    title="Megatron-LM-das",
    profile="megatron",
    extends="megatron",
    order=35,
    extension=Extension(extend=bridged),
)
