"""Every switch moves the figures that its documents name, their way, and no other figure."""

from collections.abc import Iterator

import pytest

from simulator.cost.derived import Pricing
from simulator.question.frameworks.profile import FrameworkProfile, SwitchEffect, switches
from simulator.question.frameworks.stacks import PROFILES
from simulator.search.rules import RULES
from tests.directions.questions import (
    QUESTIONS,
    SHOWN_BY,
    WITNESSES,
    Figure,
    Sign,
    asked_of,
    block_of_question,
    figures,
    scenario_of,
    signs,
)
from tests.directions.switches import SWITCHES, Course

META = {field.name: field.metadata for field in switches()}


def movements(name: str, course: Course) -> Iterator[tuple[str, str, Figure, Sign, set[int]]]:
    """Question, values, figure and sign with the layouts that move so, for its questions that have the values."""
    for before, after in zip(course.values, course.values[1:], strict=False):
        for question, asked in asked_of(name).items():
            optimizers = {before, after} if name == "optimizer" else {course.beside.get("optimizer", "adamw")}
            if not optimizers <= set(PROFILES[asked.profile].limits.optimizers):
                continue
            both = (
                figures(question, tuple(sorted({**course.beside, name: value}.items()))) for value in (before, after)
            )
            for figure, found in signs(*both).items():
                yield from ((question, f"{before} -> {after}", figure, sign, at) for sign, at in found.items() if at)


EFFECTS: dict[Figure, tuple[SwitchEffect, ...]] = {
    **dict.fromkeys(("device", "state", "saved"), ("memory",)),
    "host": ("host",),
    "flop": ("passes", "step"),
    "passes": ("passes",),
    "seconds": ("passes", "step"),
}
"""The effects of which a switch has to name one where a figure moves."""


def allowed(name: str, course: Course, figure: Figure) -> bool:
    """Whether a switch may move a figure; its passes where it may move seconds and says that passes are what moves."""
    named = "seconds" if figure == "passes" else figure
    return named in course.moves and bool(set(EFFECTS[figure]) & set(META[name]["moves"]))


def broken(question: str, options: dict[str, str]) -> list[list[bool]]:
    """The rules that each layout breaks."""
    pricing = Pricing(scenario_of(question, options), block_of_question(question))
    return [rule.broken(pricing).tolist() for rule in RULES]


def test_every_switch_has_its_way() -> None:
    assert set(SWITCHES) == {field.name for field in switches()}
    assert {question for name in SWITCHES for question in asked_of(name)} == set(QUESTIONS) > WITNESSES
    assert SHOWN_BY.keys() <= SWITCHES.keys()
    for name, courses in SWITCHES.items():
        named = {part for course in courses for value in course.values for part in value.split(",")}
        truth = isinstance(getattr(FrameworkProfile(name=""), name), bool)
        assert {"false", "true"} <= named if truth else set(META[name]["choices"]) <= named, name
        for course in courses:
            assert course.because or (course.moves and "?" not in course.moves.values()), name


@pytest.mark.parametrize("name", [name for name, about in META.items() if "rules" not in about["moves"]])
def test_what_says_that_it_changes_no_rule_changes_none(name: str) -> None:
    for course in SWITCHES[name]:
        for question in QUESTIONS:
            first, *others = ({**course.beside, name: value} for value in course.values)
            assert all(broken(question, options) == broken(question, first) for options in others), question


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_goes_its_way(name: str) -> None:
    wrong: list[str] = []
    for course in SWITCHES[name]:
        moved = set()
        for question, values, figure, sign, layouts in movements(name, course):
            way = course.moves.get(figure)
            held = {at for at in layouts if not course.spared(question, QUESTIONS[question].layouts[at])}
            if not allowed(name, course, figure) or (way not in ("?", sign, None) and held):
                wrong.append(f"{name} {values}, {question}: {figure} goes {sign} where it is {way}: layouts {held}")
            moved.add(figure)
        if still := set(course.moves) - moved:
            told = f"{still} stay on {', '.join(asked_of(name))}; SHOWN_BY adds a question"
            wrong.append(f"{name} {' '.join(course.values)}: {told}")
    assert not wrong, "\n".join(wrong)
