"""Forms of files of no framework's folder: launches, Python, NeMo's keys, `MODEL_ARGS`; documented launches."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks import registry
from simulator.frameworks.arguments import Arguments, finished
from simulator.frameworks.configuration import Interpolation, Variables, configuration
from simulator.frameworks.documents import Key, read_text
from simulator.frameworks.flags import plain
from simulator.frameworks.megatron.read import read
from simulator.frameworks.megatron_bridge.framework import is_own as names_recipe
from simulator.frameworks.megatron_bridge.framework import read_library
from simulator.frameworks.nemo import read as nemo
from simulator.frameworks.nemo import recipes as nemo_recipes
from simulator.frameworks.nemo.framework import FORM
from simulator.frameworks.values import EMPTY, PlainValue, known_value
from simulator.question.origin import Place, Remark
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import read_yaml
from simulator.question.specs.model import architectures
from simulator.question.specs.names import model_names, variant_name, variants
from simulator.question.vocabulary import framework_hint
from simulator.recipes.readers.cluster import cluster_of
from simulator.recipes.shell.launch import DocumentedStart, TrainingCommand, find_launch, start_of
from simulator.recipes.shell.values import text_value

_STAGES: Final = ("training", "fine_tuning", "peft")  # sections in which NeMo 1's launcher holds one configuration each
_OVERRIDE: Final = re.compile(
    r"(?:~|\+{0,2})(?:(?:training|fine_tuning|peft)\.)?"
    r"(?P<path>(?:trainer|model|optim|optimizer|strategy|data|dataset|train|ddp)(?:\.\w+)+)(?P<equals>=|$)",
    re.ASCII,
)  # a key that a command line sets, adds or removes
_OF_NEMO: Final = re.compile(
    r"trainer\.(?:devices|num_nodes|precision|accelerator|max_(?:steps|epochs|time)|(?:log|val)_\w+|limit_\w+_batches)"
    r"|model\.(?:\w+_model_parallel_size|(?:micro|global)_batch_size|encoder_seq_length|optim\.\w+)"
    r"|train\.(?:micro|global)_batch_size"
)  # keys of which a launch of NeMo or Megatron-Bridge has one, and other programs of keys none
_SETTING: Final = re.compile(
    r"(?<![\w.])\+{0,2}(?!(?:checkpoint|logger|scheduler|validation|rng|dist|tokenizer|profiling|rerun_state_machine)\.)"
    r"(?P<path>[a-z_]+(?:\.\w+)*)(?P<equals>=)",
    re.ASCII,
)  # a key of Megatron-Bridge's configuration that a command line sets, but of parts that leave memory and speed alone


_IMPORTED: Final = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
_LIBRARIES: Final = ("unsloth", "axolotl", "torchtune", "trl", "peft", "deepspeed", "transformers", "accelerate")
"""Libraries of scripts that train, those on top of others first."""


def read_nemo(path: Path, keys: Iterable[Key], settings: Mapping[str, str]) -> tuple[Recipe, set[str]]:
    """Return the recipe of a file with keys of NeMo, and the settings that it used."""
    arguments = Arguments(str(path), registry.table("nemo", FORM))
    arguments.settings = settings
    run = finished(arguments, nemo.read_nemo(arguments, list(keys)))
    return arguments.in_file(run, FORM.dialect), arguments.used


def read_python_file(path: Path, settings: Mapping[str, str]) -> tuple[tuple[Recipe, ...], list[str]]:
    """Return the recipes that a Python file's functions return, without running it, and settings of no recipe.

    Raises UnsupportedError for a file without functions that return a configuration of Megatron-Bridge or NeMo 2.
    """
    text = read_text(path)
    is_partial = nemo_recipes.is_partial_recipe(text)
    read = nemo_recipes.partial_recipes if is_partial else nemo_recipes.python_recipes
    recipes: list[Recipe] = []
    for recipe in read(path, settings) if is_partial or nemo_recipes.is_python_recipe(text) else ():
        arguments = Arguments(str(path), registry.table("nemo", FORM))
        arguments.settings = settings
        run = finished(arguments, nemo_recipes.read_python(arguments, recipe))
        recipes.append(arguments.in_file(run, "nemo-python", title=recipe.name))
    if not recipes:
        imported = set(_IMPORTED.findall(text))
        hint = next((framework_hint(name).removeprefix("; write") for name in _LIBRARIES if name in imported), "")
        raise UnsupportedError(
            f"{path}: Python is never run; read are functions that return a configuration of Megatron-Bridge or NeMo 2 "
            "(this file has none); give the shell script or the configuration that sets its words, or ask with them: "
            f"simulate estimate --model NAME{hint}{' --method full|lora|qlora' if hint else ''}"
        )
    return tuple(recipes), [name for name in settings if not nemo_recipes.is_setting(name, partial=is_partial)]


def is_nemo_launch(launch: TrainingCommand) -> bool:
    """Whether a launch sets keys of NeMo on its command line; many programs of Hydra's have similar ones."""
    if names_recipe(launch):
        return False
    named = any(text.partition("=")[0] == "--recipe" for text in launch.texts)
    paths = [match["path"] for text in launch.texts if (match := _OVERRIDE.match(text))]
    return named or (len(paths) > 1 and any(map(_OF_NEMO.fullmatch, paths)))


