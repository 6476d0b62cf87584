"""Runs of NeMo and Megatron-Bridge: keys of their files and logs."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import OFF, Arguments
from simulator.frameworks.configuration import Interpolation, remark_keys
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import Flag, plain, table_of
from simulator.frameworks.logs import StepLogForm, counts
from simulator.frameworks.megatron.framework import no_decoder
from simulator.frameworks.megatron.read import read
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.origin import Place, Remark
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import read_yaml

_SECTIONS: Final[Mapping[tuple[str, ...], str]] = {
    ("model", "mm_cfg"): "models with a vision encoder are not modelled",
    ("trainer", "ppo"): "training on preferences by PPO, with a model that generates, is not modelled",
    ("actor", "trainer"): "training on preferences by PPO, with a model that generates, is not modelled",
    ("trainer", "dpo"): "training on preferences under a frozen copy of the model is not modelled",
    ("trainer", "knowledge_distillation"): "a second model beside the one that is trained is not priced",
}  # sections of the configurations in examples/multimodal of NeMo 8cfedd7 and examples/nlp/gpt/conf of NeMo-Aligner
_KEYS: Final = {
    "virtual_prompt_style": "prompts or adapters in front of frozen layers are not priced",
    "vision_pretraining_type": "a vision model is not modelled",
}
_NAMES: Final = (("name",), ("run", "name"), ("exp_manager", "name"))
_GENERATES: Final = re.compile(r"(?<![a-z])(?:ppo|grpo|rloo|ilql|reinforce)(?![a-z])")
"""Names of runs whose scripts, such as those of trlX, add a value head, a frozen copy or a generation."""
_PAIR: Final = {("model", "vision"), ("model", "text")}  # sections of CLIP: an image encoder and a text encoder
_TWO: Final = "an encoder of images and one of text are not modelled"
_REWARD: Final = ("trainer", "rm")


def other_run(keys: Iterable[Key]) -> tuple[Key, str] | None:
    """Return the key that marks another kind of run, and the remark on it; None where a decoder is trained."""
    sections: dict[tuple[str, ...], Key] = {}
    for key in keys:
        sections.setdefault(key.path[:2], key)
        if key.path[:2] in _SECTIONS and len(key.path) > 2:
            return key, f"{'.'.join(key.path[:2])}: {_SECTIONS[key.path[:2]]}"
        if key.name in _KEYS:
            return key, f"{key.name}: {_KEYS[key.name]}"
        text = key.values[0].text if key.values and key.path in _NAMES else ""
        if _GENERATES.search(text.lower()):
            return key, f"{text[:60]}: training with a model that generates is not modelled"
    return (sections["model", "vision"], f"vision: {_TWO}") if sections.keys() >= _PAIR else None


def reward_options(keys: Iterable[Key]) -> dict[str, str]:
    """Return the switches of a reward model: a score in place of the logits, and pairs unless it fits given scores.

    NeMo-Aligner's megatron_gpt_reward_model.py puts the chosen and the rejected answers of a micro batch into one.
    """
    listed = list(keys)
    if not any(key.path[:2] == _REWARD for key in listed):
        return {}
    kind = next((key.values[0].text for key in listed if key.name == "reward_model_type" and key.values), "")
    pairs = {} if kind == "regression" else {"sequences_per_sample": "2"}
    return {"score_head": "true", **pairs}


RESTORED: Final = ("run", "model_train_name")
"""Key in which NeMo 1's launcher names the weights that a run starts from."""


STEP_LOG: Final = StepLogForm(
    name="NeMo or MLPerf",
    framework="megatron",
    order=30,
    begins=re.compile(r"train_step_timing(?: in s)?[\"']?[=: ]|:::MLLOG \{"),
    step=re.compile(
        r"(?:global_step[=:] ?(?P<at>\d{1,9})(?:\.0+)?\b.{0,200}?train_step_timing in s[=:] ?"
        r"|\bStep (?P<at_>\d{1,9}) train_step_timing )(?P<seconds>[0-9.]{1,20})"
    ),
    facts=(
        re.compile(r"global_batch_size[\"']?: (?P<batch>\d{1,9})\b"),
        re.compile(r"micro_batch_size[\"']?: (?P<micro>\d{1,9})\b"),
        re.compile(r"encoder_seq_length[\"']?: (?P<sequence>\d{1,9})\b"),
    ),
    columns=functools.partial(
        counts, names={"global_batch_size": "batch", "micro_batch_size": "micro", "seq_length": "sequence"}
    ),
)


