"""Reader of scripts of TRL 1.9 or with Hugging Face's Trainer, and of the files that replace their flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, Final

from simulator.frameworks.accelerate.words import cluster, take_accelerate, take_named
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import SUFFIXES, take_file
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import table_of
from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.logs import StepLogForm, counts, note_samples, parse_count
from simulator.frameworks.models import load_model
from simulator.frameworks.purpose import note_purpose
from simulator.frameworks.transformers.read import add_fsdp, note_unsharded, peft_targets, preference, trainer_run
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.recipe import Recipe

OWN_MODULES: Final = "trl.scripts."
_SECTIONS: Final = frozenset(
    (
        *("lr_scheduler_kwargs", "model_init_kwargs"),
        *("dataset_mixer", "dataset_mixture", "dataset_kwargs"),
    )
)  # keys that hold a mapping, each read as one key
_PREFERENCE: Final = re.compile(
    r"(?<![a-z])(dpo|kto|orpo|simpo|cpo|ppo|grpo|rloo|reward(?:_model(?:ing)?)?|rm)(?=v?\d*(?![a-z0-9]))"
)  # names of scripts and folders of training on preferences or rewards
_SAYS_ADAPTERS: Final = ("use_lora", "use_peft", "finetuning_type", "train_mode")
"""Words that state whether adapters are trained."""
_LENGTHS: Final = ("max_length", "max_seq_length", "model_max_length", "max_seq_len", "cutoff_len", "block_size")


_EIGHT: Final = {"mixed_precision": "bf16", "num_processes": "8"}
_SHIPPED: Final[Mapping[str, Mapping[str, str]]] = {
    "single_gpu": _EIGHT | {"num_processes": "1"},
    "multi_gpu": _EIGHT,
    "fsdp1": _EIGHT | {"use_fsdp": "use_fsdp", "fsdp_version": "1", "fsdp_backward_prefetch": "BACKWARD_PRE"},
    "fsdp2": _EIGHT | {"use_fsdp": "use_fsdp", "fsdp_version": "2"},
    **{f"zero{stage}": _EIGHT | {"use_deepspeed": "use_deepspeed", "zero_stage": str(stage)} for stage in (1, 2, 3)},
}  # options of accelerate in the configurations that TRL ships (`trl/accelerate_configs`), by name


def take_words(arguments: Arguments, launch: LaunchCommand, words: Sequence[PlainValue]) -> None:
    """Take the configuration file that replaces flags; flags override it, as in `HfArgumentParser`."""
    named = arguments.entry("config") or arguments.entry("train_args_file")
    files = [word for word in (*words, *(named.values if named is not None else ())) if word.text.endswith(SUFFIXES)]
    for word in files[:1]:
        if not word.known:
            arguments.need(word.causes, "model")
            continue
        take_file(arguments, launch, word, _add_keys)


def _add_keys(arguments: Arguments, keys: Iterable[Key], file: str) -> None:
    for key in keys:
        if key.values and key.values[0].text.lower() not in ("none", "null"):
            section = key.path[0] in _SECTIONS
            if not section or not arguments.has(key.path[0]):
                arguments.add(key.path[0] if section else key.dotted, key.values, key.line, file)


_PADDING: Final = re.compile(r"sft|dpo|kto|orpo|simpo|reward")
"""In the name of a script whose trainer, TRL's, pads to the longest sample unless it packs; others may group."""


def as_accelerate(launch: LaunchCommand) -> LaunchCommand:
    """Return the `accelerate launch` that a launch of `trl` stands for (TRL f2cd577, `cli/accelerate_config.py`)."""
    if launch.program != "trl":
        return launch
    words = {word.text.removeprefix("--"): after for word, after in pairwise(launch.arguments)}
    named = words.get("accelerate_config")
    shipped = _SHIPPED.get(named.text, {}) if named is not None else {}
    options = {name: known_value(text, launch.line) for name, text in shipped.items()}
    options |= {name: words[name] for name in ("num_processes", "num_machines") if name in words}
    if named is not None and not shipped:
        options["config_file"] = named
    return replace(launch, launcher="accelerate", options=options)


