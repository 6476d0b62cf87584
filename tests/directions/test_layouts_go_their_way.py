"""Every choice of a layout and every field of a workload moves the figures that it names, its way, and no other."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.question.scenario.block import block_of
from simulator.question.scenario.inputs import WORKLOAD
from simulator.question.scenario.layout import FIELDS, Layout, default_cut
from simulator.question.vocabulary import OFFLOADS, RECOMPUTE_METHODS, RECOMPUTE_MODES, RECOMPUTE_MODULES, SCHEDULES
from tests.directions.layouts import LAYOUT, WORKLOADS, Choice
from tests.directions.questions import Figures, figures_of, scenario_of, signs

ASKED = (
    *("dense", "units", "deepspeed", "paddle", "experts", "experts in units", "latent deepspeed", "scans"),
    *("adapters", "adapters in units", "fp8", "unfused"),
)
WITH_EXPERTS = ("experts", "experts in units", "latent deepspeed")
WORKLOAD_FIELDS = {field.name for field in WORKLOAD}
REPLICAS = 8


@lru_cache(maxsize=1024)
def priced(question: str, given: tuple[tuple[str, Any], ...]) -> Figures:
    """The figures of one layout under every ZeRO stage, or its own; the largest of all ranks."""
    chosen = dict(given)
    workload = {name: chosen.pop(name) for name in WORKLOAD_FIELDS & set(chosen)}
    if question in WITH_EXPERTS:
        chosen = {"expert_parallel": REPLICAS} | chosen
    layout = Layout(**{"data_parallel": REPLICAS} | chosen)
    scenario = scenario_of(question, {}, devices=layout.devices, **workload)
    cut = layout.stage_layers or default_cut(scenario.model.num_hidden_layers, layout.pipeline_parallel)
    stages = (layout.zero_stage,) if "zero_stage" in chosen else range(4)
    whole = {"data_parallel": REPLICAS} | chosen | {"stage_layers": cut}
    block = block_of([Layout(**whole | {"zero_stage": stage}) for stage in stages])
    found = figures_of(Pricing(scenario, block))
    return {name: np.atleast_2d(figure).max(axis=0) for name, figure in found.items()}


def questions_of(given: Choice) -> tuple[str, ...]:
    if given.questions:
        return given.questions
    fields = given.before | given.after
    if any(name.startswith("expert") for name in fields):
        return WITH_EXPERTS
    if fields.keys() & {"stage_layers", "chunk_layers"}:
        return ("dense", "units", "paddle")  # of 32 layers
    return ASKED


def going_wrong(name: str, choices: tuple[Choice, ...]) -> Iterator[str]:
    for given in choices:
        moved: set[str] = set()
        for question in questions_of(given):
            both = (priced(question, tuple(sorted(fields.items()))) for fields in (given.before, given.after))
            for figure, found in signs(*both).items():
                way = given.moves.get(figure, "?" if figure == "passes" else None)
                moved |= {figure} if any(found.values()) else set()
                for sign, layouts in found.items():
                    if layouts and way not in ("?", sign):
                        told = f"{name} {given.before} -> {given.after}, {question}: {figure}"
                        yield f"{told} goes {sign} where it is {way}, ZeRO {layouts}"
        if still := set(given.moves) - moved:
            yield f"{name} {given.before} -> {given.after}: {still} stay"


def test_every_choice_has_its_way() -> None:
    assert set(LAYOUT) == {field.name for field in FIELDS}
    assert set(WORKLOADS) == WORKLOAD_FIELDS
    for choices in (*LAYOUT.values(), *WORKLOADS.values()):
        for given in choices:
            assert given.because or (given.moves and "?" not in given.moves.values())
    tried: dict[str, set[object]] = {}
    for choices in LAYOUT.values():
        for fields in (one for given in choices for one in (given.before, given.after)):
            for name, value in fields.items():
                tried.setdefault(name, set()).update(value if name == "recompute_modules" else (value,))
    assert tried["schedule"] == set(SCHEDULES)
    assert tried["recompute"] | {"none"} == set(RECOMPUTE_MODES)
    assert tried["recompute_modules"] == set(RECOMPUTE_MODULES)
    assert tried["recompute_method"] | {"uniform"} == set(RECOMPUTE_METHODS)
    assert tried["offload"] | {"none"} == set(OFFLOADS)


@pytest.mark.parametrize("name", LAYOUT)
def test_a_layout_goes_its_way(name: str) -> None:
    wrong = list(going_wrong(name, LAYOUT[name]))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_goes_its_way(name: str) -> None:
    wrong = list(going_wrong(name, WORKLOADS[name]))
    assert not wrong, "\n".join(wrong)
