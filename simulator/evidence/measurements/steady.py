"""Logged steps to one figure with its spread: warm-up dropped, median kept. Knows no framework."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.frameworks.logs import LoggedStep as Step

__all__ = ["Steady", "Step", "steady"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Steps after warm-up."""

    steps: tuple[Step, ...]
    dropped: int
    """Logged intervals left out at the start, a count."""
    until: int
    """Last iteration dropped because a memory report follows it; 0 without a report."""

    @property
    def seconds(self) -> float:
        """Median time per iteration, in seconds."""
        return statistics.median(step.seconds for step in self.steps)

    @property
    def rate(self) -> float | None:
        """Median of the logged speed; None when a step has none."""
        rates = [step.rate for step in self.steps if step.rate is not None]
        return statistics.median(rates) if len(rates) == len(self.steps) else None

    @property
    def columns(self) -> dict[str, int | float]:
        """Columns of the steps' spread, rounded to a microsecond; empty for a single step."""
        times = [step.seconds for step in self.steps]
        if len(times) == 1:
            return {}
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
        return {
            "step_samples": len(times),
            "step_min_s": round(min(times), 6),
            "step_max_s": round(max(times), 6),
            "step_iqr_s": round(high - low, 6),
        }

    @property
    def account(self) -> str:
        """Sentence on the steps that count, and why the others do not."""
        first, last = self.steps[0].iteration, self.steps[-1].iteration
        counted = f"Median of {len(self.steps)} logged steps, iterations {first} to {last}"
        if not self.dropped:
            return f"{counted}; none dropped."
        reason = f"start-up up to the memory report after iteration {self.until}" if self.until else "start-up"
        return f"{counted}; the first {self.dropped} dropped as warm-up ({reason})."


def steady(where: str, steps: Sequence[Step], warmup: int, until: int = 0) -> Steady:
    """Return the steps without the first `warmup` logged ones and all up to iteration `until`.

    A step that several ranks logged counts once, by the slowest. Raises InputError when nothing is left.
    """
    slowest: dict[int, Step] = {}
    for step in steps:
        known = slowest.get(step.iteration)
        if known is None or step.seconds > known.seconds:
            slowest[step.iteration] = step
    ordered = [slowest[iteration] for iteration in sorted(slowest)]
    counted = [step for at, step in enumerate(ordered) if at >= warmup and step.iteration > until]
    if not counted:
        raise InputError(
            f"{where}: {len(ordered)} logged steps, all within warm-up (the first {warmup}, and those up to iteration "
            f"{until}); run longer or give a smaller warm-up"
        )
    return Steady(steps=tuple(counted), dropped=len(ordered) - len(counted), until=until)
