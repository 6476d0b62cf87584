"""NeMo and Megatron-Bridge configuration files, read as the Megatron flags they stand for."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks import models
from simulator.frameworks.arguments import OFF
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.configuration import configuration
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import Flag, flags_of
from simulator.frameworks.interpolation import Interpolation
from simulator.frameworks.megatron.framework import no_decoder
from simulator.frameworks.unread import remark_keys
from simulator.frameworks.values import EMPTY, PlainValue, known_value
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.readers.megatron import megatron_recipe
from simulator.recipes.readers.megatron_flags import FLAGS as MEGATRON_FLAGS
from simulator.recipes.readers.megatron_flags import PASSED
from simulator.recipes.readers.nemo_runs import RESTORED, as_part, other_run, restored, reward_options
from simulator.recipes.readers.nemo_sections import OWN_PASSED, SECTIONS
from simulator.recipes.recipe import Place, Recipe, Remark
from simulator.recipes.shell.launch import TrainingCommand

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
    "fp8_param": "fp8-param-gather",
    "fp8_params": "fp8-param-gather",
    "override_vocab_size": "padded-vocab-size",
    "mamba_ssm_ngroups": "mamba-num-groups",
}
"""Keys whose flag has another name; other keys are looked up among Megatron's flags."""
_TRANSLATED: Final = {
    "num_nodes": "nodes",
    "devices": "devices of a node",
    "num_gpus_per_node": "devices of a node",
    "nnodes": "nodes (FlagScale)",
    "nproc_per_node": "devices of a node (FlagScale)",
    "precision": "precision: bf16, bf16-mixed, 16, 32",
    "mixed_precision": "precision: bf16_mixed, fp16_mixed, bf16_with_fp8_..._mixed",
    "fp8": "precision fp8",
    "grad_sync_dtype": "type of gradients",
    "megatron_amp_O2": "false: weights in fp32, without master weights",
    "fsdp": "refused: torch FSDP of Megatron's layers is not modelled",
    "type": "in tokenizer: vocabulary, where it names the tokenizer",
    "activation": "FFN, gated or not: gelu, geglu, swiglu, squared-relu, also their fast forms",
    "bias": "false: no biases beside the weights of the layers' products",
    "num_query_groups": "KV heads",
    "share_embeddings_and_output_weights": "tied output weights; on where the key is absent",
    "name": "in optim: ZeRO stage 1, for distributed_fused_adam and mcore_distributed_optim; others are warned of",
    "_target_": "model, where the class names it; LoRA, in peft",
    "overlap_p2p_comm": "switch overlap_p2p",
    "peft_scheme": "lora: LoRA; others are refused",
    "adapter_dim": "LoRA rank, in lora_tuning",
    "dim": "LoRA rank, in peft",
}
FLAGS: Final = {key: Flag(MEGATRON_FLAGS[flag.replace("-", "_")].about) for key, flag in _KEYS.items()} | {
    key: Flag(about) for key, about in _TRANSLATED.items()
}
"""Keys for the documentation; those spelled as Megatron's flags with underscores are read too."""
_CLASS: Final = re.compile(
    r"(Llama|Qwen|Mixtral|Mistral|DeepSeek)(\w{0,40}?)(?:Config|ModelProvider|Provider)(\w{0,40})"
)
_OTHER_MODEL: Final = re.compile(
    r"vision|vit|image|video|audio|speech|projector|teacher|draft|reward|critic|reference|ref_policy"
)
"""Parts of the path of a model beside the one that is trained."""
_OTHER_RUN: Final = re.compile(r"valid|test|eval|inference|generat")
"""Parts of the path of what does not train."""
_PRECISIONS: Final = ("precision", "mixed_precision")
_STAGES: Final = ("training", "fine_tuning", "peft")
"""Sections in which the launcher of NeMo 1 keeps one configuration each."""
_OVERRIDE: Final = re.compile(
    r"(?:~|\+{0,2})(?:(?:training|fine_tuning|peft)\.)?"
    r"(?P<path>(?:trainer|model|optim|optimizer|strategy|data|dataset|train|ddp)(?:\.\w+)+)(?P<equals>=|$)",
    re.ASCII,
)
"""A key that a command line sets, adds or takes away."""
_LORA_RANK: Final = 32
_DISTRIBUTED: Final = ("distributed_fused_adam", "mcore_distributed_optim")
"""Optimizers of NeMo that shard their state over the replicas."""
_PLAIN: Final = ("fused_adam", "adam", "adamw")


