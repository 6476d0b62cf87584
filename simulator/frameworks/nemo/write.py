"""Writer of Megatron-Bridge configurations: Megatron-LM's flags as keys, by `bridge.csv` and `words.csv`.

A configuration overrides the recipe `vanilla_gpt_pretrain_config`, whose fields are Megatron-LM's defaults
(Megatron-Bridge 03b0450, `recipes/gpt/vanilla_gpt.py` and `training/utils/omegaconf_utils.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import yaml

from simulator.errors import UnsupportedError
from simulator.frameworks.flags import table_of
from simulator.frameworks.megatron.write import megatron_parts
from simulator.frameworks.write import Head
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

_BRIDGE: Final = table_of("bridge")
_NEMO: Final = table_of("nemo")
_RENAMED: Final = {
    f"decoder_{end}_pipeline_num_layers": f"num_layers_in_{end}_pipeline_stage" for end in ("first", "last")
}  # fields of Megatron's own configuration by the names of their flags, where these differ
_TITLE: Final = "Megatron-Bridge"
_SECTIONS: Final = {
    "train": ("global_batch_size", "micro_batch_size"),
    "ddp": ("use_distributed_optimizer", "overlap_grad_reduce", "overlap_param_gather"),
    "optimizer": ("optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction", "use_precision_aware_optimizer"),
}  # keys outside the section `model`
_IMPLIED: Final = frozenset(
    ("group_query_attention", "transformer_impl", "moe_grouped_gemm", "max_position_embeddings")
)  # flags that other keys imply, that this recipe has anyway, or that set nothing in it
_INSTEAD: Final[dict[str, dict[str, Any]]] = {
    "swiglu": {"gated_linear_unit": True, "activation_func": "silu"},
    "disable_bias_linear": {"add_bias_linear": False},
    "untie_embeddings_and_output_weights": {"share_embeddings_and_output_weights": False},
    "recompute_activations": {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
}  # keys that replace flags
_LAID_OVER: Final = "pretrain(process_config_with_overrides(vanilla_gpt_pretrain_config(), THIS_FILE), forward_step)"
_PRECISIONS: Final = {"bf16": "bf16_mixed", "fp16": "fp16_mixed"}


def bridge_config(scenario: Scenario, layout: Layout, head: Head) -> str:
    """Return the configuration. Raises UnsupportedError for settings that cannot be written."""
    if scenario.precision not in _PRECISIONS or scenario.framework.gradient_dtype != "fp32":
        message = f"--precision {scenario.precision}, gradients in {scenario.framework.gradient_dtype}"
        raise UnsupportedError(f"{message}: configurations of {_TITLE} are written in bf16 or fp16 with fp32 gradients")
    if scenario.lora_rank is not None:
        raise UnsupportedError(f"--lora-rank: {_TITLE} writes adapters in a recipe of Python")
    if scenario.framework.expandable_segments:
        raise UnsupportedError(f"--option expandable_segments=true: {_TITLE} has no key for it, its environment has")
    sections: dict[str, Any] = {"model": {}, "train": {}, "ddp": {}, "optimizer": {}}
    for key, value in _keys(scenario, layout):
        sections[next((name for name, keys in _SECTIONS.items() if key in keys), "model")][key] = value
    sections["model"].setdefault("share_embeddings_and_output_weights", True)
    sections["dataset"] = {"seq_length": scenario.seq_length}
    sections["mixed_precision"] = _PRECISIONS[scenario.precision]
    size = f"torchrun --nnodes {head.nodes} --nproc_per_node {head.devices_per_node}"
    launch = (f"Launch: {size}, with a script that lays it over its recipe:", f"  {_LAID_OVER}")
    comments = "".join(f"# {line}\n" for line in (*head.lines, *launch))
    return comments + yaml.safe_dump({name: keys for name, keys in sections.items() if keys}, sort_keys=False)


def bridge_words(scenario: Scenario, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the keys with their texts. Raises UnsupportedError."""
    yield from ((key, str(value)) for key, value in _keys(scenario, layout))


def _keys(scenario: Scenario, layout: Layout) -> Iterator[tuple[str, Any]]:
    for name, text in chain.from_iterable(megatron_parts(scenario, layout)):
        if name in _IMPLIED or name == scenario.precision:
            continue
        if name in _INSTEAD:
            yield from _INSTEAD[name].items()
        elif name == "num_layers_per_virtual_pipeline_stage":
            yield "virtual_pipeline_model_parallel_size", layout.virtual_stages
        elif name in ("recompute_modules", "offload_modules"):
            yield name, text.split()
        else:
            # A switch has no text.
            yield _key(name), yaml.safe_load(text.strip("'")) if text else True


def _key(name: str) -> str:
    """Return the key of a flag, renamed where needed. Raises UnsupportedError where there is none."""
    own = _RENAMED.get(name) or next((flag.name for flag, text in _BRIDGE.aliases.get(name, ()) if not text), name)
    row = _BRIDGE.get(own) or _NEMO.get(own)
    if name.startswith("no_") or (row is not None and row.effect != "priced"):
        raise UnsupportedError(f"--{name.replace('_', '-')} of Megatron-LM: {_TITLE} has no key that is read so")
    return own
