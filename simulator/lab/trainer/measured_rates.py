"""Operations to time and their timings, as files that both sides read. Imports no torch."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from simulator.lab.trainer.job import write_whole
from simulator.question.scenario.layout import Layout

RATES_NAME = "rates.json"
"""File, beside the job's, in which the first rank writes the rates of all ranks."""

ProbedOperation = Literal[
    "gemm",
    "attention",
    "add",
    "swiglu",
    "optimizer",
    "host_copy",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "send",
]
COLLECTIVES: Final[tuple[ProbedOperation, ...]] = ("all_gather", "reduce_scatter", "all_reduce", "send")
"""Operations that need two ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Operation at one size, which all ranks run at the same time, as in training."""

    operation: ProbedOperation
    sizes: Mapping[str, int]
    """Counts, by the name that the operation has for them:
    gemm `rows inner columns`, attention `batch heads kv_heads tokens head_dim`, add and swiglu `elements`,
    optimizer `parameters`, host_copy and the collectives `bytes` (of the whole, gathered tensor)."""
    precision: str = "bf16"
    """Type of the tensors: bf16 or fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Seconds of a timing."""

    timing: Timing
    forward_seconds: tuple[float, ...]
    """Seconds of each repeat on the slowest rank; of the whole operation where it has no backward pass."""
    backward_seconds: tuple[float, ...] = ()
    """Seconds of each repeat's backward pass, both gradients; empty where there is none."""

    @property
    def forward(self) -> float:
        """Median seconds."""
        return statistics.median(self.forward_seconds)

    @property
    def backward(self) -> float:
        """Median seconds of the backward pass; 0 where there is none."""
        return statistics.median(self.backward_seconds) if self.backward_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RatesJob:
    """Job of timings for the ranks. Fields of the device are those of a training job."""

    timings: tuple[Timing, ...]
    devices: int
    repeats: int = 9
    """Repeats of each timing, a count; the first ones warm up and are not kept."""
    backend: str = "cpu"
    communication: str = ""
    threads: int = 1

    @property
    def layout(self) -> Layout:
        """Layout of one rank per device."""
        return Layout(data_parallel=self.devices)

    def to_json(self) -> str:
        """Return the job as a JSON object; `from_json` reads it back."""
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> RatesJob:
        """Return the job that `to_json` wrote."""
        value: dict[str, Any] = json.loads(text)
        timings = tuple(_timing(entry) for entry in value.pop("timings"))
        return cls(timings=timings, **value)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """Timings of all ranks, and the device they were made on."""

    device_name: str
    versions: Mapping[str, str]
    devices: int
    memory_bytes: int
    """Memory of one device as its driver lists it; on a CPU the machine's, shared evenly by the ranks."""
    usable_bytes: int
    """Memory of one device that was free before the first timing."""
    timed: tuple[Timed, ...]

    def write(self, path: Path) -> None:
        """Write the rates to a file."""
        write_whole(path, json.dumps(asdict(self), indent=2))

    @classmethod
    def read(cls, path: Path) -> MeasuredRates:
        """Return the rates of a file. Raises ValueError, KeyError or TypeError for another file."""
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        timed = tuple(
            Timed(
                timing=_timing(entry["timing"]),
                forward_seconds=tuple(entry["forward_seconds"]),
                backward_seconds=tuple(entry["backward_seconds"]),
            )
            for entry in value.pop("timed")
        )
        return cls(timed=timed, **value)


def _timing(entry: Mapping[str, Any]) -> Timing:
    if entry["operation"] not in get_args(ProbedOperation):
        raise ValueError(f"operation '{entry['operation']}' is not one of {', '.join(get_args(ProbedOperation))}")
    return Timing(**entry)
