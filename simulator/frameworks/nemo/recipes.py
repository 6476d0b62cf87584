"""Reader of NeMo 2 recipes that Python functions return as a `run.Partial`, by translation into Megatron-Bridge's keys.

NVIDIA-NeMo/NeMo v2.4.0: `nemo/collections/llm/recipes`, each file a `pretrain_recipe` and a `finetune_recipe` whose
arguments all have defaults. `MegatronStrategy` (nemo/lightning/pytorch/strategies/megatron_strategy.py) passes its
fields to Megatron's core; plugins and callbacks override fields of the replicas and the optimizer before training.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from simulator.errors import InputError
from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.configuration import Interpolation
from simulator.frameworks.documents import Key
from simulator.frameworks.flags import table_of
from simulator.frameworks.nemo.read import read_filled, with_named_model
from simulator.frameworks.python import Instance, OpenValue, Outside, PythonFunction, PythonReader, RaisedError
from simulator.frameworks.values import Cause, PlainValue, known_value, unknown_value
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.specs.names import model_names
from simulator.records import Record

_FUNCTIONS: Final = ("pretrain_recipe", "finetune_recipe")
_FUSED_LOSS: Final = "cross_entropy_loss_fusion"
"""Field that is on by default (`GPTConfig`, nemo/collections/llm/gpt/model/base.py:301)."""
_OVERLAP: Final = "MegatronCommOverlapCallback"
_ARGUMENTS: Final = (
    *("num_nodes", "num_gpus_per_node", "performance_mode", "peft_scheme", "seq_length", "packed_sequence"),
)
_FOLLOWED: Final = re.compile(r"collections\.llm\.recipes\b")
_SHARDING: Final = "data_parallel_sharding_strategy"  # field that only `fsdp="megatron"` reads


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
            names = [word.arg for word in function.node.args.args]
            arguments = {name: _value(name, settings[name]) for name in names if name in settings}
            try:
                recipe = reader.call(function, (), arguments)
            except RaisedError:
                continue
            if isinstance(recipe, Instance) and isinstance(recipe.fields.get("trainer"), Instance):
                _set_fields(recipe, settings)
                place = Place(str(path), function.node.lineno)
                title = f"{path.stem} {name}"
                yield PythonRecipe(title, tuple(_keys(recipe)), {}, hub="", devices=None, device="", place=place)


def is_setting(name: str, *, partial: bool) -> bool:
    """Whether a setting names a field of a recipe's part, or an argument of recipes of NeMo 2 (`partial`)."""
    section, dot, _ = name.partition(".")
    if partial:
        return name in _ARGUMENTS or (bool(dot) and section in ("trainer", "data", "optim", "model", "peft"))
    return section in _SECTIONS and name.count(".") == 1


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


_PARTIAL_OR_RECIPES: Final = re.compile(
    r"recipes\b|^configs\b|^utils\b|mixed_precision|flex_dispatcher|comm_overlap|token_drop|cuda_graph"
)  # modules that recipes are made of; the modules that they configure are not read
_RECIPE: Final = re.compile(r"[a-z]\w*_config")
_DEFINED: Final = re.compile(r"^(?:def \w+_config\(|\w+_config = \w)", re.MULTILINE)
_SETUP: Final = re.compile(r"_(?P<devices>\d+)gpu_(?P<device>[a-z]+\d+)_(?P<precision>bf16|fp8\w{2}|nvfp4)")
_HUB: Final = re.compile(r"[\w.-]+/[\w.-]+")
_SECTIONS: Final = ("model", "train", "optimizer", "ddp", "dataset", "mixed_precision", "comm_overlap", "peft")
"""Parts of a configuration that memory and speed depend on."""
_WHOLE: Final = {"mixed_precision": ("model", "optimizer", "ddp"), "comm_overlap": ("model", "ddp")}
"""Parts whose fields override those of other parts before training."""
_SAME: Final = ("fp8_param", "fp4_param")
"""Other names of `fp8_param_gather` and `fp4_param_gather`, which follow these where unset."""
_OFF_DEFAULTS: Final = ("overlap_grad_reduce", "overlap_param_gather")
"""Overlap that is on by default with a distributed optimizer (`_get_optimizer_overlap_cfgs`)."""
_LETTERS: Final = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of a pipeline chunk's parts in Megatron's layout text."""
_LAYOUT: Final = "pipeline_model_parallel_layout"


class PythonRecipe(Record):
    """The configuration that one function returns."""

    name: str
    keys: tuple[Key, ...]
    environment: Mapping[str, PlainValue]
    hub: str
    """Name of the model on Hugging Face; empty without one."""
    devices: int | None
    device: str
    """Device in the recipe's name: `gb300`."""
    place: Place


