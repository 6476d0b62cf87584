"""Reader of OLMo's configuration files as `olmo/{config,model}.py` and `scripts/train.py` of 59a53e3 read them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from simulator.frameworks import models
from simulator.frameworks.arguments import OFF, Arguments, LaunchCommand
from simulator.frameworks.configuration import take_file
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.take import Targets, part, read_optimizer, take
from simulator.frameworks.values import PlainValue
from simulator.question.recipe import A_NODE, Recipe
from simulator.question.scenario.layout import Layout

_EMBEDDING: Final = 50304
_MLP_RATIO: Final = 4
_STEPS: Final = {"two": 2, "three": 3, "four": 4, "eight": 8}
_ONE_IN: Final = re.compile(r"one_in_(two|three|four|eight)")
"""Checkpoint every n-th block, beginning with the first (`should_checkpoint_block`)."""
_STAGES: Final = {"full_shard": 3, "hybrid_shard": 3, "shard_grad_op": 2, "_hybrid_shard_zero2": 2, "no_shard": 0}
_REPLICAS: Final = "fsdp.hybrid_sharding_num_model_replicas"
_SUFFIXES: Final = (".yaml", ".yml")
_PRECISIONS: Final = {"amp_bf16": "bf16", "amp_fp16": "fp16", "fp32": "fp32"}
_NORMS: Final = {"rms": "rms_norm", "default": "layer_norm", "low_precision": "layer_norm"}


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts OLMo's trainer with a configuration file."""
    files = any(value.text.endswith(_SUFFIXES) and "=" not in value.text for value in launch.arguments[:1])
    return files and launch.script.text.endswith("scripts/train.py")


def take_words(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the configuration file; `--key=value` overrides it."""
    if words[0].known:
        take_file(arguments, launch, words[0], Arguments.add_keys)
    else:
        arguments.need(words[0].causes, "model")


def read(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    arguments.add_keys(keys)
    message = (
        "launches of OLMo replace keys of the file, its micro batch and its checkpoints among them (scripts/beaker)"
    )
    arguments.remark("activations-bound", "warning", message, "device_train_microbatch_size")
    return read_launch(arguments, None)


def read_launch(arguments: Arguments, _: LaunchCommand | None) -> Recipe:
    """Return the run of a launch, or of a file's keys without one."""
    targets = take(arguments)
    shape = _shape(arguments, targets)
    layers = shape.get("num_hidden_layers")
    sizes = {"zero_stage": _zero_stage(arguments), **_recompute(arguments, layers), **part(targets, "layout")}
    return Recipe(
        framework="torch",
        model=models.by_shape(shape),
        model_fields=shape,
        shape=shape,
        seq_length=targets.get("workload.seq_length", 1024),
        global_batch_size=targets.get("workload.global_batch_size"),
        precision=_PRECISIONS.get(arguments.text("precision", "precision") or "fp32"),
        options=_options(arguments) | part(targets, "option"),
        layout=Layout(**sizes),
    )


def _shape(arguments: Arguments, targets: Targets) -> dict[str, Any]:
    """Return the network's fields, as far as the file states its sizes."""
    shape = part(targets, "model")
    width, heads = shape.get("hidden_size"), shape.get("num_attention_heads")
    if not width or not heads:
        return {}
    inner = arguments.integer("intermediate_size", "model.mlp_hidden_size", high=2**20)
    ratio = arguments.integer("intermediate_size", "model.mlp_ratio", high=2**10) or _MLP_RATIO
    inner = inner or ratio * width
    # One product computes gate and up together.
    shape["intermediate_size"] = inner // 2 if shape["gated"] else inner
    shape["head_dim"] = width // heads
    shape.setdefault("num_key_value_heads", 1 if arguments.switch("kv", "model.multi_query_attention") else heads)
    embedding = arguments.integer("vocab_size", "model.embedding_size", high=2**24)
    shape["vocab_size"] = embedding or _EMBEDDING
    if not shape["rotary"]:
        shape["learned_positions"] = targets.get("workload.seq_length", 1024)
    biased = arguments.switch("mlp_bias", "model.include_bias", default=True)
    shape |= {"attention_bias": biased, "attention_output_bias": biased, "mlp_bias": biased}
    kind = arguments.text("norm", "model.layer_norm_type") or "default"
    if kind not in _NORMS:
        arguments.not_modelled(f"layer_norm_type {kind[:30]} is not modelled", "model.layer_norm_type")
    shape["norm"] = norm = _NORMS.get(kind, "layer_norm")
    if norm == "layer_norm":
        weighted = arguments.switch("norm", "model.layer_norm_with_affine", default=True)
        with_bias = arguments.switch("norm", "model.bias_for_layer_norm", default=biased)
        shape["norm"] = "layer_norm_unweighted" if not weighted else norm if with_bias else "layer_norm_without_bias"
    return {"architecture": "olmo2", **shape}


def _zero_stage(arguments: Arguments) -> int:
    """Return the ZeRO stage of FSDP's strategy; 0 under DDP."""
    if (arguments.text("zero_stage", "distributed_strategy") or "fsdp").lower() != "fsdp":
        return 0
    strategy = (arguments.text("zero_stage", "fsdp.sharding_strategy") or "FULL_SHARD").lower()
    if strategy not in _STAGES:
        arguments.not_modelled(f"sharding_strategy {strategy[:30]} is not known", "fsdp.sharding_strategy")
    if _STAGES.get(strategy) and not arguments.has("fsdp.wrapping_strategy"):
        message = (
            "fsdp.wrapping_strategy is absent: the model is gathered as a whole; priced as ZeRO 1, which holds more"
        )
        arguments.remark("upper-bound", "warning", message, "fsdp.sharding_strategy", bound="sharding")
        return 1
    return _STAGES.get(strategy, 3)


def _recompute(arguments: Arguments, layers: int | None) -> dict[str, Any]:
    mode = (arguments.text("recompute", "activation_checkpointing") or "false").lower()
    every = _ONE_IN.fullmatch(mode)
    if mode in ("whole_layer", "true"):
        return {"recompute": "full"}
    if every is not None and layers:
        chosen = tuple(range(0, layers, _STEPS[every[1]]))
        return {"recompute": "full", "recompute_method": "list", "recompute_layer_list": chosen}
    if mode not in OFF:
        message = f"activation_checkpointing {mode[:30]} is priced as none"
        arguments.remark("activations-bound", "warning", message, "activation_checkpointing")
    return {}


def _options(arguments: Arguments) -> dict[str, str]:
    """Return the switches: fused q, k, v and gate, up products; an RMS norm of separate operations in fp32."""
    options = {"fused_projections": "true", "foreach_optimizer": "false"}
    if arguments.text("norm", "model.layer_norm_type") == "rms":
        options["fused_rms_norm"] = "false"
    replicas = arguments.integer("sharding_replicas", _REPLICAS, high=2**20)
    if "hybrid" in (arguments.text("zero_stage", "fsdp.sharding_strategy") or "").lower():
        # scripts/train.py: by default one replica per node.
        options |= {"sharding_replicas": str(replicas)} if replicas else {"sharding_degree": A_NODE}
    # LionW: Lion with decoupled weight decay.
    return options | read_optimizer(arguments, "optimizer.name", "torch", default="lionw", own={"lionw": "lion"})


FRAMEWORK: Final = Framework(
    title="OLMo",
    profile="torch",
    launches=(LaunchForm("olmo-shell", 40, is_launch, read_launch, take_words),),
    files=(FileForm("olmo-yaml", 20, marked("model.d_model model.n_layers device_train_microbatch_size"), read),),
)
