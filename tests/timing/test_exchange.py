"""How tokens reach their experts: volumes, nodes and ranks reached, seconds, worked by hand."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.operations.record import conditions_of
from simulator.cost.operations.sums import expected_islands, layer_work, total
from simulator.cost.timing.layers import layer_seconds, sum_parts
from simulator.errors import InputError
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.documents import validated
from simulator.question.specs.model import ModelSpec
from tests.scenario.cases import ROUND, load_model, only, pricing, scenario_of

V3 = load_model("deepseek-v3")
FREE = replace(V3, n_group=0, topk_group=0)
T = 4096


def simulated(model: ModelSpec, islands: int, tokens: int) -> float:
    """Islands that tokens with random scores reach, in the mean; a group's score is the sum of its two best."""
    draw, experts = np.random.default_rng(1), model.num_experts
    groups = model.n_group or 1
    size, total = experts // groups, 0
    for _ in range(tokens):
        scores = draw.random(experts).tolist()
        best = sorted(range(groups), key=lambda g: -sum(sorted(scores[g * size : (g + 1) * size])[-2:]))
        allowed = [e for g in best[: model.topk_group or 1] for e in range(g * size, (g + 1) * size)]
        chosen = sorted(allowed, key=lambda e: -scores[e])[: model.num_experts_per_tok]
        total += len({e * islands // experts for e in chosen})
    return total / tokens


@pytest.mark.parametrize(
    ("model", "islands", "expected"),
    [(FREE, n, x) for n, x in ((2, 1.99), (4, 3.61), (8, 5.29), (16, 6.53), (32, 7.27), (64, 7.68))]
    + [(V3, 2, 1.97), (V3, 4, 3.14), (V3, 8, 4.0)],
)
def test_islands_that_a_token_reaches(model: ModelSpec, islands: int, expected: float) -> None:
    found = only(expected_islands(model, np.array([float(islands)])))
    assert found == pytest.approx(expected, abs=0.01)
    # Some tokens use fewer than all allowed groups, and better groups hold more of them.
    assert simulated(model, islands, 1500) == pytest.approx(found, rel=0.02 if model is FREE else 0.07)


def test_one_island_is_reached_once() -> None:
    for model in (V3, FREE, load_model("mixtral-8x7b-v0.1")):
        assert only(expected_islands(model, np.array([1.0]))) == pytest.approx(1.0)


def two_nodes(dispatch: str, wait_seconds: float = 0.0) -> Scenario:
    """A model of 8 experts, 2 a token, on 16 devices of which 8 share a node."""
    model = replace(load_model("mixtral-8x7b-v0.1"), num_experts=16)
    coefficients = replace(ROUND, time=replace(ROUND.time, expert_wait_seconds=wait_seconds))
    options = {"expert_dispatch": dispatch}
    fields: dict[str, Any] = {"coefficients": coefficients, "seq_length": T, "global_batch_size": 16}
    return scenario_of(model, "h100-sxm-80g", devices=16, options=options, **fields)


def exchange(scenario: Scenario, **fields: int) -> float:
    """Seconds of dispatch and combine of one layer, forward."""
    timer = pricing(scenario, **fields)
    return only(layer_seconds(timer, scenario.model.layer_kinds[0]).forward["expert_parallel"])


def test_a_copy_to_each_rank_and_over_the_network_to_each_node() -> None:
    # Nodes: 2 [1 - C(8, 2) / C(16, 2)] = 2 (1 - 28 / 120); ranks: 16 [1 - C(15, 2) / C(16, 2)] = 2.
    nodes, bytes_a_token = 2 * (1 - 28 / 120), 2 * 4096
    network = T * bytes_a_token * nodes / 2 / 37.5e9
    inside = T * bytes_a_token * 2 * 7 / 8 / 337.5e9
    assert network > inside
    found = exchange(two_nodes("deepep"), expert_parallel=16)
    assert found == pytest.approx(2 * (network + 40e-6 * 2))
    assert exchange(two_nodes("hybridep"), expert_parallel=16) == found
    # Inside a node: 8 ranks reach 8 [1 - C(14, 2) / C(16, 2)] = 8 (1 - 91 / 120).
    ranks = 8 * (1 - 91 / 120)
    inside = T * bytes_a_token * ranks * 7 / 8 / 337.5e9
    assert exchange(two_nodes("deepep"), expert_parallel=8) == pytest.approx(2 * (inside + 40e-6))
    assert exchange(two_nodes("deepep")) == 0


def test_all_tokens_to_all_ranks() -> None:
    # 16 ranks gather what each has: 15/16 of it over the network at the links of 8 devices, or inside a node.
    whole = 16 * T * 2 * 4096
    slowest = max(1 / 2 * whole / (8 * 37.5e9), 7 / 8 * whole / 337.5e9)
    found = exchange(two_nodes("allgather"), expert_parallel=16)
    assert found == pytest.approx(2 * (slowest + 7 * 2e-6 + 1e-5))


def test_expert_tensor_parallelism_joins_the_exchange() -> None:
    scenario = two_nodes("deepep")
    sizes = {"tensor_parallel": 2, "sequence_parallel": True}
    split = exchange(scenario, expert_parallel=8, expert_tensor_parallel=2, **sizes)
    whole = exchange(scenario, expert_parallel=16, **sizes)
    assert split == whole


def test_ranks_wait_for_counts_where_experts_are_divided() -> None:
    plain, waiting = two_nodes("alltoall"), two_nodes("alltoall", 1e-3)
    assert exchange(waiting, expert_parallel=8) - exchange(plain, expert_parallel=8) == pytest.approx(0.5e-3)
    assert exchange(waiting) == 0


def test_ordering_copies_moves_less_where_ranks_share_them() -> None:
    # All-to-all: 10 R h of bytes a pass; DeepEP: two thirds of 4 R h and 4 bytes of each rank's copy.
    def moved(scenario: Scenario) -> float:
        timer = pricing(scenario, expert_parallel=16)
        return only(layer_seconds(timer, scenario.model.layer_kinds[0]).forward["memory_bound"])

    copies, reached = 2 * T * 4096, 2 * T * 4096
    saved = 10 * copies - 2 / 3 * (4 * copies + 4 * reached)
    assert moved(two_nodes("alltoall")) - moved(two_nodes("deepep")) == pytest.approx(saved / 1675e9)


def test_groups_must_divide_the_experts() -> None:
    values = asdict(V3) | {"n_group": 7}
    with pytest.raises(InputError, match="n_group 7, topk_group 4: of groups that divide 256 experts"):
        validated("case", ModelSpec, values)


@pytest.mark.parametrize(
    ("precision", "recipe", "each"), [("bf16", "delayed", 6), ("fp8", "tensorwise", 26), ("fp8", "mxfp8", 10)]
)
def test_a_layer_takes_no_less_than_its_launches(precision: str, recipe: str, each: int) -> None:
    # 103 kernels, and per expert on the device six products, in fp8 four casts of one or of five.
    slow = replace(ROUND, time=replace(ROUND.time, launch_seconds=1e-3))
    scenario = scenario_of(
        "mixtral-8x7b-v0.1",
        "h100-sxm-80g",
        devices=8,
        coefficients=slow,
        precision=precision,
        global_batch_size=8,
        options={"fp8_recipe": recipe},
    )
    layer = layer_seconds(pricing(scenario, expert_parallel=4), scenario.model.layer_kinds[0])
    host = 1e-3 * (103 + 2 * each)
    assert only(sum_parts(layer.forward)) == pytest.approx(host / 3)
    assert only(sum_parts(layer.backward)) == pytest.approx(2 * host / 3)
    fast = replace(scenario, coefficients=ROUND)
    quick = layer_seconds(pricing(fast, expert_parallel=4), scenario.model.layer_kinds[0])
    assert only(quick.forward["overhead"]) == pytest.approx(100e-6)


def test_fp8_casts_every_copy() -> None:
    # 16 bit in, 8 bit and its transpose out: 4 bytes each; of the gradient the same once, not twice.
    kind = load_model("mixtral-8x7b-v0.1").layer_kinds[0]

    def moved(precision: str) -> float:
        scenario = scenario_of(
            "mixtral-8x7b-v0.1", "h100-sxm-80g", devices=8, precision=precision, global_batch_size=8, seq_length=T
        )
        return only(total(pricing(scenario), layer_work(conditions_of(scenario), kind).moved))

    experts = 4 * 2 * T * (2 / 3 * 4096 + 14_336)
    attention = 4 * T * (4096 + 4096)
    assert moved("fp8") - moved("bf16") == pytest.approx(experts + attention)


def test_biases_of_experts_are_kernels_of_their_own() -> None:
    with_bias = load_model("gpt-oss-20b")
    without = replace(with_bias, mlp_bias=False)
    kind = with_bias.layer_kinds[0]

    def copies(model: ModelSpec) -> float:
        return layer_work(conditions_of(scenario_of(model)), kind).moved["copies"]

    assert copies(with_bias) - copies(without) == pytest.approx(2 / 3 * 28 * 2880)