_OF_THE_MODEL: Final = ("num_moe_experts", "num_experts", "num_layers", "hidden_size", "num_attention_heads")
"""Fields that a model from Hugging Face has even where the recipe does not set them."""


@functools.cache
def _defaults() -> Mapping[str, Any]:
    """Return defaults of fields, from the tables of Megatron-Bridge and Megatron-LM."""
    config: dict[str, Any] = {}
    for flag in (*table_of("megatron").values(), *table_of("bridge").values()):
        if flag.name in _OF_THE_MODEL or "model." in flag.sets:
            config[flag.name] = OpenValue(flag.name, Place("", 1))
            continue
        text = flag.default
        config[flag.name] = {"True": True, "False": False, "None": None}.get(text, text) if text else False
    return config


def bridge_reader() -> PythonReader:
    """Return a reader of Megatron-Bridge's recipes, with the defaults of its fields."""
    return PythonReader(
        lambda name: _defaults().get(name, Outside(name)), lambda name: _PARTIAL_OR_RECIPES.search(name) is not None
    )


def is_python_recipe(text: str) -> bool:
    """Whether a Python file has functions that return configurations of Megatron-Bridge."""
    return "megatron.bridge" in text and _DEFINED.search(text) is not None


def python_recipes(path: Path, settings: Mapping[str, str] | None = None) -> Iterator[PythonRecipe]:
    """Yield the recipes of a file in order, with `settings` such as `model.tensor_model_parallel_size` applied to each.

    Megatron-Bridge applies the words after a recipe on its command line the same way (v0.6.0,
    training/utils/omegaconf_utils.py, `process_config_with_overrides`). Raises InputError for a file that is not
    Python.
    """
    reader = bridge_reader()
    module = reader.module(path)
    for name, function in module.names.items():
        if not isinstance(function, PythonFunction) or not _RECIPE.fullmatch(name):
            continue
        # Its own: defined there, or another file's renamed for other devices.
        if function.module is module or (name != function.name and _SETUP.search(name)):
            config = _returned(reader, function)
            if config is not None:
                _set_fields(config, settings or {})
                yield recipe_of(name, config, Place(str(function.module.path), function.node.lineno))


def _set_fields(instance: Instance, settings: Mapping[str, str]) -> None:
    """Set the fields that settings name, of the parts that a recipe has. Raises InputError as `_value` does."""
    for name, text in settings.items():
        *path, field = name.split(".")
        part: Any = instance
        for step in path:
            part = part.fields.get(step) if isinstance(part, Instance) else None
        if path and isinstance(part, Instance):
            part.put(field, _value(name, text), Place("--set", 1))


def _value(name: str, text: str) -> Any:
    """Return the value of a setting's text. Raises InputError for one that is neither plain nor a list."""
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = {}
    if not isinstance(value, str | int | float | list | None):
        allowed = "a text, a number, true, false, null or a list"
        raise InputError(f"--set {name[:60]}={text[:60]}: must be {allowed}")
    return value


def _returned(reader: PythonReader, function: PythonFunction) -> Instance | None:
    """Return the configuration that a function without required arguments returns; None without one."""
    arguments = function.node.args
    if len(arguments.args) > len(arguments.defaults) or not isinstance(function.node, ast.FunctionDef):
        return None
    try:
        config = reader.call(function, (), {})
    except RaisedError:
        return None
    whole = isinstance(config, Instance) and isinstance(config.fields.get("model"), Instance)
    return config if whole and "train" in config.fields else None


