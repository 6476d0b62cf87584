"""What tensors take, what the allocator holds, and what the device shows are figures of their own."""

import json
from typing import Any

import pytest

import simulator
from tests.cli.running import run


@pytest.mark.parametrize("stack", ["default", "nvidia-recipes"])
def test_each_cause_is_between_two_figures(stack: str) -> None:
    found = simulator.estimate(
        model="llama3.1-70b",
        hardware="h100-sxm-80g",
        nodes=8,
        tp=8,
        pp=4,
        stack=stack,
    ).memory
    outside = found.outside_parts_bytes
    assert found.device_bytes - found.reserved_bytes == pytest.approx(outside["context"] + outside["communicators"])
    held = outside["user_buffers"] + outside["ring_buffers"] + outside["fragmentation"] + outside["cached"]
    assert found.reserved_bytes - found.allocated_bytes == pytest.approx(held)
    assert found.device_bytes > found.reserved_bytes > found.allocated_bytes
    assert all(one.device_bytes > one.reserved_bytes > one.allocated_bytes for one in found.stages)


def test_the_contract_and_the_table_have_all_three() -> None:
    asked = ("estimate", "--model", "llama3.1-8b", "--hardware", "h100-sxm-80g", "--tp", "2")
    memory = json.loads(run(*asked, "--format", "json").stdout)["memory"]
    assert memory["device_mib"] > memory["reserved_mib"] > memory["allocated_mib"] > 0
    assert "reserved" in run(*asked, "-v").stdout


def on_torch(**asked: object) -> simulator.Estimate:
    given = {"model": "llama3-8b", "hardware": "h100-sxm-80g", "nodes": 1, "tp": 1, "pp": 1, "framework": "torch"}
    return simulator.estimate(**(given | {"seq_length": 4096, "global_batch_size": 8, "micro_batch_size": 1} | asked))  # type: ignore[arg-type]


def test_streams_of_fsdp_keep_blocks_of_their_own() -> None:
    """Parts of gradients, which the loss does not have, and the gathered output layer, 2 V h with its norm."""
    parameters, head = 8_030_261_248, 128_256 * 4096 + 4096
    memory = on_torch().memory
    assert (memory.moment, memory.outside_parts_bytes["streams"]) == ("loss", 4 * parameters / 8 + 2 * head)
    held = sum(size for name, size in memory.outside_parts_bytes.items() if name not in ("context", "communicators"))
    assert memory.reserved_bytes - memory.allocated_bytes == pytest.approx(held)
    # Nothing is gathered or reduced where whole weights are kept, nor on one device.
    assert on_torch(zero_stage=0).memory.outside_parts_bytes["streams"] == 0
    assert on_torch(nodes=None, devices=1).memory.outside_parts_bytes["streams"] == 0


def test_short_of_memory_they_give_blocks_back() -> None:
    """PyTorch frees what streams do not use before it fails: the verdict is that of what is in use."""
    near = on_torch(seq_length=15_360, recompute="operations", stack="default")
    streams = near.memory.outside_parts_bytes["streams"]
    usable = near.memory.capacity_bytes
    assert near.memory.device_bytes == pytest.approx(0.98 * usable)
    idle = streams + near.memory.outside_parts_bytes["cached"]
    assert near.memory.need_bytes == pytest.approx(0.98 * usable - idle)
    assert 0 < streams < on_torch().memory.outside_parts_bytes["streams"]
    assert near.verdict == "fits"
    beyond = on_torch(seq_length=32_768).memory
    assert beyond.device_bytes > beyond.capacity_bytes
    assert beyond.outside_parts_bytes["streams"] == 0


@pytest.mark.parametrize(
    ("model", "recompute", "tokens", "allocated", "reserved"),
    [
        ("llama3.2-1b", "none", 2048, 13.99, 15.10),
        ("llama3.2-1b", "full", 2048, 11.51, 14.47),
        ("qwen2.5-3b", "full", 4096, 29.12, 36.64),
    ],
)
def test_logits_fit_into_no_freed_gradient(
    model: str, recompute: Any, tokens: int, allocated: float, reserved: float
) -> None:
    """GiB of transformers' requests in full fine-tuning on one device, replayed by the rules of PyTorch's allocator.

    The step's temporaries fill what the first pass freed; the next one's logits are larger than any weight.
    """
    options = dict.fromkeys(("optimizer_dtype", "parameter_dtype", "gradient_dtype"), "bf16") | {
        "master_weights": "false",
        "foreach_optimizer": "true",
        "step_temporaries": "1",
        "loss_bytes_per_logit": "14",
        "repeat_kv": "true",  # the trace had a mask
    }
    asked = {"model": model, "hardware": "a100-sxm-80g", "devices": 1, "framework": "torch", "stack": "transformers"}
    sizes = {"recompute": recompute, "seq_length": tokens, "micro_batch_size": 1, "global_batch_size": 1}
    found = simulator.estimate(**asked, **sizes, options=options).memory  # type: ignore[arg-type]
    assert found.allocated_bytes / 2**30 == pytest.approx(allocated, rel=0.02)
    assert found.reserved_bytes / 2**30 == pytest.approx(reserved, rel=0.05)
    grown = simulator.estimate(**asked, **sizes, options=options | {"expandable_segments": "true"})  # type: ignore[arg-type]
    assert grown.memory.outside_parts_bytes["cached"] == 0.0
