"""Models and flavors of torchtitan by name, from `flavors.yaml`."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.question.specs.documents import read_yaml


@functools.cache
def _flavors() -> Mapping[str, Mapping[str, Any]]:
    content: Mapping[str, Mapping[str, Any]] = read_yaml(Path(__file__).with_name("flavors.yaml"))
    return content


def published() -> Mapping[str, tuple[str, str]]:
    """Return family and flavor by the name of a shipped model."""
    return {name: (family, flavor) for name, (family, flavor) in _flavors()["published"].items()}


def shape_of(name: str, *, with_table: bool) -> dict[str, object]:
    """Return the shape of a flavor that is no published model, as `ModelSpec` fields; empty for other names.

    `vocab_size` is left out unless `with_table`: a tokenizer may decide it.
    """
    shape: dict[str, object] = dict(_flavors()["own"].get(name, {}))
    if "feed_forwards" in shape:
        shape["feed_forwards"] = tuple(_flavors()["own"][name]["feed_forwards"])
    if not with_table:
        shape.pop("vocab_size", None)
    return shape
