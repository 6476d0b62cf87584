"""The search for nodes and what stands beside an answer, step by step: each number and change that is tried.

Where only the order of the tries matters, a stand-in says what fits.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from simulator import InputError
from simulator.question.frameworks.stacks import framework
from simulator.question.question import Question
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import NodeGroup, Scenario
from simulator.search import alternatives
from simulator.search import alternatives as beside
from simulator.search.alternatives import (
    MOST_NODES,
    _among,
    _changes,
    _on_more_devices,
    fewest_nodes,
    fewest_of,
    in_fp8,
    most_nodes,
    node_counts,
    on_nodes,
    on_other_stacks,
    reasons,
    remedies,
)
from simulator.search.build import estimates_of
from simulator.search.rank import best_of, fastest_of, search
from simulator.search.rules import ACROSS_NODES, RULES
from simulator.search.space import FewestNodes, PricedLayout, Query, Space
from tests.scenario.cases import load_hardware, scenario_of, small_dense

NARROW = Space(
    tensor_parallel=(1,), context_parallel=(1,), micro_batch_size=(1,), recompute=("full",), virtual_stages=(1,)
)
DAY = 86_400.0


def query_of(devices: int = 8, model: str = "codellama-34b", **fields: Any) -> Query:
    given: dict[str, Any] = {"hardware": "a100-sxm-40g", "seq_length": 4096, "global_batch_size": 512}
    return Query(scenario=scenario_of(model, devices=devices, **given | fields), space=NARROW)


class Tries:
    """Stands in for a search: layouts that fit on some numbers of nodes, with their seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float | None]) -> None:
        self.seconds, self.nodes, self.below = seconds, list[int](), list[float]()
        monkeypatch.setattr(alternatives, "best_of", self)

    def __call__(self, query: Query, below: float = math.inf) -> PricedLayout | None:
        nodes = query.scenario.nodes
        self.nodes.append(nodes)
        self.below.append(below)
        found = self.seconds(nodes)
        if found is None or found > below:
            return None
        return PricedLayout(query, Layout(data_parallel=query.scenario.devices), found, 1e9)


def tries_of(
    monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float | None], ratio: float = 1.0, least: float = 0.0
) -> Tries:
    monkeypatch.setattr(alternatives, "_peak_ratio", lambda best, within: ratio if best.step_seconds > within else 1.0)
    monkeypatch.setattr(alternatives, "least_devices", lambda _: least)
    return Tries(monkeypatch, seconds)


def test_the_first_number_on_which_anything_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, told = tries_of(monkeypatch, lambda nodes: 1.0 if nodes >= 3 else None), list[tuple[int, int]]()
    found = fewest_nodes(query_of(), 9, None, None, lambda done, total: told.append((done, total)))
    assert replace(found, counts=()) == FewestNodes(3, 3, 3, 9, None)
    assert [count.nodes for count in found.counts] == [3, 4, 8]
    assert tries.nodes == [1, 2, 3, 4, 8]
    assert told == [(0, 9), (1, 9), (2, 9), (9, 9)]


def test_nodes_that_cannot_hold_the_model_are_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = tries_of(monkeypatch, lambda nodes: 1.0 if nodes >= 3 else None, least=2.5 * query_of().scenario.devices)
    assert fewest_nodes(query_of(), 4, None, None).nodes == 3
    assert tries.nodes == [3, 4]


STEPS = 1000
TOKENS = STEPS * 512 * 4096
"""So many that a thousand steps train on them."""


def test_the_first_number_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes fit; a step takes 24 seconds over the nodes, and ten days leave 864 of a thousand."""
    tries = tries_of(monkeypatch, lambda nodes: 4000.0 / nodes if nodes > 1 else None)
    found = fewest_nodes(query_of(), 9, TOKENS, 10.0)
    assert replace(found, counts=()) == FewestNodes(5, 5, 2, 9, 10.0)
    assert tries.nodes == [1, 2, 3, 4, 5, 8]
    # Until something fits any step will do; then those in time alone are looked for, and a larger number beside them.
    assert tries.below == [math.inf, math.inf, 864.0, 864.0, 864.0, math.inf]


def test_numbers_that_would_have_to_exceed_the_peak_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two nodes fit, and at their peak two and a half times as many would be in time: five."""
    tries, told = tries_of(monkeypatch, lambda nodes: 6000.0 / nodes if nodes > 1 else None, 2.4), list[int]()
    found = fewest_nodes(query_of(), 9, TOKENS, 10.0, lambda done, _: told.append(done))
    assert tries.nodes == [1, 2, 5, 6, 7, 8]
    assert told == [0, 1, 2, 3, 4, 5, 6, 9]
    assert replace(found, counts=()) == FewestNodes(7, 7, 2, 9, 10.0)


