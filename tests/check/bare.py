"""Verdicts and estimates without advice, for tests of what they say first."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from simulator.answers import ranking
from simulator.cost.pricing.estimate import Estimate
from simulator.recipes.check import judge


def without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes half of the time: what switches are worth, changes that help, how far a recipe could go.

    `tests/search`, `tests/check/test_patches.py` and `test_verdicts.py` look at those.
    """

    def as_it_is(estimate: Estimate, *_: Any) -> Estimate:
        return estimate

    monkeypatch.setattr(ranking, "with_switches", as_it_is)
    monkeypatch.setattr(judge, "changes_for", lambda *_: ())
    monkeypatch.setattr(judge, "room_of", lambda *_: None)


def without_open_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Price a layout with its own switches alone, not with each value that nobody said.

    `tests/answers/test_unsaid.py` looks at those.
    """

    def as_it_is(_question: object, estimate: Estimate, *_: Any, **__: Any) -> Estimate:
        return estimate

    monkeypatch.setattr(ranking, "over_open", as_it_is)
    monkeypatch.setattr(ranking, "likely_over_open", lambda *_: None)


@contextmanager
def no_advice() -> Iterator[None]:
    """The same for a block."""
    with pytest.MonkeyPatch.context() as patches:
        without_advice(patches)
        yield
