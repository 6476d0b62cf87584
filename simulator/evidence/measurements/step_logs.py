"""Training logs that print steps but not the whole layout: torchtitan, Hugging Face's trainer, NeMo and MLPerf.

Each is a `Format`: what a step's line looks like, and the lines that state facts of the run. What these leave open is
asked for in one list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.cost.operations.sums import total_parameters
from simulator.errors import InputError
from simulator.evidence.measurements.completed import LogContext, completed, matched, ran_out, row_of
from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.shapes import shipped_models
from simulator.evidence.measurements.steady import Step, steady
from simulator.frameworks.logged_config import LoggedConfig
from simulator.frameworks.logs import OUT_OF_MEMORY, LogLine, fuller, number, whole
from simulator.question.vocabulary import FrameworkName

Facts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Format:
    """How one trainer writes its log."""

    name: str
    framework: FrameworkName
    begins: re.Pattern[str]
    """A line that only this trainer writes."""
    step: re.Pattern[str]
    """A step's line: groups `at`, and `seconds`, `rate` (steps per second) or `tokens` (per second and device); where
    they are printed `total` (steps of the run) and `reserved` (GiB)."""
    facts: tuple[re.Pattern[str], ...]
    """Lines with facts of the run, by group."""
    columns: Callable[[str, Facts], dict[str, Any]]
    """The columns that the facts give."""


@dataclass(slots=True)
class _LoggedRun:
    begin: LogLine
    facts: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[LogLine, dict[str, str]]] = field(default_factory=list)
    config: LoggedConfig = field(default_factory=LoggedConfig)
    out_of_memory: LogLine | None = None


def _degrees(where: str, facts: Facts, names: Mapping[str, str]) -> dict[str, Any]:
    return {column: whole(where, name, facts[name]) for column, name in names.items() if facts.get(name)}


def _titan_columns(where: str, facts: Facts) -> dict[str, Any]:
    """Layout of a torchtitan run from the lines about its mesh, its trainer and its checkpointing."""
    names = {"pipeline_parallel": "pp", "context_parallel": "cp", "tensor_parallel": "tp", "expert_parallel": "ep"}
    columns = _degrees(where, facts, names)
    if "dp_shard" in facts:
        shard, replicas = (whole(where, name, facts[name]) for name in ("dp_shard", "dp_replicate"))
        columns = {"tensor_parallel": 1, "pipeline_parallel": 1, "context_parallel": 1} | columns
        copies = shard * replicas * columns["context_parallel"]
        columns["devices"] = copies * columns["tensor_parallel"] * columns["pipeline_parallel"]
        # A pipeline keeps gathered parameters from forward to backward, else they are gathered again.
        sharded = shard * columns["context_parallel"] > 1
        columns["zero_stage"] = (3 if columns["pipeline_parallel"] == 1 else 2) if sharded else 0
    columns |= _degrees(where, facts, {"global_batch_size": "batch", "seq_length": "sequence"})
    if facts.get("local") and columns.get("pipeline_parallel", 1) == 1:
        columns["micro_batch_size"] = whole(where, "local batch size", facts["local"])
    checkpointing = facts.get("checkpointing", "").lower()
    columns["recompute"] = "full" if "full" in checkpointing else "selective" if checkpointing else None
    columns["precision"] = "fp8" if "float8" in facts else None
    if "parameters" in facts:
        columns["model"] = _by_parameters(facts.get("family", ""), int(facts["parameters"].replace(",", "")))
    return columns


def _by_parameters(family: str, parameters: int) -> str | None:
    """The shipped model of a family with exactly so many parameters."""
    same = [spec.name for spec in shipped_models() if total_parameters(spec) == parameters]
    return next((name for name in same if name.startswith(family.lower())), None)


def _trainer_columns(where: str, facts: Facts) -> dict[str, Any]:
    """Batch of a Hugging Face run; its ranks, which are all data parallel, follow from it."""
    columns = _degrees(where, facts, {"micro_batch_size": "micro", "global_batch_size": "batch"})
    if {"micro_batch_size", "global_batch_size"} <= set(columns):
        steps = whole(where, "gradient accumulation", facts.get("accumulation") or "1")
        columns["devices"] = columns["global_batch_size"] // max(columns["micro_batch_size"] * steps, 1)
    return columns


def _nemo_columns(where: str, facts: Facts) -> dict[str, Any]:
    return _degrees(where, facts, {"global_batch_size": "batch", "micro_batch_size": "micro", "seq_length": "sequence"})


_SECONDS: Final = r"(?P<seconds>[0-9.]{1,20})"
FORMATS: Final = (
    Format(
        "torchtitan",
        "torch",
        re.compile(r"\bstep:\s{0,8}\d+\s+loss:.{0,80}memory:|Building (?:\d-D )?device mesh with "),
        re.compile(
            r"\bstep:\s{0,8}(?P<at>\d{1,9})\s+loss:.{0,120}?memory:\s{0,4}(?P<reserved>[0-9.]{1,12})GiB"
            r".{0,20}?(?:tps|wps):\s{0,4}(?P<tokens>[0-9,]{1,15})"
        ),
        (
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
        _titan_columns,
    ),
    Format(
        "the Hugging Face trainer",
        "torch",
        re.compile(r"\*{5} Running training \*{5}|'train_steps_per_second':"),
        re.compile(
            rf"\|\s{{0,4}}(?P<at>\d{{1,9}})/(?P<total>\d{{1,9}}) \[[0-9:]{{1,12}}<[0-9:?]{{1,12}},\s{{0,4}}"
            rf"(?:{_SECONDS}s/it|(?P<rate>[0-9.]{{1,20}})it/s)"
        ),
        (
            re.compile(r"Instantaneous batch size per device = (?P<micro>[0-9,]{1,12})"),
            re.compile(r"Total train batch size \(w\. [^)]{1,60}\) = (?P<batch>[0-9,]{1,12})"),
            re.compile(r"Gradient Accumulation steps = (?P<accumulation>[0-9,]{1,12})"),
            re.compile(r"Total optimization steps = (?P<total>[0-9,]{1,12})"),
            re.compile(r"'train_runtime': '?(?P<runtime>[0-9.]{1,20})"),
            re.compile(r"'train_steps_per_second': '?(?P<rate>[0-9.]{1,20})"),
        ),
        _trainer_columns,
    ),
    Format(
        "NeMo or MLPerf",
        "megatron",
        re.compile(r"train_step_timing(?: in s)?[\"']?[=: ]|:::MLLOG \{"),
        re.compile(
            r"(?:global_step[=:] ?(?P<at>\d{1,9})(?:\.0+)?\b.{0,200}?train_step_timing in s[=:] ?"
            r"|\bStep (?P<at_>\d{1,9}) train_step_timing )" + _SECONDS
        ),
        (
            re.compile(r"global_batch_size[\"']?: (?P<batch>\d{1,9})\b"),
            re.compile(r"micro_batch_size[\"']?: (?P<micro>\d{1,9})\b"),
            re.compile(r"encoder_seq_length[\"']?: (?P<sequence>\d{1,9})\b"),
        ),
        _nemo_columns,
    ),
)
_EVENT: Final = re.compile(r":::MLLOG (\{.{1,4000}\})\s*$")
_EVENT_FACTS: Final = {
    "global_batch_size": "batch",
    "micro_batch_size": "micro",
    "max_sequence_length": "sequence",
    "sequence_length": "sequence",
}


def read_steps(lines: Iterable[LogLine], context: LogContext, form: Format) -> tuple[MeasuredRow, ...]:
    """Return the log's run as a row. Raises InputError naming the line, or listing what neither log nor caller says."""
    run: _LoggedRun | None = None
    for line in lines:
        run = run or _LoggedRun(line)
        if run.config.take(line):
            continue
        if match := _EVENT.search(line.text):
            _event(run, line, match[1])
        if match := form.step.search(line.text):
            run.out_of_memory = None  # a run that goes on did not run out
            run.steps.append((line, _named(match)))
        elif OUT_OF_MEMORY.search(line.text):
            run.out_of_memory = fuller(run.out_of_memory, line)
        for fact in form.facts:
            if said := fact.search(line.text):
                run.facts |= _named(said)
    if run is None:
        return ()
    return (_row(run, context, form),)


