"""Workspaces of experts' grouped products (M11)."""

import pytest

from simulator.api import scenario_of
from simulator.cost.memory.moments import workspace_bytes
from simulator.question.units import MIB


@pytest.mark.parametrize(
    ("model", "hardware", "mebibytes"),
    [
        ("qwen3-30b-a3b", "h100", 4 * 32),
        ("qwen3-30b-a3b", "b200", 4 * 32),
        ("qwen3-30b-a3b", "a100", 4 * 4),
        ("qwen3-30b-a3b", "ascend-910b", 0),
        ("qwen3-8b", "h100", 0),
    ],
)
def test_each_stream_of_grouped_products_has_a_workspace(model: str, hardware: str, mebibytes: int) -> None:
    """TransformerEngine: 4 streams, 32 MiB each from compute capability 9 on, else 4."""
    scenario = scenario_of(model=model, hardware=hardware, nodes=2)
    more = workspace_bytes(scenario) - scenario.coefficients.memory.workspace_bytes
    assert more == pytest.approx(mebibytes * MIB)
