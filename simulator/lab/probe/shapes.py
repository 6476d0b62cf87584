"""Model shapes that a probe trains where the user names none: dense decoders of three widths, up to 8 layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from simulator.lab.probe.pool import Reach
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.validation import validated

_PROCESSOR_WIDTHS = (256, 512, 1024)
_ACCELERATOR_WIDTHS = (2048, 4096, 8192)
_DEEPEST = 8
"""Most layers that a probe trains."""


def reach(backend: str, model: str | None, folder: Path) -> Reach:
    """Return the sizes of launches: the user's model cut to a few layers, or shapes of three widths.

    A measured row names a shape by the file that `write_shapes` leaves in `folder`.
    """
    small = backend == "cpu"
    sizes: dict[str, Any] = {
        "layers": (2, 4, _DEEPEST),
        "seq_lengths": (128, 256, 512, 1024) if small else (2048, 4096, 8192, 16384),
    }
    if model is not None:
        spec = load_model(model)
        layers = tuple(count for count in sizes["layers"] if count <= spec.num_hidden_layers)
        return Reach(models=((model, spec),), **sizes | {"layers": layers or (spec.num_hidden_layers,)})
    named = [(str(_file(folder, document)), document) for document in _shapes(backend)]
    return Reach(models=tuple((name, validated(name, ModelSpec, document)) for name, document in named), **sizes)


def write_shapes(backend: str, folder: Path) -> None:
    """Write the specs of the shapes."""
    folder.mkdir(parents=True, exist_ok=True)
    for document in _shapes(backend):
        text = "# A shape that `simulate calibrate --probe` trains.\n" + yaml.safe_dump(document, sort_keys=False)
        _file(folder, document).write_text(text, encoding="utf-8")


def _file(folder: Path, document: Mapping[str, Any]) -> Path:
    return folder / f"{document['name']}.yaml"


def _shapes(backend: str) -> list[dict[str, Any]]:
    """Return dense decoders of three widths, the narrowest with heads of two widths."""
    small = backend == "cpu"
    widths, head, vocabulary = (_PROCESSOR_WIDTHS, 32, 2048) if small else (_ACCELERATOR_WIDTHS, 64, 32000)
    narrow = _shape(widths[0], head, vocabulary)
    return [narrow, *(_shape(width, 2 * head, vocabulary) for width in widths)]


def _shape(width: int, head: int, vocabulary: int) -> dict[str, Any]:
    return {
        "name": f"probe-{width}-{head}",
        "architecture": "llama",
        "num_hidden_layers": 2,
        "hidden_size": width,
        "intermediate_size": width * 11 // 4,
        "num_attention_heads": width // head,
        "num_key_value_heads": max(width // head // 2, 1),
        "head_dim": head,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }
