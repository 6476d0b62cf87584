"""Training logs of any framework to measured rows. Each framework's own reader reads its words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from simulator.errors import InputError, SimulateError, one_line
from simulator.evidence.measurements.asked import run_columns
from simulator.evidence.measurements.completed import LogContext, completed, matched, ran_out, row_of
from simulator.evidence.measurements.question import flops_per_token
from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.shapes import Match
from simulator.evidence.measurements.steady import steady
from simulator.evidence.measurements.step_logs import read_steps
from simulator.frameworks import registry
from simulator.frameworks.logs import LogForm, LoggedRun, LogLine, log_lines
from simulator.frameworks.run import AskedRun
from simulator.question.frameworks.profiles import profile_of
from simulator.question.frameworks.stacks import stack_for, stacks_of
from simulator.question.specs.catalogue import load_hardware
from simulator.question.units import TERA, to_mib

_CONVENTION: Final = 0.03
"""Share by which a logged TFLOP/s figure may differ from this simulator's count and still be the same figure."""
_SAME_BATCH: Final = 0.05
"""Share by which a batch that speeds imply may differ from the batch that words give."""
_UNSEEN: Final = "expandable_segments"
"""Switch that only the environment sets."""
_BOUNDS: Final = ("not-modelled", "upper-bound", "activations-bound", "device-bound")
"""Rules of warnings on settings that are priced otherwise than they ran."""


def read_log(  # noqa: PLR0913  what may be known beside a log
    path: Path,
    *,
    hardware: str,
    model: str | None = None,
    options: Mapping[str, str] | None = None,
    warmup: int = 2,
    columns: Mapping[str, Any] | None = None,
    fixed: Collection[str] = (),
) -> tuple[MeasuredRow, ...]:
    """Return the runs of a log as rows; `table` is the file's name without ending.

    `hardware` is a spec's name or path; logs do not say it. `model` is needed only when neither a shipped spec nor the
    log gives the shape whole. `options` adds profile switches that a log does not show. `warmup` is the number of
    logged steps to leave out at the start. `columns` are columns of a row that are known beside the log; those named
    in `fixed` hold whatever it says. Raises InputError naming the line for a log that cannot be read, or listing
    everything that is still missing.
    """
    if warmup < 0:
        raise InputError(f"warm-up {warmup}: must not be negative")
    context = LogContext(
        table=path.stem,
        hardware=hardware,
        model=model,
        options=dict(options or {}),
        warmup=warmup,
        columns=dict(columns or {}),
        fixed=frozenset(fixed),
    )
    return _reader(path)(log_lines(path), context)


def _reader(path: Path) -> Callable[[Iterable[LogLine], LogContext], tuple[MeasuredRow, ...]]:
    """Return the reader of a log by the trainers whose lines it holds, the most detailed form first."""
    known = registry.step_log_forms()
    present: set[str] = set()
    last = 1
    for line in log_lines(path):
        last = line.number
        for name, form in registry.log_forms().items():
            if form.is_own(line.text):
                return partial(_rows, name, form)
        present |= {form.name for form in known if form.name not in present and form.begins.search(line.text)}
    own = next((form for form in known if form.name in present), None)
    if own is None:
        raise InputError(
            f"{path}:{last}: no training log up to here; expected '--- arguments ---' or iterations (Megatron-LM), "
            "'Training Configuration Arguments' (PaddleNLP, PaddleFormers), or lines as "
            f"{', '.join(form.name for form in known)} write them"
        )
    return partial(read_steps, form=own)


def _rows(name: str, form: LogForm, lines: Iterable[LogLine], context: LogContext) -> tuple[MeasuredRow, ...]:
    """Return a row for each run of a log of this form."""
    runs = enumerate(form.runs(lines, registry.log_table(name)), start=1)
    return tuple(_row(name, form, logged, context, number) for number, logged in runs)


