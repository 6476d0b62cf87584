"""What tests of written recipes leave out."""

import pytest

from tests.search.bare import without_advice


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates without what other switches are worth: a third of their time, and nothing of a recipe."""
    without_advice(monkeypatch)
