"""Estimates and rankings as JSON: the objects of `schema.json`, with the unit in every key."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeVar

from simulator.cost.pricing.estimate import AssumedSwitch, Estimate, Interval, MemoryEstimate, ThroughputEstimate
from simulator.question.scenario.layout import layout_object as as_object
from simulator.question.units import TERA, to_mib
from simulator.search.result import Counts, Ranking
from simulator.show.answers.run import TrainingRun
from simulator.show.report.presentation import Presentation, training_run

if TYPE_CHECKING:
    from simulator.show.report.grid import Style

SCHEMA_VERSION = "1"
"""Changes when a key is removed or changes its meaning; new keys may appear without a change."""


def dumps(value: object, *, indent: int | None = 2) -> str:
    """Return JSON text; a number that is not finite raises ValueError."""
    text = json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False)
    # What stands for a byte that is no UTF-8 in a file's name, could not be written as it is.
    return _SURROGATE.sub(lambda mark: f"\\u{ord(mark[0]):04x}", text)


_SURROGATE = re.compile("[\ud800-\udfff]")


def estimate_object(estimate: Estimate, presentation: Presentation) -> dict[str, Any]:
    """Return one estimate as plain values."""
    found: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        **told(estimate, "model", "hardware", "devices", "precision", "verdict", "stack"),
        "layout": layout_object(estimate),
        "options": dict(estimate.options),
        "memory": _memory(estimate.memory),
        "throughput": _throughput(estimate.throughput),
        "violations": [dataclasses.asdict(broken) for broken in estimate.violations],
        "provenance": {
            **told(estimate.provenance, "calibration", "status"),
            "notes": list(estimate.provenance.notes),
        },
        "assumed_switches": [_assumed(one) for one in estimate.assumed],
    }
    run = training_run(estimate, presentation)
    if run is not None:
        found["training"] = run_object(run)
    return found


def _assumed(one: AssumedSwitch) -> dict[str, Any]:
    return {
        **told(one, "switch", "value", "other", "because", "speed_change"),
        "memory_change_mib": mib(one.memory_bytes),
        "verdict": one.verdict,
    }


def run_object(run: TrainingRun) -> dict[str, Any]:
    """Return a whole run as plain values."""
    return {
        **told(run, "tokens", "days", "device_hours", "cost"),
        "days_interval": _interval(run.days_interval, ""),
        "cost_interval": _interval(run.cost_interval, ""),
    }


def ranking_object(ranking: Ranking, presentation: Presentation) -> dict[str, Any]:
    """Return a ranking as plain values, best estimate first."""

    def objects(estimates: Iterable[Estimate]) -> list[dict[str, Any]]:
        return [estimate_object(estimate, presentation) for estimate in estimates]

    return {
        "schema_version": SCHEMA_VERSION,
        "query": {name: plain(value) for name, value in ranking.query.items()},
        "defaults": list(ranking.defaults),
        "counts": _counts(ranking.counts),
        "estimates": objects(ranking.estimates),
        "risky": objects(ranking.risky),
        "starved": objects(ranking.starved),
        "nearest": None if ranking.nearest is None else estimate_object(ranking.nearest, presentation),
        "remedies": [
            {"change": remedy.change, "estimate": estimate_object(remedy.estimate, presentation)}
            for remedy in ranking.remedies
        ],
        "reasons": [dataclasses.asdict(reason) for reason in ranking.reasons],
        "fp8": None if ranking.fp8 is None else estimate_object(ranking.fp8, presentation),
        "stacks": [
            {"stack": one.stack, "estimate": one.estimate and estimate_object(one.estimate, presentation)}
            for one in ranking.stacks
        ],
    }


def ranking_text(ranking: Ranking, presentation: Presentation) -> str:
    """Return a ranking as JSON text, one estimate at a time: as plain values, many take tens of times their text."""
    whole = dumps(ranking_object(dataclasses.replace(ranking, estimates=()), presentation))
    if not ranking.estimates:
        return whole
    indented = (
        dumps(estimate_object(estimate, presentation)).replace("\n", "\n    ") for estimate in ranking.estimates
    )
    listed = ",\n    ".join(indented)
    return whole.replace('\n  "estimates": [],\n', f'\n  "estimates": [\n    {listed}\n  ],\n', 1)


Reported = TypeVar("Reported")


def reporters(
    table: Callable[[Reported, Presentation, Style], str], plain: Callable[[Reported, Presentation], object]
) -> dict[str, Callable[[Reported, Presentation], str]]:
    """Return the text of an answer by the format's name: as tables for people, and as an object for programs."""
    return {
        "table": lambda found, presentation: table(found, presentation, "table"),
        "json": lambda found, presentation: dumps(plain(found, presentation)) + "\n",
        "markdown": lambda found, presentation: table(found, presentation, "markdown"),
    }


