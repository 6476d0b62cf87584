"""Request and result of a trace, and its comparison with the prediction. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simulator.cost.pricing.estimate import Estimate, StageMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """Stage to trace, and the job of the step."""

    job: str
    """Training job as JSON, with the fewest micro batches that show every moment of the step."""
    stage: int
    """Pipeline rank to trace."""
    micro_batches: int
    """Micro batches of the whole step: a pipeline has receive buffers for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """Bytes of tensors alive in one step of a pipeline rank whose optimizer has its states."""

    stage: int
    """Pipeline rank."""
    peak_bytes: int
    """Most bytes alive at once."""
    moment: str
    """Moment of the peak: forward, loss, backward, embedding gradient, gradient reduction or optimizer step."""
    parts_bytes: Mapping[str, int]
    """Bytes at the peak by category; they add up to it."""
    base_bytes: int
    """Bytes alive between steps."""
    micro_batches: int
    """Micro batches that the traced step ran, a count."""
    seconds: float
    """Duration of the trace."""
    resident_bytes: int
    """Peak memory of the tracing process on this machine."""
    torch_version: str
    """Version of PyTorch that ran it."""

    def to_json(self) -> str:
        """Return the result as a JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Traced:
        """Return the result that `to_json` wrote."""
        value: dict[str, Any] = json.loads(text)
        return cls(**value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceComparison:
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
        """(part, traced, predicted) in bytes; both columns add up to their peak.

        Whole copies of the parameters that are kept from pass to pass are predicted as parameters.
        """
        of = self.traced.parts_bytes
        whole = of.get("gathered", 0) if self.estimate.layout.zero_stage < 3 else 0
        traced = {
            "parameters": of.get("parameters", 0) + whole,
            "gradients": of.get("gradients", 0),
            "optimizer": of.get("optimizer", 0),
        }
        predicted = {name: self.predicted.parts_bytes[name] for name in traced}
        rows = [(name, float(traced[name]), predicted[name]) for name in traced]
        rest = self.traced.peak_bytes - sum(traced.values())
        rows.append(
            ("activations, logits, temporary", float(rest), self.predicted.allocated_bytes - sum(predicted.values()))
        )
        return tuple(rows)
