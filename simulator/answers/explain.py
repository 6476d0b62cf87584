"""Explanation of one layout's memory: its causes, changes that make it fit, the longest sequence that does.

`answers.changes` finds the changes, `answers.ranking` prices them, `show.report.estimate` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from simulator.answers.cases import Case
from simulator.answers.changes import Change, changes_for
from simulator.answers.gates import CheckOutcome, Gates
from simulator.answers.lengths import largest
from simulator.answers.ranking import estimate_of, query_of
from simulator.answers.run import remedy_options
from simulator.cost.pricing.estimate import Estimate, StageMemory
from simulator.errors import SimulateError
from simulator.question.question import SEARCH
from simulator.question.scenario.inputs import MOST_TOKENS
from simulator.question.units import to_gib
from simulator.search.alternatives import remedies
from simulator.search.build import estimate_layout
from simulator.tabular import Tabular

_WORTH_TELLING = 0.05
"""Least share of a device's need of a part that is a cause."""
_UNEVEN = 1.15
"""Least ratio of the fullest rank's need to the emptiest's that is a cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(Tabular):
    """An estimate, why it needs its memory, and what would help."""

    estimate: Estimate
    """Estimate of the layout."""
    causes: tuple[str, ...]
    """Causes of the fullest rank's need, the heaviest part first; one sentence each."""
    changes: tuple[Change, ...]
    """Smallest changes after which a failing layout passes, the fastest first."""
    longest_sequence: int | None
    """Tokens of the longest sequence with which this layout passes; None where none does."""
    min_fit_probability: float | None = None
    """Least probability to fit that passes; None without a calibration, or if 0 was asked for."""
    outcome: CheckOutcome | None = None
    """Outcome of `check` where bounds of a recipe, such as the longest sample, decide; None where the verdict is it."""
    bounds: tuple[str, ...] = ()
    """Bounds that decide, one sentence each with the need by both readings."""

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each change that helps: its options, and memory and speed with it."""
        return [
            {
                "options": change.text,
                "device_bytes": change.estimate.memory.device_bytes,
                "fit_probability": change.estimate.memory.fit_probability,
                "step_seconds": change.estimate.throughput.step_seconds,
                "speed_ratio": change.speed_ratio,
            }
            for change in self.changes
        ]

    def __repr__(self) -> str:
        """Return one line: the layout, the number of causes and of changes that help."""
        return f"<Explanation of {self.estimate!r}: {len(self.causes)} causes, {len(self.changes)} changes help>"


def explain(case: Case, min_fit_probability: float) -> Explanation:
    """Explain a case; with a calibration, passing takes a probability to fit of `min_fit_probability`."""
    estimate = estimate_of(case)
    known = estimate.memory.fit_probability is not None
    gates = Gates(min_fit_probability=min_fit_probability if known and min_fit_probability > 0 else None)
    fine = passes(estimate, gates)
    return Explanation(
        estimate=estimate,
        causes=tuple(causes(case, estimate)),
        changes=() if fine else tuple(_changes(case, estimate, gates)),
        longest_sequence=_longest_sequence(case, gates),
        min_fit_probability=gates.min_fit_probability,
    )


def _changes(case: Case, estimate: Estimate, gates: Gates) -> Iterator[Change]:
    """Yield what would help: changes of a layout that was said, else the remedies of a ranking, with their layout."""
    if not case.question.layout_is_searched:
        yield from changes_for(case, estimate, frozenset(), gates)
        return
    asked = case.question.without(SEARCH)
    speed = estimate.throughput.tokens_per_second_per_device
    for remedy in remedies(query_of(asked, min_fit_probability=gates.min_fit_probability or 0.0)):
        options = remedy_options(remedy, asked, has_experts=case.scenario.model.is_moe)
        ratio = remedy.estimate.throughput.tokens_per_second_per_device / speed
        yield Change(options=options, estimate=remedy.estimate, speed_ratio=ratio, case=case)


def passes(estimate: Estimate, gates: Gates) -> bool:
    """Return whether an estimate fits and breaks no gate."""
    return estimate.verdict == "fits" and not gates.broken(estimate)


def causes(case: Case, estimate: Estimate) -> Iterator[str]:
    """Yield causes of the fullest rank's need, the heaviest part first."""
    stages = estimate.memory.stages
    fullest = stages[estimate.memory.binding_stage]
    reasons = {
        "parameters": _parameters,
        "gradients": _gradients,
        "optimizer": _optimizer,
        "activations": _activations,
        "logits": _logits,
    }
    parts = sorted(fullest.parts_bytes.items(), key=lambda part: -part[1])
    for name, size in parts:
        if size >= _WORTH_TELLING * fullest.device_bytes and name in reasons:
            yield from reasons[name](case, fullest, f"{to_gib(size):.1f} GiB")
    emptiest = min(stages, key=lambda stage: stage.device_bytes)
    if fullest.device_bytes > _UNEVEN * emptiest.device_bytes:
        yield (
            f"rank {fullest.stage} needs {to_gib(fullest.device_bytes):.1f} GiB, rank {emptiest.stage} "
            f"{to_gib(emptiest.device_bytes):.1f}: --stage-layers or --vpp moves load"
        )


