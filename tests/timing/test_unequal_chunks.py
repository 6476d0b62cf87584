"""Unequal model chunks: what they hold and take, held to the schedule run pass by pass."""

import dataclasses

import numpy as np
import pytest

from simulator import api
from simulator.answers.timeline import timeline
from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.memory.activations import activations_in_flight
from simulator.cost.pricing.estimate import ThroughputEstimate
from simulator.cost.pricing.price import price
from simulator.cost.schedule.orders import schedule_of
from simulator.cost.stages import stage_contents
from simulator.cost.timing.step import ChunkSeconds, StageWork, _run_by_pass
from simulator.errors import InputError
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import balanced_chunks, model_chunks
from simulator.search.build import bare_estimate
from simulator.search.space import Space
from tests.scenario.cases import complete_layout, scenario_of, small_dense, small_moe

LISTS = {
    "balanced": (30, 4, (3, 4, 4, 4, 4, 4, 4, 3)),
    "one layer each": (14, 4, (0, *[1] * 14, 0)),
    "last chunk light": (21, 4, (*[2] * 9, *[1] * 3)),
    "uneven ranks": (24, 2, (2, 10, 4, 8)),
    "two sizes": (36, 4, (2, 4, 2, 4) * 3),
}


def test_balanced_chunks_count_embedding_and_loss() -> None:
    # 405B on 16 ranks of 8 chunks, Qwen3-235B on 8 of 4, DeepSeek-V3 with its prediction module on 16 of 2.
    assert balanced_chunks(126, 0, 128) == (0, *[1] * 126, 0)
    assert balanced_chunks(94, 0, 32) == (2, *[3] * 30, 2)
    assert balanced_chunks(61, 1, 32) == (1, *[2] * 30, 0)
    assert balanced_chunks(61, 0, 8) == (7, *[8] * 6, 6)
    for layers in range(8, 60):
        for chunks in range(4, layers + 3, 4):
            listed = balanced_chunks(layers, 1, chunks) if chunks <= layers + 3 else ()
            ranks = [sum(listed[rank::4]) + (rank == 0) + 2 * (rank == 3) for rank in range(4)]
            assert (sum(listed), len(listed)) == (layers, chunks)
            assert min(listed) >= 0
            assert max(ranks) - min(ranks) <= 2


@pytest.mark.parametrize(("chunks", "ranks", "run"), [(2, 129, True), (2, 130, False), (8, 64, True), (8, 65, False)])
def test_very_long_pipelines_are_not_run(chunks: int, ranks: int, run: bool) -> None:
    """Three cycles of as many micro batches as ranks, both passes of every chunk: 200,000 at most."""
    assert (3 * ranks * ranks * chunks * 2 <= 200_000) == run
    none = np.zeros((1, 1))
    work = StageWork(none, none, by_chunk=(ChunkSeconds(none, none, none),) * chunks)
    assert _run_by_pass(work, ranks) == run
    assert not _run_by_pass(work._replace(by_chunk=()), ranks)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8])
@pytest.mark.parametrize("name", LISTS)
def test_the_step_is_that_of_all_its_passes(name: str, micro_batches: int) -> None:
    layers, ranks, chunks = LISTS[name]
    scenario = dataclasses.replace(
        scenario_of(small_dense(num_hidden_layers=layers), devices=ranks), global_batch_size=micro_batches * ranks
    )
    layout = complete_layout(scenario, pipeline_parallel=ranks, chunk_layers=chunks)
    found = bare_estimate(scenario, layout)
    assert found.violations == ()
    speed = found.throughput
    pace = max(stage.forward_seconds + stage.backward_seconds for stage in speed.stages)
    passes = micro_batches * ranks * pace + speed.parts_seconds["bubble"]
    run = timeline(dataclasses.replace(found, throughput=_without_sends(speed))).passes
    # Exact as far as the cycles that are run reach.
    assert passes == pytest.approx(run.makespan_seconds, rel=1e-9 if micro_batches <= 3 else 0.005)
    assert sum(speed.parts_seconds.values()) == pytest.approx(speed.step_seconds, rel=1e-12)
    for stage in speed.stages:
        assert sum(one.forward_seconds for one in stage.chunk_seconds) == pytest.approx(
            stage.forward_seconds, rel=1e-12
        )
        assert sum(one.backward_seconds for one in stage.chunk_seconds) == pytest.approx(
            stage.backward_seconds, rel=1e-12
        )


