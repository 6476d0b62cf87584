"""Job of a launch and result of a rank, as files that both sides read. Imports no torch."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Job of one launch. Sizes are those of the whole run; `devices` ranks take part, one device each."""

    model: ModelSpec
    """Shape of the decoder; already cut to the layers that are trained."""
    layout: Layout
    """Layout over the devices, with its cut (`stage_layers`)."""
    seq_length: int
    """Tokens per sequence."""
    global_batch_size: int
    """Sequences per optimizer step over all replicas."""
    precision: str = "bf16"
    """Compute type of the matrix products: bf16 (fp32 parameters, bf16 compute) or fp32."""
    steps: int = 8
    """Timed optimizer steps, a count."""
    warmup_steps: int = 2
    """Steps before them that are not timed, a count. One further step, not timed either, counts the live bytes."""
    backend: str = "cpu"
    """Kind of device, in torch's words: cpu (gloo), cuda (NCCL), npu (HCCL), or another one that torch knows."""
    communication: str = ""
    """Collective library in torch's words (gloo, nccl, hccl); empty for the usual one of `backend`."""
    threads: int = 1
    """Compute threads of each rank on a CPU."""
    memory_limit_bytes: int | None = None
    """On a CPU, bytes that a rank may take beyond those of Python and torch before training; None for all."""
    seed: int = 0
    """Seed of weights and data: equal jobs compute equal losses."""

    @classmethod
    def of(cls, scenario: Scenario, layout: Layout, **more: Any) -> TrainingJob:
        """Return the job that trains a scenario's model with a layout; `more` are its other fields."""
        fields = {name: getattr(scenario, name) for name in ("model", "seq_length", "global_batch_size", "precision")}
        return cls(layout=layout, **fields | more)

    def to_json(self) -> str:
        """Return the job as a JSON object; `from_json` reads it back."""
        value = asdict(self) | {"model": self.model.model_dump(mode="json", by_alias=True)}
        return json.dumps(value, indent=2)

    @classmethod
    def from_json(cls, text: str) -> TrainingJob:
        """Return the job that `to_json` wrote."""
        value: dict[str, Any] = json.loads(text)
        # JSON has lists only; those of a layout are tuples.
        layout: dict[str, Any] = {
            name: tuple(item) if isinstance(item, list) else item for name, item in value.pop("layout").items()
        }
        model = ModelSpec.model_validate(value.pop("model"))
        return cls(model=model, layout=Layout(**layout), **value)


def write_whole(path: Path, text: str) -> None:
    """Write a file first under a name of this process's own, so that a half-written one is never read."""
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


RESULT_NAME = "rank-{rank}.json"
"""File, beside the job's, in which a rank leaves its result; written whole or not at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankResult:
    """Measurements of one rank."""

    rank: int
    """Global rank."""
    stage: int
    """Pipeline rank it belongs to."""
    layers: int
    """Decoder layers it holds, a count."""
    base_bytes: int
    """Tensors alive between steps."""
    peak_bytes: int
    """Most bytes of tensors alive at once in a step: counted on a CPU, the allocator's own peak elsewhere."""
    peak_parts: dict[str, int]
    """Bytes at that peak by category; empty where not known. What is neither parameters, gradients, optimizer,
    activations nor gathered (whole parameters and gradients that sharding assembles) is other."""
    reserved_bytes: int | None
    """Most bytes the device's allocator held from the driver; None on a CPU."""
    device_bytes: int | None
    """Used memory by the device's own tool; None without one."""
    step_seconds: tuple[float, ...]
    """Seconds of each timed step."""
    losses: tuple[float, ...]
    """Loss of each step where the rank knows it (last stage), warm-up included; else empty."""
    forward_seconds: float | None
    """Median seconds of the rank's forward passes of one step, all micro batches; None where not measured."""
    backward_seconds: float | None
    """Median seconds of the rank's backward passes of one step; None where not measured."""
    device_name: str
    """Device in its driver's words."""
    versions: dict[str, str]
    """Versions of torch, the driver and the collective library."""

    def write(self, folder: Path) -> None:
        """Write the result into `folder`."""
        write_whole(folder / RESULT_NAME.format(rank=self.rank), json.dumps(asdict(self), indent=2))

    @classmethod
    def read(cls, path: Path) -> RankResult:
        """Return the result that `write` wrote."""
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in ("step_seconds", "losses"):
            value[name] = tuple(value[name])
        return cls(**value)
