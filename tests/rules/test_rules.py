"""Every rule: a layout that breaks it and no other, one that keeps it, and what is said about it."""

from dataclasses import replace

import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import NodeGroup, Scenario
from simulator.search import rules
from simulator.search.build import estimate_layout
from simulator.search.rules import ACROSS_NODES, RULES, Rule
from tests.rules.cases import CASES, Case
from tests.scenario.cases import layout_of, scenario_of, small_dense, small_sliding

EACH = [pytest.param(rule, case, id=f"{rule}-{i}") for rule, cases in CASES.items() for i, case in enumerate(cases)]


def broken(scenario: Scenario, layout: Layout) -> list[str]:
    return [rule.id for rule in RULES if rule.broken(pricing_of(scenario, layout))[0]]


def test_every_rule_has_a_case() -> None:
    assert [rule.id for rule in RULES] == list(dict.fromkeys(rule.id for rule in RULES))
    # Node groups need a cluster of two kinds: tests/scenario/test_cluster.py.
    assert {rule.id for rule in RULES} - {"node_groups"} == set(CASES)


@pytest.mark.parametrize(("rule", "case"), EACH)
def test_a_rule_is_broken_alone_and_kept(rule: str, case: Case) -> None:
    scenario = case.scenario(keeps=False)
    assert broken(scenario, layout_of(scenario, **case.broken)) == [rule]
    keeping = case.scenario(keeps=True)
    assert broken(keeping, layout_of(keeping, **case.kept)) == []


@pytest.mark.parametrize(("rule", "case"), EACH)
def test_an_estimate_names_the_rule_in_one_line_and_a_way_out(rule: str, case: Case) -> None:
    scenario = case.scenario(keeps=False)
    found = estimate_layout(scenario, layout_of(scenario, **case.broken))
    assert found.verdict == "refused"
    (violation,) = found.violations
    assert violation.rule == rule
    for text in (violation.message, violation.fix):
        assert text.strip() == text
        assert text
        assert "\n" not in text
        assert len(text) < 200
    keeping = case.scenario(keeps=True)
    assert estimate_layout(keeping, layout_of(keeping, **case.kept)).violations == ()


def test_a_search_meets_cuts_that_no_question_may_name() -> None:
    """More ranks than layers, and a cut of another pipeline."""
    scenario = scenario_of(small_dense())
    (layers,) = (rule for rule in RULES if rule.id == "layers")
    for cut, ranks, refused in (((3, 1), 2, False), ((4, 0), 2, True), ((4,), 2, True), ((1, 1, 1, 1, 0), 5, True)):
        block = replace(block_of([layout_of(scenario, pipeline_parallel=2)]), pipeline_parallel=ranks, stage_layers=cut)
        assert layers.broken(Pricing(scenario, block)).tolist() == [refused]


def test_a_rank_lies_inside_one_node_group() -> None:
    """8 devices of one kind and 16 of another: ranks of 24, of 12 and of 8 devices; of 7 they fill no cluster."""
    one, two = (scenario_of(small_dense(), name, devices=8) for name in ("h800-sxm-80g", "bi150-64g"))
    groups = (NodeGroup(one.hardware, 8), NodeGroup(two.hardware, 16))
    mixed = replace(one, devices=24, groups=groups)
    (rule,) = (rule for rule in RULES if rule.id == "node_groups")
    for ranks, refused in ((1, True), (2, True), (3, False), (6, False), (5, True)):
        layout = Layout(pipeline_parallel=ranks, stage_layers=(1,) * ranks)
        assert rule.broken(pricing_of(mixed, layout)).tolist() == [refused]
        assert rule.broken(pricing_of(one, layout)).tolist() == [False]
    told = rule.message(mixed, Layout(pipeline_parallel=2))
    assert told == "pipeline parallel 2 puts a rank on devices of two kinds: the groups have 8, 16 devices"


def test_heads_are_those_of_every_mixer() -> None:
    heads = rules._head_counts
    assert heads(scenario_of(small_dense())) == (4,)
    assert heads(scenario_of(small_sliding())) == (6,)
    scenario = scenario_of(small_sliding(sliding_attention_heads=4))
    layout = layout_of(scenario, tensor_parallel=4)
    assert broken(scenario, layout) == ["heads"]
    (rule,) = (rule for rule in RULES if rule.id == "heads")
    assert rule.message(scenario, layout) == "6 or 4 attention heads do not divide by tensor parallel 4"
    assert rule.fix(scenario, layout) == "tensor parallel of 1, 2"


def test_divisors_end_at_64() -> None:
    assert rules._divisors(96) == "1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48"
    assert rules._divisors(128) == "1, 2, 4, 8, 16, 32, 64"
    assert rules._divisors(64) == "1, 2, 4, 8, 16, 32, 64"


def test_all_rules_that_a_layout_breaks_are_named() -> None:
    scenario = scenario_of(small_dense(num_attention_heads=12, num_key_value_heads=3), global_batch_size=12)
    layout = layout_of(scenario, tensor_parallel=4, micro_batch_size=5, zero_stage=3)
    assert broken(scenario, layout) == ["kv_heads", "batch", "zero_stage"]
    assert [v.rule for v in estimate_layout(scenario, layout).violations] == ["kv_heads", "batch", "zero_stage"]


def test_a_rule_marks_its_layouts_of_a_block() -> None:
    scenario = scenario_of(small_dense(), profile="paddle")
    layouts = [layout_of(scenario, tensor_parallel=t) for t in (1, 2, 4, 8)]
    masks = {rule.id: list(rule.broken(Pricing(scenario, block_of(layouts)))) for rule in RULES}
    assert masks["kv_heads"] == [False, False, True, True]
    assert masks["heads"] == [False, False, False, True]
    assert not any(any(mask) for rule, mask in masks.items() if rule not in ("heads", "kv_heads"))


@pytest.mark.parametrize(
    ("tensor", "expert_tensor", "leaves"), [(8, 1, False), (16, 1, True), (4, 16, True), (4, 8, False)]
)
def test_tensor_groups_that_leave_a_node_are_a_matter_for_the_search(
    tensor: int, expert_tensor: int, leaves: bool
) -> None:
    scenario = scenario_of("mixtral-8x7b-v0.1", devices=32)
    layout = layout_of(scenario, tensor_parallel=tensor, expert_tensor_parallel=expert_tensor, sequence_parallel=True)
    rule: Rule = ACROSS_NODES
    assert bool(rule.broken(pricing_of(scenario, layout))[0]) == leaves
    assert rule.id not in broken(scenario, layout)
    assert "\n" not in rule.message(scenario, layout) + rule.fix(scenario, layout)


def test_the_step_of_a_refused_layout_is_still_priced() -> None:
    scenario = scenario_of(small_dense())
    kept = layout_of(scenario)
    found = estimate_layout(scenario, replace(kept, zero_stage=2))
    assert found.verdict == "refused"
    assert found.throughput.step_seconds > 0
    assert found.memory.device_bytes > 0
