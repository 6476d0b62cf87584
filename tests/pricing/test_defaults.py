"""What a record holds of what nobody gave: nothing, or what this file names with its reason.

A figure that a formula leaves out is added, multiplied or taken as a condition elsewhere, so that a default other than
nothing would be counted.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import simulator.cost
import simulator.search

SOMETHING: dict[tuple[str, str], object] = {
    # A tensor is there once, a matrix is multiplied, a collective runs backward as forward, a product at once.
    ("Weight", "copies"): 1,
    ("Weight", "matmul"): True,
    ("Collective", "backward"): 1.0,
    ("ProductShape", "at_once"): 1.0,
    # A moment is one of every layout.
    ("_Mark", "when"): True,
    # DeepSeek's DualPipe runs a forward and a backward pass under each other, and splits the last backward passes.
    ("DualPipe", "combined"): True,
    ("DualPipe", "splits_at_end"): True,
    ("DualPipeV", "splits_at_end"): True,
    # Only of what no run is like is the probability limited.
    ("MemoryEstimate", "surest"): 1.0,
    # What is not bounded enters a list of the best.
    ("Shortlist", "below"): float("inf"),
    # The question's own defaults (docs/model.md).
    ("Estimate", "seq_length"): 8192,
    ("Estimate", "global_batch_size"): 1024,
}
"""By record and field: a number other than 0 that stands for what nobody gave."""

WORKED_OUT = {("Pricing", "figures"), ("PassSeconds", "forward_seconds"), ("PassSeconds", "backward_seconds")}
"""Fields that no caller gives."""

NOT_COMPARED = {
    *(("ThroughputEstimate", "schedule"), ("Estimate", "assumed")),
    *(
        ("Estimate", "question"),
        ("Estimate", "open"),
        ("Estimate", "other_memory"),
        ("Estimate", "other_memories"),
        ("Ranking", "question"),
    ),
}
"""Fields that two equal answers may differ in: how a step was run, and what else it could have been asked."""


def modules() -> Iterator[ModuleType]:
    for package in (simulator.cost, simulator.search):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def records() -> Iterator[type[Any]]:
    for module in modules():
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__:
                yield value


def defaults() -> dict[tuple[str, str], object]:
    """Every number that a record takes where nobody gives one."""
    found: dict[tuple[str, str], object] = {}
    for record in records():
        named = dict(getattr(record, "_field_defaults", {}))
        if dataclasses.is_dataclass(record):
            named = {field.name: field.default for field in dataclasses.fields(record) if field.init}
        for name, value in named.items():
            if isinstance(value, bool | int | float):
                found[record.__name__, name] = value
    return found


def test_what_nobody_gives_is_nothing() -> None:
    found = defaults()
    assert len(found) > 20
    assert {key: value for key, value in found.items() if value != 0} == SOMETHING


@pytest.mark.parametrize(("attribute", "expected"), [("init", WORKED_OUT), ("compare", NOT_COMPARED)])
def test_which_fields_are_worked_out_or_not_compared(attribute: str, expected: set[tuple[str, str]]) -> None:
    found = {
        (record.__name__, field.name)
        for record in records()
        if dataclasses.is_dataclass(record)
        for field in dataclasses.fields(record)
        if not getattr(field, attribute)
    }
    assert found == expected
