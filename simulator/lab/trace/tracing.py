"""Comparison of a pipeline stage traced at full size, on tensors without data, with its predicted bytes of tensors."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Final

import numpy as np

from simulator.cost.pricing.estimate import Estimate, StageMemory
from simulator.errors import InputError, UnsupportedError, one_line
from simulator.lab.trainer.job import Traced, TraceRequest, TrainingJob, check_job, from_json, to_json
from simulator.question.coefficients import replaced
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.records import Record, replace
from simulator.search.build import bare_estimate

LIMIT_SECONDS: Final = 600.0
"""Longest duration of a trace, many times what the stages of large models need."""
NO_TENSORS: Final = ("workspace_bytes", "unfused_loss_bytes_per_logit")
"""Coefficients inside the allocated bytes that stand for no tensor of the reference trainer."""


class TraceComparison(Record, kw_only=True):
    """Traced stage with its prediction."""

    estimate: Estimate
    """Estimate without the coefficients that stand for no tensor of the reference trainer."""
    traced: Traced
    """Counted bytes."""

    @property
    def predicted(self) -> StageMemory:
        """Prediction for the traced rank."""
        return self.estimate.memory.stages[self.traced.stage]

    @property
    def difference(self) -> float:
        """Excess of the predicted peak over the traced one, as a share of it."""
        return self.predicted.allocated_bytes / self.traced.peak_bytes - 1.0

    @property
    def rows(self) -> tuple[tuple[str, float, float], ...]:
        """(part, traced, predicted) in bytes, each adding up to its peak; kept copies of parameters are parameters."""
        traced = {name: self.traced.parts_bytes.get(name, 0) for name in ("parameters", "gradients", "optimizer")}
        if self.estimate.layout.zero_stage < 3:
            traced["parameters"] += self.traced.parts_bytes.get("gathered", 0)
        predicted = {name: self.predicted.parts_bytes[name] for name in traced}
        rows = [(name, float(traced[name]), predicted[name]) for name in traced]
        rest = self.traced.peak_bytes - sum(traced.values())
        rows.append(
            ("activations, logits, temporary", float(rest), self.predicted.allocated_bytes - sum(predicted.values()))
        )
        return tuple(rows)


def trace(scenario: Scenario, layout: Layout, stage: int | None = None) -> TraceComparison:
    """Trace a pipeline rank of a layout, by default the one that needs most, and price it.

    Raises InputError for a rank that the pipeline lacks, and UnsupportedError for what cannot be traced.
    """
    if scenario.framework.name != "torch":
        raise UnsupportedError(f"framework {scenario.framework.name}: a trace runs PyTorch; allowed is torch")
    if scenario.lora_rank is not None:
        raise UnsupportedError(f"lora_rank {scenario.lora_rank}: the reference trainer trains all weights")
    ranks = layout.pipeline_parallel
    if stage is not None and not 0 <= stage < ranks:
        raise InputError(f"stage {stage}: the pipeline has {ranks} ranks, allowed are 0 to {ranks - 1}")
    priced = bare_estimate(tensors_only(scenario), layout)
    if priced.violations:
        broken = priced.violations[0]
        raise UnsupportedError(f"rule {broken.rule}: {broken.message}; {broken.fix}")
    count = scenario.global_batch_size // (layout.micro_batch_size * layout.data_parallel)
    check_job(_job(scenario, layout, count))
    if importlib.util.find_spec("torch") is None:
        raise UnsupportedError("trace: torch is not installed; pip install '.[runner]' in a checkout brings it")
    chosen = priced.memory.binding_stage if stage is None else stage
    job = _job(scenario, layout, _enough(layout, chosen, count))
    traced = _in_a_process(TraceRequest(job=job, stage=chosen, micro_batches=count))
    return TraceComparison(estimate=priced, traced=traced)


def tensors_only(scenario: Scenario) -> Scenario:
    """Return the scenario without coefficients that add to the tensors, and without tensors of kernels' own."""
    coefficients = replaced(scenario.coefficients, "memory", NO_TENSORS, np.zeros(len(NO_TENSORS)))
    return replace(scenario, coefficients=coefficients, hardware=replace(scenario.hardware, caching_allocator=False))


def _job(scenario: Scenario, layout: Layout, count: int) -> TrainingJob:
    return TrainingJob.of(scenario, layout, global_batch_size=count * layout.micro_batch_size * layout.data_parallel)


def _enough(layout: Layout, stage: int, count: int) -> int:
    """Return the micro batches after which nothing new happens: the pipeline is full and all gradients exist."""
    ranks = layout.pipeline_parallel
    if ranks == 1:
        return min(count, 3)
    # Interleaved schedules go in rounds of as many micro batches as ranks.
    return min(count, 3 * ranks if layout.virtual_stages > 1 else max(ranks, ranks - stage + 2))


def _in_a_process(request: TraceRequest) -> Traced:
    """Trace in a new process: torch keeps the state of a process group, and may end a process on its own."""
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-m", "simulator.lab.trace"],
            input=to_json(request),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(f"trace: torch did not end within {LIMIT_SECONDS:.0f} s") from error
    if ended.returncode:
        last = ended.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise UnsupportedError(f"trace: torch ended with status {ended.returncode}: {one_line(last[0])[:500]}")
    return from_json(Traced, ended.stdout.strip().splitlines()[-1])