def recipe_of(name: str, instance: Instance, place: Place) -> PythonRecipe:
    """Return the recipe of a configuration that a function of this name returned."""
    setup, model = _SETUP.search(name), instance.fields["model"]
    if model.fields.get("recompute_modules") == []:  # Megatron's core fills in the attention only for None
        model.put("recompute_granularity", None, model.places["recompute_modules"])
    _lay_over(instance)
    hub = next((text for text in model.arguments if isinstance(text, str) and _HUB.fullmatch(text)), "")
    environment = instance.fields.get("env_vars")
    variables = environment if isinstance(environment, dict) else {}
    line = instance.places["env_vars"].line if "env_vars" in instance.places else 1
    return PythonRecipe(
        name=name,
        keys=tuple(_recipe_keys(instance)),
        environment={str(word): known_value(str(text), line) for word, text in variables.items()},
        hub=hub,
        devices=int(setup["devices"]) if setup else None,
        device=setup["device"] if setup else "",
        place=place,
    )


def _lay_over(instance: Instance) -> None:
    """Apply number types and overlap to the parts that they override before training."""
    for part, others in _WHOLE.items():
        own = instance.fields.get(part)
        if not isinstance(own, Instance):
            continue
        for name in _SAME:
            if own.fields.get(name, False) is None:
                del own.fields[name]
        if part == "comm_overlap":
            _overlap(instance, own)
        for name, value in own.fields.items():
            for other in (instance.fields.get(section) for section in others):
                if isinstance(other, Instance) and name in other.fields and value is not None:
                    other.put(name, value, own.places[name])
    overlap = instance.fields.get("comm_overlap")
    if isinstance(overlap, Instance):
        overlap.fields = {name: value for name, value in overlap.fields.items() if value is not None}


def _overlap(instance: Instance, own: Instance) -> None:
    """Turn on overlap of replicas unless the recipe decides; drop tensor parallel overlap for a size of 1."""
    ddp, model = instance.fields.get("ddp"), instance.fields["model"]
    if isinstance(ddp, Instance) and ddp.fields.get("use_distributed_optimizer") is True:
        for name in _OFF_DEFAULTS:
            if own.fields.get(name) is None:
                place = instance.places.get("comm_overlap", own.places.get(name, Place("", 1)))
                ddp.put(name, True, place)  # noqa: FBT003  its value
    if own.fields.get("tp_comm_overlap") is True and model.fields.get("tensor_model_parallel_size") == 1:
        own.put("tp_comm_overlap", False, own.places["tp_comm_overlap"])  # noqa: FBT003


def _recipe_keys(instance: Instance) -> Iterator[Key]:
    for section in _SECTIONS:
        part = instance.fields.get(section)
        if isinstance(part, Instance):
            if section == "peft":
                kind = part.kind.rpartition(".")[2]
                yield Key((section, "_target_"), (known_value(kind, 1),), instance.places[section].line, kind)
            yield from keys_of((section,), part)
        elif isinstance(part, str):
            place = instance.places[section]
            yield Key((section,), (known_value(part, place.line),), place.line, part, place.file)


def keys_of(path: tuple[str, ...], part: Instance) -> Iterator[Key]:
    """Yield the keys of one part of a configuration, each with the line that sets it."""
    for name, value in part.fields.items():
        place = part.places[name]
        if isinstance(value, Instance) or (name in _DTYPES and getattr(value, "name", None) in _HALVES):
            continue
        content = _layout_text(value) if name == _LAYOUT else value
        if isinstance(content, dict):
            continue
        several = content if isinstance(content, list | tuple) else (content,)
        values = tuple(_plain_value(item, place, (*path, name)) for item in several)
        yield Key((*path, name), values, place.line, content, place.file)


def _plain_value(value: Any, place: Place, path: tuple[str, ...]) -> PlainValue:
    if isinstance(value, OpenValue):
        return unknown_value(value.name, place.line, [Cause(place.line, ".".join(path))])
    if isinstance(value, Outside):
        return known_value(_TYPES.get(value.name, value.name), place.line)
    text = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else str(value)
    return known_value(str(text), place.line)


