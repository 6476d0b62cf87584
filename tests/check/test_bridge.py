"""Megatron-Bridge's performance recipes get verdicts on their devices. Reads a checkout that SIMULATE_BRIDGE names."""

import os
from pathlib import Path

import pytest

from benchmarks.bridge_recipes import judged

CHECKOUT = Path(os.environ.get("SIMULATE_BRIDGE") or "absent")


@pytest.mark.skipif(not CHECKOUT.is_dir(), reason="needs a checkout of Megatron-Bridge v0.6.0 (SIMULATE_BRIDGE)")
def test_fifty_files_of_performance_recipes_get_a_verdict() -> None:
    found = list(judged(CHECKOUT))
    assert len(found) >= 59
    assert sum(file.is_firm for file in found) >= 50, [file.name for file in found if not file.is_firm]
