"""`MODEL_ARGS:` files: the flags of one run, as in Megatron-LM's functional tests and model collections.

Read as `tests/functional_tests/shell_test_utils/_run_training.sh` of Megatron-LM core_v0.19 reads them: `true` is a
switch, a list in brackets is several values, `$NAME` comes from the environment. Dotted keys are those of NeMo.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from simulator.frameworks import registry
from simulator.frameworks.arguments import Arguments, finished
from simulator.frameworks.documents import Key, read_text
from simulator.frameworks.megatron.read import read
from simulator.frameworks.names import plain
from simulator.frameworks.values import PlainValue, known_value
from simulator.frameworks.variables import Variables
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.recipes.shell.starts import DocumentedStart, start_of

FLAG_SECTION: Final = "MODEL_ARGS"
_VARIABLES: Final = "ENV_VARS"
_NODES: Final = "NNODES"
_PROCESSES: Final = ("MODEL_ENV_VARS", FLAG_SECTION, "GPUS_PER_NODE")
"""Key of the first run's processes per node: run_ci_test.sh:299 of Megatron-LM d98e8a6."""


def is_model_args(keys: Iterable[Key]) -> bool:
    """Whether a document holds flags of Megatron under `MODEL_ARGS`."""
    return any(key.path[0] == FLAG_SECTION and key.path[-1].startswith("--") for key in keys)


def is_dotted(keys: Iterable[Key]) -> bool:
    """Whether a document holds keys of NeMo under `MODEL_ARGS`."""
    return any(key.path[0] == FLAG_SECTION and "." in key.path[-1] for key in keys)


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
    nodes = int(documented[_NODES]) if _NODES in documented else None
    run = finished(arguments, read(arguments, environment, own=True))
    recipe = dataclasses.replace(
        run, file=arguments.file, dialect="megatron-yaml", nodes=nodes, devices_per_node=devices
    )
    return recipe, variables.used & set(settings)


def _add(arguments: Arguments, name: str, values: tuple[PlainValue, ...], line: int) -> None:
    """Add a key; like the launchers, omit `false`, even where the flag takes a value."""
    off = [value.text for value in values] == ["false"] and values[0].known
    arguments.add_key(name, (known_value("null", line),) if off and not _is_switch(name) else values, line)


def _is_switch(name: str) -> bool:
    flag = registry.table("megatron").get(plain(name))
    return flag is None or flag.kind == "switch"


def _in_place_of(replaced: Iterable[Key], added: Mapping[str, str]) -> str:
    """Return the file's values that the launcher replaces, as text; empty where it only fills in variables."""
    own = [(key.path[1], value.text) for key in replaced for value in key.values if value.known]
    shown = [f"{name}={text}" for name, text in own if "$" not in text and text != added[name]]
    return f", in place of the file's {' '.join(shown)}" if shown else ""


def _documented(start: DocumentedStart | None, settings: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that a documented launcher sets for the framework's own file, and the flags that it adds.

    They depend on each other, so both are empty where the user sets any of them.
    """
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
