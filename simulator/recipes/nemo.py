"""NeMo and Megatron-Bridge configuration files, read as the Megatron flags they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath
from typing import Final

from simulator.errors import InputError
from simulator.recipes import models
from simulator.recipes.cluster import cluster_of
from simulator.recipes.configuration import configuration
from simulator.recipes.documents import Key
from simulator.recipes.given import Flag, Given
from simulator.recipes.megatron import megatron_recipe
from simulator.recipes.megatron_flags import FLAGS as MEGATRON_FLAGS
from simulator.recipes.megatron_flags import PASSED
from simulator.recipes.recipe import Place, Recipe, Remark
from simulator.recipes.shell.launch import Launch, without_start
from simulator.recipes.shell.values import EMPTY, Value, text_value

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
_CLUSTER: Final = ("num_nodes", "devices", "num_gpus_per_node")
_OVERRIDE: Final = re.compile(
    r"(?:~|\+{0,2})(?P<path>(?:trainer|model|optim|strategy|data)(?:\.\w+)+)(?P<equals>=|$)", re.ASCII
)
"""A key that a command line sets, adds or takes away."""
_OFF: Final = ("false", "none", "null", "", "0")


def is_nemo(keys: Iterable[Key]) -> bool:
    """Whether a document is of NeMo or Megatron-Bridge."""
    paths = {key.path for key in keys}
    return any(path[-1] == "tensor_model_parallel_size" and len(path) > 1 for path in paths)


def read_nemo(path: Path, keys: Iterable[Key]) -> Recipe:
    """The recipe of a configuration file."""
    return _recipe(Given(str(path), MEGATRON_FLAGS, PASSED), keys, None)


def is_nemo_launch(launch: Launch) -> bool:
    """Whether a launch sets keys of NeMo on its command line."""
    return sum(_OVERRIDE.match(value.text) is not None for value in launch.arguments) >= 2


def read_nemo_launch(launch: Launch, file: str) -> Recipe:
    """The recipe of one launch: the configuration that it names, with the keys that the command line replaces."""
    given = Given(file, MEGATRON_FLAGS, PASSED)
    keys: dict[tuple[str, ...], Key] = {}
    base = _base(given, launch, file)
    for key in (*base, *_overrides(launch)):
        keys.pop(key.path, None)
        keys[key.path] = key
    return _recipe(given, [key for key in keys.values() if key.values], launch)


def _base(given: Given, launch: Launch, file: str) -> tuple[Key, ...]:
    """The keys of `--config-name` in `--config-path`, where it is beside the recipe."""
    words: dict[str, Value] = {}
    for value, following in zip(launch.arguments, (*launch.arguments[1:], None), strict=True):
        name, equals, _ = value.text.partition("=")
        if name in ("--config-name", "--config-path"):
            words[name] = without_start(value, len(name) + 1) if equals else following or EMPTY
    if "--config-name" not in words:
        return ()
    word = words["--config-name"]
    name = word.text if word.text.endswith((".yaml", ".yml")) else f"{word.text}.yaml"
    folder = words.get("--config-path", EMPTY).text
    name = f"{folder}/{name}" if folder else name
    try:
        found = configuration(launch, file, name, word.line)
    except InputError:
        found = None
    if found is None:
        given.remarks.append(
            Remark(
                "base-configuration",
                "warning",
                f"{name[:200]} is not beside the recipe: only the keys of the command line are read",
                Place(file, max(word.line, 1)),
            )
        )
        return ()
    return tuple(dataclasses.replace(key, file=found.file) for key in found.keys)


def _overrides(launch: Launch) -> Iterator[Key]:
    """Keys on the command line: `a.b=c`, `+a.b=c`, `++a.b=c`; `~a.b` takes one away."""
    for value in launch.arguments:
        match = _OVERRIDE.match(value.text)
        if match is None:
            continue
        path = tuple(match["path"].split("."))
        content = without_start(value, match.end()) if match["equals"] else EMPTY
        taken = value.text.startswith("~")
        yield Key(path, () if taken else (content,), value.line, content.text)


def _recipe(given: Given, keys: Iterable[Key], launch: Launch | None) -> Recipe:
    nodes = devices = None
    shared = True
    target = ""
    keys = tuple(keys)
    for key in keys:
        text = key.values[0].text if key.values else ""
        if key.name in _CLUSTER:
            option = "nodes" if key.name == "num_nodes" else "devices_per_node"
            given.places[option] = Place(key.file or given.file, max(key.line, 1))
            if not key.values[0].known:
                given.need(key.values[0].causes, option)
            number = int(text) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else None
            nodes, devices = (number, devices) if key.name == "num_nodes" else (nodes, number)
        elif key.name == "share_embeddings_and_output_weights":
            shared = text not in _OFF
        elif key.name == "_target_" and _CLASS.search(text):
            target = text
        else:
            _translate(given, key, text)
    if not shared:
        given.add("--untie-embeddings-and-output-weights", [], 1)
    if launch is None:
        recipe = megatron_recipe(given, None, "nemo-yaml", "", nodes or None, devices or None)
    else:
        title = PurePath(launch.script.text).name
        nodes, devices = _cluster(given, launch, nodes, devices)
        recipe = megatron_recipe(given, launch.environment, "nemo-shell", title, nodes, devices)
    if recipe.precision == "fp32":
        recipe = _in_full_precision(recipe, keys)
    return _with_model(recipe, target) if recipe.model is None and target else recipe


def _cluster(given: Given, launch: Launch, nodes: int | None, devices: int | None) -> tuple[int | None, int | None]:
    """Nodes and devices as the keys say, else as the launcher does."""
    if launch.launcher == "python" or (nodes and devices):
        return nodes or (None if "nodes" in given.incomplete else 1), devices
    own_nodes, own_devices = cluster_of(launch, given)
    return nodes or own_nodes, devices or own_devices


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
    if key.values and not key.values[0].known and name in _PRECISIONS:
        given.add("--bf16", key.values, line, key.file)  # which one only the run knows
        return
    on = lowered not in _OFF
    if name in _PRECISIONS:
        half = "--bf16" if lowered.startswith("bf") else "--fp16" if "16" in lowered else ""
        narrow = ["--fp8-format"] if "fp8" in lowered else []
        for flag in (*([half] if half else []), *narrow):
            given.add(flag, [text_value("hybrid", line)] if narrow and flag in narrow else [], line, key.file)
    elif name in ("fp8", "fp8_hybrid", "fp8_e4m3") and on:
        given.add("--fp8-format", [text_value("hybrid", line)], line, key.file)
    elif name == "activation" and "swiglu" in lowered:
        given.add("--swiglu", [], line, key.file)
    elif name == "num_query_groups" and on:
        given.add("--group-query-attention", [], line, key.file)
        given.add("--num-query-groups", key.values, line, key.file)
    elif name == "name" and lowered == "distributed_fused_adam":
        given.add("--use-distributed-optimizer", [], line, key.file)
    elif name == "overlap_p2p_comm" and not on:
        given.add("--no-overlap-p2p-communication", [], line, key.file)
    elif name not in _TRANSLATED:
        _add_flag(given, key, lowered)


def _add_flag(given: Given, key: Key, lowered: str) -> None:
    """A key that is spelled as a flag; one that is off is not there."""
    name = _KEYS.get(key.name, key.name).replace("-", "_")
    flag = MEGATRON_FLAGS.get(name)
    if flag is None:
        return
    if key.values and not key.values[0].known:
        given.add(name, key.values, key.line, key.file)
    elif flag.kind == "switch":
        if lowered not in _OFF:
            given.add(name, [], key.line, key.file)
    elif lowered not in ("", "none", "null") and not lowered.startswith("${"):
        given.add(name, key.values, key.line, key.file)
