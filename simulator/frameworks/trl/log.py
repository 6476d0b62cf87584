"""Logs of Hugging Face's Trainer: its progress bar, its summary, and the batch sizes that it prints at the start.

Defines patterns and the batch's columns only; `evidence.measurements` extracts the steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from simulator.frameworks.logs import StepLogForm, counts, parse_count


def _columns(where: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the batch sizes of a run and the devices that they imply, all of them data parallel."""
    columns = counts(where, facts, {"micro_batch_size": "micro", "global_batch_size": "batch"})
    if {"micro_batch_size", "global_batch_size"} <= set(columns):
        steps = parse_count(where, "gradient accumulation", facts.get("accumulation") or "1")
        columns["devices"] = columns["global_batch_size"] // max(columns["micro_batch_size"] * steps, 1)
    return columns


STEP_LOG: Final = StepLogForm(
    name="the Hugging Face trainer",
    framework="torch",
    order=20,
    begins=re.compile(r"\*{5} Running training \*{5}|'train_steps_per_second':"),
    step=re.compile(
        r"\|\s{0,4}(?P<at>\d{1,9})/(?P<total>\d{1,9}) \[[0-9:]{1,12}<[0-9:?]{1,12},\s{0,4}"
        r"(?:(?P<seconds>[0-9.]{1,20})s/it|(?P<rate>[0-9.]{1,20})it/s)"
    ),
    facts=(
        re.compile(r"Instantaneous batch size per device = (?P<micro>[0-9,]{1,12})"),
        re.compile(r"Total train batch size \(w\. [^)]{1,60}\) = (?P<batch>[0-9,]{1,12})"),
        re.compile(r"Gradient Accumulation steps = (?P<accumulation>[0-9,]{1,12})"),
        re.compile(r"Total optimization steps = (?P<total>[0-9,]{1,12})"),
        re.compile(r"'train_runtime': '?(?P<runtime>[0-9.]{1,20})"),
        re.compile(r"'train_steps_per_second': '?(?P<rate>[0-9.]{1,20})"),
    ),
    columns=_columns,
    note="Its ranks are those that its batch implies, all data parallel.",
)