def _without_sends(speed: ThroughputEstimate) -> ThroughputEstimate:
    return dataclasses.replace(speed, parts_seconds={**speed.parts_seconds, "pipeline_sends": 0.0})


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("micro_batches", [1, 2, 8])
@pytest.mark.parametrize("name", LISTS)
def test_bytes_in_flight_are_the_most_of_the_run(name: str, micro_batches: int, recompute: str) -> None:
    layers, ranks, chunks = LISTS[name]
    model = small_moe(num_hidden_layers=layers, first_k_dense_replace=3)
    scenario = dataclasses.replace(scenario_of(model, devices=ranks), global_batch_size=micro_batches * ranks)
    block = block_of([complete_layout(scenario, pipeline_parallel=ranks, chunk_layers=chunks, recompute=recompute)])
    memory = price(Pricing(scenario, block)).memory
    has = memory.contents
    found = activations_in_flight(Pricing(scenario, block))[:, 0]
    count = len(chunks) // ranks
    for rank in range(ranks):
        now = most = 0.0
        for one in schedule_of(Pricing(scenario, block)).order(rank, ranks, count, micro_batches * ranks):
            size = memory.activations.by_chunk[has.chunk[one.chunk]][has.kind[rank], 0]
            now += size if one.kind == "forward" else -size
            most = max(most, now)
        assert found[rank] == pytest.approx(most, rel=1e-9)


@pytest.mark.parametrize("batch", [16, 48, 1024])  # of the smaller ones the layouts fill other numbers of cycles
def test_a_block_says_what_its_layouts_say_alone(batch: int) -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=30), devices=16, global_batch_size=batch)
    layouts = [
        complete_layout(scenario, pipeline_parallel=4, virtual_stages=2, micro_batch_size=size, recompute=recompute)
        for size in (1, 2, 4)
        for recompute in ("none", "full")
    ]
    assert layouts[0].chunk_layers == (3, 4, 4, 4, 4, 4, 4, 3)
    together = price(Pricing(scenario, block_of(layouts)))
    alone = [price(pricing_of(scenario, layout)) for layout in layouts]
    assert list(together.step.total) == [one.step.total[0] for one in alone]
    assert list(together.device_bytes) == [one.device_bytes[0] for one in alone]


def test_embedding_and_output_layer_stand_where_the_list_has_none() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=6), devices=8)
    layout = complete_layout(scenario, pipeline_parallel=4, virtual_stages=2, chunk_layers=(0, 1, 1, 1, 1, 1, 1, 0))
    has = stage_contents(scenario, block_of([layout]))
    assert list(has.num_layers[has.kind]) == [1, 2, 2, 1]
    assert list(has.embeddings[has.kind]) == [1, 0, 0, 0]
    assert bare_estimate(scenario, layout).violations == ()
    assert [held[0] for held in model_chunks(layout.stage_layers, 2, layout.chunk_layers)] == [
        (0, 0),
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def test_equal_lists_are_the_same_as_none() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=8), devices=8)
    even = complete_layout(scenario, pipeline_parallel=2, virtual_stages=2)
    assert complete_layout(scenario, pipeline_parallel=2, chunk_layers=(2, 2, 2, 2)) == even
    first = complete_layout(scenario, pipeline_parallel=2, virtual_stages=2, stage_layers=(2, 6))
    assert complete_layout(scenario, pipeline_parallel=2, chunk_layers=(1, 3, 1, 3)) == first
    assert bare_estimate(scenario, first).violations == ()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"chunk_layers": (1, 2, 3)}, "chunk_layers needs one pipeline_parallel"),
        ({"chunk_layers": (1, 2, 3), "pipeline_parallel": 2}, "names 3 chunks, not a number for pipeline_parallel 2"),
        ({"chunk_layers": (1, 3, 2, 2), "stage_layers": (4, 4)}, "puts 3,5 layers on the ranks"),
        ({"chunk_layers": (2, 2), "pipeline_parallel": 2, "layers_per_virtual_stage": 2}, "exclude each other"),
    ],
)
def test_a_list_that_contradicts_is_refused(given: dict[str, object], says: str) -> None:
    question = {"hardware": "h100-sxm-80g", "nodes": 1, "model": "llama3.1-8b"}
    with pytest.raises(InputError, match=says):
        api.estimate(**question, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("model", "pipeline"), [("llama3.1-405b", 16), ("qwen3-235b-a22b", 8), ("deepseek-v3", 16)])
def test_a_search_interleaves_layers_that_do_not_divide(model: str, pipeline: int) -> None:
    found = api.rank(
        model=model,
        hardware="h200-sxm",
        nodes=64,
        seq_length=4096,
        global_batch_size=1024,
        space=Space(pipeline_parallel=(pipeline,), tensor_parallel=(4,), micro_batch_size=(1,), recompute=("full",)),
        variants=True,
        top=30,
    )
    interleaved = [one for one in found.estimates if one.layout.chunk_layers]
    assert interleaved
    assert all(len(one.layout.chunk_layers) == pipeline * one.layout.virtual_stages for one in interleaved)
    assert np.isfinite([one.throughput.step_seconds for one in interleaved]).all()
