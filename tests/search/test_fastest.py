"""A search for one finds what the whole search puts first, whatever it is told to try."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.answers.ranking import fastest, query_of
from simulator.api import scenario_of as question
from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import FITS, Sized, price, size, timed
from simulator.cost.timing.step import least_step_seconds, min_step_seconds
from simulator.question.question import question_of
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import Offload
from simulator.search import space as space_module
from simulator.search.build import estimates_of
from simulator.search.rank import (
    LESS_LIKELY,
    MOST_RISKY,
    OpenSearch,
    _divides,
    _may_fit,
    _search,
    best_of,
    fastest_of,
    lawful,
    least_devices,
    search,
    solved,
)
from simulator.search.rules import RULES
from simulator.search.space import Query, Space, blocks
from tests.scenario.cases import scenario_of, small_moe

LEAST = 0.95

QUESTIONS = [
    question(model="llama3.1-70b", nodes=4),
    question(model="deepseek-v2-lite", nodes=2, hardware="h100-sxm-80g", precision="fp8"),
    question(model="llama3.1-8b", hardware="h100-sxm-80g:1,h800-sxm-80g:1"),
    question(model="qwen3-30b-a3b", nodes=2, framework="torch"),
    scenario_of(small_moe(num_hidden_layers=3), devices=8, profile="paddle", global_batch_size=24),
]


def named(scenario: Scenario) -> str:
    """A question in a word."""
    return f"{scenario.model.name}-{scenario.hardware_name}"


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_it_is_the_first_of_a_search(scenario: Scenario) -> None:
    query = Query(scenario=scenario, min_fit_probability=LEAST)
    found = search(query, top=4)
    assert found.fastest
    for below in (np.inf, found.fastest[1].step_seconds):
        best = best_of(query, below=below)
        assert best is not None
        assert best._replace(priced=None) == found.fastest[0]
        # It is estimated as it was priced, without pricing it again.
        assert estimates_of([best], intervals=False) == estimates_of(found.fastest[:1], intervals=False)
    assert best_of(query, below=found.fastest[0].step_seconds) is None
    assert OpenSearch(query).fits


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_a_rule_is_said_to_drop_what_no_earlier_one_did(scenario: Scenario) -> None:
    """Though later rules judge only what is left, masks are of the whole block."""
    for block in blocks(scenario, Space(tensor_parallel_across_nodes=True)):
        alive, expected = np.ones(len(block), dtype=bool), dict[str, list[bool]]()
        for rule in RULES:
            hit = alive & rule.broken(Pricing(scenario, block.block))
            expected |= {rule.id: hit.tolist()} if hit.any() else {}
            alive &= ~hit
        left, broken = lawful(Space(tensor_parallel_across_nodes=True), block)
        assert {rule.id: mask.tolist() for rule, mask in broken} == expected
        assert np.array_equal(left.block.tensor_parallel, block.block.tensor_parallel[alive])


@pytest.mark.parametrize("scenario", [QUESTIONS[0], QUESTIONS[2]], ids=named)
def test_no_partly_recomputed_layout_under_a_bound_is_left_out(scenario: Scenario) -> None:
    """And some beyond it are."""
    left_out = 0
    for block in blocks(scenario, Space()):
        sized = size(lawful(Space(), block)[0])
        if (every := solved(sized)) is None:
            continue
        seconds = timed(every).step.total
        for below in (*np.quantile(seconds, (0.1, 0.5, 0.9)), np.nextafter(seconds.min(), 0.0)):
            found = solved(sized, float(below))
            assert faster(found, below) == faster(every, below)
            left_out += len(every.pricing) - (0 if found is None else len(found.pricing))
    assert left_out


def faster(sized: Sized | None, below: float) -> list[Layout]:
    """Layouts that take less than a bound."""
    if sized is None:
        return []
    return [sized.block.layout(int(at)) for at in np.flatnonzero(timed(sized).step.total < below)]


def test_where_nothing_fits_nothing_is_found() -> None:
    query = Query(scenario=scenario_of("llama3.1-405b", devices=8))
    assert fastest_of(query) is None
    assert not OpenSearch(query).fits


@pytest.mark.parametrize(
    ("inputs", "least"),
    [
        ({"model": "llama3.1-405b", "nodes": 1}, LEAST),  # nothing may fit
        ({"model": "deepseek-v2-lite", "nodes": 1, "hardware": "rtx-3080"}, LEAST),
        ({"model": "deepseek-v3", "hardware": "h20:1,a10:1"}, LEAST),  # a mixture passes over what needs more
        ({"model": "qwen3-14b", "nodes": 8, "hardware": "rtx-3080"}, LEAST),  # a risky one
        (
            {"model": "mixtral-8x7b-v0.1", "nodes": 4, "hardware": "h100-sxm-80g"},
            1.0,
        ),  # of either alternative
        ({"model": "llama3.1-8b", "hardware": "h20:1,a10:1"}, 1.0),
        ({"model": "llama3.1-8b", "nodes": 1, "hardware": "h100-sxm-80g"}, LEAST),
    ],
)
def test_without_a_likely_layout_it_is_a_less_likely_or_the_first_miss(inputs: dict[str, Any], least: float) -> None:
    asked = question_of(inputs, many=True)
    found, *lower = (search(query_of(asked, min_fit_probability=x), top=1) for x in (least, *LESS_LIKELY))
    is_likely = bool(found.fastest)
    found = next((each for each in (found, *lower) if each.fastest), found)
    first = estimates_of((*found.fastest, *found.risky, *found.starved, *found.nearest)[:1])
    best = fastest(asked, min_fit_probability=least)
    assert [best.recommended or best.nearest] == first
    assert (best.recommended is None) == (not is_likely)


STATES = [
    question(model="llama3.1-70b", devices=8),
    question(model="qwen3-30b-a3b", devices=8, framework="torch"),
    question(model="deepseek-v2-lite", devices=24, hardware="h100-sxm-80g", precision="fp8"),
    question(model="gpt2-xl", devices=4, options={"optimizer": "muon"}),
    question(model="llama3.1-8b", devices=16, lora_rank=16, framework="torch", stack="trl"),
]


@pytest.mark.parametrize("offload", ["none", "optimizer"])
@pytest.mark.parametrize("scenario", STATES, ids=named)
def test_no_layout_holds_less_than_all_that_is_stored_once(scenario: Scenario, offload: Offload) -> None:
    query = Query(scenario=scenario, space=Space(offload=(offload,), zero_stage=(0, 1, 2, 3)))
    room = scenario.hardware.usable_memory_bytes * scenario.coefficients.memory.starved_from
    least = least_devices(query)
    assert least > 0
    for block in blocks(scenario, query.space):
        allowed, _ = lawful(query.space, block)
        if len(allowed):
            fullest = size(allowed).memory.need.max(axis=0)
            assert (fullest * scenario.devices >= least * room).all()


def test_one_device_shards_no_frozen_weights() -> None:
    scenario = question(model="llama3.1-8b", devices=1, hardware="rtx-4090", lora_rank=16, framework="torch")
    query = Query(scenario=replace(scenario, seq_length=512, global_batch_size=1), space=Space())
    assert fastest_of(query) is not None
    assert least_devices(query) <= 1.0
    assert OpenSearch(query).fits


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_what_may_not_fit_never_does(scenario: Scenario) -> None:
    space = Space(zero_stage=(0, 1, 3), offload=("none", "optimizer"))
    lawful_blocks = [allowed for block in blocks(scenario, space) if len(allowed := lawful(space, block)[0])]
    assert not any((~_may_fit(block) & (size(block).verdict == FITS)).any() for block in lawful_blocks)
    if not scenario.model.is_moe:
        return
    # Nor do those that are left out before layouts are laid out.
    kept = list(blocks(scenario, space, possible=lambda each: np.asarray(_divides(each) & _may_fit(each))))
    left = [lawful(space, block)[0] for block in kept]
    assert sum(map(len, kept)) < sum(map(len, blocks(scenario, space)))
    assert fitting(block for block in left if len(block)) == fitting(lawful_blocks) > 0


def fitting(pricings: Iterable[Pricing]) -> int:
    """Number of layouts that fit."""
    return sum(int(np.count_nonzero(size(pricing).verdict == FITS)) for pricing in pricings)


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_no_step_is_faster_than_its_bound(scenario: Scenario) -> None:
    for block in blocks(scenario, Space(offload=("none", "optimizer", "activations"))):
        least, own, step = min_step_seconds(block), least_step_seconds(block), price(block).step.total
        assert (least <= own * (1.0 + 1e-9)).all()
        assert (own <= step * (1.0 + 1e-9)).all()


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_kinds_of_work_change_no_figure(scenario: Scenario) -> None:
    for block in blocks(scenario, Space()):
        assert block.work is not None
        shared, alone = price(block), price(Pricing(scenario, block.block))
        assert np.array_equal(shared.memory.device, alone.memory.device)
        assert np.array_equal(shared.step.total, alone.step.total)
        parts = alone.step.parts(alone.pricing)
        assert all(np.array_equal(part, parts[name]) for name, part in shared.step.parts(shared.pricing).items())


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_the_first_rank_of_each_kind_needs_as_much_as_any(scenario: Scenario) -> None:
    few = 0
    for block in blocks(scenario, Space(), fullest=True):
        found, every = price(block), price(Pricing(scenario, block.block))
        few += len(found.memory.device) < len(every.memory.device)
        assert np.array_equal(block.contents.held[found.binding_stage], every.binding_stage)
        assert np.array_equal(found.need_bytes, every.need_bytes)
        assert np.array_equal(found.device_bytes, every.device_bytes)
        assert np.array_equal(found.verdict, every.verdict)
        assert np.array_equal(found.step.total, every.step.total)
        at = np.arange(0, len(block), 7)
        share, of_every = (each.memory.state_share(each.binding_stage[at], at) for each in (found, every))
        assert np.array_equal(share, of_every)
    # FSDP2's moments are not of the first rank alone; two layers or three have no ranks between the ends.
    assert bool(few) is not (scenario.framework.name == "torch" or scenario.devices == 8)


def test_layouts_of_equal_sizes_share_nothing_that_recompute_changes() -> None:
    """Weights that DeepSpeed's ZeRO 3 gathered are not kept in layers that are done again."""
    switched = {"kept_gathers": "true", "live_parameters": "1000000000", "fully_shard": "false"}
    scenario = question(model="llama-2-13b", devices=8, framework="torch", options=switched)
    whole = Space(zero_stage=(3,), pipeline_parallel=(1,))
    for block in blocks(scenario, whole, fullest=True):
        assert block.sizes is not None
        shared, alone = size(block), size(Pricing(scenario, block.block))
        assert np.array_equal(shared.need_bytes, alone.need_bytes)


