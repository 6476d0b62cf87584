"""The model that a recipe names: a shipped one, or the configuration beside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from simulator.recipes.readers import models
from simulator.recipes.readers.given import Given

_QUANTIZED: Final = re.compile(r"(?i)(?:^|[-_/.])(?:awq|gptq|aqlm|hqq|gguf|bnb|int[48]|[248]-?bit|nf4)(?:$|[-_/.])")


def named_model(given: Given, name: str, *flags: str) -> str | None:
    """The model, remarked where its name is not known, is a guess, or is of quantized weights; None for no such one."""
    if not name:
        return None
    if _QUANTIZED.search(name):
        given.remark("not-modelled", "error", f"model '{name[:80]}': quantized weights are not modelled", *flags)
    found = models.beside(name, Path(given.file))
    if found:
        return found
    model, guessed = models.by_name(name)
    if model is None:
        message = f"model '{name[:80]}' is not known"
        given.remark("unknown-model", "warning", message, *flags, fix="--model NAME")
    elif guessed:
        message = f"model '{name[:80]}' is read as {model}"
        given.remark("model-guessed", "warning", message, *flags, fix=f"--model {model}")
    return model