def read_nemo_launch(launch: TrainingCommand, file: str) -> Recipe:
    """Return the recipe of a launch: its configuration, with the keys that the command line overrides."""
    arguments, flags = Arguments(file, registry.table("nemo", FORM)), _flags(launch)
    if "--recipe" in flags:
        run = read_library(arguments, flags, _overrides(launch, _SETTING), launch.environment)
        nodes, devices = cluster_of(launch, arguments)
    else:
        keys: dict[tuple[str, ...], Key] = {}
        for key in (*_base(arguments, launch, file), *_overrides(launch)):
            keys.pop(key.path, None)
            keys[key.path] = key
        environment = {name: value.text for name, value in launch.environment.items() if value.known}
        filled = Interpolation([key for key in keys.values() if key.values], environment)
        run, _ = nemo.read_filled(arguments, filled, launch.environment)
        nodes, devices = _cluster(arguments, launch)
    title = PurePath(launch.script.text).name
    run = finished(arguments, run)
    return dataclasses.replace(run, file=file, title=title, dialect="nemo-shell", nodes=nodes, devices_per_node=devices)


def _flags(launch: TrainingCommand) -> dict[str, PlainValue]:
    """Return the values of a launch's flags, `--name value` or `--name=value`."""
    flags: dict[str, PlainValue] = {}
    for value, following in zip(launch.arguments, (*launch.arguments[1:], None), strict=True):
        name, equals, _ = value.text.partition("=")
        if name.startswith("-"):
            flags[name] = value.after(len(name) + 1) if equals else following or EMPTY
    return flags


def _base(arguments: Arguments, launch: TrainingCommand, file: str) -> tuple[Key, ...]:
    """Return the keys of `--config-name` in `--config-path`; empty where the file is missing."""
    words = _flags(launch)
    for value in launch.arguments:
        name, equals, _ = value.text.partition("=")
        if equals and name in _STAGES:
            # The launcher's choice of a file: `training=gpt3/20b`.
            words["--config-name"], words["--config-path"] = value.after(len(name) + 1), known_value(f"conf/{name}", 0)
    if "--config-name" not in words:
        return ()
    word = words["--config-name"]
    name = word.text if word.text.endswith((".yaml", ".yml")) else f"{word.text}.yaml"
    folder = words.get("--config-path", EMPTY).text
    name = f"{folder}/{name}" if folder else name
    try:
        configured = configuration(launch, file, name, word.line)
    except InputError:
        configured = None
    if configured is None:
        message = f"{name[:200]} is not beside the recipe: only the keys of the command line are read"
        arguments.remark_line("base-configuration", "warning", message, word.line)
        return ()
    return tuple(dataclasses.replace(key, file=configured.file) for key in configured.keys)


def _overrides(launch: TrainingCommand, pattern: re.Pattern[str] = _OVERRIDE) -> Iterator[Key]:
    """Yield the keys on the command line: `a.b=c`, `+a.b=c`, `++a.b=c`; `~a.b` removes one."""
    for value in launch.arguments:
        match = pattern.match(value.text)
        if match is None:
            continue
        path = tuple(match["path"].split("."))
        content = value.after(match.end()) if match["equals"] else EMPTY
        yield Key(path, () if value.text.startswith("~") else (content,), value.line, content.text)


def _cluster(arguments: Arguments, launch: TrainingCommand) -> tuple[int | None, int | None]:
    """Return nodes and devices per node by the keys, else by the launcher."""
    nodes, devices = arguments.nodes, arguments.devices_per_node
    if launch.launcher == "python" or (nodes and devices):
        return nodes or (None if "nodes" in arguments.incomplete else 1), devices
    own_nodes, own_devices = cluster_of(launch, arguments)
    return nodes or own_nodes, devices or own_devices


