"""NeMo 2 recipes that Python functions return as a `run.Partial`, translated into Megatron-Bridge's keys.

NVIDIA-NeMo/NeMo v2.4.0: `nemo/collections/llm/recipes`, each file a `pretrain_recipe` and a `finetune_recipe` whose
arguments all have defaults. `MegatronStrategy` (nemo/lightning/pytorch/strategies/megatron_strategy.py) passes its
fields to Megatron's core; plugins and callbacks override fields of the replicas and the optimizer before training.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from simulator.frameworks.documents import Key
from simulator.frameworks.nemo.recipes import PythonRecipe, keys_of
from simulator.frameworks.python import PythonReader
from simulator.frameworks.python_values import Instance, OpenValue, Outside, PythonFunction, RaisedError
from simulator.frameworks.values import known_value
from simulator.question.origin import Place

_FUNCTIONS: Final = ("pretrain_recipe", "finetune_recipe")
_FUSED_LOSS: Final = "cross_entropy_loss_fusion"
"""Field that is on by default (`GPTConfig`, nemo/collections/llm/gpt/model/base.py:301)."""
_OVERLAP: Final = "MegatronCommOverlapCallback"
_ARGUMENTS: Final = (
    *("num_nodes", "num_gpus_per_node", "performance_mode", "peft_scheme", "seq_length", "packed_sequence"),
)
_FOLLOWED: Final = re.compile(r"collections\.llm\.recipes\b")
_SHARDING: Final = "data_parallel_sharding_strategy"
"""Field that only `fsdp="megatron"` reads."""


def is_partial_recipe(text: str) -> bool:
    """Whether a Python file has functions that return recipes of NeMo 2."""
    return "nemo_run" in text and re.search(r"^def (?:pretrain|finetune)_recipe\(", text, re.MULTILINE) is not None


def partial_recipes(path: Path, settings: Mapping[str, str]) -> Iterator[PythonRecipe]:
    """Yield the recipes of a file, changed by `settings`: arguments (`num_nodes`), or fields by dotted names.

    As `nemo llm pretrain --factory 'llama3_8b(num_nodes=2)' trainer.strategy.tensor_model_parallel_size=4` does. Raises
    InputError for a file that is not Python.
    """
    reader = PythonReader(Outside, lambda name: _FOLLOWED.search(name) is not None)
    module = reader.module(path)
    for name in _FUNCTIONS:
        function = module.names.get(name)
        if isinstance(function, PythonFunction) and function.module is module:
            arguments = {
                word.arg: _plain(settings[word.arg]) for word in function.node.args.args if word.arg in settings
            }
            try:
                recipe = reader.call(function, (), arguments, function.node, module)
            except RaisedError:
                continue
            if isinstance(recipe, Instance) and isinstance(recipe.fields.get("trainer"), Instance):
                for setting, text in settings.items():
                    _replace(recipe, setting.split("."), _plain(text))
                place = Place(str(path), function.node.lineno)
                title = f"{path.stem} {name}"
                yield PythonRecipe(title, tuple(_keys(recipe)), {}, hub="", devices=None, device="", place=place)


def _plain(text: str) -> Any:
    """Return the value of a setting's text."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def is_setting(name: str) -> bool:
    """Whether a setting names an argument of recipes, or a field of one."""
    section, dot, _ = name.partition(".")
    return name in _ARGUMENTS or (bool(dot) and section in ("trainer", "data", "optim", "model", "peft"))


def _replace(instance: Instance, path: list[str], value: Any) -> None:
    """Set a field by its path, if the recipe has that part."""
    part: Any = instance
    for name in path[:-1]:
        part = part.fields.get(name) if isinstance(part, Instance) else None
    if isinstance(part, Instance) and len(path) > 1:
        part.put(path[-1], value, Place("--set", 1))


def _keys(recipe: Instance) -> Iterator[Key]:
    """Yield the keys of a recipe's parts; those of plugins and callbacks come last."""
    trainer = recipe.fields["trainer"]
    yield from _named(recipe.fields.get("model"))
    for name in ("num_nodes", "devices"):
        if name in trainer.fields:
            number = trainer.fields[name]
            yield Key(("trainer", name), (known_value(str(number), 1),), trainer.places[name].line, number)
    strategy = trainer.fields.get("strategy")
    if isinstance(strategy, Instance):
        yield from keys_of(("model",), strategy)
        yield from _replicas(trainer, strategy)
    for section, part in (("data", recipe.fields.get("data")), ("optimizer", _config(recipe.fields.get("optim")))):
        for each in _parts(part):
            yield from keys_of((section,), each)
    for section, parts in (("mixed_precision", _plugins(trainer)), ("comm_overlap", _overlaps(trainer))):
        for each in parts:
            yield from keys_of((section,), each)
    for adapter in _parts(recipe.fields.get("peft")):
        kind = _class(adapter)
        yield Key(("peft", "_target_"), (known_value(kind, 1),), recipe.places["peft"].line, kind)
        yield from keys_of(("peft",), adapter)


def _replicas(trainer: Instance, strategy: Instance) -> Iterator[Key]:
    """Yield the keys of data parallelism, as plugins and the overlap callback change them before training."""
    for replicas in _parts(strategy.fields.get("ddp")):
        if strategy.fields.get("fsdp") is None:
            replicas.fields.pop(_SHARDING, None)
        for part in (*_plugins(trainer), *_overlaps(trainer)):
            for name in ("grad_reduce_in_fp32", "overlap_grad_reduce", "overlap_param_gather"):
                if part.fields.get(name) is not None:
                    replicas.put(name, part.fields[name], part.places[name])
        yield from keys_of(("ddp",), replicas)


def _plugins(trainer: Instance) -> list[Instance]:
    return _parts(trainer.fields.get("plugins"))


def _overlaps(trainer: Instance) -> list[Instance]:
    return [part for part in _parts(trainer.fields.get("callbacks")) if _class(part) == _OVERLAP]


def _named(model: Any) -> Iterator[Key]:
    """Yield the class of the model's configuration, and the fields that the recipe sets."""
    config = _config(model)
    if isinstance(config, Instance):
        kind = _class(config)
        place = model.places["config"]
        yield Key(("model", "_target_"), (known_value(kind, 1),), place.line, kind)
        config.fields.setdefault(_FUSED_LOSS, True)
        config.places.setdefault(_FUSED_LOSS, place)
        yield from keys_of(("model",), config)


def _config(part: Any) -> Any:
    return part.fields.get("config") if isinstance(part, Instance) else None


def _parts(value: Any) -> list[Instance]:
    several = value if isinstance(value, list | tuple) else (value,)
    return [part for part in several if isinstance(part, Instance)]


def _class(part: Instance) -> str:
    """Return the name of the class that `run.Config` creates, without its module."""
    first = part.arguments[0] if part.arguments else None
    named = first.name if isinstance(first, Outside | OpenValue) else part.kind
    return named.rpartition(".")[2]
