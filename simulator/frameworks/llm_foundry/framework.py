"""Reader of llm-foundry's configuration files, which Composer trains with FSDP.

Read at 8c8dd48 as `utils/config_utils.py`, `models/mpt/configuration_mpt.py` and `models/hf/hf_causal_lm.py` read them,
whose defaults apply where a key is absent. Files for MosaicML's platform have the same keys below `parameters`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import filled_keys, take_files
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.models import named_model
from simulator.frameworks.take import part, read_optimizer, take
from simulator.frameworks.transformers.read import peft_targets
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout

_PLATFORM: Final = "parameters"
_SUFFIXES: Final = (".yaml", ".yml")
_NAME: Final = "model.pretrained_model_name_or_path"
_MODELS: Final = ("mpt_causal_lm", "hf_causal_lm")
_PLACED: Final = ("model.attn_config.alibi", "model.attn_config.rope", "model.attn_config.nope")
"""Keys of position encodings that replace learned positions."""
_STAGES: Final = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0}
_PRECISIONS: Final = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32"}
_OPTIMIZERS: Final = {"decoupled_adamw": "adamw", "decoupled_lionw": "lion"}
_PROCESSES: Final = ("n", "nproc", "world_size")


def is_file(names: Collection[str]) -> bool:
    """Whether keys belong to llm-foundry's trainer."""
    own = {name.removeprefix(f"{_PLATFORM}.") for name in names}
    return {"train_loader.name", "model.name", "max_duration"} <= own


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts Composer with a configuration file."""
    return launch.program == "composer" and any(text.endswith(_SUFFIXES) for text in launch.texts)


def _add_keys(arguments: Arguments, keys: Sequence[Key], file: str) -> None:
    platform = [key.path[0] == _PLATFORM and len(key.path) > 1 for key in keys]
    paths = (key.path[inside:] for key, inside in zip(keys, platform, strict=True))
    own = (dataclasses.replace(key, path=path) for key, path in zip(keys, paths, strict=True))
    arguments.add_keys(filled_keys(arguments, own), file)


def cluster(arguments: Arguments, launch: LaunchCommand) -> tuple[int | None, int | None]:
    """Return one node with the processes that Composer's options state, else with all its devices."""
    processes = next((launch.options[name] for name in _PROCESSES if name in launch.options), None)
    if processes is None or not processes.text.isdecimal():
        arguments.need(processes.causes if processes is not None else (), "devices_per_node")
        return 1, None
    if "world_size" in launch.options:
        arguments.devices = int(launch.options["world_size"].text)
        return None, None
    return 1, int(processes.text)


def read(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    _add_keys(arguments, keys, "")
    devices = arguments.integer("devices", "compute.gpus", high=2**20)
    if devices:
        arguments.devices = devices
        entry = arguments.entry("compute.gpus")
        arguments.places["devices"] = entry.value_place if entry else Place(arguments.file, 1)
    return read_launch(arguments, None)


def read_launch(arguments: Arguments, _: LaunchCommand | None) -> Recipe:
    """Return the run of a launch, or of a file's keys without one."""
    targets = take(arguments)
    kind = arguments.text("model", "model.name") or ""
    if kind not in _MODELS:
        arguments.not_modelled(f"model {kind[:40]} is not modelled", "model.name")
    sequence = targets.get("workload.seq_length")
    shape = _shape(arguments, part(targets, "model"), sequence) if kind == _MODELS[0] else {}
    name = named_model(arguments, arguments.text("model", _NAME) or "", _NAME) if not shape else models.by_shape(shape)
    sizes = {"zero_stage": _zero_stage(arguments), **part(targets, "layout")}
    if arguments.text("micro_batch_size", "device_train_microbatch_size") == "auto":
        arguments.not_modelled("a micro batch that the trainer chooses is not known", "device_train_microbatch_size")
        sizes.pop("micro_batch_size", None)
    trims = "train_loader.dataset.allow_pad_trimming"
    if arguments.switch("padding", trims):
        message = "allow_pad_trimming: a batch is as long as its longest sample, and full ones are priced"
        arguments.remark("activations-bound", "warning", message, trims, bound="length")
    run = Recipe(
        framework="torch",
        model=name,
        model_fields=shape,
        shape=shape,
        precision=_PRECISIONS.get(arguments.text("precision", "precision") or "amp_bf16"),
        **part(targets, "workload"),
        options={"foreach_optimizer": "false", "frozen_dtype": "fp32"}
        | _loss(arguments, kind)
        | read_optimizer(arguments, "optimizer.name", "torch", own=_OPTIMIZERS)
        | part(targets, "option"),
        layout=Layout(**sizes),
    )
    return peft_targets(arguments, run)


def _shape(arguments: Arguments, shape: dict[str, Any], sequence: int | None) -> dict[str, Any]:
    """Return MPT's network, as far as the file states its sizes."""
    width, heads = shape.get("hidden_size"), shape.get("num_attention_heads")
    if not width or not heads:
        return {}
    biased = not arguments.switch("mlp_bias", "model.no_bias")
    alibi, rotary, _ = (arguments.switch("rotary", name) for name in _PLACED)
    if alibi:
        arguments.remark("not-modelled", "warning", "biases of positions are priced as none", _PLACED[0])
    ratio = arguments.integer("intermediate_size", "model.expansion_ratio", high=2**10) or 4
    learned = not any(arguments.switch("learned_positions", name) for name in _PLACED)
    arguments.forget("rotary", "learned_positions")
    return {
        "architecture": "gpt2",
        "gated": False,
        "activation": "gelu",
        "norm": "layer_norm" if biased else "layer_norm_without_bias",
        "tie_word_embeddings": True,
        "attention_bias": biased,
        "attention_output_bias": biased,
        "mlp_bias": biased,
        "intermediate_size": ratio * width,
        "head_dim": width // heads,
        "num_key_value_heads": heads,
        "vocab_size": 50368,
        "rotary": rotary,
        "learned_positions": (sequence or 0) if learned else 0,
        **shape,
    }


def _loss(arguments: Arguments, kind: str) -> dict[str, str]:
    """Return the switches of MPT's loss: FlashAttention's kernel has 16-bit logits and their gradient.

    llm-foundry 8c8dd48, llmfoundry/models/mpt/modeling_mpt.py: `loss_fn` is `fused_crossentropy` unless the file has
    `torch_crossentropy`. Other networks take the loss of transformers.
    """
    named = arguments.text("fused_cross_entropy", "model.loss_fn") or "fused_crossentropy"
    fused = kind == _MODELS[0] and named == "fused_crossentropy"
    return {"fused_cross_entropy": "true", "loss_bytes_per_logit": "4"} if fused else {}


def _zero_stage(arguments: Arguments) -> int:
    """Return the ZeRO stage of FSDP's strategy; 0 without its section."""
    if not any(name.startswith("fsdp_config.") for name in arguments.entries):
        return 0
    strategy = (arguments.text("zero_stage", "fsdp_config.sharding_strategy") or "FULL_SHARD").lower()
    if strategy not in _STAGES:
        arguments.not_modelled(f"sharding_strategy {strategy[:30]} is not modelled", "fsdp_config.sharding_strategy")
    return _STAGES.get(strategy, 3)


FRAMEWORK: Final = Framework(
    title="llm-foundry",
    profile="torch",
    launches=(LaunchForm("composer-shell", 10, is_launch, read_launch, partial(take_files, take=_add_keys), cluster),),
    files=(FileForm("llm-foundry-yaml", 20, is_file, read),),
)
