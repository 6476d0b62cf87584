"""Hugging Face Trainer command lines, with the DeepSpeed configuration that they name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePath
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.arguments import half_precision
from simulator.frameworks.deepspeed.configuration import FLAGS, add_deepspeed
from simulator.frameworks.flags import passed_of, read_of
from simulator.frameworks.named import QUANTIZED, named_model
from simulator.frameworks.names import plain
from simulator.frameworks.run import finished
from simulator.frameworks.values import known_value
from simulator.question.scenario.layout import Layout
from simulator.question.vocabulary import Offload
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.readers.command_line import add_words
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.launch import TrainingCommand

PASSED: Final = frozenset(
    [
        "do_train",
        "do_eval",
        "lazy_preprocess",
        "tf32",
        "group_by_length",
        "gradient_checkpointing_kwargs",
        "weight_decay",
    ]
)
_LENGTHS: Final = ("model_max_length", "max_seq_length", "max_seq_len", "max_length", "cutoff_len", "block_size")
_LORA_RANK: Final = 8
_HALF: Final = ("bfloat16", "float16")


def is_trainer(names: Iterable[str]) -> bool:
    """Whether flags are of Hugging Face's Trainer."""
    return {"model_name_or_path", "per_device_train_batch_size"} <= {plain(name) for name in names}


