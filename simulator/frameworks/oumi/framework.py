"""Reader of oumi's configurations (d8ed077: `src/oumi/core/configs/params`), in the words of Hugging Face's Trainer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, UndecidedError
from simulator.frameworks.accelerate.words import STRATEGIES
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import Configuration, over_file, replaced
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, marked
from simulator.frameworks.logs import with_longest_sample
from simulator.frameworks.transformers.read import peft_targets
from simulator.frameworks.trl.framework import purposed_run
from simulator.frameworks.values import Cause, PlainValue, known_value, unknown_value
from simulator.question.origin import Place
from simulator.question.recipe import Recipe

_TRAINERS: Final = {"trl_sft": "", "trl_dpo": "dpo", "trl_kto": "kto", "hf": ""}
_STARTED: Final = re.compile(r"oumi\s+train\b[^\n;&|]*?\s(?:-c|--config)[ =]+[\"']?(?:oumi://)?([^\s\"';]+)", re.DOTALL)
"""The configuration file in a job's training command, with continued lines joined."""
_REPLACED: Final = re.compile(r"--[a-z]+(?:\.\w+)+", re.ASCII)  # a key of the configuration on a job's command line
_HOLE: Final = re.compile(r"\$\{?(\w+)\}?", re.ASCII)  # a variable that is a whole value
_LENGTHS: Final = ("model.model_max_length", *(f"training.trainer_kwargs.max_{kind}length" for kind in ("", "seq_")))
_COUNT: Final = re.compile(r"\w[\w-]*:(\d{1,4})", re.ASCII)  # devices per node: `A100:4`
_DROPPED: Final = ("training.verl_config_overrides.", "training.grpo.", "training.gold.", "training.gkd.")
_PRECISIONS: Final = {"bf16": "bf16", "fp16": "fp16"}
_MARKS: Final = "model.model_name training training.trainer_type|training.enable_gradient_checkpointing"


def is_launch(launch: LaunchCommand) -> bool:
    """Whether a command line trains by a file: `oumi train -c FILE`, alone or after `oumi distributed torchrun`."""
    trains = launch.script.text == "train" or "train" in launch.texts
    return launch.program == "oumi" and trains and not {"-c", "--config"}.isdisjoint(launch.texts)


def cluster(_: Arguments, launch: LaunchCommand) -> tuple[int | None, int | None]:
    """Return one process, or unknown sizes for `oumi distributed`, which detects its machines."""
    return (1, 1) if launch.script.text == "train" else (None, None)


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a command line; flags override the file's keys."""
    if (laid := over_file(arguments, launch)) is None:
        return Recipe(framework="torch")
    document, keys = laid
    return read(arguments, keys, document.file)


def read_job(arguments: Arguments, keys: Sequence[Key]) -> Recipe | None:
    """Return the run of the configuration that a job's command names, on the job's machines; None for other jobs."""
    texts = {key.dotted: key for key in keys if key.values}
    command = texts["run"].values[0].text if "run" in texts else ""
    started = _STARTED.search(command.replace("\\\n", " "))
    if started is None:
        return None
    try:
        path = beside(arguments.file, started[1], texts["run"].line)
    except InputError as error:
        raise UndecidedError(str(error)) from error
    # The rest of the command replaces the file's keys.
    begin = command.replace("\\\n", " ")[started.start() :]
    words = _replacing(arguments, re.split(r"[\n;&|]", begin)[0], texts["run"].line)
    document = Configuration(str(path), tuple(keys_of(path, read_document(path))))
    run = read(arguments, replaced(arguments, document, words), str(path))
    devices = texts.get("resources.accelerators")
    count = _COUNT.fullmatch(devices.values[0].text) if devices is not None else None
    nodes = texts["num_nodes"].values[0].text if "num_nodes" in texts else "1"
    if devices is not None and count is not None and re.fullmatch(r"[1-9]\d{0,4}", nodes, re.ASCII):
        arguments.devices = int(count[1]) * int(nodes)
        arguments.places["devices"] = Place(arguments.file, devices.line)
    return run


def _replacing(arguments: Arguments, command: str, line: int) -> dict[str, PlainValue]:
    """Return the keys that a command replaces by `--a.b=X`; what has another form is not modelled."""
    words: dict[str, PlainValue] = {}
    try:
        parts = shlex.split(command)
    except ValueError:
        parts = ["--.: quotes that do not match"]
    for part, following in zip(parts, [*parts[1:], "--"], strict=True):
        name, equals, text = part.partition("=")
        value = text if equals else following
        if not name.startswith("--") or "." not in name:
            continue
        if _REPLACED.fullmatch(name) is None or value.startswith("--"):
            arguments.not_modelled(f"run: {part[:80]}: what this replaces in the configuration is not read")
        elif (hole := _HOLE.fullmatch(value)) and hole[1] in arguments.settings:
            arguments.used.add(hole[1])
            words[name[2:]] = known_value(arguments.settings[hole[1]], line)
        elif "$" in value or "`" in value:
            cause = Cause(line, hole[1] if hole else value[:60])
            words[name[2:]] = unknown_value(value, line, [cause])
        else:
            words[name[2:]] = known_value(value, line)
    return words


