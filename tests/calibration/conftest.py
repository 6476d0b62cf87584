"""The whole accuracy computation, once for all tests."""

import pytest

from benchmarks.targets import held
from simulator.evidence.calibration.assessment import Assessment, assess
from tests.calibration.measured import shipped_rows


@pytest.fixture(scope="session")
def assessed() -> Assessment:
    return held(assess(shipped_rows()))
