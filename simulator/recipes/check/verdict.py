"""Record of a verdict on a recipe: outcome, reasons, places, marks of the code that it starts; its peaks and its room.

Room is the longest sequence and the largest micro batch that would still fit.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simulator.answers.cases import Case
from simulator.answers.explain import Change
from simulator.answers.gates import OUTCOMES, CheckOutcome, Gates
from simulator.answers.rules import Mark
from simulator.cost.derived import pricing_of
from simulator.cost.memory.outside import outside_allocator
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import FITS, Sized, size
from simulator.cost.stages import usable_bytes
from simulator.errors import SimulateError
from simulator.late import read_late
from simulator.question.origin import Place, Remark
from simulator.question.question import Question
from simulator.question.scenario.block import Array
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.records import Record, field, replace
from simulator.tabular import Tabular

_TOKENS = 128  # sequence lengths are tried in multiples of this, and of the parts that the layout splits them into
_LONGEST, _MOST_SEQUENCES = 2**21, 512


class Room(Record, kw_only=True):
    """The largest value of each setting with all others unchanged; None where not even the smallest fits."""

    seq_length: int | None
    """Tokens per sequence, a multiple of 128."""
    micro_batch_size: int | None
    """Sequences per micro batch: a divisor of a replica's sequences per step, or any number of a recipe that says its
    accumulation, whose step grows with it."""


def room_of(case: Case, estimate: Estimate) -> Room:
    """Return the largest sequence length and micro batch of a case that fit as surely as a verdict says "fits".

    `estimate` is that of the case: its range is taken for theirs.
    """
    memory = estimate.memory
    likely = 1.0 if memory.interval_bytes is None else memory.interval_bytes.high / memory.device_bytes
    return Room(seq_length=_longest(case, likely), micro_batch_size=_largest(case, likely))


def _longest(case: Case, likely: float) -> int | None:
    layout = case.layout
    pieces = 2 * layout.context_parallel * layout.tensor_parallel if layout.context_parallel > 1 else 1
    unit = math.lcm(_TOKENS, pieces)

    def share(count: int) -> float:
        return _share(case.scenario.of_length(count * unit), layout, likely)

    longest = _last(share, max(case.scenario.seq_length // unit, 1), _LONGEST // unit)
    return longest * unit if longest else None


def _share(scenario: Scenario, layout: Layout, likely: float) -> float:
    """Return the memory needed over that which fits; infinite where the layout is refused or the host full."""
    try:
        sized = size(pricing_of(scenario, layout))
    except SimulateError:
        return math.inf
    full = min(scenario.coefficients.memory.starved_from, 1.0 / likely)
    needed = float(_shares(scenario, sized)[0] / full)
    return needed if needed > 1.0 or sized.verdict[0] == FITS else math.inf


def _shares(scenario: Scenario, sized: Sized) -> Array:
    """Return what must fit over the usable memory of the fullest rank, shape (n,)."""
    return np.asarray(sized.need_bytes / usable_bytes(scenario, sized.memory.contents)[sized.binding_stage, 0])


def _last(share: Callable[[int], float], start: int, most: int) -> int:
    """Return the last number with a share up to 1, of shares that grow with the number; 0 where there is none."""
    low, high, number, before = 0, most + 1, min(start, most), (0, math.inf)
    for tries in itertools.count(1):
        value = share(number)
        low, high = (number, high) if value <= 1.0 else (low, number)
        if high - low <= 1:
            break
        # Memory is nearly linear in the tokens: the line through two shares leads to the place, else halving does.
        slope = (value - before[1]) / (number - before[0])
        if 0.0 < slope < math.inf and tries % 4:
            aim = number + math.floor((1.0 - value) / slope)
        else:
            aim = (low + high) // 2 if high <= most else 2 * number
        number, before = min(max(aim, low + 1), high - 1), (number, value)
    return low


def _largest(case: Case, likely: float) -> int | None:
    layout, scenario, question = case.layout, case.scenario, case.question
    sequences = scenario.global_batch_size // layout.data_parallel
    recipe = question.recipe
    if recipe is not None and recipe.gradient_accumulation_steps and question.stated("global_batch_size") is None:

        def share(number: int) -> float:
            batch = scenario.global_batch_size // layout.micro_batch_size * number
            return _share(replace(scenario, global_batch_size=batch), replace(layout, micro_batch_size=number), likely)

        return _last(share, layout.micro_batch_size, _MOST_SEQUENCES) or None
    stages = layout.pipeline_parallel if layout.virtual_stages > 1 else 1
    sizes = [
        size
        for size in range(1, min(sequences, _MOST_SEQUENCES) + 1)
        if scenario.global_batch_size % (size * layout.data_parallel) == 0 and sequences // size % stages == 0
    ]
    if not sizes:
        return None
    sized = size(pricing_of(scenario, *(replace(layout, micro_batch_size=each) for each in sizes)))
    fits = (sized.verdict == FITS) & (_shares(scenario, sized) <= 1.0 / likely)
    return max((each for each, passes in zip(sizes, fits, strict=True) if passes), default=None)


class Peak(Record, kw_only=True):
    """The need of the worst rank in one part of the step."""

    stage: int
    """Pipeline rank, from 0."""
    device_bytes: float
    """Device memory that it needs."""
    capacity_bytes: float
    """Device memory that a framework can use."""

    @property
    def fits(self) -> bool:
        """Whether the need is within the usable memory."""
        return self.device_bytes <= self.capacity_bytes


class Peaks(Record, kw_only=True):
    """Peaks of the two parts of a step, each on its own worst rank."""

    passes: Peak
    """Forward, loss and backward."""
    optimizer_step: Peak


def peaks_of(scenario: Scenario, layout: Layout) -> Peaks:
    """Return both peaks of a layout."""
    pricing = pricing_of(scenario, layout)
    memory = size(pricing).memory
    usable = usable_bytes(scenario, memory.contents)[:, 0]

    def largest(*, step: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        totals = [each.total(memory.contents) for each in memory.moments if (each.name == "optimizer step") == step]
        return np.asarray(np.max(np.stack(totals), axis=0) + memory.retained)

    def worst(allocated: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Peak:
        device = (allocated + outside_allocator(pricing, allocated).total)[:, 0]
        stage = int(np.argmax(device / usable))
        return Peak(stage=stage, device_bytes=float(device[stage]), capacity_bytes=float(usable[stage]))

    return Peaks(passes=worst(largest(step=False)), optimizer_step=worst(largest(step=True)))


_MOST_BYTES = 2_000_000
_PATTERNS: dict[Mark, re.Pattern[str]] = {
    "llama3.1-example": re.compile(r"^[^#\n]*\bpretrain_llama\.py", re.MULTILINE),
    "megatron-240718": re.compile(r"^[^#\n]*Megatron-LM-240718", re.MULTILINE),
    # Snapshots are named by date; 0.12 dates from spring 2025.
    "megatron-before-0.12": re.compile(r"^[^#\n]*Megatron-LM-2([34]\d{4}|50[12]\d\d)\b", re.MULTILINE),
}
_NAMES = ("pretrain_llama.py", "Megatron-LM-2")  # texts without which no pattern matches


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
class Checked(Record, kw_only=True):
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
    return replace(result, passed=not fails)


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


class Stored(Record, kw_only=True):
    """A result in a baseline file."""

    outcome: str
    """The verdict."""
    passed: bool
    """Whether it passed the gates."""
    device_bytes: float | None
    """Need of the fullest device."""
    step_seconds: float | None
    """Time of a step."""

    def ratios_to(self, before: Stored) -> tuple[float | None, float | None]:
        """Return device memory and step time over earlier ones; None where one is missing or zero."""
        pairs = (before.device_bytes, self.device_bytes), (before.step_seconds, self.step_seconds)
        memory, time = (new / old if old and new else None for old, new in pairs)
        return memory, time


class Changed(Record, kw_only=True):
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


class Checks(Tabular, Record, kw_only=True):
    """Verdicts on recipes."""

    results: tuple[Checked, ...]
    """Result of each launch of each file."""
    gates: Gates
    """Conditions of passing."""
    changed: tuple[Changed, ...] | None = None
    """Differences from the baseline; None without one."""
    patches: bool = False
    """Whether patches of helpful changes were asked for."""
    question: Question = field(default_factory=Question, repr=False, compare=False)
    """Values that stand above those of the recipes."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Values known only at launch."""

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
