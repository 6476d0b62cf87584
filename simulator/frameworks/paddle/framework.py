"""Registration of PaddleNLP, PaddleFormers and ERNIEKit, and the reader of their logs.

Three kinds of line of a log are read: the configuration dump (`name : value` under a heading of the arguments' kind),
the model's configuration as JSON, and the line of each logged step. Memory is in GiB (2**30 bytes). The dump lists
flags and derived values alike; names in the tables are words of the run.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from simulator.errors import InputError
from simulator.frameworks import logs
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import FlagTable
from simulator.frameworks.framework import FileForm, Framework, LaunchForm, RecipeWriter
from simulator.frameworks.paddle.read import is_file, is_launch, paddle_run, read_file, read_launch, take_words
from simulator.frameworks.paddle.write import paddle_script, paddle_words
from simulator.frameworks.values import known_value
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.units import GIB, MIB

_HEADING: Final = re.compile(r"([A-Z][A-Za-z ]{0,30}) Configuration Arguments")
_SETTING: Final = re.compile(r"(?:^|\] - |\s)([a-z_][a-z0-9_]{1,60})\s{0,40}: ?(.*)$")
_STEP: Final = re.compile(r"\bglobal_step: ([0-9]{1,12})\b")
_PAIR: Final = re.compile(r"([a-z][a-z0-9_]{1,60}): ([^,\s]{1,60})")
_ALLOCATED: Final = {"max_memory_allocated": GIB, "max_mem_allocated_gb": GIB, "gpu_max_memory_allocated": MIB}
_RESERVED: Final = {"max_memory_reserved": GIB, "max_mem_reserved_gb": GIB, "gpu_max_memory_reserved": MIB}
_RATE: Final = "interval_tokens_per_second_per_device"
_BLANK: Final = ("", "None", "-1", "[]")
_REPLICA: Final = ("tensor_parallel_degree", "pipeline_parallel_degree")
_CONTEXT: Final = ("context_parallel_degree", "sep_parallel_degree")


def is_paddle(text: str) -> bool:
    """Whether a line is one of this framework's."""
    return bool(_HEADING.search(text) or _is_step(text))


def _is_step(text: str) -> bool:
    return bool(_STEP.search(text)) and "interval_" in text


@dataclass(slots=True)
class _PaddleLines:
    """The lines of one run, sorted by kind."""

    begin: logs.LogLine
    dump: dict[str, tuple[logs.LogLine, str]] = field(default_factory=dict)
    config: logs.LoggedConfig = field(default_factory=logs.LoggedConfig)
    steps: list[tuple[logs.LogLine, int, dict[str, str]]] = field(default_factory=list)
    out_of_memory: logs.LogLine | None = None

    @property
    def ended(self) -> bool:
        """Whether the next heading begins another run."""
        return bool(self.steps or self.out_of_memory)

    def take(self, line: logs.LogLine) -> None:
        """Take one line."""
        if self.config.take(line):
            return
        if _is_step(line.text) and (step := _STEP.search(line.text)):
            self.out_of_memory = None  # the run continued
            self.steps.append((line, int(step[1]), dict(_PAIR.findall(line.text))))
        elif logs.OUT_OF_MEMORY.search(line.text):
            self.out_of_memory = logs.longer_line(self.out_of_memory, line)
        elif not self.steps and (setting := _SETTING.search(line.text)):
            # The first value counts: later dumps repeat names with values of single ranks.
            self.dump.setdefault(setting[1], (line, setting[2].strip()))

    def count(self, name: str) -> int:
        """Return a count of the dump; 0 without one."""
        line, text = self.dump.get(name, (self.begin, ""))
        return 0 if text in _BLANK else logs.parse_count(line.where, name, text)


def runs_of(lines: Iterable[logs.LogLine], table: FlagTable) -> Iterator[logs.LoggedRun]:
    """Yield every run that logged steps or ran out of memory. Raises InputError naming the line."""
    runs: list[_PaddleLines] = []
    for line in lines:
        if _HEADING.search(line.text) and (not runs or runs[-1].ended):
            runs.append(_PaddleLines(line))
            continue
        if not runs and _is_step(line.text):
            runs.append(_PaddleLines(line))
        if runs:
            runs[-1].take(line)
    if not any(run.ended for run in runs):
        raise InputError(
            f"{runs[-1].begin.where}: no step follows this configuration; expected lines like "
            "'loss: 10.1, global_step: 10, interval_runtime: 1.2, interval_samples_per_second: 53.1'"
        )
    for run in (run for run in runs if run.ended):
        yield logs.LoggedRun(
            begin=run.begin,
            last=run.steps[-1][0] if run.steps else run.begin,
            arguments=_arguments(run, table) if run.dump else None,
            shape=run.config.shape(),
            stated=run.dump.get("model_name_or_path", (run.begin, ""))[1].rstrip("/").rpartition("/")[2],
            steps=tuple(_steps(run)),
            memory=logs.LoggedMemory(allocated_bytes=_most(run, _ALLOCATED), reserved_bytes=_most(run, _RESERVED)),
            samples_per_step=_samples(run),
            out_of_memory=run.out_of_memory,
        )