_DTYPES: Final = ("params_dtype", "pipeline_dtype", "autocast_dtype")  # fields that follow from the precision
_HALVES: Final = ("torch.bfloat16", "torch.float16", "torch.half")
_TYPES: Final = {"torch.bfloat16": "bf16", "torch.float32": "fp32", "torch.float": "fp32", "torch.half": "fp16"} | {
    "torch.float16": "fp16",
    "torch.uint8": "fp8",
}


def _layout_text(value: Any) -> Any:
    """Return pipeline chunks, a list of lists of parts, as Megatron's layout text."""
    if not isinstance(value, list):
        return value
    if not all(isinstance(chunk, list) and all(word in _LETTERS for word in chunk) for chunk in value):
        raise InputError(f"{_LAYOUT}: parts are {', '.join(_LETTERS)}")
    return "|".join("".join(_LETTERS[word] for word in chunk) for chunk in value)


def _with_sizes(recipe: PythonRecipe) -> tuple[tuple[Key, ...], str | None]:
    """Return the keys that count, and the shipped model: that of its name, or a hybrid one of the same sizes.

    A cut that counts embedding and loss as layers needs the number of layers.
    """
    if recipe.hub:
        # Megatron-Bridge v0.6.0, models/qwen_vl: what reads images is part of Qwen3.5.
        model = models.by_name(recipe.hub.replace("Qwen3.5-", "Qwen3.5-VL-"))[0]
        if model is None or any(key.path == ("model", "num_layers") for key in recipe.keys):
            return recipe.keys, model
        layers = models.load_model(model).num_hidden_layers
        key = Key(("model", "num_layers"), (known_value(str(layers), 1),), recipe.place.line, layers)
        return (*recipe.keys, key), model
    texts = {key.name: key.values[0].text for key in recipe.keys if key.path[0] == "model" and len(key.values) == 1}
    if "hybrid_layer_pattern" not in texts:
        return recipe.keys, None
    sizes = texts.get("num_layers"), texts.get("hidden_size")
    specs = map(models.load_model, model_names())
    model = next((spec.name for spec in specs if (str(spec.num_hidden_layers), str(spec.hidden_size)) == sizes), None)
    if model is None or "mamba" not in models.load_model(model).mixers:
        return recipe.keys, None
    return tuple(key for key in recipe.keys if not (key.path[0] == "model" and key.name in _HYBRID)), model


_HYBRID: Final = frozenset(
    [
        *("hybrid_layer_pattern", "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels"),
        *("num_query_groups", "mamba_num_heads", "mamba_head_dim", "mamba_state_dim", "mamba_num_groups"),
        *("is_hybrid_model", "activation_func", "num_moe_experts", "moe_ffn_hidden_size", "vocab_size", "squared_relu"),
        *("moe_shared_expert_intermediate_size", "moe_router_topk", "normalization", "add_bias_linear"),
        *("gated_linear_unit", "position_embedding_type", "make_vocab_size_divisible_by", "max_position_embeddings"),
        "share_embeddings_and_output_weights",
    ]
)  # keys that restate a shipped hybrid model with the same layers and width


def read_python(arguments: Arguments, recipe: PythonRecipe) -> Recipe:
    """Return the run of one recipe, with its model from Hugging Face and the devices in its name."""
    keys, model = _with_sizes(recipe)
    filled = Interpolation([key for key in keys if key.values], arguments.settings)
    run, _ = read_filled(arguments, filled, recipe.environment)
    if model is not None or recipe.hub:
        run = with_named_model(arguments, run, model or recipe.hub)
        if run.model is None:
            message = f"{recipe.hub} is no model that is shipped: the recipe takes all of its sizes from there"
            arguments.remark_line("not-modelled", "error", message, recipe.place.line, fix="--model NAME")
    if recipe.devices:
        arguments.devices = recipe.devices
        arguments.places["devices"] = recipe.place
    seeing = run.model is not None and models.load_model(run.model).encoder is not None
    return models.of_bridged_parts(arguments, run) if seeing else run
