"""Panels of thousands of layouts in few bytes: shared parts are written once. Changes no text of a panel.

A panel is what a page shows when a layout is clicked. The page's script unpacks it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from os.path import commonprefix
from typing import Any

_OWN = ("title", "verdict", "command")
"""Texts that differ by layout."""


def packed(panels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the panels as the script of a page reads them.

    `templates` are panels with `{"$": n}` for their n-th own value; a layout is the index of its template and its
    values, where a number is an index into the shared `values`; `command` begins every command.
    """
    start = commonprefix([panel["command"] for panel in panels])  # noqa: RUF071  of texts, not of paths
    templates: dict[str, int] = {}
    split: list[tuple[int, list[Any]]] = []
    for panel in panels:
        own: list[Any] = []
        short = {**panel, "command": panel["command"][len(start) :]}
        skeleton = {name: _slot(part, own) if name in _OWN else _skeleton(part, own) for name, part in short.items()}
        split.append((templates.setdefault(json.dumps(skeleton), len(templates)), own))
    texts = [[json.dumps(value) for value in own] for _, own in split]
    times = Counter(text for layout in texts for text in layout)
    shared = {text: number for number, text in enumerate(text for text, count in times.items() if count > 1)}
    return {
        "templates": [json.loads(template) for template in templates],
        "values": [json.loads(text) for text in shared],
        "command": start,
        "layouts": [
            [template, *(shared.get(text, value) for text, value in zip(written, own, strict=True))]
            for (template, own), written in zip(split, texts, strict=True)
        ],
    }


def _skeleton(node: Any, own: list[Any]) -> Any:
    """Return a panel without its lists of numbers and words, which are added to `own`."""
    if isinstance(node, Mapping):
        return {name: _skeleton(part, own) for name, part in node.items()}
    if not isinstance(node, list):
        return node
    if any(isinstance(part, Mapping | list) for part in node):
        return [_skeleton(part, own) for part in node]
    return _slot(node, own)


def _slot(value: Any, own: list[Any]) -> dict[str, int]:
    own.append(value)
    return {"$": len(own) - 1}
