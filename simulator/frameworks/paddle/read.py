"""Launches and configuration files of ERNIEKit, PaddleNLP and PaddleFormers.

The tables cover most words. This module reads settings that depend on several words or on the model: recompute,
experts, the cut, the loss, and the file that a launch names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments, LaunchCommand, half_precision
from simulator.frameworks.configuration import SUFFIXES, take_files
from simulator.frameworks.documents import Key
from simulator.frameworks.models import QUANTIZED, known_model, note_fewer_bits
from simulator.frameworks.paddle.special import layout_of, options_of, pipeline_config, usual_options
from simulator.frameworks.purpose import require_training_switches
from simulator.frameworks.take import part, read_optimizer, take
from simulator.frameworks.values import PlainValue
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from simulator.question.specs.model import ModelSpec

_LORA_RANK: Final = 8
_OWN_FLAGS: Final = frozenset(
    ("tensor_parallel_degree", "pipeline_parallel_degree", "fp16_opt_level", "sharding_parallel_degree")
)
_OWN_WITH_MODEL: Final = frozenset(
    ("sharding", "recompute", "recompute_granularity", "unified_checkpoint", "amp_master_grad", "dataset_name_or_path")
)
"""Keys that mark a file as Paddle's beside a model: PaddleNLP 2.8.1, paddlenlp/trainer/training_args.py,
llm/utils/argument.py."""
_LENGTHS: Final = ("max_seq_len", "max_seq_length", "max_length", "seq_length")
"""Words of the sequence length, by precedence."""
_STAGES: Final = ("SFT", "PT", "PRETRAIN", "ERNIE_PRETRAIN", "DSV3_PRETRAIN")
_PREFERENCE: Final = re.compile(r"(?:^|[_\W])(dpo|kto|simpo|orpo|ppo|grpo|rlhf|reward)(?:[_\W]|$)", re.ASCII)
"""Names of scripts and files of training on preferences."""
_REFERENCE: Final = ("dpo", "kto")
"""Preference losses that are priced: answers are packed into a sequence of `max_seq_len`, scored by a frozen copy of
the model, or under adapters by the model without them. PaddleNLP 037e4a6, llm/alignment/dpo/run_dpo.py; 4596ac3,
kto/run_kto.py; 136516b, paddlenlp/trl/dpo_trainer.py (`_wrap_ref_model`: 16-bit weights, cut as the model is)."""
_NO_REFERENCE: Final = ("or", "orpo", "simpo")
"""Losses of DPO's trainer without a frozen copy: the same file."""
_REWARD: Final = ("reward", "rm")
"""Reward models: one score per token in place of logits, on pairs packed into one sequence. PaddleNLP ee302b6,
llm/alignment/rm/flashmask/reward_model.py."""


def is_file(names: Collection[str]) -> bool:
    """Whether flags or keys belong to a Paddle trainer."""
    own = set(names)
    parallel = {"per_device_train_batch_size", "tensor_model_parallel_size"} <= own
    return bool(own & _OWN_FLAGS) or parallel or ("model_name_or_path" in own and bool(own & _OWN_WITH_MODEL))


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a launch starts a Paddle trainer, by its launcher or its flags."""
    if launch.launcher == "paddle":
        return bool(launch.flags) or any(value.text.endswith((".json", ".yaml", ".yml")) for value in launch.arguments)
    return launch.launcher not in ("accelerate", "other") and is_file(launch.flags)


def take_words(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the configuration file of a launch, alone or after `--config`; `key=value` and flags override its keys.

    `--config`: PaddleFormers, examples/experiments/ernie_pretrain/ernie/pretrain.py.
    """
    named = arguments.entry("config")
    if named is not None and named.causes:
        arguments.bags |= named.causes
    elif named is not None and not named.text.endswith(SUFFIXES):
        stated = f"--config {named.text[:60]}".rstrip()
        arguments.remark_line("unknown-flag", "error", f"{stated}: no JSON or YAML file", named.place.line)
    take_files(arguments, launch, (*words, *(named.values[:1] if named is not None else ())), _add_keys)