_OWN: Final = table_of("nemo", "bridge")
_RENAMED: Final = {flag.name: other for flag in _OWN.values() for other, text in flag.aliases() if not text}
"""Megatron's flags by the keys that name them differently; other keys are looked up by their own names."""
_SPECIAL: Final = (
    *("num_nodes", "devices", "num_gpus_per_node", "nnodes", "nproc_per_node", "precision", "mixed_precision", "fp8"),
    *("grad_sync_dtype", "megatron_amp_O2", "fsdp", "type", "activation", "bias", "num_query_groups", "name", "dim"),
    *("share_embeddings_and_output_weights", "_target_", "overlap_p2p_comm", "peft_scheme", "adapter_dim"),
)  # keys with code of their own
_PADDLE: Final = frozenset(["per_device_train_batch_size", "tensor_parallel_degree", "fp16_opt_level"])
"""Keys of Paddle's trainers, whose files may have similar sections."""
_CLASS: Final = re.compile(
    r"(Llama|Qwen|Mixtral|Mistral|DeepSeek|Gemma|Phi|Baichuan|ChatGLM)(\w{0,40}?)"
    r"(?:Config|ModelProvider|Provider)(\w{0,40})"
)
_OTHER_MODEL: Final = re.compile(
    r"vision|vit|image|video|audio|speech|projector|teacher|draft|reward|critic|reference|ref_policy"
)  # parts of the path of a model beside the trained one
_OTHER_RUN: Final = re.compile(r"valid|test|eval|inference|generat")
"""Parts of the path of keys that do not concern training."""
_PRECISIONS: Final = ("precision", "mixed_precision")
_LORA_RANK: Final = 32
_DISTRIBUTED: Final = ("distributed_fused_adam", "mcore_distributed_optim")
"""Optimizers of NeMo that shard their state over the replicas."""
_PLAIN: Final = ("fused_adam", "adam", "adamw")


def is_nemo(names: Collection[str]) -> bool:
    """Whether keys belong to NeMo or Megatron-Bridge."""
    return _PADDLE.isdisjoint(names) and any(name.endswith(".tensor_model_parallel_size") for name in names)


