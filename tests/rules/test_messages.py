"""What is said of a broken rule, word for word where numbers are worked out or words chosen."""

import pytest

from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import estimate_layout
from simulator.search.rules import RULES
from tests.rules.cases import CASES
from tests.scenario.cases import layout_of, scenario_of

SAID = [
    ("kv_heads", 2, "2 or 3 key-value heads do not divide by tensor parallel 2", "tensor parallel of 1"),
    (
        "ffn",
        2,
        "expert width 47 does not divide by expert tensor parallel 2",
        "a smaller tensor or expert tensor parallel size",
    ),
    (
        "ffn",
        1,
        "feed-forward width 47 does not divide by tensor parallel 2",
        "a smaller tensor or expert tensor parallel size",
    ),
    (
        "ffn",
        0,
        "feed-forward width 161 does not divide by tensor parallel 2",
        "a smaller tensor or expert tensor parallel size",
    ),
    (
        "layers",
        0,
        "the cut [3, 3] has 6 layers on 2 ranks; small-dense has 4, the pipeline 2 ranks",
        "pipeline parallel of at most 4, and a cut with that sum",
    ),
    (
        "virtual_stages",
        4,
        "2 virtual stages on 2 pipeline ranks: the layers [3, 1] of the ranks do not divide by 2",
        "fewer virtual stages, or micro batches that are a multiple of pipeline parallel",
    ),
    (
        "batch",
        0,
        "global batch 1024 does not divide by micro batch 3 x data parallel 8",
        "a global batch that is a multiple of 24",
    ),
    (
        "sequence",
        2,
        "sequence length 1004 does not divide over context parallel 2 in two pieces each and tensor parallel 2",
        "a multiple of 8",
    ),
    (
        "experts",
        3,
        "expert parallel 8 x expert tensor parallel 2 does not divide 8 experts over 8 ranks of a stage",
        "an expert parallel size that divides both",
    ),
    ("experts", 0, "small-dense has no experts", "--ep 1 --etp 1"),
    (
        "sharding_groups",
        0,
        "8 ranks with the same parameters do not divide into groups of 3",
        "--option sharding_degree=0, or a degree or sharding_replicas that divides them",
    ),
    (
        "sharding_groups",
        3,
        "8 ranks with the same parameters do not divide into 3 groups",
        "--option sharding_degree=0, or a degree or sharding_replicas that divides them",
    ),
    (
        "sharding_groups",
        5,
        "8 ranks with the same parameters do not divide into 2 groups",
        "--option sharding_degree=0, or a degree or sharding_replicas that divides them",
    ),
    (
        "recompute_layers",
        2,
        "recompute layers [1, 4]: the model's are 0 to 3",
        "a number from 1 to the layers of a chunk, indices within the model",
    ),
    (
        "recompute_modules",
        2,
        "recompute modules mla_up_proj: paddle has core_attn, moe_gate_up",
        "--recompute selective --recompute-modules core_attn, or another --recompute",
    ),
    (
        "recompute_modules",
        0,
        "recompute modules mla_up_proj: mla_up_proj needs latent attention, moe_act and moe_gate_up need experts",
        "--recompute selective --recompute-modules core_attn, or another --recompute",
    ),
]
"""Rule, case, message and way out, where numbers are worked out or words chosen."""


@pytest.mark.parametrize(("rule", "case", "message", "fix"), SAID)
def test_what_is_said_of_a_broken_rule(rule: str, case: int, message: str, fix: str) -> None:
    asked = CASES[rule][case]
    scenario = asked.scenario(keeps=False)
    layout = layout_of(scenario, **asked.broken)
    (found,) = (one for one in RULES if one.id == rule)
    assert (found.message(scenario, layout), found.fix(scenario, layout)) == (message, fix)


def test_messages_carry_the_numbers() -> None:
    def said(scenario: Scenario, layout: Layout) -> str:
        return estimate_layout(scenario, layout).violations[0].message

    scenario = scenario_of("llama3.1-8b")
    assert said(scenario, layout_of(scenario, data_parallel=4)) == "the layout takes 4 devices, the cluster has 8"
    message = said(scenario, layout_of(scenario, micro_batch_size=3))
    assert message == "global batch 1024 does not divide by micro batch 3 x data parallel 8"
    wide = scenario_of("llama3.1-8b", devices=16, profile="paddle")
    assert "8 key-value heads" in said(wide, layout_of(wide, tensor_parallel=16))
