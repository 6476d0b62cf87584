"""Record of a verdict on a recipe: outcome, reasons, places, and marks of the code that the recipe starts.

`check.judge` makes them, `show.report.check` writes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from simulator.answers.cases import Case
from simulator.answers.explain import Change
from simulator.answers.gates import OUTCOMES, CheckOutcome, Gates
from simulator.answers.rules import Mark
from simulator.cost.pricing.estimate import Estimate
from simulator.question.origin import Place, Remark
from simulator.recipes.check.room import Peaks, Room
from simulator.tabular import Tabular, read_late, replaced

_MOST_BYTES = 2_000_000
_PATTERNS: dict[Mark, re.Pattern[str]] = {
    "llama3.1-example": re.compile(r"^[^#\n]*\bpretrain_llama\.py", re.MULTILINE),
    "megatron-240718": re.compile(r"^[^#\n]*Megatron-LM-240718", re.MULTILINE),
    # Snapshots are named by date; 0.12 dates from spring 2025.
    "megatron-before-0.12": re.compile(r"^[^#\n]*Megatron-LM-2([34]\d{4}|50[12]\d\d)\b", re.MULTILINE),
}
_NAMES = ("pretrain_llama.py", "Megatron-LM-2")
"""Texts without which no pattern matches."""


def marks_of(file: str) -> frozenset[Mark]:
    """Return the marks in a recipe's text, comments left out; empty where it cannot be read."""
    text = text_of(file)
    if not any(name in text for name in _NAMES):
        return frozenset()
    return frozenset(mark for mark, pattern in _PATTERNS.items() if pattern.search(text))


def text_of(file: str) -> str:
    """Return the recipe's text; empty where it cannot be read again."""
    try:
        with Path(file).open("rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


ChangeKind = Literal["new_failure", "fixed", "outcome", "drift", "added", "removed"]
NOT_JUDGED: tuple[CheckOutcome, ...] = ("depends", "longest_does_not_fit", "cannot_tell", "not_modelled", "unreadable")
"""Outcomes of recipes without a firm verdict."""
LONGEST_STATED = "stated-length-decides"
"""Rule of a stated bound, such as a cutoff, by which it does not fit though the shortest sample does."""
LEFT_OUT = ": left out by "
"""Words between a file and the place of the settings that leave it out."""
OWN_SETTINGS = ": the settings of simulate"
"""Words behind a settings file that has remarks."""
UNMATCHED = "pattern-unmatched"
"""Rule of the note on a pattern of the settings that matches no file."""
PASSED, FAILED, WRONG_INPUT, NO_ANSWER = 0, 1, 2, 3


@read_late("peaks", "without_offload", "changes", "room")
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


def graded(result: Checked, gates: Gates) -> Checked:
    """Return a result with whether it passes the gates' outcomes."""
    if gates.fail_on is None or result.outcome in ("fits", "starved", "skipped"):
        return result
    stated = result.outcome == "longest_does_not_fit" and any(each.rule == LONGEST_STATED for each in result.remarks)
    fails = result.outcome in gates.fail_on or (stated and "stated_longest_does_not_fit" in gates.fail_on)
    return replaced(result, passed=not fails)


def exit_code(results: Iterable[Checked], gates: Gates) -> int:
    """Return one code for all results, apart from failures that a baseline has.

    2 where any file or its use is wrong, else 1 where any fails, else 3 where any cannot be told, else 0.
    """
    codes = {_code(result, gates) for result in results}
    if gates.exit_zero:
        codes -= {FAILED, NO_ANSWER}
    return next((code for code in (WRONG_INPUT, FAILED, NO_ANSWER) if code in codes), PASSED)


def _code(result: Checked, gates: Gates) -> int:
    if result.passed or result.known:
        return PASSED
    if result.outcome == "unreadable":
        return WRONG_INPUT
    if result.outcome == "longest_does_not_fit":
        return FAILED if gates.fail_on else NO_ANSWER
    return NO_ANSWER if result.outcome in ("depends", "cannot_tell", "not_modelled") else FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A result in a baseline file."""

    outcome: str
    """The verdict."""
    passed: bool
    """Whether it passed the gates."""
    device_bytes: float | None
    """Need of the fullest device."""
    step_seconds: float | None
    """Time of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A recipe whose result has changed."""

    file: str
    """Name of the file."""
    title: str
    """Name of the launch within the file."""
    kind: ChangeKind
    """Kind of change."""
    before: Stored | None
    after: Stored | None

    @property
    def name(self) -> str:
        """File and launch, for display."""
        return f"{self.file} ({self.title})" if self.title else self.file

    @property
    def memory_ratio(self) -> float | None:
        """New over old device memory."""
        return _of_both(self.before, self.after, lambda stored: stored.device_bytes)

    @property
    def time_ratio(self) -> float | None:
        """New over old step time."""
        return _of_both(self.before, self.after, lambda stored: stored.step_seconds)


def _of_both(before: Stored | None, after: Stored | None, figure: Callable[[Stored], float | None]) -> float | None:
    return None if before is None or after is None else figure_ratio(figure(before), figure(after))


def figure_ratio(before: float | None, after: float | None) -> float | None:
    """Return the new over the old figure; None where one is missing or zero."""
    return after / before if before and after else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks(Tabular):
    """Verdicts on recipes."""

    results: tuple[Checked, ...]
    """Result of each launch of each file."""
    gates: Gates
    """Conditions of passing."""
    changed: tuple[Changed, ...] | None = None
    """Differences from the baseline; None without one."""
    patches: bool = False
    """Whether patches of helpful changes were asked for."""

    @property
    def exit_code(self) -> int:
        """Exit code of `simulate check`: 0 all pass, 1 some fail, 2 wrong input, 3 something cannot be told."""
        return exit_code(self.results, self.gates)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each launch: its verdict and, if it was priced, its memory and speed."""
        return [_row(result) for result in self.results]

    def __repr__(self) -> str:
        """Return one line: the number of recipes of each verdict."""
        outcomes = [result.outcome for result in self.results]
        counts = (f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES if outcome in outcomes)
        return f"<Checks of {len(outcomes)}: {', '.join(counts) or 'none'}>"


def _row(result: Checked) -> dict[str, Any]:
    priced = result.estimate
    return {
        **{name: getattr(result, name) for name in ("file", "title", "framework", "outcome", "passed")},
        "reasons": "; ".join(result.reasons),
        "device_bytes": None if priced is None else priced.memory.device_bytes,
        "capacity_bytes": None if priced is None else priced.memory.capacity_bytes,
        "fit_probability": None if priced is None else priced.memory.fit_probability,
        "step_seconds": None if priced is None else priced.throughput.step_seconds,
    }
