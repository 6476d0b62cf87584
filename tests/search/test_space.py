"""The space of a search, axis by axis, against layouts written down by hand. Models of six layers, four devices.

h 64; the cut of six layers over four ranks is 1, 2, 2, 1, as the ends have the table and the output layer too.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator import InputError
from simulator.question.scenario.layout import BY_NAME, COLUMNS, Layout
from simulator.question.scenario.scenario import NodeGroup, Scenario
from simulator.question.specs.documents import of_fields
from simulator.question.specs.hardware import HardwareSpec
from simulator.search import space as space_module
from simulator.search.rank import search
from simulator.search.space import (
    CHUNK,
    Query,
    Shape,
    Space,
    axes,
    balanced_cut,
    blocks,
    candidates,
    searched_modes,
    searched_modules,
    shapes,
)
from tests.scenario.cases import load_hardware, scenario_of, small_dense, small_mla, small_moe

WHOLE = ((1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1))
HALF = ((1, 1, 2), (1, 2, 1), (2, 1, 1))
ONE = ((1, 1, 1),)


def six(devices: int = 4, **fields: Any) -> Scenario:
    return scenario_of(small_dense(num_hidden_layers=6), devices=devices, global_batch_size=64, **fields)


def shape(pipeline: int, chunks: tuple[int, ...], cut: tuple[int, ...], splits: Any, listed: Any = ()) -> Shape:
    return Shape(pipeline, chunks, "1f1b", cut, listed, splits)


LISTED_FOUR = (0, 1, 1, 1, 1, 1, 1, 0)
"""Eight chunks of six layers and two ends: each an item."""


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            {},
            [
                shape(1, (1,), (6,), WHOLE),
                # Chunks of three layers, or of one.
                shape(2, (1, 3), (3, 3), HALF),
                # Six layers and two ends are eight items: two chunks a rank of one item, beside the uneven cut.
                shape(4, (2,), (1, 2, 2, 1), ONE, LISTED_FOUR),
                shape(4, (1,), (1, 2, 2, 1), ONE),
            ],
        ),
        ({"data_parallel": (2,)}, [shape(1, (1,), (6,), ((1, 2, 2), (2, 1, 2))), shape(2, (1, 3), (3, 3), HALF[:1])]),
        ({"tensor_parallel": (4, 8)}, [shape(1, (1,), (6,), WHOLE[-1:])]),
        ({"context_parallel": (2, 3), "pipeline_parallel": (2,)}, [shape(2, (1, 3), (3, 3), HALF[1:2])]),
        # Two and four chunks of a rank do not divide three layers: they are unequal ones. Five are more than layers.
        (
            {"pipeline_parallel": (2,), "virtual_stages": (1, 2, 3, 4, 5)},
            [
                shape(2, (2,), (3, 3), HALF, (1, 2, 2, 1)),
                shape(2, (4,), (3, 3), HALF, LISTED_FOUR),
                shape(2, (1, 3), (3, 3), HALF),
            ],
        ),
        ({"pipeline_parallel": (2,), "layers_per_virtual_stage": (1, 2, 3)}, [shape(2, (3, 1), (3, 3), HALF)]),
        # A cut of one's own has its number of ranks, and one chunk each unless asked.
        ({"stage_layers": (2, 4)}, [shape(2, (1,), (2, 4), HALF)]),
        ({"stage_layers": (3, 3)}, [shape(2, (1, 3), (3, 3), HALF)]),
        # Unequal ranks of several chunks have a block for each number of them.
        ({"stage_layers": (2, 4), "virtual_stages": (1, 2)}, [shape(2, (v,), (2, 4), HALF) for v in (1, 2)]),
        # Layers of four chunks make two ranks, or four; no three.
        ({"chunk_layers": (1, 2, 2, 1), "pipeline_parallel": (2,)}, [shape(2, (2,), (3, 3), HALF, (1, 2, 2, 1))]),
        ({"chunk_layers": (1, 2, 2, 1), "pipeline_parallel": (4,)}, [shape(4, (1,), (1, 2, 2, 1), ONE, (1, 2, 2, 1))]),
        # A list of layers that are computed again tells chunks apart.
        (
            {"pipeline_parallel": (2,), "recompute_layer_list": (0,), "recompute": ("full",)},
            [shape(2, (v,), (3, 3), HALF) for v in (1, 3)],
        ),
        (
            {"pipeline_parallel": (2,), "schedule": ("1f1b", "zb_h1"), "virtual_stages": (1,)},
            [shape(2, (1,), (3, 3), HALF), shape(2, (1,), (3, 3), HALF)._replace(schedule="zb_h1")],
        ),
    ],
)
def test_shapes(space: dict[str, Any], expected: list[Shape]) -> None:
    assert shapes(six(), Space(**space)) == expected


def test_shapes_of_more_ranks_than_layers_and_of_devices_that_do_not_divide() -> None:
    assert shapes(six(8), Space(pipeline_parallel=(8,))) == []
    assert shapes(six(8), Space(pipeline_parallel=(3,))) == []
    assert {one.pipeline_parallel for one in shapes(six(8), Space())} == {1, 2, 4}
    three = Space(pipeline_parallel=(3,), chunk_layers=(1, 2, 2, 1))
    assert shapes(six(24), three) == []


def test_only_who_builds_unequal_chunks_is_asked_for_them() -> None:
    found = shapes(six(profile="paddle"), Space(pipeline_parallel=(4,)))
    assert found == [shape(4, (1,), (1, 2, 2, 1), ONE)]


def test_the_largest_tensor_parallel_size_that_is_tried_is_64() -> None:
    for devices, largest in ((256, 64), (520, 52)):  # 65 is a divisor too
        scenario = scenario_of(small_dense(num_hidden_layers=1), devices=devices)
        sizes = {(tensor, context) for one in shapes(scenario, Space()) for tensor, context, _ in one.splits}
        assert {max(pair[at] for pair in sizes) for at in (0, 1)} == {largest}


def test_unequal_chunks_are_the_fewest_of_each_size() -> None:
    """Ten layers and two ends on four ranks: chunks of at most 1, 2 and 3 items need 3, 2 and 1 a rank; one is none."""
    scenario = scenario_of(small_dense(num_hidden_layers=10), devices=4, global_batch_size=64)
    found = [one.virtual_stages for one in shapes(scenario, Space(pipeline_parallel=(4,))) if one.chunk_layers]
    assert found == [(3,)]  # two chunks of two would leave four of sixteen places empty: a rank's worth
    scenario = scenario_of(small_dense(num_hidden_layers=13), devices=4, global_batch_size=64)
    found = [one.virtual_stages for one in shapes(scenario, Space(pipeline_parallel=(4,))) if one.chunk_layers]
    assert found == [(2,)]  # fifteen items: four of one leave one place empty but cut no layer in two


def test_unequal_chunks_count_prediction_modules() -> None:
    """Ten layers, two ends and a module on four ranks: twelve items would be three of one each, thirteen two of two."""
    model = small_dense(num_hidden_layers=10, num_nextn_predict_layers=1)
    for trained, expected in (("false", [(3,)]), ("true", [(2,)])):
        scenario = scenario_of(model, devices=4, global_batch_size=48, options={"mtp": trained})
        found = [one.virtual_stages for one in shapes(scenario, Space(pipeline_parallel=(4,))) if one.chunk_layers]
        assert found == expected


def rated(name: str, factor: float) -> HardwareSpec:
    machine = load_hardware("z2000")
    peaks = {
        key: replace(rate, value=f"{float(str(rate.value).split()[0]) * factor} TFLOP/s")
        for key, rate in of_fields(machine.peak_flops).items()
        if rate is not None
    }
    return replace(machine, name=name, peak_flops=replace(machine.peak_flops, **peaks))


def mixed(*factors: float, layers: int = 12) -> Scenario:
    """As many devices of each kind, which are so many times as fast as the first."""
    kinds = [rated(f"kind-{factor}", factor) for factor in factors]
    groups = tuple(NodeGroup(kind, 8) for kind in kinds)
    base = scenario_of(small_dense(num_hidden_layers=layers, vocab_size=10), kinds[0], devices=8 * len(kinds))
    return replace(base, groups=groups)


def test_layers_go_where_they_take_least_time() -> None:
    """The first kind is half as fast: a third of twelve layers is its own. An output layer of 10 words is little."""
    assert balanced_cut(mixed(1.0, 2.0), 2) == (4, 8)
    assert balanced_cut(mixed(1.0, 1.0), 2) == (6, 6)
    assert balanced_cut(mixed(1.0, 3.0), 4) == (1, 1, 5, 5)
    slow_first = shapes(mixed(1.0, 2.0), Space(pipeline_parallel=(2,)))
    assert [one.stage_layers for one in slow_first] == [(4, 8), (6, 6)]
    # Equal kinds have one cut; one kind is cut evenly, whatever its layers cost.
    assert [one.stage_layers for one in shapes(mixed(1.0, 1.0), Space(pipeline_parallel=(2,)))] == [(6, 6)]
    uneven = shapes(mixed(1.0, 2.0, layers=13), Space(pipeline_parallel=(2,)))
    assert not [one for one in uneven if one.chunk_layers]


def test_an_output_layer_is_as_much_as_the_layers_of_its_flop() -> None:
    """One layer is 2 x (12,288 + 30,720) FLOP a token and its scores' 4 s h; three such are an output layer of h V."""
    scenario = scenario_of(small_dense(num_hidden_layers=9, vocab_size=2496), devices=16, seq_length=64)
    layer = 2 * (12_288 + 30_720) + 4 * 64 * 64
    head = 2 * 64 * 2496
    assert 3.0 < head / layer < 3.2
    groups = tuple(NodeGroup(load_hardware("z2000"), 8) for _ in range(2))
    # Six layers and three, with the output layer as much as six and a bit.
    assert balanced_cut(replace(scenario, groups=groups), 2) == (6, 3)


