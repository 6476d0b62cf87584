"""LitGPT's files: what a run holds is near the peaks that its own page prints, and what is not read is no verdict."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.question.recipe import Recipe
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked
from simulator.recipes.readers.read import read_recipe

LORA = """checkpoint_dir: checkpoints/MODEL
precision: bf16-true
quantize:
devices: 1
num_nodes: 1
lora_r: RANK
lora_query: true
lora_mlp: MLP
data:
  class_path: litgpt.data.Alpaca2k
train:
  global_batch_size: 8
  micro_batch_size: MICRO
  max_seq_length: 512
optimizer:
  class_path: torch.optim.AdamW
"""
PRETRAIN = """model_name: pythia-1b
precision: bf16-mixed
devices: auto
train:
  global_batch_size: 512
  micro_batch_size: 4
  max_seq_length: 2048
"""


def judged(folder: Path, text: str) -> Checked:
    (folder / "run.yaml").write_text(text, encoding="utf-8")
    asked = question_of({"hardware": "a100-sxm-80g"})
    (found,) = check_files([str(folder / "run.yaml")], asked, Gates(), root=folder)
    return found


def read(folder: Path, line: str) -> Recipe:
    (folder / "run.sh").write_text(line, encoding="utf-8")
    (recipe,) = read_recipe(folder / "run.sh")
    return recipe


def lora(model: str = "meta-llama/Llama-3.2-1B", rank: int = 32, micro: int = 1, mlp: str = "false") -> str:
    text = LORA.replace("MODEL", model).replace("RANK", str(rank))
    return text.replace("MICRO", str(micro)).replace("MLP", mlp)


# LitGPT 2685705, config_hub/finetune/README.md, peak memory of torch.cuda.max_memory_allocated, ranks of the files.
@pytest.mark.parametrize(
    ("model", "rank", "micro", "mlp", "peak_gb"),
    [
        ("google/gemma-2b", 8, 2, "true", 12.62),
        ("google/gemma-2-2b", 8, 2, "true", 14.31),
        ("meta-llama/Llama-2-7b-hf", 32, 2, "false", 19.77),
        ("meta-llama/Meta-Llama-3-8B", 32, 1, "false", 19.73),
        ("meta-llama/Llama-3.2-1B", 32, 1, "false", 4.49),
        ("meta-llama/Llama-3.2-3B", 32, 1, "false", 9.67),
        ("mistralai/Mistral-7B-v0.1", 32, 2, "false", 20.66),
        ("microsoft/phi-2", 8, 4, "true", 13.98),
        ("microsoft/Phi-3-mini-4k-instruct", 8, 4, "true", 19.75),
        ("TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", 32, 8, "true", 13.50),
    ],
)
def test_adapters_hold_what_the_page_prints(  # noqa: PLR0917  columns of the page
    model: str, rank: int, micro: int, mlp: str, peak_gb: float, tmp_path: Path
) -> None:
    found = judged(tmp_path, lora(model, rank, micro, mlp))
    assert found.outcome == "fits"
    assert found.estimate is not None
    assert 0.92 <= found.estimate.memory.allocated_bytes / 1e9 / peak_gb <= 1.02


# The same page; `lora_r`, targets and micro batches are those of each `qlora.yaml`.
@pytest.mark.parametrize(
    ("model", "rank", "micro", "mlp", "peak_gb"),
    [
        ("tiiuae/falcon-7b", 32, 1, "false", 9.44),
        ("google/gemma-2b", 16, 2, "true", 11.58),
        ("google/gemma-7b", 16, 1, "true", 17.18),
        ("google/gemma-2-9b", 16, 1, "true", 20.92),
        ("meta-llama/Llama-2-7b-hf", 32, 2, "false", 13.68),
        ("meta-llama/Meta-Llama-3-8B", 32, 2, "false", 17.41),
        ("meta-llama/Llama-3.2-1B", 32, 2, "false", 5.53),
        ("mistralai/Mistral-7B-v0.1", 32, 2, "false", 14.29),
        ("microsoft/phi-2", 8, 4, "true", 14.27),
        ("microsoft/Phi-3-mini-4k-instruct", 8, 4, "true", 19.13),
        ("TinyLlama/TinyLlama-1.1B-intermediate-step-1431k-3T", 32, 8, "true", 16.24),
    ],
)
def test_what_4_bits_hold_is_within_its_bound(  # noqa: PLR0917  columns of the page
    model: str, rank: int, micro: int, mlp: str, peak_gb: float, tmp_path: Path
) -> None:
    text = lora(model, rank, micro, mlp).replace("quantize:", "quantize: bnb.nf4")
    found = judged(tmp_path, text)
    (recipe,) = read_recipe(tmp_path / "run.yaml")
    assert (found.outcome, recipe.options["quantised_scale_bytes"]) == ("fits", "4")
    assert found.estimate is not None
    least = found.estimate.memory.allocated_bytes
    assert least <= peak_gb * 1e9 <= least + recipe.unpriced_bytes <= 1.35 * peak_gb * 1e9
    nested = read(tmp_path, f"litgpt finetune_lora {model} --config run.yaml --quantize bnb.nf4-dq\n")
    assert nested.options["quantised_scale_bytes"] == "1.016"


@pytest.mark.parametrize(
    ("model", "micro", "peak_gb"),
    [
        ("google/gemma-2b", 1, 17.43),
        ("microsoft/phi-2", 4, 14.44),
        ("microsoft/Phi-3-mini-4k-instruct", 4, 17.01),
        ("meta-llama/Llama-3.2-1B", 4, 8.70),
        ("meta-llama/Llama-3.2-3B", 4, 16.51),
    ],
)
def test_all_weights_on_four_devices_have_state_of_fp32_at_most(
    model: str, micro: int, peak_gb: float, tmp_path: Path
) -> None:
    """The page's figures of `full.yaml`, some stated for one device, which cannot hold so few bytes a weight."""
    text = (
        lora(model, 8, micro)
        .replace("lora_r: 8\nlora_query: true\nlora_mlp: false\n", "")
        .replace("devices: 1", "devices: 4")
    )
    found = judged(tmp_path, text.replace("global_batch_size: 8", "global_batch_size: 64"))
    (recipe,) = read_recipe(tmp_path / "run.yaml")
    assert found.outcome == "fits"
    assert "state" in {remark.bound for remark in recipe.remarks}
    assert found.estimate is not None
    least = found.estimate.memory.allocated_bytes
    assert peak_gb * 1e9 <= least + recipe.unpriced_bytes
    assert least <= 1.15 * peak_gb * 1e9


