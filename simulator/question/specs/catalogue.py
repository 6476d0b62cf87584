"""Catalogue of specs: shipped names, people's own folders, and the spec that a name or path stands for."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

import yaml

from simulator.errors import InputError, did_you_mean
from simulator.question.specs.documents import read_limited, read_yaml, validated
from simulator.question.specs.hardware import BOOKED, HardwareSpec, with_network
from simulator.question.specs.model import ModelSpec

SpecKind = Literal["hardware", "model"]
"""Kind of spec."""

_PACKAGE: Final = Path(__file__).resolve().parents[2]
_SUFFIX: Final = ".yaml"
CONFIG_FILE: Final = "config.json"
"""File name Hugging Face gives a model's configuration."""


def data_folder(folder: str) -> Path:
    """Return one of the top-level folders of data.

    A wheel carries it inside the package, under ``_data``; in a checkout it
    stands beside the package.
    """
    installed = _PACKAGE / "_data" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def spec_folder(kind: SpecKind) -> Path:
    """Return the folder of the shipped specs of one kind."""
    return data_folder(f"{kind}_specs")


def spec_file(kind: SpecKind, name: str) -> Path | None:
    """Return the file of the shipped spec called ``name``, or None if there is none."""
    if not name or len(name) > 100 or name.startswith(".") or not _is_plain(name):
        return None
    file = spec_folder(kind) / f"{name}{_SUFFIX}"
    return file if file.is_file() else None


def spec_names(kind: SpecKind) -> tuple[str, ...]:
    """Return the names of all shipped specs of one kind, in order."""
    return tuple(sorted(file.name.removesuffix(_SUFFIX) for file in spec_folder(kind).glob(f"*{_SUFFIX}")))


def model_names() -> tuple[str, ...]:
    """Return the names of the shipped models, in order."""
    return spec_names("model")


def hardware_names() -> tuple[str, ...]:
    """Return the names of the shipped hardware, in order."""
    return spec_names("hardware")


def _is_plain(name: str) -> bool:
    """Tell whether ``name`` can be a file's stem on every system, without leading anywhere else."""
    return name.isascii() and all(mark.isalnum() or mark in "._+-" for mark in name)


_ALIASES: Final = re.compile(r"^aliases: \[(.*)\]$", re.MULTILINE)
_ENDINGS: Final = re.compile(r"[-_](paddle|pt|base|hf|instruct|chat|tokenizer|pretrain)$")
"""Endings of a model's name that leave its shape."""
_LLAMA: Final = re.compile(r"^(?:meta-)?llama-?(?=\d)")
"""Beginning of a name of the Llama family."""
_POINT: Final = re.compile(r"(?<=\d)p(?=\d)")
"""Letter in place of a decimal point in a name: `4p5`."""
_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_QUOTED: Final = re.compile(r"'([^']*)'")
_LETTERS: Final = re.compile(r"[a-z]*")
_SAME_MAKER: Final = 0.75
"""Smallest likeness of the letters before two devices' numbers for which both count as one maker's."""


def shipped_name(kind: SpecKind, text: str) -> str | None:
    """Return the name of the shipped spec that a text means, or None.

    A model may be called by its id on Hugging Face, and with an ending such as `-Instruct` that leaves its shape.
    """
    if not text or len(text) > 200:
        return None
    known = known_names(kind)
    plain = _plain(kind, text)
    while plain not in known:
        shorter = _ENDINGS.sub("", plain)
        if kind == "hardware" or shorter == plain:
            return None
        plain = shorter
    return known[plain]


@lru_cache(maxsize=2)
def known_names(kind: SpecKind) -> Mapping[str, str]:
    """Return the shipped name of every name and alias in lower case; ids also without their owner."""
    called: dict[str, str] = {}
    for name in spec_names(kind):
        for word in (name, *_aliases(spec_folder(kind) / f"{name}.yaml")):
            plain = _plain(kind, word)
            called |= {plain: name, plain.rpartition("/")[2]: name}
    return called


