"""Gates: conditions that an answer must keep to pass, such as a smallest probability to fit; outcomes of a check."""

from __future__ import annotations

from typing import Literal, get_args

from simulator.cost.pricing.estimate import Estimate, MemoryEstimate, Verdict
from simulator.records import Record

CheckOutcome = Literal[
    "fits",
    "depends",
    "starved",
    "does_not_fit",
    "longest_does_not_fit",
    "refused",
    "cannot_tell",
    "not_modelled",
    "unreadable",
    "skipped",
]
"""`depends`: on what nobody said; `longest_does_not_fit`: the shortest samples fit and the longest, which the
recipe leaves open, do not; `cannot_tell`: a value is missing; `not_modelled`: the simulator cannot price it;
`unreadable`: the file or its use is wrong; `skipped`: not a recipe, where such files are passed over."""
FailingOutcome = CheckOutcome | Literal["stated_longest_does_not_fit"]
"""Outcomes that may fail a check; the last is `longest_does_not_fit` of a length that the recipe itself states."""
FAILING: tuple[FailingOutcome, ...] = (*get_args(CheckOutcome), "stated_longest_does_not_fit")
"""Words that may fail a check."""
OUTCOMES: tuple[CheckOutcome, ...] = get_args(CheckOutcome)
FIRM: tuple[CheckOutcome, ...] = ("fits", "starved", "does_not_fit", "refused")
"""Outcomes of judged recipes."""


class Gates(Record, kw_only=True):
    """Conditions that a recipe must pass."""

    max_memory_fraction: float | None = None
    """Largest share of the usable memory that the worst rank may need."""
    min_fit_probability: float | None = None
    """Smallest probability to fit; None for any."""
    fail_on: tuple[FailingOutcome, ...] | None = None
    """Outcomes that fail; None for all but `fits`, `starved` and `skipped`. `fits` and `starved` always fail where a
    gate above is broken."""
    skip_non_recipes: bool = False
    """Whether to pass over files that start no training, as is always done in folders."""
    exit_zero: bool = False
    """Whether recipes that fail or cannot be judged leave the exit code at 0."""

    def broken(self, estimate: Estimate) -> tuple[str, ...]:
        """Return the gates that an estimate does not pass, one sentence each."""
        return self._broken(estimate.memory, estimate.verdict)

    def unsaid(self, estimate: Estimate) -> str:
        """Return which of the memories that the hardware's name leaves open breaks a gate beside one that breaks none.

        Empty where all answer the same.
        """
        is_gated = self.max_memory_fraction or self.min_fit_probability or "starved" in (self.fail_on or ())
        if not is_gated or estimate.verdict not in ("fits", "starved"):
            return ""
        broken = {estimate.hardware: self.broken(estimate)}
        broken |= {other.hardware: self._broken(other.memory, other.verdict) for other in estimate.other_memories}
        without = next((name for name, problems in broken.items() if not problems), "")
        worst = next((name for name, problems in broken.items() if problems), "")
        return f"the memory is not said: {worst}: {broken[worst][0]}; {without} passes" if worst and without else ""

    def _broken(self, memory: MemoryEstimate, verdict: Verdict) -> tuple[str, ...]:
        problems: list[str] = []
        share = memory.device_bytes / memory.capacity_bytes
        if self.max_memory_fraction is not None and share > self.max_memory_fraction:
            problems.append(
                f"needs {share:.1%} of the usable memory; --max-memory-fraction is {self.max_memory_fraction:.1%}"
            )
        likely = memory.fit_probability
        if self.min_fit_probability is not None:
            if likely is None:
                problems.append("no calibration tells how probable it is to fit; --min-fit-probability asks for it")
            elif likely < self.min_fit_probability:
                problems.append(
                    f"fits with probability {likely:.1%}; --min-fit-probability is {self.min_fit_probability:.1%}"
                )
        if "starved" in (self.fail_on or ()) and verdict == "starved":
            problems.append("so near capacity that it would run slowly, if at all; --fail-on starved")
        return tuple(problems)
