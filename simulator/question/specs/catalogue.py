"""Catalogue: specs by name or path, from shipped YAML, a user's own YAML, or a Hugging Face configuration.

`specs.names` knows the names, `specs.documents` reads files, `specs.families` configurations.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import Final, cast

from simulator.errors import InputError, check_kind
from simulator.late import late_pattern
from simulator.question.specs.documents import plain, read_limited, read_yaml, shipped, validated
from simulator.question.specs.hardware import BOOKED, HardwareSpec, with_network
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.names import (
    CONFIG_FILE,
    SpecKind,
    hardware_names,
    hub_file,
    is_hub_id,
    model_names,
    shipped_name,
    spec_file,
    suggestion,
    variant_name,
    variants,
)
from simulator.question.specs.vision import encoder_of
from simulator.records import replace

_shipped = lru_cache(maxsize=512)(shipped)  # more than ship: one object for all questions
_YAML: Final = (".yaml", ".yml")
_JSON: Final = ".json"
_COMMON: Final = late_pattern(
    r"(gpt2|gpt3-(?!175b)|gpt-[jn]|opt-(?!2)|codellama|deepseek-coder-6|internlm2\.5|baichuan2-13b|open-llama|yi-34b"
    r"|glm-4\.5$|mistral-(7b-v0\.3|small-[23])|phi-3(\.5|-medium)|pythia-(?!12b)|qwen1\.5-(?!4b))"
)  # beginnings of models whose sizes networks of other makers have too, with another vocabulary: known by name alone


def load_model(name_or_path: str | PathLike[str]) -> ModelSpec:
    """Return a model by shipped name, by path, or by its id on Hugging Face.

    A path is a spec in YAML, a Hugging Face ``config.json`` (any ``.json``),
    or a folder that holds one. An id is that of a shipped model, or of one whose
    configuration is in the local cache. Nothing is fetched or executed. Raises
    InputError, or UnsupportedError for a configuration of unknown make.
    """
    check_kind("model", name_or_path, (str, PathLike), "a name or a path")
    name_or_path = fspath(name_or_path)
    file = shipped_file("model", name_or_path)
    if file is not None:
        return cast("ModelSpec", _shipped(file, ModelSpec))
    file, cached = _own_file("model", name_or_path), None
    if file is None:
        file = cached = hub_file(name_or_path)
    variant, rest = variant_name(name_or_path) if file is None else (None, "")
    if variant is not None and not rest:
        return _variant(variant)
    if file is None:
        raise InputError(_unknown("model", name_or_path))
    if file.suffix.lower() == _JSON:
        from simulator.question.specs.families.reading import read_config  # noqa: PLC0415  start-up time

        return read_config(file, name_or_path.rpartition("/")[2] if cached else "")
    return validated(str(file), ModelSpec, read_yaml(file))


@lru_cache(maxsize=64)
def _variant(name: str) -> ModelSpec:
    """Return a shipped decoder with other fields, and the encoder of images where the variant names one."""
    row = variants()[name]
    decoder = replace(load_model(row["decoder"]), name=name, aliases=(), published=None, **row.get("fields", {}))
    if "type" not in row:
        note = f"the layers of {row['decoder']}; sizes: config.json of the model"
        return replace(decoder, note=note, sources={}, provenance=None)
    text = {"hidden_size": decoder.hidden_size}
    encoder = encoder_of({"model_type": row["type"], "vision_config": row.get("vision", {}), "text_config": text}, {})
    note = f"the text part of {name}: what reads images is priced with --images, sound and video are not."
    return replace(decoder, note=note, encoder=encoder)


@lru_cache(maxsize=1)
def models_by_sizes() -> tuple[ModelSpec, ...]:
    """Return the shipped models that their sizes may identify."""
    return tuple(load_model(name) for name in model_names() if not _COMMON.match(name))


def load_hardware(name_or_path: str | PathLike[str]) -> HardwareSpec:
    """Return hardware by shipped name, by another name it has, or by the path of a spec in YAML.

    The part behind `@` replaces its network, see `network`. Raises InputError.
    """
    check_kind("hardware", name_or_path, (str, PathLike), "a name or a path")
    name_or_path = fspath(name_or_path)
    booked = BOOKED.fullmatch(name_or_path)
    if booked is not None:
        return with_network(load_hardware(booked["name"]), booked["network"])
    file = shipped_file("hardware", name_or_path)
    if file is not None:
        return cast("HardwareSpec", _shipped(file, HardwareSpec))
    own, (head, _, network) = _own_file("hardware", name_or_path), name_or_path.partition("@")
    if own is None and head != name_or_path and shipped_name("hardware", head):
        return with_network(load_hardware(head), network)
    if own is None:
        raise InputError(_unknown("hardware", name_or_path))
    return validated(str(own), HardwareSpec, read_yaml(own))


def unstated_rates(spec: HardwareSpec) -> tuple[str, ...]:
    """Return what tells devices of equal peaks apart, shipped hardware of the family states and an own file omits."""
    lacking = [name for name in ("product_flops", "processors", "earlier_kernels") if getattr(spec, name) is None]
    shipped = shipped_name("hardware", spec.name)
    if not lacking or (shipped and not any(getattr(load_hardware(shipped), name) for name in lacking)):
        return ()
    family = [each for each in map(load_hardware, hardware_names()) if each.family == spec.family]
    return tuple(name for name in lacking if any(getattr(each, name) for each in family))


def with_node_of(spec: HardwareSpec, devices: int) -> HardwareSpec | None:
    """Return the shipped hardware with the same device in the smallest node of at least `devices`; None without any."""

    def device(each: HardwareSpec) -> tuple[object, ...]:
        return each.family, each.usable_memory_bytes, tuple(sorted(each.peak_flops_per_second.items()))

    same = (each for each in map(load_hardware, hardware_names()) if device(each) == device(spec))
    larger = (each for each in same if each.devices_per_node >= devices)
    return min(larger, key=lambda each: each.devices_per_node, default=None)


def spec_text(kind: SpecKind, name_or_path: str) -> str:
    """Return the YAML of a spec, a file to start from. Raises InputError as loading does.

    A shipped spec and a file in YAML are returned as they are; what has another form is written in that of a spec.
    """
    own = Path(name_or_path)
    file = shipped_file(kind, name_or_path) or (own if own.suffix.lower() in _YAML else None)
    if file is not None:
        return read_limited(file)
    spec = load_model(name_or_path) if kind == "model" else load_hardware(name_or_path)
    import yaml  # noqa: PLC0415  start-up time

    return yaml.safe_dump(plain(spec), sort_keys=False, width=120)


def shipped_file(kind: SpecKind, text: str) -> Path | None:
    """Return the file of the shipped spec that a text means; None where there is none, or a file of the user's."""
    file = spec_file(kind, text)
    if file is None and _own_file(kind, text) is None:
        file = spec_file(kind, shipped_name(kind, text) or "")
    return file