@pytest.mark.parametrize("scenario", QUESTIONS, ids=named)
def test_what_shards_or_offloads_state_changes_no_pass(scenario: Scenario) -> None:
    whole = Space(zero_stage=(0, 1, 2, 3), offload=("none", "optimizer", "activations"), micro_batch_size=(1, 2))
    for block in blocks(scenario, whole):
        assert block.passes is not None
        assert 4 * len(block.passes.pricing) <= len(block)
        for some in (block, block.take(np.arange(1, len(block), 3))):
            shared, alone = price(some), price(Pricing(scenario, some.block))
            assert np.array_equal(shared.memory.device, alone.memory.device)
            assert np.array_equal(shared.verdict, alone.verdict)
            assert np.array_equal(shared.step.total, alone.step.total)
        parts = alone.step.parts(alone.pricing)
        assert all(np.array_equal(part, parts[name]) for name, part in shared.step.parts(shared.pricing).items())


def test_many_kinds_of_work_are_worked_out_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = QUESTIONS[0]
    whole = search(Query(scenario=scenario, min_fit_probability=LEAST))
    monkeypatch.setattr(space_module, "CHUNK", 1)
    assert all(block.work is None for block in blocks(scenario, Space(), chunk=64))
    assert search(whole.fastest[0].query) == whole


def test_what_one_alternative_found_leaves_out_nothing_of_the_other() -> None:
    """Each alternative searched by itself, and the best of both put together, the question as it stands first."""
    scenario = question(model="qwen3-30b-a3b", nodes=1, hardware="h100-sxm-80g")
    space = Space(tensor_parallel=(1, 2), context_parallel=(1,))
    query = Query(scenario=scenario, space=space, min_fit_probability=0.95)
    alone = [_search(each, 4, np.inf, lambda *_: None, variants=False, counted=True) for each in query.alternatives()]
    assert len(alone) == 2
    best = sorted((one for each in alone for one in each.fastest), key=lambda one: one.step_seconds)
    first = {one.layout.split: one for one in reversed(best)}
    found = search(query, top=4)
    expected = sorted(first.values(), key=lambda one: one.step_seconds)[:4]
    assert [one[1:4] for one in found.fastest] == [one[1:4] for one in expected]
    risky = sorted((one for each in alone for one in each.risky), key=lambda one: one.step_seconds)[:MOST_RISKY]
    assert [one[1:4] for one in found.risky] == [one[1:4] for one in risky]
    assert (found.starved, found.examples) == (alone[0].starved, alone[0].examples)
