"""Where each rule that counts begins to refuse: layouts on both sides of its bounds, and what is said of them."""

from typing import Any

import pytest

from simulator.cost.derived import Pricing, pricing_of
from simulator.question.scenario.block import block_of
from simulator.question.specs.model import ModelSpec
from simulator.search import rules
from simulator.search.rules import RULES, Rule
from tests.scenario.cases import layout_of, scenario_of, small_dense, small_mla, small_moe

Layouts = list[tuple[dict[str, Any], bool]]
"""A layout's fields, and whether the rule refuses it."""


def rule_of(name: str) -> Rule:
    (found,) = (rule for rule in RULES if rule.id == name)
    return found


EIGHT = small_dense(num_hidden_layers=8)
FULL: dict[str, Any] = {"recompute": "full", "recompute_layers": 4}
LISTED: dict[str, Any] = {"recompute": "full", "recompute_method": "list"}
TABLE: list[tuple[str, ModelSpec, dict[str, Any], Layouts]] = [
    # Groups of ranks that shard, from ZeRO 1 on; a degree beside them is a contradiction.
    *(
        (
            "sharding_groups",
            small_dense(),
            {"options": {"sharding_replicas": replicas, "sharding_degree": degree}},
            [({"zero_stage": stage}, refused and stage > 0) for stage in (0, 1, 2, 3)],
        )
        for replicas, degree, refused in (
            ("2", "0", False),
            ("3", "0", True),
            ("2", "1", True),
            ("1", "4", False),
            ("1", "3", True),
            ("1", "0", False),
        )
    ),
    # Two pieces of the sequence for each of several ranks, over what sequence parallelism splits.
    (
        "sequence",
        small_dense(),
        {"seq_length": 20},
        [
            ({}, False),
            ({"context_parallel": 2}, False),
            ({"context_parallel": 4}, True),
            ({"tensor_parallel": 4, "sequence_parallel": True}, False),
            ({"tensor_parallel": 8, "sequence_parallel": True}, True),
            ({"tensor_parallel": 8, "sequence_parallel": False}, False),
            ({"tensor_parallel": 2, "context_parallel": 2, "sequence_parallel": True}, True),
        ],
    ),
    (
        "recompute_layers",
        EIGHT,
        {},
        [
            ({"pipeline_parallel": 2} | FULL, False),
            ({"pipeline_parallel": 2} | FULL | {"recompute_layers": 5}, True),
            ({"pipeline_parallel": 2} | FULL | {"recompute_layers": 1}, False),
            ({"pipeline_parallel": 2, "virtual_stages": 2} | FULL | {"recompute_layers": 2}, False),
            ({"pipeline_parallel": 2, "virtual_stages": 2} | FULL | {"recompute_layers": 3}, True),
            # Of the rank with most.
            ({"pipeline_parallel": 2, "stage_layers": (6, 2)} | FULL | {"recompute_layers": 6}, False),
            ({"pipeline_parallel": 2, "stage_layers": (6, 2)} | FULL | {"recompute_layers": 7}, True),
            (
                {"pipeline_parallel": 2, "virtual_stages": 2, "chunk_layers": (1, 2, 3, 2), "stage_layers": (4, 4)}
                | FULL
                | {"recompute_layers": 3},
                False,
            ),
            (
                {"pipeline_parallel": 2, "virtual_stages": 2, "chunk_layers": (1, 2, 3, 2), "stage_layers": (4, 4)}
                | FULL,
                True,
            ),
            # A number that nothing reads.
            ({"recompute_layers": 99}, False),
            (LISTED | {"recompute_layers": 99}, False),
            (LISTED | {"recompute_layer_list": (0, 7)}, False),
            (LISTED | {"recompute_layer_list": (0, 8)}, True),
            (LISTED | {"recompute_layer_list": (-1,)}, True),
        ],
    ),
    (
        "sequence_parallel",
        small_moe(),
        {},
        [
            ({"tensor_parallel": 1, "sequence_parallel": False}, False),
            ({"tensor_parallel": 1, "sequence_parallel": True}, True),
            ({"tensor_parallel": 2, "sequence_parallel": True}, False),
            ({"tensor_parallel": 2, "sequence_parallel": False}, True),
        ],
    ),
    (
        "sequence_parallel",
        small_dense(),
        {},
        [
            ({"tensor_parallel": 1, "sequence_parallel": True}, True),
            ({"tensor_parallel": 2, "sequence_parallel": False}, False),
        ],
    ),
    (
        "sequence_parallel",
        small_moe(),
        {"profile": "torch"},
        [({"tensor_parallel": 2, "sequence_parallel": False}, False)],
    ),
    (
        "experts",
        small_moe(),
        {"devices": 16},
        [
            ({"expert_parallel": 8}, False),
            ({"expert_parallel": 16}, True),
            ({"expert_parallel": 8, "expert_tensor_parallel": 2}, False),
            ({"expert_parallel": 8, "expert_tensor_parallel": 4}, True),
            ({"expert_parallel": 8, "pipeline_parallel": 4}, True),
            ({"expert_parallel": 4, "tensor_parallel": 2, "pipeline_parallel": 4}, False),
        ],
    ),
    (
        "experts",
        small_dense(),
        {},
        [({}, False), ({"expert_parallel": 2}, True), ({"expert_tensor_parallel": 2}, True)],
    ),
    (
        "zero_stage",
        small_dense(),
        {"profile": "paddle"},
        [({"zero_stage": 3}, False), ({"zero_stage": 3, "pipeline_parallel": 2}, True)]
        + [({"zero_stage": stage, "pipeline_parallel": 2}, False) for stage in (0, 1)],
    ),
    (
        "parameters_on_host",
        small_dense(),
        {"profile": "torch", "options": {"offload_parameters": "true"}},
        [({"zero_stage": 2}, True), ({"zero_stage": 3}, False)],
    ),
    (
        "recompute_modules",
        small_moe(),
        {},
        [
            ({"recompute": "selective", "recompute_modules": ("moe_act", "core_attn")}, False),
            ({"recompute": "selective", "recompute_modules": ("mla_up_proj",)}, True),
            ({"recompute": "selective", "recompute_modules": ("core_attn", "mla_up_proj")}, True),
            ({"recompute": "full", "recompute_modules": ("mla_up_proj",)}, False),
        ],
    ),
    (
        "recompute_modules",
        small_mla(),
        {},
        [
            ({"recompute": "selective", "recompute_modules": ("mla_up_proj",)}, False),
            ({"recompute": "selective", "recompute_modules": ("moe_act",)}, True),
        ],
    ),
    (
        "context_heads",
        small_dense(num_attention_heads=8, num_key_value_heads=4, head_dim=8),
        {"devices": 16, "options": {"cp_communication": "all_to_all"}},
        [
            ({}, False),
            ({"context_parallel": 4}, False),
            ({"context_parallel": 8}, True),
            ({"context_parallel": 2, "tensor_parallel": 2}, False),
            ({"context_parallel": 4, "tensor_parallel": 2}, True),
            # More ranks than heads hold copies of them; nobody exchanges any.
            ({"tensor_parallel": 8}, False),
        ],
    ),
    (
        "context_heads",
        small_dense(num_attention_heads=8, num_key_value_heads=4, head_dim=8),
        {"devices": 16, "options": {"cp_communication": "all_to_all_ring", "cp_inner_degree": "2"}},
        [
            ({"context_parallel": 8}, False),
            ({"context_parallel": 8, "tensor_parallel": 2}, False),
            ({"context_parallel": 4, "tensor_parallel": 4}, True),
        ],
    ),
]


