"""The whole accuracy computation, once for all tests."""

import pytest

from simulator.evidence.calibration.assessment import Assessment, assess
from tests.calibration.measured import shipped_rows


@pytest.fixture(scope="session")
def assessed() -> Assessment:
    return assess(shipped_rows())