def hub_file(name: str) -> Path | None:
    """Return the configuration of a model in the local cache of Hugging Face, by the model's id; None where it is not.

    The cache is where `huggingface_hub` has it: `HF_HUB_CACHE`, else `HF_HOME`, else `~/.cache/huggingface`.
    """
    if not is_hub_id(name):
        return None
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")  # noqa: PTH118  a text with ~
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")).expanduser()  # noqa: PTH118  likewise
    try:
        folder_name = f"models--{name.replace('/', '--')}".lower()
        folder = next((entry for entry in hub.iterdir() if entry.name.lower() == folder_name), None)
        if folder is None:
            return None
        revision = folder / "refs" / "main"
        snapshots = folder / "snapshots"
        newest = (
            [snapshots / revision.read_text("utf-8").strip()] if revision.is_file() else sorted(snapshots.iterdir())
        )
        return next((file for entry in newest if (file := entry / CONFIG_FILE).is_file()), None)
    except (OSError, ValueError, RuntimeError):
        return None


def is_hub_id(name: str) -> bool:
    """Tell whether a text has the form of a model's id on Hugging Face, `owner/name`."""
    return bool(_HUB_ID.fullmatch(name))


def suggestion(kind: SpecKind, text: str) -> str:
    """Return `, did you mean 'x'?` for the nearest shipped name; of devices only for one of the same maker."""
    plain = _plain(kind, text)
    known = known_names(kind)
    if kind == "hardware":
        from difflib import SequenceMatcher  # noqa: PLC0415  start-up time

        maker = _maker(plain)
        known = {
            word: name
            for word, name in known.items()
            if SequenceMatcher(None, maker, _maker(word)).ratio() >= _SAME_MAKER
        }
    return _QUOTED.sub(lambda quoted: f"'{known[quoted[1]]}'", did_you_mean(plain, known))


def _plain(kind: SpecKind, text: str) -> str:
    """Return a name as the table has it: lower case, dashes for blanks and underscores."""
    plain = re.sub(r"[\s_]+", "-", text.strip().lower())
    if kind == "hardware":
        return plain
    owner, slash, name = plain.rpartition("/")
    return owner + slash + _POINT.sub(".", _LLAMA.sub("llama-", name))


def _maker(name: str) -> str:
    letters = _LETTERS.match(name)
    return letters.group() if letters else ""


def _aliases(file: Path) -> Iterator[str]:
    match = _ALIASES.search(file.read_text("utf-8"))
    yield from (word.strip() for word in (match[1].split(",") if match else ()))


__all__ = [
    "hardware_names",
    "load_hardware",
    "load_model",
    "model_names",
    "models_by_sizes",
    "shipped_file",
    "spec_text",
]

_YAML: Final = (".yaml", ".yml")
_JSON: Final = ".json"
_COMMON: Final = re.compile(r"(gpt2|codellama|open-llama|yi-34b|mistral-7b-v0\.3|pythia-(?!12b)|qwen1\.5-(?!4b))")
"""Beginnings of models whose sizes networks of other makers have too, with another vocabulary: known by name alone."""


def load_model(name_or_path: str) -> ModelSpec:
    """Return a model by shipped name, by path, or by its id on Hugging Face.

    A path is a spec in YAML, a Hugging Face ``config.json`` (any ``.json``),
    or a folder that holds one. An id is that of a shipped model, or of one whose
    configuration is in the local cache. Nothing is fetched or executed. Raises
    InputError, or UnsupportedError for a configuration of unknown make.
    """
    shipped = shipped_file("model", name_or_path)
    if shipped is not None:
        return _shipped_model(shipped)
    file, cached = _own_file("model", name_or_path), None
    if file is None:
        file = cached = hub_file(name_or_path)
    if file is None:
        raise InputError(_unknown("model", name_or_path))
    if file.suffix.lower() == _JSON:
        from simulator.question.specs.families.reading import read_config  # noqa: PLC0415  start-up time

        return read_config(file, name_or_path.rpartition("/")[2] if cached else "")
    return validated(str(file), ModelSpec, read_yaml(file))


