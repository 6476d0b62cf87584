"""The reference trainer's layer keeps, to the byte, what the torch profile says."""

import json
import math
import os
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.activations import layer_input_bytes
from simulator.lab.trainer.job import TrainingJob, refused
from simulator.question.scenario.layout import Layout
from simulator.question.specs.catalogue import load_model
from tests.scenario.cases import block, layer_bytes, only, scenario_of
from tests.trainer import forked
from tests.trainer.launches import LIMIT_SECONDS, NEEDS_TORCH

pytestmark = NEEDS_TORCH

ROOT = Path(__file__).resolve().parents[2]
CASES: dict[str, dict[str, Any]] = {
    "row A": {"model": "llama3.1-8b", "seq_length": 8192},
    "half the sequence, two of them": {"model": "llama3.1-8b", "seq_length": 4096, "batch": 2},
    "TP 4": {"model": "llama3.1-70b", "seq_length": 8192, "tp": 4},
    "TP 8": {"model": "llama3.1-70b", "seq_length": 8192, "tp": 8},
    "TP 4 without sequence parallelism": {
        "model": "llama3.1-8b",
        "seq_length": 2048,
        "tp": 4,
        "sequence_parallel": False,
    },
    "biases": {"model": "qwen2.5-7b", "seq_length": 2048},
    "QK norm": {"model": "qwen3-8b", "seq_length": 2048},
    "QK norm, TP 4": {"model": "qwen3-8b", "seq_length": 2048, "tp": 4},
}


def saved_bytes(case: dict[str, Any]) -> int:
    return _saved_bytes(json.dumps(case))


@cache
def _saved_bytes(case: str) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code = forked.ended(forked.start("tests.trainer.saved", [case], os.environ, folder), LIMIT_SECONDS)
        assert code == 0, (folder / "stderr").read_text(encoding="utf-8")[-2000:]
        return int((folder / "stdout").read_text(encoding="utf-8").strip().splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_a_layer_keeps_what_the_formula_says(name: str) -> None:
    case = CASES[name]
    tp = case.get("tp", 1)
    scenario = scenario_of(case["model"], devices=tp, profile="torch", seq_length=case["seq_length"])
    fields = {
        "tensor_parallel": tp,
        "sequence_parallel": case.get("sequence_parallel", tp > 1),
        "micro_batch_size": case.get("batch", 1),
    }
    assert saved_bytes(case) == layer_bytes(scenario, block(scenario, **fields), moe=False)


def test_row_a_is_the_figure_of_a_layer_of_llama3_1_8b() -> None:
    assert saved_bytes(CASES["row A"]) == 1_376_845_824


@pytest.mark.parametrize("tp", [1, 8])
def test_full_recompute_keeps_the_input(tp: int) -> None:
    scenario = scenario_of("llama3.1-70b", devices=tp, profile="torch")
    here = block(scenario, tensor_parallel=tp, sequence_parallel=tp > 1, recompute="full")
    case = {"model": "llama3.1-70b", "seq_length": 8192, "tp": tp, "recompute": "full"}
    assert saved_bytes(case) == only(layer_input_bytes(Pricing(scenario, here)))


def test_selective_recompute_drops_the_row_sums() -> None:
    # Queries, keys and values are kept anyway, and the output by the projection behind it: 4 bytes x 8192 x 32 heads.
    case = CASES["row A"]
    assert saved_bytes(case) - saved_bytes(case | {"recompute": "selective"}) == 4 * 8192 * 32


@pytest.mark.parametrize(
    ("model", "said"),
    [("qwen3-30b-a3b", "has no mixture-of-experts layers"), ("deepseek-v3", "has no mixture-of-experts layers")],
)
def test_models_without_layers_here_are_refused(model: str, said: str) -> None:
    job = TrainingJob(model=load_model(model), layout=Layout(stage_layers=(1,)), seq_length=8, global_batch_size=1)
    assert said in (refused(job) or "")


def test_the_last_stage_wants_targets_and_returns_one_loss() -> None:
    import torch  # noqa: PLC0415

    from simulator.lab.trainer.model import Stage  # noqa: PLC0415 - needs torch

    model = replace(load_model("llama3.2-1b").with_layers(1), hidden_size=64, intermediate_size=128)
    model = replace(model, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    model = replace(model, vocab_size=100, tie_word_embeddings=True)
    stage = Stage(model, [0], seq_length=8, embedding=True, head=True)
    stage.initialize(0)
    tokens = torch.arange(8)[None]
    loss = stage(tokens, tokens + 50)
    assert loss.shape == ()
    # A token by itself is one of 100, of which the input tokens are the likelier.
    assert float(loss.detach()) == pytest.approx(math.log(100), abs=0.3)
    loss.backward()
    assert stage.embedding is not None
    assert stage.head is not None
    assert stage.head.weight is stage.embedding.weight
    with pytest.raises(ValueError, match="needs the target tokens"):
        stage(tokens)
