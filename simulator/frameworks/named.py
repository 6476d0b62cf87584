"""The model that a recipe names, with a remark on a name that is unknown, a guess, or quantized. Prices nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.frameworks import models
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.run import AnyRun

_QUANTIZED: Final = re.compile(r"(?i)(?:^|[-_/.])(?:awq|gptq|aqlm|hqq|gguf|bnb|int[48]|[248]-?bit|nf4)(?:$|[-_/.])")

QUANTIZED: Final = "quantized weights are not modelled"
_IN_16_BITS: Final = "quantized weights are priced in 16 bits"


def named_model(arguments: Arguments, name: str, *flags: str) -> str | None:
    """The model, remarked where its name is not known, is a guess, or is of quantized weights; None for no such one."""
    if not name:
        return None
    fewer = _QUANTIZED.search(name)
    if fewer:
        arguments.not_modelled(f"model '{name[:80]}': {QUANTIZED}", *flags)
        name = name[: fewer.start()]
    return known_model(arguments, name, *flags)


def known_model(arguments: Arguments, name: str, *flags: str) -> str | None:
    """The model of a name, remarked where that is not known or is a guess."""
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


def note_fewer_bits(arguments: Arguments, run: AnyRun) -> None:
    """Remark quantized weights under adapters as what only lessens the need: priced are those of 16 bits.

    So it is where the trainer leaves all else in 16 bits (peft's `prepare_model_for_kbit_training`, which widens it, is
    called neither by ms-swift 3602360 nor by LLaMA-Factory ff6d4d1 nor by PaddleNLP 3.0.0b4), and where one layer's
    copies in 16 bits, made for its products, are all that is kept of them at a time: with checkpoints at every layer.
    """
    if run.lora_rank is None or run.layout is None or run.layout.recompute != "full":
        return
    arguments.remarks = [
        replace(remark, rule="upper-bound", severity="warning", message=remark.message.replace(QUANTIZED, _IN_16_BITS))
        if remark.rule == "not-modelled" and remark.message.endswith(QUANTIZED)
        else remark
        for remark in arguments.remarks
    ]