def is_nemo(keys: Iterable[Key]) -> bool:
    """Whether a document is of NeMo or Megatron-Bridge."""
    paths = {key.path for key in keys}
    return any(path[-1] == "tensor_model_parallel_size" and len(path) > 1 for path in paths)


def read_nemo(path: Path, keys: Iterable[Key], settings: Mapping[str, str]) -> tuple[Recipe, set[str]]:
    """The recipe of a configuration file, and the settings that it used."""
    own = list(keys)
    filled = Interpolation([*restored(path, own), *own], settings)
    return _recipe(Given(str(path), MEGATRON_FLAGS, PASSED | OWN_PASSED), filled, None), filled.used


def is_nemo_launch(launch: TrainingCommand) -> bool:
    """Whether a launch sets keys of NeMo on its command line; veRL's keys look alike."""
    if any(value.text.startswith("actor_rollout_ref.") for value in launch.arguments):
        return False
    return sum(_OVERRIDE.match(value.text) is not None for value in launch.arguments) >= 2


def read_nemo_launch(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of one launch: the configuration that it names, with the keys that the command line replaces."""
    named = next((value for value in launch.arguments if value.text.partition("=")[0] == "--recipe"), None)
    if named is not None:
        raise UnsupportedError(
            f"{file}:{max(named.line, 1)}: --recipe: Megatron-Bridge keeps what it sets in Python, which is not run; "
            "read are its configuration files that name the model and its layout"
        )
    given = Given(file, MEGATRON_FLAGS, PASSED | OWN_PASSED)
    keys: dict[tuple[str, ...], Key] = {}
    base = _base(given, launch, file)
    for key in (*base, *_overrides(launch)):
        keys.pop(key.path, None)
        keys[key.path] = key
    told = {name: value.text for name, value in launch.environment.items() if value.known}
    filled = Interpolation([key for key in keys.values() if key.values], told)
    return _recipe(given, filled, launch)


def _base(given: Given, launch: TrainingCommand, file: str) -> tuple[Key, ...]:
    """The keys of `--config-name` in `--config-path`, where it is beside the recipe."""
    words: dict[str, PlainValue] = {}
    for value, following in zip(launch.arguments, (*launch.arguments[1:], None), strict=True):
        name, equals, _ = value.text.partition("=")
        if name in ("--config-name", "--config-path"):
            words[name] = value.after(len(name) + 1) if equals else following or EMPTY
        elif equals and name in _STAGES:
            # The launcher's own choice of a file: `training=gpt3/20b`.
            words["--config-name"], words["--config-path"] = value.after(len(name) + 1), known_value(f"conf/{name}", 0)
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
        message = f"{name[:200]} is not beside the recipe: only the keys of the command line are read"
        given.remark_line("base-configuration", "warning", message, word.line)
        return ()
    return tuple(dataclasses.replace(key, file=found.file) for key in found.keys)


def _overrides(launch: TrainingCommand) -> Iterator[Key]:
    """Keys on the command line: `a.b=c`, `+a.b=c`, `++a.b=c`; `~a.b` takes one away."""
    for value in launch.arguments:
        match = _OVERRIDE.match(value.text)
        if match is None:
            continue
        path = tuple(match["path"].split("."))
        content = value.after(match.end()) if match["equals"] else EMPTY
        taken = value.text.startswith("~")
        yield Key(path, () if taken else (content,), value.line, content.text)


def _drop_parts(given: Given) -> None:
    for name, parts in _PARTS.items():
        if not given.has(name):
            for part in parts:
                given.entries.pop(part, None)


_PARTS: Final = {
    "fp8_format": ("fp8_param_gather", "fp8_recipe"),
    "cpu_offloading": ("cpu_offloading_weights", "cpu_offloading_activations", "cpu_offloading_num_layers"),
    "tp_comm_overlap": ("tp_comm_overlap_ag", "tp_comm_overlap_rs", "tp_comm_overlap_cfg"),
}
"""Flags that say how another one works, and nothing where that one is off."""


def _recipe(given: Given, filled: Interpolation, launch: TrainingCommand | None) -> Recipe:
    counts: dict[str, int | None] = {}
    shared = True
    target = ""
    unread: list[tuple[str, Key]] = []
    chosen = _chosen(filled.keys(), given)
    given.known |= {key.dotted.replace("-", "_").lower() for key in chosen if key.dotted in filled.referred}
    given.note_unset(filled.assumed_unset)
    for key in chosen:
        text = key.values[0].text if key.values else ""
        if key.name in _COUNTS:
            counts[_COUNTS[key.name]] = _count(given, key, _COUNTS[key.name])
        elif key.name == "share_embeddings_and_output_weights":
            shared = text.lower() not in OFF
        elif key.name == "_target_" and _CLASS.search(text):
            target = text
        elif not _trained(given, key, text) and not _translate(given, key, text):
            unread.append((key.name, key))
    other = other_run(filled.keys())
    if other is None:
        remark_keys(given, unread, "nemo", "bridge")
    else:
        given.remark_key(*other)
    _drop_parts(given)
    if not shared:
        given.add("--untie-embeddings-and-output-weights", [], 1)
    rank = _lora(given, chosen)
    nodes, devices = counts.get("nodes"), counts.get("devices_per_node")
    if launch is None:
        recipe = megatron_recipe(given, None, "nemo-yaml", "", nodes, devices)
    else:
        title = PurePath(launch.script.text).name
        nodes, devices = _cluster(given, launch, nodes, devices)
        recipe = megatron_recipe(given, launch.environment, "nemo-shell", title, nodes, devices)
    options = {**recipe.options, **reward_options(chosen)}
    recipe = _in_wide_weights(dataclasses.replace(recipe, lora_rank=rank, options=options), chosen)
    if recipe.precision == "fp32":
        recipe = _in_full_precision(recipe, chosen)
    recipe = _as_restored(recipe, chosen)
    recipe = _with_model(recipe, target)
    return recipe if launch else as_part(recipe, {key.path[0] for key in chosen if len(key.path) > 1})


def _trained(given: Given, key: Key, text: str) -> bool:
    """Take what a key tells of the kind of model and of its samples; False where it tells neither."""
    if key.path == ("name",):
        if other := no_decoder(text):
            given.remark_key(key, other)
    elif key.name == "num_soft_negatives":
        given.remark_key(key, f"{key.name}: the retrieval model is not priced")
    elif key.path[-2:] == ("train_ds", "max_seq_length"):
        _add_samples(given, key)
    else:
        return False
    return True


def _add_samples(given: Given, key: Key) -> None:
    """The longest sample, where the weights that are restored keep how long a sequence is."""
    if given.has("seq-length") or not key.values or not key.values[0].known:
        return
    given.add("--seq-length", key.values, key.line, key.file)
    message = "max_seq_length bounds the samples: a batch is as long as its longest one, and full ones are priced"
    given.remark_key(key, message, "activations-bound", "warning")


_COUNTS: Final = {
    "num_nodes": "nodes",
    "nnodes": "nodes",
    "devices": "devices_per_node",
    "num_gpus_per_node": "devices_per_node",
    "nproc_per_node": "devices_per_node",
}


def _count(given: Given, key: Key, option: str) -> int | None:
    """Nodes, or devices of a node; None where the run decides, as for `devices: auto`."""
    value = key.values[0] if key.values else known_value("", key.line)
    given.places[option] = Place(key.file or given.file, max(key.line, 1))
    if not value.known:
        given.need(value.causes, option)
    return int(value.text) or None if re.fullmatch(r"[0-9]{1,6}", value.text, re.ASCII) else None


def _chosen(keys: Iterable[Key], given: Given) -> list[Key]:
    """The keys that count: of a name that several sections have, the model's own, else the one nearest the top."""
    found: dict[str, Key] = {}
    kept: list[Key] = []
    others: dict[str, Key] = {}
    for key in keys:
        section = next((part for part in key.path[:-1] if _OTHER_MODEL.search(part)), "")
        if section:
            others.setdefault(section, key)
        elif any(_OTHER_RUN.search(part) for part in key.path[:-1]):
            continue
        elif key.name in ("name", "type", "_target_", "dim", "adapter_dim", "peft_scheme") or not _is_flag(key.name):
            kept.append(key)
        else:
            name = _KEYS.get(key.name, key.name).replace("-", "_")
            found[name] = min(found.get(name, key), key, key=_nearness)
    for section, key in others.items():
        message = f"{section}: a second model beside the one that is trained is not modelled"
        given.remark_key(key, message, severity="warning")
    return sorted((*kept, *found.values()), key=lambda key: key.line)


def _nearness(key: Key) -> tuple[bool, int, int]:
    return (key.path[0] != "model", len(key.path), key.line)


def _is_flag(name: str) -> bool:
    return name in _TRANSLATED or _KEYS.get(name, name).replace("-", "_") in MEGATRON_FLAGS


def _is_rank(key: Key, scheme: str, *, inside: bool) -> bool:
    """Whether a key is LoRA's rank: in NeMo's sections, or by FlagScale's name."""
    return key.name == "lora_dim" or (
        inside and key.name in ("dim", "adapter_dim") and "lora" in f"{scheme}{key.path}".lower()
    )


def _lora(given: Given, keys: Iterable[Key]) -> int | None:
    """LoRA rank, where the run trains adapters only."""
    rank: int | None = None
    scheme = ""
    for key in keys:
        text = key.values[0].text if key.values else ""
        inside = "peft" in key.path or "lora_tuning" in key.path
        if key.name in ("peft_scheme", "peft_type") or (inside and key.name == "_target_"):
            scheme = text.rsplit(".", 1)[-1].lower() if text.lower() not in OFF else ""
            given.places["lora_rank"] = Place(key.file or given.file, key.line)
        elif _is_rank(key, scheme, inside=inside):
            rank = int(text) if re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) else None
    if scheme and scheme != "lora":
        place = given.places.pop("lora_rank")
        given.remarks.append(Remark("not-modelled", "error", f"peft {scheme[:40]} is not modelled", place))
    return (rank or _LORA_RANK) if scheme == "lora" else None


