"""The command beside a layout prices that very layout, whatever was asked."""

import json
import shlex
from typing import Any

import pytest

from simulator import api
from simulator.answers.ranking import feasible, query_of
from simulator.answers.run import estimate_command
from simulator.question.question import question_of
from simulator.question.scenario.layout import Layout, layout_of_object
from simulator.search.rank import fitting
from simulator.search.space import Space
from tests.cli.running import run

QUESTIONS: list[tuple[dict[str, Any], Space]] = [
    ({"model": "llama3.1-70b", "nodes": 8}, Space(recompute=("full", "selective"))),
    ({"model": "deepseek-v2-lite", "hardware": "h100-sxm-80g", "nodes": 2}, Space()),
    (
        {"model": "llama3.1-8b", "hardware": "h20", "nodes": 2, "framework": "torch", "num_layers": 30},
        Space(zero_stage=(2, 3)),
    ),
    (
        {
            "model": "llama3.1-8b",
            "hardware": "h20",
            "lora_rank": 8,
            "calibration": "none",
            "options": {"tp_comm_overlap": "true"},
        },
        Space(sequence_parallel=(False,), offload=("optimizer",)),
    ),
]


def priced(command: str) -> dict[str, Any]:
    words = shlex.split(command)
    assert words[0] == "simulate"
    result = run(*words[1:], "--format", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize(("question", "space"), QUESTIONS)
def test_a_command_prices_the_layout_it_stands_beside(question: dict[str, Any], space: Space) -> None:
    every = feasible(fitting(query_of(question_of(question, many=True), space)))
    shown = {estimate.layout.recompute_method + estimate.layout.recompute: estimate for estimate in every}
    for estimate in [*shown.values(), *every[:: max(len(every) // 8, 1)]]:
        command = estimate_command(estimate, has_experts="deepseek" in question["model"])
        found = priced(command)
        assert layout_of_object(found["layout"]) == estimate.layout
        assert found["throughput"]["step_time_s"] == pytest.approx(estimate.throughput.step_seconds)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tensor_parallel=8, pipeline_parallel=4, data_parallel=2, stage_layers=(18, 21, 21, 20)),
        Layout(
            tensor_parallel=8,
            pipeline_parallel=2,
            data_parallel=4,
            recompute="full",
            recompute_method="list",
            recompute_layer_list=(0, 5, 41),
            zero_stage=0,
        ),
        Layout(
            tensor_parallel=8,
            pipeline_parallel=2,
            data_parallel=4,
            virtual_stages=2,
            stage_layers=(39, 41),
            chunk_layers=(19, 21, 20, 20),
        ),
    ],
)
def test_what_no_search_tries_is_said_too(layout: Layout) -> None:
    question: dict[str, Any] = {"model": "llama3.1-70b", "nodes": 8}
    estimate = api.estimate(layout=layout, **question)
    command = estimate_command(estimate, has_experts=False)
    assert layout_of_object(priced(command)["layout"]) == estimate.layout
