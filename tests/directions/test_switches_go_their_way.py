"""Every switch moves the figures that its documents name, their way, and no other figure."""

from collections.abc import Iterator

import pytest

from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.profiles import PROFILES
from tests.directions.questions import QUESTIONS, Figure, Sign, figures, signs
from tests.directions.switches import SWITCHES, Course

META = {field.name: field.metadata for field in switches()}


def movements(name: str, course: Course) -> Iterator[tuple[str, str, Figure, Sign, set[int]]]:
    """Question, values, figure and sign with the layouts that move so, for every question that has the values."""
    for before, after in zip(course.values, course.values[1:], strict=False):
        for question, asked in QUESTIONS.items():
            if name == "optimizer" and not {before, after} <= set(PROFILES[asked.profile].limits.optimizers):
                continue
            both = (
                figures(question, tuple(sorted({**course.beside, name: value}.items()))) for value in (before, after)
            )
            for figure, found in signs(*both).items():
                yield from ((question, f"{before} -> {after}", figure, sign, at) for sign, at in found.items() if at)


def test_every_switch_has_its_way() -> None:
    assert set(SWITCHES) == {field.name for field in switches()}
    for name, courses in SWITCHES.items():
        named = {part for course in courses for value in course.values for part in value.split(",")}
        truth = isinstance(getattr(FrameworkProfile(name=""), name), bool)
        assert {"false", "true"} <= named if truth else set(META[name]["choices"]) <= named, name
        for course in courses:
            assert course.because or (course.moves and "?" not in course.moves.values()), name


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_goes_its_way(name: str) -> None:
    wrong: list[str] = []
    for course in SWITCHES[name]:
        moved = set()
        for question, values, figure, sign, layouts in movements(name, course):
            way = course.moves.get(figure)
            held = {at for at in layouts if not course.spared(question, QUESTIONS[question].layouts[at])}
            if way is None or (way not in ("?", sign) and held):
                wrong.append(f"{name} {values}, {question}: {figure} goes {sign} where it is {way}: layouts {held}")
            moved.add(figure)
        if still := set(course.moves) - moved:
            wrong.append(f"{name} {' '.join(course.values)}: {still} stay")
    assert not wrong, "\n".join(wrong)
