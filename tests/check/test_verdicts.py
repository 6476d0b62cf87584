"""Verdicts of hand-built recipes: what fits, what a framework refuses, what would help."""

from dataclasses import replace
from typing import Any

import pytest

from simulator.answers.cases import Blocked, Case, case_of_recipe
from simulator.answers.gates import Gates
from simulator.answers.ranking import estimate_of
from simulator.answers.rules import FRAMEWORK_RULES, other_heads
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.errors import InputError
from simulator.question.origin import Place, Remark, Unknown
from simulator.question.question import Question, question_of
from simulator.question.specs.catalogue import load_model
from simulator.recipes.check import judge
from simulator.recipes.check.verdict import exit_code
from simulator.search.rules import RULES
from tests.check.recipes import judged, recipe, rules


def test_a_recipe_that_fits() -> None:
    result = judged(tensor_parallel=2, sequence_parallel=True)
    assert (result.outcome, result.passed, result.reasons, result.changes) == ("fits", True, (), ())
    assert result.peaks is not None
    assert result.estimate is not None
    worst = max(result.peaks.passes.device_bytes, result.peaks.optimizer_step.device_bytes)
    assert worst == pytest.approx(result.estimate.memory.device_bytes)


@pytest.mark.full_answer
def test_changes_fit_and_are_ordered_by_speed() -> None:
    result = judged()
    assert result.outcome == "does_not_fit"
    assert result.blame == Place("train.sh", 7)
    order = [(change.estimate.devices, -change.speed_ratio) for change in result.changes]
    assert order == sorted(order)
    assert all(change.estimate.verdict == "fits" for change in result.changes)
    assert {"--tp 2", "--recompute full", "--pp 2"} & {change.text for change in result.changes}
    assert all(len(change.options) == 1 for change in result.changes)
    assert result.changes[-1].text.startswith("--nodes 2")


@pytest.mark.full_answer
def test_a_change_as_an_option_gives_what_it_promised() -> None:
    change = next(change for change in judged().changes if change.text == "--tp 2")
    again = judged(asked=question_of({"tensor_parallel": 2}))
    assert again.outcome == "fits"
    assert again.estimate is not None
    assert again.estimate.memory.device_bytes == change.estimate.memory.device_bytes


@pytest.mark.full_answer
def test_pairs_of_changes_where_single_ones_do_not_help() -> None:
    result = judged(model="llama3.1-70b", tensor_parallel=1)
    assert result.outcome == "does_not_fit"
    assert result.changes
    assert all(len(change.options) > 1 for change in result.changes)


@pytest.mark.full_answer
def test_no_change_is_of_two_minds() -> None:
    for result in (judged(model="llama3.1-405b"), judged(model="deepseek-v3"), judged(model="llama3.1-70b")):
        for change in result.changes:
            flags = [word for word in change.text.split() if word.startswith("--")]
            assert len(flags) == len(set(flags)), change.text
            assert len(change.options) <= 3


@pytest.mark.full_answer
def test_experts_are_spread() -> None:
    result = judged(model="qwen3-30b-a3b", tensor_parallel=2, sequence_parallel=True)
    assert result.outcome == "does_not_fit"
    assert any("--ep " in change.text for change in result.changes)


@pytest.mark.parametrize(
    ("framework", "changes", "rule"),
    [
        ("megatron", {"pipeline_parallel": 2, "offload": "activations"}, "megatron-offload-pipeline"),
        ("megatron", {"offload": "activations", "recompute": "full"}, "megatron-offload-recompute"),
        ("megatron", {"pipeline_parallel": 2, "virtual_stage_layers": 5}, "megatron-virtual-stages"),
        ("megatron", {"tensor_parallel": 8, "model": "ernie-4.5-21b-a3b"}, "megatron-heads"),
        ("megatron", {"micro_batch_size": 3}, "megatron-batch"),
        ("paddle", {"pipeline_parallel": 2, "zero_stage": 2}, "paddle-sharding-pipeline"),
        ("paddle", {"pipeline_parallel": 2, "zero_stage": 3}, "paddle-sharding-pipeline"),
        ("paddle", {"tensor_parallel": 8, "model": "ernie-4.5-21b-a3b"}, "paddle-kv-heads"),
        ("torch", {"micro_batch_size": 3}, "torch-batch"),
        ("megatron", {"tensor_parallel": 2, "options": {"tp_comm_overlap": "true"}}, "megatron-tp-overlap"),
        ("megatron", {"precision": "fp16", "options": {"optimizer": "muon"}}, "megatron-muon-precision"),
        ("megatron", {"offload": "optimizer_tensorwise", "options": {"optimizer": "lion"}}, "megatron-muon-offload"),
        (
            "megatron",
            {"pipeline_parallel": 2, "virtual_stages": 2, "options": {"overlap_p2p": "false"}},
            "megatron-overlap-virtual-stages",
        ),
        (
            "megatron",
            {"model": "qwen3-30b-a3b", "tensor_parallel": 2, "expert_parallel": 8},
            "megatron-expert-sequence-parallel",
        ),
    ],
)
def test_frameworks_refuse(framework: str, changes: dict[str, Any], rule: str) -> None:
    result = judged(framework, **changes)
    assert result.outcome == "refused"
    assert not result.passed
    assert rule in rules(result)
    said = next(remark for remark in result.remarks if remark.rule == rule)
    catalogued = next(entry for entry in FRAMEWORK_RULES if entry.id == rule)
    assert catalogued.says in said.message
    assert said.fix


