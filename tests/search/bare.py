"""Estimates without advice, for tests of what follows from their figures."""

from typing import Any

import pytest

from simulator import api
from simulator.cost.pricing.estimate import Estimate


def without_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out of each estimate what other values of its switches are worth, which `tests/search` looks at."""

    def as_it_is(_scenario: object, estimate: Estimate, *_: Any) -> Estimate:
        return estimate

    monkeypatch.setattr(api, "with_switches", as_it_is)