def _row(name: str, form: LogForm, logged: LoggedRun, context: LogContext, number: int) -> MeasuredRow:
    where = logged.begin.where
    run = AskedRun(framework=registry.framework_of(name))
    if logged.arguments is not None:
        run = registry.read_log(name, logged.arguments)
    match, is_moe = _model(where, logged, run, context)
    columns: dict[str, Any] = {"framework": run.framework}
    if logged.arguments is not None:
        columns |= run_columns(run, logged.arguments.devices, is_moe=is_moe)
    named = one_line(logged.stated)[:200] or match.model
    columns |= {"model": match.model, "num_layers": match.num_layers, "model_as_stated": named}
    if columns.get("global_batch_size") is None:
        columns["global_batch_size"] = logged.global_batch_size
    try:
        values = completed(where, columns, context, _options(run, context.hardware) if logged.arguments else {})
    except InputError as error:
        raise InputError(f"{error}. {match.note}".rstrip(" .") if not match.model else str(error)) from error
    unseen = _UNSEEN not in dict(values["options"]) and not profile_of(run.framework).growing_pool
    notes = [match.note, *_notes(run), "The log does not show the allocator's setting." * unseen, *logged.notes]
    if any(remark.severity == "error" for remark in run.remarks) or columns.get("recompute_method") == "list":
        values.setdefault("status", "unpriced")
    line = logged.begin.number
    if logged.out_of_memory is not None:
        return row_of(values, context, number, line, notes, **ran_out(logged.out_of_memory))
    batch = values["global_batch_size"]
    steps = [step for step in logged.steps if step.batch in (None, batch)]
    speed = steady(logged.last.where, steps, context.warmup, logged.reported_after)
    figures = {"outcome": "ok", "step_time_ms": round(speed.seconds * 1000, 3), **speed.columns, **_memory(logged)}
    notes = [speed.account, *notes, _batch_note(logged.samples_per_step, batch)]
    if form.rate == "tokens":
        figures["tokens_per_second_per_device"] = speed.rate
    elif speed.rate is not None:
        measured = row_of(values, context, number, line, **figures)
        figures["tflops_per_device"] = _same_convention(measured, speed.rate, notes)
    return row_of(values, context, number, line, notes, **figures)


def _model(where: str, logged: LoggedRun, run: AskedRun, context: LogContext) -> tuple[Match, bool]:
    """Return the model of a run, by its shape, else by its name, and whether the log shows experts."""
    stated = {"num_hidden_layers", "hidden_size", "num_attention_heads"} <= run.shape.keys()
    shape = logged.shape or ({"num_experts": 0, **run.shape} if stated else None)
    padding = run.layout.tensor_parallel * _PADDED if run.layout is not None else 0
    match = matched(where, shape, context, vocab_padding=padding)
    if not match.model and shape is None and run.model is not None:
        layers: Any = run.model_fields.get("num_hidden_layers")
        match = Match(run.model, layers, "The model is known by its name only.")
    elif not match.model and not match.note:
        match = Match("", None, next((x.message for x in run.remarks if x.rule == "unknown-model"), ""))
    return match, bool(shape and shape.get("num_experts"))


def _batch_note(samples: float | None, batch: int) -> str:
    """Return a warning where the log's speeds imply another batch than its configuration; else an empty text."""
    if samples is None or abs(samples / batch - 1) <= _SAME_BATCH:
        return ""
    return f"The log's samples per second imply {samples:.0f} sequences a step where its configuration gives {batch}."


_PADDED: Final = 128
"""Vocabularies are padded to a multiple of this, times tensor parallel, in rows."""


def _options(run: AskedRun, hardware: str) -> dict[str, str]:
    """Return the switches of a run, without those that have no effect on its layout.

    A log states all but the allocator's setting: switches that its hardware's usual runs set, and the log does not
    name, have the framework's defaults.
    """
    stack = stack_for(run.framework, run.stack, load_hardware(hardware).stack)
    usual = next((own.switches for own in stacks_of(run.framework) if own.name == stack), {})
    defaults = profile_of(run.framework)
    plain = {name: str(getattr(defaults, name)).lower() for name in usual if name not in (_UNSEEN, *run.options)}
    options = plain if run.stack is None else {}
    options |= run.options
    if run.layout is not None and run.layout.tensor_parallel == 1:
        options.pop("tp_comm_overlap", None)
    return options


def _notes(run: AskedRun) -> Iterator[str]:
    """Yield sentences on the run's words that are not read, or priced otherwise, as for a script."""
    for remark in run.remarks:
        if remark.severity == "error" or remark.rule in _BOUNDS:
            line = f" (line {remark.place.line})" if remark.place else ""
            yield f"{remark.message}{line}."


def _memory(logged: LoggedRun) -> dict[str, Any]:
    """Return the columns of the memory."""
    memory = logged.memory
    if memory.allocated_bytes is None:
        return {}
    columns: dict[str, Any] = {"memory_mib": to_mib(memory.allocated_bytes), "memory_kind": "allocated"}
    if memory.reserved_bytes is not None:
        columns["memory_reserved_mib"] = to_mib(memory.reserved_bytes)
    return columns


def _same_convention(row: MeasuredRow, logged: float, notes: list[str]) -> float | None:
    """Return the logged TFLOP/s if it counts FLOPs as this simulator does; later versions count causal attention."""
    if row.step_seconds is None:
        return None
    try:
        counted = flops_per_token(row) * row.tokens_per_step / row.step_seconds / row.devices / TERA
    except SimulateError as error:
        raise InputError(str(error)) from error
    if abs(logged / counted - 1) <= _CONVENTION:
        return logged
    notes.append(f"The log's {logged:g} TFLOP/s count otherwise than this table ({counted:.1f}) and are left out.")
    return None
