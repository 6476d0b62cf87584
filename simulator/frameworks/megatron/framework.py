"""Registration of Megatron-LM, recognition of its launches and logs, and the reader of its logs.

Three kinds of line of a log are read: the dump of all arguments, the line of each logged iteration, and the memory
report that the ranks of the first replica print after the first iterations (in MB, which are MiB). The dump names every
argument by its variable, after validation: `megatron_dump.csv` has the names that no flag has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from simulator.errors import InputError, UnsupportedError
from simulator.frameworks import logs
from simulator.frameworks.arguments import OFF, Arguments, LaunchCommand
from simulator.frameworks.flags import FlagTable
from simulator.frameworks.framework import Extension, Framework, LaunchForm, RecipeWriter
from simulator.frameworks.megatron.read import read, with_core
from simulator.frameworks.megatron.write import megatron_script, megatron_words
from simulator.frameworks.purpose import encoder_task
from simulator.frameworks.values import PlainValue, known_value
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.units import GIB, MIB

_BEGIN: Final = re.compile("---- arguments ----")
_END: Final = re.compile("---- end of arguments ----")
# A name as wide as its column is followed by no dots.
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
    *("throughput per GPU (TFLOP/s/GPU)", "throughput (TFLOP/s/GPU)", "throughput per NPU (TFLOP/s/NPU)", "TFLOPs"),
)
_BATCH: Final = "global batch size"
_SHAPE: Final = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
"""Arguments of a shape that a measured row repeats."""
_CLASS: Final = re.compile(r"(?:torch|[A-Z]\w{1,40})\.(?=[a-z])")
"""Prefix of the name of a type or an enumeration's member: `torch.`, `AttnBackend.`."""
_INTERLEAVED: Final = (
    *("virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage"),
    "num_virtual_stages_per_pipeline_rank",
)  # arguments of which an interleaved pipeline sets one
_TYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}


def is_log(text: str) -> bool:
    """Whether a line is one of this framework's."""
    return bool(_BEGIN.search(text) or (_ITERATION.search(text) and "elapsed time per iteration" in text))


@dataclass(slots=True)
class _RunLines:
    """The lines of one run, sorted by kind."""

    begin: logs.LogLine
    dump: dict[str, tuple[logs.LogLine, str]] = field(default_factory=dict)
    ended: bool = False
    """Whether the dump is complete."""
    vocabulary: tuple[logs.LogLine, str] | None = None
    iterations: list[tuple[logs.LogLine, int, dict[str, str]]] = field(default_factory=list)
    reports: list[tuple[logs.LogLine, re.Match[str]]] = field(default_factory=list)
    timer_gib: list[float] = field(default_factory=list)
    """Peak allocated memory by DeepSpeed's timer."""
    out_of_memory: logs.LogLine | None = None

    def take(self, line: logs.LogLine) -> None:
        """Take a line: an argument during the dump, else an event."""
        if _END.search(line.text):
            self.ended = True
        elif not self.ended and (match := _ARGUMENT.search(line.text)):
            if line.rank == self.begin.rank:
                self.dump[match[1]] = (line, match[2].strip())
        else:
            self._take_event(line)

    def _take_event(self, line: logs.LogLine) -> None:
        if match := _ITERATION.search(line.text):
            self.ended, self.out_of_memory = True, None  # the run continued
            self.iterations.append((line, int(match[1]), _fields(match[3])))
        self.reports += ((line, report) for report in _MEMORY.finditer(line.text))
        if match := _DEEPSPEED.search(line.text):
            self.timer_gib.append(logs.number(line.where, "MaxMemAllocated", match[1]))
        elif match := _PADDED.search(line.text):
            self.vocabulary = line, match[1]
        elif logs.OUT_OF_MEMORY.search(line.text):
            self.out_of_memory = logs.longer_line(self.out_of_memory, line)


def runs_of(lines: Iterable[logs.LogLine], table: FlagTable) -> Iterator[logs.LoggedRun]:
    """Yield every run that logged iterations or ran out of memory; an excerpt has no words. Raises InputError."""
    any_run = False
    last: logs.LogLine | None = None
    for run in _split(lines):
        last = run.begin
        if run.iterations or run.out_of_memory:
            any_run = True
            yield _logged(run, table)
    if last is not None and not any_run:
        raise InputError(
            f"{last.where}: no iteration follows these arguments; expected lines like "
            "'iteration 5/ 10 | elapsed time per iteration (ms): 30272.5 |'"
        )