def _own_file(kind: SpecKind, name_or_path: str) -> Path | None:
    """Return the user's own spec file; None for a text that is no path of one."""
    if "\0" in name_or_path:
        raise InputError(f"{kind} '{name_or_path[:60]}': a name or path has no NUL character")
    path = Path(name_or_path)
    if path.suffix.lower() in (*_YAML, *([_JSON] if kind == "model" else [])):
        return path
    if kind == "model" and name_or_path:
        with suppress(OSError):
            return path / CONFIG_FILE if (path / CONFIG_FILE).is_file() else None
    return None


def _unknown(kind: SpecKind, text: str) -> str:
    """Return the message about an unknown name, with the way on."""
    other: SpecKind = "hardware" if kind == "model" else "model"
    near = suggestion(kind, text) or (f", which is {other}" if shipped_name(other, text) else "")
    path = Path(text[:200])
    if text and os.path.exists(path):  # noqa: PTH110  false for what is no path
        folder = f"a folder without {CONFIG_FILE}" if kind == "model" else "a folder, no spec"
        near = near or f", {folder if path.is_dir() else 'a file, but no spec'}"
    if kind == "model" and is_hub_id(text):
        return (
            f"model '{text}' is not shipped{near}, no folder with {CONFIG_FILE}; `hf download {text} {CONFIG_FILE}` "
            "puts it into the cache of Hugging Face, where it is looked for"
        )
    if len(Path(text).parts) > 1:
        suffixes = (*_YAML, *([_JSON] if kind == "model" else []))
        folder = f", or a folder with {CONFIG_FILE}" if kind == "model" else ""
        return f"{kind} '{text[:200]}': a path must end in {', '.join(suffixes)}{folder}"
    start = f"unknown {kind} '{text[:60]}'{near}"
    if kind == "model":
        return f"{start}; `simulate models` lists the shipped ones; others by the path of their {CONFIG_FILE} or YAML"
    return (
        f"{start}; `simulate hardware` lists the shipped ones, and `simulate hardware h100-sxm-80g --format yaml > "
        "mine.yaml` starts a file of your own"
    )
