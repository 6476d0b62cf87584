"""Decoder of the reference trainer in plain PyTorch: stages of grouped-query attention and SwiGLU, on any shards."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, distribute_tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from simulator.question.specs.model import ModelSpec

ROTARY_BASE = 500_000.0
"""Base of the rotary frequencies; it changes no shape and no time."""
WRAPPER = "_checkpoint_wrapped_module."
"""Part of parameters' names that recomputation adds."""
KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    # Kernels of a vendor's extension of torch for its own devices.
    SDPBackend.OVERRIDEABLE,
]
"""Attention kernels that never store the scores; the one that does is not allowed to step in."""
EPSILON = 1e-5
BLOCK_ELEMENTS = 2**23
"""Elements that a backward pass works on at once: its fp32 copies stay small, as in a fused kernel."""


class _FusedNorm(torch.autograd.Function):
    """`x / rms(x) * w` over the last dimension, with fp32 statistics, as fused kernels compute it.

    The backward pass keeps input, weight and one number per row, no copy.
    """

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
        result: torch.Tensor = _FusedNorm.apply(x, weight)
        return result


class Rotary(nn.Module):
    """Rotary position embedding from fp32 tables that all layers of a stage share."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, seq_length: int, head_dim: int) -> None:
        super().__init__()
        for name in ("cosine", "sine"):
            self.register_buffer(name, torch.empty(seq_length, 1, head_dim // 2, dtype=torch.float32), persistent=False)

    @torch.no_grad()
    def fill(self) -> None:
        """Compute the tables."""
        positions, _, half = self.cosine.shape
        device = self.cosine.device
        frequencies = ROTARY_BASE ** -(torch.arange(half, dtype=torch.float32, device=device) / half)
        angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None, None] * frequencies
        self.cosine.copy_(angles.cos())
        self.sine.copy_(angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of features of `x`, shape (batch, tokens, heads, head size)."""
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        cosine, sine = self.cosine, self.sine
        return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2).type_as(x)


class AttentionCore(nn.Module):
    """Causal attention over heads, without parameters."""

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attend; shapes (batch, tokens, heads, head size)."""
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        with sdpa_kernel(KERNELS):
            output = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return output.transpose(1, 2)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, model: ModelSpec, rotary: Rotary) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        bias = model.attention_bias
        self.query = nn.Linear(model.hidden_size, model.query_width, bias=bias)
        self.key = nn.Linear(model.hidden_size, model.kv_width, bias=bias)
        self.value = nn.Linear(model.hidden_size, model.kv_width, bias=bias)
        self.output = nn.Linear(model.query_width, model.hidden_size, bias=False)
        self.query_norm = RMSNorm(model.head_dim) if model.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(model.head_dim) if model.qk_norm else nn.Identity()
        self.rotary = rotary
        self.core: nn.Module = AttentionCore()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project, rotate, attend, project; every rank works on the heads it holds."""
        query, key, value = (
            projection(x).unflatten(-1, (-1, self.head_dim)) for projection in (self.query, self.key, self.value)
        )
        query, key = self.rotary(self.query_norm(query)), self.rotary(self.key_norm(key))
        attended: torch.Tensor = self.output(self.core(query, key, value).flatten(-2))
        return attended


class FeedForwardNetwork(nn.Module):
    """SwiGLU of three separate operations."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__()
        self.gate = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.up = nn.Linear(model.hidden_size, model.intermediate_size, bias=False)
        self.down = nn.Linear(model.intermediate_size, model.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated network's output."""
        narrowed: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return narrowed


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to the residual stream."""

    def __init__(self, model: ModelSpec, rotary: Rotary) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(model.hidden_size)
        self.attention = Attention(model, rotary)
        self.ffn_norm = RMSNorm(model.hidden_size)
        self.ffn = FeedForwardNetwork(model)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the residual stream behind the layer."""
        x = x + self.attention(self.attention_norm(x))
        result: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return result


class Stage(nn.Module):
    """Consecutive layers of a decoder, with the token table in front or the output layer behind where it has them.

    Takes token indices where it has the table, else the residual stream. The last stage also takes the target tokens
    and returns the loss, so that no logits outlive the pass.
    """

    def __init__(
        self, model: ModelSpec, layers: Sequence[int], *, seq_length: int, embedding: bool, head: bool
    ) -> None:
        """Build the layers with these indices on torch's default device; parameters are fp32."""
        super().__init__()
        self.rotary = Rotary(seq_length, model.head_dim)
        self.embedding = nn.Embedding(model.vocab_size, model.hidden_size) if embedding else None
        self.layers = nn.ModuleDict({str(index): DecoderLayer(model, self.rotary) for index in layers})
        self.norm = RMSNorm(model.hidden_size) if head else None
        self.head = nn.Linear(model.hidden_size, model.vocab_size, bias=False) if head else None
        self.tied = model.tie_word_embeddings
        self.tie()

    def tie(self) -> None:
        """Share the token table with the output layer, where the model does and the stage has both."""
        if self.tied and self.embedding is not None and self.head is not None:
            self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        """Return the residual stream behind the stage; on the last stage the micro batch's mean loss, in fp32."""
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        if self.norm is None or self.head is None:
            return x
        if target is None:
            raise ValueError("the last stage needs the target tokens")
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), target.flatten())
        return loss.to_local() if isinstance(loss, DTensor) else loss

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Fill parameters and tables. A parameter's values depend on its name and `seed`, not on how it is split."""
        self.rotary.fill()
        for name, parameter in self.named_parameters():
            plain = name.replace(WRAPPER, "")
            # On the device: a processor would take a minute to fill what a device trains in a second.
            generator = torch.Generator(parameter.device).manual_seed(zlib.crc32(f"{seed} {plain}".encode()))
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            if plain.endswith("norm.weight"):
                whole.fill_(1.0)
            elif plain.endswith("bias"):
                whole.zero_()
            else:
                whole.normal_(0.0, 0.02, generator=generator)
            if isinstance(parameter, DTensor):
                # Every rank has the same whole tensor and takes its part; nothing is sent.
                mesh, placements = parameter.device_mesh, parameter.placements
                parameter.copy_(distribute_tensor(whole, mesh, placements, src_data_rank=None))
            else:
                parameter.copy_(whole)