@pytest.mark.parametrize(("name", "model", "question", "layouts"), TABLE)
def test_bounds(name: str, model: ModelSpec, question: dict[str, Any], layouts: Layouts) -> None:
    scenario = scenario_of(model, **question)
    found = [
        bool(rule_of(name).broken(pricing_of(scenario, layout_of(scenario, **fields)))[0]) for fields, _ in layouts
    ]
    assert found == [refused for _, refused in layouts]


def test_layouts_of_a_block_are_judged_one_by_one() -> None:
    scenario = scenario_of(small_dense(), options={"sharding_degree": "3"})
    block = block_of([layout_of(scenario, zero_stage=stage) for stage in (0, 1, 0)])
    assert rule_of("sharding_groups").broken(Pricing(scenario, block)).tolist() == [False, True, False]
    moe = scenario_of(small_moe())
    block = block_of([layout_of(moe, tensor_parallel=2, sequence_parallel=word) for word in (True, False)])
    assert rule_of("sequence_parallel").broken(Pricing(moe, block)).tolist() == [False, True]


@pytest.mark.parametrize(("on", "fix"), [(True, "--no-sequence-parallel"), (False, "--sequence-parallel")])
def test_sequence_parallelism_is_turned_round(on: bool, fix: str) -> None:
    scenario = scenario_of(small_moe())
    layout = layout_of(scenario, tensor_parallel=1 if on else 2, sequence_parallel=on)
    rule = rule_of("sequence_parallel")
    assert rule.broken(pricing_of(scenario, layout))[0]
    assert rule.fix(scenario, layout) == fix
    word = "on" if on else "off"
    assert (
        rule.message(scenario, layout) == f"sequence parallelism {word} with tensor parallel {layout.tensor_parallel}"
    )