def _split(lines: Iterable[logs.LogLine]) -> Iterator[_RunLines]:
    """Yield the runs of a log, split at their dumps."""
    run: _RunLines | None = None
    for line in lines:
        if _BEGIN.search(line.text):
            if run:
                yield run
            run = _RunLines(line)
        elif run:
            run.take(line)
        elif _ITERATION.search(line.text) or _MEMORY.search(line.text):
            run = _RunLines(line, ended=True)
            run.take(line)
    if run:
        if not run.ended and not run.iterations:
            raise InputError(f"{run.begin.where}: arguments without an end; expected '--- end of arguments ---'")
        yield run


def _fields(text: str) -> dict[str, str]:
    """Return the `name: value` parts between bars."""
    pairs = (part.rpartition(":") for part in text.split("|"))
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _logged(run: _RunLines, table: FlagTable) -> logs.LoggedRun:
    arguments = _arguments(run, table) if run.dump else None
    memory, notes = _memory(run)
    seen = sorted({int(report[2]) for _, report in run.reports})
    return logs.LoggedRun(
        begin=run.begin,
        last=run.iterations[-1][0] if run.iterations else run.begin,
        arguments=arguments,
        steps=tuple(_steps(run)),
        memory=memory,
        reported_after=seen[-1] if seen else 0,
        global_batch_size=_batch(run),
        stated=" ".join(f"{name}={run.dump[name][1][:20]}" for name in _SHAPE if name in run.dump),
        notes=tuple(notes),
        out_of_memory=run.out_of_memory,
    )


def _steps(run: _RunLines) -> Iterator[logs.LoggedStep]:
    last = run.iterations[-1][0] if run.iterations else None
    for line, iteration, values in run.iterations:
        name = next((name for name in _TIMES if name in values), None)
        if name is None:
            if line is last:  # the log may end within a line
                continue
            raise InputError(
                f"{line.where}: iteration without its time; expected 'elapsed time per iteration (ms): 1.0'"
            )
        yield logs.LoggedStep(
            iteration=iteration,
            seconds=logs.number(line.where, name, values[name]) * _TIMES[name],
            rate=next((logs.number(line.where, rate, values[rate]) for rate in _RATES if rate in values), None),
            batch=logs.parse_count(line.where, _BATCH, values[_BATCH]) if _BATCH in values else None,
        )


def _memory(run: _RunLines) -> tuple[logs.LoggedMemory, list[str]]:
    """Return the highest figures of the ranks that reported, and sentences on them."""
    most: dict[str, float] = {}
    for line, report in run.reports:
        for name, text in _fields(report[3]).items():
            if name in ("max allocated", "max reserved", "total device memory used", "device usage"):
                most[name] = max(most.get(name, 0.0), logs.number(line.where, name, text))
    if "max allocated" not in most:
        if not run.timer_gib:
            return logs.LoggedMemory(), []
        message = "Memory is what DeepSpeed's timer printed on one rank, to 0.01 GiB."
        return logs.LoggedMemory(allocated_bytes=max(run.timer_gib) * GIB), [message]
    ranks = len({report[1] for _, report in run.reports})
    after = max(int(report[2]) for _, report in run.reports)
    notes = [f"Memory is the most of {ranks} reporting ranks after {after} iterations."]
    shown = [most[name] for name in ("total device memory used", "device usage") if name in most]
    notes += [f"The device showed {max(shown):g} MiB."] if shown else []
    reserved = most["max reserved"] * MIB if "max reserved" in most else None
    return logs.LoggedMemory(allocated_bytes=most["max allocated"] * MIB, reserved_bytes=reserved), notes


def _batch(run: _RunLines) -> int | None:
    """Return the global batch where no argument states it: as iterations do, or from a replica's batch."""

    def count(name: str) -> int:
        line, text = run.dump.get(name, (run.begin, "0"))
        return logs.parse_count(line.where, name, text) if text not in ("", "None") else 0

    if batch := count("batch_size"):
        return batch * (count("data_parallel_size") or 1)
    batches = [(line, values[_BATCH]) for line, _, values in run.iterations if _BATCH in values]
    return logs.parse_count(batches[-1][0].where, _BATCH, batches[-1][1]) if batches else None


def _arguments(run: _RunLines, table: FlagTable) -> Arguments:
    """Return the dump as arguments. Raises InputError where it states no precision."""
    arguments = Arguments(run.begin.where.rpartition(":")[0], table)
    dump = dict(run.dump)
    half = [dump[name][1] for name in ("bf16", "fp16") if name in dump]
    if len(half) < 2 and "True" not in half:
        raise InputError(f"{run.begin.where}: arguments name neither bf16, fp16 nor fp8")
    if run.vocabulary is not None:
        dump.setdefault("padded_vocab_size", run.vocabulary)
    _as_asked(dump, run.begin)
    for name, (line, text) in dump.items():
        off = text.lower() in (*OFF, "[]", "0.0")
        opposite = f"no_{name}"
        if name not in table and opposite in table and off:
            arguments.add(opposite, (), line.number)
        elif name in table or not (off or opposite in table):
            arguments.add_key(name, _values(table, name, line, text), line.number)
    _note_devices(run, arguments)
    return arguments


