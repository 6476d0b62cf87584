"""The fewest recomputed layers, solved for many layouts at once, against needs that are given layout by layout.

Twelve layers on one rank, or on two with two chunks: a chunk has 12 or 3 layers. What is enough is told by the test, so
that no formula of memory takes part.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import FITS, Sized, size
from simulator.question.arrays import Mask
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.search import rank as partial
from simulator.search.rank import raised, searches_partial, solved
from simulator.search.space import Space
from tests.scenario.cases import layout_of, load_hardware, scenario_of, small_dense

NOTHING = {"recompute": "none"}
ALL = {"recompute": "full"}
FIRST = {"recompute": "full", "recompute_method": "block"}


def twelve(**fields: Any) -> Scenario:
    return scenario_of(small_dense(num_hidden_layers=12), devices=8, global_batch_size=4096, **fields)


def pricing_of(scenario: Scenario, layouts: list[dict[str, Any]], **shape: Any) -> Pricing:
    """A block; the size of a micro batch tells its layouts apart."""
    made = [layout_of(scenario, **shape, micro_batch_size=at + 1, **layout) for at, layout in enumerate(layouts)]
    return Pricing(scenario, block_of(made))


def enough(needs: list[int]) -> Callable[[Sized], Mask]:
    """Whether as many layers are recomputed as each layout needs; 0 where none has to be."""

    def passes(sized: Sized) -> Mask:
        layers = np.where(sized.pricing.recomputes("none"), 0.0, sized.block.recompute_layers)
        wanted = np.array(needs)[sized.block.micro_batch_size.astype(int) - 1]
        return np.asarray(layers >= wanted)

    return passes


def layouts_of(sized: Sized | None) -> list[Layout]:
    return [] if sized is None else [sized.block.layout(at) for at in range(len(sized.pricing))]


@pytest.fixture(params=[256, 1], ids=["every number at once", "by halves"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for limit in ("_PRICED_AT_ONCE", "_SIZED_AT_ONCE"):
        monkeypatch.setattr(partial, limit, request.param)
    size_at_once: int = request.param
    return size_at_once


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("already", "needs", "expected"),
    [
        # None to twelve: 12 would be all layers, and 13 more than there are; those are left out.
        ([NOTHING] * 6, [1, 2, 7, 11, 12, 13], {1: 1, 2: 2, 3: 7, 4: 11}),
        # Layouts that recompute some already take more of them.
        (
            [
                FIRST | {"recompute_layers": 3},
                FIRST | {"recompute_layers": 3},
                NOTHING,
                FIRST | {"recompute_layers": 10},
            ],
            [4, 9, 5, 11],
            {1: 4, 2: 9, 3: 5, 4: 11},
        ),
        ([NOTHING], [12], {}),
        ([NOTHING], [6], {1: 6}),
    ],
)
def test_failing_layouts_are_raised_to_the_fewest_that_pass(
    already: list[dict[str, Any]], needs: list[int], expected: dict[int, int]
) -> None:
    found = layouts_of(raised(pricing_of(twelve(), already), enough(needs)))
    assert {one.micro_batch_size: one.recompute_layers for one in found} == expected
    assert all((one.recompute, one.recompute_method) == ("full", "block") for one in found)
    assert all(one.recompute_modules == BY_NAME["recompute_modules"].default for one in found)


@pytest.mark.usefixtures("at_once")
def test_a_number_is_one_of_a_chunk_s_layers() -> None:
    """Two chunks of each of two ranks have three layers: one and two are some of them, three are all."""
    shape = {"pipeline_parallel": 2, "virtual_stages": 2}
    found = layouts_of(raised(pricing_of(twelve(), [NOTHING] * 4, **shape), enough([1, 2, 3, 4])))
    assert {one.micro_batch_size: one.recompute_layers for one in found} == {1: 1, 2: 2}
    # Of unequal chunks the largest counts: five layers.
    listed = {"pipeline_parallel": 2, "virtual_stages": 2, "chunk_layers": (1, 3, 5, 3), "stage_layers": (6, 6)}
    found = layouts_of(raised(pricing_of(twelve(), [NOTHING] * 3, **listed), enough([3, 4, 5])))
    assert {one.micro_batch_size: one.recompute_layers for one in found} == {1: 3, 2: 4}


@pytest.mark.usefixtures("at_once")
def test_of_a_single_layer_there_is_no_part() -> None:
    scenario = scenario_of(small_dense(num_hidden_layers=1), devices=8)
    assert raised(pricing_of(scenario, [NOTHING]), enough([1])) is None
    scenario = scenario_of(small_dense(num_hidden_layers=2), devices=8)
    assert [one.recompute_layers for one in layouts_of(raised(pricing_of(scenario, [NOTHING]), enough([1])))] == [1]


def test_the_figures_are_those_of_the_solved_numbers(at_once: int) -> None:
    scenario, needs = twelve(), [1, 5, 11, 9]
    found = raised(pricing_of(scenario, [NOTHING] * 4), enough(needs))
    assert found is not None
    again = size(Pricing(scenario, block_of(layouts_of(found))))
    assert np.array_equal(found.device_bytes, again.device_bytes)
    assert np.array_equal(found.verdict, again.verdict)
    assert at_once


def tight(bytes_free: float) -> Scenario:
    """A device on which so many bytes can be used."""
    machine = load_hardware("z2000")
    usable = replace(machine.usable_memory, value=f"{bytes_free} B")
    return twelve(hardware=replace(machine, usable_memory=usable), seq_length=4096)


def needs_of(scenario: Scenario, layout: Layout) -> list[float]:
    """What the layout needs with none, one, two ... and all layers recomputed."""
    numbers = [replace(layout, recompute="none")]
    numbers += [
        replace(layout, recompute="full", recompute_method="block", recompute_layers=count) for count in range(1, 12)
    ]
    numbers.append(replace(layout, recompute="full"))
    return [float(size(Pricing(scenario, block_of([one]))).need_bytes[0]) for one in numbers]


@pytest.mark.usefixtures("at_once")
def test_what_fits_only_with_recompute_has_as_little_as_fits() -> None:
    """A device with room for what the second micro batch needs with five layers recomputed, and not with four."""
    roomy = twelve(seq_length=4096)
    layouts = [layout_of(roomy, micro_batch_size=size_of) for size_of in (1, 2, 4)]
    values = roomy.coefficients.memory
    of_two = needs_of(roomy, layouts[1])
    room = (of_two[4] + of_two[5]) / 2 / values.starved_from
    scenario = tight(room)
    expected = {}
    for layout in layouts:
        fits = [need <= values.starved_from * room for need in needs_of(scenario, layout)]
        if fits[-1] and not fits[0] and 0 < fits.index(True) < 12:
            expected[layout.micro_batch_size] = fits.index(True)
    assert expected[2] == 5
    every = [replace(layout, recompute=mode) for layout in layouts for mode in ("none", "selective", "full")]
    sized = size(Pricing(scenario, block_of(every)))
    found = solved(sized)
    assert {one.micro_batch_size: one.recompute_layers for one in layouts_of(found)} == expected
    assert found is not None
    assert (found.verdict == FITS).all()
    # Where nothing is recomputed in full, or nothing of that fits, nothing is solved.
    assert solved(sized.take(np.flatnonzero(~sized.pricing.recomputes("full")))) is None
    assert solved(size(Pricing(tight(1e6), block_of(every)))) is None


def tried(monkeypatch: pytest.MonkeyPatch, at_once: int) -> list[list[int]]:
    """Layers that are recomputed in what is priced, price by price, from now on; so many layouts are priced at once."""
    for limit in ("_PRICED_AT_ONCE", "_SIZED_AT_ONCE"):
        monkeypatch.setattr(partial, limit, at_once)
    found: list[list[int]] = []

    def noted(pricing: Pricing) -> Sized:
        layers = np.where(pricing.recomputes("none"), 0.0, pricing.block.recompute_layers)
        # What recomputes nothing has the number of a layout that says none.
        assert (pricing.block.recompute_layers >= 1.0).all()
        found.append([int(one) for one in layers])
        return size(pricing)

    monkeypatch.setattr(partial, "size", noted)
    return found


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [
        # All but twelve, which would be all layers, fit into one price.
        (12, [[*range(1, 12)]]),
        (11, [[*range(1, 12)]]),
        # Else as many equal parts, rounded down, as fit; the last price has the end of an earlier one again.
        (4, [[2, 4, 7, 9], [5, 6, 7]]),
        (3, [[3, 6, 9], [7, 8, 9]]),
        (2, [[4, 8], [5, 6], [7, 8]]),
        (1, [[6], [9], [7]]),
    ],
)
def test_which_numbers_are_tried(monkeypatch: pytest.MonkeyPatch, at_once: int, expected: list[list[int]]) -> None:
    found = tried(monkeypatch, at_once)
    assert [one.recompute_layers for one in layouts_of(raised(pricing_of(twelve(), [NOTHING]), enough([7])))] == [7]
    assert found == expected


@pytest.mark.parametrize(
    ("at_once", "expected"),
    [(20, [[*range(12)]]), (4, [[1, 4, 6, 9], [2, 3, 4]]), (1, [[5], [2], [3]])],
)
def test_which_numbers_are_tried_where_all_fit(
    monkeypatch: pytest.MonkeyPatch, at_once: int, expected: list[list[int]]
) -> None:
    """None is one of them: a device with room for what three layers need, and not two."""
    roomy = twelve(seq_length=4096)
    needs = needs_of(roomy, layout_of(roomy))
    scenario = tight((needs[2] + needs[3]) / 2 / roomy.coefficients.memory.starved_from)
    sized = size(pricing_of(scenario, [ALL]))
    found = tried(monkeypatch, at_once)
    assert [one.recompute_layers for one in layouts_of(solved(sized))] == [3]
    assert found == expected
    # Of what does not fit with all layers recomputed, no number is tried.
    found.clear()
    assert solved(size(pricing_of(tight(1e6), [ALL]))) is None
    assert found == []


def test_how_many_layouts_are_priced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as take about as long as one: 256, all fifteen numbers of sixteen layouts, or one of 129."""
    sixteen = replace(twelve(), model=small_dense(num_hidden_layers=16))
    found = tried(monkeypatch, partial._PRICED_AT_ONCE)
    raised(pricing_of(sixteen, [NOTHING] * 16), enough([3] * 16))
    assert [len(one) for one in found] == [240]
    ten = FIRST | {"recompute_layers": 10}
    for count, prices in ((128, [128]), (129, [129])):
        found.clear()
        raised(pricing_of(twelve(), [ten] * count), enough([11] * count))
        assert [len(one) for one in found] == prices


@pytest.mark.parametrize(
    ("space", "open_"),
    [
        ({}, True),
        ({"tensor_parallel": (2,), "micro_batch_size": (1,)}, True),
        ({"recompute": ("full",)}, False),
        ({"recompute_modules": ("mlp",)}, False),
        ({"recompute_method": ("block",)}, False),
        ({"recompute_layers": (2,)}, False),
        ({"recompute_layer_list": (0,)}, False),
    ],
)
def test_numbers_are_solved_where_recompute_is_left_open(space: dict[str, Any], open_: bool) -> None:
    assert searches_partial(twelve(), Space(**space)) is open_
    assert not searches_partial(twelve(profile="torch"), Space(**space))
