"""The report of ranges: how many measured runs lie inside theirs, by class and by what was left out. Fits nothing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from benchmarks.accuracy.judge import Residual, SourcesJudged
from simulator.evidence.calibration.apply import NORMAL_90
from simulator.question.coefficients import CoefficientKind
from simulator.show.report.calibration import TITLES
from simulator.show.report.presentation import Section

MANY_DEVICES: Final = 512
"""Devices from which runs are a class of their own."""
KNOWN_STACKS: Final = "not beyond other rows"
"""Rows whose stack, nodes and features other sources have too."""
LEAST_ROWS: Final = 40
"""Rows from which a class is held to `HELD`; a smaller one to a binomial test."""
HELD: Final = (0.85, 0.95)
"""Shares of the rows of a class that 90 % ranges may hold."""
_REJECTED: Final = 0.025
"""Probability in one tail from which a small class is rejected."""
_EXPLAINED: Final = (
    "Rows inside their 90 % range, which is sized by other sources, and half of its mean width. Classes are predicted "
    "with their source left out; below them each thing is left out of all rows that are asked: `device` a whole "
    "family, `stack` a framework on a family, `nodes` all runs on more devices, `layout` all runs of the framework on "
    f"the family with a feature. Held: 85 to 95 % of {LEAST_ROWS} rows and more; fewer are not rejected at 5 % by a "
    "binomial test of 90 %, and of a device family left out it is 85 % at least. Rows of a source err together: "
    "fewer than 35 sources that are all inside reject no range as too wide."
)


class JudgedRange(Protocol):
    """The ranges of one row under what was left out."""

    @property
    def source(self) -> str:
        """Table of the row."""

    @property
    def organisation(self) -> str:
        """Who ran it; its table where nobody is named."""

    @property
    def platform(self) -> str:
        """Class of the device."""

    @property
    def sort(self) -> str:
        """`dense` or `moe`; of memory the kind of figure."""

    @property
    def devices(self) -> int:
        """Devices of the run."""

    @property
    def left_out(self) -> Mapping[str, Residual]:
        """Residuals by what was left out."""

    @property
    def beyond(self) -> bool:
        """Whether without its source it lies beyond the other rows."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeldRanges:
    """Share of a class of rows inside its ranges."""

    left_out: str
    name: str
    rows: int
    sources: int
    inside: float
    """Share of the rows."""
    half_width: float
    """Mean, in the logarithm."""
    held: bool
    """Whether the share is what a range of 90 % may hold."""


def coverages(kind: CoefficientKind, rows: Sequence[JudgedRange]) -> Iterator[HeldRanges]:
    """Yield classes of rows with their source left out, then all rows that lack each further thing."""
    for name, members in _classes(kind, rows):
        if members:
            yield _coverage("source", name, members)
    for left_out in dict.fromkeys(name for row in rows for name in row.left_out):
        if left_out != "source":
            lacking = [row for row in rows if left_out in row.left_out]
            yield _coverage(left_out, "all", lacking)
            if left_out == "device":
                for platform in sorted({row.platform for row in lacking}):
                    yield _coverage(left_out, platform, [row for row in lacking if row.platform == platform])


def _classes(kind: CoefficientKind, rows: Sequence[JudgedRange]) -> Iterator[tuple[str, list[JudgedRange]]]:
    yield "all", list(rows)
    known = [row for row in rows if not row.beyond and row.devices < MANY_DEVICES]
    yield f"{KNOWN_STACKS}, below {MANY_DEVICES} devices", known
    for platform in sorted({row.platform for row in rows}):
        yield platform, [row for row in rows if row.platform == platform]
    for sort in sorted({row.sort for row in rows}):
        yield sort, [row for row in rows if row.sort == sort]
    if kind == "time":
        yield f"{MANY_DEVICES} devices and more", [row for row in rows if row.devices >= MANY_DEVICES]
    others = [row for row in rows if row.organisation != row.source and not row.organisation.startswith("NVIDIA")]
    yield "published by others than NVIDIA", others


