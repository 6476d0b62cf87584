"""What a ranking recommends: layouts that are likely enough to fit, and no slower one in place of a faster one."""

import dataclasses
import statistics
from functools import cache
from typing import Any, cast

import pytest

from simulator import InputError, api
from simulator.answers.ranking import query_of
from simulator.cost.pricing.estimate import Estimate
from simulator.question.frameworks.stacks import lacking
from simulator.question.question import question_of
from simulator.question.vocabulary import STACKS
from simulator.search.alternatives import in_fp8
from simulator.search.space import MIN_FIT_PROBABILITY, Space
from simulator.show.report.presentation import Presentation
from simulator.show.report.ranking import ranking_table

QUESTIONS: list[dict[str, Any]] = [
    {"model": "llama3.1-8b", "hardware": "h20", "nodes": 1},
    {"model": "llama3.1-70b", "hardware": "h100-sxm-80g", "nodes": 4},
    {"model": "llama3.1-70b", "hardware": "ascend-910b-64g-8", "nodes": 16},
    {"model": "mixtral-8x7b-v0.1", "hardware": "h800-sxm-80g", "nodes": 2},
    {"model": "qwen3-8b", "hardware": "a100-sxm-80g", "nodes": 1, "framework": "torch", "global_batch_size": 64},
]
ALL_OR_NONE = Space(recompute_method=("uniform",))
"""No number of recomputed layers is solved: that depends on the probability asked for."""


def split(estimate: Estimate) -> tuple[int, ...]:
    layout = estimate.layout
    sizes = (layout.tensor_parallel, layout.pipeline_parallel, layout.context_parallel)
    return (*sizes, layout.expert_parallel, layout.expert_tensor_parallel)


def probability(estimate: Estimate) -> float:
    assert estimate.memory.fit_probability is not None
    return estimate.memory.fit_probability


@cache
def every_fitting(number: int) -> tuple[Estimate, ...]:
    """Every layout of a question that fits."""
    space = QUESTIONS[number] | {"space": ALL_OR_NONE}
    return api.rank(**space, top=10_000, variants=True, min_fit_probability=0.0).estimates


@pytest.mark.usefixtures("bare", "closed_switches")
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: str(question["model"]))
def test_the_fastest_likely_layout_of_each_split_is_recommended(question: dict[str, Any]) -> None:
    """Against every layout that fits, priced one by one."""
    question, every = question | {"space": ALL_OR_NONE}, every_fitting(QUESTIONS.index(question))
    best: dict[tuple[int, ...], Estimate] = {}
    for estimate in every:
        if probability(estimate) >= 0.95:
            best.setdefault(split(estimate), estimate)
    ranking = api.rank(**question)
    assert [e.layout for e in ranking.estimates] == [e.layout for e in list(best.values())[:10]]
    assert ranking.counts.feasible == len(every)
    assert all(probability(e) < 0.95 for e in ranking.risky)


def test_every_variant_that_is_likely_enough_is_kept() -> None:
    question, every = QUESTIONS[1] | {"space": ALL_OR_NONE}, every_fitting(1)
    least = statistics.median(map(probability, every))
    likely = api.rank(**question, top=10_000, variants=True, min_fit_probability=least).estimates
    assert [e.layout for e in likely] == [e.layout for e in every if probability(e) >= least]
    assert 0 < len(likely) < len(every)


def test_the_risky_stand_apart_fastest_first() -> None:
    ranking = api.rank(**QUESTIONS[2])
    seconds = [e.throughput.step_seconds for e in ranking.risky]
    assert seconds
    assert seconds == sorted(seconds)
    assert not {e.layout for e in ranking.risky} & {e.layout for e in ranking.estimates}


def test_fp8_and_remedies_are_recommendations_too() -> None:
    ranking = api.rank(**QUESTIONS[1])
    assert ranking.fp8 is not None
    assert probability(ranking.fp8) >= 0.95
    hopeless = api.rank(model="llama3.1-70b", hardware="h100-sxm-80g", nodes=1)
    assert hopeless.remedies
    assert all(probability(remedy.estimate) >= 0.95 for remedy in hopeless.remedies)


def test_without_a_calibration_nothing_is_called_risky() -> None:
    ranking = api.rank(model="llama3.1-8b", hardware="h20", calibration="none")
    assert ranking.estimates
    assert not ranking.risky


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan"), "half", True])
def test_what_is_no_probability_is_refused(share: Any) -> None:
    with pytest.raises(InputError, match="min_fit_probability"):
        api.rank(model="llama3.1-8b", min_fit_probability=share)