RECOMPUTE = ("recompute", "recompute_modules", "recompute_method", "recompute_layers")


def tried(scenario: Scenario, space: Space) -> dict[str, list[Any]]:
    """The values of every axis, decoded; those of several columns as tuples."""
    found: dict[str, list[Any]] = {}
    for axis in axes(scenario, space):
        rows = [
            tuple(
                value if name.startswith(("expert", "seq")) else BY_NAME[name].decoded(value) for name, value in pairs
            )
            for pairs in ([*zip(axis.names, row, strict=True)] for row in axis.values.tolist())
        ]
        found[" ".join(axis.names)] = rows if len(axis.names) > 1 else [row[0] for row in rows]
    return found


def test_the_axes_of_a_dense_model() -> None:
    core = ("core_attn",)
    assert tried(six(), Space()) == {
        "expert_parallel expert_tensor_parallel": [(1, 1)],
        "micro_batch_size": [1, 2, 4, 8],
        " ".join(RECOMPUTE): [(mode, core, "uniform", 1) for mode in ("none", "selective", "full")],
        "zero_stage": [1],
        "sequence_parallel": [-1.0],
        "offload": ["none"],
    }
    assert tried(six(profile="torch"), Space())["zero_stage"] == [3]
    assert searched_modes(six(profile="torch")) == ("none", "operations", "full")