def _named(match: re.Match[str]) -> dict[str, str]:
    """The groups that matched; one that stands in two places of a pattern has a bar behind its second name."""
    return {name.rstrip("_"): text for name, text in match.groupdict().items() if text is not None}


def _event(run: _LoggedRun, line: LogLine, text: str) -> None:
    """Take an event of MLPerf's log: a fact, or the time of a step."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return
    if not isinstance(event, dict):
        return
    key, value = event.get("key"), event.get("value")
    if key in _EVENT_FACTS and isinstance(value, int):
        run.facts[_EVENT_FACTS[str(key)]] = str(value)
    if not isinstance(value, dict):
        return
    timing = next((value[name] for name in ("train_step_timing in s", "train_step_time") if name in value), None)
    if isinstance(timing, int | float):
        run.steps.append((line, {"at": str(len(run.steps) + 1), "seconds": str(timing)}))


def _row(run: _LoggedRun, context: LogContext, form: Format) -> MeasuredRow:
    where = run.begin.where
    columns = form.columns(where, run.facts)
    match = matched(where, run.config.shape(), context)
    named = context.model or context.columns.get("model")
    values = completed(
        where,
        {"framework": form.framework}
        | columns
        | {"model": match.model or named or columns.get("model"), "num_layers": match.num_layers},
        context,
    )
    values.setdefault("model_as_stated", str(values["model"])[:200])
    line = run.begin.number
    notes = [match.note, f"The log is one of {form.name}."]
    if "devices" in columns and form.columns is _trainer_columns:
        notes.append("Its ranks are those that its batch implies, all data parallel.")
    if run.out_of_memory:
        return row_of(values, context, 1, line, notes, **ran_out(run.out_of_memory))
    tokens = values["seq_length"] * values["global_batch_size"] / values["devices"]
    steps = list(_steps(run, tokens))
    if not steps:
        raise InputError(f"{where}: no step with its time follows; expected lines as {form.name} writes them")
    alone = len(steps) == 1 and "runtime" in run.facts
    settled = steady(run.steps[-1][0].where if run.steps else where, steps, 0 if alone else context.warmup)
    reserved = [number(line.where, "memory", step["reserved"]) for line, step in run.steps if "reserved" in step]
    memory: dict[str, Any] = {"memory_gib": max(reserved), "memory_kind": "reserved"} if reserved else {}
    speed: dict[str, Any] = {"step_time_s": round(settled.seconds, 6)}
    if settled.rate is not None:
        speed = {"tokens_per_second_per_device": settled.rate}
    spread = settled.columns if settled.rate is None else {}
    return row_of(values, context, 1, line, [settled.account, *notes], outcome="ok", **speed, **spread, **memory)


def _steps(run: _LoggedRun, tokens: float) -> Iterable[Step]:
    """The logged steps; of a trainer that shows none, its mean over the run, start-up included."""
    total = run.facts.get("total", "").replace(",", "")
    for line, step in run.steps:
        if total and step.get("total", total) != total:
            continue  # a bar of something else, such as evaluation
        at = whole(line.where, "step", step["at"])
        if "tokens" in step:
            rate = number(line.where, "tokens per second", step["tokens"].replace(",", ""))
            yield Step(iteration=at, seconds=tokens / rate, rate=rate)
        elif "rate" in step:
            yield Step(iteration=at, seconds=1.0 / number(line.where, "steps per second", step["rate"]))
        else:
            yield Step(iteration=at, seconds=number(line.where, "seconds per step", step["seconds"]))
    if not run.steps and "rate" in run.facts and "runtime" in run.facts:
        where = run.begin.where
        rate = number(where, "train_steps_per_second", run.facts["rate"])
        steps = whole(where, "steps", total) if total else 0
        runtime = number(where, "train_runtime", run.facts["runtime"])
        yield Step(iteration=1, seconds=runtime / steps if steps else 1.0 / rate)