def test_where_none_is_in_time_the_most_that_fit_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = tries_of(monkeypatch, lambda nodes: 6000.0 / nodes if nodes in (2, 3, 4) else None)
    assert fewest_nodes(query_of(), 6, TOKENS, 10.0) == FewestNodes(None, 4, 2, 6, 10.0)
    # From the largest down.
    assert tries.nodes == [1, 2, 3, 4, 5, 6, 6, 5, 4]


def test_where_nothing_fits_the_most_nodes_with_candidates_are_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    tries_of(monkeypatch, lambda _: None)
    assert fewest_nodes(query_of(), 6, None, None) == FewestNodes(None, 6, None, 6, None)
    fives = replace(query_of(), space=replace(NARROW, pipeline_parallel=(5,)))
    assert fewest_nodes(fives, 6, None, None) == FewestNodes(None, 5, None, 6, None)


def test_against_every_number_searched() -> None:
    query = query_of()
    every = {nodes: best_of(on_nodes(query, nodes)) for nodes in range(1, 5)}
    fitting = [nodes for nodes, best in every.items() if best is not None]
    assert 1 < fitting[0] < 4
    within = fewest_nodes(query, 4, None, None)
    assert replace(within, counts=()) == FewestNodes(fitting[0], fitting[0], fitting[0], 4, None)
    three, four = (best.step_seconds for best in (every[3], every[4]) if best is not None)
    days = (three + four) / 2 * STEPS / DAY
    in_time = fewest_nodes(query, 4, TOKENS, days)
    assert replace(in_time, counts=()) == FewestNodes(4, 4, fitting[0], 4, days)


def test_at_their_peak_so_many_times_as_many_devices_would_be_in_time() -> None:
    best = best_of(query_of(32))
    assert best is not None
    (estimate,) = estimates_of([best], intervals=False)
    within = best.step_seconds / 4
    assert alternatives._peak_ratio(best, within) == pytest.approx(4 * estimate.throughput.mfu)
    assert 0.25 < estimate.throughput.mfu < 1.0
    assert alternatives._peak_ratio(best, best.step_seconds) == 1.0
    # Devices that would be in time at their peak as they are: no fewer.
    assert alternatives._peak_ratio(best, 0.99 * best.step_seconds) == 1.0


@pytest.mark.parametrize(
    ("tokens", "days", "says"),
    [
        (None, 1.0, "deadline_days needs train_tokens"),
        (10**9, 0.0, "deadline_days 0.0: must be a number above 0"),
        (10**9, -1.0, "must be a number above 0"),
        (10**9, math.inf, "must be a number above 0"),
        (10**9, math.nan, "must be a number above 0"),
        (0, 1.0, "train_tokens 0: must be a whole number"),
        (10**18 + 1, 1.0, "train_tokens"),
    ],
)
def test_deadlines_that_say_nothing(tokens: int | None, days: float, says: str) -> None:
    with pytest.raises(InputError, match=says):
        fewest_nodes(query_of(), 1, tokens, days)


def test_the_longest_run_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tries_of(monkeypatch, lambda _: 1.0)
    assert fewest_nodes(query_of(), 1, 10**18, 1.0) == FewestNodes(None, 1, 1, 1, 1.0)


def test_one_kind_of_device() -> None:
    groups = tuple(NodeGroup(load_hardware("h100-sxm-80g"), 8) for _ in range(2))
    mixed = Query(scenario=replace(query_of(16).scenario, groups=groups))
    with pytest.raises(InputError, match="nodes are searched for one kind of device"):
        fewest_nodes(mixed, 1, None, None)


def test_most_nodes() -> None:
    words: list[tuple[object, int | None]] = [
        *(("auto", MOST_NODES), ("auto:7", 7), ("auto:", None), ("automatic", None), ("7", None), (7, None)),
        ("auto:12345678", None),
    ]
    assert [most_nodes(word) for word, _ in words] == [most for _, most in words]
    assert MOST_NODES == 1024
    with pytest.raises(InputError, match="nodes auto 0: must be a whole number"):
        most_nodes("auto:0")


def test_no_number_is_tried_twice() -> None:
    tried: list[int] = []

    def best(count: int) -> int | None:
        tried.append(count)
        return count if count in (7, 8) else None

    assert fewest_of((2, 4, 8, 16), best, below=1) == 7
    assert tried == [2, 4, 8, 3, 5, 6, 7]


