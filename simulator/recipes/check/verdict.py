"""The verdict on one recipe, the gates that it must pass, and the exit code of many. Prices nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args

from simulator.cost.pricing.estimate import Estimate
from simulator.recipes.check.case import Case
from simulator.recipes.check.peaks import Peaks
from simulator.recipes.check.room import Room
from simulator.recipes.recipe import Place, Remark

CheckOutcome = Literal[
    "fits", "starved", "does_not_fit", "refused", "cannot_tell", "not_modelled", "unreadable", "skipped"
]
"""`cannot_tell`: a value is missing; `not_modelled`: the simulator cannot price it; `unreadable`: the file or its
use is wrong; `skipped`: not a recipe, where such files are passed over."""
OUTCOMES: tuple[CheckOutcome, ...] = get_args(CheckOutcome)
FIRM: tuple[CheckOutcome, ...] = ("fits", "starved", "does_not_fit", "refused")
"""Outcomes of judged recipes."""
NOT_JUDGED: tuple[CheckOutcome, ...] = ("cannot_tell", "not_modelled", "unreadable")
"""Outcomes of recipes that could not be judged."""
PASSED, FAILED, WRONG_INPUT, NO_ANSWER = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """Conditions that a recipe must pass."""

    max_memory_fraction: float | None = None
    """Largest share of the usable memory that the worst rank may need."""
    min_fit_probability: float | None = None
    """Smallest probability to fit; None for any."""
    fail_on: tuple[CheckOutcome, ...] | None = None
    """Outcomes that fail; None for all but `fits`, `starved` and `skipped`. `fits` and `starved` always fail where a
    gate above is broken."""
    skip_non_recipes: bool = False
    """Whether to pass over files that start no training, as is always done in folders."""
    exit_zero: bool = False
    """Whether recipes that fail or cannot be judged leave the exit code at 0."""

    def broken(self, estimate: Estimate) -> tuple[str, ...]:
        """Return the gates that an estimate does not pass, one sentence each."""
        memory = estimate.memory
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
        if "starved" in (self.fail_on or ()) and estimate.verdict == "starved":
            problems.append("so near capacity that it would run slowly, if at all; --fail-on starved")
        return tuple(problems)

    def graded(self, result: Checked) -> Checked:
        """Return a result with whether it passes these gates."""
        if self.fail_on is None or result.outcome in ("fits", "starved", "skipped"):
            return result
        return replace(result, passed=result.outcome not in self.fail_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A set of changes with which the recipe fits."""

    options: tuple[str, ...]
    """Options as on the command line, such as `--recompute full`."""
    estimate: Estimate
    """Estimate of the recipe with the changes."""
    speed_ratio: float
    """Tokens per second and device, relative to the unchanged recipe as if it fit."""
    case: Case
    """The changed recipe as a question."""
    patch: str = ""
    """Unified diff that makes the changes; empty unless requested and possible."""

    @property
    def text(self) -> str:
        """The options on one line."""
        return " ".join(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on one launch of one file."""

    file: str
    """Name of the file, as the user wrote it."""
    title: str = ""
    """Name of the launch within the file; empty for a single one."""
    framework: str = ""
    """Training stack of the launch."""
    dialect: str = ""
    """Recipe format."""
    outcome: CheckOutcome
    """The verdict."""
    passed: bool
    """Whether it passes the gates."""
    known: bool = False
    """Whether a baseline has the same failure, so that it no longer fails the check."""
    reasons: tuple[str, ...] = ()
    """Why it did not pass: broken gates, missing values, errors; one sentence each."""
    remarks: tuple[Remark, ...] = ()
    """The framework's refusals, missing values and the reader's remarks, errors first."""
    blame: Place | None = None
    """Line of the flag that decides a failure."""
    estimate: Estimate | None = None
    peaks: Peaks | None = None
    without_offload: Estimate | None = None
    """Estimate with everything on the device, for a recipe that offloads."""
    changes: tuple[Change, ...] = ()
    room: Room | None = None
    """Largest sequence and micro batch on its devices, where it was priced."""
    case: Case | None = None
    """The question that was priced."""

    @property
    def name(self) -> str:
        """File and launch, for display."""
        return f"{self.file} ({self.title})" if self.title else self.file


def exit_code(results: Iterable[Checked], gates: Gates) -> int:
    """Return one code for all results, apart from failures that a baseline has.

    2 where any file or its use is wrong, else 1 where any fails, else 3 where any cannot be told, else 0.
    """
    codes = {_code(result) for result in results}
    if gates.exit_zero:
        codes -= {FAILED, NO_ANSWER}
    return next((code for code in (WRONG_INPUT, FAILED, NO_ANSWER) if code in codes), PASSED)


def _code(result: Checked) -> int:
    if result.passed or result.known:
        return PASSED
    if result.outcome == "unreadable":
        return WRONG_INPUT
    return NO_ANSWER if result.outcome in ("cannot_tell", "not_modelled") else FAILED
