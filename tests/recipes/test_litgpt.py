"""LitGPT's files: what they say of a run, and what is not read is no verdict."""

from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.question.recipe import A_NODE, Recipe
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


def test_dropout_before_adapters_is_kept_for_the_backward_pass(tmp_path: Path) -> None:
    """`LoRALayer` of 0.5.13 drops what its adapters read; adapters of one input share what is left of it."""
    without = judged(tmp_path, lora().replace("lora_query", "lora_dropout: 0\nlora_query"))
    with_dropout = judged(tmp_path, lora())  # 0.05 where nothing is said
    assert without.estimate is not None
    assert with_dropout.estimate is not None
    assert with_dropout.estimate.memory.allocated_bytes > without.estimate.memory.allocated_bytes
    (recipe,) = read_recipe(tmp_path / "run.yaml")
    assert (recipe.options["adapter_dropout"], recipe.options["joint_adapters"]) == ("before", "padded")


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ("quantize:", "quantize: bnb.int8-training", "not_modelled"),
        ("quantize:\ndevices: 1\n", "quantize: bnb.nf4\ndevices: 2\n", "not_modelled"),
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


def test_flags_need_no_file_and_several_devices_have_one_outer_unit(tmp_path: Path) -> None:
    """`finetune/full.py`: FSDPStrategy over blocks, checkpoints of blocks; adapters have FSDP 2."""
    flags = "meta-llama/Llama-3.2-1B --devices 4 --precision bf16-true --train.max_seq_length 512\n"
    full, adapters = (read(tmp_path, f"litgpt finetune_{kind} {flags}") for kind in ("full", "lora"))
    assert full.layout is not None
    assert (full.model, full.seq_length) == ("llama3.2-1b", 512)
    assert (full.layout.zero_stage, full.layout.recompute) == (3, "full")
    assert (full.options["flat_parameters"], full.options["parameter_dtype"]) == ("true", "bf16")
    assert "flat_parameters" not in adapters.options
    assert adapters.lora_rank == 8


def test_pretraining_names_its_model(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(PRETRAIN, encoding="utf-8")
    (recipe,) = read_recipe(tmp_path / "run.yaml")
    assert (recipe.model, recipe.lora_rank, recipe.seq_length) == ("pythia-1b", None, 2048)
    assert recipe.options["sharding_degree"] == A_NODE
    assert judged(tmp_path, PRETRAIN).outcome == "fits"
    assert judged(tmp_path, PRETRAIN.replace("devices: auto\n", "")).outcome == "fits"
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


EVERYWHERE = "lora_key: true\nlora_projection: true\nlora_mlp: true\n"
TRACED = [
    # Fake tensors through litgpt/{model,lora,utils}.py of 0.5.13 in Lightning's precisions, PyTorch 2.13: MiB at the
    # peak of the second step, batches of its config_hub, 512 tokens.
    ("tiiuae/falcon-7b", 32, 1, "", "", 15815),
    ("google/gemma-2b", 8, 2, EVERYWHERE, "", 11978),
    ("google/gemma-7b", 16, 1, EVERYWHERE, "", 24034),
    ("google/gemma-2-9b", 16, 1, EVERYWHERE, "", 27914),
    ("meta-llama/Llama-2-7b-hf", 32, 2, "", "", 18825),
    ("meta-llama/Meta-Llama-3-8B", 32, 1, "", "", 18773),
    ("mistralai/Mistral-7B-v0.1", 32, 2, "", "", 19692),
    ("microsoft/phi-2", 8, 4, EVERYWHERE, "", 13296),
    ("microsoft/Phi-3-mini-4k-instruct", 8, 4, EVERYWHERE, "", 18828),
    ("tiiuae/falcon-7b", 32, 1, "", "bnb.nf4", 8427),
    ("google/gemma-7b", 16, 1, EVERYWHERE, "bnb.nf4", 17642),
    ("meta-llama/Llama-2-7b-hf", 32, 2, "", "bnb.nf4", 10604),
    ("meta-llama/Meta-Llama-3-8B", 32, 2, "", "bnb.nf4", 15316),
    ("mistralai/Mistral-7B-v0.1", 32, 2, "", "bnb.nf4", 10796),
    ("microsoft/phi-2", 8, 4, EVERYWHERE, "bnb.nf4", 10248),
]


@pytest.mark.parametrize("traced", TRACED)
def test_memory_is_what_its_code_allocates(traced: tuple[str, int, int, str, str, float], tmp_path: Path) -> None:
    model, rank, micro, places, quantised, traced_mib = traced
    text = lora(model, rank, micro).replace("lora_mlp: false\n", places).replace("quantize:", f"quantize: {quantised}")
    estimate = judged(tmp_path, text).estimate
    assert estimate is not None
    assert estimate.memory.allocated_bytes / 2**20 == pytest.approx(traced_mib, rel=0.015)


def test_all_weights_have_chunks_of_the_loss_and_two_tables(tmp_path: Path) -> None:
    """Traced likewise: 18449 MiB of Llama-3.2-1B at four sequences of 512; its input and output tables are two."""
    text = lora(micro=4).replace("lora_r: 32\nlora_query: true\nlora_mlp: false\n", "resume: false\n")
    estimate = judged(tmp_path, text).estimate
    assert estimate is not None
    assert estimate.memory.allocated_bytes / 2**20 == pytest.approx(18449, rel=0.01)