def documented_launch(path: Path, text: str) -> tuple[TrainingCommand, Remark] | None:
    """Return the launch that a repository's page documents for a file of this text, and a remark naming the page."""
    start = start_of(str(path), text)
    if start is None or start.words[0] != "accelerate":
        return None
    launch = find_launch([text_value(word, 1) for word in start.words], {}, 1)
    message = f"started as {start} starts it: {' '.join(start.words)}"
    return None if launch is None else (launch, Remark("example-arguments", "warning", message, Place(str(path), 1)))


def documented_settings(path: Path) -> tuple[dict[str, str], tuple[Remark, ...]]:
    """Return what a repository's other file states beside a file of this text, by name, and a remark naming it."""
    start = start_of(str(path), read_text(path))
    words = [word.partition("=") for word in start.words] if start is not None else []
    if not words or not all(equals for _, equals, _ in words):
        return {}, ()
    shown = " ".join(name + equals + text for name, equals, text in words)
    remark = Remark("example-arguments", "warning", f"beside it stands {start}: {shown}", Place(str(path), 1))
    return {name: text for name, _, text in words}, (remark,)


@functools.cache
def _networks() -> dict[str, Any]:
    """Return patterns and words by which recipes name the network that they train; `networks.yaml` explains them."""
    table: dict[str, Any] = read_yaml(Path(__file__).with_name("networks.yaml"))
    return table


@functools.cache
def _network(*kinds: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(each for kind in kinds for each in _networks()[kind])})(?![a-z])")


@functools.lru_cache(maxsize=8192)
def _names_network(name: str) -> bool:
    """Whether the value of a flag or key may name the network."""
    return re.fullmatch("|".join(_networks()["naming"]), name) is not None


_LONGEST: Final = 100  # most characters examined at the end of a key
_MEGATRON: Final = ("megatron-shell", "nemo-yaml")
"""Dialects whose flags describe the whole network, so that a program of another name may build another one."""


def with_network(recipe: Recipe, keys: Iterable[Key] = ()) -> Recipe:
    """Return the recipe with a remark if its flags or its file's keys name a network that is not priced."""
    if "encoder" in recipe.model_fields or "type" in variants().get(variant_name(recipe.model or "")[0] or "", {}):
        return recipe
    named = ((name, key) for key in keys if key.values and _names_network((name := key.dotted)[-_LONGEST:]))
    texts = [(name, key.values[0].text, Place(key.file or recipe.file, key.line)) for name, key in named]
    own = (flag for flag in recipe.flags if _names_network(flag.name[-_LONGEST:]))
    texts += [(flag.name, flag.text, flag.place) for flag in own]
    titles: list[tuple[str, Place | None]] = [(recipe.title, None)] if recipe.title.endswith(".py") else []
    entries = [*((text, place) for name, text, place in texts if name.endswith("entrypoint")), *titles]
    remark = next((_other(text, place) for name, text, place in texts if _is_other(name, text)), None)
    remark = remark or next((_other(text, place) for text, place in entries if _is_other("", text)), None)
    if remark is None and recipe.dialect in _MEGATRON:
        unknown = ((_unknown_words(text), text, place) for text, place in entries)
        remark = next((_program(words, text, place) for words, text, place in unknown if words), None)
    return recipe if remark is None else replace(recipe, remarks=(*recipe.remarks, remark))


def _is_other(name: str, text: str) -> bool:
    return _network("mixers", *(() if "tokenizer" in name else ("encoders",))).search(text.lower()) is not None


def _other(text: str, place: Place | None) -> Remark:
    return Remark("not-modelled", "error", f"'{text[:80]}' names a network that is not priced", place)


def _program(words: list[str], text: str, place: Place | None) -> Remark:
    name = PurePath(text).name[:80]
    message = f"{name}: a program that is not known ('{words[0]}') may build another network than its flags say"
    return Remark("not-modelled", "error", message, place)


def _unknown_words(entry: str) -> list[str]:
    """Return the words of a program's name that are neither plain nor of a priced family."""
    stem = PurePath(entry).name.removesuffix(".py").lower()
    return [] if "$" in stem else [word for word in re.findall(r"[a-z]+", stem) if word not in _known_words()]


@functools.cache
def _known_words() -> frozenset[str]:
    names = " ".join((_networks()["plain"], *model_names(), *architectures()))
    return frozenset(re.findall(r"[a-z]+", names)) - {"vl"}


FLAG_SECTION: Final = "MODEL_ARGS"
_VARIABLES: Final = "ENV_VARS"
_NODES: Final = "NNODES"
_PROCESSES: Final = ("MODEL_ENV_VARS", FLAG_SECTION, "GPUS_PER_NODE")
"""Key of the first run's processes per node: run_ci_test.sh:299 of Megatron-LM d98e8a6."""