@lru_cache(maxsize=1)
def models_by_sizes() -> tuple[ModelSpec, ...]:
    """Return the shipped models that their sizes may identify."""
    return tuple(load_model(name) for name in model_names() if not _COMMON.match(name))


@lru_cache(maxsize=64)
def _shipped_model(file: Path) -> ModelSpec:
    """Return a shipped spec, one object for all questions: derived values are cached by it."""
    return validated(str(file), ModelSpec, read_yaml(file))


def load_hardware(name_or_path: str) -> HardwareSpec:
    """Return hardware by shipped name, by another name it has, or by the path of a spec in YAML.

    The part behind `@` replaces its network, see `network`. Raises InputError.
    """
    booked = BOOKED.fullmatch(name_or_path)
    if booked is not None:
        return with_network(load_hardware(booked["name"]), booked["network"])
    file = shipped_file("hardware", name_or_path)
    if file is not None:
        return _shipped_hardware(file)
    own = _own_file("hardware", name_or_path)
    if own is None:
        raise InputError(_unknown("hardware", name_or_path))
    return validated(str(own), HardwareSpec, read_yaml(own))


@lru_cache(maxsize=64)
def _shipped_hardware(file: Path) -> HardwareSpec:
    """Return a shipped spec, cached for further questions."""
    return validated(str(file), HardwareSpec, read_yaml(file))


def spec_text(kind: SpecKind, name_or_path: str) -> str:
    """Return the YAML of a spec, a file to start from. Raises InputError as loading does.

    A shipped spec and a file in YAML are returned as they are; what has another form is written in that of a spec.
    """
    file = shipped_file(kind, name_or_path)
    own = Path(name_or_path)
    if file is None and own.suffix.lower() in _YAML:
        file = own
    if file is not None:
        return read_limited(file)
    spec = load_model(name_or_path) if kind == "model" else load_hardware(name_or_path)
    values = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.safe_dump(values, sort_keys=False, width=120)


def shipped_file(kind: SpecKind, text: str) -> Path | None:
    """Return the file of the shipped spec that a text means; None where there is none, or a file of the user's."""
    file = spec_file(kind, text)
    if file is None and _own_file(kind, text) is None:
        name = shipped_name(kind, text)
        file = None if name is None else spec_file(kind, name)
    return file


def _own_file(kind: SpecKind, name_or_path: str) -> Path | None:
    """Return the user's own spec file; None for a text that is no path of one."""
    if "\0" in name_or_path:
        raise InputError(f"{kind} '{name_or_path[:60]}': a name or path has no NUL character")
    path = Path(name_or_path)
    if path.suffix.lower() in (*_YAML, *([_JSON] if kind == "model" else [])):
        return path
    return path / CONFIG_FILE if kind == "model" and name_or_path and _holds_config(path) else None


def _unknown(kind: SpecKind, text: str) -> str:
    """Return the message about an unknown name, with the way on."""
    if kind == "model" and is_hub_id(text):
        return (
            f"model '{text}' is not shipped, and no folder with {CONFIG_FILE}; `hf download {text} {CONFIG_FILE}` puts "
            "it into the cache of Hugging Face, where it is looked for"
        )
    if len(Path(text).parts) > 1:
        suffixes = (*_YAML, *([_JSON] if kind == "model" else []))
        folder = f", or a folder with {CONFIG_FILE}" if kind == "model" else ""
        return f"{kind} '{text[:200]}': a path must end in {', '.join(suffixes)}{folder}"
    start = f"unknown {kind} '{text[:60]}'{suggestion(kind, text)}"
    if kind == "model":
        return f"{start}; `simulate models` lists the shipped ones; others by the path of their {CONFIG_FILE} or YAML"
    return (
        f"{start}; `simulate hardware` lists the shipped ones, and `simulate hardware h100-sxm-80g --format yaml > "
        "mine.yaml` starts a file of your own"
    )


def _holds_config(path: Path) -> bool:
    """Tell whether ``path`` is a folder with a Hugging Face configuration."""
    try:
        return (path / CONFIG_FILE).is_file()
    except OSError:
        return False
