"""Zero bubble schedules (Qi et al. 2023, arXiv:2401.10241): weight gradients fill the time when ranks would wait.

Orders match torch.distributed.pipelining (schedules.py of PyTorch 2.6 and later); a test compares them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.cost.schedule.schedule import BACKWARD, FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Schedule, Turns


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
        at = next((at for at, (_, of) in enumerate(self._pending) if chunk in (None, of)), None)
        if at is None:
            return False
        number, of = self._pending.pop(at)
        self.listed.append((WEIGHT_GRADIENT, number, of))
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


@dataclass(frozen=True)
class ZeroBubbleH1(Schedule):
    """ZB-H1 (ZB1P): 1F1B with chunks where rank i delays weight gradients by i passes (torch's InterleavedZeroBubble).

    With one chunk and equal stages the bubble is `(p - 1) (F + B - 2 W)`, and every rank holds p micro batches.
    """

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


@dataclass(frozen=True)
class ZeroBubbleV(ThereAndBack):
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
