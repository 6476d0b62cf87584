"""The verdict on one recipe as a value, the gates it must pass, and the exit code of many. Prices nothing."""

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
"""`cannot_tell`: a value is missing; `not_modelled`: the simulator cannot price it; `unreadable`: the file or its use
is wrong; `skipped`: no recipe, and told to pass over such files."""
OUTCOMES: tuple[CheckOutcome, ...] = get_args(CheckOutcome)
FIRM: tuple[CheckOutcome, ...] = ("fits", "starved", "does_not_fit", "refused")
"""Outcomes of a recipe that was judged."""
NOT_JUDGED: tuple[CheckOutcome, ...] = ("cannot_tell", "not_modelled", "unreadable")
"""Outcomes of one that was not."""
PASSED, FAILED, WRONG_INPUT, NO_ANSWER = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What passes."""

    max_memory_fraction: float | None = None
    """Largest share of the usable memory that the worst rank may need."""
    min_fit_probability: float | None = None
    """Least probability to fit; None for any."""
    fail_on: tuple[CheckOutcome, ...] | None = None
    """Outcomes that fail; None for all but `fits`, `starved` and `skipped`. Where a gate above is broken, `fits` and
    `starved` fail whatever stands here."""
    skip_non_recipes: bool = False
    """A file that starts no training is passed over; so it is anyway where it lies in a folder that is walked."""
    exit_zero: bool = False
    """Report only: a recipe that fails, or cannot be judged, leaves the exit code alone."""

    def broken(self, estimate: Estimate) -> tuple[str, ...]:
        """The gates that an estimate does not pass, one sentence each."""
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
        """Return a result with whether it passes here."""
        if self.fail_on is None or result.outcome in ("fits", "starved", "skipped"):
            return result
        return replace(result, passed=result.outcome not in self.fail_on)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A set of changes after which the recipe fits."""

    options: tuple[str, ...]
    """As on the command line, such as `--recompute full`."""
    estimate: Estimate
    """The recipe after the changes."""
    speed_ratio: float
    """Tokens per second and device over those of the recipe as it is, had it fit."""
    case: Case
    """The question that the recipe asks with the changes."""
    patch: str = ""
    """A unified diff of the recipe that makes them, where that was asked for and the text gives a hold."""

    @property
    def text(self) -> str:
        """The changes on one line."""
        return " ".join(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The verdict on one launch of one file."""

    file: str
    """Name of the file, as it was given."""
    title: str = ""
    """Which launch of the file; empty where it has one."""
    framework: str = ""
    """Training stack of the launch."""
    dialect: str = ""
    """Kind of recipe, by its reader."""
    outcome: CheckOutcome
    """The verdict."""
    passed: bool
    """Whether it passes the gates."""
    known: bool = False
    """Whether a baseline has the same failure, which then fails no more."""
    reasons: tuple[str, ...] = ()
    """Why it did not pass: the gates, what is missing, what is wrong; one sentence each."""
    remarks: tuple[Remark, ...] = ()
    """Refusals of the framework, what is missing and what the reader noticed, errors first."""
    blame: Place | None = None
    """The line of the flag that decides a failure."""
    estimate: Estimate | None = None
    peaks: Peaks | None = None
    without_offload: Estimate | None = None
    """The same with everything on the device, where the recipe offloads."""
    changes: tuple[Change, ...] = ()
    room: Room | None = None
    """How far it could go on its devices, where it was priced."""
    case: Case | None = None
    """The question that was priced."""

    @property
    def name(self) -> str:
        """File and launch, for people."""
        return f"{self.file} ({self.title})" if self.title else self.file


def exit_code(results: Iterable[Checked], gates: Gates) -> int:
    """One code for all results that fail, those apart that a baseline has.

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
