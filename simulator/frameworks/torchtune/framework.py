"""Reader of torchtune's configuration files.

Read at bd2a0fc (`recipes/{full_finetune,lora_finetune,full_dpo,lora_dpo}_*.py`). `models.yaml` names the shipped model
of each builder of `torchtune/models`, and the longest sequence that it makes positions for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, Final

from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import configuration, need_written, replaced
from simulator.frameworks.documents import Key
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.logs import note_samples, with_longest_sample
from simulator.frameworks.purpose import no_training
from simulator.frameworks.take import part, places_of, read_optimizer, take
from simulator.question.frameworks.stacks import IN_16_BITS, stack_options
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.specs.documents import read_yaml

_MODELS: Final = Path(__file__).with_name("models.yaml")
_KEY: Final = "model._component_"
_SHIPPED: Final = "recipes/configs"
_IDLE: Final = {"tasks": "evaluates a model", "max_new_tokens": "generates text", "quantizer._component_": "quantises"}
"""Keys of files that do not train, if no optimizer is named (eleuther_eval.py, generate.py, quantize.py)."""
_LORA_RANK: Final = 8
_CHUNKED: Final = ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss")
"""Losses in chunks (`modules/loss`); the second also has all logits in 16 bits: 7 bytes of each with eight chunks."""


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a command line; `key=value` overrides the keys of the named, or shipped, file."""
    named = arguments.entry("config")
    if named is None or not named.values or not named.values[0].known:
        arguments.need(named.causes if named is not None else (), "model")
        return Recipe(framework="torch")
    name = named.values[0].text
    file = name if name.endswith((".yaml", ".yml")) else f"{_SHIPPED}/{name}.yaml"
    document = configuration(launch, arguments.file, file, named.value_line)
    if document is None:
        need_written(arguments, launch, file, "model")
    names = [(word, word.text.partition("=")[0]) for word in named.values[1:] if "=" in word.text]
    words = {name: word.after(len(name) + 1) for word, name in names}
    arguments.entries.clear()
    return read(arguments, replaced(arguments, document, words), launch.script.text)


def read(arguments: Arguments, keys: Sequence[Key], recipe: str = "") -> Recipe:
    """Return the run of a configuration file; `recipe` names the torchtune recipe that a launch starts."""
    arguments.add_keys(keys)
    if not arguments.has("optimizer._component_"):
        purpose = next((purpose for key, purpose in _IDLE.items() if arguments.has(key)), "")
        if purpose:
            raise no_training(purpose, arguments.file)
    targets = take(arguments)
    builder = (arguments.text("model", _KEY) or "").rpartition(".")[2]
    adapters = builder.startswith(("lora_", "qlora_"))
    known = _model(arguments, builder.removeprefix("q").removeprefix("lora_") if adapters else builder)
    quantised = builder.startswith("qlora_") or arguments.switch("quantised_base", "model.quantize_base")
    usual = stack_options("torchtune")
    if arguments.text("parameter_dtype", "dtype") == "fp32":
        usual = {name: value for name, value in usual.items() if name not in IN_16_BITS}
    named = read_optimizer(arguments, "optimizer._component_", "torch")
    foreach = {"foreach_optimizer": str(not arguments.switch("foreach_optimizer", "optimizer.fused")).lower()}
    usual |= known.get("switches", {}) | (known.get("adapters", {}) if adapters else {})
    options = usual | foreach | named | _loss(arguments, adapters=adapters) | part(targets, "option")
    layers = re.findall(r"[a-z]{1,9}_proj", arguments.text("adapter_targets", "model.lora_attn_modules") or "")
    if layers and adapters:
        layers += ["w1", "w2", "w3"] * (options["adapter_targets"] == "all")
        layers += ["head"] * arguments.switch("adapter_targets", "model.apply_lora_to_output")
        options["adapter_targets"] = places_of(layers) or "all"
    dtype = arguments.text("precision", "dtype") or "bf16"
    kind = dtype if dtype in ("bf16", "fp32", "fp16") else None
    if quantised and adapters:
        options["quantised_base"] = "true"
    run = Recipe(
        framework="torch",
        model=known.get("model"),
        seq_length=_sequence(arguments, known.get("longest")),
        gradient_accumulation_steps=targets.get("workload.gradient_accumulation_steps", 1),
        precision="fp8" if arguments.switch("precision", "enable_fp8_training") else kind,
        lora_rank=arguments.integer("lora_rank", "model.lora_rank", high=2**16) or _LORA_RANK if adapters else None,
        options=options,
        layout=Layout(**_alone(arguments, recipe) | part(targets, "layout")),
    )
    padded = not arguments.switch("packed", "dataset.packed")
    data = (arguments.text("packed", "dataset.source", "dataset._component_") or "").removeprefix("torchtune.datasets.")
    return with_longest_sample(arguments, run, (data,)) if padded else run


