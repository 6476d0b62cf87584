"""What plans of probes price, once for all tests of a process."""

from collections.abc import Iterator
from typing import Any

import pytest

from simulator.lab.probe import run as planning
from simulator.lab.probe.run import Candidate, Effort
from simulator.question.coefficients import Coefficients
from tests.probe.machine import PRICED


@pytest.fixture(scope="module")
def priced_once() -> Iterator[None]:
    """Plans choose among the same candidates: pricing them takes nearly all of the time of each."""
    real = planning._priced

    def priced_once(candidate: Candidate, base: Coefficients, moved: dict[Any, tuple[str, ...]], effort: Effort) -> Any:
        # Of an effort's numbers those that pricing reads.
        limits = (effort.shortest_step_seconds, effort.longest_seconds, effort.start_seconds, effort.steps)
        key = (candidate, base, tuple(moved.items()), limits)
        if key not in PRICED:
            PRICED[key] = real(candidate, base, moved, effort)
        return PRICED[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_priced", priced_once)
        yield
