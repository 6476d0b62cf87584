"""Orders of passes (1F1B, interleaved, zero bubble, DualPipe), and the choice of the one that a layout runs.

Each says what is in flight on a rank, the time to fill and drain, and the sends. `schedule.schedule` is their
interface, `schedule.schedule` runs an order pass by pass.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import assert_never

import numpy as np

from simulator.cost.derived import Pricing, derived
from simulator.cost.schedule.schedule import (
    BACKWARD,
    FORWARD,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    Schedule,
    Turns,
    one_of_each_in_turn,
    pairs_after,
)
from simulator.question.arrays import NDArray
from simulator.question.scenario.block import Array, StageArray
from simulator.question.scenario.layout import ROUND
from simulator.records import Record


class OneForwardOneBackward(Schedule, Record):
    """1F1B; several chunks are interleaved: they take turns, each for as many micro batches as ranks."""

    first_holds_most = True
    combined: bool = False
    """Whether passes overlap, with one more ahead (Megatron-LM core_v0.14, pipeline_parallel/combined_1f1b.py)."""
    whole_warm_up: bool = False
    """Whether all forward passes of chunks come first if there are as many micro batches as ranks."""

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return `p - i - 1` forward passes, of chunks `2 (p - i - 1) + (v - 1) p` or all, then one of each in turn."""
        total = micro_batches * chunks
        kind, index = one_of_each_in_turn(self._ahead(rank, ranks, chunks, micro_batches), total)
        cycle, rest = np.divmod(index, ranks * chunks)
        chunk = rest // ranks  # backward passes take the chunks from the last to the first
        return np.column_stack((kind, cycle * ranks + rest % ranks, np.where(kind == 1, chunks - 1 - chunk, chunk)))

    def _ahead(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> int:
        total = micro_batches * chunks
        some = min(chunks, 2) * (ranks - rank - 1) + (chunks - 1) * ranks + self.combined
        return total if self.whole_warm_up and chunks > 1 and micro_batches == ranks else min(some, total)

    def together(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> NDArray[np.bool_] | None:
        """Return every pair of the steady state."""
        ahead = self._ahead(rank, ranks, chunks, micro_batches)
        return pairs_after(ahead, micro_batches * chunks) if self.combined else None

    def in_flight(self, ranks: int, chunks: Array | int, micro_batches: Array) -> StageArray:
        """Return `min(p - i, m)`, of chunks `2 (p - i - 1) + (v - 1) p + 1` of `m v` passes or all of a whole warm-up.

        Of overlapped passes one frees what the other saves.
        """
        behind, every = ranks - np.arange(ranks, dtype=np.float64)[:, None] - 1.0, micro_batches * chunks
        some = np.minimum(np.minimum(chunks, 2.0) * behind + (chunks - 1.0) * ranks + 1.0, every)
        whole = self.whole_warm_up & np.greater(chunks, 1) & (micro_batches == ranks)
        return np.where(whole, every, some)


class PassList:
    """The passes of one rank under construction; micro batches are numbered in order of listing."""

    def __init__(self) -> None:
        self.listed: list[tuple[int, int, int]] = []
        self.together: list[bool] = []
        self._next: Counter[tuple[int, int]] = Counter()
        self._pending: list[tuple[int, int]] = []

    def add(self, *passes: tuple[int, int], times: int = 1) -> None:
        """Append passes, each a kind and a chunk, repeated `times` times."""
        for kind, chunk in passes * times:
            self.append(kind, chunk)

    def append(self, kind: int, chunk: int, *, together: bool = False) -> None:
        """Append the next pass of a kind through a chunk; an input gradient leaves a weight gradient pending."""
        counted = BACKWARD if kind == INPUT_GRADIENT else kind
        number = self._next[counted, chunk]
        self._next[counted, chunk] += 1
        self.listed.append((kind, number, chunk))
        self.together.append(together)
        if kind == INPUT_GRADIENT:
            self._pending.append((number, chunk))

    def weight(self, chunk: int | None = None) -> bool:
        """Append the oldest pending weight gradient, of `chunk` if set; return False where none is pending."""
        at = next((at for at, (_, own) in enumerate(self._pending) if chunk in (None, own)), None)
        if at is None:
            return False
        number, own = self._pending.pop(at)
        self.listed.append((WEIGHT_GRADIENT, number, own))
        self.together.append(False)
        return True

    def weights(self, *chunks: int | None) -> None:
        """Append all pending weight gradients, or chunk by chunk those of `chunks`."""
        for chunk in chunks or (None,):
            while self.weight(chunk):
                pass

    def count(self, kind: int, chunk: int) -> int:
        """Return how many passes of a kind through a chunk are listed."""
        return self._next[kind, chunk]

    def turns(self, micro_batches: int | None = None) -> Turns:
        """Return all passes, or those of the first `micro_batches`."""
        turns = np.array(self.listed, dtype=np.intp)
        return turns if micro_batches is None else turns[turns[:, 1] < micro_batches]


class ZeroBubbleH1(Schedule, Record):
    """ZB-H1: 1F1B with chunks where rank i delays weight gradients by i passes (T25, torch's InterleavedZeroBubble)."""

    by_run = True
    splits = True

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return `(v - 1) p + p - i - 1` forward passes ahead, with weight gradients i input gradients behind."""
        passes, total = PassList(), micro_batches * chunks
        group = micro_batches // max(micro_batches // ranks, 1)
        ahead = min((chunks - 1) * group + ranks - rank - 1, total)
        for index in range(total + ahead):
            if index < total:
                passes.append(FORWARD, index // group % chunks)
            if index >= ahead:
                passes.append(INPUT_GRADIENT, chunks - 1 - (index - ahead) // group % chunks)
                if index - ahead >= rank:
                    passes.weight()
        passes.weights()
        return passes.turns()


class ThereAndBack(Schedule):
    """Two chunks per rank, the second from the last rank back to the first; backward passes are split."""

    by_run = True
    splits = True

    def places(self, ranks: int, chunks: int) -> NDArray[np.intp]:
        """Return stage `2 p - 1 - i` for chunk 1 of rank i."""
        rank = np.arange(ranks)[:, None]
        return np.where(np.arange(chunks) == 0, rank, 2 * ranks - 1 - rank)


class ZeroBubbleV(ThereAndBack, Record):
    """ZB-V: two chunks per rank, the second from the last rank back to the first; no bubble where F = B - W = W.

    A rank holds 2 p chunk passes of 1 / 2 p of the model each, as much as the first rank of 1F1B.
    """

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return the passes of at least `2 p - 1` micro batches, without those beyond `micro_batches`."""
        del chunks
        passes, count = PassList(), max(2 * ranks - 1, micro_batches)
        passes.add((FORWARD, 0), times=2 * (ranks - rank) - 1)
        passes.add((FORWARD, 1), (FORWARD, 0), times=rank)
        for _ in range(ranks - rank):
            _all_of(passes, 1, forward=True)
        while passes.count(FORWARD, 1) < passes.count(FORWARD, 0) or passes.count(FORWARD, 0) < count:
            _all_of(passes, 0, forward=passes.count(FORWARD, 0) < count)
            _all_of(passes, 1, forward=True)
        passes.add((INPUT_GRADIENT, 0), (INPUT_GRADIENT, 1), times=rank)
        for _ in range(ranks - rank):
            passes.append(INPUT_GRADIENT, 0)
            passes.weight(0)
        passes.weights(1, 0)
        return passes.turns(micro_batches)


def _all_of(passes: PassList, chunk: int, *, forward: bool) -> None:
    """Append a forward pass of a chunk if `forward`, and a whole backward pass in two."""
    if forward:
        passes.append(FORWARD, chunk)
    passes.append(INPUT_GRADIENT, chunk)
    passes.weight(chunk)


class DualPipeV(ThereAndBack, Record):
    """Two chunks per rank, there and back, whose forward and backward passes meet on every rank (T25)."""

    combined: bool = False
    """Whether a forward and a backward pass overlap, or follow each other as torch does by default."""
    splits_at_end: bool = True
    """Whether the last backward passes are split too (`--dualpipev-dw-detach` of MindSpeed)."""

    def min_micro_batches(self, ranks: int) -> int:
        """Return `2 p`, the number of stages."""
        return 2 * ranks

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return the passes of the published code's eight steps."""
        del chunks
        return _listed(rank, ranks, micro_batches, splits_at_end=self.splits_at_end).turns()

    def together(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> NDArray[np.bool_] | None:
        """Return the pairs of the steady state, except the turning rank's first."""
        del chunks
        listed = _listed(rank, ranks, micro_batches, splits_at_end=self.splits_at_end)
        return np.array(listed.together) if self.combined else None


class DualPipe(DualPipeV):
    """Stages i and p - 1 - i on both rank i and rank p - 1 - i: half of the micro batches start at either end (T25)."""

    combined: bool = True

    def places(self, ranks: int, chunks: int) -> NDArray[np.intp]:
        """Return the earlier stage of the pair as chunk 0, the later one as chunk 1."""
        del chunks
        first = np.minimum(np.arange(ranks), np.arange(ranks)[::-1])
        return np.column_stack((first, ranks - 1 - first))

    def turns(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> Turns:
        """Return the passes, with micro batches of the other end numbered after those of the first."""
        half, turns = ranks // 2, super().turns(min(rank, ranks - 1 - rank), ranks // 2, chunks, micro_batches // 2)
        turns = turns.copy()
        turns[:, 1] += micro_batches // 2 * (turns[:, 2] != (rank >= half))
        return turns

    def together(self, rank: int, ranks: int, chunks: int, micro_batches: int) -> NDArray[np.bool_] | None:
        """Return the overlapped passes as on half of the ranks."""
        return super().together(min(rank, ranks - 1 - rank), ranks // 2, chunks, micro_batches // 2)

    def sends(self, ranks: int, chunks: Array | int) -> Array | float:
        """Return 2, or 0 for one rank: a micro batch passes through one of a rank's chunks."""
        del chunks
        return 2.0 if ranks > 1 else 0.0


@lru_cache(maxsize=1024)
def _listed(rank: int, ranks: int, micro_batches: int, *, splits_at_end: bool) -> PassList:
    passes, rest = PassList(), ranks - rank - 1
    passes.add((FORWARD, 0), times=2 * rest)
    passes.add((FORWARD, 0), (FORWARD, 1), times=rank + 1)
    for _ in range(rest):
        passes.append(INPUT_GRADIENT, 1)
        passes.weight()
        passes.append(FORWARD, 1)
    for pair in range(micro_batches - 2 * ranks + rank + 1):
        passes.append(FORWARD, 0)
        passes.append(BACKWARD, 1, together=pair > 0 or rest > 0)
        passes.append(FORWARD, 1)
        passes.append(BACKWARD, 0, together=True)
    for _ in range(rest):
        passes.add((BACKWARD, 1), (FORWARD, 1))
        passes.append(BACKWARD, 0, together=True)
    # In the second half of the remaining passes, weight gradients come later.
    for index in range(2 * (rank + 1)):
        split = splits_at_end and index >= 2 * ((rank + 1) // 2) + (1 - rank % 2)
        passes.append(INPUT_GRADIENT if split else BACKWARD, 1 - index % 2)
    for _ in range(rest):
        passes.weight()
        passes.append(INPUT_GRADIENT if splits_at_end else BACKWARD, 0)
    passes.weights()
    return passes


@derived
def schedule_of(pricing: Pricing) -> Schedule:
    """Return the schedule of a block; passes overlap where the experts' exchange does (T25)."""
    scenario, block = pricing.scenario, pricing.block
    combined = scenario.framework.overlap_expert_exchange and scenario.model.is_moe
    name = block.schedule
    if name not in ROUND and block.shape == "round":
        name = "1f1b"
    match name:
        case "1f1b":
            return OneForwardOneBackward(combined, scenario.framework.warm_up_whole_batch)
        case "zb_h1":
            return ZeroBubbleH1()
        case "zb_v":
            return ZeroBubbleV()
        case "dualpipev":
            return DualPipeV(combined, scenario.framework.splits_last_backward)
        case "dualpipe":
            return DualPipe(combined, scenario.framework.splits_last_backward)
        case _:
            assert_never(name)
