"""The longest sample of public data sets, which bounds batches that are padded to their own longest sample."""

from __future__ import annotations

import csv
import functools
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.question.recipe import Recipe

_TABLE: Final = Path(__file__).with_name("_samples.csv")
"""Data sets by name, each with an upper bound of its samples' length in tokens and its reason."""


def longest_sample(names: Collection[str]) -> int | None:
    """Return an upper bound of the data sets' samples, in tokens; None if one set's bound is not known."""
    bounds = [_bounds().get(name) for name in names]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


def with_longest_sample(arguments: Arguments, run: Recipe, names: Collection[str]) -> Recipe:
    """Return a run of padded batches, its sequence length limited to its data sets' longest sample."""
    bound = longest_sample(names)
    if bound is None or (run.seq_length is not None and run.seq_length <= bound):
        return run
    allowed = "any number" if run.seq_length is None else f"{run.seq_length:,}"
    message = (
        f"assumed: samples of {', '.join(sorted(names))[:120]} have at most {bound:,} tokens, of which full batches "
        f"are priced; the recipe allows {allowed}"
    )
    arguments.remark("longest-sample", "warning", message, fix="--seq-length N")
    return replace(run, seq_length=bound)


@functools.cache
def _bounds() -> Mapping[str, int]:
    with _TABLE.open(encoding="utf-8", newline="") as stream:
        return {row["name"]: int(row["longest_tokens"]) for row in csv.DictReader(stream)}