def read_nemo(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    filled = Interpolation(keys, arguments.settings)
    run, chosen = read_filled(arguments, filled, None)
    sized = run.model is not None or {"num_hidden_layers", "hidden_size"} & run.model_fields.keys()
    if not sized and {"train", "model"} <= {key.path[0] for key in chosen if len(key.path) > 1}:
        message = "no class and no sizes of a model: Megatron-Bridge lays such a file over a recipe in Python"
        arguments.remark_line("base-configuration", "warning", message, 1)
    return run


_PARTS: Final = {
    "fp8_format": ("fp8_param_gather", "fp8_recipe"),
    "fp4_format": ("fp4_param_gather", "fp4_recipe"),
    "cpu_offloading": ("cpu_offloading_weights", "cpu_offloading_activations", "cpu_offloading_num_layers"),
    "tp_comm_overlap": ("tp_comm_overlap_ag", "tp_comm_overlap_rs", "tp_comm_overlap_cfg"),
}  # flags that only configure another one, and have no effect where that one is off


def read_filled(
    arguments: Arguments, filled: Interpolation, environment: Mapping[str, PlainValue] | None
) -> tuple[Recipe, list[Key]]:
    """Return the run of keys with resolved references, and the keys that count; only a launch has an environment."""
    shared = True
    target = ""
    unread: list[tuple[str, Key]] = []
    chosen = _chosen(filled.keys(), arguments)
    arguments.passed |= {key.dotted.replace("-", "_").lower() for key in chosen if key.dotted in filled.referred}
    arguments.note_unset(filled.assumed_unset)
    for key in chosen:
        text = key.values[0].text if key.values else ""
        if key.name in _COUNTS:
            setattr(arguments, _COUNTS[key.name], _count(arguments, key, _COUNTS[key.name]))
        elif key.name == "share_embeddings_and_output_weights":
            shared = text.lower() not in OFF
        elif key.name == "_target_" and _CLASS.search(text):
            target = text
        elif not _trained(arguments, key, text) and not _translate(arguments, key, text):
            unread.append((key.name, key))
    other = other_run(filled.keys())
    if other is None:
        remark_keys(arguments, unread, "nemo", "bridge")
    else:
        arguments.remark_key(*other)
    for part in (part for name, parts in _PARTS.items() if not arguments.has(name) for part in parts):
        arguments.entries.pop(part, None)
    if not shared:
        arguments.add("--untie-embeddings-and-output-weights", [], 1)
    rank = _lora(arguments, chosen)
    run = read(arguments, environment)
    run = dataclasses.replace(run, lora_rank=rank or run.lora_rank, options={**run.options, **reward_options(chosen)})
    run = _in_wide_weights(run, chosen)
    if run.precision == "fp32":  # only where a key says 32; otherwise the script decides the precision
        in_full = any(key.name in _PRECISIONS and "32" in key.values[0].text for key in chosen if key.values)
        arguments.remarks = [remark for remark in arguments.remarks if remark.rule != "full-precision"]
        run = dataclasses.replace(run, precision="fp32" if in_full else None)
    return _with_model(arguments, run, target, chosen), chosen


def _trained(arguments: Arguments, key: Key, text: str) -> bool:
    """Take a key on the kind of model or its samples; False for other keys."""
    if key.path == ("name",):
        if other := no_decoder(text):
            arguments.remark_key(key, other)
    elif key.name == "num_soft_negatives":
        arguments.remark_key(key, f"{key.name}: the retrieval model is not priced")
    elif key.path[-2:] == ("train_ds", "max_seq_length"):
        _add_samples(arguments, key)
    else:
        return False
    return True


def _add_samples(arguments: Arguments, key: Key) -> None:
    """Add the longest sample as sequence length, where the restored weights' configuration has it."""
    if arguments.has("seq-length") or not key.values or not key.values[0].known:
        return
    arguments.add("--seq-length", key.values, key.line, key.file)
    message = "max_seq_length bounds the samples: a batch is as long as its longest one, and full ones are priced"
    arguments.remark_key(key, message, "activations-bound", "warning", bound="length")


_COUNTS: Final = {
    "num_nodes": "nodes",
    "nnodes": "nodes",
    "devices": "devices_per_node",
    "num_gpus_per_node": "devices_per_node",
    "nproc_per_node": "devices_per_node",
}


def _count(arguments: Arguments, key: Key, option: str) -> int | None:
    """Return nodes, or devices per node; None where the run decides, as for `devices: auto`."""
    value = key.values[0] if key.values else known_value("", key.line)
    arguments.places[option] = Place(key.file or arguments.file, max(key.line, 1))
    if not value.known:
        arguments.need(value.causes, option)
    return int(value.text) or None if re.fullmatch(r"[0-9]{1,6}", value.text, re.ASCII) else None


def _chosen(keys: Iterable[Key], arguments: Arguments) -> list[Key]:
    """Return the keys that count: where sections share a name, the model's own, else the one nearest the top."""
    nearest: dict[str, Key] = {}
    rest: list[Key] = []
    others: dict[str, Key] = {}
    for key in keys:
        section = next((part for part in key.path[:-1] if _OTHER_MODEL.search(part)), "")
        if section:
            others.setdefault(section, key)
        elif any(_OTHER_RUN.search(part) for part in key.path[:-1]):
            continue
        elif key.name in ("name", "type", "_target_", "dim", "adapter_dim", "peft_scheme") or not (
            key.name in _SPECIAL or _flag_of(arguments, key.name) is not None
        ):
            rest.append(key)
        else:
            name = _RENAMED.get(plain(key.name), plain(key.name))
            nearest[name] = min(nearest.get(name, key), key, key=lambda k: (k.path[0] != "model", len(k.path), k.line))
    for section, key in others.items():
        message = f"{section}: a second model beside the one that is trained is not modelled"
        arguments.remark_key(key, message, severity="warning")
    return sorted((*rest, *nearest.values()), key=lambda key: key.line)


def _lora(arguments: Arguments, keys: Iterable[Key]) -> int | None:
    """Return the LoRA rank; None where all weights are trained."""
    rank: int | None = None
    scheme = ""
    for key in keys:
        text = key.values[0].text if key.values else ""
        inside = "peft" in key.path or "lora_tuning" in key.path
        if key.name in ("peft_scheme", "peft_type") or (inside and key.name == "_target_"):
            scheme = text.rsplit(".", 1)[-1].lower() if text.lower() not in OFF else ""
            arguments.places["lora_rank"] = Place(key.file or arguments.file, key.line)
        elif key.name == "lora_dim" or (
            inside and key.name in ("dim", "adapter_dim") and "lora" in f"{scheme}{key.path}".lower()
        ):
            rank = int(text) if re.fullmatch(r"[0-9]{1,5}", text, re.ASCII) else None
    if scheme and scheme != "lora":
        place = arguments.places.pop("lora_rank")
        arguments.remarks.append(Remark("not-modelled", "error", f"peft {scheme[:40]} is not modelled", place))
    return (rank or _LORA_RANK) if scheme == "lora" else None


def _in_wide_weights(run: Recipe, keys: Iterable[Key]) -> Recipe:
    """Return the run with fp32 weights where O2 is off: NeMo then casts them for each product."""
    off = any(key.name == "megatron_amp_O2" and key.values and key.values[0].text.lower() in OFF for key in keys)
    if not off or run.precision in (None, "fp32"):
        return run
    wide = {"parameter_dtype": "fp32", "gradient_dtype": "fp32", "master_weights": "false"}
    return dataclasses.replace(run, options={**run.options, **wide})


def _with_model(arguments: Arguments, run: Recipe, target: str, keys: Iterable[Key]) -> Recipe:
    """Return the run with the model of the restored weights, else of a class, if nothing else identifies one."""
    if run.model is None and "num_hidden_layers" not in run.model_fields:
        restored = (key.values[0].text for key in keys if key.path == RESTORED and key.values)
        run = with_named_model(arguments, run, next(restored, ""))
    match = _CLASS.search(target)
    if run.model is not None or match is None:
        return run
    family, version, size = match.groups()
    # Classes write 1.7B as 1P7B and 0.6B as 600M.
    size = re.sub(r"(?<=\d)P(?=\d)", ".", re.sub(r"^(\d)00M$", r"0.\1B", size))
    dotted = ".".join(re.findall(r"\d", version))
    names = (f"{family}{dotted}-{size}", f"{family}-{dotted}-{size}", f"{family}-{size}", f"{family}-{version}")
    return with_named_model(arguments, run, *names)


def with_named_model(arguments: Arguments, run: Recipe, *names: str) -> Recipe:
    """Return the run with the first model that a name means; its experts are split like its other layers.

    Megatron-Bridge 067f987 sets no dropout in its providers (models/llama/llama_bridge.py and its neighbours).
    """
    model = next((model for model, _ in map(models.by_name, names) if model), None)
    if model is None:
        return run
    remarks = [remark for remark in arguments.remarks if remark.rule != "no-vocabulary"]
    arguments.remarks = [remark for remark in remarks if remark.place or remark.rule != "not-modelled"]
    layout = run.layout
    if layout and models.load_model(model).is_moe and "etp" not in arguments.places:
        layout = dataclasses.replace(layout, expert_tensor_parallel=layout.tensor_parallel)
    none = {f"{kind}_dropout": "false" for kind in ("attention", "hidden") if f"{kind}_dropout" not in arguments.places}
    return dataclasses.replace(run, model=model, model_fields={}, layout=layout, options={**run.options, **none})


def _translate(arguments: Arguments, key: Key, text: str) -> bool:
    """Add the flags that a key stands for; False where it stands for none."""
    name, lowered = key.name, text.lower()
    unknown = frozenset().union(*(value.causes for value in key.values))
    if name == "name":
        if len(key.path) > 1 and key.path[-2] in ("optim", "optimizer"):
            if lowered in _DISTRIBUTED:
                arguments.add("--use-distributed-optimizer", [], key.line, key.file)
            adam = lowered in (*_DISTRIBUTED, *_PLAIN)
            arguments.add("--optimizer", [known_value("adam", key.line)] if adam else key.values, key.line, key.file)
    elif name in _PRECISIONS and unknown:
        arguments.need(unknown, "precision")
    elif name in _PRECISIONS:
        _add_precision(arguments, key, lowered)
    else:
        return _translate_parts(arguments, key, lowered)
    return True


def _translate_parts(arguments: Arguments, key: Key, lowered: str) -> bool:
    """Add the flags of a key of the model's parts; False where it stands for none."""
    name, line, on = key.name, key.line, lowered not in OFF
    if name == "type" and len(key.path) > 1 and key.path[-2] == "tokenizer" and on:
        arguments.add("--tokenizer-type", key.values, line, key.file)
    elif (name == "grad_sync_dtype" and lowered in ("bf16", "bfloat16")) or (
        name == "grad_reduce_in_fp32" and lowered in OFF and key.values
    ):
        arguments.add("--grad-reduce-in-bf16", [], line, key.file)
    elif name == "fsdp" and on:
        arguments.remark_key(key, "fsdp: torch FSDP of Megatron's layers is not modelled")
    elif name in ("activation", "activation_func"):
        _add_activation(arguments, key, lowered.rpartition(".")[2].removeprefix("fast-"))
    elif name == "num_query_groups" and on:
        arguments.add("--group-query-attention", [], line, key.file)
        arguments.add("--num-query-groups", key.values, line, key.file)
    elif name in ("fp8", "overlap_p2p_comm", "bias"):
        arguments.add_as(_OWN[name], key.values, line, key.file)
    elif name not in _SPECIAL:
        return _add_flag(arguments, key, lowered)
    return True


def _add_activation(arguments: Arguments, key: Key, lowered: str) -> None:
    if lowered in ("swiglu", "geglu", "squared-relu"):
        arguments.add(f"--{lowered}", [], key.line, key.file)
    elif lowered not in ("gelu", "silu", ""):  # gating has a key of its own
        arguments.remark_key(key, f"activation {lowered[:40]}: networks with this activation are not modelled")


def _add_precision(arguments: Arguments, key: Key, lowered: str) -> None:
    half = "--bf16" if lowered.startswith("bf") else "--fp16" if "16" in lowered else ""
    if half:
        arguments.add(half, [], key.line, key.file)
    if "fp8" in lowered:
        arguments.add("--fp8-format", [known_value("hybrid", key.line)], key.line, key.file)


def _flag_of(arguments: Arguments, name: str) -> Flag | None:
    """Return Megatron's flag of a key; None without one or where it changes neither memory nor speed."""
    own = _OWN.get(plain(name))
    if own is not None and own.effect == "no_effect":
        return None
    flag = arguments.table.get(_RENAMED.get(plain(name), plain(name)))
    return None if flag is None or flag.effect == "no_effect" else flag


def _add_flag(arguments: Arguments, key: Key, lowered: str) -> bool:
    """Add a key that is spelled like a flag, unless it is off; False for a key that should be remarked."""
    if key.name == "mamba_ssm_ngroups":
        # A Mamba model always uses this stack: megatron_mamba_model.py of 022622e.
        arguments.add("--spec", [known_value(".mamba_layer_specs mamba_stack_spec", key.line)], key.line, key.file)
    flag = _flag_of(arguments, key.name)
    if flag is None:
        silent = (
            any(table.passes(plain(key.name)) for table in (_OWN, arguments.table))
            or lowered in OFF
            or _idle_sections() & set(key.path[:-1])
        )
        return bool(silent) or len(key.path) == 1 or key.dotted.replace("-", "_").lower() in arguments.passed
    if flag.kind == "switch" or lowered not in ("", "none", "null"):
        arguments.add_key(flag.name, key.values, key.line, key.file)
    return True


@functools.cache
def _idle_sections() -> frozenset[str]:
    return frozenset(read_yaml(Path(__file__).with_name("idle_sections.yaml")))