def test_the_axes_that_are_asked_for() -> None:
    asked = Space(
        micro_batch_size=(3,),
        zero_stage=(0, 2),
        sequence_parallel=(True, False),
        offload=("optimizer",),
        expert_parallel=(2,),
    )
    found = tried(six(), asked)
    assert found["micro_batch_size"] == [3]
    assert found["zero_stage"] == [0, 2]
    assert found["sequence_parallel"] == [1.0, 0.0]
    assert found["offload"] == ["optimizer"]
    assert found["expert_parallel expert_tensor_parallel"] == [(2, 1)]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ({"recompute": ("none",)}, [("none", ("core_attn",), "uniform", 1)]),
        # Methods and numbers are those of whole layers, modules those of selective recompute.
        (
            {"recompute": ("selective", "full"), "recompute_method": ("uniform", "block"), "recompute_layers": (1, 2)},
            [
                ("selective", ("core_attn",), "uniform", 1),
                ("full", ("core_attn",), "uniform", 1),
                ("full", ("core_attn",), "uniform", 2),
                ("full", ("core_attn",), "block", 1),
                ("full", ("core_attn",), "block", 2),
            ],
        ),
        # Modules imply selective recompute, listed layers full recompute by that list.
        ({"recompute_modules": ("mlp",)}, [("selective", ("mlp",), "uniform", 1)]),
        ({"recompute_layer_list": (1,)}, [("full", ("core_attn",), "list", 1)]),
        (
            {"recompute_layer_list": (1,), "recompute": ("none", "full"), "recompute_layers": (4,)},
            [("none", ("core_attn",), "uniform", 1), ("full", ("core_attn",), "list", 1)],
        ),
    ],
)
def test_what_is_computed_again(space: dict[str, Any], expected: list[Any]) -> None:
    assert tried(six(), Space(**space))[" ".join(RECOMPUTE)] == expected