def _cluster(
    given: Given, launch: TrainingCommand, nodes: int | None, devices: int | None
) -> tuple[int | None, int | None]:
    """Nodes and devices as the keys say, else as the launcher does."""
    if launch.launcher == "python" or (nodes and devices):
        return nodes or (None if "nodes" in given.incomplete else 1), devices
    own_nodes, own_devices = cluster_of(launch, given)
    return nodes or own_nodes, devices or own_devices


def _in_wide_weights(recipe: Recipe, keys: Iterable[Key]) -> Recipe:
    """The recipe, with weights in fp32 where O2 is off: NeMo then casts them for each product."""
    off = any(key.name == "megatron_amp_O2" and key.values and key.values[0].text.lower() in OFF for key in keys)
    if not off or recipe.precision in (None, "fp32"):
        return recipe
    wide = {"parameter_dtype": "fp32", "gradient_dtype": "fp32", "master_weights": "false"}
    return dataclasses.replace(recipe, options={**recipe.options, **wide})


def _in_full_precision(recipe: Recipe, keys: Iterable[Key]) -> Recipe:
    """The recipe, whose precision is known only where a key says 32: a configuration leaves it to the script else."""
    said = any(key.name in _PRECISIONS and "32" in key.values[0].text for key in keys if key.values)
    remarks = tuple(remark for remark in recipe.remarks if remark.rule != "full-precision")
    return dataclasses.replace(recipe, precision="fp32" if said else None, remarks=remarks)


