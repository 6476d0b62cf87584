"""Logs of the PaddleNLP, PaddleFormers and ERNIEKit trainers to measured rows.

Three kinds of line count: the configuration dump (`name : value` under a heading of the arguments' kind), the
model's configuration as JSON, and the line of each logged step. Memory is in GiB, by the trainer's 2**30.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.errors import InputError, one_line
from simulator.evidence.measurements.completed import completed, ran_out, row_of
from simulator.evidence.measurements.log_text import OUT_OF_MEMORY, LogContext, LogLine, Settings, fuller, number
from simulator.evidence.measurements.logged_config import LoggedConfig, config_shape
from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.shapes import Match, match_shape
from simulator.evidence.measurements.steady import Step, steady
from simulator.question.specs.folders import model_names

_HEADING: Final = re.compile(r"([A-Z][A-Za-z ]{0,30}) Configuration Arguments")
_SETTING: Final = re.compile(r"(?:^|\] - |\s)([a-z][a-z0-9_]{1,60})\s{0,40}: ?(.*)$")
_STEP: Final = re.compile(r"\bglobal_step: ([0-9]{1,12})\b")
_PAIR: Final = re.compile(r"([a-z][a-z0-9_]{1,60}): ([^,\s]{1,60})")
_NAME_ENDINGS: Final = ("-paddle", "-pt", "-hf", "-base", "-instruct", "-chat")
_ALLOCATED: Final = {"max_memory_allocated": "gib", "max_mem_allocated_gb": "gib", "gpu_max_memory_allocated": "mib"}
_RESERVED: Final = {"max_memory_reserved": "gib", "max_mem_reserved_gb": "gib", "gpu_max_memory_reserved": "mib"}
_BLANK: Final = frozenset({"", "None", "-1"})
_TRUE: Final = frozenset({"true", "True", "TRUE", "1", "yes", "Yes", "YES"})
_SIZES: Final = {
    "tensor_parallel": ("tensor_parallel_degree", "tensor_model_parallel_size"),
    "pipeline_parallel": ("pipeline_parallel_degree", "pipeline_model_parallel_size"),
    "context_parallel": (
        "context_parallel_degree",
        "context_parallel_size",
        "sep_parallel_degree",
        "sep_parallel_size",
    ),
    "expert_parallel": ("expert_parallel_degree", "expert_model_parallel_size"),
}


def is_paddle(text: str) -> bool:
    """Tell whether a line is one of this framework's."""
    return bool(_HEADING.search(text) or (_STEP.search(text) and "interval_" in text))


@dataclass(slots=True)
class _PaddleRun:
    """What one run logged, as far as it is read."""

    begin: LogLine
    settings: dict[str, tuple[LogLine, str]] = field(default_factory=dict)
    config: LoggedConfig = field(default_factory=LoggedConfig)
    steps: list[tuple[LogLine, int, dict[str, str]]] = field(default_factory=list)
    out_of_memory: LogLine | None = None


def read_paddle(lines: Iterable[LogLine], given: LogContext) -> tuple[MeasuredRow, ...]:
    """Return a row for each run of the log that logged steps or ran out of memory. Raises InputError with the line."""
    runs: list[_PaddleRun] = []
    for line in lines:
        if _begins(line, runs):
            runs.append(_PaddleRun(line))
        elif runs:
            _event(runs[-1], line)
        elif _STEP.search(line.text) and "interval_" in line.text:
            runs.append(_PaddleRun(line))
            _event(runs[-1], line)
    rows = [_row(run, given, at + 1) for at, run in enumerate(x for x in runs if x.steps or x.out_of_memory)]
    if rows:
        return tuple(rows)
    where = runs[-1].begin.where if runs else given.table
    raise InputError(
        f"{where}: no step follows this configuration; expected lines like "
        "'loss: 10.1, global_step: 10, interval_runtime: 1.2, interval_samples_per_second: 53.1'"
    )


def _begins(line: LogLine, runs: list[_PaddleRun]) -> bool:
    """Tell whether a line opens a run: the first heading, or one after steps were logged."""
    if not _HEADING.search(line.text):
        return False
    return not runs or bool(runs[-1].steps or runs[-1].out_of_memory)


