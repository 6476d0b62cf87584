"""Logs of NeMo and of MLPerf's runs with it: step times, and batch sizes in the logged configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from simulator.frameworks.logs import StepLogForm, counts


def _columns(where: str, facts: Mapping[str, str]) -> dict[str, Any]:
    return counts(where, facts, {"global_batch_size": "batch", "micro_batch_size": "micro", "seq_length": "sequence"})


STEP_LOG: Final = StepLogForm(
    name="NeMo or MLPerf",
    framework="megatron",
    order=30,
    begins=re.compile(r"train_step_timing(?: in s)?[\"']?[=: ]|:::MLLOG \{"),
    step=re.compile(
        r"(?:global_step[=:] ?(?P<at>\d{1,9})(?:\.0+)?\b.{0,200}?train_step_timing in s[=:] ?"
        r"|\bStep (?P<at_>\d{1,9}) train_step_timing )(?P<seconds>[0-9.]{1,20})"
    ),
    facts=(
        re.compile(r"global_batch_size[\"']?: (?P<batch>\d{1,9})\b"),
        re.compile(r"micro_batch_size[\"']?: (?P<micro>\d{1,9})\b"),
        re.compile(r"encoder_seq_length[\"']?: (?P<sequence>\d{1,9})\b"),
    ),
    columns=_columns,
)
