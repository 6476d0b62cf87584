"""Settings without effect: what a user said that moves no byte of any moment and no second, and what it acts beside.

Each is found by pricing the question without it: none has to be listed to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
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
from simulator.search.alternatives import option_text
from simulator.search.rules import RULES

_PASSED_OVER: Final = frozenset(
    ("model", "hardware", "nodes", "devices", "framework", "stack", "calibration", "unmeasured_runtime")
)  # inputs that say what is priced, and the switch that widens ranges alone
_USUAL: Final[dict[str, Any]] = {
    **{field.name: field.default for field in switches()},
    **{name: field.default for name, field in BY_NAME.items()},
    "zero_stage": 0,
}  # values without which others do not act


def without_effect(case: Case) -> Iterator[str]:
    """Yield a sentence on each setting of the user that changes no figure; none on one that says the default."""
    scenario, layout = scenario_of_run(case), case.layout
    figures = cache(partial(_figures, scenario, layout))
    for name, question in _each_left_out(case.question):
        try:
            other = priceable(case_of(question))
        except SimulateError:
            continue  # the others need it
        changed = scenario_of_run(other)
        is_default = other.layout == layout and _unsaid(changed) == _unsaid(scenario)
        if not is_default and _figures(changed, other.layout) == figures():
            needs = (need for need in acts_beside().get(name, ()) if not _is_met(need, scenario, layout))
            lacks = " and ".join(" or ".join(map(_need_spelled, need.split("|"))) for need in needs)
            why = f"without {lacks}" if lacks else "on this model and layout"
            yield f"{_spelled(case.question, name)} has no effect {why}"


def without_effect_on_all(estimates: Iterable[Estimate]) -> Iterator[str]:
    """Yield the sentences that are true of each estimate."""
    first, *others = map(case_of_estimate, estimates)
    sentences = [*without_effect(first)]
    for case in others:
        true = {*without_effect(case)} if sentences else frozenset[str]()
        sentences = [each for each in sentences if each in true]
    yield from sentences


def _each_left_out(question: Question) -> Iterator[tuple[str, Question]]:
    """Yield each setting of the user and the question without it, in which a recipe's value counts again."""
    base = Question() if question.recipe is None else Question.of_recipe(question.recipe)
    for group in ("inputs", "layout", "switches"):
        values, earlier = getattr(question, group), getattr(base, group)
        for name in (each for each in values if values[each].origin.is_user and each not in _PASSED_OVER):
            own = {each: value for each, value in earlier.items() if each == name}
            others = {each: value for each, value in values.items() if each != name}
            yield name, replace(question, **{group: {**others, **own}})


def _spelled(question: Question, name: str) -> str:
    """Return a setting as an option of the command line."""
    setting = BY_NAME.get(name) or BY_INPUT.get(name)
    if setting is None:
        return f"--option {name}={question.options[name]}"
    value = (question.inputs.get(name) or question.layout.get(name) or question.switches[name]).value
    return " ".join(setting.words(value))


def _need_spelled(need: str) -> str:
    """Return what a setting acts beside as an option of the command line; experts are of the model."""
    name, _, text = need.partition("=")
    if name in ("experts", "fp8"):
        return "experts" if name == "experts" else "--precision fp8"
    setting = BY_NAME.get(name) or BY_INPUT.get(name)
    if setting is not None:
        return f"{setting.option} {text}".strip()
    return f"--option {name}={text or ('true' if isinstance(_USUAL[name], bool) else '...')}"


def _unsaid(scenario: Scenario) -> Scenario:
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
    if name in ("experts", "fp8"):
        return scenario.model.is_moe if name == "experts" else scenario.precision in NARROW
    value = next(getattr(each, name) for each in (scenario.framework, layout, scenario) if hasattr(each, name))
    if text or isinstance(value, bool):
        return option_text(value) == (text or "true")
    return bool(value != _USUAL.get(name))
