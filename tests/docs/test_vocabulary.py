"""Every name that the program uses is explained once, in the glossary or where it points, so that none falls behind."""

import dataclasses
import inspect
import re
from collections import Counter
from typing import get_args

import click
import pytest

from simulator.api import scenario_of
from simulator.cost.derived import pricing_of
from simulator.cost.memory.moments import MomentName
from simulator.cost.pricing.estimate import Coverage
from simulator.question.coefficients import MemoryCoefficients, TimeCoefficients
from simulator.question.frameworks.profile import switches
from simulator.question.scenario.layout import Layout
from simulator.question.specs.documents import Frozen
from simulator.question.specs.hardware import DeviceLink, HardwareSpec, Network, PeakFlops
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import Precision
from simulator.search.build import estimate_layout
from simulator.search.space import Space
from simulator.show.cli.main import cli
from tests.cli.running import run
from tests.docs.pages import code_words, first_cells, page
from tests.docs.worked_example import Example
from tests.memory.counted import layer_tensors

GLOSSARY = page("glossary.md")
CELLS = first_cells(GLOSSARY)
SEVERAL = {word for cell in CELLS if "`, `" in cell for word in cell.split(", ")}
"""Words of the rows that explain more than one."""


def fields(*kinds: type) -> set[str]:
    return {f.name for kind in kinds for f in dataclasses.fields(kind)}


def defined(name: str, kind: str = "") -> bool:
    """Whether the glossary has a row for a name, or for the name of that kind where two things share it."""
    return f"`{name}`" in CELLS or f"`{name}` {kind}".strip() in CELLS or f"`{name}`" in SEVERAL


@pytest.mark.parametrize("name", sorted(fields(Layout, Space)))
def test_layout_field_is_defined(name: str) -> None:
    assert defined(name)


def test_switches_are_explained_by_their_command() -> None:
    shown = run("frameworks").stdout
    assert [f.name for f in switches() if f.name not in shown] == []


def test_coefficients_are_in_a_formula() -> None:
    text = page("model.md")
    assert [name for name in sorted(fields(MemoryCoefficients, TimeCoefficients)) if name not in text] == []


def test_parts_and_moments_are_defined() -> None:
    estimate = Example().estimate
    missing = [name for name in (*estimate.memory.parts_bytes, *get_args(MomentName)) if not defined(name)]
    missing += [name for name in estimate.memory.outside_parts_bytes if not defined(name)]
    missing += [name for name in estimate.throughput.parts_seconds if not defined(name, "time")]
    assert missing == []


def test_statuses_are_defined() -> None:
    assert [status for status in get_args(Coverage) if not defined(status)] == []


def test_a_keyword_of_a_question_is_an_option() -> None:
    options = {option for param in cli.commands["rank"].params for option in param.opts}
    names = set(inspect.signature(scenario_of).parameters) - {"options"}
    assert {f"--{name.replace('_', '-')}" for name in names} <= options


def test_nothing_is_defined_twice() -> None:
    assert [cell for cell, count in Counter(CELLS).items() if count > 1] == []


def test_options_exist_and_are_complete() -> None:
    asked = {
        option
        for param in cli.commands["rank"].params
        if isinstance(param, click.Option) and getattr(param, "section", "") == "Layout"
        for option in param.opts
    }
    named = {word for word in code_words(GLOSSARY) if re.fullmatch(r"--[a-z-]+", word)}
    assert named == asked


def layouts() -> list[tuple[str, dict[str, str], Layout]]:
    """Scenarios that together keep every kind of tensor."""
    plain: dict[str, str] = {}
    sequence = Layout(tensor_parallel=2, sequence_parallel=True, context_parallel=2)
    switched = {"flash_attention": "false", "rope_tables_per_call": "true", "fused_swiglu": "false"}
    apart = {"keep_qkv_output": "false", "fused_rms_norm": "false"}
    return [
        ("llama3.1-8b", plain, sequence),
        ("qwen3-8b", switched | apart, Layout()),
        ("qwen3-30b-a3b", switched, Layout()),
        ("deepseek-v3", switched, Layout()),
    ]


TRAINED: tuple[tuple[Precision, int | None], ...] = (("bf16", None), ("fp8", 8))


def test_kept_tensors_are_described() -> None:
    described = code_words(page("model.md"))
    missing = set()
    for model, options, layout in layouts():
        for precision, rank in TRAINED:
            scenario = scenario_of(model=model, options=options, precision=precision, lora_rank=rank)
            for kind in scenario.model.layer_kinds:
                missing |= set(layer_tensors(pricing_of(scenario, layout), kind)) - described
    assert missing == set()


@pytest.mark.parametrize("kind", [HardwareSpec, DeviceLink, Network, PeakFlops, ModelSpec])
def test_spec_field_is_described(kind: type[Frozen]) -> None:
    described = code_words(page("add-hardware-or-model.md"))
    names = set(map(kind.key, kind.field_types()))
    assert names - described == set()


def test_verdicts_are_defined() -> None:
    assert defined(estimate_layout(Example().scenario, Example().layout).verdict)
    assert all(defined(word) for word in ("fits", "starved", "does_not_fit", "refused"))
