"""Reader of ms-swift 4.6 (3602360, `swift/{megatron/,}arguments`), in Megatron-LM's words or the Trainer's."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Final

from simulator.cost.operations.sums import total_parameters
from simulator.errors import UnsupportedError
from simulator.frameworks import models
from simulator.frameworks.accelerate.words import cluster as accelerated
from simulator.frameworks.accelerate.words import take_accelerate
from simulator.frameworks.arguments import Arguments, LaunchCommand, counted_by
from simulator.frameworks.configuration import SUFFIXES, take_file
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.framework import Framework, LaunchForm
from simulator.frameworks.logs import note_samples, with_longest_sample
from simulator.frameworks.megatron.read import read
from simulator.frameworks.megatron.special import add_layers, normalize_flags, take_model
from simulator.frameworks.models import QUANTIZED, named_model, note_fewer_bits
from simulator.frameworks.transformers.read import adapter_targets, preference, saved_modules, trainer_run
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.recipe import Recipe

_PROGRAM: Final = re.compile(r"(?:^|/)swift/cli/(?:sft|pt|rlhf)\.py$")
_RENAMED: Final = {
    "max_length": "seq_length",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
_DEFAULTS: Final = (
    *("micro-batch-size=1", "global-batch-size=16", "recompute-granularity=selective", "use-distributed-optimizer"),
    *("cross-entropy-loss-fusion", "attention-backend=flash", "use-flash-attn", "swiglu", "group-query-attention"),
    *("attention-dropout=0.0", "hidden-dropout=0.0"),
)  # defaults of `MegatronArguments` that change memory or speed
_TRAINER_DEFAULTS: Final = (
    *("tuner_type=lora", "per_device_train_batch_size=1", "gradient_checkpointing=true", "torch_dtype=bfloat16"),
)
_FSDP2: Final = ("fsdp=full_shard", "fsdp_config.version=2", "fsdp_config.state_dict_type=SHARDED_STATE_DICT")
_STEP: Final = 16  # sequences per step that ms-swift aims at where accumulation is not stated
_LORA_RANK: Final = 8


def take_words(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the configuration file that replaces flags; flags override it."""
    if launch.script.text == "rlhf" and launch.program == "megatron":
        where = f"{arguments.file}:{launch.line}: {launch.program} rlhf"
        raise UnsupportedError(f"{where}: a second model or another loss is not modelled; read are pt and sft")
    for word in words[:1]:
        if word.known and word.text.endswith(SUFFIXES):
            take_file(arguments, launch, word, Arguments.add_keys)


def cluster(arguments: Arguments, launch: LaunchCommand) -> tuple[int | None, int | None]:
    """Return nodes and processes per node; of several nodes without a number of processes a platform sets both."""
    return counted_by(arguments, launch, processes=None if "NNODES" in launch.environment else 1)


def _pack(arguments: Arguments, length: str) -> None:
    """Set the length of packed samples, `packing_length` or else `length` (base_args.py); remark unpacked ones."""
    if not arguments.switch("packing", "packing"):
        note_samples(arguments, length)
    elif arguments.has("packing_length"):
        arguments.entries[length] = arguments.entries.pop("packing_length")