def _event(run: _PaddleRun, line: LogLine) -> None:
    """Take what a line of a run says."""
    if run.config.take(line):
        return
    if found := _STEP.search(line.text):
        if "interval_" in line.text:
            run.out_of_memory = None  # a run that goes on did not run out
            run.steps.append((line, int(found[1]), dict(_PAIR.findall(line.text))))
    elif OUT_OF_MEMORY.search(line.text):
        run.out_of_memory = fuller(run.out_of_memory, line)
    elif not run.steps and (found := _SETTING.search(line.text)):
        # The first value counts: later dumps repeat names with what became of them per rank.
        run.settings.setdefault(found[1], (line, found[2].strip()))


def _row(run: _PaddleRun, given: LogContext, row: int) -> MeasuredRow:
    settings = Settings(run.settings, blank=_BLANK, true=_TRUE)
    where = run.begin.where
    match = _model(run, given)
    layout, batch = _layout(settings, where)
    stated = settings.text("model_name_or_path") or match.model
    columns = layout | {
        "global_batch_size": batch,
        "model_as_stated": one_line(stated.rstrip("/").rpartition("/")[2])[:200] or match.model,
        "model": match.model,
        "num_layers": match.num_layers,
        "framework": "paddle",
    }
    values = completed(where, columns, given, _switches(settings))
    line = run.begin.number
    if run.out_of_memory:
        return row_of(values, given, row, line, [match.note], **ran_out(run.out_of_memory))
    found = steady(run.steps[-1][0].where, _steps(run, settings), given.warmup)
    notes = [found.account, match.note, _batch_note(run, values["global_batch_size"])]
    figures = {"outcome": "ok", "step_time_s": round(found.seconds, 6), "tokens_per_second_per_device": found.rate}
    return row_of(values, given, row, line, notes, **figures, **found.columns, **_memory(run))


def _steps(run: _PaddleRun, settings: Settings) -> list[Step]:
    """Return the logged intervals as time per step."""
    steps = []
    before = 0
    for line, iteration, values in run.steps:
        if iteration == before:  # another rank's line
            covered = max((settings.count("logging_steps") or 1), 1)
        else:
            covered = iteration - before if before else min(settings.count("logging_steps") or 1, max(iteration, 1))
        if covered < 1:
            raise InputError(f"{line.where}: global_step {iteration} after {before}; expected steps in order")
        if "interval_runtime" not in values:
            if line is run.steps[-1][0]:  # cut where the run or the copy ended
                continue
            raise InputError(f"{line.where}: step without its time; expected 'interval_runtime: 1.0'")
        seconds = number(line.where, "interval_runtime", values["interval_runtime"]) / covered
        logged = values.get("interval_tokens_per_second_per_device")
        rate = number(line.where, "interval_tokens_per_second_per_device", logged) if logged else None
        steps.append(Step(iteration=iteration, seconds=seconds, rate=rate))
        before = iteration
    return steps


def _batch_note(run: _PaddleRun, batch: int) -> str:
    """Return a warning when samples per second contradict the global batch."""
    line, _, values = run.steps[-1]
    samples, steps = values.get("interval_samples_per_second"), values.get("interval_steps_per_second")
    if not (samples and steps):
        return ""
    implied = number(line.where, "interval_samples_per_second", samples) / number(
        line.where, "interval_steps_per_second", steps
    )
    if abs(implied / batch - 1) <= 0.05:
        return ""
    return f"The log's samples per second imply {implied:.0f} sequences a step where its configuration gives {batch}."


def _memory(run: _PaddleRun) -> dict[str, Any]:
    """Return the memory columns: the most of all logged steps."""
    columns: dict[str, Any] = {}
    for names, column in ((_ALLOCATED, "memory"), (_RESERVED, "memory_reserved")):
        for name, unit in names.items():
            found = [number(line.where, name, values[name]) for line, _, values in run.steps if name in values]
            if found:
                columns[f"{column}_{unit}"] = max(found)
                break
    if "memory_mib" in columns or "memory_gib" in columns:
        columns["memory_kind"] = "allocated"
    return columns