def schema() -> dict[str, Any]:
    """Return the JSON Schema of both objects."""
    found: dict[str, Any] = json.loads(files("simulator.show.report").joinpath("schema.json").read_text("utf-8"))
    return found


def plain(value: object) -> Any:
    """Return ``value`` in the types JSON has; anything unknown as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value)


def told(value: object, *names: str) -> dict[str, Any]:
    """Return attributes of a value by their names, with the unit in the key: bytes as MiB, seconds as `_s`."""
    found: dict[str, Any] = {}
    for name in names:
        one = getattr(value, name)
        if name.endswith("_bytes"):
            found[f"{name.removesuffix('_bytes')}_mib"] = None if one is None else mib(one)
        elif name.endswith("_seconds"):
            found[f"{name.removesuffix('_seconds')}_s"] = None if one is None else significant(one)
        else:
            found[name] = significant(one) if isinstance(one, float) else one
    return found


def mib(size_bytes: float) -> float:
    """Return bytes as MiB to three decimals: about a kilobyte."""
    return round(to_mib(float(size_bytes)), 3) + 0.0


def significant(value: float) -> float:
    """Return ``value`` to nine significant digits, so that parts still add up to more than anybody reads."""
    return float(f"{float(value):.9g}") + 0.0


def layout_object(estimate: Estimate) -> dict[str, Any]:
    """Return the layout of an estimate and what it was asked for."""
    layout = estimate.layout
    cut = layout.stage_layers or tuple(stage.layers for stage in estimate.memory.stages)
    found: dict[str, Any] = {}
    for key, value in as_object(replace(layout, stage_layers=cut)).items():
        found[key] = value
        if key == "micro_batch_size":
            found |= {"global_batch_size": estimate.global_batch_size, "seq_length": estimate.seq_length}
    return found | {"lora_rank": estimate.lora_rank, "framework": estimate.framework}


_OF_STAGE = ("stage", "layers", "device_bytes", "reserved_bytes", "allocated_bytes", "state_bytes", "moment")


def _memory(memory: MemoryEstimate) -> dict[str, Any]:
    return {
        **told(memory, "device_bytes", "reserved_bytes", "allocated_bytes", "capacity_bytes", "headroom_bytes"),
        "interval": _interval(memory.interval_bytes, "_mib"),
        "fits": bool(memory.fits),
        **told(memory, "fit_probability", "binding_stage", "moment"),
        "breakdown_mib": _in_mib(memory.parts_bytes),
        "outside_breakdown_mib": _in_mib(memory.outside_parts_bytes),
        "stages": [told(stage, *_OF_STAGE) | {"breakdown_mib": _in_mib(stage.parts_bytes)} for stage in memory.stages],
    }


def _throughput(speed: ThroughputEstimate) -> dict[str, Any]:
    return {
        "step_time_s": significant(speed.step_seconds),
        "tflops_per_device": significant(speed.flops_per_second_per_device / TERA),
        "hardware_tflops_per_device": significant(speed.hardware_flops_per_second_per_device / TERA),
        **told(speed, "tokens_per_second_per_device", "mfu", "bubble_fraction"),
        "interval": _interval(speed.interval_seconds, ""),
        "breakdown_s": {name: significant(seconds) for name, seconds in speed.parts_seconds.items()},
        "model_flops_per_token": significant(speed.model_flops_per_token),
        "stages": [told(stage, "stage", "forward_seconds", "backward_seconds") for stage in speed.stages],
    }


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        "evaluated": counts.evaluated,
        "feasible": counts.feasible,
        "rejected": dict(counts.rejected),
        "elapsed_s": significant(counts.elapsed_seconds),
    }


def _in_mib(parts_bytes: Mapping[str, float]) -> dict[str, float]:
    return {name: mib(size) for name, size in parts_bytes.items()}


def _interval(interval: Interval | None, suffix: str) -> dict[str, float] | None:
    if interval is None:
        return None
    rounded = mib if suffix == "_mib" else significant
    return {f"low{suffix}": rounded(interval.low), f"high{suffix}": rounded(interval.high)}