def test_numbers_of_nodes() -> None:
    """Each up to 64, 32 in each doubling above, and the last."""
    assert list(node_counts(1, 3)) == [1, 2, 3]
    assert list(node_counts(3, 3)) == [3]
    assert list(node_counts(4, 3)) == []
    assert list(node_counts(62, 72)) == [62, 63, 64, 66, 68, 70, 72]
    assert list(node_counts(127, 141)) == [127, 128, 132, 136, 140, 141]
    assert len(list(node_counts(128, 1024))) == 3 * 32 + 1


# What stands beside an answer.


def test_in_fp8_is_asked_of_wider_precisions_on_devices_that_have_it() -> None:
    query = query_of(32, hardware="h100-sxm-80g")
    found = in_fp8(query, ())
    best = best_of(replace(query, scenario=replace(query.scenario, precision="fp8")))
    assert best is not None
    assert found is not None
    assert (found.precision, found.layout) == ("fp8", best.layout)
    assert in_fp8(query_of(32), ()) is None
    assert in_fp8(query_of(32, hardware="h100-sxm-80g", precision="fp8"), ()) is None
    groups = tuple(NodeGroup(load_hardware(name), 8) for name in ("h100-sxm-80g", "a100-sxm-80g"))
    assert in_fp8(replace(query, scenario=replace(query.scenario, devices=16, groups=groups)), ()) is None


def test_it_is_looked_for_among_the_splits_that_are_near_and_else_among_all() -> None:
    wide = Space(context_parallel=(1,), micro_batch_size=(1,), recompute=("full",), virtual_stages=(1,))
    query = replace(query_of(32, hardware="h100-sxm-80g"), space=wide)
    found = search(replace(query, scenario=replace(query.scenario, precision="fp8")), top=3)
    first, second, *_ = (one.layout for one in found.fastest)
    whole = in_fp8(query, ())
    assert whole is not None
    assert whole.layout == first
    near = in_fp8(query, [second])
    assert near is not None
    assert near.layout.split == second.split
    # No layout of the split is likely to fit: all are searched.
    unlawful = replace(first, tensor_parallel=32, data_parallel=1, pipeline_parallel=1)
    elsewhere = in_fp8(query, [unlawful])
    assert elsewhere is not None
    assert elsewhere.layout == first


def test_among_the_sizes_of_several_layouts() -> None:
    layouts = [Layout(tensor_parallel=4, expert_parallel=2), Layout(tensor_parallel=1, context_parallel=8)]
    space = _among(Space(micro_batch_size=(2,)), layouts)
    assert space == Space(
        tensor_parallel=(1, 4),
        pipeline_parallel=(1,),
        context_parallel=(1, 8),
        expert_parallel=(1, 2),
        expert_tensor_parallel=(1,),
        micro_batch_size=(2,),
    )


def test_other_stacks_are_the_defaults_or_the_tuned_ones() -> None:
    plain = query_of(32, hardware="h100-sxm-80g")
    stacks = list(on_other_stacks(plain, ()))
    assert stacks
    assert all(one.stack != "default" for one in stacks)
    assert all(one.estimate is not None and one.estimate.stack == one.stack for one in stacks)
    tuned = replace(plain, scenario=replace(plain.scenario, framework=_stack_of(plain.scenario, stacks[0].stack)))
    assert [one.stack for one in on_other_stacks(tuned, ())] == ["default"]


def _stack_of(scenario: Scenario, stack: str) -> Any:
    return framework(scenario.framework.name, {}, stack)