def _model(run: _PaddleRun, given: LogContext) -> Match:
    """Return the spec: by the logged configuration, else as the caller says, else by the name."""
    model = given.model or given.columns.get("model")
    if run.config.value:
        return match_shape(run.config.where, config_shape(run.config.value, run.config.where), model)
    if model:
        return Match(model, None, "The log shows no model configuration; the model is the caller's.")
    if not run.settings:
        return Match("", None, "")
    line, text = run.settings.get("model_name_or_path", (run.begin, ""))
    name = text.rstrip("/").rpartition("/")[2].lower()
    for ending in _NAME_ENDINGS * 2:
        name = name.removesuffix(ending)
    for candidate in (name, name.removeprefix("meta-"), name.replace("meta-llama-3", "llama3")):
        if candidate in model_names():
            return Match(candidate, None, "The model is known by its name only.")
    raise InputError(f"{line.where}: no shipped model is called '{text[:80]}' and no configuration follows; name one")


def _layout(settings: Settings, where: str) -> tuple[dict[str, Any], int | None]:
    """Return the columns that say how the run was cut, and the global batch; of what is not logged, none."""
    if not settings.said:
        return {}, None
    sizes = {column: settings.count(*names) or 1 for column, names in _SIZES.items()}
    devices = settings.count("world_size")
    replica = sizes["tensor_parallel"] * sizes["pipeline_parallel"] * sizes["context_parallel"]
    if devices is not None and devices % replica:
        raise InputError(f"{where}: world_size {devices} is not a multiple of the {replica} devices of one replica")
    micro = settings.count("per_device_train_batch_size")
    replicas = settings.count("dataset_world_size") or (devices // replica if devices else 0)
    batch = (micro or 0) * (settings.count("gradient_accumulation_steps") or 1) * replicas
    chunks = settings.count("virtual_pp_degree", "virtual_pipeline_model_parallel_size")
    columns: dict[str, Any] = sizes | {
        "devices": devices,
        "precision": _precision(settings, where),
        "seq_length": settings.count("max_seq_length", "max_seq_len", "seq_length"),
        "micro_batch_size": micro,
        "virtual_stages": chunks if chunks and chunks > 1 else None,
        "zero_stage": _zero_stage(settings),
        "sequence_parallel": settings.flag("sequence_parallel"),
        "recompute": _recompute(settings, where),
        "offload": _offload(settings),
        "lora_rank": settings.count("lora_rank") if settings.flag("lora") else None,
    }
    return columns, batch or None


def _precision(settings: Settings, where: str) -> str:
    if settings.flag("use_fp8") or settings.text("fp8").lower() in ("true", "hybrid", "e4m3"):
        return "fp8"
    if found := settings.precision():
        return found
    raise InputError(f"{where}: configuration names neither bf16 nor fp16")


def _zero_stage(settings: Settings) -> int:
    """Return the sharding stage; the dump shows words, a list of words or of enumeration members."""
    text = settings.text("sharding")
    return next((stage for stage in (3, 2, 1) if f"stage{stage}" in text), 0)


def _recompute(settings: Settings, where: str) -> str:
    mode = settings.text("recompute").lower()
    granularity = settings.text("recompute_granularity") or "full"
    if mode in ("", "false", "0", "none", "no"):
        return "none"
    words = {"full": "full", "full_attn": "attention", "core_attn": "selective", "selective": "selective"}
    if granularity not in words:
        raise InputError(f"{where}: recompute_granularity {granularity[:40]} is not priced; expected full or core_attn")
    return words[granularity]


def _offload(settings: Settings) -> str:
    if settings.flag("tensorwise_offload_optimizer"):
        return "optimizer_tensorwise"
    return "optimizer" if settings.flag("offload_optim") or "offload" in settings.text("sharding") else "none"


def _switches(settings: Settings) -> dict[str, str]:
    """Return the profile's switches that the dump sets otherwise than the profile's default."""
    found = {}
    if settings.flag("amp_master_grad"):
        found["gradient_dtype"] = "fp32"
    if settings.text("use_flash_attention") and not settings.flag("use_flash_attention"):
        found["flash_attention"] = "false"
    return found
