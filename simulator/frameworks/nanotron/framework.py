"""nanotron's configuration files, which state the network, the batch and every degree.

Read at huggingface/nanotron 2411b02 (April 2026): `config/{config,parallelism_config,models_config}.py`, whose defaults
apply where a key is absent; `models/{base,llama,qwen}.py`, `optim/gradient_accumulator.py`, `helpers.py`, `trainer.py`,
`parallel/tensor_parallel/functional.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from simulator.cost.operations.sums import total_parameters
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import filled_keys, named_configuration
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.take import Targets, part, read_optimizer, take
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.specs.documents import validated
from simulator.question.specs.model import ModelSpec

_SIZES: Final = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
_OPTIONS: Final = {
    "attention_kernel": "flash_2",
    "fused_swiglu": "false",
    "fused_gradient_accumulation": "false",
    "dummy_weight_gradients": "none",
    # Logits in fp32 beside a copy less their maximum, in place of which softmax and gradient are computed.
    "loss_bytes_per_logit": "8",
}
_NARROW: Final = {"gradient_dtype": "bf16", "master_weights": "false", "optimizer_dtype": "bf16"}
"""State where gradients add up in the parameters' type: Adam steps on the 16-bit parameters themselves."""


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts nanotron's trainer with a configuration file."""
    return "config_file" in launch.flags and launch.script.text.endswith("run_train.py")


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of the configuration that a launch names."""
    document = named_configuration(arguments, launch, "config_file")
    arguments.entries.clear()
    if document is None:
        return Recipe(framework="megatron")
    return read(arguments, filled_keys(arguments, document.keys))


def read(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    arguments.add_keys(keys)
    targets = take(arguments)
    shape = _shape(arguments, targets)
    sizes = part(targets, "layout")
    replicas = arguments.integer("devices", "parallelism.dp") or 1
    accumulated = arguments.integer("global_batch_size", "tokens.batch_accumulation_per_replica") or 1
    whole = (arguments.text("precision", "model.dtype") or "bfloat16") == "float32"
    stage = arguments.integer("zero_stage", "optimizer.zero_stage", low=0) or 0
    options = {**_OPTIONS, **part(targets, "option"), **_state(arguments, whole=whole)}
    if shape and sizes.get("pipeline_parallel", 1) > 1:
        sizes |= _cut(arguments, shape, sizes["pipeline_parallel"])
    layout = Layout(**{**sizes, "zero_stage": min(stage, 1)})
    again = "parallelism.tp_recompute_allgather"
    if layout.tensor_parallel > 1 and arguments.has(again) and not arguments.switch("recompute", again):
        arguments.not_modelled("gathered inputs that are kept for the backward pass", again)
    arguments.devices = replicas * layout.replica
    return Recipe(
        framework="megatron",
        model=models.by_shape(shape),
        model_fields=shape,
        shape=shape,
        seq_length=targets.get("workload.seq_length"),
        global_batch_size=layout.micro_batch_size * accumulated * replicas,
        precision="fp32" if whole else "bf16",
        options=options,
        layout=layout,
        unpriced_bytes=_buckets(arguments, shape, layout) if shape and replicas > 1 and not whole else 0.0,
    )


def _shape(arguments: Arguments, targets: Targets) -> dict[str, Any]:
    """Return the network's fields; none where a size is not stated."""
    shape = part(targets, "model")
    if not all(shape.get(size) for size in _SIZES):
        return {}
    heads = shape["num_attention_heads"]
    shape["num_key_value_heads"] = arguments.integer("kv", "model.model_config.num_key_value_heads") or heads
    shape["head_dim"] = shape["hidden_size"] // heads
    # `_vocab_size_with_padding`: a multiple on each tensor-parallel rank.
    multiple = arguments.integer("vocab_size", "model.make_vocab_size_divisible_by") or 1
    step = multiple * targets.get("layout.tensor_parallel", 1)
    return {"architecture": "llama", **shape, "vocab_size": -(-shape["vocab_size"] // step) * step}


def _state(arguments: Arguments, *, whole: bool) -> dict[str, str]:
    """Return the switches of the optimizer's state: fp32 sums of gradients beside the 16-bit ones, or these alone."""
    optimizer = read_optimizer(arguments, "optimizer.optimizer_factory.name", "megatron", default="adamW")
    if arguments.switch("gradient_dtype", "optimizer.accumulate_grad_in_fp32") and not whole:
        return {**optimizer, "gradient_copies": "true"}
    return optimizer | ({} if whole else _NARROW)


def _cut(arguments: Arguments, shape: dict[str, Any], stages: int) -> dict[str, Any]:
    """Return the layers of each stage: blocks go on to the next where the cost so far passes a rank's part of it."""
    width, layers = shape["hidden_size"], shape["num_hidden_layers"]
    layer = 4 * width * width + 3 * shape["intermediate_size"] * width
    total = layers * layer + shape["vocab_size"] * width
    sizes, stage = [0] * stages, 0
    for number in range(layers):
        sizes[stage] += 1
        stage += (number + 1) * layer * stages > total * (stage + 1)
    if 0 in sizes:
        arguments.not_modelled(f"{layers} layers leave a stage of {stages} empty", "parallelism.pp")
        return {}
    return {} if len(set(sizes)) == 1 else {"stage_layers": tuple(sizes)}


def _buckets(arguments: Arguments, shape: dict[str, Any], layout: Layout) -> float:
    """Return the bytes of DistributedDataParallel's buckets of 16 bits, which are no views of the gradients."""
    spec = validated(f"{arguments.file}: model", ModelSpec, {"name": "recipe", **shape})
    ends = spec.vocab_size * spec.hidden_size if layout.pipeline_parallel > 1 else 0
    return 2.0 * (total_parameters(spec) / layout.pipeline_parallel + ends) / layout.tensor_parallel


FRAMEWORK: Final = Framework(
    title="nanotron",
    profile="megatron",
    launches=(LaunchForm("nanotron-shell", 12, is_launch, read_launch),),
    files=(FileForm("nanotron-yaml", 18, marked("parallelism.dp parallelism.tp tokens.micro_batch_size"), read),),
)
