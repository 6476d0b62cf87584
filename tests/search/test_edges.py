"""Edges of a search: the last layout that is too slow, equal ones, codes of a split, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.price import price
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import NodeGroup
from simulator.search import rank as ranks
from simulator.search.alternatives import suits
from simulator.search.rank import Entry, OpenSearch, Shortlist, equal_to_first, fastest_of, search
from simulator.search.rules import RULES
from simulator.search.space import PricedLayout, Query, Space, balanced_cut
from tests.scenario.cases import layout_of, load_hardware, scenario_of, small_dense, small_moe

QUERY = Query(scenario=scenario_of(small_dense(num_hidden_layers=8), global_batch_size=64), min_fit_probability=0.0)


def test_what_takes_as_long_as_the_bound_is_too_slow() -> None:
    first = search(QUERY, top=1).fastest[0]
    assert fastest_of(QUERY, below=first.step_seconds) is None
    found = fastest_of(QUERY, below=first.step_seconds * 1.001)
    assert found is not None
    assert found[:4] == first[:4]
    assert fastest_of(QUERY, below=first.step_seconds / 2) is None


@pytest.mark.parametrize(
    ("steps", "widths", "equal"),
    [
        # ln 1.05 is 0.0488, ln 1.10 0.0953, ln 1.10 / 1.05 0.0465.
        ((1.0, 1.05, 1.10), (0.0, 0.06, 0.06), (1,)),
        ((1.0, 1.05, 1.10), (0.0, 0.04, 0.10), (2,)),
        ((1.0, 1.0), (0.0, 0.0), (1,)),
        ((1.0, 1.0001), (0.0, 0.0), ()),
        ((1.0,), (0.0,), ()),
        ((), (), ()),
    ],
)
def test_equal_to_the_first_are_those_within_the_width_of_their_difference(
    steps: tuple[float, ...], widths: tuple[float, ...], equal: tuple[int, ...]
) -> None:
    calibration = SimpleNamespace(difference_half_widths=lambda pairs: widths[: len(pairs)])
    scenario = cast("Any", SimpleNamespace(calibration=calibration))
    query = cast("Query", SimpleNamespace(scenario=scenario))
    layouts = [PricedLayout(query, Layout(), seconds, 1.0) for seconds in steps]
    assert equal_to_first(layouts) == equal


def test_a_shortlist_keeps_the_best_of_each_split_and_no_more_than_its_limit() -> None:
    every = sorted(
        (priced for split in (1, 2, 4) for priced in _of_split(split)), key=lambda priced: priced.step_seconds
    )
    first: dict[object, PricedLayout] = {}
    for priced in every:
        first.setdefault(priced.layout.split, priced)
    assert [one.layout for one in search(QUERY, top=2).fastest] == [one.layout for one in list(first.values())[:2]]


def _of_split(tensor: int) -> list[PricedLayout]:
    """Every layout of a tensor parallel size that fits, without those solved from others."""
    space = Space(tensor_parallel=(tensor,))
    return [
        layout
        for query, priced in ranks.fitting(replace(QUERY, space=space))
        for layout in ranks.spread(query, priced, 10**6)
    ]


@pytest.mark.parametrize(("by", "bars"), [("step_seconds", (2.0, 1.0)), ("device_bytes", (5.0, 4.0))])
def test_the_bar_of_a_shortlist_is_its_last_entry_once_it_is_full(by: Any, bars: tuple[float, float]) -> None:
    layouts = [layout_of(QUERY.scenario, tensor_parallel=size) for size in (1, 2)]
    priced = price(Pricing(QUERY.scenario, block_of(layouts)))
    step = priced.step._replace(total=np.array([1.0, 2.0]))
    priced = replace(priced, step=step, device_bytes=np.array([4.0, 5.0]))
    for limit, bar in ((3, float("inf")), (2, bars[0]), (1, bars[1])):
        listed = Shortlist(QUERY, limit, by=by)
        listed.offer(priced, np.arange(2))
        assert listed.bar == bar
        assert [one.layout for one in listed.layouts] == layouts[:limit]
        assert [one.step_seconds for one in listed.layouts] == [1.0, 2.0][:limit]


@pytest.mark.parametrize(
    ("profile", "listed", "stages", "broken"),
    [
        ("megatron", (0, 2, 2, 0), (0, 2, 2, 0), False),
        ("paddle", (0, 2, 2, 0), (0, 2, 2, 0), True),
        ("megatron", (1, 1, 1, 1), (1, 1, 1, 1), False),
        ("megatron", (0, 2, 1, 0), (0, 2, 1, 0), True),
        ("megatron", (0, 2, 2, 0), (1, 1, 1, 1), True),
    ],
)
def test_a_rank_without_layers_is_one_of_a_list_of_chunks_alone(
    profile: str, listed: tuple[int, ...], stages: tuple[int, ...], broken: bool
) -> None:
    """Megatron-LM's `--pipeline-model-parallel-layout` may put the tables on ranks of their own."""
    scenario = scenario_of(small_dense(), profile=profile, devices=4)
    layout = layout_of(scenario, pipeline_parallel=4, chunk_layers=listed, stage_layers=stages)
    (rule,) = [rule for rule in RULES if rule.id == "layers"]
    assert rule.broken(pricing_of(scenario, layout)).tolist() == [broken]


