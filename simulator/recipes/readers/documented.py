"""Configuration files launched as pages of their own repositories document it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.frameworks.documents import read_text
from simulator.question.origin import Place, Remark
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


def documented_settings(path: Path) -> tuple[dict[str, str], tuple[Remark, ...]]:
    """Return what a repository's other file states beside a file of this text, by name, and a remark naming it."""
    start = start_of(str(path), read_text(path))
    words = [word.partition("=") for word in start.words] if start is not None else []
    if not words or not all(equals for _, equals, _ in words):
        return {}, ()
    shown = " ".join(name + equals + text for name, equals, text in words)
    remark = Remark("example-arguments", "warning", f"beside it stands {start}: {shown}", Place(str(path), 1))
    return {name: text for name, _, text in words}, (remark,)
