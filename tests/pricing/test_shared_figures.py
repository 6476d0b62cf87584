"""A layout asked about again gets the figures that were derived for it before, and never another question's."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from simulator import cost
from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.price import price
from simulator.question.frameworks.profile import switch_value, switches
from simulator.question.scenario.block import block_of
from simulator.question.scenario.lengths import Lengths
from simulator.search.build import estimates_of_block
from tests.directions.questions import block_of_question, figures_of
from tests.directions.questions import scenario_of as asked_scenario
from tests.directions.switches import SWITCHES
from tests.pricing.layouts import Case, cases
from tests.scenario.cases import ROUND, layout_of, scenario_of, small_moe

LENGTHS = Lengths(tokens=(512, 2048, 4096), weights=(0.5, 0.3, 0.2))


@settings(max_examples=40)
@given(case=cases())
def test_no_formula_changes_what_others_read(case: Case) -> None:
    fresh = Pricing(case.scenario, block_of((case.layout,)))
    first, again, alone = (
        estimates_of_block(price(pricing))[0]
        for pricing in (pricing_of(case.scenario, case.layout), pricing_of(case.scenario, case.layout), fresh)
    )
    assert first == again == alone


def test_another_calibration_or_other_coefficients_share_nothing() -> None:
    scenario = scenario_of(small_moe(), global_batch_size=16)
    layout = layout_of(scenario)
    first = pricing_of(scenario, layout)
    assert pricing_of(replace(scenario), layout) is first
    fitted: Any = object()
    calibrated = replace(scenario, calibration=fitted)
    assert calibrated == scenario
    assert pricing_of(calibrated, layout).scenario.calibration is fitted
    assert pricing_of(scenario, layout).scenario.calibration is None
    memory = replace(ROUND.memory, fragmentation=0.5)
    assert pricing_of(replace(scenario, coefficients=replace(ROUND, memory=memory)), layout) is not first
    assert pricing_of(replace(scenario, model=scenario.model.with_layers(6)), layout) is not first
    other = replace(layout, micro_batch_size=2)
    assert pricing_of(scenario, other) is not first
    assert pricing_of(scenario, layout, other) is pricing_of(scenario, layout, other)
    assert pricing_of(scenario, other, layout) is not pricing_of(scenario, layout, other)
    many = [layout] * 17
    assert pricing_of(scenario, *many) is not pricing_of(scenario, *many)


def test_threads_that_ask_the_same_get_the_same() -> None:
    scenario = scenario_of(small_moe(), global_batch_size=32)
    layouts = [
        layout_of(scenario, pipeline_parallel=ranks, micro_batch_size=size) for ranks in (1, 2) for size in (1, 2)
    ]
    alone = [price(Pricing(scenario, block_of((layout,)))) for layout in layouts]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda layout: price(pricing_of(scenario, layout)), layouts * 16))
    for number, shared in enumerate(found):
        own = alone[number % len(layouts)]
        assert shared.step.total.tolist() == own.step.total.tolist()
        assert shared.memory.device.tolist() == own.memory.device.tolist()


def test_what_another_thread_prices_meanwhile_is_taken_over_or_not() -> None:
    watched = Pricing(scenario_of(small_moe()), block_of([layout_of(scenario_of(small_moe()))])).watched
    price(watched)
    reads = vars(watched.figures)["reads"]

    class Meanwhile(set[str]):
        """What a figure read, which another thread adds to while it is looked at."""

        def __iter__(self) -> Any:
            reads["added"] = set[str]()
            return super().__iter__()

    reads["half"] = Meanwhile()  # noted, and not yet among the figures
    reads.update({key: Meanwhile(names) for key, names in reads.items()})
    other = watched.switched({"compiled": True})
    assert "added" in reads
    assert {"added", "half"}.isdisjoint(other.figures)
    assert len(other.figures) > 10


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("name", ["latent", "adapters in units", "paddle chunks"])
def test_figures_are_taken_over_where_they_read_no_switch_that_is_another(name: str, lengths: Lengths | None) -> None:
    scenario = replace(asked_scenario(name, {}), lengths=lengths)
    block, fields = block_of_question(name), {field.name: field for field in switches()}
    base = Pricing(scenario, block).watched
    price(base)
    for switch, courses in SWITCHES.items():
        texts = [{switch: text, **course.beside} for course in courses for text in course.values]
        for text in texts if lengths is None and name == "adapters in units" else texts[-1:]:
            profile = scenario.framework
            values: dict[str, Any] = {
                each: switch_value(fields[each], word, getattr(profile, each)) for each, word in text.items()
            }
            own = Pricing(replace(scenario, framework=replace(profile, **values)), block)
            found = figures_of(base.switched(values))
            for figure, expected in figures_of(own).items():
                np.testing.assert_array_equal(found[figure], expected, f"{figure} of {values}")


def test_what_is_remembered_of_conditions_notes_what_it_reads() -> None:
    """A plain cache of one would answer without a note, and `switched` would take over what its figures read."""
    plain = re.compile(r"@(?:lru_cache|cache)\b[^\n]*\ndef \w+\(\s*(?:conditions|profile|framework)\b")
    files = Path(cost.__file__).parent.rglob("*.py")
    found = {file.name: plain.findall(file.read_text(encoding="utf-8")) for file in files}
    assert len(found) > 20
    assert not any(found.values()), found
