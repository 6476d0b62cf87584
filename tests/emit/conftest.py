"""What tests of written recipes leave out."""

import pytest

from tests.check.bare import without_advice


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates and verdicts without advice: half of their time, and nothing of a recipe."""
    without_advice(monkeypatch)
