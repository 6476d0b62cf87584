"""ms-swift: `megatron sft` and `swift sft`.

Read as ms-swift 4.6 at 3602360 reads them (`swift/megatron/arguments/megatron_args.py`, `swift/arguments`), whose
defaults count where a flag is absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from simulator.errors import UnsupportedError
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.configuration import configuration
from simulator.frameworks.deepspeed.configuration import FLAGS as TRAINER_FLAGS
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.flags import Flag, FlagTable, passed_of, read_of
from simulator.frameworks.megatron.keys import add_layers, settle, with_model
from simulator.frameworks.named import named_model, with_fewer_bits
from simulator.recipes.readers.command_line import add_words
from simulator.recipes.readers.deepspeed import note_samples, trainer_recipe
from simulator.recipes.readers.megatron import megatron_recipe
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.launch import TrainingCommand

_SUFFIXES: Final = (".yaml", ".yml", ".json")
_RENAMED: Final = {
    "max_length": "seq_length",
    "virtual_pipeline_model_parallel_size": "num_virtual_stages_per_pipeline_rank",
}
_DEFAULTS: Final = (
    *("micro-batch-size=1", "global-batch-size=16", "recompute-granularity=selective", "use-distributed-optimizer"),
    *("cross-entropy-loss-fusion", "attention-backend=flash", "use-flash-attn", "swiglu", "group-query-attention"),
    *("attention-dropout=0.0", "hidden-dropout=0.0"),
)
"""What `MegatronArguments` sets, of what matters."""
_TRAINER: Final = {
    "model": "model_name_or_path",
    "tuner_type": "finetuning_type",
    "train_type": "finetuning_type",
    "sft_type": "finetuning_type",
    "quant_bits": "quantization_bit",
    "quant_method": "quantization_bit",
    "attn_impl": "attn_implementation",
}
_TRAINER_DEFAULTS: Final = (
    "finetuning_type=lora",
    "per_device_train_batch_size=1",
    "gradient_checkpointing=true",
    "torch_dtype=bfloat16",
)
_STEP: Final = 16
"""Sequences that ms-swift fills a step with where nobody says how many micro batches it has."""
_LORA_RANK: Final = 8


def is_swift(launch: TrainingCommand) -> bool:
    """Whether a launch is one of ms-swift that trains."""
    return launch.program in ("swift", "megatron")


def read_swift(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of one launch; a configuration file instead of flags is read beside it."""
    if launch.script.text == "rlhf":
        raise UnsupportedError(
            f"{file}:{launch.line}: {launch.program} rlhf: a second model or another loss is not modelled; "
            "read are pt and sft"
        )
    return _megatron(launch, file) if launch.program == "megatron" else _trainer(launch, file)


def _given(launch: TrainingCommand, file: str, table: Mapping[str, Flag], passed: frozenset[str]) -> Given:
    given = Given(file, table, passed, complete=True)
    words = list(launch.arguments)
    if words and words[0].known and words[0].text.endswith(_SUFFIXES):
        found = configuration(launch, file, words[0].text, words[0].line)
        for key in found.keys if found else ():
            given.add(key.dotted, key.values, key.line, found.file if found else "")
        words = words[1:]
    add_words(given, words)
    return given


def _count(launch: TrainingCommand, given: Given, name: str, option: str) -> int | None:
    """Processes or nodes of the environment; one where it says nothing."""
    value = launch.environment.get(name)
    if value is None:
        # Several nodes without a number of processes: the platform that counts the nodes counts those too.
        return None if name == "NPROC_PER_NODE" and "NNODES" in launch.environment else 1
    if not value.known:
        given.need(value.causes, option)
        return None
    return int(value.text) if re.fullmatch(r"[1-9][0-9]{0,5}", value.text, re.ASCII) else None


def _cluster(launch: TrainingCommand, given: Given) -> tuple[int | None, int | None]:
    """Nodes, and processes of a node."""
    return _count(launch, given, "NNODES", "nodes"), _count(launch, given, "NPROC_PER_NODE", "devices_per_node")


