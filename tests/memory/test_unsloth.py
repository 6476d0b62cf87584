"""Unsloth's own checkpoints, loss and kernels, counted from its code."""

from typing import Any

import pytest

import simulator

MIB = 2.0**20


@pytest.mark.parametrize(("tokens", "chunk", "counted"), [(2048, 4096, 7157), (8192, 4096, 8615)])
def test_unsloth_s_memory_is_a_count_of_its_code(tokens: int, chunk: int, counted: float) -> None:
    """unsloth 015bdef0d9, unsloth-zoo ce232d6: Llama-3.1-8B in 4 bits, two sequences, rank 16, in MiB.

    Checkpoints go to the host, 16-bit logits of a chunk (4 GiB in fp32) are overwritten by their gradient, and SwiGLU's
    gradients take the place of gate, up and product.
    """
    run: Any = {"model": "llama3.1-8b", "hardware": "rtx-4090", "devices": 1, "method": "qlora", "stack": "unsloth"}
    run |= {"seq_length": tokens, "micro_batch_size": 2, "global_batch_size": 2, "options": {"optimizer": "adamw_8bit"}}
    estimate = simulator.estimate(**run)
    hidden, wide, vocabulary = 4096, 14336, 128256
    layer = 2 * hidden**2 + 2 * hidden * 1024 + 3 * hidden * wide
    adapters = 32 * 16 * (6 * hidden + 2 * (hidden + 1024) + 3 * (hidden + wide) - 2 * hidden)
    state = 32 * layer * (0.5 + 1.015625 / 64) + 2 * 2 * vocabulary * hidden + adapters * (4 + 4 + 2.03)
    stream = 2 * 2 * tokens * hidden
    loss = 2 * vocabulary * chunk + 6 * stream
    inside = stream * (2 + 1 + 1 + 1.5 + 1 + 1 + 1) + 6 * 2 * tokens * wide + 2 * hidden * wide
    buffer = (2 + 4 / 64) * hidden * wide  # unsloth/kernels/utils.py, `WEIGHT_BUFFERS` and `ABSMAX_BUFFERS`
    assert (state + max(loss, inside) + buffer) / MIB == pytest.approx(counted, rel=0.015)
    assert estimate.memory.allocated_bytes / MIB == pytest.approx(counted, rel=0.03)
    assert (estimate.layout.recompute, estimate.layout.offload) == ("full", "activations")
    assert simulator.estimate(**run | {"devices": 2}).layout.zero_stage == 0
