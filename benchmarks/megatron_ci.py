"""Megatron-LM's functional tests, against the memory that its continuous integration records.

Each case has its flags (`model_config.yaml`) and, for devices it runs on, golden values: the most bytes that tensors
took on the last rank, exactly. No fit has used most of them; those in `calibration/measured/public` are told apart.
`python -m benchmarks.megatron_ci CHECKOUT` reads them from a checkout; d98e8a6 is what the tables are of.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.machine import say
from simulator.answers.gates import Gates
from simulator.evidence.measurements.rows import public_tables
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files

CASES: Final = "tests/functional_tests/test_cases"
DEVICES: Final = {"h100": "h100-sxm-80g", "a100": "a100-sxm-80g"}
FIGURE: Final = "mem-max-allocated-bytes"


def measured(golden: Path) -> float | None:
    """Most bytes allocated on the last rank by the end; None where a file records none."""
    values = json.loads(golden.read_text(encoding="utf-8")).get(FIGURE)
    found = values.get("values", {}) if isinstance(values, dict) else {}
    numbers = [value for value in found.values() if isinstance(value, int | float)]
    return float(numbers[-1]) if numbers else None


def fitted() -> set[tuple[str, str]]:
    """Cases and devices that stand in the tables, by the folders of their sources."""
    tables = [path for path in public_tables() if path.stem.startswith("megatron-lm-ci")]
    return {
        (Path(row["source"].split()[1]).parent.as_posix(), path.stem[-4:])
        for path in tables
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        if row["status"] == "memory_only"
    }


def errors(checkout: Path) -> Iterator[tuple[str, str, float, bool]]:
    """Case, device, relative error of the last rank's bytes, and whether a fit has used the row."""
    used = fitted()
    for golden in sorted((checkout / CASES).glob("*/*/golden_values_dev_dgx_*.json")):
        device, recipe = golden.stem.rpartition("_")[2], golden.parent / "model_config.yaml"
        if "_release" in golden.parent.name:  # on more nodes than one, how many is not stated
            continue
        bytes_measured = measured(golden) if device in DEVICES and recipe.is_file() else None
        if bytes_measured is None:
            continue
        (found,) = check_files([str(recipe)], question_of({"hardware": DEVICES[device], "nodes": 1}), Gates())
        if found.outcome in ("fits", "starved") and found.estimate is not None:
            error = found.estimate.memory.stages[-1].allocated_bytes / bytes_measured - 1.0
            folder = golden.parent.relative_to(checkout).as_posix()
            yield folder.removeprefix(f"{CASES}/"), device, error, (folder, device) in used


def summary(name: str, found: np.ndarray) -> str:
    """Mean, median and how many lie within a twentieth, of relative errors."""
    size = np.abs(found)
    within = np.mean(size < 0.05)
    return (
        f"{name}: {len(found)} runs, mean absolute {100 * size.mean():.1f} %, median {100 * np.median(size):.1f} %, "
        f"bias {100 * found.mean():+.1f} %, within 5 % {100 * within:.0f} %"
    )


if __name__ == "__main__":
    rows = list(errors(Path(sys.argv[1])))
    for case, device, error, used in rows:
        say(f"{case:110} {device} {100 * error:+6.1f} % {'in a table' if used else ''}")
    for name, kept in (("in a table", True), ("in none", False)):
        say(summary(name, np.array([error for _, _, error, used in rows if used is kept])))
