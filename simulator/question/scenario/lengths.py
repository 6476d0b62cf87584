"""Lengths of samples, read, binned and batched (`Lengths.read("p50=900,p90=3k,max=16k")`), with all their means."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np

from simulator.errors import InputError, quoted
from simulator.late import late_pattern
from simulator.question.scenario.inputs import MOST_TOKENS
from simulator.question.specs.samples import counted_lines
from simulator.question.units import parse_count
from simulator.question.vocabulary import Batching
from simulator.records import NamedTuple, Record, field, replace

_MOST_BINS: Final = 1024
_STEPS: Final = 64  # points of a distribution between two percentiles
_POINT: Final = late_pattern(r"(p[0-9]{1,2}(?:\.[0-9]{1,4})?|min|max)=(.+)", re.IGNORECASE)
_LIKE_A_POINT: Final = late_pattern(r"[A-Za-z][\w.]*=[0-9.]+[A-Za-z]?")


class Segments(NamedTuple):
    """Distribution of what attends to itself: its tokens, ascending, and their shares."""

    tokens: Any
    shares: Any

    @property
    def mean(self) -> float:
        """Mean of the tokens."""
        return float(self.tokens @ self.shares)

    @property
    def attended(self) -> float:
        """Mean square over mean: the length of equal segments with as many scores a token."""
        return float(self.tokens**2 @ self.shares) / self.mean


class Lengths(Record, kw_only=True):
    """Lengths of the samples of a data set, in tokens, and how they are batched."""

    tokens: tuple[int, ...]
    """Distinct lengths, ascending."""
    weights: tuple[float, ...]
    """Share of the samples of each."""
    bound: bool = False
    """Whether only the longest is known: the others may be anything from one token."""
    batching: Batching = "padded"
    cutoff: int | None = None
    """Tokens at which samples are cut; of packed ones the length of a sequence. None: the longest sample."""
    survive: float = 0.999
    """Share of the steps whose fullest micro batch must fit."""
    averaged: bool = False
    """Whether figures are of the mean micro batch, as of time, rather than of the fullest, as of memory."""
    source: str = field(default="", compare=False)
    """Text or file that states them."""
    line: int = field(default=0, compare=False)
    """Line of the longest in its file; 0 without one."""

    @staticmethod
    def read(value: Any) -> Lengths:
        """Return the lengths of a text, a file, a mapping of length to count, or several lengths. Raises InputError."""
        if isinstance(value, Lengths):
            return value
        if isinstance(value, Mapping):
            return _counted(((0, key, weight) for key, weight in value.items()), "lengths")
        if isinstance(value, Iterable) and not isinstance(value, str):
            return _counted(((0, each, 1) for each in value), "lengths")
        text = str(value).strip()
        parts = [part.strip() for part in text.split(",")]
        if all(re.fullmatch(r"[0-9]+:[0-9.eE+-]+", part) for part in parts):
            return _counted(((0, *part.split(":")) for part in parts), text)
        is_points = _POINT.fullmatch(parts[0]) or _LIKE_A_POINT.fullmatch(parts[0])
        return _of_points(text, parts) if is_points else _counted(counted_lines(text), text)

    def to_dict(self) -> str:
        """Return the text that reads back as the same lengths."""
        if self.bound:
            return f"max={self.tokens[-1]}"
        return ",".join(f"{length}:{weight:.9g}" for length, weight in zip(self.tokens, self.weights, strict=True))

    def __str__(self) -> str:
        """Return how they are batched, the cutoff, and the source."""
        cut = f", cut at {self.cutoff}" if self.cutoff else ""
        return f"{self.batching}{cut}, {self.source or self.to_dict()}"[:60]

    @property
    def where(self) -> str:
        """Place of the longest length."""
        return f"{self.source}:{self.line}" if self.line else f"lengths {self.source[:60]}"

    @property
    def longest(self) -> int:
        """Longest sequence, in tokens, behind the cutoff."""
        return self.tokens[-1] if self.cutoff is None else min(self.tokens[-1], self.cutoff)

    @property
    def packs(self) -> bool:
        """Whether samples share sequences."""
        return self.batching.startswith("packed")

    @property
    def package(self) -> int:
        """Tokens of a packed sequence."""
        return self.cutoff or self.tokens[-1]

    @property
    def equal(self) -> int | None:
        """The only length of a sequence, where all are full; None where they differ."""
        full = self.package if self.packs else self.longest
        alike = len(self.segments(1).tokens) == 1 and self.segments(1).tokens[0] == full
        return full if alike and not self.bound else None

    def fullest(self, samples: int) -> int:
        """Return the longest sequence of `samples` in a step, in all but a share `1 - survive` of the steps."""
        if self.packs or self.bound:
            return self.package if self.packs else self.longest
        within = np.cumsum(self.weights) ** samples
        first = int(np.searchsorted(within, self.survive - 1e-12))
        return min(self.tokens[min(first, len(self.tokens) - 1)], self.longest)

    def beyond(self, length: int, samples: int) -> float:
        """Return the share of steps of `samples` that hold a sequence longer than `length`."""
        if self.longest <= length:
            return 0.0
        shorter = sum(weight for tokens, weight in zip(self.tokens, self.weights, strict=True) if tokens <= length)
        return 1.0 if self.packs else 1.0 - min(shorter, 1.0) ** samples

    def segments(self, micro_batch_size: int) -> Segments:
        """Return what attends to itself in micro batches of a size: padded samples, or those of a package."""
        return _segments(self, 1 if self.batching != "padded" else micro_batch_size)

    def sequence(self, micro_batch_size: int) -> float:
        """Return the mean tokens of a sequence in micro batches of a size, padding included."""
        return float(self.package) if self.packs else self.segments(micro_batch_size).mean

    @property
    def sample_tokens(self) -> float:
        """Mean tokens of a sequence without padding."""
        return float(self.package) if self.packs else self.segments(1).mean

    def shortest(self, image_tokens: int = 0) -> Lengths:
        """Return the least that a bound allows: samples of one token, or of their images', packed or alone."""
        cutoff = self.package if self.packs else None
        return replace(self, tokens=(max(image_tokens, 1),), weights=(1.0,), bound=False, cutoff=cutoff)


