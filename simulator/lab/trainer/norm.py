"""RMSNorm as fused kernels compute it: the backward pass keeps input, weight and one number per row, no copy."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

EPSILON = 1e-5
BLOCK_ELEMENTS = 2**23
"""Elements that a backward pass works on at once: its fp32 copies stay small, as in a fused kernel."""


class _RMSNorm(torch.autograd.Function):
    """`x / rms(x) * w` over the last dimension, with fp32 statistics."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Normalise; no copy of `x` in fp32 is made."""
        width = x.shape[-1]
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        rstd = norm.square_().div_(width).add_(EPSILON).rsqrt_()
        ctx.save_for_backward(x, weight, rstd)
        result = torch.empty_like(x)
        torch.mul(x, rstd, out=result)
        return result.mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of `x` and of the weight, computed over blocks of rows."""
        x, weight, rstd = ctx.saved_tensors
        width = x.shape[-1]
        rows = max(BLOCK_ELEMENTS // width, 1)
        x_gradient = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        weight_gradient = torch.zeros(width, dtype=torch.float32, device=x.device)
        blocks = (t.reshape(-1, t.shape[-1]).split(rows) for t in (x, rstd, gradients[0], x_gradient))
        for x_rows, rstd_rows, gradient_rows, result_rows in zip(*blocks, strict=True):
            normal = x_rows * rstd_rows
            upstream = gradient_rows.float()
            weight_gradient += (upstream * normal).sum(0)
            upstream *= weight
            normal *= (upstream * normal).mean(-1, keepdim=True)
            result_rows.copy_((upstream - normal) * rstd_rows)
        return x_gradient, weight_gradient.to(weight.dtype)


class RMSNorm(nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.rows_are_split = False
        """Whether each tensor-parallel rank normalises other rows, so that the weight's gradients add up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `x`, a plain tensor."""
        weight: torch.Tensor = self.weight
        if isinstance(weight, DTensor):
            weight = weight.to_local(grad_placements=[Partial() if self.rows_are_split else Replicate()])
        result: torch.Tensor = _RMSNorm.apply(x, weight)
        return result
