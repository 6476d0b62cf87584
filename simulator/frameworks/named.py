"""The model that a recipe names, with remarks on unknown, guessed or quantized ones. Prices nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.question.recipe import Recipe

_QUANTIZED: Final = re.compile(r"(?i)(?:^|[-_/.])(?:awq|gptq|aqlm|hqq|gguf|bnb|int[48]|[248]-?bit|nf4)(?:$|[-_/.])")

QUANTIZED: Final = "quantized weights are not modelled"
_IN_16_BITS: Final = "quantized weights are priced in 16 bits"


def named_model(arguments: Arguments, name: str, *flags: str) -> str | None:
    """Return the named model, remarked where it is unknown, guessed or quantized; None for an empty or unknown name."""
    if not name:
        return None
    fewer = _QUANTIZED.search(name)
    if fewer:
        arguments.not_modelled(f"model '{name[:80]}': {QUANTIZED}", *flags)
        name = name[: fewer.start()]
    return known_model(arguments, name, *flags)


def known_model(arguments: Arguments, name: str, *flags: str) -> str | None:
    """Return the model of a name, with a remark where it is unknown (None) or guessed."""
    path = models.beside(name, Path(arguments.file))
    if path:
        return path
    model, guessed = models.by_name(name)
    if model is None:
        message = f"model '{name[:80]}' is not known"
        arguments.remark("unknown-model", "warning", message, *flags, fix="--model NAME")
    elif guessed:
        message = f"model '{name[:80]}' is read as {model}"
        arguments.remark("model-guessed", "warning", message, *flags, fix=f"--model {model}")
    return model


def note_fewer_bits(arguments: Arguments, run: Recipe) -> None:
    """Turn the refusal of quantized weights under adapters into a remark: 16-bit weights bound the need from above.

    This holds where the trainer leaves everything else in 16 bits (peft's `prepare_model_for_kbit_training`, which
    widens it, is called neither by ms-swift 3602360 nor by LLaMA-Factory ff6d4d1 nor by PaddleNLP 3.0.0b4), and where
    only one layer's 16-bit copies are held at a time: with checkpoints at every layer.
    """
    if run.lora_rank is None or run.layout is None or run.layout.recompute != "full":
        return
    arguments.remarks = [
        replace(remark, rule="upper-bound", severity="warning", message=remark.message.replace(QUANTIZED, _IN_16_BITS))
        if remark.rule == "not-modelled" and remark.message.endswith(QUANTIZED)
        else remark
        for remark in arguments.remarks
    ]