class Fits:
    """Stands in for the search beside an answer: whether anything fits, by the question."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fits: Callable[[Query], bool]) -> None:
        self.nodes = nodes = list[int]()

        class Search:
            """One search; what asks it whether anything fits is noted."""

            def __init__(self, query: Query) -> None:
                self.query = query

            @property
            def fits(self) -> bool:
                nodes.append(self.query.scenario.nodes)
                return fits(self.query)

        monkeypatch.setattr(beside, "OpenSearch", Search)


def enough(query: Query) -> int | None:
    sized = _on_more_devices(query)
    return None if sized is None else sized.query.scenario.nodes


@pytest.mark.parametrize(("devices", "first"), [(8, 5), (8, 2), (8, 33), (16, 3), (16, 4), (4, 1), (24, 7)])
def test_the_fewest_nodes_with_room(monkeypatch: pytest.MonkeyPatch, devices: int, first: int) -> None:
    tries = Fits(monkeypatch, lambda query: query.scenario.devices >= 8 * first and query.scenario.devices % 8 == 0)
    assert enough(query_of(devices)) == first
    doubled = [max(devices // 8, 1) * 2**times for times in range(1, 7)]
    assert tries.nodes[0] == doubled[0]
    # Doubled until there is room, then each number between that was not tried, from one more.
    over = next(nodes for nodes in doubled if nodes >= first)
    between = [nodes for nodes in node_counts(devices // 8 + 1, over - 1) if nodes not in doubled]
    upto = between[: between.index(first) + 1] if first in between else between
    assert tries.nodes == [*doubled[: doubled.index(over) + 1], *upto]


def test_no_more_than_64_times_as_many_nodes_and_no_more_devices_than_are_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Fits(monkeypatch, lambda query: query.scenario.nodes >= 64)
    assert enough(query_of()) == 64
    tries = Fits(monkeypatch, lambda _: False)
    assert enough(query_of()) is None
    assert tries.nodes == [2, 4, 8, 16, 32, 64]
    tries.nodes.clear()
    monkeypatch.setattr(beside, "MOST_DEVICES", 8 * 16)
    assert enough(query_of()) is None
    assert tries.nodes == [2, 4, 8, 16]


def test_changes_are_each_axis_freed_each_offload_and_more_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    Fits(monkeypatch, lambda query: query.scenario.nodes >= 2)
    space = Space(tensor_parallel=(1,), micro_batch_size=(4,), offload=("none", "optimizer"))
    query = replace(query_of(), space=space)
    changes = dict(_changes(query))
    assert list(changes) == [
        *("free choice of tensor_parallel", "free choice of micro_batch_size", "free choice of offload"),
        *("--stack trl --method lora", "--stack trl --method qlora", "--nodes 2"),
    ]
    assert changes["free choice of tensor_parallel"].query.space == replace(space, tensor_parallel=None)
    assert changes["free choice of micro_batch_size"].query.space == replace(space, micro_batch_size=None)
    paddle = replace(query, scenario=replace(query.scenario, framework=framework("paddle")))
    tensorwise = dict(_changes(paddle))["--offload optimizer_tensorwise"]
    assert tensorwise.query.space == replace(space, offload=("optimizer_tensorwise",))
    assert changes["--nodes 2"].query.space == space
    assert [one.query.scenario.devices for one in changes.values()] == [8, 8, 8, 8, 8, 16]
    free = dict(_changes(replace(query, space=Space())))
    methods = ["--offload optimizer", "--stack trl --method lora", "--stack trl --method qlora"]
    assert list(free) == [*methods, "--nodes 2"]
    groups = tuple(NodeGroup(load_hardware("h100-sxm-80g"), 4) for _ in range(2))
    mixed = replace(query, space=Space(), scenario=replace(query.scenario, groups=groups))
    assert list(dict(_changes(mixed))) == methods
    said = replace(query, space=Space(), question=Question().changed(framework="megatron"))
    assert list(dict(_changes(said))) == ["--offload optimizer", "--nodes 2"]


def test_methods_that_the_trainer_has_come_before_more_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    Fits(monkeypatch, lambda query: query.scenario.devices >= 4)
    scenario = replace(query_of().scenario, devices=1, framework=framework("torch"))
    changes = dict(_changes(replace(query_of(), scenario=scenario, space=Space())))
    methods = ["--stack trl --method lora", "--stack trl --method qlora"]
    added = ["--optimizer adamw_8bit", *methods, "--devices 4"]
    assert list(changes)[-4:] == added
    assert changes["--stack trl --method lora"].query.scenario.lora_rank == 16  # TRL's
    assert changes["--stack trl --method qlora"].query.scenario.framework.quantised_base
    assert changes["--optimizer adamw_8bit"].query.scenario.framework.optimizer == "adamw_8bit"


def test_remedies_are_the_changes_that_help_with_their_fastest_layouts() -> None:
    query = replace(query_of(8, "llama-13b", seq_length=16384), space=replace(NARROW, pipeline_parallel=(1,)))
    found = list(remedies(query))
    assert found
    for remedy in found:
        changed = dict(_changes(query))[remedy.change]
        best = fastest_of(changed.query)
        assert best is not None
        assert remedy.estimate.layout == best.layout
    helped = {remedy.change for remedy in found}
    assert {change for change, changed in _changes(query) if changed.fastest is not None} == helped


def test_reasons_are_the_rules_that_dropped_a_layout_each_with_its_words() -> None:
    scenario = scenario_of(small_dense(num_attention_heads=4, num_hidden_layers=2), devices=8, global_batch_size=2)
    query = Query(scenario=scenario, space=Space(pipeline_parallel=(1,)))
    searched = search(query)
    found = {one.rule: one for one in reasons(query, searched)}
    assert set(found) == set(searched.examples)
    assert len(found) > 1
    for rule in (*RULES, ACROSS_NODES):
        if rule.id in found:
            layout = searched.examples[rule.id]
            assert (found[rule.id].message, found[rule.id].fix) == (
                rule.message(scenario, layout),
                rule.fix(scenario, layout),
            )