def test_a_number_of_recomputed_layers_is_told_as_one() -> None:
    scenario = scenario_of(EIGHT)
    layout = layout_of(scenario, pipeline_parallel=2, virtual_stages=2, **(FULL | {"recompute_layers": 9}))
    told = rule_of("recompute_layers").message(scenario, layout)
    assert told == "9 recomputed layers a chunk: 8 layers on 2 x 2 chunks have fewer"


def test_chunks_of_a_stack_that_cuts_evenly() -> None:
    scenario = scenario_of(small_dense(), profile="torch", global_batch_size=20)
    layout = layout_of(scenario, pipeline_parallel=2, virtual_stages=2)
    told = rule_of("virtual_stages").message(scenario, layout)
    assert told == "2 virtual stages on 2 pipeline ranks: 5 micro batches do not divide by 2"


@pytest.mark.parametrize(
    ("model", "heads", "shared", "widths"),
    [
        (small_dense(), (4,), (2,), (160,)),
        (small_moe(), (4,), (2,), (160, 48)),
        (small_moe(first_k_dense_replace=0, num_shared_experts=0), (4,), (2,), ()),
        (small_moe(first_k_dense_replace=0, num_shared_experts=2), (4,), (2,), (96,)),
        (small_mla(), (4,), (), (160,)),
    ],
)
def test_what_tensor_parallelism_divides(
    model: ModelSpec, heads: tuple[int, ...], shared: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    scenario = scenario_of(model)
    found = rules._head_counts(scenario), rules._kv_head_counts(scenario), rules._ffn_widths(scenario)
    assert found == (heads, shared, widths)


@pytest.mark.parametrize(("profile", "copied"), [("megatron", True), ("torch", False)])
def test_key_value_heads_are_copied_in_whole_numbers(profile: str, copied: bool) -> None:
    """Two heads over four ranks: each twice, where the stack does that; over three nobody has whole ones."""
    scenario = scenario_of(small_dense(num_attention_heads=12, num_key_value_heads=2, head_dim=8), profile=profile)
    assert scenario.framework.limits.replicates_kv_heads is copied
    layouts = [layout_of(scenario, tensor_parallel=t) for t in (1, 2, 3, 4, 6)]
    found = rule_of("kv_heads").broken(Pricing(scenario, block_of(layouts))).tolist()
    assert found == [False, False, True, not copied, not copied]