def read_trainer(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of one launch."""
    # The script's own flags are in no table.
    table = read_of("transformers") | FLAGS
    given = Given(file, table, (PASSED | passed_of("transformers")) - table.keys())
    add_words(given, launch.arguments)
    deepspeed = _is_chat(given) or add_deepspeed(given, launch)
    nodes, devices = cluster_of(launch, given)
    dialect = "deepspeed-shell" if deepspeed else "trainer-shell"
    title = PurePath(launch.script.text).name
    return trainer_recipe(given, title, dialect, nodes, devices, deepspeed=deepspeed)


def trainer_recipe(  # noqa: PLR0913  what launches and configuration files have in common
    given: Given, title: str, dialect: str, nodes: int | None, devices: int | None, *, deepspeed: bool
) -> Recipe:
    """The recipe of a trainer's flags, those of the DeepSpeed configuration among them."""
    model = named_model(given, given.text("model", "model_name_or_path") or "", "model_name_or_path")
    precision = _precision(given)
    batch = given.integer("global_batch_size", "train_batch_size", high=2**27)
    steps = given.integer("gradient_accumulation_steps", "gradient_accumulation_steps", high=2**20)
    rank = _lora(given)
    sequence = given.integer("seq_length", *_LENGTHS, high=2**27)
    options = _options(given, deepspeed=deepspeed, adapters=rank is not None)
    layout = _layout(given)
    recipe = Recipe(
        file=given.file,
        title=title,
        framework="torch",
        dialect=dialect,
        model=model,
        seq_length=sequence,
        global_batch_size=batch,
        gradient_accumulation_steps=None if batch else steps or 1,
        precision=precision,
        lora_rank=rank,
        options=options | _liger(given, model, (sequence or 0) * layout.micro_batch_size),
        layout=layout,
        nodes=nodes,
        devices_per_node=devices,
    )
    return finished(given, recipe)


def note_samples(given: Given, name: str) -> None:
    """Say that samples are padded to the longest of their batch only, so that the longest sequence is a bound."""
    message = f"{name} bounds the samples: a batch is as long as its longest one, and full ones are priced"
    given.remark("activations-bound", "warning", message, name)


def _is_chat(given: Given) -> bool:
    """Whether flags are of DeepSpeed-Chat, which makes its configuration itself; they then count as its keys."""
    if not given.has("zero_stage") or given.text("deepspeed", "deepspeed"):
        return False
    given.places.pop("deepspeed", None)
    chat = {"zero_stage": "zero_optimization.stage", "lora_dim": "lora_rank"}
    for name, key in chat.items():
        entry = given.entry(name)
        if entry is not None and not (name == "lora_dim" and entry.text == "0"):
            given.add(key, entry.values, entry.value_line)
    line = given.entries["zero_stage"][-1].place.line
    if given.has("offload"):
        given.add("zero_optimization.offload_optimizer.device", [known_value("cpu", line)], line)
    kind = given.text("precision", "dtype") or "fp16"
    given.add("bf16" if kind == "bf16" else "fp16", [], line)
    return True


def _liger(given: Given, model: str | None, tokens: int) -> dict[str, str]:
    """What Liger's kernels change: head and loss work on as many tokens at a time as make logits of the input's size.

    Chunks as `ops/fused_linear_cross_entropy.py` of Liger-Kernel 0.5 cuts them.
    """
    on = given.switch("kernels", "use_liger_kernel") or given.switch("kernels", "enable_liger_kernel")
    given.places.pop("kernels", None)
    if not on or model is None or not tokens:
        return {}
    spec = models.load_model(model)
    parts = -(-spec.vocab_size // spec.hidden_size)
    chunk = 1 << (-(-tokens // parts) - 1).bit_length()
    return {"cross_entropy_chunk_tokens": str(chunk), "fused_rms_norm": "true", "fused_swiglu": "true"}


def _layout(given: Given) -> Layout:
    stage = given.integer("zero_stage", "zero_optimization.stage", low=0, high=3)
    shards = given.text("zero_stage", "fsdp") or ""
    if stage is None:
        stage = 3 if "full_shard" in shards else 2 if "shard_grad_op" in shards else 0
    # LLaMA-Factory recomputes unless it is told not to.
    usual = given.has("finetuning_type") and not given.switch("recompute", "disable_gradient_checkpointing")
    recompute = given.switch("recompute", "gradient_checkpointing", default=usual)
    micro = given.integer(
        "micro_batch_size", "per_device_train_batch_size", "train_micro_batch_size_per_gpu", high=2**16
    )
    return Layout(
        micro_batch_size=micro or 8,
        zero_stage=stage,
        recompute="full" if recompute else "none",
        offload=_offload(given),
    )


def _offload(given: Given) -> Offload:
    for name in ("offload_param", "offload_optimizer"):
        if given.text("offload", f"zero_optimization.{name}.device") == "nvme":
            given.not_modelled("offload to nvme is not modelled", f"zero_optimization.{name}.device")
    where = given.text("offload", "zero_optimization.offload_optimizer.device")
    return "optimizer_tensorwise" if where not in (None, "none") else "none"


def _precision(given: Given) -> str | None:
    return half_precision(
        given,
        bf16=given.switch("precision", "bf16") or given.switch("precision", "bf16.enabled"),
        fp16=given.switch("precision", "fp16") or given.switch("precision", "fp16.enabled"),
    )


def _lora(given: Given) -> int | None:
    for name in ("load_in_4bit", "load_in_8bit", "quantization_bit"):
        if given.has(name) and (name == "quantization_bit" or given.switch("quantization", name)):
            given.not_modelled(QUANTIZED, name)
    kind = given.text("lora_rank", "finetuning_type")
    given.places.pop("lora_rank", None)
    if kind not in (None, "full", "lora"):
        given.not_modelled(f"finetuning_type {kind[:40]} is not modelled", "finetuning_type")
    if kind == "full":
        return None
    if kind == "lora" or given.has("lora_r", "lora_rank") or given.switch("lora_rank", "use_lora", "use_peft"):
        return given.integer("lora_rank", "lora_r", "lora_rank", high=2**16) or _LORA_RANK
    return None


def _options(given: Given, *, deepspeed: bool, adapters: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    if deepspeed:
        wide = given.text("gradient_dtype", "data_types.grad_accum_dtype") == "fp32"
        found = {
            "parameter_dtype": "bf16",
            "master_weights": "true",
            "gradient_dtype": "fp32" if wide else "bf16",
            "foreach_optimizer": "false",
        }
        if given.text("offload_parameters", "zero_optimization.offload_param.device") not in (None, "none"):
            found["offload_parameters"] = "true"
        ratio = given.text("offload_fraction", "zero_optimization.offload_optimizer.ratio")
        if ratio is not None and re.fullmatch(r"0?\.[0-9]{1,9}|1(\.0*)?|0", ratio, re.ASCII):
            found["offload_fraction"] = ratio
    elif given.switch("parameter_dtype", "pure_bf16") or given.text("parameter_dtype", "torch_dtype") in _HALF:
        found = {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "optimizer_dtype": "bf16"}
    elif adapters and given.has("finetuning_type"):
        # LLaMA-Factory loads what it does not train in the type that it computes in.
        found = {"parameter_dtype": "bf16"}
    attention = given.text("flash_attention", "attn_implementation")
    if attention is not None:
        found["flash_attention"] = str(attention != "eager").lower()
    elif given.has("flash_attn", "use_flash_attn"):
        switch = given.text("flash_attention", "flash_attn", "use_flash_attn") or "true"
        found["flash_attention"] = str(not re.fullmatch(r"(?i)false|0|off|disabled|no", switch)).lower()
    optimizer = given.text("optimizer", "optim")
    if optimizer and not optimizer.lower().startswith(("adamw_torch", "adamw_hf", "adamw_apex")):
        given.remark("not-modelled", "warning", f"optimizer {optimizer[:40]} is priced as AdamW", "optim")
    return found
