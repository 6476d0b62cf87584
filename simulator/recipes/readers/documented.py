"""Configuration files launched as pages of their own repositories document it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.recipes.recipe import Place, Remark
from simulator.recipes.shell.launch import TrainingCommand, find_launch
from simulator.recipes.shell.starts import start_of
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