def test_experts_are_divided_by_their_divisors_up_to_the_devices() -> None:
    moe = scenario_of(small_moe(), devices=4)
    pairs = [(ep, etp) for ep in (1, 2, 4) for etp in (1, 0)]  # 0: as tensor parallel
    assert tried(moe, Space())["expert_parallel expert_tensor_parallel"] == pairs
    asked = Space(expert_parallel=(8,), expert_tensor_parallel=(2, 4))
    assert tried(moe, asked)["expert_parallel expert_tensor_parallel"] == [(8, 2), (8, 4)]


def test_modules_go_with_the_model_and_the_framework() -> None:
    assert searched_modules(scenario_of(small_mla(), profile="paddle")) == (("core_attn",),)
    both = small_moe(
        **{name: getattr(small_mla(), name) for name in ("attention", "kv_lora_rank", "qk_nope_head_dim")}
        | {
            "q_lora_rank": 40,
            "qk_rope_head_dim": 8,
            "v_head_dim": 20,
            "head_dim": 24,
            "num_key_value_heads": 4,
        }
    )
    cheap = ("layernorm", "moe_act")
    assert searched_modules(scenario_of(both)) == (
        ("core_attn",),
        ("mla_up_proj",),
        cheap,
        (*cheap, "mla_up_proj"),
    )


def every(scenario: Scenario, space: Space, chunk: int = CHUNK) -> list[Layout]:
    return [block.block.layout(at) for block in blocks(scenario, space, chunk=chunk) for at in range(len(block))]


MOE_SPACE = Space(micro_batch_size=(1, 2), recompute=("none", "full"), offload=("none", "optimizer"))


def test_every_layout_once_in_blocks_of_any_size() -> None:
    scenario = scenario_of(small_moe(num_hidden_layers=3), devices=4, profile="paddle", global_batch_size=24)
    found = every(scenario, MOE_SPACE)
    # Splits of four devices with one, two and no pipeline of three layers' divisors; experts over 1, 2, 4 and, where
    # tensor parallel is above 1, over it too; micro batches, recompute and offload twice each.
    at_one, above = 6 + 3 - 3 - 1, 3 + 1
    assert at_one + above == len(WHOLE) + len(HALF)
    assert len(found) == len(set(found)) == (3 * at_one + 6 * above) * 8
    assert candidates(scenario, MOE_SPACE) == 6 * 9 * 8
    assert {layout.expert_tensor_parallel for layout in found if layout.tensor_parallel == 1} == {1}
    assert {(x.tensor_parallel, x.expert_tensor_parallel) for x in found if x.tensor_parallel > 1} == {
        *((2, 1), (2, 2), (4, 1), (4, 4))
    }
    assert all(layout.sequence_parallel == (layout.tensor_parallel > 1) for layout in found)
    assert {value for block in blocks(scenario, MOE_SPACE) for value in block.block.sequence_parallel} == {0.0, 1.0}
    for size in (1, 7, 64):
        assert every(scenario, MOE_SPACE, chunk=size) == found
        assert all(len(block) <= size for block in blocks(scenario, MOE_SPACE, chunk=size))


