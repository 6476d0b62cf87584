"""Training logs of Megatron-LM and its relatives to measured rows.

Three kinds of line count: the arguments dump, the line of each logged iteration, and the memory report that the
ranks of the first replica print after the first iterations (in MB, which are MiB).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.errors import InputError, SimulateError
from simulator.evidence.measurements.completed import completed, matched, ran_out, row_of
from simulator.evidence.measurements.log_text import OUT_OF_MEMORY, LogContext, LogLine, Settings, fuller, number, whole
from simulator.evidence.measurements.question import flops_per_token
from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.shapes import LoggedShape
from simulator.evidence.measurements.steady import Step, steady
from simulator.question.frameworks.profiles import MEGATRON
from simulator.question.units import GIB, MIB, TERA

_BEGIN: Final = re.compile(r"-{4,} arguments -{4,}")
_END: Final = re.compile(r"-{4,} end of arguments -{4,}")
# A name as wide as its column has no dots behind it.
_ARGUMENT: Final = re.compile(r"(?:^|\s)([A-Za-z_][A-Za-z0-9_]{0,80}) (?:\.{1,60} ?|(?<=\w{30} ) )(.*)$")
_ITERATION: Final = re.compile(r"\biteration\s{1,12}([0-9]{1,12})\s{0,12}/\s{0,12}([0-9]{1,12})\s{0,4}\|(.*)$")
# Ranks print at the same time: one's report may follow another's, or an iteration, on the same line.
_MEMORY: Final = re.compile(
    r"\[Rank ([0-9]{1,7})\]\s{0,4}\(after ([0-9]{1,9}) iterations\) memory \(MB\)"
    r"(.*?)(?=\[Rank [0-9]|\[[0-9]{4}-|\biteration\s|$)"
)
_DEEPSPEED: Final = re.compile(r"\bMaxMemAllocated=([0-9.]{1,12})GB")
_PADDED: Final = re.compile(
    r"padded vocab \(size: [0-9]{1,9}\) with [0-9]{1,9} dummy tokens \(new size: ([0-9]{1,9})\)"
)
_TIMES: Final = {"elapsed time per iteration (ms)": 1e-3, "elapsed time per iteration (s)": 1.0}
_RATES: Final = (
    "throughput per GPU (TFLOP/s/GPU)",
    "throughput (TFLOP/s/GPU)",
    "throughput per NPU (TFLOP/s/NPU)",
    "TFLOPs",
)
_CONVENTION: Final = 0.03
"""Share by which a logged TFLOP/s figure may differ from this simulator's count and still be the same figure."""

_SWITCHES: Final = {
    "overlap_grad_reduce": "overlap_grad_reduce",
    "overlap_param_gather": "overlap_param_gather",
    "cross_entropy_loss_fusion": "fused_cross_entropy",
}


def is_megatron(text: str) -> bool:
    """Tell whether a line is one of this framework's."""
    return bool(_BEGIN.search(text) or (_ITERATION.search(text) and "elapsed time per iteration" in text))


@dataclass(slots=True)
class _MegatronRun:
    """What one run logged, as far as it is read."""

    begin: LogLine
    arguments: dict[str, tuple[LogLine, str]] = field(default_factory=dict)
    ended: bool = False
    vocabulary: int | None = None
    iterations: list[tuple[LogLine, int, dict[str, str]]] = field(default_factory=list)
    allocated: list[float] = field(default_factory=list)
    reserved: list[float] = field(default_factory=list)
    device: list[float] = field(default_factory=list)
    reported_after: int = 0
    ranks: set[int] = field(default_factory=set)
    by_timer: list[float] = field(default_factory=list)
    """Most allocated bytes that DeepSpeed's timer printed, in MiB."""
    out_of_memory: LogLine | None = None


