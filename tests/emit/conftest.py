"""What tests of written recipes leave out."""

import pytest


@pytest.fixture(autouse=True)
def without_advice(bare: None, closed_switches: None) -> None:
    """Nothing of a recipe is advice, nor goes by what nobody said of its switches."""
