"""Every rule: a layout that breaks it and no other, one that keeps it, and what is said about it."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import NodeGroup, Scenario
from simulator.question.specs.model import ModelSpec
from simulator.search import rules
from simulator.search.build import estimate_layout
from simulator.search.rules import ACROSS_NODES, RULES, Rule
from tests.scenario.cases import layout_of, scenario_of, small_dense, small_mla, small_moe, small_sliding


@dataclass(frozen=True)
class Case:
    """A question and two layouts of it that differ in what one rule is about."""

    broken: dict[str, Any]
    kept: dict[str, Any]
    model: ModelSpec = field(default_factory=small_dense)
    question: dict[str, Any] = field(default_factory=dict)
    kept_question: dict[str, Any] | None = None

    def scenario(self, *, keeps: bool) -> Scenario:
        changed = self.kept_question if keeps and self.kept_question is not None else self.question
        return scenario_of(self.model, **changed)


SEQUENCE = {"tensor_parallel": 2, "sequence_parallel": True}


def _option(name: str, value: object) -> dict[str, Any]:
    return {"options": {name: str(value)}}


def _modules(*modules: str) -> dict[str, Any]:
    return {"recompute": "selective", "recompute_modules": modules}


CHUNKS = {"pipeline_parallel": 2, "virtual_stages": 2, "stage_layers": (2, 2)}
OVERLAP = {"options": {"overlap_expert_exchange": "true"}}

CASES: dict[str, list[Case]] = {
    "expert_overlap": [
        Case(
            {"pipeline_parallel": 2, "expert_parallel": 2},
            {"pipeline_parallel": 2, "expert_parallel": 2, "virtual_stages": 2},
            small_moe(),
            OVERLAP,
        ),
        Case({"expert_parallel": 2, "recompute": "full"}, {"expert_parallel": 2}, small_moe(), OVERLAP),
        Case({"pipeline_parallel": 2, "expert_parallel": 2}, {"pipeline_parallel": 2}, small_moe(), OVERLAP),
        Case(
            {"pipeline_parallel": 2, "expert_parallel": 2, "virtual_stages": 2, "recompute": "full"},
            {"pipeline_parallel": 2, "expert_parallel": 2},
            small_moe(),
            OVERLAP,
            {},
        ),
    ],
    "devices": [Case({"data_parallel": 4}, {"data_parallel": 8})],
    # Latent attention has no key-value heads of its own to divide.
    "heads": [Case({"tensor_parallel": 8}, {"tensor_parallel": 4}, small_mla())],
    # Megatron gives every rank a copy of a head where it can; the others split heads or refuse.
    "kv_heads": [
        Case({"tensor_parallel": 4}, {"tensor_parallel": 4}, small_dense(), {"profile": "paddle"}, {}),
        Case({"tensor_parallel": 2}, {}, small_dense(num_attention_heads=6, num_key_value_heads=3)),
        Case({"tensor_parallel": 2}, {}, small_sliding(num_key_value_heads=2, sliding_key_value_heads=3)),
    ],
    "ffn": [
        Case({"tensor_parallel": 2}, {}, small_dense(intermediate_size=161)),
        Case(SEQUENCE, {}, small_moe(moe_intermediate_size=47)),
        # Without dense layers nothing has the dense width.
        Case(
            SEQUENCE | {"expert_tensor_parallel": 2},
            SEQUENCE,
            small_moe(first_k_dense_replace=0, intermediate_size=161, moe_intermediate_size=47, num_shared_experts=0),
        ),
        Case(
            SEQUENCE | {"expert_tensor_parallel": 2},
            SEQUENCE,
            small_moe(moe_intermediate_size=47, num_shared_experts=0),
        ),
    ],
    "vocabulary": [
        Case(
            {"tensor_parallel": 2},
            {"tensor_parallel": 2},
            small_dense(vocab_size=1001),
            {"profile": "paddle"},
            {"profile": "torch"},
        )
    ],
    "layers": [
        Case({"pipeline_parallel": 2, "stage_layers": (3, 3)}, {"pipeline_parallel": 2, "stage_layers": (3, 1)}),
        # Listed chunks add up to the ranks' layers, as many as there are; with a list a rank may hold none.
        Case(CHUNKS | {"chunk_layers": (1, 1, 2)}, CHUNKS | {"chunk_layers": (1, 1, 1, 1)}),
        Case(CHUNKS | {"chunk_layers": (2, 1, 1, 0)}, CHUNKS | {"chunk_layers": (2, 1, 0, 1)}),
        Case(
            CHUNKS | {"chunk_layers": (2, 1, 2, 0), "stage_layers": (4, 0)},
            CHUNKS | {"chunk_layers": (2, 0, 2, 0), "stage_layers": (4, 0)},
        ),
    ],
    "virtual_stages": [
        Case({"virtual_stages": 2}, {"virtual_stages": 2, "pipeline_parallel": 2}),
        Case({"virtual_stages": 3, "pipeline_parallel": 2}, {"virtual_stages": 2, "pipeline_parallel": 2}),
        # Equal cuts only, where the framework builds no others.
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2, "stage_layers": (2, 6)},
            {"virtual_stages": 2, "pipeline_parallel": 2, "stage_layers": (4, 4)},
            small_dense(num_hidden_layers=8),
            {"profile": "paddle"},
            {"profile": "megatron"},
        ),
        Case(
            {"pipeline_parallel": 2, "virtual_stages": 2, "chunk_layers": (1, 3, 2, 2), "stage_layers": (3, 5)},
            {"pipeline_parallel": 2, "virtual_stages": 2, "stage_layers": (4, 4)},
            small_dense(num_hidden_layers=8),
            {"profile": "torch"},
        ),
        # Cuts that differ, without a list, hold no whole chunks.
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2, "stage_layers": (3, 1)},
            {"virtual_stages": 1, "pipeline_parallel": 2, "stage_layers": (3, 1)},
        ),
        # Three micro batches on two ranks.
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"virtual_stages": 1, "pipeline_parallel": 2},
            question={"global_batch_size": 12},
        ),
    ],
    "batch": [Case({"micro_batch_size": 3}, {"micro_batch_size": 4})],
    "sequence": [
        Case({"context_parallel": 2}, {}, question={"seq_length": 1002}),
        Case(SEQUENCE, {"tensor_parallel": 2}, question={"seq_length": 1001}),
        Case(SEQUENCE | {"context_parallel": 2}, SEQUENCE, question={"seq_length": 1004}),
    ],
    "context_heads": [
        Case(
            {"context_parallel": 4},
            {"context_parallel": 2},
            question={"options": {"cp_communication": "all_to_all"}},
        ),
        # Two heads over four ranks are copied, unless the ranks that share a sequence exchange them.
        Case(
            {"tensor_parallel": 2, "context_parallel": 2},
            {"tensor_parallel": 4},
            question={"options": {"cp_communication": "all_to_all"}},
        ),
        Case(
            {"context_parallel": 4},
            {"context_parallel": 4},
            small_dense(num_key_value_heads=4),
            {"options": {"cp_communication": "all_to_all_ring", "cp_inner_degree": "3"}, "seq_length": 6144},
            {"options": {"cp_communication": "all_to_all_ring", "cp_inner_degree": "2"}, "seq_length": 6144},
        ),
    ],
    "experts": [
        Case({"expert_parallel": 2}, {}),
        Case({"expert_parallel": 3}, {"expert_parallel": 4}, small_moe(), {"devices": 24, "global_batch_size": 48}),
        # Two ranks in a stage cannot hold four groups of experts.
        Case(
            {"expert_parallel": 4, "pipeline_parallel": 4},
            {"expert_parallel": 2, "pipeline_parallel": 4},
            small_moe(),
        ),
        Case(
            SEQUENCE | {"expert_parallel": 8, "expert_tensor_parallel": 2},
            SEQUENCE | {"expert_parallel": 4, "expert_tensor_parallel": 2},
            small_moe(),
        ),
    ],
    "sequence_parallel": [
        Case({"sequence_parallel": True}, {}),
        Case({"tensor_parallel": 2}, SEQUENCE, small_moe()),
        Case({"tensor_parallel": 2}, {"tensor_parallel": 2}, small_moe(), {}, {"profile": "torch"}),
    ],
    "zero_stage": [
        Case({"zero_stage": 2}, {"zero_stage": 1}),
        Case({"zero_stage": 3}, {"zero_stage": 3}, small_dense(), {}, {"profile": "torch"}),
        Case({"zero_stage": 2, "pipeline_parallel": 2}, {"zero_stage": 2}, question={"profile": "paddle"}),
    ],
    "sharding_groups": [
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            question={"options": {"sharding_degree": "3"}},
            kept_question={"options": {"sharding_degree": "4"}},
        ),
        Case({"zero_stage": 1}, {"zero_stage": 0}, question={"options": {"sharding_degree": "3"}}),
        # A degree beyond the ranks shards over all of them.
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            small_dense(),
            _option("sharding_degree", 3),
            _option("sharding_degree", 16),
        ),
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            small_dense(),
            _option("sharding_replicas", 3),
            _option("sharding_replicas", 2),
        ),
        Case({"zero_stage": 1}, {"zero_stage": 0}, question=_option("sharding_replicas", 3)),
        Case(
            {"zero_stage": 1},
            {"zero_stage": 1},
            small_dense(),
            {"options": {"sharding_replicas": "2", "sharding_degree": "4"}},
            _option("sharding_degree", 4),
        ),
    ],
    "parameters_on_host": [
        Case(
            {"zero_stage": 2},
            {"zero_stage": 3},
            question={"profile": "torch", "options": {"offload_parameters": "true"}},
        ),
    ],
    "offload_pipeline": [
        Case({"offload": "activations", "pipeline_parallel": 2}, {"offload": "activations"}),
        Case(
            {"offload": "activations", "pipeline_parallel": 2},
            {"offload": "activations", "pipeline_parallel": 2},
            small_dense(),
            {},
            {"profile": "torch"},
        ),
    ],
    "offload_recompute": [
        Case({"offload": "activations", "recompute": mode}, {"offload": "activations"})
        for mode in ("selective", "full", "attention")
    ]
    + [
        Case(
            {"offload": "activations", "recompute": "full"},
            {"offload": "activations", "recompute": "full"},
            small_dense(),
            {},
            {"profile": "torch"},
        )
    ],
    "two_stages": [
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"virtual_stages": 2, "pipeline_parallel": 2},
            small_dense(),
            {"options": {"overlap_p2p": "false"}},
            {"profile": "paddle"},
        ),
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"virtual_stages": 2, "pipeline_parallel": 4},
            small_dense(num_hidden_layers=8),
            {"options": {"overlap_p2p": "false"}},
        ),
        Case(
            {"virtual_stages": 2, "pipeline_parallel": 2},
            {"pipeline_parallel": 2},
            question=_option("overlap_p2p", "false"),
        ),
    ],
    "recompute_modules": [
        Case(_modules("mla_up_proj"), _modules("layernorm", "mlp", "shared_experts")),
        Case(_modules("core_attn", "moe_act"), _modules("core_attn", "moe")),
        Case(_modules("mla_up_proj"), _modules("mla_up_proj"), small_mla(), {"profile": "paddle"}, {}),
        Case(_modules("layernorm"), _modules("core_attn"), small_moe(), {"profile": "torch"}),
    ],
    "recompute_operations": [
        Case({"recompute": "operations"}, {"recompute": "selective"}),
        Case({"recompute": "operations"}, {"recompute": "full"}, small_moe(), {"profile": "paddle"}),
    ],
    "recompute_layers": [
        Case({"recompute": "full", "recompute_layers": 5}, {"recompute": "full", "recompute_layers": 4}),
        Case(
            {"recompute": "full", "recompute_layers": 2, "pipeline_parallel": 2, "virtual_stages": 2},
            {"recompute": "full", "recompute_layers": 1, "pipeline_parallel": 2, "virtual_stages": 2},
        ),
        Case(
            {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (1, 4)},
            {"recompute": "full", "recompute_method": "list", "recompute_layer_list": (0, 3)},
        ),
        Case({"recompute_layer_list": (-1,)}, {"recompute_layer_list": (0,)}),
        # How many counts where layers are counted: not those of a list, and not without full recompute.
        Case(
            {"recompute": "full", "recompute_layers": 5},
            {"recompute": "full", "recompute_layers": 5, "recompute_method": "list", "recompute_layer_list": (0,)},
        ),
        # Of unequal chunks the longest has as many.
        Case(
            CHUNKS | {"chunk_layers": (2, 1, 0, 1), "recompute": "full", "recompute_layers": 3},
            CHUNKS | {"chunk_layers": (2, 1, 0, 1), "recompute": "full", "recompute_layers": 2},
        ),
    ],
}
EACH = [pytest.param(rule, case, id=f"{rule}-{i}") for rule, cases in CASES.items() for i, case in enumerate(cases)]


def broken(scenario: Scenario, layout: Layout) -> list[str]:
    return [rule.id for rule in RULES if rule.broken(scenario, block_of([layout]))[0]]


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
        assert layers.broken(scenario, block).tolist() == [refused]


def test_a_rank_lies_inside_one_node_group() -> None:
    """8 devices of one kind and 16 of another: ranks of 24, of 12 and of 8 devices; of 7 they fill no cluster."""
    one, two = (scenario_of(small_dense(), name, devices=8) for name in ("h800-sxm-80g", "bi150-64g"))
    groups = (NodeGroup(one.hardware, 8), NodeGroup(two.hardware, 16))
    mixed = replace(one, devices=24, groups=groups)
    (rule,) = (rule for rule in RULES if rule.id == "node_groups")
    for ranks, refused in ((1, True), (2, True), (3, False), (6, False), (5, True)):
        layout = Layout(pipeline_parallel=ranks, stage_layers=(1,) * ranks)
        assert rule.broken(mixed, block_of([layout])).tolist() == [refused]
        assert rule.broken(one, block_of([layout])).tolist() == [False]
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
    masks = {rule.id: list(rule.broken(scenario, block_of(layouts))) for rule in RULES}
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
    assert bool(rule.broken(scenario, block_of([layout]))[0]) == leaves
    assert rule.id not in broken(scenario, layout)
    assert "\n" not in rule.message(scenario, layout) + rule.fix(scenario, layout)


def test_the_step_of_a_refused_layout_is_still_priced() -> None:
    scenario = scenario_of(small_dense())
    kept = layout_of(scenario)
    found = estimate_layout(scenario, replace(kept, zero_stage=2))
    assert found.verdict == "refused"
    assert found.throughput.step_seconds > 0
    assert found.memory.device_bytes > 0
