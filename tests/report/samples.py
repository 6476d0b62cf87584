"""Small estimates and rankings made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simulator.cost.pricing.estimate import (
    Estimate,
    Interval,
    MemoryEstimate,
    Provenance,
    StageMemory,
    StageTime,
    ThroughputEstimate,
    Verdict,
    Violation,
)
from simulator.question.scenario.layout import Layout
from simulator.question.units import GIB
from simulator.search.space import Counts, Ranking, Remedy

CAPACITY_GIB = 80.0


def _stage(stage: int, layers: int, activations_gib: float) -> StageMemory:
    parts_gib = {"parameters": 8.0, "optimizer": 4.0, "activations": activations_gib, "outside_allocator": 2.0}
    total_gib = sum(parts_gib.values())
    return StageMemory(
        stage=stage,
        layers=layers,
        device_bytes=total_gib * GIB,
        reserved_bytes=(total_gib - 1.5) * GIB,
        allocated_bytes=(total_gib - 2.0) * GIB,
        moment="loss" if stage else "backward",
        parts_bytes={name: size * GIB for name, size in parts_gib.items()},
    )


def memory(activations_gib: float = 36.0) -> MemoryEstimate:
    first, last = _stage(0, 16, activations_gib), _stage(1, 16, activations_gib / 2)
    return MemoryEstimate(
        device_bytes=first.device_bytes,
        reserved_bytes=first.reserved_bytes,
        allocated_bytes=first.allocated_bytes,
        capacity_bytes=CAPACITY_GIB * GIB,
        interval_bytes=None,
        fit_probability=None,
        binding_stage=0,
        moment=first.moment,
        parts_bytes=first.parts_bytes,
        outside_parts_bytes={"context": 1.0 * GIB, "communicators": 0.5 * GIB, "user_buffers": 0.5 * GIB},
        stages=(first, last),
    )


def throughput(step_seconds: float = 2.0) -> ThroughputEstimate:
    shares = {"gemm": 0.75, "attention": 0.2, "bubble": 0.05, "offload": 0.0}
    return ThroughputEstimate(
        step_seconds=step_seconds,
        flops_per_second_per_device=1e15 / step_seconds,
        hardware_flops_per_second_per_device=1.25e15 / step_seconds,
        tokens_per_second_per_device=20_000.0 / step_seconds,
        causal_mfu=0.9 / step_seconds,
        mfu=1.0 / step_seconds,
        bubble_fraction=0.05,
        interval_seconds=None,
        parts_seconds={name: share * step_seconds for name, share in shares.items()},
        model_flops_per_token=5e10,
        stages=(StageTime(stage=0, forward_seconds=0.1, backward_seconds=0.2),),
    )


def estimate(
    *, verdict: Verdict = "fits", activations_gib: float = 36.0, step_seconds: float = 2.0, **layout: Any
) -> Estimate:
    return Estimate(
        model="tiny",
        hardware="box",
        devices=8,
        precision="bf16",
        seq_length=4096,
        global_batch_size=64,
        framework="megatron",
        lora_rank=None,
        layout=Layout(**{"pipeline_parallel": 2, "data_parallel": 4, "stage_layers": (16, 16), **layout}),
        verdict=verdict,
        memory=memory(activations_gib),
        throughput=throughput(step_seconds),
        violations=(),
        provenance=Provenance(calibration="priors", status="beyond", notes=("Links carry one job.",)),
    )


def calibrated() -> Estimate:
    plain = estimate()
    return replace(
        plain,
        memory=replace(plain.memory, interval_bytes=Interval(49 * GIB, 51 * GIB), fit_probability=0.9876),
        throughput=replace(plain.throughput, interval_seconds=Interval(1.9, 2.1)),
        provenance=Provenance(calibration="boxes (runs)", status="between"),
    )


def refused() -> Estimate:
    broken = Violation(rule="heads", message="tp 3 does not divide 32 heads", fix="--tp 2 or 4")
    return replace(estimate(verdict="refused"), violations=(broken,))


QUERY = {
    "model": "tiny",
    "hardware": "box",
    "nodes": 1,
    "devices": 8,
    "seq_length": 4096,
    "global_batch_size": 64,
    "precision": "bf16",
    "lora_rank": None,
    "framework": "megatron",
    "options": {},
    "space": {"tensor_parallel": (1, 2)},
}


def ranking(**changes: Any) -> Ranking:
    plain = Ranking(
        query=QUERY,
        defaults=("seq_length", "precision"),
        counts=Counts(evaluated=1200, feasible=2, rejected={"memory": 1000, "heads": 198}, elapsed_seconds=0.25),
        estimates=(estimate(), estimate(tensor_parallel=2, sequence_parallel=True, data_parallel=2, step_seconds=2.5)),
        starved=(estimate(verdict="starved", activations_gib=65.5, step_seconds=1.6, micro_batch_size=2),),
        nearest=None,
        reasons=(),
        remedies=(),
        fp8=estimate(step_seconds=1.25),
    )
    return replace(plain, **changes)


def hopeless() -> Ranking:
    nearest = estimate(verdict="does_not_fit", activations_gib=76.0)
    return ranking(
        estimates=(),
        starved=(),
        fp8=None,
        nearest=nearest,
        remedies=(Remedy("--recompute full", estimate(step_seconds=2.5, recompute="full")),),
        counts=Counts(evaluated=10, feasible=0, rejected={"memory": 10}, elapsed_seconds=0.001),
    )
