"""Remedies of who tunes a model: words that their trainer has, each of which holds when it is applied."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import simulator
from tests.cli.running import run

pytestmark = pytest.mark.full_answer

_SIZES = re.compile(r"--(tp|pp|cp|ep|etp|vpp|dp|stage-layers)\b")  # words that these trainers do not have
TUNED = (
    "--model qwen3-8b --method full --hardware rtx-4090 --devices 4 --stack transformers",
    "--model qwen3-8b --method full --hardware rtx-4090 --devices 4 --stack transformers --micro-batch-size 4",
    "--model qwen3-8b --method lora --hardware rtx-4090 --devices 1 --stack peft",
    "--model qwen3-14b --method qlora --hardware rtx-4090 --devices 1 --stack peft --micro-batch-size 4",
    "--model llama3.1-8b --method full --framework torch --hardware rtx-4090 --devices 8",
    "--model llama3.1-8b --method lora --framework torch --hardware l4 --devices 4 --recompute none",
    "--model qwen3-30b-a3b --method lora --hardware rtx-4090 --devices 4 --stack trl",
    "--model llama3.1-8b --method full --hardware a100-sxm-80g --devices 1 --stack trl",  # without its recompute
    "--model qwen3-32b --method qlora --hardware rtx-4090 --devices 1",  # not on four, whatever is open
    "--model qwen3-14b --method lora --hardware l4 --devices 4",
)


def applied(question: str, options: str) -> list[str]:
    """Return the words of a question with options in place of its own."""
    own = {word for word in options.split() if word.startswith("--") and word != "--option"}
    pairs = re.findall(r"(--\S+) (\S+)", question)
    return [word for pair in pairs if pair[0] not in own for word in pair] + options.split()


@pytest.mark.parametrize("question", TUNED)
def test_remedies_are_words_of_a_trainer_and_hold(question: str) -> None:
    changes: list[dict[str, Any]] = json.loads(run("explain", *question.split(), "--format", "json").stdout)["changes"]
    assert changes
    for change in changes:
        words = " ".join(change["options"])
        assert not _SIZES.search(words)
        again = json.loads(run("estimate", *applied(question, words), "--format", "json").stdout)
        assert again["verdict"] == "fits"
        assert again["memory"]["fit_probability"] >= 0.95
        assert again["memory"]["device_mib"] == pytest.approx(change["estimate"]["memory"]["device_mib"], rel=1e-6)


def test_what_a_ranking_proposes_fits_over_what_is_open_of_its_time_too() -> None:
    ranking = simulator.rank(model="phi-2", method="full", hardware="t4", devices=1)
    assert ranking.remedies
    for remedy in ranking.remedies:
        assert remedy.estimate.verdict == "fits", remedy.change


def test_gradients_that_are_summed_whole_may_be_reduced_each_time() -> None:
    """accelerate's `sync_each_batch`; DeepSpeed and a single micro batch sum none."""
    asked = "--model llama3.1-8b --method full --hardware v100-sxm-32g --devices 8 --zero-stage 3 --recompute full"
    words = f"{asked} --seq-length 2048 --micro-batch-size 1 --global-batch-size 64 --stack transformers".split()
    changes = json.loads(run("explain", *words, "--format", "json").stdout)["changes"]
    assert ["--option sync_each_batch=true"] in [change["options"] for change in changes]


def test_a_ranking_pairs_the_changes_of_a_tuner_the_leanest_first() -> None:
    asked: dict[str, Any] = {
        "model": "qwen3-8b",
        "method": "full",
        "hardware": "rtx-4090",
        "devices": 4,
        "seq_length": 8192,
    }
    remedies = simulator.rank(**asked, stack="transformers").remedies
    assert "--method lora --option cross_entropy_chunk_tokens=2048" in [remedy.change for remedy in remedies]
    needs = [remedy.estimate.memory.device_bytes for remedy in remedies]
    assert needs == sorted(needs)


_FILE = """tokenizer: {{_component_: torchtune.models.llama3.llama3_tokenizer, max_seq_len: 4096}}
dataset: {{_component_: torchtune.datasets.alpaca_dataset, packed: True}}
model: {{_component_: torchtune.models.llama3_1.{builder}}}
optimizer: {{_component_: torch.optim.AdamW, fused: True}}
loss: {{_component_: torchtune.modules.loss.LinearCrossEntropyLoss}}
batch_size: 8
gradient_accumulation_steps: 4
enable_activation_checkpointing: {recompute}
dtype: bf16
custom_sharded_layers: [tok_embeddings, output]
"""


@pytest.mark.parametrize(("builder", "recompute"), [("llama3_1_8b", True), ("lora_llama3_1_8b", False)])
def test_a_tuners_file_is_changed_by_its_trainers_words(tmp_path: Path, builder: str, recompute: bool) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(_FILE.format(builder=builder, recompute=recompute), encoding="utf-8")
    asked = ("--hardware", "a100-sxm-40g", "--devices", "2")
    shown = run("check", str(file), *asked).stdout
    changes = re.findall(r"^(would|may) fit: (.*?) \(", shown, re.MULTILINE)
    assert any("--micro-batch-size 1 --global-batch-size 64" in words for _, words in changes)
    assert not any(_SIZES.search(words) for _, words in changes)
    for words in (words for verb, words in changes if verb == "would"):
        assert run("check", str(file), *applied(" ".join(asked), words)).exit_code == 0
