"""NeMo and Megatron-Bridge configuration files, read as the Megatron flags they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from simulator.recipes import models
from simulator.recipes.documents import Key
from simulator.recipes.given import Flag, Given
from simulator.recipes.megatron import megatron_recipe
from simulator.recipes.megatron_flags import FLAGS as MEGATRON_FLAGS
from simulator.recipes.megatron_flags import PASSED
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.values import text_value

_KEYS: Final = {
    "encoder_seq_length": "seq-length",
    "num_moe_experts": "num-experts",
    "moe_ffn_hidden_size": "moe-ffn-hidden-size",
    "moe_shared_expert_intermediate_size": "moe-shared-expert-intermediate-size",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "overlap_grad_sync": "overlap-grad-reduce",
    "overlap_param_sync": "overlap-param-gather",
    "gated_linear_unit": "swiglu",
    "add_qkv_bias": "add-qkv-bias",
    "qk_layernorm": "qk-layernorm",
    "cross_entropy_loss_fusion": "cross-entropy-loss-fusion",
    "grad_reduce_in_fp32": "accumulate-allreduce-grads-in-fp32",
    "expert_model_parallel_size": "expert-model-parallel-size",
    "optimizer_cpu_offload": "optimizer-cpu-offload",
}
"""Keys whose flag has another name; other keys are looked up among Megatron's flags."""
_TRANSLATED: Final = {
    "num_nodes": "nodes",
    "devices": "devices of a node",
    "num_gpus_per_node": "devices of a node",
    "precision": "precision: bf16, bf16-mixed, 16, 32",
    "mixed_precision": "precision: bf16_mixed, fp16_mixed, bf16_with_fp8_..._mixed",
    "fp8": "precision fp8",
    "fp8_hybrid": "precision fp8",
    "activation": "gated FFN, for swiglu and fast-swiglu",
    "num_query_groups": "KV heads",
    "share_embeddings_and_output_weights": "tied output weights; on where the key is absent",
    "name": "in optim: ZeRO stage 1, for distributed_fused_adam",
    "_target_": "model, where the class names it",
    "overlap_p2p_comm": "switch overlap_p2p",
}
FLAGS: Final = {key: Flag(MEGATRON_FLAGS[flag.replace("-", "_")].about) for key, flag in _KEYS.items()} | {
    key: Flag(about) for key, about in _TRANSLATED.items()
}
"""Keys for the documentation; those spelled as Megatron's flags with underscores are read too."""
_CLASS: Final = re.compile(r"(Llama|Qwen|Mixtral|Mistral|DeepSeek)(\w*?)Config(\w*)")
_PRECISIONS: Final = ("precision", "mixed_precision")
_OFF: Final = ("false", "none", "null", "", "0")


def is_nemo(keys: Iterable[Key]) -> bool:
    """Whether a document is of NeMo or Megatron-Bridge."""
    paths = {key.path for key in keys}
    return any(path[-1] == "tensor_model_parallel_size" and len(path) > 1 for path in paths)


def read_nemo(path: Path, keys: Iterable[Key]) -> Recipe:
    """The recipe of a configuration file."""
    given = Given(str(path), MEGATRON_FLAGS, PASSED)
    nodes = devices = None
    shared = True
    target = ""
    for key in keys:
        text = key.values[0].text if key.values else ""
        if key.name in ("num_nodes", "devices", "num_gpus_per_node") and re.fullmatch(r"[0-9]{1,6}", text, re.ASCII):
            nodes, devices = (int(text), devices) if key.name == "num_nodes" else (nodes, int(text))
        elif key.name == "share_embeddings_and_output_weights":
            shared = text not in _OFF
        elif key.name == "_target_" and _CLASS.search(text):
            target = text
        else:
            _translate(given, key, text)
    if not shared:
        given.add("--untie-embeddings-and-output-weights", [], 1)
    recipe = megatron_recipe(given, None, "nemo-yaml", "", nodes or None, devices or None)
    if recipe.precision == "fp32":
        recipe = _in_full_precision(recipe, keys)
    return _with_model(recipe, target) if recipe.model is None and target else recipe


def _in_full_precision(recipe: Recipe, keys: Iterable[Key]) -> Recipe:
    """The recipe, whose precision is known only where a key says 32: a configuration leaves it to the script else."""
    said = any(key.name in _PRECISIONS and "32" in key.values[0].text for key in keys if key.values)
    remarks = tuple(remark for remark in recipe.remarks if remark.rule != "full-precision")
    return dataclasses.replace(recipe, precision="fp32" if said else None, remarks=remarks)


def _with_model(recipe: Recipe, target: str) -> Recipe:
    """The recipe with the model that a class name means."""
    match = _CLASS.search(target)
    family, version, size = match.groups() if match else ("", "", "")
    dotted = ".".join(re.findall(r"\d", version))
    for name in (f"{family}{dotted}-{size}", f"{family}-{dotted}-{size}", f"{family}-{size}"):
        model, _ = models.by_name(name)
        if model:
            remarks = tuple(remark for remark in recipe.remarks if remark.rule != "no-vocabulary")
            return dataclasses.replace(recipe, model=model, model_fields={}, remarks=remarks)
    return recipe


def _translate(given: Given, key: Key, text: str) -> None:
    """Add the flags that a key stands for."""
    name, line, lowered = key.name, key.line, text.lower()
    on = lowered not in _OFF
    if name in _PRECISIONS:
        half = "--bf16" if lowered.startswith("bf") else "--fp16" if "16" in lowered else ""
        narrow = ["--fp8-format"] if "fp8" in lowered else []
        for flag in (*([half] if half else []), *narrow):
            given.add(flag, [text_value("hybrid", line)] if narrow and flag in narrow else [], line)
    elif name in ("fp8", "fp8_hybrid", "fp8_e4m3") and on:
        given.add("--fp8-format", [text_value("hybrid", line)], line)
    elif name == "activation" and "swiglu" in lowered:
        given.add("--swiglu", [], line)
    elif name == "num_query_groups" and on:
        given.add("--group-query-attention", [], line)
        given.add("--num-query-groups", key.values, line)
    elif name == "name" and lowered == "distributed_fused_adam":
        given.add("--use-distributed-optimizer", [], line)
    elif name == "overlap_p2p_comm" and not on:
        given.add("--no-overlap-p2p-communication", [], line)
    elif name not in _TRANSLATED:
        _add_flag(given, key, lowered)


def _add_flag(given: Given, key: Key, lowered: str) -> None:
    """A key that is spelled as a flag; one that is off is not there."""
    name = _KEYS.get(key.name, key.name).replace("-", "_")
    flag = MEGATRON_FLAGS.get(name)
    if flag is None:
        return
    if flag.kind == "switch":
        if lowered not in _OFF:
            given.add(name, [], key.line)
    elif lowered not in ("", "none", "null") and not lowered.startswith("${"):
        given.add(name, key.values, key.line)
