"""Token table shared by two pipeline ranks: the first embeds with it, the last uses it as its output layer.

Keeps the two copies and their gradients equal. Other tables are not touched.
"""

from __future__ import annotations

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from simulator.lab.trainer.model import Stage


class TiedTable:
    """Equal copies of the table: they start equal, and each step adds up their gradients."""

    def __init__(self, stages: list[Stage], mesh: DeviceMesh) -> None:
        """Find this rank's copy, if it has one. Every rank of the run calls this."""
        ranks = mesh.mesh.movedim(mesh.mesh_dim_names.index("pp"), 0).flatten(1)
        self._copy: torch.nn.Parameter | None = None
        for first, last in zip(ranks[0].tolist(), ranks[-1].tolist(), strict=True):
            group = distributed.new_group([first, last])
            if distributed.get_rank() in (first, last):
                self._group = group
                self._first = first
                self._copy = _table(stages)

    def start(self) -> None:
        """Copy the first rank's values."""
        if self._copy is not None:
            distributed.broadcast(_local(self._copy.detach()), src=self._first, group=self._group)

    def add_gradients(self) -> None:
        """Add up the gradients of both copies."""
        copy = self._copy
        if copy is None or copy.grad is None:
            return
        if isinstance(copy, DTensor) and isinstance(copy.grad, DTensor):
            # A token table that only tensor parallelism splits has a whole gradient, an output layer its part of it.
            copy.grad = copy.grad.redistribute(copy.device_mesh, copy.placements)
        distributed.all_reduce(_local(copy.grad), group=self._group)


def _table(stages: list[Stage]) -> torch.nn.Parameter:
    owners = [owner for stage in stages for owner in (stage.embedding, stage.head) if owner is not None]
    return owners[0].weight


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
