"""The schedules DualPipe (DeepSeek-V3 technical report, arXiv:2412.19437, section 3.2.1) and its half, DualPipeV.

The order is that of deepseek-ai/DualPipe (dualpipe.py, dualpipev.py), as in torch's ScheduleDualPipeV (PyTorch 2.13),
MindSpeed's `--schedules-method dualpipev` (2.0) and Paddle's `use_dualpipev` (3.1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from simulator.cost.schedule.schedule import BACKWARD, FORWARD, INPUT_GRADIENT, Turns
from simulator.cost.schedule.zero_bubble import PassList, ThereAndBack
from simulator.question.scenario.block import Array


@dataclass(frozen=True)
class DualPipeV(ThereAndBack):
    """Two chunks per rank, there and back, whose forward and backward passes meet on every rank.

    Every rank holds 2 p + 1 chunk passes. For equal chunks with F = B - W = W the bubble is `(p - 1) (F + 2 B - 3 W)`
    with overlapped passes, and `(p - 1) (F + B - 2 W)` without.
    """

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


@dataclass(frozen=True)
class DualPipe(DualPipeV):
    """Stages i and p - 1 - i on both rank i and rank p - 1 - i: half of the micro batches start at either end.

    Each half of the ranks runs `DualPipeV` on p / 2 ranks, for half of the micro batches, and holds all weights. The
    bubble is `(p / 2 - 1) (F + 2 B - 3 W)`, and every rank holds p + 1 micro batches of one stage.
    """

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
