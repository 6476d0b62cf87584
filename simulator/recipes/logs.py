"""Training logs as measured rows, of each framework's own reader (`frameworks.logs`).

A log of Megatron-LM that prints its arguments and 20 steps becomes one row: the columns of its layout, the median of
the steps after warm-up, and the largest memory.
"""

from __future__ import annotations

import dataclasses
import json
import re
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from simulator.answers.cases import Case, case_of_recipe, priceable
from simulator.answers.run import is_answer, saved_case
from simulator.cost.operations.sums import total_parameters
from simulator.errors import InputError, SimulateError, one_line
from simulator.evidence.measurements import question as matching
from simulator.evidence.measurements.question import LoggedFields, Match
from simulator.evidence.measurements.rows import LAYOUT_COLUMNS, WORKLOAD_COLUMNS, MeasuredRow
from simulator.frameworks import logs, registry
from simulator.frameworks.flags import table_of
from simulator.frameworks.logs import LogForm, LoggedConfig, LoggedRun, LoggedStep, LogLine, StepLogForm
from simulator.question.frameworks.stacks import profile_of, stack_for, stacks_of
from simulator.question.origin import Origin
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.question.specs.catalogue import load_hardware, load_model, models_by_sizes
from simulator.question.specs.names import model_names
from simulator.question.units import TERA, to_mib
from simulator.recipes.readers.read import read_recipe
from simulator.records import Record

_CONVENTION: Final = 0.03
"""Share by which a logged TFLOP/s figure may differ from this simulator's count and still be the same figure."""
_SAME_BATCH: Final = 0.05  # share by which a batch that speeds imply may differ from the batch that words give
_UNSEEN: Final = "expandable_segments"  # switch that only the environment sets
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
    return _reader(path)(logs.log_lines(path), context)


def _reader(path: Path) -> Callable[[Iterable[LogLine], LogContext], tuple[MeasuredRow, ...]]:
    """Return the reader of a log by the trainers whose lines it holds, the most detailed form first."""
    known = registry.step_log_forms()
    present: set[str] = set()
    last = 1
    for line in logs.log_lines(path):
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
    runs = enumerate(form.runs(lines, table_of(*form.tables, *registry.tables(name))), start=1)
    return tuple(_row(name, form, logged, context, number) for number, logged in runs)


def _row(name: str, form: LogForm, logged: LoggedRun, context: LogContext, number: int) -> MeasuredRow:
    where = logged.begin.where
    run = Recipe(framework=registry.framework_of(name))
    if logged.arguments is not None:
        run = registry.read_log(name, logged.arguments)
    match, is_moe = _model(where, logged, run, context)
    columns: dict[str, Any] = {"framework": run.framework}
    if logged.arguments is not None:
        columns |= matching.recipe_columns(run, logged.arguments.devices, is_moe=is_moe)
    named = one_line(logged.stated)[:200] or match.model
    columns |= {"model": match.model, "num_layers": match.num_layers, "model_as_stated": named}
    if columns.get("global_batch_size") is None:
        columns["global_batch_size"] = logged.global_batch_size
    try:
        values = completed(where, columns, context, _options(run, context.hardware) if logged.arguments else {})
    except InputError as error:
        raise InputError(f"{error}. {match.note}".rstrip(" .") if not match.model else str(error)) from error
    unseen = _UNSEEN not in dict(values["options"]) and not profile_of(run.framework).growing_pool
    unread = (remark for remark in run.remarks if remark.severity == "error" or remark.rule in _BOUNDS)
    said = [f"{remark.message}{f' (line {remark.place.line})' if remark.place else ''}." for remark in unread]
    notes = [match.note, *said, "The log does not show the allocator's setting." * unseen, *logged.notes]
    if any(remark.severity == "error" for remark in run.remarks) or columns.get("recompute_method") == "list":
        values.setdefault("status", "unpriced")
    line = logged.begin.number
    if logged.out_of_memory is not None:
        return row_of(values, context, number, line, notes, **ran_out(logged.out_of_memory))
    batch = values["global_batch_size"]
    steps = [step for step in logged.steps if step.batch in (None, batch)]
    speed = steady(logged.last.where, steps, context.warmup, logged.reported_after)
    figures = {"outcome": "ok", "step_time_ms": round(speed.seconds * 1000, 3), **speed.columns, **_memory(logged)}
    notes = [speed.account, *notes]
    if (samples := logged.samples_per_step) is not None and abs(samples / batch - 1) > _SAME_BATCH:
        implied = f"The log's samples per second imply {samples:.0f} sequences a step"
        notes.append(f"{implied} where its configuration gives {batch}.")
    if form.rate == "tokens":
        figures["tokens_per_second_per_device"] = speed.rate
    elif speed.rate is not None:
        measured = row_of(values, context, number, line, **figures)
        figures["tflops_per_device"] = _same_convention(measured, speed.rate, notes)
    return row_of(values, context, number, line, notes, **figures)


