"""How layouts of a block share figures: which are computed once, which are kept, and that nobody changes them."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from simulator.cost.derived import (
    Alike,
    Pricing,
    derived,
    of_sizes,
    of_work,
    pricing_of,
    pricings_of,
    recomputed_inside,
)
from simulator.cost.memory.activations import activations_in_flight, layer_bytes, stage_activations
from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.memory.state import training_state
from simulator.question.coefficients import priors, replaced
from simulator.question.scenario.block import Array, block_of
from simulator.question.scenario.scenario import NodeGroup, Scenario
from tests.scenario.cases import layout_of, load_hardware, scenario_of, small_dense, small_moe

DENSE = scenario_of(small_dense(num_hidden_layers=4))


def block(**columns: list[int]) -> Pricing:
    """Layouts with these columns."""
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Pricing(DENSE, block_of([layout_of(DENSE, **row) for row in rows]))


def test_a_mask_that_layouts_share_cannot_be_written() -> None:
    mask = block(micro_batch_size=[1, 2]).recomputes("none")
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = False


def test_a_figure_of_each_kind_is_spread_over_its_layouts() -> None:
    kinds = block(micro_batch_size=[2, 8])
    shared = Alike(kinds, np.array([0, 1, 1, 0]))
    assert shared.spread(np.array([10.0, 20.0])).tolist() == [10, 20, 20, 10]
    assert shared.spread(np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[1, 2, 2, 1], [3, 4, 4, 3]]
    both, same = shared.spread((np.array([1.0, 2.0]), np.broadcast_to(3.0, (2, 2))))
    assert (both.tolist(), same.tolist()) == ([1, 2, 2, 1], [[3] * 4] * 2)


def test_copies_under_other_coefficients_take_what_reads_none() -> None:
    whole, seen = block(micro_batch_size=[1, 2, 4]), list[int]()

    @derived
    def kept(pricing: Pricing) -> Array:
        seen.append(len(pricing))
        return pricing.block.micro_batch_size

    @of_sizes
    def sizes(pricing: Pricing) -> Array:
        seen.append(len(pricing))
        return pricing.block.micro_batch_size

    each = np.array([2, 2, 0])
    copies = whole.copies(each, DENSE, kept)
    assert kept(copies).tolist() == sizes(copies).tolist() == copies.block.micro_batch_size.tolist() == [4, 4, 1]
    assert seen == [3, 3]


@pytest.mark.parametrize("scenario", [DENSE, scenario_of(small_moe(num_hidden_layers=4))])
def test_memory_of_copies_is_that_of_layouts_with_their_coefficients(scenario: Scenario) -> None:
    layouts = [
        layout_of(scenario, micro_batch_size=size, recompute=mode) for size in (1, 2) for mode in ("none", "full")
    ]
    names = priors("memory")
    values = np.tile([[0.7 * prior.low + 0.3 * prior.high] for prior in names.values()], 4) * np.linspace(0.9, 1.1, 4)
    moved = replace(scenario, coefficients=replaced(scenario.coefficients, "memory", list(names), values))
    each, kept = np.array([3, 0, 1, 1]), (training_state, stage_activations, activations_in_flight)
    shared = memory_by_stage(Pricing(scenario, block_of(layouts)).copies(each, moved, *kept))
    alone = memory_by_stage(Pricing(moved, block_of([layouts[at] for at in each])))
    assert np.array_equal(shared.need, alone.need)
    assert np.array_equal(shared.outside.total, alone.outside.total)


class NoCalibration:
    """Stands in for one, by its name alone."""

    name = "none"

    def coefficients(self) -> Any: ...
    def judged(self, scenario: Any, estimates: Any) -> Any: ...
    def difference_half_widths(self, alternatives: Any) -> Any: ...
    def likely_to_fit(self, scenario: Any, priced: Any, index: Any, probability: float) -> Any: ...


class Pair(NamedTuple):
    first: Array
    second: Array


def test_what_depends_on_work_or_sizes_is_computed_for_each_kind_alone() -> None:
    seen: list[tuple[str, int]] = []

    @of_work
    def work(pricing: Pricing, factor: float = 1.0) -> Array:
        seen.append(("work", len(pricing)))
        return factor * pricing.block.micro_batch_size

    @of_sizes
    def sizes(pricing: Pricing) -> Pair:
        seen.append(("sizes", len(pricing)))
        return Pair(pricing.block.micro_batch_size, pricing.block.data_parallel)

    @derived
    def own(pricing: Pricing) -> Array:
        seen.append(("own", len(pricing)))
        return pricing.block.micro_batch_size

    whole = block(micro_batch_size=[2, 2, 4, 4], data_parallel=[8, 8, 8, 8])
    kinds = Alike(whole.take(np.array([0, 2])), np.array([0, 0, 1, 1]))
    one = Alike(whole.take(np.array([2])), np.array([0, 0, 0, 0]))
    priced = Pricing(DENSE, whole.block, sizes=kinds, work=one)
    for _ in range(2):
        assert work(priced).tolist() == [4, 4, 4, 4]
        assert work(priced, 3.0).tolist() == [12, 12, 12, 12]
        assert [part.tolist() for part in sizes(priced)] == [[2, 2, 4, 4], [8, 8, 8, 8]]
        assert own(priced).tolist() == [2, 2, 4, 4]
    # Each once, and with other arguments once more.
    assert seen == [("work", 1), ("work", 1), ("sizes", 2), ("own", 4)]
    # Without kinds of work those of sizes serve; without either each layout is by itself.
    by_sizes, bare = Pricing(DENSE, whole.block, sizes=kinds), Pricing(DENSE, whole.block)
    assert work(by_sizes).tolist() == work(bare).tolist() == [2, 2, 4, 4]
    assert seen[-2:] == [("work", 2), ("work", 4)]
    assert bare.kinds_of_work is bare
    assert priced.kinds_of_work is one.pricing
    assert by_sizes.kinds_of_work is kinds.pricing
    assert bare.spread_work(np.array([1.0])).tolist() == [1]
    assert priced.spread_work(np.array([7.0])).tolist() == [7] * 4


def test_chosen_layouts_keep_their_kinds() -> None:
    whole = block(micro_batch_size=[2, 2, 4, 4])
    kinds = Alike(whole.take(np.array([0, 2])), np.array([0, 0, 1, 1]))
    priced = Pricing(DENSE, whole.block, sizes=kinds, work=kinds, passes=kinds)
    some = priced.take(np.array([3, 2, 1]))
    assert some.block.micro_batch_size.tolist() == [4, 4, 2]
    for shared in (some.work, some.sizes, some.passes):
        assert shared is not None
        assert (shared.pricing, shared.index.tolist()) == (kinds.pricing, [1, 1, 0])
    changed = priced.changed(zero_stage=np.array([0.0, 1, 2, 3]))
    assert changed.block.zero_stage.tolist() == [0, 1, 2, 3]
    assert (changed.work, changed.sizes) == (kinds, kinds)


def test_a_layout_that_was_asked_about_lately_comes_with_its_figures() -> None:
    layout = layout_of(DENSE)
    first = pricing_of(DENSE, layout)
    assert pricing_of(DENSE, layout) is first
    assert pricing_of(DENSE, layout_of(DENSE, micro_batch_size=2)) is not first
    # An equal scenario may have another calibration, which intervals need.
    other = replace(DENSE, calibration=NoCalibration())
    again = pricing_of(other, layout)
    assert again.scenario is other
    assert pricing_of(DENSE, layout, layout_of(DENSE, micro_batch_size=2)).block.micro_batch_size.tolist() == [1, 2]


def test_layouts_of_any_shape_come_in_blocks_of_one() -> None:
    given = [
        layout_of(DENSE),
        layout_of(DENSE, pipeline_parallel=2),
        layout_of(DENSE, micro_batch_size=2),
        layout_of(DENSE, pipeline_parallel=2, virtual_stages=2),
        layout_of(DENSE, recompute="full", recompute_method="list", recompute_layer_list=(0,)),
    ]
    found = {tuple(positions): pricing for positions, pricing in pricings_of(DENSE, given)}
    # Equal chunks share a block with plain ranks; a list of layers has one of its own.
    assert set(found) == {(0, 2), (1, 3), (4,)}
    assert found[1, 3].block.virtual_stages.tolist() == [1, 2]
    # Chunks of a dense layer and experts are not equal parts of their rank, nor are those that are listed.
    moe = scenario_of(small_moe(num_hidden_layers=4))
    piped = [layout_of(moe, pipeline_parallel=2, virtual_stages=chunks) for chunks in (1, 2)]
    assert [positions for positions, _ in pricings_of(moe, piped)] == [[0], [1]]
    listed = [
        layout_of(DENSE, pipeline_parallel=2, virtual_stages=chunks, recompute="full", recompute_layer_list=(1,))
        for chunks in (1, 2)
    ]
    assert [positions for positions, _ in pricings_of(DENSE, listed)] == [[0], [1]]


def test_policies_of_selective_recompute_and_where_they_are() -> None:
    layouts: list[dict[str, Any]] = [
        *({}, {"recompute": "full"}, {"recompute": "selective"}, {"recompute": "attention"}),
        *({"recompute": "selective", "recompute_modules": ("mlp", "core_attn")}, {"recompute": "selective"}),
    ]
    pricing = Pricing(DENSE, block_of([layout_of(DENSE, **one) for one in layouts]))
    found = [(mode, modules, where.tolist()) for mode, modules, where in recomputed_inside(pricing)]
    assert found == [
        ("selective", ("core_attn",), [False, False, True, False, False, True]),
        ("selective", ("core_attn", "mlp"), [False, False, False, False, True, False]),
        ("attention", ("core_attn",), [False, False, False, True, False, False]),
    ]
    assert layer_bytes(pricing, DENSE.model.layer_kinds[0])[0] > layer_bytes(pricing, DENSE.model.layer_kinds[0])[3]


def test_a_block_is_shown_without_its_figures() -> None:
    pricing = block(micro_batch_size=[1])
    memory_by_stage(pricing)
    assert pricing.figures
    assert "figures" not in repr(pricing)


def test_a_mixed_cluster_is_priced_as_if_of_each_kind() -> None:
    kinds = [load_hardware(name) for name in ("h100-sxm-80g", "a100-sxm-80g")]
    mixed = replace(DENSE, devices=16, groups=tuple(NodeGroup(kind, 8) for kind in kinds))
    pricing = Pricing(mixed, block_of([layout_of(mixed, pipeline_parallel=2)]))
    assert [one.scenario.hardware.name for one in pricing.members] == ["h100-sxm-80g", "a100-sxm-80g"]
    assert pricing.members is pricing.members
    alone = block(micro_batch_size=[1])
    assert alone.members == (alone,)


def test_the_memory_of_chosen_layouts() -> None:
    """More layouts than ranks, and as many: what belongs to layouts is chosen, what belongs to ranks stays."""
    for count in (2, 3):
        sizes = [1, 2, 4][:count]
        pricing = Pricing(
            DENSE, block_of([layout_of(DENSE, pipeline_parallel=2, micro_batch_size=one) for one in sizes])
        )
        whole, index = memory_by_stage(pricing), np.array([1, 0])
        chosen, alone = whole.take(index), memory_by_stage(pricing.take(index))
        assert np.array_equal(chosen.device, alone.device)
        assert np.array_equal(chosen.moment, alone.moment)
        for name, size in alone.parts().items():
            assert np.array_equal(chosen.parts()[name], size), name
