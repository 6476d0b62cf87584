"""Layouts, the default cut, blocks of layouts, and what a scenario refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cost.derived import pricings_of
from simulator.errors import InputError, UnsupportedError
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout, default_cut, model_chunks
from tests.scenario.cases import layout_of, scenario_of, small_dense


@given(st.integers(1, 200), st.integers(1, 64))
def test_the_default_cut_spreads_all_layers_evenly(layers: int, ranks: int) -> None:
    cut = default_cut(layers, ranks)
    assert len(cut) == ranks
    assert sum(cut) == layers
    assert max(cut) - min(cut) <= 1
    if ranks <= layers:
        assert min(cut) >= 1
    # The ends hold the tables: they get a layer more only when the middle has.
    assert cut[-1] == min(cut)
    if ranks > 2 and cut[0] > min(cut):
        assert min(cut[1:-1]) == max(cut)


@pytest.mark.parametrize(
    ("layers", "ranks", "cut"),
    [
        (32, 4, (8, 8, 8, 8)),
        (61, 4, (15, 16, 15, 15)),
        (63, 4, (16, 16, 16, 15)),
        (61, 8, (7, 8, 8, 8, 8, 8, 7, 7)),
        (3, 2, (2, 1)),
        (5, 1, (5,)),
    ],
)
def test_cuts_by_hand(layers: int, ranks: int, cut: tuple[int, ...]) -> None:
    assert default_cut(layers, ranks) == cut


def test_a_layout_counts_its_devices() -> None:
    layout = Layout(tensor_parallel=2, pipeline_parallel=3, context_parallel=5, data_parallel=7, expert_parallel=7)
    assert layout.devices == 210


layouts = st.builds(
    Layout,
    tensor_parallel=st.integers(1, 64),
    context_parallel=st.integers(1, 64),
    expert_parallel=st.integers(1, 64),
    expert_tensor_parallel=st.integers(1, 64),
    data_parallel=st.integers(1, 4096),
    pipeline_parallel=st.integers(1, 3),
    virtual_stages=st.integers(1, 3),
    micro_batch_size=st.integers(1, 64),
    sequence_parallel=st.booleans(),
    zero_stage=st.integers(0, 3),
    recompute=st.sampled_from(("none", "selective", "full")),
    recompute_method=st.sampled_from(("uniform", "block", "list")),
    recompute_layers=st.integers(1, 100),
    recompute_layer_list=st.sampled_from(((), (1,), (1, 2))),
    offload=st.sampled_from(("none", "optimizer", "optimizer_tensorwise", "activations")),
    stage_layers=st.sampled_from(((), (4,), (2, 2))),
)


@given(st.lists(layouts, min_size=1, max_size=20))
def test_layouts_survive_a_block(many: list[Layout]) -> None:
    back: dict[int, Layout] = {}
    for places, pricing in pricings_of(scenario_of(), many):
        assert len(pricing) == len(places)
        back |= {place: pricing.block.layout(index) for index, place in enumerate(places)}
    assert [back[place] for place in range(len(many))] == many


def test_layouts_that_differ_in_virtual_stages_share_a_block_where_chunks_are_alike() -> None:
    """Each block costs its fixed work once, so that a search of few layouts is as fast as it has few blocks."""
    even = [Layout(pipeline_parallel=2, virtual_stages=chunks, stage_layers=(4, 4)) for chunks in (1, 2, 4)]
    listed = [replace(layout, recompute_layer_list=(1,)) for layout in even]
    scenario = scenario_of(small_dense(num_hidden_layers=8))
    assert [places for places, _ in pricings_of(scenario, even)] == [[0, 1, 2]]
    assert [places for places, _ in pricings_of(scenario, listed)] == [[0], [1], [2]]


def test_a_part_of_a_block() -> None:
    block = block_of([Layout(tensor_parallel=t) for t in (1, 2, 4)])
    assert list(block.take(np.array([2, 0])).tensor_parallel) == [4, 1]
    assert list(block.take(np.array([False, True, False])).tensor_parallel) == [2]
    assert block.take(np.array([2])).layout(0) == Layout(tensor_parallel=4)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"precision": "int8"}, "precision 'int8': allowed are bf16, fp16, fp8, fp4, fp32"),
        ({"devices": 0}, "devices 0: must be a whole number from 1"),
        ({"devices": 12}, "devices 12: more than one node of z2000 means a multiple of 8"),
        ({"seq_length": 0}, "seq_length 0: must be a whole number from 1"),
        ({"seq_length": 2**28}, "seq_length 268435456: must be a whole number from 1"),
        ({"global_batch_size": -1}, "global_batch_size -1: must be a whole number from 1"),
        ({"lora_rank": 0}, "lora_rank 0: must be a whole number from 1"),
    ],
)
def test_a_scenario_refuses_what_no_layout_mends(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario_of(small_dense(), **fields)
    assert str(caught.value).startswith(expected)


@pytest.mark.parametrize(("hardware", "has"), [("z2000", True), ("ascend-910b-64g-8", False), ("a100-sxm-80g", False)])
def test_a_precision_the_device_lacks_is_no_guess(hardware: str, has: bool) -> None:
    if has:
        assert scenario_of(small_dense(), hardware, precision="fp8").precision == "fp8"
        return
    with pytest.raises(UnsupportedError, match=f"hardware '{hardware}' has no fp8 peak"):
        scenario_of(small_dense(), hardware, precision="fp8")


def test_a_scenario_counts_nodes_and_tokens() -> None:
    scenario = scenario_of(small_dense(), devices=32, seq_length=100, global_batch_size=7)
    assert scenario.nodes == 4
    assert scenario.tokens_per_step == 700
    assert replace(scenario, devices=4).nodes == 1
    assert layout_of(scenario, tensor_parallel=2).data_parallel == 16


def test_interleaved_chunks_take_turns_over_the_ranks() -> None:
    assert model_chunks((4, 4), 2) == (((0, 2), (4, 2)), ((2, 2), (6, 2)))


@pytest.mark.parametrize(("cut", "chunks"), [((3, 5), 1), ((3, 5), 2), ((3, 3), 2)])
def test_a_cut_without_equal_chunks_is_one_chunk_on_each_rank(cut: tuple[int, ...], chunks: int) -> None:
    assert model_chunks(cut, chunks) == (((0, cut[0]),), ((cut[0], cut[1]),))


@pytest.mark.parametrize("value", [[], "yes", None, 2])
def test_a_flag_is_on_or_off(value: Any) -> None:
    with pytest.raises(InputError, match=r"sequence_parallel .*: allowed are False, True"):
        Layout(sequence_parallel=value)