def test_the_first_of_a_mixture_is_that_of_every_split() -> None:
    """Experts' splits count too: what is searched for one is what a search of each alone finds."""
    query = replace(QUERY, scenario=scenario_of(small_moe(num_hidden_layers=8), global_batch_size=64))
    alone = [
        found
        for experts in (1, 2, 4, 8)
        if (found := fastest_of(replace(query, space=Space(expert_parallel=(experts,))))) is not None
    ]
    assert min(one.step_seconds for one in alone) == search(query, top=1).fastest[0].step_seconds


def test_a_shortlist_by_memory_takes_the_least_memory_of_timed_layouts_too() -> None:
    """Full recompute takes longer and holds less; both lists are of the same priced block."""
    scenario = QUERY.scenario
    layouts = [layout_of(scenario, micro_batch_size=4, recompute=mode) for mode in ("none", "full")]
    priced = price(Pricing(scenario, block_of(layouts)))
    every = np.arange(2)
    assert Shortlist(QUERY, 2, variants=True).entering(priced, every).tolist() == [0, 1]
    assert Shortlist(QUERY, 2, variants=True, by="device_bytes").entering(priced, every).tolist() == [1, 0]


def test_an_output_layer_counts_once_beside_the_layers() -> None:
    """Nine layers of 2 x 43,008 + 4 x 64 x 64 = 102,400 FLOP a token, and 2 x 64 x 4080 = 5.1 layers: 14.1 in two."""
    scenario = scenario_of(small_dense(num_hidden_layers=9, vocab_size=4080), devices=16, seq_length=64)
    groups = tuple(NodeGroup(load_hardware("z2000"), 8) for _ in range(2))
    assert balanced_cut(replace(scenario, groups=groups), 2) == (7, 2)


@pytest.mark.parametrize(
    ("kinds", "name", "value", "known"),
    [
        (("h100-sxm-80g", "h100-sxm-80g"), "tp_comm_overlap", True, True),
        (("h100-sxm-80g", "mi300x"), "tp_comm_overlap", True, False),
        (("mi300x", "h100-sxm-80g"), "tp_comm_overlap", True, False),
        (("mi300x", "mi300x"), "tp_comm_overlap", False, True),
        (("mi300x", "h100-sxm-80g"), "expert_dispatch", "deepep", False),
        (("mi300x", "h100-sxm-80g"), "expert_dispatch", "allgather", True),
        (("mi300x", "h100-sxm-80g"), "overlap_expert_exchange", True, False),
        (("mi300x", "h100-sxm-80g"), "overlap_expert_exchange", False, True),
        (("h100-sxm-80g", "h100-sxm-80g"), "overlap_expert_exchange", True, True),
        (("h100-sxm-80g", "mi300x"), "attention_kernel", "flash_2", True),
        (("h100-sxm-80g", "v100-sxm-32g"), "attention_kernel", "flash_2", False),
        (("t4", "t4"), "attention_kernel", "flash_2", False),
        (("t4", "t4"), "attention_kernel", "math", True),
    ],
)
def test_a_switch_is_advised_where_every_kind_of_device_has_its_kernels(
    kinds: tuple[str, ...], name: str, value: Any, known: bool
) -> None:
    groups = tuple(NodeGroup(load_hardware(kind), 8) for kind in kinds)
    precision = "fp16" if {"t4", "v100-sxm-32g"} & {*kinds} else "bf16"
    scenario = replace(scenario_of(small_moe(), kinds[0], devices=16, precision=precision), groups=groups)
    assert suits(scenario, name, value) == known


def test_a_search_goes_on_from_where_something_fits() -> None:
    for query in (QUERY, replace(QUERY, min_fit_probability=0.99)):
        best, search = fastest_of(query), OpenSearch(query)
        assert search.fits
        for fastest in (search.fastest, OpenSearch(query).fastest):
            assert best is not None
            assert fastest is not None
            assert fastest[:4] == best[:4]


def test_what_fits_with_more_recomputed_layers_alone_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    query, best = replace(QUERY), fastest_of(QUERY)
    assert best is not None
    entry = Entry((), block_of((best.layout,)), 0, best.step_seconds, best.device_bytes, None)
    monkeypatch.setattr("simulator.search.rank.layouts_below", lambda *_: iter(()))
    monkeypatch.setattr("simulator.search.rank._offer_raised", lambda found, _: found.entries.append(entry))
    search = OpenSearch(query)
    assert search.fits
    assert search.fastest is not None
    assert search.fastest.layout == best.layout