def _parameters(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    layout = case.layout
    if layout.zero_stage < 3 and layout.tensor_parallel * layout.pipeline_parallel == 1:
        yield f"TP and PP are 1, so every device holds all parameters: {size}"
    elif layout.zero_stage < 3:
        shared = f"TP {layout.tensor_parallel} and PP {layout.pipeline_parallel}"
        yield f"{shared} split the parameters, ZeRO {layout.zero_stage} does not: {size} for {stage.layers} layers"
    if case.scenario.model.is_moe and layout.expert_parallel == 1:
        yield f"EP is 1, so every device of a stage holds all {case.scenario.model.num_experts} experts"


def _gradients(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    layout = case.layout
    if layout.zero_stage < 2:
        dtype = case.scenario.framework.gradient_dtype
        yield f"ZeRO {layout.zero_stage} keeps gradients of all {stage.layers} layers of the stage, in {dtype}: {size}"


def _optimizer(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    del stage
    layout = case.layout
    replicas = layout.data_parallel * layout.context_parallel
    if layout.offload.startswith("optimizer"):
        yield f"--offload {layout.offload} leaves {size} of the optimizer on the device"
    elif layout.zero_stage == 0:
        yield f"ZeRO is 0, so each of {replicas} replicas holds the whole optimizer: {size}"
    elif replicas == 1:
        yield f"DP is 1, so ZeRO {layout.zero_stage} shards nothing: {size} of optimizer"
    else:
        yield f"ZeRO {layout.zero_stage} shards the optimizer over {replicas} replicas: {size}"


def _activations(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    layout, scenario = case.layout, case.scenario
    first = layout.pipeline_parallel > 1 and stage.stage == 0
    flying = f" of up to {layout.pipeline_parallel} micro batches in flight" if first else ""
    length = f"{scenario.seq_length // layout.context_parallel} tokens"
    batch = f"micro batches of {layout.micro_batch_size} x {length}"
    if layout.recompute == "none":
        yield f"nothing is recomputed, so the activations{flying} stay, {batch}: {size}"
    else:
        yield f"recompute {layout.recompute} leaves activations{flying}, {batch}: {size}"
    if layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield f"sequence parallelism is off, so each of {layout.tensor_parallel} TP ranks holds the same norms' inputs"


def _logits(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    del stage
    vocabulary = case.scenario.model.vocab_size
    yield f"the last stage holds the logits of {vocabulary:,} words, split by TP {case.layout.tensor_parallel}: {size}"


def _longest_sequence(case: Case, gates: Gates) -> int | None:
    """Return the most tokens with which this layout passes, a multiple that its sizes divide; None for none."""
    layout = case.layout
    unit = math.lcm(2 * layout.context_parallel, layout.tensor_parallel)
    unit *= max(1, 128 // unit)

    def fits(units: int) -> bool:
        scenario = case.scenario.of_length(units * unit)
        try:
            # What is open only adds needs that may not fit, and costs twenty prices.
            return passes(estimate_layout(scenario, layout), gates) and passes(
                estimate_of(replace(case, scenario=scenario)), gates
            )
        except SimulateError:
            return False

    return largest(fits, MOST_TOKENS // unit) * unit or None
