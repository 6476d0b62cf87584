"""Comparison of one layout's prediction with its measured rows: memory, step, every rank.

Computes differences only; nothing is fitted or judged here.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.evidence.measurements.row import MeasuredRow
from simulator.lab.runner.launch import Launched
from simulator.lab.trainer.job import RankResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """Predicted and measured value of one figure, in base units."""

    predicted: float
    """Estimated value."""
    interval: Interval | None
    """90 % interval of the prediction; None without a calibration."""
    measured: float
    """Median of the launches."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool | None:
        """Whether the measured figure lies in the predicted 90 % interval; None without one."""
        return None if self.interval is None else self.interval.low <= self.measured <= self.interval.high


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigure:
    """Peak memory of one rank, in bytes, and the time of its passes in a step, in seconds."""

    rank: int
    """Global rank, from 0."""
    stage: int
    """Pipeline rank it belongs to, from 0."""
    predicted: float
    """Tensors alive at its peak, as estimated."""
    measured: float
    """Tensors alive at its peak, as measured."""
    predicted_forward_seconds: float
    """Forward passes of a step, as estimated."""
    forward_seconds: float | None
    """Forward passes of a step, as measured; None where the engine does not know them."""
    predicted_backward_seconds: float
    """Backward passes of a step, as estimated."""
    backward_seconds: float | None
    """Backward passes of a step, as measured; None where the engine does not know them."""
    predicted_device_bytes: float
    """Estimated memory of the device: tensors, allocator, libraries and driver."""
    device_bytes: float | None
    """Memory by the device's own tool, other processes included; None without one."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutComparison:
    """Layout with its prediction and its launches."""

    title: str
    """Place in the ranking, model and layout in a word."""
    estimate: Estimate
    """Prediction."""
    rows: tuple[MeasuredRow, ...]
    """Measured rows of this campaign, and of the earlier one that it resumed."""
    launched: tuple[Launched, ...]
    """Launches of this campaign, in order."""

    @property
    def ran(self) -> tuple[MeasuredRow, ...]:
        """Rows of launches that ended well."""
        return tuple(row for row in self.rows if row.outcome == "ok")

    @property
    def earlier(self) -> int:
        """Rows that an earlier campaign measured, a count."""
        return len(self.rows) - len([launched for launched in self.launched if launched.outcome.row is not None])

    @property
    def scatter(self) -> float:
        """Widest distance of a launch's quartiles over its median step; 0 where no spread is known."""
        return max(
            (
                spread.interquartile / row.step_seconds
                for row in self.ran
                if (spread := row.step_time_spread) is not None and row.step_seconds
            ),
            default=0.0,
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """Failures of launches, in a few words each."""
        return tuple(f"{_WORDS[row.outcome]}: {row.error}" for row in self.rows if row.outcome != "ok")

    @property
    def contradiction(self) -> str:
        """Contradiction of a launch to the verdict, or an empty text; a starved layout may run or not."""
        outcomes = {row.outcome for row in self.rows}
        if self.estimate.verdict == "fits" and "oom" in outcomes:
            return "predicted to fit, ran out of memory"
        if self.estimate.verdict == "does_not_fit" and "ok" in outcomes:
            return "predicted not to fit, ran"
        return ""

    @property
    def predicted_memory(self) -> tuple[float, Interval | None]:
        """Bytes on the fullest rank, of the kind that was measured (tensors, unless rows say otherwise)."""
        need, interval = self.estimate.memory, self.estimate.memory.interval_bytes
        if self._memory_kind == "device":
            return need.device_bytes, interval
        allocated = max(stage.allocated_bytes for stage in need.stages)
        # The interval is that of the device figure; tensors are assumed to be as uncertain, in relation.
        share = allocated / need.device_bytes
        return allocated, interval and Interval(interval.low * share, interval.high * share)

    @property
    def memory(self) -> ComparedFigure | None:
        """Memory of the fullest rank; None where it was not measured."""
        kind = self._memory_kind
        sizes = [row.memory_bytes for row in self.ran if row.memory_bytes is not None and row.compares_with == kind]
        if not sizes:
            return None
        predicted, interval = self.predicted_memory
        return ComparedFigure(predicted=predicted, interval=interval, measured=statistics.median(sizes))

    @property
    def _memory_kind(self) -> str:
        return next((row.compares_with for row in self.ran if row.compares_with is not None), "allocated")

    @property
    def step(self) -> ComparedFigure | None:
        """Seconds of an optimizer step; None where they were not measured."""
        seconds = [row.step_seconds for row in self.ran if row.step_seconds is not None]
        if not seconds:
            return None
        speed = self.estimate.throughput
        return ComparedFigure(
            predicted=speed.step_seconds, interval=speed.interval_seconds, measured=statistics.median(seconds)
        )

    @property
    def ranks(self) -> tuple[RankFigure, ...]:
        """Figures of every rank whose engine knows its peak; medians over several launches."""
        results = [launched.outcome.ranks for launched in self.launched if launched.outcome.kind == "ok"]
        return tuple(self._rank(same) for same in zip(*results, strict=False))

    def _rank(self, same: Sequence[RankResult]) -> RankFigure:
        """Return the figures of one rank, from all launches."""
        stage, layout = same[0].stage, self.estimate.layout
        passes = self.estimate.throughput.stages[stage]
        micro_batches = self.estimate.global_batch_size / (layout.micro_batch_size * layout.data_parallel)
        return RankFigure(
            rank=same[0].rank,
            stage=stage,
            predicted=self.estimate.memory.stages[stage].allocated_bytes,
            measured=statistics.median(result.peak_bytes for result in same),
            predicted_forward_seconds=micro_batches * passes.forward_seconds,
            forward_seconds=_median([result.forward_seconds for result in same]),
            predicted_backward_seconds=micro_batches * passes.backward_seconds,
            backward_seconds=_median([result.backward_seconds for result in same]),
            predicted_device_bytes=self.estimate.memory.stages[stage].device_bytes,
            device_bytes=_median([result.device_bytes for result in same]),
        )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


_WORDS = {"oom": "out of memory", "error": "failed"}


def compared(
    titles: Sequence[tuple[str, Estimate]], rows: dict[str, list[MeasuredRow]], launched: Sequence[Launched]
) -> Iterator[LayoutComparison]:
    """Yield a comparison for each layout, in the order of the ranking."""
    for title, estimate in titles:
        yield LayoutComparison(
            title=title,
            estimate=estimate,
            rows=tuple(rows.get(title, ())),
            launched=tuple(launch for launch in launched if launch.launch.title == title),
        )
