"""Context parallelism by kind: what is exchanged, what hides it, what is merged, and what is held meanwhile."""

from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.moments import layer_backward_bytes
from simulator.question.scenario.block import block_of
from simulator.search.build import estimate_layout
from tests.scenario.cases import layout_of, scenario_of

KINDS = ("ring", "gathered_ring", "all_gather", "all_to_all", "all_to_all_ring")


def estimated(kind: str, context: int, seq_length: int = 32768, **given: Any) -> Any:
    options = {"cp_communication": kind} | given.pop("options", {})
    asked: dict[str, Any] = {"model": "llama3.1-8b", "devices": 16, "global_batch_size": 16, "options": options}
    scenario = scenario_of(**(asked | given), seq_length=seq_length)
    return estimate_layout(scenario, layout_of(scenario, context_parallel=context))


def seconds(kind: str, context: int, seq_length: int = 32768, **given: Any) -> dict[str, float]:
    return dict(estimated(kind, context, seq_length, **given).throughput.parts_seconds)


@pytest.mark.parametrize("kind", KINDS)
def test_one_rank_exchanges_nothing(kind: str) -> None:
    parts = seconds(kind, 1)
    assert (parts["context_parallel"], parts["ring_attention"]) == (0.0, 0.0)


def test_no_kind_is_priced_as_another() -> None:
    """Inside and across nodes, in seconds or bytes; a ring of one group of neighbours is all-to-all by definition."""
    for context in (4, 16):
        options = {"cp_inner_degree": "2"}
        each = {kind: estimated(kind, context, options=options) for kind in KINDS}
        priced = {
            (e.throughput.parts_seconds["context_parallel"], e.throughput.parts_seconds["ring_attention"]): kind
            for kind, e in each.items()
            if not e.violations or kind != "all_to_all"
        }
        assert len(priced) >= len(KINDS) - 1


@pytest.mark.parametrize("kind", ["ring", "gathered_ring", "all_gather", "all_to_all_ring"])
def test_more_ranks_take_a_bounded_time(kind: str) -> None:
    """At 131,072 tokens over 16 ranks what attention does not hide stays below a quarter of the step."""
    options = {"cp_inner_degree": "2"}
    for context in (2, 4, 8, 16):
        one = estimated(kind, context, 131072, options=options)
        parts = one.throughput.parts_seconds
        exchanged = parts["context_parallel"] + parts["ring_attention"]
        assert exchanged < 0.25 * one.throughput.step_seconds


def test_a_ring_merges_a_step_less_than_it_has_ranks() -> None:
    """The rest of the ring is what all-to-alls leave of it; one attention over gathered tokens merges nothing."""
    merged = {kind: seconds(kind, 8, options={"cp_inner_degree": "4"})["ring_attention"] for kind in KINDS}
    assert merged["ring"] == merged["gathered_ring"] > 0.0
    assert merged["all_gather"] == merged["all_to_all"] == 0.0
    assert merged["all_to_all_ring"] == pytest.approx(merged["ring"] / 7)


@pytest.mark.parametrize(("inner", "same"), [("1", "ring"), ("8", "all_to_all")])
def test_a_hierarchy_ends_in_its_parts(inner: str, same: str) -> None:
    mixed, plain = seconds("all_to_all_ring", 8, options={"cp_inner_degree": inner}), seconds(same, 8)
    assert mixed["ring_attention"] == plain["ring_attention"]
    # An all-to-all over one rank sends nothing, nor does a ring of one.
    assert mixed["context_parallel"] == pytest.approx(plain["context_parallel"])


def test_what_nothing_hides_takes_longer() -> None:
    """Gathered before attention is whole; beside the first block in part; from rank to rank least of all."""
    parts = {kind: seconds(kind, 8, 131072)["context_parallel"] for kind in ("ring", "gathered_ring", "all_gather")}
    assert parts["ring"] <= parts["gathered_ring"] <= parts["all_gather"]
    assert parts["ring"] < parts["all_gather"]


def test_torch_s_ring_adds_no_buffers() -> None:
    """32,768 tokens a device of Llama 3 8B on 8: torchtitan took 83.9 GiB alone and 84.0 over 4 ranks (reserved)."""
    memory = []
    for context, length, batch in ((1, 32768, 8), (4, 131072, 2)):
        scenario = scenario_of(
            model="llama3.1-8b", profile="torch", devices=8, global_batch_size=batch, seq_length=length
        )
        layout = layout_of(scenario, context_parallel=context, zero_stage=3, recompute="full")
        memory.append(estimate_layout(scenario, layout).memory.device_bytes / 2**30)
    assert 0.0 <= memory[1] - memory[0] < 0.2


def test_gathered_tokens_are_held_in_attention() -> None:
    """Keys and values of the whole context with their gradients: 8 bytes for each of 1,024 numbers of a token."""
    held = []
    for kind in ("all_gather", "all_to_all"):
        scenario = scenario_of(
            model="llama3.1-8b",
            profile="torch",
            devices=64,
            seq_length=2**22,
            global_batch_size=1,
            options={"cp_communication": kind},
        )
        block = block_of([layout_of(scenario, context_parallel=64)])
        layer = scenario.model.layer_kinds[0]
        held.append(float(layer_backward_bytes(Pricing(scenario, block), layer, np.ones(1, dtype=np.bool_))[0]))
    assert 0 < held[0] - held[1] < 8 * 1024 * 2**22
    assert held[0] > 8 * 1024 * 2**22


INNER: list[tuple[dict[str, str], int]] = [({}, 16), ({"cp_inner_degree": "16"}, 16), ({"cp_inner_degree": "3"}, 4)]


@pytest.mark.parametrize(("options", "context"), INNER)
def test_heads_divide_over_the_ranks_that_exchange_them(options: dict[str, str], context: int) -> None:
    broken = [one.rule for one in estimated("all_to_all_ring", context, options=options).violations]
    assert ("context_heads" in broken) == bool(options)
