"""LLaMA-Factory: configuration files, and `llamafactory-cli train` with one.

Read as LLaMA-Factory at ff6d4d1 reads them (`src/llamafactory/hparams`), whose defaults count where a key is absent.
Its second format (`src/llamafactory/v1`) and its runs on mcore_adapter are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from simulator.errors import UnsupportedError
from simulator.frameworks.arguments import Arguments as Given
from simulator.frameworks.configuration import configuration
from simulator.frameworks.deepspeed.configuration import FLAGS as TRAINER_FLAGS
from simulator.frameworks.deepspeed.configuration import add_deepspeed
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import passed_of, read_of
from simulator.frameworks.named import with_fewer_bits
from simulator.frameworks.purpose import require_training_switches
from simulator.frameworks.values import known_value
from simulator.recipes.readers.command_line import add_words
from simulator.recipes.readers.deepspeed import note_samples, trainer_recipe
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell.launch import TrainingCommand

_OWN: Final = frozenset(["finetuning_type", "cutoff_len", "dataset_dir", "lora_target"])
_SECOND: Final = frozenset(["dist_config", "peft_config", "kernel_config", "model_class", "quant_config"])
_DEFAULTS: Final = ("finetuning_type=lora", "cutoff_len=2048")
_TRAINS: Final = ("pt", "sft")
_SUFFIXES: Final = (".yaml", ".yml", ".json")


def is_llamafactory(names: Iterable[str]) -> bool:
    """Whether keys are of LLaMA-Factory."""
    found = set(names)
    first = "model_name_or_path" in found and bool(found & _OWN)
    return first or is_second(found)


def is_second(names: Iterable[str]) -> bool:
    """Whether keys are of LLaMA-Factory's second format."""
    found = set(names)
    return "model" in found and len(found & _SECOND) >= 2


def read_llamafactory(path: Path, keys: Iterable[Key]) -> Recipe:
    """The recipe of a configuration file on its own."""
    given = _given(str(path))
    _add_keys(given, str(path), keys)
    return _recipe(given, None, "llamafactory-yaml")


def is_llamafactory_launch(launch: TrainingCommand) -> bool:
    """Whether a launch is `llamafactory-cli train`."""
    return launch.program == "llamafactory-cli" and launch.script.text == "train"


def read_llamafactory_launch(launch: TrainingCommand, file: str) -> Recipe:
    """The recipe of a launch, whose configuration file is read beside it; `key=value` and flags replace its keys."""
    given = _given(file)
    for word in add_words(given, launch.arguments):
        name, equals, text = word.text.partition("=")
        if word.known and word.text.endswith(_SUFFIXES) and not equals:
            flags, given.entries = given.entries, {}
            found = configuration(launch, file, word.text, word.line)
            if found is not None:
                _add_keys(given, found.file, found.keys)
            given.entries |= flags
        elif equals and word.known:
            given.add(name, [known_value(text, word.line)], word.line)
    nodes, devices = _cluster(launch)
    return _recipe(given, launch, "llamafactory-shell", nodes, devices)


def _given(file: str) -> Given:
    table = read_of("llamafactory", "transformers") | TRAINER_FLAGS
    return Given(file, table, passed_of("llamafactory", "transformers") - table.keys(), complete=True)


def _cluster(launch: TrainingCommand) -> tuple[int | None, int | None]:
    """Nodes and processes: `NNODES` and `NPROC_PER_NODE`, else one node with all its devices."""

    def count(name: str, default: int | None) -> int | None:
        value = launch.environment.get(name)
        if value is None:
            return default
        return int(value.text) if value.known and re.fullmatch(r"[1-9][0-9]{0,5}", value.text, re.ASCII) else None

    return count("NNODES", 1), count("NPROC_PER_NODE", None)


def _add_keys(given: Given, file: str, keys: Iterable[Key]) -> None:
    keys = list(keys)
    names = {key.path[0] for key in keys}
    if is_second(names):
        raise UnsupportedError(f"{file}: LLaMA-Factory's v1 format is not read; read are the files of its first format")
    mixed = next((key for key in keys if key.name in ("tensor_model_parallel_size", "use_mca")), None)
    if mixed is not None:
        where = f"{file}:{mixed.line}"
        raise UnsupportedError(f"{where}: LLaMA-Factory on mcore_adapter is not read; give the run's Megatron flags")
    for key in keys:
        # A DeepSpeed configuration may stand in the file itself.
        name = ".".join(key.path[1:]) if key.path[0] == "deepspeed" and len(key.path) > 1 else key.dotted
        if key.values and key.values[0].text.lower() not in ("none", "null"):
            given.add(name, key.values, key.line, file)


def _recipe(
    given: Given, launch: TrainingCommand | None, dialect: str, nodes: int | None = None, devices: int | None = None
) -> Recipe:
    require_training_switches(given)
    given.add_defaults(_DEFAULTS, 1)
    nested = any(name.startswith("zero_optimization.") for name in given.entries)
    deepspeed = add_deepspeed(given, launch) or nested
    if launch is None and not deepspeed and not given.has("fsdp"):
        message = "a configuration of `accelerate launch` may shard the state; priced without"
        given.remark("upper-bound", "warning", message, "model_name_or_path")
    stage = given.text("stage", "stage")
    if stage not in (None, *_TRAINS):
        given.not_modelled(f"stage {stage[:20]}: a second model or another loss is not modelled", "stage")
    if not given.switch("packing", "packing") and not given.switch("packing", "neat_packing"):
        note_samples(given, "cutoff_len")
    title = "" if launch is None else "llamafactory-cli train"
    return with_fewer_bits(trainer_recipe(given, title, dialect, nodes, devices, deepspeed=deepspeed))