def test_the_question_says_what_was_asked_for() -> None:
    ranking = api.rank(model="llama3.1-8b", hardware="h20", min_fit_probability=0.5)
    assert ranking.query["min_fit_probability"] == 0.5
    assert dataclasses.is_dataclass(ranking)


def test_what_stands_beside_a_ranking_is_of_the_splits_of_its_best() -> None:
    """Among those it is the search's own answer; where none of them is likely to fit, that of all layouts."""
    question = QUESTIONS[1] | {"precision": "bf16"}
    ranking = api.rank(**question)
    assert ranking.fp8 is not None
    best = [estimate.layout for estimate in ranking.estimates[:3]]
    sizes = ("tensor_parallel", "pipeline_parallel", "context_parallel", "expert_parallel", "expert_tensor_parallel")
    values: dict[str, Any] = {size: tuple({getattr(layout, size) for layout in best}) for size in sizes}
    space = Space(**values)
    assert ranking.fp8.layout == api.rank(**question | {"precision": "fp8"}, space=space).estimates[0].layout
    query = query_of(question_of(question), min_fit_probability=MIN_FIT_PROBABILITY)
    tight = dataclasses.replace(best[0], tensor_parallel=1, pipeline_parallel=1, context_parallel=1)
    elsewhere = in_fp8(query, [tight])
    assert elsewhere is not None
    assert elsewhere.layout == api.rank(**question | {"precision": "fp8"}).estimates[0].layout


@pytest.mark.parametrize(
    ("hardware", "framework", "stack"),
    [
        ("h100-sxm-80g", "megatron", "nvidia-recipes"),
        ("mi300x", "megatron", "primus@26.5.1"),
        ("bi150-64g", "megatron", "megatron-guide"),
        ("h100-sxm-80g", "torch", "torchtitan"),
        ("z2000", "megatron", "z2000"),
    ],
)
def test_a_recommendation_runs_with_what_is_published_for_speed(hardware: str, framework: str, stack: str) -> None:
    """Who names no stack is recommended a launch with good practice; an estimate of a run that exists stays open."""
    question: dict[str, Any] = {"model": "llama3.1-8b", "hardware": hardware, "framework": framework}
    best = api.rank(**question, top=1).estimates[0]
    assert best.stack == stack
    bare = api.rank(**question, top=1, stack="default").estimates[0]
    assert bare.stack == "default"
    assert best.throughput.step_seconds <= bare.throughput.step_seconds * 1.001
    run = api.estimate(**question, layout=best.layout)
    assert run.stack == (stack if stack == "z2000" else "default")
    assert (run.open is None) == (stack == "z2000")


def test_adapters_are_not_recommended_with_what_is_published_for_all_weights() -> None:
    question: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100", "framework": "torch", "lora_rank": 16}
    assert api.rank(**question, top=1).estimates[0].stack == "default"


@pytest.mark.parametrize("stack", ["trl", "llm-foundry@2023", "torchtune"])
def test_no_layout_has_what_its_stack_lacks(stack: str) -> None:
    question: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100", "nodes": 2, "stack": stack}
    absent = lacking(next(name for name in STACKS if name == stack))
    assert "pipeline_parallel" in absent
    for estimate in api.rank(**question, top=50).estimates:
        assert {getattr(estimate.layout, size) for size in absent} == {1}
    stated = api.rank(**question, pipeline_parallel=2, top=1).estimates
    assert stated[0].layout.pipeline_parallel == 2


def test_methods_of_fine_tuning_are_remedies_that_can_be_asked_for() -> None:
    question: dict[str, Any] = {"model": "qwen3-8b", "hardware": "rtx-4090", "devices": 4, "stack": "trl"}
    remedies = {remedy.change: remedy.estimate for remedy in api.rank(**question).remedies}
    assert list(remedies)[:2] == ["--method lora", "--method qlora"]
    for change, estimate in remedies.items():
        if change.startswith("--method"):
            again = api.rank(**question, top=1, method=cast("Any", change.split()[1])).estimates[0]
            assert again.throughput.step_seconds == pytest.approx(estimate.throughput.step_seconds)


def test_a_cluster_that_no_layout_divides_is_told_fewer_nodes_and_a_larger_batch() -> None:
    found = api.rank(model="gpt2", hardware="h100", nodes=25, global_batch_size=64)
    assert [remedy.change for remedy in found.remedies] == ["--nodes 16", "--global-batch-size 200"]
    assert "more --nodes" not in ranking_table(found, Presentation())