def read(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a script that trains with the Trainer."""
    note_purpose(arguments, launch)
    launch = as_accelerate(launch)
    take_accelerate(arguments, launch)
    add_fsdp(arguments, launch)
    title, chat = PurePath(launch.script.text).name, _is_chat(arguments)
    padded = _PADDING.search(title) is not None
    if chat:  # DeepSpeed-Chat's programs are all `main.py`, below `step2_dpo_finetuning` and the like
        title = "/".join(Path(arguments.file).resolve().parts[-6:])
    deepspeed = chat or add_deepspeed(arguments, launch)
    if _is_command(launch):
        _add_defaults(arguments)
    return _with_purpose(arguments, title, deepspeed=deepspeed, padded=padded)


def read_file(arguments: Arguments, keys: Sequence[Key]) -> Recipe:
    """Return the run of a file of keys; of `accelerate launch` only a configuration that the user names is known."""
    _add_keys(arguments, keys, arguments.file)
    named = take_named(arguments)
    deepspeed = add_deepspeed(arguments, None)
    if not deepspeed and not named:
        note_unsharded(arguments)
    _add_defaults(arguments)
    return _with_purpose(arguments, "/".join(PurePath(arguments.file).parts[-3:]), deepspeed=deepspeed)


_SINCE: Final = {
    "bf16=true": (0, 19),
    "gradient_checkpointing=true": (0, 22),
    "dtype=float32": (1, 0),
    "loss_type=chunked_nll": (1, 7),
    "max_length=1024": (0,),
}  # defaults of TRL's own scripts (trl/trainer/{sft,model,base}_config.py of v0.8.6 to v1.9.0) and their first release


def _add_defaults(arguments: Arguments) -> None:
    """Add the defaults of the newest release that has every flag: later ones refuse the others."""
    table = table_of("trl")
    last = [table[name].last for name in arguments.entries if name in table and table[name].last.startswith("v")]
    release = min((tuple(map(int, text[1:].split("."))) for text in last), default=(1, 9))
    liger = arguments.any_switch("kernels", "use_liger_kernel")
    others = ["bf16"] * arguments.has("fp16") + ["max_length"] * arguments.has(*_LENGTHS) + ["loss_type"] * liger
    arguments.add_defaults([text for text, first in _SINCE.items() if release >= first], 1, others)
    if "gradient_checkpointing" in arguments.defaults:
        arguments.remark("release-assumed", "note", "TRL 1.9's defaults: gradient_checkpointing is on since 0.22")
    if "dtype" in arguments.defaults and not arguments.has("load_in_4bit"):
        message = "TRL 1.9's defaults: weights are loaded in fp32 since 1.0"
        fix = "dtype: bfloat16" if arguments.file.endswith(SUFFIXES) else "--dtype bfloat16"
        arguments.remark("release-assumed", "note", message, fix=fix)


def _with_purpose(arguments: Arguments, title: str, *, deepspeed: bool, padded: bool = True) -> Recipe:
    """Return the run with its loss, recognised by the name of script or folder; else the next-token loss."""
    _add_mode(arguments)
    if arguments.has("use_peft"):  # a flag of TRL's ModelConfig, as are its defaults
        arguments.add_defaults([f"{name}={table_of('trl')[name].default}" for name in ("lora_dropout", "lora_r")], 1)
    named = _PREFERENCE.search((arguments.text("task_type", "task_type") or title).lower())
    kind = named[1] if named else "dpo" if arguments.has("max_prompt_length", "precompute_ref_log_probs") else ""
    kind = kind or ("reward" if arguments.has("num_padding_at_beginning") else "")
    run = purposed_run(arguments, kind, deepspeed=deepspeed, padded=padded)
    if not kind and arguments.text("cross_entropy_chunk_tokens", "loss_type") == "chunked_nll":
        run = replace(run, options={"cross_entropy_chunk_tokens": "256", **run.options})  # as the stack trl
    adapters = next((name for name in (*arguments.entries, title) if "lora" in name.lower()), "")
    if arguments.has("use_peft"):
        run = peft_targets(arguments, run)
    if run.lora_rank is None and adapters and not arguments.has(*_SAYS_ADAPTERS):
        message = f"{adapters[:60]}: adapters may be trained, of a rank that is not stated; all weights are priced"
        arguments.remark("upper-bound", "warning", message)
    return run


def _add_mode(arguments: Arguments) -> None:
    """Add Firefly's mode (yangjianxin1/Firefly, train.py): all weights, adapters, or adapters over nested 4 bits."""
    if arguments.has("source_max_len") and arguments.has("bits", "max_memory_MB"):
        _add_qlora(arguments)
    mode, kind = (arguments.text("lora_rank", name) for name in ("train_mode", "peft_type"))
    arguments.forget("lora_rank")
    if kind is not None and kind.lower() != "lora":
        arguments.not_modelled(f"peft_type {kind[:40]} is not modelled", "peft_type")
    if mode is None:
        return
    if mode not in ("full", "lora", "qlora"):
        arguments.not_modelled(f"train_mode {mode[:40]} is not modelled", "train_mode")
    adapters, bits = (str(mode in modes).lower() for modes in (("lora", "qlora"), ("qlora",)))
    line = arguments.entries["train_mode"][-1].place.line
    for name, text in (("use_lora", adapters), ("load_in_4bit", bits), ("use_bnb_nested_quant", bits)):
        arguments.add(name, [known_value(text, line)], line)


def _add_qlora(arguments: Arguments) -> None:
    """Add the defaults of artidoro/qlora 7f4e95a, qlora.py, and of scripts made of it: adapters, a base of 4 bits."""
    own = "bits=4 lora_r=64 use_bnb_nested_quant=true source_max_len=1024 target_max_len=256 optim=paged_adamw_32bit"
    arguments.add_defaults((*own.split(), "gradient_checkpointing=true", "per_device_train_batch_size=1"), 1)
    parts = [arguments.integer("seq_length", name) or 0 for name in ("source_max_len", "target_max_len")]
    if not arguments.has(*_LENGTHS) and all(parts):
        arguments.add_defaults((f"max_seq_length={sum(parts)}",), 1)


def purposed_run(arguments: Arguments, kind: str, *, deepspeed: bool, padded: bool = True) -> Recipe:
    """Return the run of a trainer's words with a preference loss, or the next-token loss where `kind` is empty."""
    run = trainer_run(arguments, deepspeed=deepspeed)
    purpose = preference(arguments, kind, adapters=run.lora_rank is not None) if kind else {}
    if padded and not arguments.any_switch("packing", "packing", "padding_free"):
        note_samples(arguments, next((name for name in _LENGTHS if arguments.has(name)), _LENGTHS[0]))
    run = replace(run, options={**run.options, **purpose})
    if arguments.has("lora_dim") and run.lora_rank and run.model and not arguments.has("only_optimize_lora"):
        # DeepSpeed-Chat at 45b4b715: nothing else freezes the tables, which have gradients and fp32 state.
        spec = load_model(run.model)
        return replace(run, unpriced_bytes=14.0 * (2 - spec.tie_word_embeddings) * spec.vocab_size * spec.hidden_size)
    return run


def _is_chat(arguments: Arguments) -> bool:
    """Whether flags are DeepSpeed-Chat's, which then count as keys of the configuration that it generates."""
    if not arguments.has("zero_stage") or arguments.text("deepspeed", "deepspeed"):
        return False
    rank = arguments.entry("lora_dim")
    if rank is not None and rank.text != "0":
        arguments.add("lora_rank", rank.values, rank.value_line)
    line = arguments.entries["zero_stage"][-1].place.line
    length = () if arguments.has(*_LENGTHS) else ("max_seq_len=512",)
    arguments.add_defaults(("per_device_train_batch_size=16", *length), line)
    if arguments.has("offload"):
        arguments.add("zero_optimization.offload_optimizer.device", [known_value("cpu", line)], line)
    arguments.add("bf16" if arguments.text("precision", "dtype") == "bf16" else "fp16", [], line)
    return True


def _columns(where: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the batch sizes of a run and the devices that they imply, all of them data parallel."""
    columns = counts(where, facts, {"micro_batch_size": "micro", "global_batch_size": "batch"})
    if {"micro_batch_size", "global_batch_size"} <= set(columns):
        steps = parse_count(where, "gradient accumulation", facts.get("accumulation") or "1")
        columns["devices"] = columns["global_batch_size"] // max(columns["micro_batch_size"] * steps, 1)
    return columns


STEP_LOG: Final = StepLogForm(
    name="the Hugging Face trainer",
    framework="torch",
    order=20,
    begins=re.compile(r"\*{5} Running training \*{5}|'train_steps_per_second':"),
    step=re.compile(
        r"\|\s{0,4}(?P<at>\d{1,9})/(?P<total>\d{1,9}) \[[0-9:]{1,12}<[0-9:?]{1,12},\s{0,4}"
        r"(?:(?P<seconds>[0-9.]{1,20})s/it|(?P<rate>[0-9.]{1,20})it/s)"
    ),
    facts=(
        re.compile(r"Instantaneous batch size per device = (?P<micro>[0-9,]{1,12})"),
        re.compile(r"Total train batch size \(w\. [^)]{1,60}\) = (?P<batch>[0-9,]{1,12})"),
        re.compile(r"Gradient Accumulation steps = (?P<accumulation>[0-9,]{1,12})"),
        re.compile(r"Total optimization steps = (?P<total>[0-9,]{1,12})"),
        re.compile(r"'train_runtime': '?(?P<runtime>[0-9.]{1,20})"),
        re.compile(r"'train_steps_per_second': '?(?P<rate>[0-9.]{1,20})"),
    ),
    columns=_columns,
    note="Its ranks are those that its batch implies, all data parallel.",
)


_MARKS: Final = frozenset(["model_name_or_path", "per_device_train_batch_size"])
_CHAT: Final = frozenset(["model_name_or_path", "zero_stage"])
_SCRIPT: Final = re.compile(r"(?<![a-z])(?:sft|dpo|kto|orpo|reward_model|reward_modeling|reward)(?![a-z]).*\.py$")
"""Names of TRL's scripts and of scripts modelled on them, which take a file in place of flags."""
_ENGINE: Final = frozenset(["deepspeed", "deepspeed_config", "zero_stage"])


def _is_command(launch: LaunchCommand) -> bool:
    """Whether a launch is the command `trl`, or starts one of TRL's scripts as a module."""
    return launch.program == "trl" or launch.script.text.startswith(OWN_MODULES)


def _cluster(arguments: Arguments, launch: LaunchCommand) -> tuple[int | None, int | None]:
    return (1, 1) if launch.launcher == "python" else cluster(arguments, as_accelerate(launch))


def _is_trainer(launch: LaunchCommand) -> bool:
    by_name = launch.flags >= {"model_name", "per_device_train_batch_size"} and "model" not in launch.flags
    marked = launch.flags >= _MARKS or launch.flags >= _CHAT or by_name or "train_args_file" in launch.flags
    script = PurePath(launch.script.text).name  # of TRL's kind, and configured by a file
    by_file = _SCRIPT.search(script) is not None and any(text.endswith(SUFFIXES) for text in launch.texts)
    return launch.launcher != "other" and (marked or by_file)


def _is_accelerated(launch: LaunchCommand) -> bool:
    return launch.launcher == "accelerate" and _is_trainer(launch)


def _is_engine(launch: LaunchCommand) -> bool:
    return _is_trainer(launch) and not _ENGINE.isdisjoint(launch.flags)


FRAMEWORK: Final = Framework(
    title="Hugging Face Trainer",
    profile="torch",
    tables=("transformers", "trl", "deepspeed"),
    launches=(
        LaunchForm("trl-shell", 10, _is_command, read, take_words, _cluster, is_named_by_program=True),
        LaunchForm("accelerate-shell", 60, _is_accelerated, read, take_words, cluster, complete=False),
        LaunchForm("deepspeed-shell", 80, _is_engine, read, take_words, complete=False),
        LaunchForm("trainer-shell", 81, _is_trainer, read, take_words, complete=False),
    ),
    step_log=STEP_LOG,
    files=(FileForm("trl-yaml", 60, _MARKS.issubset, read_file, complete=False),),
)
