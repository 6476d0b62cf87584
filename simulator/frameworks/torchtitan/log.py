"""Logs of torchtitan: its steps, and the lines on mesh, batch and checkpointing. Fits and prices nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from simulator.frameworks.logs import StepLogForm, counts, parse_count


def _columns(where: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """Return the layout of a run from the lines on its mesh, batch and checkpointing."""
    names = {"pipeline_parallel": "pp", "context_parallel": "cp", "tensor_parallel": "tp", "expert_parallel": "ep"}
    columns = counts(where, facts, names)
    if "dp_shard" in facts:
        shard, replicas = (parse_count(where, name, facts[name]) for name in ("dp_shard", "dp_replicate"))
        columns = {"tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1} | columns
        copies = shard * replicas * columns["context_parallel"]
        columns["devices"] = copies * columns["tensor_parallel"] * columns["pipeline_parallel"]
        # Only a pipeline keeps gathered parameters from forward to backward (stage 2).
        sharded = shard * columns["context_parallel"] > 1
        columns["zero_stage"] = (3 if columns["pipeline_parallel"] == 1 else 2) if sharded else 0
    columns |= counts(where, facts, {"global_batch_size": "batch", "seq_length": "sequence"})
    if facts.get("local") and columns.get("pipeline_parallel", 1) == 1:
        columns["micro_batch_size"] = parse_count(where, "local batch size", facts["local"])
    checkpointing = facts.get("checkpointing", "").lower()
    columns["recompute"] = "full" if "full" in checkpointing else "selective" if checkpointing else None
    columns["precision"] = "fp8" if "float8" in facts else None
    return columns


STEP_LOG: Final = StepLogForm(
    name="torchtitan",
    framework="torch",
    order=10,
    begins=re.compile(r"\bstep:\s{0,8}\d+\s+loss:.{0,80}memory:|Building (?:\d-D )?device mesh with "),
    step=re.compile(
        r"\bstep:\s{0,8}(?P<at>\d{1,9})\s+loss:.{0,120}?memory:\s{0,4}(?P<reserved>[0-9.]{1,12})GiB"
        r".{0,20}?(?:tps|wps):\s{0,4}(?P<tokens>[0-9,]{1,15})"
    ),
    facts=(
        re.compile(
            r"parallelism: pp=(?P<pp>\d+), dp_replicate=(?P<dp_replicate>\d+), dp_shard=(?P<dp_shard>\d+), "
            r"cp=(?P<cp>\d+)(?:, tp=(?P<tp>\d+))?(?:, ep=(?P<ep>\d+))?"
        ),
        re.compile(
            r"local batch size (?P<local>\d+), global batch size (?P<batch>\d+), "
            r"(?:gradient accumulation steps \d+, )?sequence length (?P<sequence>\d+)"
        ),
        re.compile(r"Applied (?P<checkpointing>\w{1,20}) activation checkpointing to the model"),
        re.compile(r"(?P<float8>Float8) (?:\w+ \w+ )?training active|Swapped to (?P<float8_>Float8)Linear"),
        re.compile(r"\bModel (?P<family>\w{1,30}) \S{1,30} size: (?P<parameters>[0-9,]{1,20}) total parameters"),
    ),
    columns=_columns,
)
