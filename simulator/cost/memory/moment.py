"""Record of the tensors alive at one moment of a step, by part. It adds them up and derives nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from simulator.cost.stages import StageContents
from simulator.question.scenario.block import KindArray, StageArray

MomentName = Literal["backward", "loss", "embedding gradient", "optimizer step", "gradient reduction"]
"""Moments that are compared for the peak."""
MOMENTS: tuple[MomentName, ...] = get_args(MomentName)


@dataclass(frozen=True, slots=True)
class Moment:
    """Bytes alive at one moment; shape (kinds, n) unless noted."""

    name: MomentName
    parameters: KindArray | float
    gradients: KindArray | float
    resident: KindArray | float
    """Optimizer state on the device."""
    activations: StageArray | float
    """Shape (pipeline_parallel, n)."""
    released: KindArray | float
    """Activations already freed."""
    logits: KindArray | float
    temporary: KindArray | float
    gradients_absent: StageArray | float = 0.0
    """Bytes of gradients not yet allocated, shape (pipeline_parallel, n)."""

    def total(self, contents: StageContents) -> StageArray:
        """Return the sum of all parts on every rank, shape (pipeline_parallel, n)."""
        static = self.parameters + self.gradients
        by_kind = np.asarray(static + self.resident + self.logits + self.temporary - self.released)
        return contents.on_ranks(by_kind) + self.activations - self.gradients_absent
