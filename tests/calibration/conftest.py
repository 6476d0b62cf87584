"""The fit of all sources and what is judged by it, once for all tests and processes: kept until something changes."""

import pytest

from benchmarks.accuracy.judge import SourcesJudged
from benchmarks.accuracy.rows import Judgement, fitted_sources, judgement


@pytest.fixture(scope="session")
def judged() -> tuple[SourcesJudged, ...]:
    """Time, then memory."""
    return fitted_sources()


@pytest.fixture(scope="session")
def judgement_of_all() -> Judgement:
    return judgement()
