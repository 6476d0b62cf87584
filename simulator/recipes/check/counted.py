"""What a script asks its machine for: how many devices a node has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from simulator.recipes.recipe import Recipe, Remark

_LISTED: Final = r"nvidia-smi\s+(?:-L|--list-gpus|--query-gpu=\w+ --format=csv,noheader)\s*\|\s*wc -l"
_TORCH: Final = r"python3?\s+-c\s+[\"']import torch; ?print\(torch\.cuda\.device_count\(\)\)[\"']"
_ON_A_NODE: Final = re.compile(rf"(?:\$\(|`)\s*(?:{_TORCH}|{_LISTED})\s*[)`]")
"""Commands that print the number of devices of the node, as an unknown value shows them."""
_IN_ALL: Final = re.compile(rf"\$\(\s*ds_ssh\s+{_LISTED}\s*\)")
"""The same on every node, with the two lines that `ds_ssh` says before; scripts take them off."""
_SAID_BEFORE: Final = 2


def counted(recipes: Iterable[Recipe], devices: int, nodes: int) -> Mapping[str, str]:
    """Values of the commands that count devices, of a node or of all, for the hardware that is asked about."""
    names = sorted({unknown.name for recipe in recipes for unknown in recipe.unknowns if unknown.affects})
    each = {name: str(devices) for name in names if _ON_A_NODE.fullmatch(name)}
    return each | {name: str(devices * nodes + _SAID_BEFORE) for name in names if _IN_ALL.fullmatch(name)}


def with_counts(recipes: Iterable[Recipe], values: Mapping[str, str]) -> tuple[Recipe, ...]:
    """The recipes with what was taken for granted."""
    said = tuple(
        Remark("devices-counted", "note", f"{name[:80]} is taken to print {text}", fix="--hardware NAME --nodes N")
        for name, text in values.items()
    )
    return tuple(replace(recipe, remarks=(*recipe.remarks, *said)) for recipe in recipes)
