"""What offload needs of a node's host, against what its spec states."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simulator
from simulator.api import scenario_of
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.hardware import MemorySize
from simulator.question.units import GIB
from simulator.question.vocabulary import Offload
from simulator.search.build import estimate_layout

LAYOUT = Layout(tensor_parallel=2, pipeline_parallel=2, data_parallel=2, stage_layers=default_cut(32, 2))


def ask(offload: Offload, host: str | None = "2 TB", micro_batch_size: int = 1) -> simulator.Estimate:
    """Llama 3.1 8B on one node whose host has so much memory."""
    scenario = scenario_of(model="llama3.1-8b", hardware="h100-sxm-80g", nodes=1)
    memory = None if host is None else MemorySize(value=host, source=("test",), status="assumed")
    hardware = scenario.hardware.model_copy(update={"host_memory": memory})
    return estimate_layout(
        replace(scenario, hardware=hardware), replace(LAYOUT, offload=offload, micro_batch_size=micro_batch_size)
    )


def test_nothing_is_moved_without_offload() -> None:
    assert ask("none").memory.host_bytes_per_node == 0.0
    assert load_hardware("h100-sxm-80g").host_memory is not None


def test_optimizer_state_of_all_devices_of_a_node() -> None:
    """What the fullest rank's device no longer holds between steps, eight times: 12 bytes a parameter in all."""
    plain, moved = ask("none"), ask("optimizer")
    stage = max(plain.memory.stages, key=lambda one: one.parts_bytes["optimizer"])
    assert moved.memory.host_bytes_per_node == pytest.approx(8 * stage.parts_bytes["optimizer"], rel=1e-6)
    assert moved.memory.host_bytes_per_node / GIB == pytest.approx(12 * 8.03e9 / GIB, rel=0.1)


def test_activations_of_all_micro_batches_in_flight() -> None:
    one, two = (ask("activations", micro_batch_size=size).memory.host_bytes_per_node for size in (1, 2))
    assert two == pytest.approx(2.0 * one, rel=1e-6)
    # Two ranks: the first has two micro batches in flight, and the bytes of eight devices are on the host.
    assert one > 8 * GIB


def test_a_host_that_is_too_small_does_not_fit() -> None:
    roomy, tight, unknown = ask("optimizer"), ask("optimizer", "64 GiB"), ask("optimizer", None)
    assert (roomy.memory.fits_host, roomy.verdict) == (True, "fits")
    assert (tight.memory.fits_host, tight.verdict) == (False, "does_not_fit")
    assert tight.memory.fit_probability == 0.0
    assert (unknown.memory.fits_host, unknown.verdict) == (None, "fits")
    assert tight.memory.device_bytes == roomy.memory.device_bytes