@lru_cache(maxsize=1024)
def _segments(lengths: Lengths, largest_of: int) -> Segments:
    if lengths.bound or lengths.batching == "packed_across":
        full = lengths.package if lengths.packs else lengths.longest
        return Segments(np.array([float(full)]), np.ones(1))
    most = lengths.package if lengths.packs else lengths.longest
    tokens, at = np.unique(np.minimum(np.array(lengths.tokens, float), most), return_inverse=True)
    shares = np.bincount(at, lengths.weights)
    within = np.cumsum(shares / shares.sum())
    within[-1] = 1.0
    return Segments(tokens, np.diff(within**largest_of, prepend=0.0))


def _counted(rows: Iterable[tuple[Any, ...]], source: str) -> Lengths:
    """Return the lengths of rows of line, length and weight."""
    counts: dict[int, list[float]] = {}
    for line, stated, weight in rows:
        place = f"{source}:{line}" if line else source[:60]
        length, share = _number(stated), _number(weight)
        if length is None or length != int(length) or not 1 <= length <= MOST_TOKENS:
            shown = quoted(str(stated))
            raise InputError(f"{place}: {shown} is no length: a whole number of tokens from 1 to {MOST_TOKENS}")
        if share is None or share <= 0:
            raise InputError(f"{place}: {quoted(str(weight))} is no weight of a length: a number above 0")
        known = counts.setdefault(int(length), [0.0, line])
        known[0] += share
    total = sum(share for share, _ in counts.values())
    if total <= 0:
        raise InputError(f"{source[:60]}: holds no lengths")
    stated_once = {length: share / total for length, (share, _) in sorted(counts.items())}
    longest = max(stated_once)
    binned = stated_once if len(stated_once) <= _MOST_BINS else _binned(stated_once)
    line = int(counts[longest][1])
    return Lengths(tokens=tuple(binned), weights=tuple(binned.values()), source=source, line=line)


def _binned(shares: Mapping[int, float]) -> dict[int, float]:
    """Return no more than `_MOST_BINS` lengths, evenly spaced in the logarithm; the longest stays."""
    longest = max(shares)
    bins: dict[int, list[float]] = {}
    for length, share in shares.items():
        key = _MOST_BINS if length == longest else int((_MOST_BINS - 1) * math.log(length) / math.log(longest))
        known = bins.setdefault(key, [0.0, 0.0])
        known[0] += share
        known[1] += share * length**2
    merged: dict[int, float] = {}
    for share, squares in bins.values():
        length = round(math.sqrt(squares / share))
        merged[length] = merged.get(length, 0.0) + share
    return dict(sorted(merged.items()))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _of_points(text: str, parts: Iterable[str]) -> Lengths:
    """Return the lengths between stated percentiles: evenly in the logarithm, below the lowest evenly from `min`."""
    points = _points(text, parts)
    longest = points[-1][1]
    if len(points) == 1:
        return Lengths(tokens=(longest,), weights=(1.0,), bound=True, source=text)
    if points[0][0] > 0.0:
        points.insert(0, (0.0, 1, ""))
    rows: list[tuple[int, int, float]] = []
    inside = (np.arange(_STEPS) + 0.5) / _STEPS
    for (below, shorter, first), (above, longer, _) in pairwise(points):
        between = shorter * (longer / shorter) ** inside if first else shorter + (longer - shorter) * inside
        rows += [(0, max(round(float(each)), 1), (above - below) / _STEPS) for each in between]
    rows[-1] = (0, longest, rows[-1][2])
    return _counted(rows, text)


def _points(text: str, parts: Iterable[str]) -> list[tuple[float, int, str]]:
    """Return the share of samples, the length and the text of each percentile, in order. Raises InputError."""
    points: list[tuple[float, int, str]] = []
    for part in parts:
        matched = _POINT.fullmatch(part)
        if matched is None:
            raise InputError(
                f"lengths {quoted(part)}: write percentiles (min, p1 to p99.99, max) such as p50=900,p90=3k,max=16k"
            )
        try:
            name, length = matched[1].lower(), parse_count(matched[2], length=True)
        except InputError as error:
            raise InputError(f"lengths {quoted(part)}: {error}") from error
        if not 1 <= length <= MOST_TOKENS:
            raise InputError(f"lengths {quoted(part)}: must be from 1 to {MOST_TOKENS} tokens")
        points.append((_ENDS[name] if name in _ENDS else float(name[1:]) / 100.0, length, part))
    points.sort(key=lambda point: point[0])
    for (below, shorter, first), (above, longer, second) in pairwise(points):
        if below == above:
            raise InputError(f"lengths {text[:60]}: {first} and {second} are of the same percentile")
        if longer < shorter:
            raise InputError(f"lengths {text[:60]}: {second} is below {first}")
    if points[-1][0] < 1.0:
        raise InputError(f"lengths {text[:60]}: max is missing, such as max=16k: the longest decides the memory")
    return points


_ENDS: Final = {"min": 0.0, "max": 1.0}
