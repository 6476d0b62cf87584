"""FSDP 2 in groups of shards and over attention that saves its scores, against traced figures (M15, M16).

The traces are those of test_fine_tuning: accelerate 1.15.0 and transformers 5.24.0 on a processor with torch 2.13.
"""

from typing import Any

import pytest

import simulator
from simulator.api import scenario_of
from simulator.cost.memory.moments import workspace_bytes
from simulator.question.units import MIB
from tests.memory.test_fine_tuning import SMALL


def test_sums_over_groups_wait_beside_an_earlier_pass_s_gradients() -> None:
    """FSDP 2 of torchtitan, fp32 gradients reduced in each pass: traced with and without groups, 40.48 MiB apart.

    PyTorch 2.13, _fsdp_param_group.py, `AllReduceState`: all units' parts but the table's, which is reduced last.
    """
    sizes: Any = {"model": {**SMALL, "num_hidden_layers": 5, "vocab_size": 12000}, "hardware": "h100-sxm-80g"}
    sizes |= {"stack": "torchtitan", "seq_length": 64, "recompute": "full", "zero_stage": 3, "micro_batch_size": 1}
    groups: Any = {"devices": 4, "global_batch_size": 8, "options": {"sharding_degree": "2"}}
    found = [
        simulator.estimate(**sizes, **each).memory.allocated_bytes
        for each in (groups, {"devices": 2, "global_batch_size": 4})
    ]
    assert (found[0] - found[1]) / MIB == pytest.approx(40.48, abs=0.01)


SCORED: Any = [
    # Model, recompute, whether it ends early, traced MiB: 1,024 tokens, two ranks, FSDP 2 of accelerate as above.
    ({"model_type": "bloom", "n_layer": 5, "n_head": 8, "hidden_size": 512}, "full", "true", 247.62),  # -14.2 % without
    ({"model_type": "bloom", "n_layer": 5, "n_head": 8, "hidden_size": 512}, "full", "false", 281.62),
    ({"model_type": "mpt", "n_layers": 5, "n_heads": 8, "d_model": 512}, "full", "true", 245.41),
    ({"model_type": "mpt", "n_layers": 5, "n_heads": 8, "d_model": 512}, "full", "false", 279.50),
]


@pytest.mark.parametrize(("model", "recompute", "early", "traced"), SCORED)
def test_scores_of_a_unit_have_gradients(model: Any, recompute: Any, early: str, traced: float) -> None:
    """The gradients of an fp32 softmax, 8 bytes a score; a reentrant checkpoint holds what the layer returned."""
    sizes: Any = {"model": model | {"vocab_size": 2000, "tie_word_embeddings": True}, "hardware": "h100-sxm-80g"}
    sizes |= {"devices": 2, "seq_length": 1024, "global_batch_size": 2, "stack": "transformers"}
    sizes |= {"options": {"recompute_stops_early": early}}
    layout: Any = {"zero_stage": 3, "micro_batch_size": 1, "recompute": recompute}
    held = simulator.estimate(**sizes, **layout).memory.allocated_bytes - workspace_bytes(scenario_of(**sizes))
    assert held / MIB == pytest.approx(traced, rel=0.012)


@pytest.mark.parametrize("early", ["true", "false"])
def test_a_norm_of_the_table_widens_the_stream(early: str) -> None:
    """BLOOM-7B1 with adapters of rank 8 on all products, traced on one device; 2.2 % more than streams of 16 bits."""
    model: Any = {"model_type": "bloom", "n_layer": 30, "n_head": 32, "hidden_size": 4096, "vocab_size": 250880}
    sizes: Any = {"model": model | {"tie_word_embeddings": True}, "hardware": "h200", "devices": 1}
    sizes |= {"seq_length": 2048, "global_batch_size": 1, "micro_batch_size": 1, "recompute": "full"}
    options = {"recompute_stops_early": early, "adapter_targets": "all"}
    memory = simulator.estimate(**sizes, stack="transformers", lora_rank=8, options=options).memory
    assert memory.allocated_bytes / MIB == pytest.approx(20591.5, rel=0.003)
