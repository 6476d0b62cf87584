"""Predictions beside what launches measured, and what a calibration by their rows changes.

    >>> [comparison] = compared([(title, estimate)], {title: rows}, launched)
    >>> comparison.step.error, comparison.step.inside
    (-0.433, False)

`learn` fits the rows, by the one fit there is (`simulator.evidence.calibration`), and ranks again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.evidence.calibration.own import fit_own, unused
from simulator.evidence.calibration.sample import Sample, prepared
from simulator.evidence.calibration.store import KINDS, calibration_text
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.files import write_file
from simulator.lab.runner.engine import Launched
from simulator.lab.trainer.job import RankResult
from simulator.question.scenario.layout import Layout

Rank = Callable[[str], Sequence[Estimate]]
"""Function that ranks the campaign's question with a calibration file, best first."""
_WORDS = {"oom": "out of memory", "error": "failed"}


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
        relation = allocated / need.device_bytes
        return allocated, interval and Interval(interval.low * relation, interval.high * relation)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Layout in both rankings."""

    layout: Layout
    """The layout."""
    before: int | None
    """Place among the layouts ranked, from 1; None beyond them."""
    after: int | None
    """Place with the new calibration."""
    estimate_before: Estimate | None
    """Estimate before; None beyond the layouts ranked."""
    estimate_after: Estimate | None
    """Estimate with the new calibration; None beyond the layouts ranked."""
    measured_seconds: float | None
    """Median step of its launches; None where it was not launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """Changes that the rows of a record made."""

    path: Path
    """File of the calibration, written or not."""
    stored: bool
    rows: int
    """Rows that decide a coefficient."""
    reasons: tuple[str, ...]
    """Reasons why something was not stored or not used."""
    moved: tuple[Moved, ...]
    """Best layouts of both rankings, in the new order; empty where nothing was stored."""


def learn(rows: Sequence[MeasuredRow], path: Path, *, before: Sequence[Estimate], rank: Rank, top: int) -> Learned:
    """Fit all rows of a record from the shipped calibration, write the new one, and rank again.

    `before` is the ranking so far; the best `top` of both are reported. Raises InputError where the file cannot be
    written.
    """
    samples = prepared(rows)
    fitted = fit_own(samples[0].scenario.hardware.family, samples)
    stored = [fit for kind in KINDS if (fit := fitted.stored(kind))]
    reasons = tuple(filter(None, (*map(fitted.not_stored, KINDS), *unused(rows, [fitted]))))
    if not stored:
        return Learned(path=path, stored=False, rows=0, reasons=reasons, moved=())
    write_file(path, calibration_text(fitted.calibration()))
    used = {key for fit in stored for key in fit.keys}
    moved = _moved(before, rank(str(path)), _measured(samples), top)
    return Learned(path=path, stored=True, rows=len(used), reasons=reasons, moved=moved)


def _measured(samples: Sequence[Sample]) -> dict[Layout, float]:
    """Return the median step seconds of layouts that were measured."""
    seconds: dict[Layout, list[float]] = {}
    for sample in samples:
        if sample.row.step_seconds is not None:
            seconds.setdefault(sample.layout, []).append(sample.row.step_seconds)
    return {layout: sorted(times)[len(times) // 2] for layout, times in seconds.items()}


def _moved(
    before: Sequence[Estimate], after: Sequence[Estimate], measured: Mapping[Layout, float], top: int
) -> tuple[Moved, ...]:
    """Return the best `top` of either ranking and all measured layouts, in the new order."""
    places = [{row.layout: (at, row) for at, row in enumerate(ranking, start=1)} for ranking in (before, after)]
    layouts = [*(row.layout for row in after[:top]), *(row.layout for row in before[:top])]
    layouts += [row.layout for row in before if row.layout in measured]
    moved = []
    for layout in dict.fromkeys(layouts):
        was, now = places[0].get(layout), places[1].get(layout)
        moved.append(
            Moved(
                layout=layout,
                before=was and was[0],
                after=now and now[0],
                estimate_before=was and was[1],
                estimate_after=now and now[1],
                measured_seconds=measured.get(layout),
            )
        )
    last = len(before) + len(after)
    return tuple(sorted(moved, key=lambda row: (row.after or last, row.before or last)))