def _add_keys(arguments: Arguments, keys: Iterable[Key], file: str) -> None:
    for key in keys:
        arguments.add(key.name, key.values, key.line, file)


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    title = PurePath(launch.script.text).name
    return _recipe(arguments, title, whole_sends=launch.program == "erniekit")


def read_file(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a configuration file."""
    _add_keys(arguments, keys, arguments.file)
    return _recipe(arguments, "", whole_sends=False)


def _recipe(arguments: Arguments, title: str, *, whole_sends: bool) -> Recipe:
    """Return the run of a recipe, with the trainer's defaults for words that it omits."""
    run = paddle_run(arguments, title, whole_sends=whole_sends)
    return replace(run, options={**usual_options(arguments), **run.options})


def paddle_run(arguments: Arguments, title: str, *, whole_sends: bool) -> Recipe:
    """Return the run; `whole_sends` says that its trainer fails where a pipeline sends partial tensors."""
    arguments.complete_names()
    require_training_switches(arguments)
    targets = take(arguments)
    name = arguments.text("model", "model_name_or_path")
    model = known_model(arguments, name, "model_name_or_path") if name else None
    spec = models.load_model(model) if model in models.model_names() else None
    layout = layout_of(arguments, targets, spec)
    lora_rank = _lora(arguments)
    purpose = _purpose(arguments, f"{title} {PurePath(arguments.file).name}".lower(), lora_rank)
    workload = part(targets, "workload")
    if "global_batch_size" not in workload and "gradient_accumulation_steps" not in arguments.incomplete:
        workload.setdefault("gradient_accumulation_steps", 1)
    run = Recipe(
        framework="paddle",
        model=model,
        model_fields=part(targets, "model"),
        seq_length=arguments.integer("seq_length", *_LENGTHS, high=2**27),
        precision=_precision(arguments),
        lora_rank=lora_rank,
        options=options_of(arguments, targets, layout) | purpose | _network(spec),
        layout=layout,
        **workload,
    )
    pairs = re.search("dpo|kto", f"{title} {arguments.text('stage', 'stage') or ''}".lower())
    _note_schedule(arguments, layout)
    _note_contradictions(arguments, layout, whole_sends=whole_sends or pairs is not None)
    for option in ("steps", "optimizer", "pipeline_parallel_config", "schedule", "stage"):
        arguments.incomplete.discard(option)
        arguments.forget(option)
    note_fewer_bits(arguments, run)
    return run


def _network(spec: ModelSpec | None) -> dict[str, str]:
    """Return the switches of Paddle's own network for a model: ChatGLM2's has no flash kernel.

    `CoreAttention` of paddlenlp/transformers/chatglm_v2/modeling.py, 2.8.1.
    """
    return {"flash_attention": "false"} if spec is not None and spec.architecture == "glm" else {}


def _precision(arguments: Arguments) -> str | None:
    if arguments.has("weight_quantize_algo"):
        arguments.not_modelled(QUANTIZED, "weight_quantize_algo")
    kind = arguments.text("precision", "compute_type")
    if kind is None:
        if all(arguments.has(name) and not arguments.switch("precision", name) for name in ("bf16", "fp16")):
            return "fp32" if "precision" not in arguments.incomplete else None
        bf16, fp16 = (arguments.switch("precision", name) for name in ("bf16", "fp16"))
        return half_precision(arguments, bf16=bf16, fp16=fp16)
    if kind in ("bf16", "fp16", "fp8"):
        return kind
    arguments.not_modelled(f"compute_type {kind[:40]} is not modelled", "compute_type")
    return None


def _lora(arguments: Arguments) -> int | None:
    """Return the rank of the trained adapters; None where all weights are trained."""
    kind = (arguments.text("lora_rank", "fine_tuning") or "").lower()
    adapters = arguments.switch("lora_rank", "lora") or kind == "lora"
    arguments.forget("lora_rank")
    return (arguments.integer("lora_rank", "lora_rank", high=2**16) or _LORA_RANK) if adapters else None


def _purpose(arguments: Arguments, names: str, lora_rank: int | None) -> dict[str, str]:
    """Return the switches of the training's purpose, such as a frozen copy of the model and its forward pass.

    Purposes other than language modelling, preferences and rewards are refused.
    """
    stage = (arguments.text("stage", "stage") or "").upper()
    named = _PREFERENCE.search(names)
    kind = stage.lower() or (named[1] if named else "dpo" if arguments.has("loss_type") else "")
    options: dict[str, str] = {}
    if kind in _REFERENCE:
        loss = arguments.text("frozen_reference", "loss_type") or ""
        if arguments.switch("frozen_reference", "reference_free") or loss in _NO_REFERENCE:
            return options
        options["reference_forward"] = "true"
        if lora_rank is None:
            options["frozen_reference"] = "true"
    elif kind in _REWARD:
        options["score_head"] = "true"
    elif stage and stage not in _STAGES:
        trained = "only pretraining, fine-tuning, DPO, KTO and rewards of language models are modelled"
        arguments.not_modelled(f"stage {stage[:40]}: {trained}", "stage")
    elif kind and stage not in _STAGES:
        message = f"training on preferences by {kind}, with a model that generates, is not modelled"
        arguments.not_modelled(message, "loss_type")
    return options


def _note_schedule(arguments: Arguments, layout: Layout) -> None:
    """Refuse pipeline schedules other than 1F1B and the interleaved one: they keep other activations."""
    if layout.pipeline_parallel == 1:
        return
    mode = (arguments.text("schedule", "pipeline_schedule_mode") or "1F1B").upper()
    if mode not in ("1F1B", "VPP"):
        arguments.not_modelled(f"pipeline schedule {mode[:40]} is not modelled", "pipeline_schedule_mode")
    for name in ("use_dualpipev", "use_dualpipe"):
        if arguments.switch("schedule", name):
            arguments.not_modelled(f"pipeline schedule of {name} is not modelled", name)


def _note_contradictions(arguments: Arguments, layout: Layout, *, whole_sends: bool) -> None:
    """Remark flags that contradict each other."""
    sequence, tensor = "sequence_parallel", layout.tensor_parallel
    asked = arguments.switch(sequence, sequence)
    if asked and tensor == 1 and "tp" not in arguments.incomplete:
        message = "sequence_parallel has no effect: tensor parallel is 1"
        arguments.remark("inactive-flag", "note", message, sequence)
    if tensor > 1 and not asked and sequence not in arguments.incomplete:
        message = f"tensor parallel {tensor} without sequence_parallel keeps whole activations between the layers"
        arguments.remark(
            "no-sequence-parallel", "warning", message, "tensor_parallel_degree", fix="sequence_parallel 1"
        )
    piped = layout.sequence_parallel and layout.pipeline_parallel > 1
    if whole_sends and piped and "disable_partial_send_recv" not in pipeline_config(arguments):
        message = "sequence_parallel with pipeline stages needs disable_partial_send_recv"
        fix = 'pipeline_parallel_config "disable_partial_send_recv"'
        arguments.remark("partial-send-recv", "error", message, "pipeline_parallel_config", sequence, fix=fix)
    if arguments.has("lr_scheduler") and arguments.has("lr_scheduler_type"):
        message = "lr_scheduler and lr_scheduler_type are two names of one setting"
        arguments.remark("repeated-flag", "note", message, "lr_scheduler", fix="keep lr_scheduler_type")
    read_optimizer(arguments, "optim", "paddle")
    steps, warmup = arguments.text("steps", "max_steps"), arguments.text("steps", "warmup_steps")
    counts = [int(text) for text in (steps, warmup) if text and re.fullmatch(r"[0-9]{1,9}", text, re.ASCII)]
    if len(counts) == 2 and counts[1] > counts[0] > 0:
        message = f"warmup_steps {warmup} is more than max_steps {steps}"
        arguments.remark("warmup-exceeds-steps", "note", message, "warmup_steps")