def _model(where: str, logged: LoggedRun, run: Recipe, context: LogContext) -> tuple[Match, bool]:
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


_PADDED: Final = 128  # vocabularies are padded to a multiple of this, times tensor parallel, in rows


def _options(run: Recipe, hardware: str) -> dict[str, str]:
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


def _memory(logged: LoggedRun) -> dict[str, Any]:
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
        counted = matching.flops_per_token(row) * row.tokens_per_step / row.step_seconds / row.devices / TERA
    except SimulateError as error:
        raise InputError(str(error)) from error
    if abs(logged / counted - 1) <= _CONVENTION:
        return logged
    notes.append(f"The log's {logged:g} TFLOP/s count otherwise than this table ({counted:.1f}) and are left out.")
    return None


NEEDED: Final = ("model", "devices", "seq_length", "micro_batch_size", "global_batch_size")
"""Columns that every question needs."""
DEGREES: Final = ("tensor_parallel", "pipeline_parallel", "zero_stage", "recompute")
"""Columns that a log without its run's configuration leaves open, and whose blank cells mean none."""


class LogContext(Record, kw_only=True):
    """Facts of a run that its log does not state."""

    table: str
    """Name of the table its rows form."""
    hardware: str
    """Name or path of the hardware spec."""
    model: str | None = None
    """Name or path of the model spec; None to find a shipped one by its shape."""
    options: dict[str, str] = field(default_factory=dict)
    """Profile switches that the log does not show."""
    warmup: int = 2
    """Logged steps to leave out at the start, a count."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns of a row that are known beside the log: of a recipe, of an estimate, or the user's own."""
    fixed: frozenset[str] = frozenset()
    """Names of `columns` that replace what the log says."""


