"""Hugging Face ``config.json`` to a model spec.

The file is data: it is parsed as JSON, nothing is fetched and no code it
names is run. A key that is absent means what the configuration class of the
``transformers`` library makes of its absence. Sizes that a saved
configuration always carries are required. What the simulator cannot price is
refused by name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import InputError, UnsupportedError
from simulator.question.specs.architectures import architectures
from simulator.question.specs.configuration import Config
from simulator.question.specs.documents import read_json
from simulator.question.specs.families.reading import fields_of
from simulator.question.specs.families.table import refusal
from simulator.question.specs.folders import CONFIG_FILE
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.validation import validated


def read_config(file: Path, name: str = "") -> ModelSpec:
    """Return the model a Hugging Face configuration describes; InputError or UnsupportedError if none.

    Without a name it is called as its folder is, or as the file.
    """
    # State-space configurations bound their time steps by infinity, which nothing here reads.
    values = read_json(file, infinite=True)
    if not isinstance(values, dict):
        raise InputError(f"{file}: must hold a mapping of keys to values")
    return model_of_config(values, str(file), name or _name_of(file))


def model_of_config(values: Mapping[str, Any], where: str, name: str) -> ModelSpec:
    """Return the model that the keys of a Hugging Face configuration describe; errors as of `read_config`."""
    whole = Config(where, dict(values))
    if not whole.has("model_type"):
        raise InputError(f"{where}: model_type: is missing; this is not a Hugging Face model configuration")
    config = _text_part(whole)
    architecture = config.text("model_type", "")
    if architecture not in architectures():
        raise UnsupportedError(f"{config.where}: model_type: {refusal(architecture)}")
    fields = {"name": name, "architecture": architecture, "note": _note(whole, config)}
    return validated(config.where, ModelSpec, fields | fields_of(architecture, config))


def _text_part(config: Config) -> Config:
    """Return the language model's configuration inside a multimodal one; return any other unchanged."""
    if not config.present("text_config"):
        return config
    text = config.section("text_config")
    tied = {"tie_word_embeddings": config.flag("tie_word_embeddings", default=False)}
    return text.assuming(**(tied if config.present("tie_word_embeddings") else {}))


def _note(whole: Config, config: Config) -> str:
    """Return a note on the settings that are left out."""
    notes = []
    if whole is not config:
        kind = whole.text("model_type", "")
        notes.append(f"the text part of a '{kind}' configuration: what reads images, sound or video is not priced.")
    if whole.has("quantization_config") or config.has("quantization_config"):
        notes.append("quantization_config is not applied: the precision asked for is priced.")
    return " ".join(notes)


def _name_of(file: Path) -> str:
    """Return a name for the model: the folder of a ``config.json``, the stem of any other file."""
    raw = file.absolute().parent.name if file.name == CONFIG_FILE else file.stem
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", raw).lstrip("._+-")
    return name[:100] or "config"
