"""The figures when the coefficients were last fitted, which must not get worse: `calibration/accuracy.json`."""

from __future__ import annotations

import json
from typing import Any, Final

from benchmarks.accuracy.rows import KINDS, ROOT, Judgement
from benchmarks.accuracy.targets import own_lines, target_lines
from simulator.evidence.calibration.own import summary

RECORD: Final = ROOT / "calibration" / "accuracy.json"
UP: Final = ("tau", "pairs_right", "pairs_told", "own_order", "own_ran", "own_out_of_memory")
"""Figures that are better the larger they are; of the others, all but shares inside intervals the smaller."""


def figures(found: Judgement) -> dict[str, float]:
    """Every target's figure, and each class's mean error with the source left out, as shares or counts."""
    result = {line.id: line.value for line in (*target_lines(found), *own_lines(found)) if line.value is not None}
    for kind in KINDS:
        rows = found.of_kind(kind)
        for platform, sort in sorted({(row.platform, row.sort) for row in rows}):
            told = summary(row for row in rows if (row.platform, row.sort) == (platform, sort))
            result[f"{kind}.{platform}.{sort}"] = told.source_out
    return {name: round(value, 6) for name, value in result.items()}


def recorded(name: str) -> dict[str, Any]:
    """A part of the record: `figures`, or what was found in files outside the project."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    return found


def worse(now: dict[str, float], before: dict[str, float]) -> list[str]:
    """Figures that got worse by more than the last digits of a fit."""
    found = []
    for name, value in before.items():
        if name.endswith("_inside"):
            continue  # held by its target
        if name in UP:
            found += [name] if now[name] < value - 0.005 else []
        elif now[name] > 1.02 * value + 0.0005:
            found.append(f"{name}: {now[name]} after {value}")
    return found