def read_megatron(lines: Iterable[LogLine], given: LogContext) -> tuple[MeasuredRow, ...]:
    """Return a row for each run of the log that logged iterations or ran out of memory.

    Iterations without arguments, as in an excerpt, are a run whose layout is given. Raises InputError naming the line.
    """
    rows: list[MeasuredRow] = []
    last = None
    for run in _runs(lines):
        last = run.begin
        if run.iterations or run.out_of_memory:
            rows.append(_row(run, given, len(rows) + 1))
    if rows or last is None:
        return tuple(rows)
    raise InputError(
        f"{last.where}: no iteration follows these arguments; expected lines like "
        "'iteration 5/ 10 | elapsed time per iteration (ms): 30272.5 |'"
    )


def _runs(lines: Iterable[LogLine]) -> Iterator[_MegatronRun]:
    """Split a log at its argument dumps, and sort its lines."""
    run: _MegatronRun | None = None
    for line in lines:
        if _BEGIN.search(line.text):
            if run:
                yield run
            run = _MegatronRun(line)
        elif run:
            _take(run, line)
        elif _ITERATION.search(line.text) or _MEMORY.search(line.text):
            run = _MegatronRun(line, ended=True)
            _take(run, line)
    if run:
        if not run.ended and not run.iterations:
            raise InputError(f"{run.begin.where}: arguments without an end; expected '--- end of arguments ---'")
        yield run


def _take(run: _MegatronRun, line: LogLine) -> None:
    """Take a line of a run: an argument while the dump lasts, an event else."""
    if _END.search(line.text):
        run.ended = True
    elif not run.ended and (found := _ARGUMENT.search(line.text)):
        if line.rank == run.begin.rank:
            run.arguments[found[1]] = (line, found[2].strip())
    else:
        _event(run, line)


def _event(run: _MegatronRun, line: LogLine) -> None:
    """Take what a line after the arguments says."""
    if found := _ITERATION.search(line.text):
        run.ended, run.out_of_memory = True, None  # a run that goes on did not run out
        run.iterations.append((line, int(found[1]), _fields(found[3])))
    for report in _MEMORY.finditer(line.text):
        _report(run, line, report)
    if found := _DEEPSPEED.search(line.text):
        run.by_timer.append(number(line.where, "MaxMemAllocated", found[1]) * GIB / MIB)
    elif found := _PADDED.search(line.text):
        run.vocabulary = int(found[1])
    elif OUT_OF_MEMORY.search(line.text):
        run.out_of_memory = fuller(run.out_of_memory, line)


def _report(run: _MegatronRun, line: LogLine, report: re.Match[str]) -> None:
    """Take one rank's memory report."""
    values = _fields(report[3])
    for name, taken in (
        ("max allocated", run.allocated),
        ("max reserved", run.reserved),
        ("total device memory used", run.device),
        ("device usage", run.device),
    ):
        if name in values:
            taken.append(number(line.where, name, values[name]))
    run.ranks.add(int(report[1]))
    run.reported_after = max(run.reported_after, int(report[2]))