def _pack(given: Given, length: str) -> None:
    """Samples that are packed are as long as `packing_length` says, else as `length` (base_args.py); others may be."""
    if not given.switch("packing", "packing"):
        note_samples(given, length)
    elif given.has("packing_length"):
        given.entries[length] = given.entries.pop("packing_length")


def _task(given: Given) -> dict[str, str]:
    """Scores of `num_labels` in place of the output layer (model/register.py); other tasks have several texts a sample.

    How many passages go with an anchor or a query, only the data says.
    """
    task = given.text("score_head", "task_type") or "causal_lm"
    given.places.pop("score_head", None)
    if task not in ("causal_lm", "seq_cls"):
        said = f"task_type {task[:30]}: samples of several texts, and their loss, are not modelled"
        given.not_modelled(said, "task_type")
    return {"score_head": "true"} if task == "seq_cls" else {}


def _megatron(launch: TrainingCommand, file: str) -> Recipe:
    # Every switch of Megatron takes true or false here.
    known = read_of("megatron", "swift")
    table = FlagTable(
        {name: replace(flag, kind="optional") if flag.kind == "switch" else flag for name, flag in known.items()}
    )
    given = _given(launch, file, table, passed_of("megatron", "swift"))
    told = frozenset(given.entries)
    settle(given, _RENAMED)
    nodes, devices = _cluster(launch, given)
    line = launch.line
    granularity = given.entry("recompute_granularity")
    if granularity is not None and granularity.text == "none":
        del given.entries["recompute_granularity"]
    given.add_defaults(_DEFAULTS, line, told)
    if not given.has("fp16"):
        given.add_defaults(["bf16"], line)
    _pack(given, "seq_length")
    model = named_model(given, given.text("model", "model") or "", "model")
    add_layers(given, model, line)
    rank = None
    if (given.text("lora_rank", "tuner_type", "train_type") or "full") != "full":
        rank = given.integer("lora_rank", "lora_rank", high=2**16) or _LORA_RANK
    task = _task(given)
    recipe = megatron_recipe(given, launch.environment, "swift-shell", f"megatron {launch.script.text}", nodes, devices)
    return replace(with_model(recipe, model), lora_rank=rank, options={**recipe.options, **task})


def _trainer(launch: TrainingCommand, file: str) -> Recipe:
    table = read_of("swift", "transformers") | TRAINER_FLAGS
    given = _given(launch, file, table, passed_of("swift", "transformers") - table.keys())
    entries, given.entries = given.entries, {}
    for name, found in entries.items():
        given.entries.setdefault(_TRAINER.get(name, name), []).extend(found)
    nodes, devices = _cluster(launch, given)
    given.add_defaults(_TRAINER_DEFAULTS, launch.line)
    kind = given.text("precision", "torch_dtype")
    if not (given.has("bf16") or given.has("fp16")) and kind in ("bfloat16", "float16"):
        given.add("bf16" if kind == "bfloat16" else "fp16", [], launch.line)
    size = given.text("cp", "sequence_parallel_size")
    if size not in (None, "1"):
        given.not_modelled("sequence parallelism of ms-swift is not modelled", "sequence_parallel_size")
    visible = launch.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.known and devices and len(visible.text.split(",")) > devices:
        shown = f"{len(visible.text.split(','))} devices for {devices} processes"
        message = f"{shown}: a model spread by device_map is priced whole on one device"
        given.remark("upper-bound", "warning", message)
    _pack(given, "max_length")
    if given.has("optimizer"):
        given.not_modelled("optimizer: an optimizer of ms-swift's own is not modelled", "optimizer")
    deepspeed, task = add_deepspeed(given, launch), _task(given)
    title = f"swift {launch.script.text}"
    recipe = with_fewer_bits(trainer_recipe(given, title, "swift-shell", nodes, devices, deepspeed=deepspeed))
    recipe = replace(recipe, options={**recipe.options, **task})
    if given.has("gradient_accumulation_steps") or recipe.layout is None or not (nodes and devices):
        return recipe
    steps = max(1, math.ceil(_STEP / recipe.layout.micro_batch_size / nodes / devices))
    return replace(recipe, gradient_accumulation_steps=steps)