_FROZEN: Final = frozenset(["visual", "vision_tower", "vision_model", "multi_modal_projector"])
"""Parts that see images, by their names in transformers; `visual` is encoder and projector."""


def read(arguments: Arguments, keys: Sequence[Key], file: str = "") -> Recipe:
    """Return the run of a training configuration."""
    for key in keys:
        if not key.dotted.startswith(_DROPPED):
            arguments.add(key.dotted, key.values, key.line, key.file or file)
    trainer = (arguments.text("optim", "training.trainer_type") or "hf").lower()
    if trainer not in _TRAINERS:
        arguments.not_modelled(f"trainer {trainer[:30]} is not modelled", "training.trainer_type")
    bounded = not trainer.startswith("trl_") or any(arguments.has(name) for name in _LENGTHS)
    # TRL's default otherwise (v0.24, the oldest that oumi allows: trainer/dpo_config.py, sft_config.py).
    defaults = ("training.use_peft=false", "model.torch_dtype_str=auto")
    arguments.add_defaults((*defaults, *(() if bounded else ("max_length=1024",))), 1)
    entry = arguments.entry("model.freeze_layers")
    frozen = {value.text.rpartition(".")[2] for value in entry.values} if entry is not None else frozenset()
    if not frozen <= _FROZEN:
        arguments.not_modelled("parts of a model that are not trained are not priced", "model.freeze_layers")
    kind = (arguments.text("precision", "training.mixed_precision_dtype", "fsdp.mixed_precision") or "").lower()
    if kind in _PRECISIONS:
        arguments.add(kind, [known_value("true", 1)], 1)
    if arguments.switch("zero_stage", "fsdp.enable_fsdp"):
        shards = (arguments.text("zero_stage", "fsdp.sharding_strategy") or "FULL_SHARD").lower()
        if shards not in STRATEGIES:
            arguments.not_modelled(f"sharding_strategy {shards[:30]} is not known", "fsdp.sharding_strategy")
        arguments.add_defaults((f"fsdp={shards}", "fsdp.backward_prefetch=BACKWARD_PRE"), 1)
        if arguments.switch("offload", "fsdp.cpu_offload"):
            message = "fsdp.cpu_offload: state on the host is priced on the device and host memory not judged"
            arguments.remark("upper-bound", "warning", message, "fsdp.cpu_offload", bound="state")
    elif arguments.has("fsdp.cpu_offload"):
        arguments.forget("offload")
    run = peft_targets(arguments, purposed_run(arguments, _TRAINERS.get(trainer, ""), deepspeed=_engine(arguments)))
    whole = "visual" in frozen or {"vision_tower", "multi_modal_projector"} <= frozen
    run = replace(run, encoder_training="frozen" if whole else "projector" if frozen else "")
    packs = arguments.switch("packing", "packing")
    return run if packs else with_longest_sample(arguments, run, _datasets(Path(file or arguments.file)))


def _datasets(file: Path) -> list[str]:
    """Return the names of the training data sets, listed as mappings in the file."""
    section: Any = read_document(file)
    for name in ("data", "train", "datasets"):
        section = section.get(name) if isinstance(section, dict) else None
    items = section if isinstance(section, list) else []
    return [str(item.get("dataset_name", "")) if isinstance(item, dict) else "" for item in items]


def _engine(arguments: Arguments) -> bool:
    """Whether DeepSpeed trains; its section is then added as its configuration."""
    if not arguments.switch("zero_stage", "deepspeed.enable_deepspeed"):
        return False
    stage = arguments.text("zero_stage", "deepspeed.zero_stage") or "ZERO_0"
    arguments.add("zero_optimization.stage", [known_value(stage[-1:], 1)], 1)
    gathered = "deepspeed.stage3_gather_16bit_weights_on_model_save"
    for name in ("deepspeed.offload_optimizer.device", "deepspeed.offload_param.device", gathered):
        text = arguments.text("saves_on_host" if name == gathered else "offload", name)
        if text is not None:
            arguments.add(name.replace("deepspeed", "zero_optimization"), [known_value(text.lower(), 1)], 1)
    precision = (arguments.text("precision", "deepspeed.precision") or "").lower()
    if precision in _PRECISIONS:
        arguments.add(precision, [known_value("true", 1)], 1)
    return True


FRAMEWORK: Final = Framework(
    title="oumi",
    profile="torch",
    tables=("oumi", "transformers", "trl", "deepspeed"),
    launches=(LaunchForm("oumi-shell", 10, is_launch, read_launch, cluster=cluster, is_named_by_program=True),),
    files=(
        FileForm("oumi-yaml", 20, marked(_MARKS), read),
        FileForm("oumi-job-yaml", 21, marked("resources run working_dir|envs"), read_job),
    ),
)
