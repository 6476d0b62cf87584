"""Recipes of Megatron-Bridge before v0.6.0, as its performance scripts started them: one per precision and variant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from simulator.frameworks.nemo.recipes import PythonRecipe, bridge_reader, recipe_of
from simulator.frameworks.python import Instance, PythonFunction, PythonReader, RaisedError
from simulator.frameworks.values import known_value
from simulator.question.origin import Place

_WORDS = ("bf16", "fp8_cs", "fp8_mx", "fp8_sc", "nvfp4")
"""Precisions of performance scripts before v0.6.0."""
_VARIANTS = ("v2", "v1")
_SCRIPTS_ENVIRONMENT = {"PYTORCH_CUDA_ALLOC_CONF": known_value("expandable_segments:True", 1)}
"""Environment of these scripts (`PERF_ENV_VARS` of scripts/performance/utils/executors.py, v0.3.1 to v0.5.1)."""


def variants(path: Path) -> Iterator[PythonRecipe]:
    """Yield the recipes that a file's functions return per precision, as performance scripts before v0.6.0 used them.

    `scripts/performance/utils/overrides.py` changes the returned recipes; for each precision the newest variant counts
    that the scripts' tables of configurations name.
    """
    reader = bridge_reader()
    module = reader.module(path)
    for function in module.names.values():
        asked = function.node.args if isinstance(function, PythonFunction) and function.module is module else None
        if asked is None or not {"precision", "config_variant"} <= {word.arg for word in asked.args}:
            continue
        for word in _WORDS:
            config = next(filter(None, (_variant(reader, function, word, each) for each in _VARIANTS)), None)
            if config is not None:
                yield config


def _variant(reader: PythonReader, function: PythonFunction, word: str, variant: str) -> PythonRecipe | None:
    """Return one precision and variant of a function, as the script starts it; None where there is none."""
    module, base = function.module, None
    recipe, _, device = function.name.rpartition("_config_")
    table = f"{recipe}_config_{device}_{word}_{variant}".upper()
    for each in list(reader.modules.values()):
        base = each.names.get(table, base)
    package = reader.modules.get(module.path.with_name("__init__.py"))
    if base is None and package is None:
        package = reader.module(module.path.with_name("__init__.py"))
        base = package.names.get(table)
    if not isinstance(base, Instance):
        return None
    try:
        config = reader.call(function, (), {"precision": word, "config_variant": variant})
    except RaisedError:
        return None
    if not isinstance(config, Instance) or not isinstance(config.fields.get("model"), Instance):
        return None
    _start(config, reader, word)
    place = Place(str(module.path), function.node.lineno)
    whole = recipe_of(f"{function.name}_{word}_{variant}", config, place)
    devices = base.fields.get("num_gpus")
    return replace(
        whole, devices=devices if isinstance(devices, int) else None, device=device, environment=_SCRIPTS_ENVIRONMENT
    )


def _start(instance: Instance, reader: PythonReader, word: str) -> None:
    """Apply the changes that the performance script makes to a configuration before it starts."""
    overrides = next((each for path, each in reader.modules.items() if path.name == "overrides.py"), None)
    common = overrides.names.get("_set_common_perf_overrides") if overrides else None
    if isinstance(common, PythonFunction):
        reader.call(common, (instance,), {})
    optimizer = instance.fields.get("optimizer")
    if word == "bf16" and isinstance(optimizer, Instance) and optimizer.fields.get("optimizer") == "adam":
        optimizer.put("use_precision_aware_optimizer", True, instance.places["optimizer"])  # noqa: FBT003  its value