def _steps(run: _PaddleLines) -> Iterator[logs.LoggedStep]:
    """Yield the logged intervals as time per step."""
    before, interval = 0, run.count("logging_steps") or 1
    for line, iteration, values in run.steps:
        if iteration == before:  # a line of another rank
            covered = interval
        else:
            covered = iteration - before if before else min(interval, max(iteration, 1))
        if covered < 1:
            raise InputError(f"{line.where}: global_step {iteration} after {before}; expected steps in order")
        if "interval_runtime" not in values:
            if line is run.steps[-1][0]:  # the log may end within a line
                continue
            raise InputError(f"{line.where}: step without its time; expected 'interval_runtime: 1.0'")
        seconds = logs.number(line.where, "interval_runtime", values["interval_runtime"]) / covered
        rate = logs.number(line.where, _RATE, values[_RATE]) if _RATE in values else None
        yield logs.LoggedStep(iteration=iteration, seconds=seconds, rate=rate)
        before = iteration


def _samples(run: _PaddleLines) -> float | None:
    """Return the sequences per step by the speeds of the last logged interval; None without them."""
    line, _, values = run.steps[-1] if run.steps else (run.begin, 0, {})
    names = ("interval_samples_per_second", "interval_steps_per_second")
    if not values.keys() >= set(names):
        return None
    samples, steps = (logs.number(line.where, name, values[name]) for name in names)
    return samples / steps


def _most(run: _PaddleLines, units: dict[str, int]) -> float | None:
    """Return the most bytes of all logged steps, by the first of the names that any step has; None without one."""
    for name, unit in units.items():
        sizes = [logs.number(line.where, name, values[name]) for line, _, values in run.steps if name in values]
        if sizes:
            return max(sizes) * unit
    return None


def _arguments(run: _PaddleLines, table: FlagTable) -> Arguments:
    """Return the dump as arguments. Raises InputError where it contradicts itself."""
    where = run.begin.where
    arguments = Arguments(where.rpartition(":")[0], table)
    half = [run.dump[name][1] for name in ("bf16", "fp16") if name in run.dump]
    if "compute_type" not in run.dump and len(half) < 2 and "True" not in half:
        raise InputError(f"{where}: configuration names neither bf16 nor fp16")
    if "sharding" in run.dump:
        line, text = run.dump["sharding"]
        run.dump["sharding"] = line, "none" if text in _BLANK else text
    for name, (line, text) in run.dump.items():
        if name in table and text not in _BLANK:
            arguments.add(name, [known_value(text, line.number)], line.number)
    degrees = [arguments.integer("devices", name, low=0) or 1 for name in _REPLICA]
    replica = degrees[0] * degrees[1] * max(arguments.integer("devices", name, low=0) or 1 for name in _CONTEXT)
    name = "world_size" if run.count("world_size") else "dataset_world_size"
    devices = run.count("world_size") or run.count("dataset_world_size") * replica
    if devices % replica:
        raise InputError(f"{where}: world_size {devices} is not a multiple of the {replica} devices of one replica")
    if devices:
        arguments.devices = devices
        arguments.places["devices"] = Place(arguments.file, run.dump[name][0].number)
    return arguments


def read_dump(arguments: Arguments) -> Recipe:
    """Return the run that a dump describes, with the batch of all replicas."""
    run = paddle_run(arguments, "", whole_sends=False)
    layout, steps = run.layout, run.gradient_accumulation_steps
    if layout is None or run.global_batch_size is not None or steps is None or not arguments.devices:
        return run
    replicas = arguments.devices // (layout.tensor_parallel * layout.pipeline_parallel * layout.context_parallel)
    batch = layout.micro_batch_size * steps * replicas
    return dataclasses.replace(run, global_batch_size=batch, gradient_accumulation_steps=None)


FRAMEWORK: Final = Framework(
    title="Paddle",
    profile="paddle",
    tables=("paddlenlp", "paddleformers"),
    launches=(LaunchForm("paddle-shell", 1, is_launch, read_launch, take_words),),
    files=(FileForm("paddle-yaml", 59, is_file, read_file),),
    log=logs.LogForm(is_own=is_paddle, runs=runs_of, read=read_dump, rate="tokens"),
    writer=RecipeWriter(text=paddle_script, words=paddle_words, dialects=("paddle-shell", "paddle-yaml")),
)
