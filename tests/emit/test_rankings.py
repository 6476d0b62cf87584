"""Every layout that a ranking recommends can be written as a recipe that its framework takes."""

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.cost.pricing.estimate import Estimate
from simulator.recipes.check.asked import Asked
from simulator.recipes.emit.question import question_of_file, target_of
from simulator.recipes.emit.recipe import emit
from simulator.recipes.readers.read import read_recipe
from simulator.show.report.as_json import dumps, estimate_object
from simulator.show.report.presentation import Presentation

RANKINGS: list[dict[str, Any]] = [
    {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 1},
    {"model": "llama3.1-70b", "nodes": 8},
    {"model": "deepseek-v3", "hardware": "h800-sxm-80g", "nodes": 32},
    {
        "model": "deepseek-v3",
        "hardware": "h800-sxm-80g",
        "nodes": 256,
        "seq_length": 4096,
        "global_batch_size": 15360,
        "precision": "fp8",
    },
    {"model": "qwen2.5-7b", "hardware": "a100-sxm-80g", "nodes": 2},
    {"model": "qwen2.5-0.5b", "hardware": "h20", "nodes": 1},
    {"model": "qwen3-8b", "hardware": "h20", "nodes": 1, "precision": "fp8"},
    {"model": "mixtral-8x7b-v0.1", "hardware": "h100-sxm-80g", "nodes": 4},
    {"model": "llama3-70b", "hardware": "ascend-910b-64g-8", "nodes": 8},
    {"model": "llama3.1-70b", "hardware": "h100-sxm-80g", "nodes": 1},
    {"model": "llama-13b", "hardware": "bi150-64g", "nodes": 4, "framework": "paddle", "global_batch_size": 2048},
    {"model": "ernie-4.5-21b-a3b", "hardware": "bi150-64g", "nodes": 2, "framework": "paddle", "global_batch_size": 64},
    {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "framework": "torch", "global_batch_size": 64},
    {"model": "qwen3-30b-a3b", "hardware": "h100-sxm-80g", "nodes": 2, "framework": "torch", "global_batch_size": 64},
]


def written(estimate: Estimate) -> str:
    """The recipe of an estimate, as `simulate emit` writes it from JSON."""
    target = target_of(estimate.framework)
    text = dumps(estimate_object(estimate, Presentation()))
    return emit(question_of_file("estimate.json", text, 1, Asked(hardware_assumed=True), target), target)


@pytest.mark.parametrize("question", RANKINGS, ids=lambda asked: f"{asked['model']} {asked.get('framework', '')}")
def test_every_recommended_layout_can_be_launched(question: dict[str, Any]) -> None:
    ranking = simulator.rank(**question, top=30)
    shown = [*ranking.estimates, *ranking.risky, *ranking.starved, *(remedy.estimate for remedy in ranking.remedies)]
    if ranking.fp8 is not None and question.get("framework") != "paddle":
        shown.append(ranking.fp8)
    assert shown
    recipes = [written(estimate) for estimate in shown]
    overlaps = ["--overlap-moe-expert-parallel-comm" in recipe for recipe in recipes]
    assert overlaps == [bool(estimate.options) for estimate in shown]


def test_any_cut_of_a_pipeline_has_words() -> None:
    uneven = simulator.estimate(model="llama3.1-8b", nodes=1, stage_layers=(7, 8, 9, 8))
    cut = "|".join(("E" + "t" * 7, "t" * 8, "t" * 9, "t" * 8 + "L"))
    assert f"--pipeline-model-parallel-layout '{cut}'" in written(uneven)


@pytest.mark.parametrize(
    "asked",
    [
        {"pipeline_parallel": 4, "virtual_stages": 4, "chunk_layers": (1, *[2] * 14, 3)},
        {"pipeline_parallel": 4, "virtual_stages": 3},
        {"pipeline_parallel": 2, "virtual_stages": 2, "stage_layers": (14, 18)},
        {"pipeline_parallel": 4, "chunk_layers": (11, 11, 10, 0)},
    ],
    ids=["listed", "balanced", "ranks", "loss alone"],
)
def test_unequal_chunks_come_back_from_the_script(asked: dict[str, Any], tmp_path: Path) -> None:
    estimate = simulator.estimate(model="llama3.1-8b", nodes=1, global_batch_size=64, **asked)
    assert estimate.violations == ()
    file = tmp_path / "run.sh"
    file.write_text(written(estimate), encoding="utf-8")
    (recipe,) = read_recipe(file)
    found, layout = recipe.layout, estimate.layout
    assert found is not None
    assert (found.chunk_layers, found.virtual_stages) == (layout.chunk_layers, layout.virtual_stages)
    assert found.stage_layers == layout.stage_layers