def _bounded(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run with padded samples bounded by those of its data sets, `name:subset#count`."""
    entry = arguments.entry("dataset")
    if entry is None or entry.causes or arguments.switch("packing", "packing") or "seq_length" in arguments.incomplete:
        return run
    return with_longest_sample(arguments, run, {re.split("[:#]", value.text)[0] for value in entry.values})


def _by_turns(arguments: Arguments, model: str | None) -> dict[str, str]:
    """Return what LISA spares for sure of training all layers (callbacks/lisa.py, which trains the tables throughout).

    Moments may gather for every layer, which had a turn. Where a third at most is trained at once, its 16-bit gradients
    and the step's fp32 temporaries, 6 bytes each, are no more than the 2 bytes of all gradients.
    """
    count = arguments.integer("lisa", "lisa_activated_layers", low=0)
    if not count:
        return {}
    if arguments.text("lora_rank", "tuner_type", "train_type") != "full":
        message = "--lisa_activated_layers: ms-swift has it for training of all weights alone"
        arguments.not_modelled(message, "lisa_activated_layers", fix="--tuner_type full")
        return {}
    message = "--lisa_activated_layers: gradients and moments of all layers are priced"
    arguments.remark("upper-bound", "warning", message, "lisa_activated_layers")
    if model is None:
        return {}
    spec = models.load_model(model)
    total = total_parameters(spec)
    tables = spec.vocab_size * spec.hidden_size * (1 if spec.tie_word_embeddings else 2)
    trained = tables + (total - tables) * count / spec.num_hidden_layers
    return {"foreach_optimizer": "false"} if 3 * trained <= total else {}


def _parts(arguments: Arguments, run: Recipe) -> Recipe:
    """Return the run with what it trains of an encoder of images; adapters are at its layers too."""
    frozen = arguments.switch("encoder", "freeze_vit", default=True)
    projector = not arguments.switch("projector", "freeze_aligner", default=True)
    for name in ("freeze_vit", "freeze_aligner"):
        arguments.entries.pop(name, None)
    return models.of_parts(arguments, run, None if frozen else run.lora_rank or 0, projector=projector)


def _task(arguments: Arguments) -> dict[str, str]:
    """Return the switch of scores in place of the output layer (model/register.py); refuse tasks of several texts."""
    task = arguments.text("score_head", "task_type") or "causal_lm"
    arguments.forget("score_head")
    if task not in ("causal_lm", "seq_cls"):
        message = f"task_type {task[:30]}: samples of several texts, and their loss, are not modelled"
        arguments.not_modelled(message, "task_type")
    return {"score_head": "true"} if task == "seq_cls" else {}


def read_megatron(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of `megatron sft`, by Megatron's flags."""
    stated = frozenset(arguments.entries)
    normalize_flags(arguments, _RENAMED)
    line = launch.line
    granularity = arguments.entry("recompute_granularity")
    if granularity is not None and granularity.text == "none":
        del arguments.entries["recompute_granularity"]
    arguments.add_defaults(_DEFAULTS, line, stated)
    if not arguments.has("fp16"):
        arguments.add_defaults(["bf16"], line)
    _pack(arguments, "seq_length")
    model = named_model(arguments, arguments.text("model", "model") or "", "model")
    add_layers(arguments, model, line)
    rank = None
    if (arguments.text("lora_rank", "tuner_type") or "full") != "full":
        rank = arguments.integer("lora_rank", "lora_rank", high=2**16) or _LORA_RANK
    for name in ("quant_bits", "quant_method", "bnb_4bit_use_double_quant", "fsdp", "use_liger_kernel"):
        if arguments.has(name):
            arguments.not_modelled(QUANTIZED if "quant" in name else f"{name}: no flag of megatron sft", name)
    task = _task(arguments)
    run = replace(take_model(arguments, read(arguments, launch.environment), model), lora_rank=rank)
    run = _bounded(arguments, _parts(arguments, run))
    task |= saved_modules(arguments, rank, "modules_to_save") | adapter_targets(arguments, rank, "target_modules")
    return replace(run, options={**run.options, **task})


def read_trainer(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of `swift sft`, by the Trainer's words."""
    arguments.add_defaults(_TRAINER_DEFAULTS, launch.line)
    kind = arguments.text("precision", "torch_dtype")
    if not (arguments.has("bf16") or arguments.has("fp16")) and kind in ("bfloat16", "float16"):
        arguments.add("bf16" if kind == "bfloat16" else "fp16", [], launch.line)
    if arguments.text("cp", "sequence_parallel_size") not in (None, "1"):
        arguments.not_modelled("sequence parallelism of ms-swift is not modelled", "sequence_parallel_size")
    # Another launcher than ms-swift's own starts its program on machines that the environment does not say.
    nodes, devices = cluster(arguments, launch) if launch.launcher == "other" else (None, None)
    visible = launch.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.known and devices and len(visible.text.split(",")) > devices:
        shown = f"{len(visible.text.split(','))} devices for {devices} processes"
        message = f"{shown}: a model spread by device_map is priced whole on one device"
        arguments.remark("upper-bound", "warning", message)
    _pack(arguments, "max_length")
    if (shards := arguments.text("zero_stage", "fsdp") or "shard") == "fsdp2":  # config/fsdp2.json
        del arguments.entries["fsdp"]
        arguments.add_defaults(_FSDP2, launch.line)
    elif "shard" not in shards:
        arguments.not_modelled("fsdp: what this configuration sets is not read", "fsdp")
    if arguments.has("optimizer"):
        arguments.not_modelled("optimizer: an optimizer of ms-swift's own is not modelled", "optimizer")
    deepspeed, task = add_deepspeed(arguments, launch), _task(arguments)
    run = _bounded(arguments, _parts(arguments, trainer_run(arguments, deepspeed=deepspeed)))
    note_fewer_bits(arguments, run)
    if launch.script.text == "rlhf":
        # arguments/rlhf_args.py: TRL's losses, over a copy of the model where all weights are trained.
        kind = arguments.text("rlhf_type", "rlhf_type") or "dpo"
        task |= preference(arguments, kind, adapters=run.lora_rank is not None)
    run = replace(run, options={**run.options, **task, **_by_turns(arguments, run.model)})
    if arguments.has("gradient_accumulation_steps") or run.layout is None or not (nodes and devices):
        return run
    steps = max(1, math.ceil(_STEP / run.layout.micro_batch_size / nodes / devices))
    return replace(run, gradient_accumulation_steps=steps)


def read_program(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of the script that `swift sft` starts, started by another launcher."""
    take_accelerate(arguments, launch)
    name = PurePath(launch.script.text).stem
    return read_trainer(arguments, replace(launch, script=known_value(name, launch.script.line)))


def _is_program(launch: LaunchCommand, *, accelerate: bool) -> bool:
    return _PROGRAM.search(launch.script.text) is not None and (launch.launcher == "accelerate") == accelerate


_form = partial(LaunchForm, "swift-shell", 10, take_words=take_words, cluster=cluster, is_named_by_program=True)
FRAMEWORK: Final = Framework(
    title="ms-swift",
    profile="torch",
    tables=("swift", "transformers", "deepspeed"),
    launches=(
        _form(
            lambda launch: launch.program == "megatron", read_megatron, tables=("megatron", "megatron_swift", "swift")
        ),
        _form(lambda launch: launch.program == "swift", read_trainer),
        LaunchForm("swift-shell", 11, partial(_is_program, accelerate=True), read_program, take_words, accelerated),
        LaunchForm("swift-shell", 11, partial(_is_program, accelerate=False), read_program, take_words),
    ),
)
