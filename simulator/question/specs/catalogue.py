"""Specs by name or path: shipped YAML, the user's own YAML, or a Hugging Face configuration."""

from functools import lru_cache
from pathlib import Path
from typing import Final

import yaml

from simulator.errors import InputError, did_you_mean
from simulator.question.specs.documents import read_limited, read_yaml
from simulator.question.specs.folders import (
    CONFIG_FILE,
    SpecKind,
    hardware_names,
    model_names,
    spec_file,
    spec_names,
)
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.network import BOOKED, with_network
from simulator.question.specs.validation import validated

__all__ = ["hardware_names", "load_hardware", "load_model", "model_names", "spec_text"]

_YAML: Final = (".yaml", ".yml")
_JSON: Final = ".json"


def load_model(name_or_path: str) -> ModelSpec:
    """Return a model by shipped name or by path.

    A path is a spec in YAML, a Hugging Face ``config.json`` (any ``.json``),
    or a folder that holds one. Nothing is fetched or executed. Raises
    InputError, or UnsupportedError for a configuration of unknown make.
    """
    shipped = spec_file("model", name_or_path)
    if shipped is not None:
        return _shipped_model(shipped)
    file = _own_file("model", name_or_path)
    if file.suffix.lower() == _JSON:
        from simulator.question.specs.huggingface import read_config  # noqa: PLC0415  start-up time

        return read_config(file)
    return validated(str(file), ModelSpec, read_yaml(file))


@lru_cache(maxsize=64)
def _shipped_model(file: Path) -> ModelSpec:
    """Return a shipped spec, one object for all questions: what is derived of a model is looked up by it."""
    return validated(str(file), ModelSpec, read_yaml(file))


def load_hardware(name_or_path: str) -> HardwareSpec:
    """Return hardware by shipped name or by the path of a spec in YAML; `@` tells its network. Raises InputError."""
    booked = BOOKED.fullmatch(name_or_path)
    if booked is not None:
        return with_network(load_hardware(booked["name"]), booked["network"])
    file = spec_file("hardware", name_or_path)
    if file is not None:
        return _shipped_hardware(file)
    own = _own_file("hardware", name_or_path)
    return validated(str(own), HardwareSpec, read_yaml(own))


@lru_cache(maxsize=64)
def _shipped_hardware(file: Path) -> HardwareSpec:
    """Return a shipped spec; many questions in a row are asked of the same few."""
    return validated(str(file), HardwareSpec, read_yaml(file))


def spec_text(kind: SpecKind, name_or_path: str) -> str:
    """Return the YAML of a spec, a file to start from. Raises InputError as loading does.

    A shipped spec and a file in YAML are returned as they are; what has another form is written in that of a spec.
    """
    file = spec_file(kind, name_or_path)
    own = Path(name_or_path)
    if file is None and own.suffix.lower() in _YAML:
        file = own
    if file is not None:
        return read_limited(file)
    spec = load_model(name_or_path) if kind == "model" else load_hardware(name_or_path)
    values = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return yaml.safe_dump(values, sort_keys=False, width=120)


def _own_file(kind: SpecKind, name_or_path: str) -> Path:
    """Return the user's own spec file, or say that the name is not known."""
    if "\0" in name_or_path:
        raise InputError(f"{kind} '{name_or_path[:60]}': a name or path has no NUL character")
    path = Path(name_or_path)
    suffixes = (*_YAML, _JSON) if kind == "model" else _YAML
    if path.suffix.lower() in suffixes:
        return path
    if kind == "model" and name_or_path and _holds_config(path):
        return path / CONFIG_FILE
    if len(path.parts) > 1:
        folder = f", or a folder with {CONFIG_FILE}" if kind == "model" else ""
        raise InputError(f"{kind} '{name_or_path[:200]}': a path must end in {', '.join(suffixes)}{folder}")
    names = spec_names(kind)
    near = did_you_mean(name_or_path, names)
    raise InputError(f"unknown {kind} '{name_or_path[:60]}'{near or '; known: ' + ', '.join(names)}")


def _holds_config(path: Path) -> bool:
    """Tell whether ``path`` is a folder with a Hugging Face configuration."""
    try:
        return (path / CONFIG_FILE).is_file()
    except OSError:
        return False
