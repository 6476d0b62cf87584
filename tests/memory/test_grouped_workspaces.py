"""Workspaces of libraries: cuBLAS by device, streams of TransformerEngine (M11)."""

import pytest

from simulator.api import scenario_of
from simulator.cost.memory.moments import workspace_bytes
from simulator.question.units import MIB


@pytest.mark.parametrize(
    ("model", "hardware", "options", "mebibytes"),
    [
        ("qwen3-30b-a3b", "h100", {}, 4 * 32),
        ("qwen3-30b-a3b", "h100", {"grouped_experts": "false"}, 0),
        ("qwen3-30b-a3b", "b200", {}, 4 * 32),
        ("qwen3-30b-a3b", "a100", {"deterministic_kernels": "products"}, 4 * 4),
        ("qwen3-30b-a3b", "ascend-910b", {}, 0),
        ("qwen3-8b", "h100", {}, 0),
        # Two threads have 8 MiB and an eighth each in place of 32.
        ("qwen3-8b", "a100", {}, -2 * (32 - 8.125)),
        ("qwen3-8b", "a100", {"deterministic_kernels": "all"}, 0),
    ],
)
def test_libraries_have_workspaces(model: str, hardware: str, options: dict[str, str], mebibytes: float) -> None:
    """TransformerEngine: 4 streams of grouped products, 32 MiB each from compute capability 9 on, else 4."""
    scenario = scenario_of(model=model, hardware=hardware, nodes=2, options=options)
    more = workspace_bytes(scenario) - scenario.coefficients.memory.workspace_bytes
    assert more == pytest.approx(mebibytes * MIB)