def dotted(keys: Iterable[Key]) -> list[Key]:
    """Return the keys of NeMo that a document holds under `MODEL_ARGS`."""
    inside = [key for key in keys if key.path[0] == FLAG_SECTION and len(key.path) > 1]
    return [dataclasses.replace(key, path=tuple(".".join(key.path[1:]).split("."))) for key in inside]


def read_model_args(path: Path, keys: Iterable[Key], settings: Mapping[str, str]) -> tuple[Recipe, set[str]]:
    """Return the recipe of a `MODEL_ARGS:` file, and the settings that it used."""
    arguments = Arguments(str(path), registry.table("megatron"))
    start = start_of(arguments.file, read_text(path))
    documented, added = _documented(start, settings)
    left: list[Key] = []
    replaced: list[Key] = []
    for key in keys:
        (replaced if key.path[0] == FLAG_SECTION and key.path[1:2] and key.path[1] in added else left).append(key)
    variables = Variables({**documented, **settings})
    environment: dict[str, PlainValue] = {}
    devices: int | None = None
    for key in variables.keys(left):
        if key.path == _PROCESSES and isinstance(key.content, int) and key.content > 0:
            devices = key.content
            arguments.places["devices_per_node"] = Place(arguments.file, key.line)
        elif key.path[0] == _VARIABLES and len(key.values) == 1:
            environment[key.name] = key.values[0]
        elif key.path[0] == FLAG_SECTION and len(key.path) > 1:
            _add(arguments, key.path[1], _unwrapped(key.values), key.line)
    for name, text in added.items():
        _add(arguments, name, (known_value(text, 1),), 1)
    if documented:
        needed = {name: text for name, text in documented.items() if name in {*variables.used, _NODES}} | added
        shown = " ".join(f"{name}={text}" for name, text in needed.items())
        message = f"started as {start} says: {shown}{_in_place_of(replaced, added)}"
        arguments.remark_line("example-arguments", "warning", message, 1, fix="--set NAME=VALUE")
    words = arguments.entry("vocab-file")
    if words is not None and words.text.endswith("vocab.txt") and not arguments.has("tokenizer-type"):
        # Only pretrain_bert.py and pretrain_t5.py read such a word list; the file names no program.
        message = f"--vocab-file {words.text[-40:]}: models with an encoder are not modelled (a WordPiece vocabulary)"
        arguments.not_modelled(message, "vocab-file")
    arguments.note_unset(variables.assumed_unset)
    arguments.nodes = int(documented[_NODES]) if _NODES in documented else None
    arguments.devices_per_node = devices
    run = finished(arguments, read(arguments, environment, own=True))
    return arguments.in_file(run, "megatron-yaml"), variables.used & set(settings)


def _add(arguments: Arguments, name: str, values: tuple[PlainValue, ...], line: int) -> None:
    """Add a key; like the launchers, omit `false`, even where the flag takes a value."""
    flag = registry.table("megatron").get(plain(name))
    off = [value.text for value in values] == ["false"] and values[0].known
    takes_words = flag is not None and flag.kind != "switch"
    arguments.add_key(name, (known_value("null", line),) if off and takes_words else values, line)


def _in_place_of(replaced: Iterable[Key], added: Mapping[str, str]) -> str:
    """Return the file's values that the launcher replaces, as text; empty where it only fills in variables."""
    own = [(key.path[1], value.text) for key in replaced for value in key.values if value.known]
    shown = [f"{name}={text}" for name, text in own if "$" not in text and text != added[name]]
    return f", in place of the file's {' '.join(shown)}" if shown else ""


def _documented(start: DocumentedStart | None, settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables and flags that a documented launcher sets for a file; none where the user sets any."""
    words = dict(word.split("=", 1) for word in start.words) if start is not None else {}
    if words.keys() & settings.keys():
        return {}, {}
    variables = {name: text for name, text in words.items() if not name.startswith("--")}
    return variables, {name: text for name, text in words.items() if name not in variables}


def _unwrapped(values: tuple[PlainValue, ...]) -> tuple[PlainValue, ...]:
    """Return the values of a text such as `[moe_act layernorm]`."""
    if len(values) == 1 and values[0].known:
        match = re.fullmatch(r"\[([^\[\]+*|]+)\]", values[0].text.strip())
        if match:
            return tuple(known_value(word, values[0].line) for word in re.split(r"[,\s]+", match[1]) if word)
    return values
