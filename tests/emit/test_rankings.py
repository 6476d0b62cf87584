"""What a ranking, its risky layouts and its remedies show can be launched: its framework has words for all of it."""

import pytest

import simulator

RANKINGS = (
    ("llama3.1-8b", 2, "megatron", "bf16"),
    ("llama3.1-8b", 1, "megatron", "fp8"),
    ("llama3.1-8b", 2, "torch", "bf16"),
    ("llama3.1-8b", 2, "paddle", "bf16"),
    ("llama3.1-70b", 8, "megatron", "bf16"),
    ("llama3.1-70b", 8, "torch", "bf16"),
    ("llama3.1-70b", 2, "paddle", "bf16"),
    ("llama3.1-405b", 8, "megatron", "bf16"),
    ("qwen3-30b-a3b", 4, "megatron", "bf16"),
    ("qwen3-30b-a3b", 4, "paddle", "bf16"),
    ("deepseek-v3", 32, "megatron", "bf16"),
    ("llama3.2-1b", 1, "megatron", "bf16"),
)
"""The 405B question fits nowhere: its remedies are what is recommended."""


@pytest.mark.parametrize(("model", "nodes", "framework", "precision"), RANKINGS)
def test_every_layout_shown_can_be_launched(model: str, nodes: int, framework: str, precision: str) -> None:
    found = simulator.rank(
        model=model,
        hardware="h100-sxm-80g",
        nodes=nodes,
        framework=framework,
        precision=precision,  # type: ignore[arg-type]  # a word of the table
        top=12,
    )
    shown = [*found.estimates, *found.risky, *(remedy.estimate for remedy in found.remedies)]
    assert shown
    for priced in shown:
        assert simulator.emit(priced)
