"""DeepSpeed's configuration beside a trainer's flags: a file that a flag names, or a preset, as switches."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import PurePath
from typing import Final

from simulator.errors import InputError
from simulator.files import read_table
from simulator.frameworks.arguments import Arguments, LaunchCommand
from simulator.frameworks.configuration import Configuration, configuration, need_written, remark_keys
from simulator.frameworks.documents import Key, beside, keys_of, read_document
from simulator.frameworks.flags import table_of
from simulator.frameworks.values import known_value

_TABLE: Final = table_of("deepspeed")
_Preset = tuple[int, tuple[str, ...]]
_PRESETS: Final[dict[tuple[str, str], _Preset]] = {
    (row["owner"], row["name"]): (int(row["stage"]), tuple(row["offloaded"].split()))
    for row in read_table(__file__, "_presets")
}
"""ZeRO stage and what is offloaded in shipped configurations, by owner and name; those of ms-swift and LLaMA-Factory
have no owner, and a name without `ds_` and with `z` for `zero`."""


def add_deepspeed(arguments: Arguments, launch: LaunchCommand | None) -> bool:
    """Add the keys of the DeepSpeed configuration that the flags name; whether they name one, or its keys are there."""
    entry = arguments.entry("deepspeed_config", "deepspeed")
    if entry is None:
        return any(name.startswith("zero_optimization.") for name in arguments.entries)
    name = entry.text
    written = None if launch is None else launch.written(name)
    if not name or (entry.causes and written is None):
        arguments.need(entry.causes, "zero_stage")
        return True
    configured = _configuration(arguments, launch, name, entry.value_line)
    if configured is None and launch is not None:
        need_written(arguments, launch, name, "zero_stage")
    keys = [dataclasses.replace(key, file=configured.file) for key in configured.keys] if configured else []
    remark_keys(arguments, _unread(keys), "deepspeed")
    for key in keys:
        _compare(arguments, key)
        if not _is_taken(key) or key.dotted in arguments.entries or not key.values:
            continue
        text = key.values[0].text
        if text == "auto" and key.name not in _BY_HIDDEN_SIZE:
            continue
        values = (known_value(_count(text), key.line),) if key.values[0].known and key.name in _COUNTS else key.values
        arguments.add(key.dotted, values, key.line, key.file)
    return True


_OF_TRAINER: Final = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}  # keys whose value the Trainer compares with a flag of its own, which it takes for `auto`


def _compare(arguments: Arguments, key: Key) -> None:
    """Remark a batch that differs from the Trainer's: it raises ValueError (transformers v4.57, `fill_match`)."""
    own = arguments.entry(_OF_TRAINER[key.dotted]) if key.dotted in _OF_TRAINER else None
    text = key.values[0].text if key.values and key.values[0].known else ""
    if own is None or own.causes or not text.isdecimal() or not own.text.isdecimal() or int(text) == int(own.text):
        return
    message = f"{key.dotted} {text} of DeepSpeed's configuration against {own.spelled} {own.text}: the Trainer stops"
    arguments.remark_line("contradiction", "error", message, key.line, file=key.file, fix=f"{key.dotted}: auto")


_BY_HIDDEN_SIZE: Final = frozenset(["stage3_prefetch_bucket_size", "reduce_bucket_size"])
"""Keys for which `auto` is computed from the hidden size (transformers v4.57, integrations/deepspeed.py)."""
_COUNTS: Final = _BY_HIDDEN_SIZE | {"stage3_max_live_parameters", "stage3_max_reuse_distance", "sub_group_size"}


UNDER_MEGATRON: Final = {"step_parameters": "1000000000", "step_temporaries": "0", "reduction_parameters": "500000000"}
"""Switches of DeepSpeed's ZeRO and its own FusedAdam under Megatron's layers (v0.19.5, runtime/engine.py,
`_configure_basic_optimizer`; runtime/zero/config.py)."""

_ALL: Final = 10**12 - 1  # more parameters than any model has


def _count(text: str) -> str:
    """Return a count as plain digits, at most `_ALL`, from text such as 1e9; 0 for `auto`."""
    number = re.fullmatch(r"[0-9]{1,15}(?:\.[0-9]*)?(?:e\+?[0-9]{1,2})?", text, re.ASCII | re.IGNORECASE)
    return str(min(int(float(text)), _ALL)) if number else "0" if text == "auto" else text


def _is_taken(key: Key) -> bool:
    """Whether a key is priced."""
    flag = _TABLE.get(key.dotted)
    return flag is not None and flag.effect == "priced"


def _unread(keys: Iterable[Key]) -> Iterator[tuple[str, Key]]:
    """Yield the keys that no trainer takes, by their names in DeepSpeed's table."""
    for key in keys:
        section = key.path[0]
        on = key.name != "enabled" or (bool(key.values) and key.values[0].text != "false")
        if section in _SECTIONS_OFF or "params" in key.path or _is_taken(key) or not on:
            continue
        whole = len(key.path) > 1 and section not in _SECTIONS_READ
        if key.values and key.values[0].text != "auto":
            yield (section if whole else key.name), key


_SECTIONS_OFF: Final = frozenset(
    [
        *("scheduler", "flops_profiler", "tensorboard", "wandb", "csv_monitor", "comms_logger"),
        *("activation_checkpointing", "aio"),
    ]
)  # sections on monitoring, or on features that a trainer's model does not use
_SECTIONS_READ: Final = frozenset(["zero_optimization", "bf16", "fp16", "optimizer", "data_types"])


def _configuration(arguments: Arguments, launch: LaunchCommand | None, name: str, line: int) -> Configuration | None:
    """Return the configuration of a name: the file beside the recipe, else the preset shipped under it."""
    stem = PurePath(name).stem
    preset = _PRESETS.get(("", stem.removeprefix("ds_").replace("zero", "z").removesuffix("_config")))
    if preset is not None and "/" not in name and "." not in name:
        return _preset(arguments, preset, line)
    try:
        if launch is not None:
            return configuration(launch, arguments.file, name, line)
        path = beside(arguments.file, name, line)
        return Configuration(str(path), tuple(keys_of(path, read_document(path))))
    except InputError:
        owner = "axolotl" if PurePath(name).parent.name == "deepspeed_configs" else "LLaMA-Factory"
        if owner == "axolotl":
            preset = _PRESETS.get((owner, stem))
        if preset is None or not (owner == "axolotl" or name.startswith("examples/deepspeed/")):
            raise
        message = f"{name[:200]} is not beside the recipe: taken as {owner} ships it"
        arguments.remark_line("base-configuration", "warning", message, line)
        return _preset(arguments, preset, line)


def _preset(arguments: Arguments, preset: _Preset, line: int) -> Configuration:
    stage, offloaded = preset
    values = {"stage": str(stage)} | {f"offload_{name}.device": "cpu" for name in offloaded}
    keys = [
        Key(("zero_optimization", *name.split(".")), (known_value(text, line),), line, text)
        for name, text in values.items()
    ]
    return Configuration(arguments.file, tuple(keys))
