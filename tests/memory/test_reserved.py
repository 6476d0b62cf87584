"""What tensors take, what the allocator holds, and what the device shows are figures of their own."""

import json

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
        stack=stack,  # type: ignore[arg-type]  # one of the words
    ).memory
    outside = found.outside_parts_bytes
    assert found.device_bytes - found.reserved_bytes == pytest.approx(outside["context"] + outside["communicators"])
    held = outside["user_buffers"] + outside["ring_buffers"] + outside["fragmentation"]
    assert found.reserved_bytes - found.allocated_bytes == pytest.approx(held)
    assert found.device_bytes > found.reserved_bytes > found.allocated_bytes
    assert all(one.device_bytes > one.reserved_bytes > one.allocated_bytes for one in found.stages)


def test_the_contract_and_the_table_have_all_three() -> None:
    asked = ("estimate", "--model", "llama3.1-8b", "--hardware", "h100-sxm-80g", "--tp", "2")
    memory = json.loads(run(*asked, "--format", "json").stdout)["memory"]
    assert memory["device_mib"] > memory["reserved_mib"] > memory["allocated_mib"] > 0
    assert "reserved" in run(*asked).stdout