def _model(arguments: Arguments, builder: str) -> Mapping[str, Any]:
    """Return what is known of a builder, without the start of one with adapters."""
    if "vision" in builder or arguments.has("model.encoder_trainable"):
        arguments.not_modelled(f"{builder}: models that see images are not modelled", _KEY)
    known: Mapping[str, Any] = read_yaml(_MODELS).get(builder, {})
    if not known:
        arguments.remark("unknown-model", "warning", f"model '{builder[:80]}' is not known", _KEY, fix="--model NAME")
    return known


def _alone(arguments: Arguments, recipe: str) -> dict[str, Any]:
    """Return the layout of a single device where recipe or file name says so (`_recipe_registry.py`), else of FSDP2."""
    if "_single_device" not in (recipe or PurePath(arguments.file).name):
        return {"zero_stage": 3}
    arguments.devices = 1
    arguments.places["devices"] = Place(arguments.file, 1)
    return {"zero_stage": 0}


def _sequence(arguments: Arguments, longest: int | None) -> int | None:
    """Return the tokenizer's limit, else the model's: the length of packed samples, a bound of others."""
    bound = arguments.integer("seq_length", "tokenizer.max_seq_len", high=2**27)
    if bound is None and longest is not None and "seq_length" not in arguments.incomplete:
        message = f"tokenizer.max_seq_len is absent: samples are priced as long as the model allows, {longest}"
        arguments.remark("activations-bound", "warning", message, _KEY, bound="length")
    elif not arguments.switch("packed", "dataset.packed"):
        note_samples(arguments, "tokenizer.max_seq_len")
    return bound or longest


def _loss(arguments: Arguments, *, adapters: bool) -> dict[str, str]:
    """Return the switches of the loss: bytes per logit, and a frozen copy of the model for preferences."""
    name = (arguments.text("loss_bytes_per_logit", "loss._component_") or "").rpartition(".")[2]
    arguments.forget("loss_bytes_per_logit")
    if arguments.has("teacher_model._component_", "kd_loss._component_"):
        arguments.not_modelled("distillation from a second model is not modelled", "kd_loss._component_")
    if name == "DPOLoss":
        frozen = {} if adapters else {"frozen_reference": "true"}
        return frozen | {"reference_forward": "true", "sequences_per_sample": "2", "loss_chunks": "0"}
    if name and name not in (*_CHUNKED, "CrossEntropyLoss"):
        arguments.not_modelled(f"loss {name[:60]} is not modelled", "loss._component_")
    if name == "LinearCrossEntropyLoss":
        return {"loss_chunks": str(arguments.integer("loss_chunks", "loss.num_output_chunks", high=2**16) or 8)}
    return {"loss_chunks": "0"} | ({"loss_bytes_per_logit": "7"} if name in _CHUNKED else {})


FRAMEWORK: Final = Framework(
    title="torchtune",
    profile="torch",
    launches=(LaunchForm("torchtune-shell", 10, lambda launch: launch.program == "tune", read_launch),),
    files=(FileForm("torchtune-yaml", 20, marked("_component_ tokenizer._component_|model._component_"), read),),
)
