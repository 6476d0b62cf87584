"""Hosts that pace or wait, sends in parts, and collectives of input gradients, against sums worked by hand.

Llama-8B on one Z2000 node with the rates of tests.scenario.cases.ROUND: eight devices, sequences of 8192 tokens, 32
layers, h 4096; NVLink at 337.5 GB/s, 2 us a hop.
"""

from dataclasses import replace
from typing import Any

import pytest

from simulator.cost.timing.collectives import gather_seconds, neighbour_seconds, pipeline_group, tensor_group
from simulator.question.coefficients import Coefficients
from simulator.question.scenario.scenario import Scenario
from tests.scenario.cases import ROUND, block, only, priced, scenario_of

T, H, LAYERS = 8192, 4096, 32
MATMUL = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336
SLOW, QUICK = 0.5, 1e-6


def llama(host_layer_seconds: float = SLOW, *, time: dict[str, float] | None = None, **options: str) -> Scenario:
    values = replace(ROUND.time, host_layer_seconds=host_layer_seconds, **(time or {}))
    coefficients: Coefficients = replace(ROUND, time=values)
    return scenario_of("llama3.1-8b", coefficients=coefficients, options={"tp_comm_overlap": "false"} | options)


def parts(scenario: Scenario, **fields: Any) -> dict[str, float]:
    answer = priced(scenario, **fields)
    return {name: only(value) for name, value in answer.step.parts(answer.pricing).items()}


def total(scenario: Scenario, **fields: Any) -> float:
    return only(priced(scenario, **fields).step.total)


def test_a_layer_takes_no_less_than_its_host() -> None:
    batches = 1024 / 8
    paced = parts(llama(host_paced_layers="true"))
    layers = sum(paced[name] for name in ("gemm", "attention", "memory_bound", "overhead"))
    assert layers == pytest.approx(batches * (LAYERS * SLOW + 1e-3) + 10e-3)
    assert total(llama(QUICK, host_paced_layers="true")) == total(llama(QUICK))


@pytest.mark.parametrize(
    ("options", "starts"), [({}, True), ({"compiled": "true"}, False), ({"cuda_graphs": "layers"}, False)]
)
def test_a_layer_takes_no_less_than_the_launches_of_its_kernels(options: dict[str, str], *, starts: bool) -> None:
    launches = {"launch_seconds": 1e-2, "launches_per_layer": 50.0}
    paced, plain = (parts(llama(QUICK, time=time, **options)) for time in (launches, {"launch_seconds": 1e-9}))
    batches = 1024 / 8
    layers = sum(paced[name] for name in ("gemm", "attention", "memory_bound", "overhead"))
    if starts:
        assert layers == pytest.approx(batches * (LAYERS * 50.0 * 1e-2 + 1e-3) + 10e-3)
    else:
        assert paced == pytest.approx(plain)


def test_a_host_that_waits_adds_what_it_takes() -> None:
    added = total(llama(blocking_launches="true")) - total(llama())
    assert added == pytest.approx(1024 / 8 * LAYERS * SLOW)
    # A recomputed layer takes another third.
    fields = {"recompute": "full"}
    again = total(llama(blocking_launches="true"), **fields) - total(llama(), **fields)
    assert again == pytest.approx(4 / 3 * added)


def test_ranks_that_hold_one_activation_send_a_part_each() -> None:
    fields: dict[str, Any] = {"tensor_parallel": 4, "pipeline_parallel": 2, "sequence_parallel": False}
    whole, scattered = llama(), llama(scattered_sends="true")
    here = block(whole, **fields)
    activation = 2.0 * T * H + 0.0 * here.tensor_parallel
    sent = only(neighbour_seconds(whole, pipeline_group(here), activation / 4))
    gathered = only(gather_seconds(whole, tensor_group(here), activation))
    plain = only(neighbour_seconds(whole, pipeline_group(here), activation))
    found = [parts(scenario, **fields)["pipeline_sends"] for scenario in (whole, scattered)]
    assert found[1] / found[0] == pytest.approx((sent + gathered) / plain)
    # With sequence parallelism each rank has its part alone.
    split = fields | {"sequence_parallel": True}
    assert parts(scattered, **split)["pipeline_sends"] == parts(whole, **split)["pipeline_sends"]


@pytest.mark.parametrize(("sequence_parallel", "share"), [(False, 1.0), (True, 0.5)])
def test_input_gradients_are_reduced_beside_weight_gradients(*, sequence_parallel: bool, share: float) -> None:
    """Half of what runs beside them is seen (`tensor_exposed`); the forward pass waits as ever."""
    fields: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": sequence_parallel}
    waits, runs = llama(overlap_tensor_gradients="false"), llama()
    one_way = parts(waits, **fields)["tensor_parallel"] / 2
    assert parts(runs, **fields)["tensor_parallel"] == pytest.approx(one_way * (2 - 0.5 * share))


def test_what_outlasts_the_weight_gradients_is_seen() -> None:
    """Over links a hundred times as slow no product is long enough: it hides what it takes itself."""
    slow = {"tensor_exposed": 0.0, "link_efficiency": 0.0075}
    fields: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": False}
    waits = parts(llama(time=slow, overlap_tensor_gradients="false"), **fields)["tensor_parallel"]
    found = parts(llama(time=slow), **fields)
    # q, k, v, gate and up are cut by outputs; a third of all products' time are weight gradients.
    cut = (4096 * (4096 + 2 * 1024) + 2 * 4096 * 14_336) / MATMUL
    assert waits - found["tensor_parallel"] == pytest.approx(cut * found["gemm"] / 3)


@pytest.mark.parametrize(("graphs", "captured"), [("none", 0.0), ("attention", 0.5), ("network", 0.5), ("layers", 1.0)])
def test_graphs_leave_out_the_launches_of_what_they_hold(graphs: str, captured: float) -> None:
    batches, layer = 1024 / 8, 1e-3
    whole, some = (
        parts(llama(time={"layer_overhead_seconds": layer, "captured_launch_share": share}, cuda_graphs=graphs))
        for share in (0.0, 0.6)
    )
    assert whole["overhead"] - some["overhead"] == pytest.approx(batches * LAYERS * layer * 0.6 * captured)