def test_the_reader_may_decide_a_rule() -> None:
    said = Remark("partial-send-recv", "error", "needs disable_partial_send_recv", Place("train.sh", 9), "set it")
    result = judged("paddle", remarks=(said,))
    assert rules(result) == ["paddle-partial-send-recv"]
    assert result.blame == Place("train.sh", 9)


def test_what_a_reader_cannot_model_is_not_refused() -> None:
    result = judged(remarks=(Remark("not-modelled", "error", "quantized weights", Place("train.sh", 9)),))
    assert (result.outcome, result.passed, exit_code([result], Gates())) == ("not_modelled", False, 3)


def test_catalogue_is_sound() -> None:
    assert len({rule.id for rule in FRAMEWORK_RULES}) == len(FRAMEWORK_RULES)
    known = {rule.id for rule in RULES}
    assert {rule.layout_rule for rule in FRAMEWORK_RULES if rule.layout_rule} <= known
    assert all(
        rule.about and (rule.says or rule.layout_rule) and rule.versions and rule.source for rule in FRAMEWORK_RULES
    )
    assert all(rule.id.startswith(("megatron-", "paddle-", "torch-", "pai-")) for rule in FRAMEWORK_RULES)


def test_other_heads_of_ernie() -> None:
    assert other_heads(load_model("ernie-4.5-21b-a3b"), 8) == (16, 8)
    assert other_heads(load_model("deepseek-v3"), 7) is None


def test_heads_keep_filling_the_hidden_size() -> None:
    fields = {"num_attention_heads": 16, "num_key_value_heads": 8}
    asked = question_of({"model_fields": fields})
    case = case_of_recipe(recipe("paddle", model="ernie-4.5-21b-a3b", tensor_parallel=8), asked)
    assert isinstance(case, Case)
    assert case.scenario.model.head_dim == 160
    (remark,) = [remark for remark in case.remarks if remark.rule == "changed-model"]
    assert "head_dim 128 -> 160: 21.83B -> 21.94B" in remark.message
    kept = case_of_recipe(recipe(model="qwen3-30b-a3b"), question_of({"model_fields": {"num_attention_heads": 16}}))
    assert isinstance(kept, Case)
    assert kept.scenario.model.head_dim == 128


def test_shapes_alone_make_a_model() -> None:
    shapes = {
        "num_hidden_layers": 4,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 8,
        "vocab_size": 32000,
    }
    case = case_of_recipe(recipe(model=None, model_fields=shapes), question_of({}))
    assert isinstance(case, Case)
    assert case.scenario.model.num_key_value_heads == 8
    blocked = case_of_recipe(recipe(model=None, model_fields={"num_hidden_layers": 4}), question_of({}))
    assert isinstance(blocked, Blocked)
    assert [remark.fix for remark in blocked.missing] == ["--model NAME"]


def test_missing_values_are_named_with_line_and_option() -> None:
    unknown = Unknown("WORLD_SIZE", Place("train.sh", 12), ("nodes",))
    result = judged(nodes=None, unknowns=(unknown,))
    assert (result.outcome, exit_code([result], Gates())) == ("cannot_tell", 3)
    assert result.reasons == (
        "line 12: WORLD_SIZE is not known before the launch; it decides nodes (--set WORLD_SIZE=VALUE)",
    )
    assert judged(nodes=None, unknowns=(unknown,), asked=question_of({"nodes": 2})).outcome == "does_not_fit"
    assert judged(unknowns=(replace(unknown, affects=()),)).outcome == "does_not_fit"
    assert judged(seq_length=None).reasons == (
        "the recipe does not say how long a sequence is (--seq-length N or --lengths FILE)",
    )


def test_degrees_alone_size_the_cluster() -> None:
    places = {"dp": Place("train.toml", 4)}
    result = judged("torch", nodes=None, devices_per_node=None, places=places, data_parallel=16, zero_stage=3)
    assert result.estimate is not None
    assert result.estimate.devices == 16


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (question_of({"tensor_parallel": 3}), "tp 3 x pp 1 x cp 1 = 3 does not divide the 8 devices"),
        (question_of({"pipeline_parallel": 64, "nodes": 8}), "pp 64 is more than the 32 layers"),
        (question_of({"data_parallel": 4}), "x dp 4 takes 4 devices; there are 8"),
        (
            question_of({"stage_layers": (16, 16)}).over(question_of({"pipeline_parallel": 4})),
            "the cut names 2 stages, pp is 4",
        ),
        (
            question_of({"model_fields": {"num_attention_heads": 7}}),
            "num_attention_heads 7 does not divide hidden_size 4096",
        ),
    ],
)
def test_numbers_that_do_not_go_together_are_refused_with_both(asked: Question, message: str) -> None:
    result = judged(asked=asked)
    assert (result.outcome, exit_code([result], Gates())) == ("refused", 1)
    assert message in result.reasons[0]
    with pytest.raises(InputError):
        case_of_recipe(recipe(), asked)


