"""Measured rows of single-device layouts: real training steps of models of 1B to 8B widths with fewer layers.

Run from the root of the checkout, with torch installed: `python -m benchmarks.cuda_sweep --hardware h100-sxm-80g`.
Each case is a launch of the reference trainer with a time limit of its own: one that runs out of memory, or hangs,
stops no other. Rows go to a file in the schema of `calibration/measured`; each is compared with its prediction.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import say, say_machine
from simulator.api import estimate, scenario_of
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import SimulateError
from simulator.lab.runner.campaign import RowsFile, run_folder
from simulator.lab.runner.engine import Launch, Launcher, LaunchOutcome, Pick
from simulator.lab.runner.engines import ReferenceEngine
from simulator.lab.runner.processes import interruptible
from simulator.lab.trainer.job import RankResult
from simulator.question.units import GIB
from simulator.question.vocabulary import RecomputeMode

MODELS = (("llama3.2-1b", 8), ("llama3.2-3b", 6), ("llama3.1-8b", 4))
"""Model specs, and the layers that are trained of each."""
SHAPES: tuple[tuple[int, int, RecomputeMode], ...] = (
    (2048, 1, "none"),
    (8192, 1, "full"),
    (4096, 2, "selective"),
    (8192, 1, "none"),
    (16384, 1, "full"),
    (2048, 4, "none"),
    (2048, 4, "full"),
    (4096, 2, "none"),
    (16384, 1, "selective"),
    (8192, 2, "full"),
    (16384, 1, "none"),
)
"""Tokens in a sequence, sequences in a micro batch, recompute: the most telling first, as the time may run out."""
TWIN_MODELS = (("examples/models/tiny.yaml", 2),)
TWIN_SHAPES: tuple[tuple[int, int, RecomputeMode], ...] = ((256, 2, "none"), (256, 2, "selective"), (512, 1, "full"))
"""The same for a processor, where it shows that the script works."""
MICRO_BATCHES = 2
"""Micro batches in a step: gradients add up."""
STEPS, WARMUP_STEPS = 5, 2
LONGEST_SECONDS = 120.0
"""Longest time of one case."""


@dataclass(frozen=True, slots=True)
class Case:
    """One launch to be."""

    model: str
    layers: int
    seq_length: int
    micro_batch_size: int
    recompute: RecomputeMode

    def __str__(self) -> str:
        return (
            f"{Path(self.model).stem}, {self.layers} layers, {self.seq_length} tokens, micro batch "
            f"{self.micro_batch_size}, recompute {self.recompute}"
        )

    def launch(self, hardware: str, engine: ReferenceEngine, folder: Path, limit_seconds: float) -> Launch:
        """The case as the runner takes it."""
        question: dict[str, Any] = {
            "model": self.model,
            "hardware": hardware,
            "devices": 1,
            "seq_length": self.seq_length,
            "global_batch_size": MICRO_BATCHES * self.micro_batch_size,
            "num_layers": self.layers,
            "framework": "torch",
        }
        scenario = scenario_of(**question)
        priced = estimate(**question, micro_batch_size=self.micro_batch_size, recompute=self.recompute)
        pick = Pick(
            scenario=scenario,
            layout=priced.layout,
            question=priced.question,
            steps=STEPS,
            warmup_steps=WARMUP_STEPS,
        )
        command = engine.prepare(pick, folder)
        return Launch(title=str(self), pick=pick, estimate=priced, command=command, limit_seconds=limit_seconds)


def cases(device: str) -> Iterator[Case]:
    """Every case, the models in turn."""
    models, shapes = (TWIN_MODELS, TWIN_SHAPES) if device == "cpu" else (MODELS, SHAPES)
    for shape in shapes:
        for model, layers in models:
            yield Case(model, layers, *shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Where cases run and what becomes of them."""

    hardware: str
    """Name or path of the spec that the device is priced as."""
    engine: ReferenceEngine
    folder: Path
    """Where jobs, logs and results go."""
    record: RowsFile
    """Where the rows go."""

    def run(self, wanted: list[Case], seconds: float) -> int:
        """Launch the cases until the time is up; the number of those that ran or ran out of memory."""
        self.engine.check()
        self.record.check()
        until = time.monotonic() + seconds
        measured, seen = 0, ""
        for number, case in enumerate(wanted, start=1):
            left = until - time.monotonic()
            if left <= 0:
                say(f"time is up: {len(wanted) - number + 1} cases left out, the first of them {case}")
                break
            say(f"{number} of {len(wanted)}: {case}")
            launch = case.launch(self.hardware, self.engine, self.folder / f"case-{number}", min(left, LONGEST_SECONDS))
            outcome = self.engine.outcome(launch.pick, launch.folder, Launcher().run(launch))
            seen = measured_on(outcome.ranks[0]) if outcome.ranks else seen
            say(f"  {told(outcome, launch.estimate)}")
            if outcome.kind == "interrupted":
                break
            if outcome.kind in ("ok", "oom") and outcome.row is not None:
                # A case that ran out of memory does not say on what; the cases before it may have.
                where = f"{self.folder.name}/{launch.folder.name}"
                row = replace(outcome.row, source="benchmarks/cuda_sweep.py", source_ref=f"{seen}, {where}".strip(", "))
                self.record.add(row)
                measured += 1
        return measured