def _values(table: FlagTable, name: str, line: logs.LogLine, text: str) -> list[PlainValue]:
    """Return a printed value as a flag would have it: bare names of types and members, lists word by word."""
    listed = name in table and table[name].kind == "list"
    words = re.findall(r"[^\s,\[\]'\"]+", text) if listed else [text.strip("'\"")]
    plain = (_CLASS.sub("", word) for word in words)
    return [known_value(_TYPES.get(word, word), line.number) for word in plain]


def _as_asked(dump: dict[str, tuple[logs.LogLine, str]], begin: logs.LogLine) -> None:
    """Undo changes that validation makes to arguments and no flag asked for."""
    if "transformer_impl" not in dump:
        # Versions before TransformerEngine have only their own layers and the allocator of older PyTorch.
        dump |= {"transformer_impl": (begin, "local"), "expandable_segments": (begin, "false")}
    if all(dump.get(name, (begin, "None"))[1] == "None" for name in _INTERLEAVED):
        # "non-interleaved schedule does not support overlapping p2p communication": arguments.py of core_v0.12.0.
        dump.pop("overlap_p2p_comm", None)
    if dump.get("fp8", dump.get("fp8_format", (begin, "None")))[1] == "None":
        # A scaling recipe is printed even without fp8.
        dump.pop("fp8_recipe", None)


def _note_devices(run: _RunLines, arguments: Arguments) -> None:
    """Set the devices of the run: its world size, or replicas times the ranks of one."""
    for name, factors in (("world_size", ()), ("data_parallel_size", _REPLICA)):
        line, text = run.dump.get(name, (run.begin, "None"))
        if text != "None" and arguments.devices is None:
            arguments.devices = logs.parse_count(line.where, name, text)
            for factor in factors:
                arguments.devices *= arguments.integer("devices", factor) or 1
            arguments.places["devices"] = Place(arguments.file, line.number)


_REPLICA: Final = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")


def read_dump(arguments: Arguments) -> Recipe:
    """Return the run that a dump describes."""
    return read(arguments, None, own=True)


_NO_DECODER: Final = re.compile(r"bert|t5|retro|vision|vlm|multimodal|mimo|biencoder|ict\b")
"""Parts of the names of Megatron's scripts that train more than a decoder."""
_MARKS: Final = ("--tensor-model-parallel-size", "--num-layers", "--micro-batch-size")
"""Flags of which every run of Megatron has at least one."""


def is_megatron(launch: LaunchCommand) -> bool:
    """Whether a launch has one of the flags that every Megatron run has."""
    flags = " ".join(launch.texts)
    return launch.launcher not in ("accelerate", "other") and any(mark in flags for mark in _MARKS)


def read_launch(arguments: Arguments, launch: LaunchCommand) -> Recipe:
    """Return the run of a launch."""
    script = PurePath(launch.script.text)
    folder = script.parent.name
    other = no_decoder(script.name) or (no_decoder(folder) if _NO_DECODER.fullmatch(folder) else "")
    # What is built of these, `frameworks.hcu` and `megatron.special` say.
    if arguments.has("use_bridge", "model_arch", "language_model_type"):
        other = ""
    if reason := other or encoder_task(launch):
        arguments.not_modelled(reason)
    task = arguments.entry("task") if script.name == "main.py" else None
    if task is not None and task.causes:
        arguments.need(task.causes, "model")
    try:
        return read(arguments, launch.environment, own=True)
    except InputError as error:
        if reason:
            raise UnsupportedError(f"{arguments.file}:{launch.line}: {reason}") from error
        raise


def no_decoder(title: str) -> str:
    """Return the remark on a script or configuration named after a model with an encoder; else empty."""
    kind = _NO_DECODER.search(title.lower())
    return f"{title[:60]}: models with an encoder are not modelled ({kind[0]})" if kind else ""


FRAMEWORK: Final = Framework(
    title="Megatron-LM",
    profile="megatron",
    extends="megatron",
    order=10,
    launches=(LaunchForm("megatron-shell", 70, is_megatron, read_launch),),
    log=logs.LogForm(is_own=is_log, runs=runs_of, read=read_dump, rate="tflops", tables=("megatron_dump",)),
    writer=RecipeWriter(
        text=megatron_script, words=megatron_words, dialects=("megatron-shell", "nemo-yaml", "nemo-shell")
    ),
    extension=Extension(extend=with_core),
)