OF_WORK = tuple(field.name for field in COLUMNS if field.of_work)
UNKNOWN = ("data_parallel", "virtual_stages")
"""Columns of sizes that work does not depend on."""


@pytest.mark.parametrize("chunk", [16, 8192])
def test_layouts_share_the_figures_of_equal_work_and_of_equal_sizes(chunk: int) -> None:
    scenario = scenario_of(small_moe(num_hidden_layers=3), devices=8, profile="paddle", global_batch_size=24)
    for block in blocks(scenario, MOE_SPACE, chunk=chunk):
        assert block.work is not None
        kinds = block.work.pricing.block
        for name in OF_WORK:
            column, shared = getattr(block.block, name), getattr(kinds, name)[block.work.index]
            assert np.isnan(shared).all() if name in UNKNOWN else (column == shared).all()
        assert kinds.pipeline_parallel == 0
        if block.sizes is not None:
            for name in OF_WORK:
                equal = getattr(block.sizes.pricing.block, name)[block.sizes.index]
                assert (getattr(block.block, name) == equal).all()
    assert any(block.sizes is not None for block in blocks(scenario, MOE_SPACE))
    (largest,) = {len(block.work.pricing) for block in blocks(scenario, MOE_SPACE) if block.work is not None}
    # Ten pairs of tensor and context parallel sizes of 8 devices, three or four expert sizes twice, two micro batches.
    assert largest == 10 * (4 * 2) * 2


def test_kinds_of_work_are_worked_out_ahead_as_far_as_they_fit_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, space = six(), Space(micro_batch_size=(1, 2))
    for size, shared in ((12, True), (11, False)):  # six pairs of sizes, two micro batches
        monkeypatch.setattr(space_module, "CHUNK", size)
        assert {block.work is not None for block in blocks(scenario, space, chunk=64)} == {shared}
    assert list(blocks(scenario, Space(tensor_parallel=(3,)))) == []


def test_candidates_are_what_the_axes_span() -> None:
    # Splits times chunks: 6, 3 x 2, 1, 1; four micro batches, three kinds of recompute.
    assert candidates(six(), Space()) == (6 + 3 * 2 + 1 + 1) * 4 * 3
    assert Counter(layout.pipeline_parallel for layout in every(six(), Space())) == {1: 72, 2: 72, 4: 24}


@pytest.mark.parametrize(
    ("space", "says"),
    [
        ({"tensor_parallel": (0,)}, "tensor_parallel"),
        ({"stage_layers": (0, 6)}, "stage_layers"),
        ({"chunk_layers": (7, -1)}, r"chunk_layers \[7, -1\]: must be whole numbers from 0"),
        ({"recompute_layer_list": (0,), "recompute": ("none",)}, "recompute_layer_list: needs recompute full"),
        ({"recompute_modules": ("mlp",), "recompute": ("full",)}, "recompute_modules: needs recompute selective"),
    ],
)
def test_values_that_no_layout_has(space: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        Space(**space)


@pytest.mark.parametrize(
    "space",
    [
        {"chunk_layers": (0, 6)},
        {"recompute_layer_list": (0,)},
        {"recompute_layer_list": (0,), "recompute": ("full", "none")},
        {"recompute_modules": ("mlp",), "recompute": ("selective",)},
        {"recompute_modules": ("mlp",)},
    ],
)
def test_values_that_go_together(space: dict[str, Any]) -> None:
    assert Space(**space) != Space()


def test_more_layouts_than_are_searched_are_refused() -> None:
    """Of 2 ** 18 micro batches and 400 numbers of layers there are more than a hundred million."""
    space = Space(micro_batch_size=tuple(range(1, 2**18)), recompute=("full",), recompute_layers=tuple(range(1, 401)))
    with pytest.raises(InputError, match=r"span 104,857,200 layouts; at most 100,000,000 are searched: narrow a range"):
        search(Query(scenario=six(1), space=space))
