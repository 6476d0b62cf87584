"""NVFP4: what a rank holds, against a published run; devices without 4-bit products refuse it."""

from typing import Any

import pytest

import simulator
from simulator.errors import UnsupportedError

DEEPSEEK: dict[str, Any] = {
    "model": "deepseek-v3",
    "hardware": "gb300-nvl72",
    "devices": 256,
    "seq_length": 4096,
    "global_batch_size": 4096,
    "stack": "megatron-bridge@26.04",
    "precision": "fp4",
    "tp": 1,
    "pp": 2,
    "ep": 32,
    "vpp": 8,
    "micro_batch_size": 2,
    "chunk_layers": (4,) * 15 + (1,),
    "recompute": "selective",
    "recompute_modules": ("mla_up_proj",),
}


@pytest.mark.parametrize(("gathered", "allocated_gb"), [("false", 235.15), ("true", 202.75)])
def test_allocated_bytes_are_those_of_a_published_run(gathered: str, allocated_gb: float) -> None:
    """NVIDIA-NeMo/Megatron-Bridge pull request 3364: most bytes allocated on rank 0, without and with 4-bit weights."""
    found = simulator.estimate(**DEEPSEEK, options={"fp8_param_gather": gathered})
    assert found.memory.stages[0].allocated_bytes / 1e9 == pytest.approx(allocated_gb, rel=0.03)


def test_fp4_is_faster_than_fp8_and_keeps_less() -> None:
    asked: dict[str, Any] = {"model": "llama3.1-70b", "hardware": "gb200-nvl72", "devices": 64, "tp": 2, "pp": 4}
    blocks = {"fp8_recipe": "mxfp8"}  # both have copies along either side; with one scale a tensor 8 bits have one
    narrow, wide = (simulator.estimate(**asked, precision=word, options=blocks) for word in ("fp4", "fp8"))
    assert narrow.throughput.step_seconds < wide.throughput.step_seconds
    parts = [one.memory.stages[0].parts_bytes for one in (narrow, wide)]
    assert all(parts[0][name] < parts[1][name] for name in ("parameters", "activations"))


def test_amds_devices_train_in_mxfp4() -> None:
    """32 numbers share a scale, and no number of the whole tensor has to be known: less is kept and moved."""
    asked: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "mi355x", "precision": "fp4", "tp": 1}
    found = simulator.estimate(**asked, options={"fp4_recipe": "mxfp4"})
    wide = simulator.estimate(**(asked | {"precision": "fp8"}), options={"fp8_recipe": "mxfp8"})
    assert found.throughput.step_seconds < wide.throughput.step_seconds
    kept = [one.memory.stages[0].parts_bytes["activations"] for one in (found, wide)]
    assert kept[0] < kept[1]
    (refused,) = simulator.estimate(**asked).violations
    assert (refused.rule, refused.fix) == ("fp4_recipe", "--option fp4_recipe=mxfp4")


@pytest.mark.parametrize("hardware", ["h100-sxm-80g", "a100-sxm-80g", "mi300x"])
def test_a_device_without_4_bit_products_refuses(hardware: str) -> None:
    with pytest.raises(UnsupportedError, match="has no fp4 peak; it has: "):
        simulator.estimate(model="llama3.1-8b", hardware=hardware, precision="fp4", tp=1)