def _coverage(left_out: str, name: str, rows: Sequence[JudgedRange]) -> HeldRanges:
    residuals = [row.left_out[left_out] for row in rows]
    inside = sum(residual.inside for residual in residuals)
    share = inside / len(residuals)
    held = HELD[0] <= share <= HELD[1] if len(residuals) >= LEAST_ROWS else not _rejected(inside, len(residuals))
    if left_out == "device":
        held = share >= HELD[0]  # what families show of one another, five of them, can be too wide
    width = sum(residual.half_width for residual in residuals) / len(residuals)
    return HeldRanges(left_out, name, len(residuals), len({row.source for row in rows}), share, width, held)


def _rejected(inside: int, rows: int) -> bool:
    """Whether so many of the rows are too few or too many for nine of ten."""

    def probability(counts: Iterable[int]) -> float:
        return sum(math.comb(rows, count) * 0.9**count * 0.1 ** (rows - count) for count in counts)

    return probability(range(inside + 1)) < _REJECTED or probability(range(inside, rows + 1)) < _REJECTED


def coverage_sections(rows: Mapping[CoefficientKind, Sequence[JudgedRange]]) -> Iterator[Section]:
    """Yield a table for each kind of figure."""
    lines: tuple[str, ...] = (_EXPLAINED,)
    headers = ("left out", "rows of", "rows", "sources", "inside\n90 %", "half-width\n± %", "held")
    for kind, of_kind in rows.items():
        cells = [
            [
                *(ranges.left_out, ranges.name, str(ranges.rows), str(ranges.sources)),
                *(f"{100 * share:.0f}" for share in (ranges.inside, ranges.half_width)),
                "yes" if ranges.held else "no",
            ]
            for ranges in coverages(kind, of_kind)
        ]
        if cells:
            yield Section(f"{TITLES[kind]}: inside the ranges", lines, headers, cells, text_columns=(0, 1, 6))
            lines = ()


APART: Final = 0.10
"""Share by which two measured speeds differ that a choice should tell apart."""


@dataclasses.dataclass(frozen=True, slots=True)
class PairsJudged:
    """Order of two layouts of one question, as far as it is known with their source left out."""

    pairs: int
    """Pairs of measured rows that ask the same of two layouts or stacks."""
    inside: float
    """Share whose measured difference lies in the 90 % range of the predicted one."""
    said_to_differ: int
    """Pairs whose range of the difference is on one side of none."""
    right: float
    """Share of those in the order that was measured."""
    apart: int
    """Pairs measured more than `APART` apart."""
    apart_said_to_differ: float
    """Share of those that are said to differ."""


def pairs_judged(pairs: Iterable[tuple[float, float, float]]) -> PairsJudged | None:
    """Sum up pairs: measured and predicted difference and its half-width, in the logarithm; None without any."""
    every = list(pairs)
    if not every:
        return None
    differ = [(measured, predicted) for measured, predicted, width in every if abs(predicted) > width]
    far = [abs(predicted) > width for measured, predicted, width in every if math.expm1(abs(measured)) > APART]
    return PairsJudged(
        pairs=len(every),
        inside=sum(abs(predicted - measured) <= width for measured, predicted, width in every) / len(every),
        said_to_differ=len(differ),
        right=sum((measured > 0) == (predicted > 0) for measured, predicted in differ) / max(len(differ), 1),
        apart=len(far),
        apart_said_to_differ=sum(far) / max(len(far), 1),
    )


def pair_widths(judged: SourcesJudged) -> Iterator[tuple[float, float, float]]:
    """Yield measured and predicted difference of every pair, and the half-width of its range, in the logarithm."""
    for pair, deviation in judged.judged_pairs():
        yield pair.measured, pair.predicted, NORMAL_90 * deviation