def _as_restored(recipe: Recipe, keys: Iterable[Key]) -> Recipe:
    """The recipe with the model of the weights that it starts from, where the launcher's name for them tells it."""
    name = next((key.values[0].text for key in keys if key.path == RESTORED and key.values), "")
    known = recipe.model is not None or "num_hidden_layers" in recipe.model_fields
    return recipe if known else _named(recipe, name)


def _with_model(recipe: Recipe, target: str) -> Recipe:
    """The recipe with the model that a class name means, where nothing else tells it."""
    match = _CLASS.search(target)
    if recipe.model is not None or match is None:
        return recipe
    family, version, size = match.groups()
    dotted = ".".join(re.findall(r"\d", version))
    names = (f"{family}{dotted}-{size}", f"{family}-{dotted}-{size}", f"{family}-{size}", f"{family}-{version}")
    found = _named(recipe, *names)
    # Megatron-Bridge 067f987 sets both to zero in its providers (models/llama/llama_bridge.py and its neighbours).
    none = {f"{kind}_dropout": "false" for kind in ("attention", "hidden") if f"{kind}_dropout" not in recipe.places}
    return dataclasses.replace(found, options={**found.options, **none})


def _named(recipe: Recipe, *names: str) -> Recipe:
    """The recipe with the first model that one of the names means; its experts are split like its other layers."""
    model = next((model for model, _ in map(models.by_name, names) if model), None)
    if model is None:
        return recipe
    remarks = tuple(remark for remark in recipe.remarks if remark.rule != "no-vocabulary")
    remarks = tuple(remark for remark in remarks if remark.place or remark.rule != "not-modelled")
    layout = recipe.layout
    if layout and models.load_model(model).is_moe and "etp" not in recipe.places:
        layout = dataclasses.replace(layout, expert_tensor_parallel=layout.tensor_parallel)
    return dataclasses.replace(recipe, model=model, model_fields={}, remarks=remarks, layout=layout)


