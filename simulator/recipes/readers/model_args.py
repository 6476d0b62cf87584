"""Models that a launch states: flags of its network, configurations, and launches that a repository documents."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Final

from simulator.frameworks import registry
from simulator.frameworks.arguments import Arguments, finished
from simulator.frameworks.configuration import Variables
from simulator.frameworks.documents import Key, read_text
from simulator.frameworks.flags import plain
from simulator.frameworks.megatron.read import read
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.origin import Place, Remark
from simulator.question.recipe import Recipe
from simulator.question.specs.model import architectures
from simulator.question.specs.names import model_names
from simulator.recipes.shell.launch import TrainingCommand, find_launch
from simulator.recipes.shell.starts import DocumentedStart, start_of
from simulator.recipes.shell.values import text_value

_LAUNCHERS: Final = ("accelerate",)


def documented_launch(path: Path, text: str) -> tuple[TrainingCommand, Remark] | None:
    """Return the launch that a repository's page documents for a file of this text, and a remark naming the page."""
    start = start_of(str(path), text)
    if start is None or start.words[0] not in _LAUNCHERS:
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


_MIXERS: Final = (
    r"rwkv|recurrent[_-]?gemma|griffin|hawk|retnet|hyena|min[_-]?(?:lstm|gru)|x?lstm|falcon[_-]?mamba|zamba|jamba"
    r"|codestral[_-]?mamba|llama[_-]?moe|mega(?:lodon|byte)|bitnet|internvl|llava"
)
_ENCODERS: Final = r"diffusion|dit|whisper|wav2vec|clip|siglip|bert|roberta|deberta|t5|ul2|bart"
_OTHERS: Final = re.compile(rf"(?<![a-z])(?:{_MIXERS}|{_ENCODERS})(?![a-z])")
_OF_TOKENIZERS: Final = re.compile(rf"(?<![a-z])(?:{_MIXERS})(?![a-z])")
"""Networks with layers that are not priced: recurrent or state-space ones without a spec, experts of another kind,
weights quantised in training, encoders, images, speech. Decoders may use an encoder's tokenizer."""
_NAMING: Final = re.compile(
    r"(?:[\w.]*[._])?(?:model(?:_(?:type|name|class|name_or_path))?|architectures?|entrypoint|_target_)"
    r"|(?:[\w.]*\.)?tokenizer\.(?:type|name|model)|tokenizer_(?:name|name_or_path|model)"
)
"""Keys and flags whose text names the network."""
_LONGEST: Final = 100
"""Most characters examined at the end of a key."""
_PLAIN: Final = frozenset(
    (
        *("pretrain", "train", "finetune", "finetuning", "tune", "tuning", "posttrain", "pre", "post", "sft", "cpt"),
        *("main", "run", "launch", "script", "training", "trainer", "megatron", "mcore", "core", "legacy", "local"),
        *("gpt", "lm", "llm", "clm", "causal", "decoder", "model", "models", "moe", "dense", "prefix", "mem", "flash"),
        *("ds", "deepspeed", "hf", "huggingface", "withga", "with", "ga", "mtp", "dist", "multi", "node", "custom"),
        *("hybrid", "mamba", "aquila", "baichuan", "bloom", "chatglm", "falcon", "galactica", "grok", "internlm"),
        *("skywork", "starcoder", "yi", "yuan", "t", "py", "fp", "bf", "instruct", "chat", "alpaca", "vicuna"),
        *("distill", "dpo", "kto", "orpo", "simpo", "reward", "rm", "modelopt"),
    )
)
"""Words in names of programs that build the network of their flags."""
_MEGATRON: Final = ("megatron-shell", "nemo-yaml")
"""Dialects whose flags describe the whole network, so that a program of another name may build another one."""


def with_network(recipe: Recipe, keys: Iterable[Key] = ()) -> Recipe:
    """Return the recipe with a remark if its flags or its file's keys name a network that is not priced."""
    named = [(key.dotted, key.values[0].text, Place(key.file or recipe.file, key.line)) for key in keys if key.values]
    own = [(flag.name, flag.text, flag.place) for flag in recipe.flags]
    texts = [(name, text, place) for name, text, place in (*named, *own) if _NAMING.fullmatch(name[-_LONGEST:])]
    entries: list[tuple[str, Place | None]] = [
        (text, place) for name, text, place in texts if name.endswith("entrypoint")
    ]
    entries += [(recipe.title, None)] if recipe.title.endswith(".py") else []
    remark = next((_other(text, place) for name, text, place in texts if _is_other(name, text)), None)
    remark = remark or next((_other(text, place) for text, place in entries if _OTHERS.search(text.lower())), None)
    if remark is None and recipe.dialect in _MEGATRON:
        unknown = ((_unknown_words(text), text, place) for text, place in entries)
        remark = next((_program(words, text, place) for words, text, place in unknown if words), None)
    return recipe if remark is None else replace(recipe, remarks=(*recipe.remarks, remark))


def _is_other(name: str, text: str) -> bool:
    return (_OF_TOKENIZERS if "tokenizer" in name else _OTHERS).search(text.lower()) is not None


def _other(text: str, place: Place | None) -> Remark:
    shown = text[:80]
    return Remark("not-modelled", "error", f"'{shown}' names a network that is not priced", place)


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
    names = (*model_names(), *architectures())
    return _PLAIN | {word for name in names for word in re.findall(r"[a-z]+", name)} - {"vl"}


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