def test_what_is_asked_wrongly_is_wrong_input() -> None:
    result = judged(asked=question_of({"hardware": "nothing"}))
    assert (result.outcome, exit_code([result], Gates())) == ("unreadable", 2)
    assert "unknown hardware" in result.reasons[0]


def test_a_node_of_the_same_device_is_taken_where_the_recipe_fills_it() -> None:
    found = judged(asked=question_of({"hardware": "910b"}), devices_per_node=16, nodes=None)
    assert found.case is not None
    assert found.case.scenario.hardware.name == "ascend-910b-64g"
    assert "node-of-recipe" in [remark.rule for remark in found.remarks]


def test_a_node_has_enough_devices() -> None:
    assert "starts 16 processes on a node" in judged(devices_per_node=16).reasons[0]


def test_other_sizes_change_what_follows_from_them() -> None:
    base = recipe(
        "paddle",
        model="ernie-4.5-300b-a47b",
        tensor_parallel=8,
        expert_parallel=8,
        sequence_parallel=True,
        nodes=2,
        pipeline_parallel=2,
        stage_layers=(20, 34),
    )
    case = case_of_recipe(base, question_of({"tensor_parallel": 4, "pipeline_parallel": 4}))
    assert isinstance(case, Case)
    assert (case.layout.expert_parallel, case.layout.sequence_parallel) == (4, True)
    assert case.layout.stage_layers == (13, 14, 14, 13)
    assert "uneven-stages" in [remark.rule for remark in case.remarks]
    alone = case_of_recipe(base, question_of({"tensor_parallel": 1}))
    assert isinstance(alone, Case)
    assert not alone.layout.sequence_parallel


def test_gates() -> None:
    fits: dict[str, Any] = {"tensor_parallel": 2, "sequence_parallel": True}
    tight = judged(gates=Gates(max_memory_fraction=0.1), **fits)
    assert (tight.outcome, tight.passed, exit_code([tight], Gates())) == ("fits", False, 1)
    assert "--max-memory-fraction is 10.0%" in tight.reasons[0]
    unlikely = judged(gates=Gates(min_fit_probability=0.9), asked=question_of({"calibration": "none"}), **fits)
    assert "no calibration" in unlikely.reasons[0]
    assert judged(gates=Gates(min_fit_probability=0.9), **fits).passed


def test_exit_codes_and_report_only() -> None:
    passes = judged(tensor_parallel=2, sequence_parallel=True)
    fails, unknown, wrong = judged(), judged(model=None), judged(devices_per_node=16)
    gates = Gates()
    assert exit_code([passes], gates) == 0
    assert exit_code([passes, unknown], gates) == 3
    assert exit_code([passes, unknown, fails], gates) == 1
    assert exit_code([passes, unknown, fails, wrong], gates) == 2
    zero = Gates(exit_zero=True)
    assert exit_code([passes, unknown, fails], zero) == 0
    assert exit_code([wrong], zero) == 2


def test_offload_is_compared_with_none() -> None:
    result = judged("paddle", tensor_parallel=2, sequence_parallel=True, offload="optimizer")
    assert result.without_offload is not None
    assert result.estimate is not None
    assert result.without_offload.memory.device_bytes >= result.estimate.memory.device_bytes
    assert judged(tensor_parallel=2, sequence_parallel=True).without_offload is None


def test_assumed_hardware_is_said() -> None:
    result = judged(tensor_parallel=2, sequence_parallel=True, asked=question_of({}))
    assert rules(result, "note") == ["hardware-assumed"]


@pytest.mark.parametrize(
    ("share", "half_width", "outcome"),
    [(0.99, 0.03, "starved"), (1.01, 0.01, "starved"), (0.99, 0.09, "cannot_tell"), (1.02, 0.03, "cannot_tell")],
)
def test_a_starved_run_is_firm_where_its_whole_range_starts(
    share: float, half_width: float, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run starts with up to 1.03 times what is usable: a range that ends above leaves it open."""
    priced = estimate_of

    def near_capacity(case: Case) -> Estimate:
        found = priced(case)
        parts = {**found.memory.outside_parts_bytes, "cached": 0.0}
        capacity = found.memory.device_bytes / share
        low, high = (found.memory.device_bytes * (1 + sign * half_width) for sign in (-1, 1))
        memory = replace(found.memory, capacity_bytes=capacity, interval_bytes=Interval(low, high), fit_probability=0.5)
        memory = replace(memory, outside_parts_bytes=parts)
        return replace(found, memory=memory, verdict="starved")

    monkeypatch.setattr(judge, "estimate_of", near_capacity)
    result = judged(tensor_parallel=2, sequence_parallel=True)
    assert (result.outcome, result.passed) == (outcome, outcome == "starved")