def completed(
    where: str, columns: Mapping[str, Any], context: LogContext, switches: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the non-blank columns of a log's run, completed or replaced by those of `context`.

    `switches` are those of the framework's profile that the log shows. Raises InputError listing all that are missing.
    """
    logged = {name: value for name, value in columns.items() if value is not None}
    own = {name: value for name, value in context.columns.items() if name not in logged or name in context.fixed}
    values = logged | own | {"hardware_as_stated": context.hardware, "hardware": context.hardware}
    missing = [name for name in NEEDED if not values.get(name)]
    if missing:
        raise InputError(option_for(where, missing, configured="tensor_parallel" in values))
    options = {**switches, **dict(values.get("options", ())), **context.options}
    return values | {"options": tuple(options.items())}


def option_for(where: str, missing: list[str], *, configured: bool) -> str:
    """Return one sentence that asks for everything missing."""
    names = ", ".join(missing)
    open_too = "" if configured else f" (and {', '.join(DEGREES)}, where they are not 1 and none)"
    return (
        f"{where}: the log does not say {names}{open_too}; give each with --set NAME=VALUE, or the run's recipe with "
        "--recipe FILE"
    )


def matched(where: str, shape: LoggedFields | None, context: LogContext, *, vocab_padding: int = 0) -> Match:
    """Return the model of a run: by its logged shape, else the caller's; blank without either."""
    name = context.model or context.columns.get("model")
    if shape is None:
        return Match(str(name or ""), None, "The log shows no shape; the model is the caller's." if name else "")
    return matching.match_shape(where, shape, None if name is None else str(name), vocab_padding=vocab_padding)


def ran_out(line: LogLine) -> dict[str, Any]:
    """Return the columns of a run that ran out of memory, from the line that says so."""
    return {"outcome": "oom", "error": one_line(line.text)[:300]}


def row_of(
    values: Mapping[str, Any], context: LogContext, row: int, line: int, notes: Iterable[str] = (), /, **figures: Any
) -> MeasuredRow:
    """Return a row of completed columns and measured figures, with notes on both."""
    named: dict[str, Any] = {
        "table": context.table,
        "row": row,
        "source": f"log {context.table}",
        "source_ref": f"line {line}",
    }
    return MeasuredRow(**(named | dict(values) | figures | {"evidence": " ".join(filter(None, notes))}))


class Steady(Record, kw_only=True):
    """Steps after warm-up."""

    steps: tuple[LoggedStep, ...]
    dropped: int
    """Logged intervals left out at the start, a count."""
    until: int
    """Last iteration dropped because a memory report follows it; 0 without a report."""

    @property
    def seconds(self) -> float:
        """Median time per iteration, in seconds."""
        return statistics.median(step.seconds for step in self.steps)

    @property
    def rate(self) -> float | None:
        """Median of the logged speed; None when a step has none."""
        rates = [step.rate for step in self.steps if step.rate is not None]
        return statistics.median(rates) if len(rates) == len(self.steps) else None

    @property
    def columns(self) -> dict[str, int | float]:
        """Columns of the steps' spread, rounded to a microsecond; empty for a single step."""
        times = [step.seconds for step in self.steps]
        if len(times) == 1:
            return {}
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return {
            "step_samples": len(times),
            "step_min_s": round(min(times), 6),
            "step_max_s": round(max(times), 6),
            "step_iqr_s": round(high - low, 6),
        }

    @property
    def account(self) -> str:
        """Sentence on the steps that count, and why the others do not."""
        first, last = self.steps[0].iteration, self.steps[-1].iteration
        counted = f"Median of {len(self.steps)} logged steps, iterations {first} to {last}"
        if not self.dropped:
            return f"{counted}; none dropped."
        reason = f"start-up up to the memory report after iteration {self.until}" if self.until else "start-up"
        return f"{counted}; the first {self.dropped} dropped as warm-up ({reason})."


def steady(where: str, steps: Sequence[LoggedStep], warmup: int, until: int = 0) -> Steady:
    """Return the steps without the first `warmup` logged ones and all up to iteration `until`.

    A step that several ranks logged counts once, by the slowest. Raises InputError when nothing is left.
    """
    slowest: dict[int, LoggedStep] = {}
    for step in steps:
        known = slowest.get(step.iteration)
        if known is None or step.seconds > known.seconds:
            slowest[step.iteration] = step
    ordered = [slowest[iteration] for iteration in sorted(slowest)]
    counted = [step for at, step in enumerate(ordered) if at >= warmup and step.iteration > until]
    if not counted:
        raise InputError(
            f"{where}: {len(ordered)} logged steps, all within warm-up (the first {warmup}, and those up to iteration "
            f"{until}); run longer or give a smaller warm-up"
        )
    return Steady(steps=tuple(counted), dropped=len(ordered) - len(counted), until=until)


@dataclass(slots=True)
class _LoggedRun:
    begin: LogLine
    facts: dict[str, str] = field(default_factory=dict)
    steps: list[tuple[LogLine, dict[str, str]]] = field(default_factory=list)
    config: LoggedConfig = field(default_factory=LoggedConfig)
    out_of_memory: LogLine | None = None


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
        elif logs.OUT_OF_MEMORY.search(line.text):
            run.out_of_memory = logs.longer_line(run.out_of_memory, line)
        for fact in form.facts:
            if match := fact.search(line.text):
                run.facts |= _named(match)
    if run is None:
        return ()
    return (_steps_row(run, context, form),)


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


def _steps_row(run: _LoggedRun, context: LogContext, form: StepLogForm) -> MeasuredRow:
    where = run.begin.where
    columns = form.columns(where, run.facts)
    if "parameters" in run.facts:
        parameters = int(run.facts["parameters"].replace(",", ""))
        family = run.facts.get("family", "")
        same = [spec.name for spec in models_by_sizes() if total_parameters(spec) == parameters]
        columns["model"] = next((name for name in same if name.startswith(family.lower())), None)
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
    steps = list(_steps(run, values["seq_length"] * values["global_batch_size"] / values["devices"]))
    if not steps:
        raise InputError(f"{where}: no step with its time follows; expected lines as {form.name} writes them")
    alone = len(steps) == 1 and "runtime" in run.facts
    settled = steady(run.steps[-1][0].where if run.steps else where, steps, 0 if alone else context.warmup)
    reserved = [logs.number(line.where, "memory", step["reserved"]) for line, step in run.steps if "reserved" in step]
    memory: dict[str, Any] = {"memory_gib": max(reserved), "memory_kind": "reserved"} if reserved else {}
    speed: dict[str, Any] = {"step_time_s": round(settled.seconds, 6)}
    if settled.rate is not None:
        speed = {"tokens_per_second_per_device": settled.rate}
    spread = settled.columns if settled.rate is None else {}
    return row_of(values, context, 1, line, [settled.account, *notes], outcome="ok", **speed, **spread, **memory)


def _steps(run: _LoggedRun, tokens: float) -> Iterable[LoggedStep]:
    """Yield the logged steps; of a trainer that shows none, its mean over the run, start-up included."""
    total = run.facts.get("total", "").replace(",", "")
    for line, step in run.steps:
        if total and step.get("total", total) != total:
            continue  # a progress bar of something else, such as evaluation
        at = logs.parse_count(line.where, "step", step["at"])
        if "tokens" in step:
            rate = logs.number(line.where, "tokens per second", step["tokens"].replace(",", ""))
            yield LoggedStep(iteration=at, seconds=tokens / rate, rate=rate)
        elif "rate" in step:
            yield LoggedStep(iteration=at, seconds=1.0 / logs.number(line.where, "steps per second", step["rate"]))
        else:
            yield LoggedStep(iteration=at, seconds=logs.number(line.where, "seconds per step", step["seconds"]))
    if not run.steps and "rate" in run.facts and "runtime" in run.facts:
        where = run.begin.where
        rate = logs.number(where, "train_steps_per_second", run.facts["rate"])
        steps = logs.parse_count(where, "steps", total) if total else 0
        runtime = logs.number(where, "train_runtime", run.facts["runtime"])
        yield LoggedStep(iteration=1, seconds=runtime / steps if steps else 1.0 / rate)


_LOGS: Final = frozenset({".log", ".out", ".err", ".txt"})
_NAMES: Final = frozenset({"table", "row", "source", "source_ref"})
"""Columns that identify a row and are never taken from a file."""


def stand_in(files: Sequence[Path], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns that files state of one run, without those in `known`; a log overrides recipes and estimates.

    Raises InputError for a file that states none, and lists what a log lacks.
    """
    columns: dict[str, Any] = {}
    for file in files:
        if file.suffix.lower() not in _LOGS:
            columns = _asked(file, dict(columns) | dict(known)) | columns
    for file in files:
        if file.suffix.lower() in _LOGS:
            columns |= _logged(file, columns | dict(known), frozenset(known))
    return {name: value for name, value in columns.items() if name not in known}


def _logged(file: Path, columns: Mapping[str, Any], fixed: frozenset[str]) -> dict[str, Any]:
    """Return the columns that a log states of its run."""
    hardware = columns.get("hardware")
    if not hardware:
        raise InputError(f"{file}: logs do not say the hardware; give it in column hardware")
    rows = read_log(file, hardware=str(hardware), columns=columns, fixed=fixed)
    if len(rows) != 1:
        raise InputError(f"{file}: holds {len(rows)} runs; --from-log reads them as rows of their own")
    blank = {field.name: field.default for field in dataclasses.fields(MeasuredRow)}
    values = ((name, getattr(rows[0], name)) for name in blank if name not in _NAMES)
    return {name: value for name, value in values if value != blank[name]}


def _asked(file: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of a recipe's or a saved estimate's question, with its hardware if stated."""
    case, hardware = _case(file, known)
    scenario = case.scenario
    name = _model_name(case, str(known.get("model") or case.question.stated("model") or ""))
    layers = None
    if not name.startswith("{") and scenario.model.num_hidden_layers != load_model(name).num_hidden_layers:
        layers = scenario.model.num_hidden_layers
    columns = matching.case_columns(scenario, case.layout, model=name, options=case.question.options, num_layers=layers)
    if hardware:
        columns["hardware"] = hardware
    return {key: value for key, value in columns.items() if value not in (None, ())}


def _case(file: Path, known: Mapping[str, Any]) -> tuple[Case, str]:
    """Return the case of a file, and the hardware that the file names, else empty."""
    names = ("model", "hardware", "devices", *WORKLOAD_COLUMNS, "num_layers", "framework", *LAYOUT_COLUMNS)
    cells = {name: known[name] for name in names if known.get(name)} | {"options": dict(known.get("options") or ())}
    options = question_of(cells, origin=lambda name: Origin("argument", f"column {name}"))  # which overrides the file
    if file.suffix.lower() == ".json" and is_answer(str(file)):
        case = saved_case(str(file), None, 1, options)
        return case, case.scenario.hardware_name
    recipes = read_recipe(file)
    if len(recipes) != 1:
        raise InputError(f"{file}: holds {len(recipes)} launches; a row is of one")
    if "hardware" not in options.inputs:
        raise InputError(f"{file}: recipes do not say the hardware; give it in column hardware or with --hardware")
    return priceable(case_of_recipe(recipes[0], options)), ""


def _model_name(case: Case, name: str) -> str:
    """Return a name that identifies the question's model: a shipped name, a path, or the spec itself."""
    model = case.scenario.model
    for candidate in dict.fromkeys((name, model.name)):
        if candidate and (candidate in model_names() or Path(candidate).exists()):
            spec = load_model(candidate)
            if spec.with_layers(model.num_hidden_layers) == model or spec == model:
                return candidate
    return matching.spec_text(model)