def measured_on(result: RankResult) -> str:
    """The device and the versions of driver and libraries."""
    return ", ".join([result.device_name, *(f"{name} {text}" for name, text in result.versions.items())])


def told(outcome: LaunchOutcome, priced: Estimate) -> str:
    """Measured against predicted, in one line."""
    verdict = "fits" if priced.memory.fits else "does not fit"
    row = outcome.row
    if outcome.kind != "ok" or row is None or row.memory_bytes is None or row.step_seconds is None:
        return f"{outcome.kind}, predicted: {verdict}; {outcome.error}"
    predicted = max(stage.allocated_bytes for stage in priced.memory.stages), priced.throughput.step_seconds
    memory, step = row.memory_bytes, row.step_seconds
    return (
        f"memory {memory / GIB:.3f} GiB, predicted {predicted[0] / GIB:.3f} ({predicted[0] / memory - 1:+.1%}); "
        f"step {step:.4f} s, predicted {predicted[1]:.4f} ({predicted[1] / step - 1:+.1%})"
    )


def main(arguments: list[str]) -> int:
    """Sweep, and return the exit code: 0 where at least one case was measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda_sweep", description=__doc__)
    parser.add_argument("--device", default="cuda", help="kind of device in torch's words; cpu runs the tiny twin")
    parser.add_argument("--hardware", help="hardware spec that the device is priced as; local-cpu with --device cpu")
    parser.add_argument("--output", type=Path, default=Path("cuda_sweep.csv"), help="rows are added to this file")
    parser.add_argument("--work-folder", type=Path, default=Path("cuda_sweep"), help="jobs, logs and results")
    parser.add_argument("--minutes", type=float, default=9.5, help="no case runs longer than this after the start")
    parser.add_argument("--cases", type=int, help="run the first so many cases only")
    options = parser.parse_args(arguments)
    hardware = options.hardware or ("local-cpu" if options.device == "cpu" else None)
    if hardware is None:
        parser.error("--hardware: which spec is the device? `simulate hardware` lists the names")
    say_machine()
    with interruptible() as came:
        try:
            sweep = Sweep(
                hardware=hardware,
                engine=ReferenceEngine(backend=options.device),
                folder=run_folder(options.work_folder),
                record=RowsFile(options.output),
            )
            measured = sweep.run(list(cases(options.device))[: options.cases], options.minutes * 60.0)
        except KeyboardInterrupt:
            return 128 + came.number
        except SimulateError as error:
            say(f"error: {error}")
            return error.exit_code
    say(f"{measured} rows added to {options.output}")
    if came.number:
        return 128 + came.number
    return 0 if measured else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