def _translate(given: Given, key: Key, text: str) -> bool:
    """Add the flags that a key stands for; False where it stands for none."""
    name, lowered = key.name, text.lower()
    unknown = frozenset().union(*(value.causes for value in key.values))
    if name == "name":
        if len(key.path) > 1 and key.path[-2] in ("optim", "optimizer"):
            _add_optimizer(given, key, lowered)
    elif name in _PRECISIONS and unknown:
        given.need(unknown, "precision")
    elif name in _PRECISIONS:
        _add_precision(given, key, lowered)
    else:
        return _translate_parts(given, key, lowered)
    return True


def _translate_parts(given: Given, key: Key, lowered: str) -> bool:
    """Add the flags of a key of the model's parts; False where it stands for none."""
    name, line, on = key.name, key.line, lowered not in OFF
    if name == "fp8" and on:
        given.add("--fp8-format", [known_value("hybrid", line)], line, key.file)
    elif name == "type" and len(key.path) > 1 and key.path[-2] == "tokenizer" and on:
        given.add("--tokenizer-type", key.values, line, key.file)
    elif name == "grad_sync_dtype" and lowered in ("bf16", "bfloat16"):
        given.add("--grad-reduce-in-bf16", [], line, key.file)
    elif name == "fsdp" and on:
        given.remark_key(key, "fsdp: torch FSDP of Megatron's layers is not modelled")
    elif name == "activation":
        _add_activation(given, key, lowered.removeprefix("fast-"))
    elif name == "bias" and not on:
        given.add("--disable-bias-linear", [], line, key.file)
    elif name == "num_query_groups" and on:
        given.add("--group-query-attention", [], line, key.file)
        given.add("--num-query-groups", key.values, line, key.file)
    elif name == "overlap_p2p_comm" and not on:
        given.add("--no-overlap-p2p-communication", [], line, key.file)
    elif name not in _TRANSLATED:
        return _add_flag(given, key, lowered)
    return True


def _add_activation(given: Given, key: Key, lowered: str) -> None:
    if lowered in ("swiglu", "geglu", "squared-relu"):
        given.add(f"--{lowered}", [], key.line, key.file)
    elif lowered not in ("gelu", ""):
        given.remark_key(key, f"activation {lowered[:40]}: networks with this activation are not modelled")


def _add_optimizer(given: Given, key: Key, lowered: str) -> None:
    """Take the optimizer's name, and what it shards."""
    if lowered in _DISTRIBUTED:
        given.add("--use-distributed-optimizer", [], key.line, key.file)
    adam = lowered in (*_DISTRIBUTED, *_PLAIN)
    given.add("--optimizer", [known_value("adam", key.line)] if adam else key.values, key.line, key.file)


def _add_precision(given: Given, key: Key, lowered: str) -> None:
    half = "--bf16" if lowered.startswith("bf") else "--fp16" if "16" in lowered else ""
    if half:
        given.add(half, [], key.line, key.file)
    if "fp8" in lowered:
        given.add("--fp8-format", [known_value("hybrid", key.line)], key.line, key.file)


def _add_flag(given: Given, key: Key, lowered: str) -> bool:
    """Take a key that is spelled as a flag; one that is off is not there. False: the key is not taken."""
    name = _KEYS.get(key.name, key.name).replace("-", "_")
    own = flags_of("nemo", "bridge").get(key.name.lower())
    if key.name == "mamba_ssm_ngroups":
        # Its model fills this stack whatever else is said: megatron_mamba_model.py of 022622e.
        given.add("--spec", [known_value(".mamba_layer_specs mamba_stack_spec", key.line)], key.line, key.file)
    flag = None if own is not None and own.effect == "no_effect" and key.name not in _KEYS else MEGATRON_FLAGS.get(name)
    if flag is None:
        silent = name in PASSED | OWN_PASSED or lowered in OFF or (SECTIONS & set(key.path[:-1]))
        return bool(silent) or len(key.path) == 1 or key.dotted.replace("-", "_").lower() in given.known
    if flag.kind == "switch" or lowered not in ("", "none", "null"):
        given.add_key(name, key.values, key.line, key.file)
    return True
