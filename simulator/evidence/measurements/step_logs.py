"""Training logs that print steps but not the whole layout, such as torchtitan's, to measured rows.

A framework's `StepLogForm` says what a step's line looks like and which lines state facts of the run; MLPerf's events
count in all of them. What these leave open is asked for in one list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.cost.operations.sums import total_parameters
from simulator.errors import InputError
from simulator.evidence.measurements.completed import LogContext, completed, matched, ran_out, row_of
from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.steady import Step, steady
from simulator.frameworks.logged_config import LoggedConfig
from simulator.frameworks.logs import OUT_OF_MEMORY, LogLine, StepLogForm, longer_line, number, parse_count
from simulator.question.specs.catalogue import models_by_sizes


@dataclass(slots=True)
class _LoggedRun:
    begin: LogLine
    facts: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[LogLine, dict[str, str]]] = field(default_factory=list)
    config: LoggedConfig = field(default_factory=LoggedConfig)
    out_of_memory: LogLine | None = None


def _by_parameters(family: str, parameters: int) -> str | None:
    """Return the shipped model of a family with exactly this number of parameters; None without one."""
    same = [spec.name for spec in models_by_sizes() if total_parameters(spec) == parameters]
    return next((name for name in same if name.startswith(family.lower())), None)


_EVENT: Final = re.compile(r":::MLLOG (\{.{1,4000}\})\s*$")
_EVENT_FACTS: Final = {
    "global_batch_size": "batch",
    "micro_batch_size": "micro",
    "max_sequence_length": "sequence",
    "sequence_length": "sequence",
}


def read_steps(lines: Iterable[LogLine], context: LogContext, form: StepLogForm) -> tuple[MeasuredRow, ...]:
    """Return the log's run as a row. Raises InputError naming the line, or listing the facts that are missing."""
    run: _LoggedRun | None = None
    for line in lines:
        run = run or _LoggedRun(line)
        if run.config.take(line):
            continue
        if match := _EVENT.search(line.text):
            _event(run, line, match[1])
        if match := form.step.search(line.text):
            run.out_of_memory = None  # a run that continues did not run out of memory
            run.steps.append((line, _named(match)))
        elif OUT_OF_MEMORY.search(line.text):
            run.out_of_memory = longer_line(run.out_of_memory, line)
        for fact in form.facts:
            if match := fact.search(line.text):
                run.facts |= _named(match)
    if run is None:
        return ()
    return (_row(run, context, form),)


def _named(match: re.Match[str]) -> dict[str, str]:
    """Return the groups that matched; `NAME_` is the second place of `NAME` in a pattern."""
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


def _row(run: _LoggedRun, context: LogContext, form: StepLogForm) -> MeasuredRow:
    where = run.begin.where
    columns = form.columns(where, run.facts)
    if "parameters" in run.facts:
        parameters = int(run.facts["parameters"].replace(",", ""))
        columns["model"] = _by_parameters(run.facts.get("family", ""), parameters)
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
    notes = [match.note, f"The log is one of {form.name}.", form.note if "devices" in columns else ""]
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
    """Yield the logged steps; of a trainer that shows none, its mean over the run, start-up included."""
    total = run.facts.get("total", "").replace(",", "")
    for line, step in run.steps:
        if total and step.get("total", total) != total:
            continue  # a progress bar of something else, such as evaluation
        at = parse_count(line.where, "step", step["at"])
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
        steps = parse_count(where, "steps", total) if total else 0
        runtime = number(where, "train_runtime", run.facts["runtime"])
        yield Step(iteration=1, seconds=runtime / steps if steps else 1.0 / rate)
