"""Settings without effect: what a user said that moves no byte of any moment and no second, and what it acts beside.

Each is found by pricing the question without it: none has to be listed to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from simulator.answers.cases import Case, case_of, case_of_estimate, priceable, scenario_of_run
from simulator.cost.derived import pricing_of
from simulator.cost.memory.host import host_memory, loading_bytes, saving_bytes
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import price
from simulator.errors import SimulateError
from simulator.question.frameworks.profile import acts_beside, switches
from simulator.question.question import Question
from simulator.question.scenario.inputs import BY_INPUT
from simulator.question.scenario.layout import BY_NAME, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import NARROW
from simulator.records import replace
from simulator.search.rules import RULES

_SUBJECT: Final = frozenset(("model", "hardware", "nodes", "devices", "framework", "stack", "calibration"))
"""Inputs that say what is priced."""
_SWITCHES: Final = {field.name: field.default for field in switches()}
_RANGES: Final = "unmeasured_runtime"  # switch that widens ranges alone


def without_effect(case: Case) -> Iterator[str]:
    """Yield a sentence on each setting of the user that changes no figure; none on one that says the default."""
    scenario, layout = scenario_of_run(case), case.layout
    usual: tuple[object, ...] | None = None
    for name, spelled, question in _each_left_out(case.question):
        try:
            other = priceable(case_of(question))
        except SimulateError:
            continue  # the others need it
        changed = scenario_of_run(other)
        if name == _RANGES or (other.layout == layout and _values(changed) == _values(scenario)):
            continue
        usual = _figures(scenario, layout) if usual is None else usual
        if _figures(changed, other.layout) == usual:
            needs = (need for need in acts_beside().get(name, ()) if not _is_met(need, scenario, layout))
            lacks = " and ".join(need.replace("|", " or ") for need in needs)
            yield f"{spelled} has no effect {f'without {lacks}' if lacks else 'on this model and layout'}"


def without_effect_on_all(estimates: Iterable[Estimate]) -> Iterator[str]:
    """Yield the sentences that are true of each estimate."""
    first, *others = map(case_of_estimate, estimates)
    for sentence in without_effect(first):
        if all(sentence in without_effect(case) for case in others):
            yield sentence


def _each_left_out(question: Question) -> Iterator[tuple[str, str, Question]]:
    """Yield each setting of the user, its option, and the question without it: the recipe's value counts again."""
    base = Question() if question.recipe is None else Question.of_recipe(question.recipe)
    for group in ("inputs", "layout", "switches"):
        values: Mapping[str, Any] = getattr(question, group)
        for name, stated in values.items():
            if not stated.origin.is_user or name in _SUBJECT:
                continue
            own = {each: value for each, value in getattr(base, group).items() if each == name}
            others = {each: value for each, value in values.items() if each != name}
            yield name, _spelled(name, stated.value), replace(question, **{group: {**others, **own}})


def _spelled(name: str, value: object) -> str:
    """Return a setting as an option of the command line."""
    setting: Any = BY_NAME.get(name) or BY_INPUT.get(name)
    if setting is None:
        return f"--option {name}={value}"
    if setting.kind == "flag":
        return str(setting.option if value else f"--no-{setting.option.removeprefix('--')}")
    return f"{setting.option} {_text(value)}"


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _values(scenario: Scenario) -> Scenario:
    """Return a scenario without who said its switches."""
    return replace(scenario, framework=replace(scenario.framework, stated=frozenset(), stack_assumed=False))


def _figures(scenario: Scenario, layout: Layout) -> tuple[object, ...]:
    """Return all figures of a layout: rules that it breaks, bytes by moment, on device and host, seconds by part."""
    pricing = pricing_of(scenario, layout)
    priced = price(pricing)
    memory, step = priced.memory, priced.step
    unloaded = replace(scenario, framework=replace(scenario.framework, loads_on_host="none"))
    figures = [
        *(moment.total(memory.contents) for moment in memory.moments),
        *(memory.device, memory.after_step, memory.outside.total, memory.need),
        *(loading_bytes(pricing), saving_bytes(pricing)),
        *host_memory(pricing_of(unloaded, layout), memory).parts.values(),
        *(step.total, *step.parts(pricing).values()),
    ]
    broken = (rule.id for rule in RULES if rule.broken(pricing).any())
    return (*broken, *(np.asarray(figure).tobytes() for figure in figures))


def _is_met(need: str, scenario: Scenario, layout: Layout) -> bool:
    """Return whether a question has what a setting acts beside: a field's value, or another than its default."""
    if "|" in need:
        return any(_is_met(each, scenario, layout) for each in need.split("|"))
    name, _, text = need.partition("=")
    if name == "experts":
        return scenario.model.is_moe
    if name == "fp8":
        return scenario.precision in NARROW
    owner: Any = next(each for each in (scenario.framework, layout, scenario) if hasattr(each, name))
    value = getattr(owner, name)
    if text or isinstance(value, bool):
        return _text(value) == (text or "true")
    usual = {"zero_stage": 0, **_SWITCHES}.get(name, BY_NAME[name].default if name in BY_NAME else None)
    return bool(value != usual)
