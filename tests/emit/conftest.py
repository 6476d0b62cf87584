"""What tests of written recipes leave out."""

import pytest


@pytest.fixture(autouse=True)
def without_advice(bare: None) -> None:
    """Nothing of a recipe is advice."""