def _fields(text: str) -> dict[str, str]:
    """Return the `name: value` parts between bars."""
    pairs = (part.rpartition(":") for part in text.split("|"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _settings(run: _MegatronRun) -> Settings:
    return Settings(run.arguments, blank=frozenset({"", "None"}), true=frozenset({"True"}))


def _first(arguments: Settings, *names: str) -> int | None:
    """Return the first count of at least one."""
    return next((value for name in names if (value := arguments.count(name))), None)


def _dated(arguments: Settings) -> bool:
    """Whether the version had no other layers than its own: kernels and overlaps of later ones do not exist."""
    return bool(arguments.said) and "transformer_impl" not in arguments.said


def _row(run: _MegatronRun, given: LogContext, row: int) -> MeasuredRow:
    arguments = _settings(run)
    where = run.begin.where
    match = matched(where, _shape(arguments, run.vocabulary), given)
    columns = (_layout(arguments, where) if arguments.said else {}) | {
        "model_as_stated": _stated(arguments),
        "model": match.model,
        "num_layers": match.num_layers,
        "framework": "megatron",
        "precision": _precision(arguments, where) if arguments.said else None,
        "global_batch_size": _batch(run, arguments),
    }
    try:
        values = completed(where, columns, given, _switches(arguments))
    except InputError as error:
        raise InputError(f"{error}. {match.note}".rstrip(" .") if not match.model else str(error)) from error
    unseen = "expandable_segments" not in dict(values["options"])
    notes = [match.note, "The log does not show the allocator's setting." * unseen]
    line = run.begin.number
    if run.out_of_memory:
        return row_of(values, given, row, line, notes, **ran_out(run.out_of_memory))
    steps = _steps(run, values["global_batch_size"])
    found = steady(run.iterations[-1][0].where, steps, given.warmup, run.reported_after)
    figures: dict[str, Any] = {
        "outcome": "ok",
        "step_time_ms": round(found.seconds * 1000, 3),
        **found.columns,
        **_memory(run, notes),
    }
    measured = row_of(values, given, row, line, **figures)
    figures["tflops_per_device"] = _same_convention(measured, found.rate, notes)
    return row_of(values, given, row, line, [found.account, *notes], **figures)


def _batch(run: _MegatronRun, arguments: Settings) -> int | None:
    """Return the global batch: as set, of a replica's batch in versions before accumulation, or as iterations say."""
    if batch := arguments.count("global_batch_size"):
        return batch
    if batch := arguments.count("batch_size"):
        return batch * (arguments.count("data_parallel_size") or 1)
    logged = [
        (line, values["global batch size"]) for line, _, values in run.iterations if "global batch size" in values
    ]
    return whole(logged[-1][0].where, "global batch size", logged[-1][1]) if logged else None


def _steps(run: _MegatronRun, batch: int) -> list[Step]:
    """Return the logged iterations at the full batch."""
    steps = []
    last = run.iterations[-1][0]
    for line, iteration, values in run.iterations:
        if (
            "global batch size" in values
            and whole(line.where, "global batch size", values["global batch size"]) != batch
        ):
            continue
        name = next((x for x in _TIMES if x in values), None)
        if name is None:
            if line is last:  # cut where the run or the copy ended
                continue
            raise InputError(
                f"{line.where}: iteration without its time; expected 'elapsed time per iteration (ms): 1.0'"
            )
        rate = next((number(line.where, x, values[x]) for x in _RATES if x in values), None)
        steps.append(
            Step(iteration=iteration, seconds=number(line.where, name, values[name]) * _TIMES[name], rate=rate)
        )
    return steps


def _memory(run: _MegatronRun, notes: list[str]) -> dict[str, float | str]:
    """Return the memory columns: the fullest of the ranks that reported."""
    if not run.allocated:
        if not run.by_timer:
            return {}
        notes.append("Memory is what DeepSpeed's timer printed on one rank, to 0.01 GiB.")
        return {"memory_mib": max(run.by_timer), "memory_kind": "allocated"}
    notes.append(f"Memory is the most of {len(run.ranks)} reporting ranks after {run.reported_after} iterations.")
    if run.device:
        notes.append(f"The device showed {max(run.device):g} MiB.")
    columns: dict[str, float | str] = {"memory_mib": max(run.allocated), "memory_kind": "allocated"}
    if run.reserved:
        columns["memory_reserved_mib"] = max(run.reserved)
    return columns


def _same_convention(row: MeasuredRow, logged: float | None, notes: list[str]) -> float | None:
    """Return the logged TFLOP/s if it counts FLOPs as this simulator does; later versions count causal attention."""
    if logged is None or row.step_seconds is None:
        return None
    try:
        counted = flops_per_token(row) * row.tokens_per_step / row.step_seconds / row.devices / TERA
    except SimulateError as error:
        raise InputError(str(error)) from error
    if abs(logged / counted - 1) <= _CONVENTION:
        return logged
    notes.append(f"The log's {logged:g} TFLOP/s count otherwise than this table ({counted:.1f}) and are left out.")
    return None


def _precision(arguments: Settings, where: str) -> str:
    if arguments.text("fp8", "fp8_format"):
        return "fp8"
    if found := arguments.precision():
        return found
    raise InputError(f"{where}: arguments name neither bf16, fp16 nor fp8")


def _stated(arguments: Settings) -> str:
    """Return the shape in the log's words."""
    names = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
    return " ".join(f"{name}={arguments.text(name)[:20]}" for name in names if arguments.text(name))


def _shape(arguments: Settings, vocabulary: int | None) -> LoggedShape | None:
    heads, layers, hidden = (arguments.count(x) for x in ("num_attention_heads", "num_layers", "hidden_size"))
    if not (heads and layers and hidden):
        return None
    grouped = arguments.flag("group_query_attention")
    experts = arguments.count("num_experts") or 0
    gated = _gated(arguments)
    width = arguments.count("ffn_hidden_size") or (4 * hidden if gated is False else None)
    latent = arguments.flag("multi_latent_attention")
    known = arguments.count("padded_vocab_size") or vocabulary or arguments.count("vocab_size")
    untied = arguments.text("untie_embeddings_and_output_weights")
    positions = arguments.text("position_embedding_type").lower()
    learned = "absolute" in positions or (gated is False and not positions)
    biases = arguments.text("add_bias_linear")
    queries, norm = arguments.text("add_qkv_bias"), arguments.text("normalization")
    plain = True if gated is False else None
    return LoggedShape(
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=(arguments.count("moe_ffn_hidden_size") or width) if experts else width,
        num_attention_heads=heads,
        num_key_value_heads=None if latent else (arguments.count("num_query_groups") if grouped else heads),
        head_dim=None if latent else arguments.count("kv_channels"),
        vocab_size=known,
        vocab_padding=(arguments.count("make_vocab_size_divisible_by") or 128) * _size(arguments, "tensor_model"),
        tie_word_embeddings=untied != "True" if untied else plain,
        num_experts=experts,
        num_experts_per_tok=(arguments.count("moe_router_topk") or None) if experts else None,
        gated=gated,
        activation="gelu" if gated is False else None,
        layer_norm=norm == "LayerNorm" if norm else plain,
        biases=biases == "True" if biases else plain,
        attention_bias=True if queries == "True" and biases == "False" else None,
        learned_positions=(_first(arguments, "max_position_embeddings", "seq_length") or 0) if learned else 0,
        rotary="rope" in positions or "rotary" in positions if positions else (False if gated is False else None),
        embedding_norm=arguments.flag("embed_layernorm"),
    )


def _gated(arguments: Settings) -> bool | None:
    """Tell whether the network is gated; versions that name no gate had none."""
    if arguments.flag("swiglu") or "glu" in arguments.text("glu_activation"):
        return True
    told = arguments.text("swiglu") or arguments.text("bias_gelu_fusion") or arguments.text("openai_gelu")
    return False if told else None


def _size(arguments: Settings, kind: str) -> int:
    if kind == "tensor_model":
        return _first(arguments, "tensor_model_parallel_size", "model_parallel_size") or 1
    return arguments.count(f"{kind}_parallel_size") or 1


def _layout(arguments: Settings, where: str) -> dict[str, Any]:
    """Return the columns that say how the run was cut."""
    tensor, pipeline = _size(arguments, "tensor_model"), _size(arguments, "pipeline_model")
    chunks = arguments.count("virtual_pipeline_model_parallel_size")
    chunks = chunks or arguments.count("num_virtual_stages_per_pipeline_rank")
    per_chunk = None if chunks else arguments.count("num_layers_per_virtual_pipeline_stage")
    experts = arguments.count("num_experts")
    return {
        "devices": arguments.count("world_size") or _devices(arguments, tensor * pipeline),
        "seq_length": arguments.count("seq_length"),
        "micro_batch_size": _first(arguments, "micro_batch_size", "batch_size"),
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "context_parallel": _size(arguments, "context"),
        "expert_parallel": _size(arguments, "expert_model"),
        "expert_tensor_parallel": (arguments.count("expert_tensor_parallel_size") or tensor) if experts else None,
        "virtual_stages": chunks if chunks and chunks > 1 else None,
        "layers_per_virtual_stage": per_chunk,
        "stage_layers": _cut(arguments, where, pipeline),
        "zero_stage": _zero_stage(arguments),
        "sequence_parallel": arguments.flag("sequence_parallel"),
        **_recompute(arguments, where),
        "offload": _offload(arguments),
    }


def _devices(arguments: Settings, split: int) -> int | None:
    replicas = arguments.count("data_parallel_size")
    return replicas * split * _size(arguments, "context") if replicas else None


def _cut(arguments: Settings, where: str, pipeline: int) -> tuple[int, ...]:
    """Return an uneven cut, where the first or the last stage was given its own number of layers."""
    layers = arguments.count("num_layers") or 0
    ends = {
        0: arguments.count("decoder_first_pipeline_num_layers"),
        pipeline - 1: arguments.count("decoder_last_pipeline_num_layers"),
    }
    given = {stage: count for stage, count in ends.items() if count}
    if not given or pipeline > layers:
        return ()
    middle, left = pipeline - len(given), layers - sum(given.values())
    if middle < 1 or left < middle or left % middle:
        raise InputError(f"{where}: {left} layers do not divide evenly over the {middle} stages left by the arguments")
    return tuple(given.get(stage, left // middle) for stage in range(pipeline))


def _zero_stage(arguments: Settings) -> int:
    strategy = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}
    if arguments.flag("use_torch_fsdp2"):
        return 3
    if arguments.flag("use_custom_fsdp") or arguments.flag("use_megatron_fsdp"):
        return strategy.get(arguments.text("data_parallel_sharding_strategy"), 0)
    if arguments.flag("deepspeed"):
        return int(float(number("", "zero_stage", stage))) if (stage := arguments.text("zero_stage").strip("0.")) else 0
    return int(arguments.flag("use_distributed_optimizer"))


def _recompute(arguments: Settings, where: str) -> dict[str, Any]:
    mode = arguments.text("recompute_granularity") or "none"
    method, layers = arguments.text("recompute_method"), arguments.count("recompute_num_layers")
    if mode == "none" and (arguments.flag("checkpoint_activations") or arguments.text("activations_checkpoint_method")):
        # As versions before selective recompute call the same.
        mode, method = "full", arguments.text("activations_checkpoint_method") or "uniform"
        layers = _first(arguments, "activations_checkpoint_num_layers", "checkpoint_num_layers")
    if mode == "selective":
        modules = tuple(re.findall(r"\w+", arguments.text("recompute_modules") or "core_attn"))
        if not set(modules) <= set(MEGATRON.limits.recompute_modules):
            allowed = ", ".join(MEGATRON.limits.recompute_modules)
            raise InputError(f"{where}: recompute_modules {' '.join(modules)[:60]}: allowed are {allowed}")
        return {"recompute": "selective", "recompute_modules": () if modules == ("core_attn",) else modules}
    if mode == "none":
        return {"recompute": "none"}
    if mode != "full" or method not in ("uniform", "block"):
        raise InputError(
            f"{where}: recompute {mode[:20]} {method[:20]}; expected selective, full uniform or full block"
        )
    if layers == 0:
        return {"recompute": "none"}
    return {"recompute": "full", "recompute_method": method, "recompute_layers": layers or 1}


def _offload(arguments: Settings) -> str:
    if arguments.flag("cpu_offloading"):
        return "activations"
    return "optimizer" if arguments.flag("optimizer_cpu_offload") else "none"


def _switches(arguments: Settings) -> dict[str, str]:
    """Return the profile's switches that the dump sets, whatever the stack that its hardware's runs usually have."""
    found = {switch: arguments.flag(name) for name, switch in _SWITCHES.items() if arguments.text(name)}
    if arguments.text("tp_comm_overlap") and _size(arguments, "tensor_model") > 1:
        found["tp_comm_overlap"] = arguments.flag("tp_comm_overlap")
    local = arguments.text("transformer_impl") == "local" or _dated(arguments)
    if local and not arguments.flag("use_flash_attn"):
        found["flash_attention"] = False
    if _dated(arguments):
        absent = ("overlap_grad_reduce", "overlap_param_gather", "tp_comm_overlap")
        found |= {name: False for name in absent if not arguments.text(name)} | {"expandable_segments": False}
    words = {name: str(value).lower() for name, value in found.items()}
    if arguments.flag("grad_reduce_in_bf16"):
        words["gradient_dtype"] = "bf16"
    if "a2a" in arguments.text("cp_comm_type"):
        words["cp_communication"] = "all_to_all"
    return words