def test_pretraining_shards_within_a_node_and_keeps_activations(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(PRETRAIN, encoding="utf-8")
    (recipe,) = read_recipe(tmp_path / "run.yaml")
    assert recipe.layout is not None
    assert (recipe.layout.zero_stage, recipe.layout.recompute, recipe.options["sharding_degree"]) == (3, "none", "node")
    assert "parameter_dtype" not in recipe.options  # fp32 under autocast


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ("quantize:", "quantize: bnb.nf4", "fits"),
        ("quantize:", "quantize: bnb.int8-training", "refused"),
        ("quantize:\ndevices: 1\n", "quantize: bnb.nf4\ndevices: 2\n", "refused"),
        ("MODEL", "own/network", "cannot_tell"),
        ("devices: 1\n", "devices: 4\n", "fits"),
        ("devices: 1\n", "devices: -1\n", "fits"),
        ("lora_r: RANK\n", "", "fits"),
        ("devices: 1\nnum_nodes: 1\nlora_r: RANK\n", "devices: 4\n", "fits"),
        ("lora_mlp: MLP", "lora_layers: 4", "cannot_tell"),
        ("precision: bf16-true", "precision: bf16-mixed", "not_modelled"),
        ("precision: bf16-true\n", "", "not_modelled"),
        ("class_path: torch.optim.AdamW", "class_path: torch.optim.Rprop", "not_modelled"),
        ("global_batch_size: 8", "global_batch_size: 2147483648", "unreadable"),
    ],
)
def test_what_is_not_read_is_no_verdict(before: str, after: str, outcome: str, tmp_path: Path) -> None:
    text = LORA.replace(before, after)
    assert text != LORA
    text = text.replace("MODEL", "meta-llama/Llama-3.2-1B").replace("RANK", "8").replace("MICRO", "1")
    text = text.replace("MLP", "false")
    assert judged(tmp_path, text).outcome == outcome


def test_a_launch_replaces_keys_and_names_the_program(tmp_path: Path) -> None:
    (tmp_path / "lora.yaml").write_text(lora(), encoding="utf-8")
    recipe = read(tmp_path, "litgpt finetune_lora --config lora.yaml --train.max_seq_length 128 --devices 2\n")
    assert recipe.layout is not None
    assert (recipe.seq_length, recipe.lora_rank, recipe.global_batch_size) == (128, 32, 8)
    assert (recipe.nodes, recipe.devices_per_node, recipe.layout.zero_stage, recipe.layout.recompute) == (
        1,
        2,
        3,
        "full",
    )
    asked = question_of({"hardware": "a100-sxm-80g"})
    assert [each.outcome for each in check_files([str(tmp_path / "run.sh")], asked, Gates(), root=tmp_path)] == ["fits"]
    full = read(tmp_path, "litgpt finetune_full google/gemma-2b --config lora.yaml\n")
    assert full.model == "gemma-2b"
    assert full.layout is not None
    assert (full.lora_rank, full.layout.zero_stage, full.layout.micro_batch_size) == (None, 0, 1)


def test_pretraining_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(PRETRAIN, encoding="utf-8")
    (recipe,) = read_recipe(tmp_path / "run.yaml")
    assert (recipe.model, recipe.lora_rank, recipe.seq_length) == ("pythia-1b", None, 2048)
    assert judged(tmp_path, PRETRAIN).outcome == "fits"
    one = PRETRAIN.replace("auto", "1")
    adamw = judged(tmp_path, one)
    assert adamw.outcome == "fits"
    plain = judged(tmp_path, one + "optimizer: Adafactor\n")
    assert adamw.estimate is not None
    assert plain.estimate is not None
    assert plain.estimate.memory.allocated_bytes < adamw.estimate.memory.allocated_bytes


@pytest.mark.parametrize(
    ("optimizer", "meant"),
    [
        ("optimizer: SGD\n", "sgd"),
        ("optimizer:\n  class_path: torch.optim.SGD\n  init_args:\n    momentum: 0.9\n", "sgd_momentum"),
        ("optimizer:\n  class_path: torch.optim.SGD\n  init_args:\n    momentum: 0\n", "sgd"),
    ],
)
def test_sgd_is_torch_s_with_state_where_its_momentum_says_so(optimizer: str, meant: str, tmp_path: Path) -> None:
    recipe = judged(tmp_path, lora().replace("optimizer:\n  class_path: torch.optim.AdamW\n", optimizer)).case
    assert recipe is not None
    assert recipe.scenario.framework.optimizer == meant
