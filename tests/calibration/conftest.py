"""The whole accuracy computation, once for all tests."""

import pytest

from benchmarks.targets import held
from simulator.evidence.calibration.assessment import Assessment, assess
from simulator.evidence.calibration.run import prepared
from simulator.evidence.calibration.sources import SourcesJudged, judge_sources
from tests.calibration.measured import all_rows, shipped_rows


@pytest.fixture(scope="session")
def assessed() -> Assessment:
    return held(assess(shipped_rows()))


@pytest.fixture(scope="session")
def judged() -> tuple[SourcesJudged, ...]:
    samples = prepared(all_rows())
    return tuple(judge_sources(kind, samples) for kind in ("time", "memory"))
