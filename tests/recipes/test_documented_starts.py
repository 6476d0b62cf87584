"""Launch files of frameworks are read as the frameworks' own pages and launchers start them."""

import dataclasses
from pathlib import Path

import pytest

from simulator.recipes.readers.read import read_recipe
from simulator.recipes.recipe import Recipe
from simulator.recipes.shell import starts
from tools import starts as maker

SCRIPT = """#!/bin/bash
ENV=$1
SIZE=$2
BATCH=$3
SEQ=${4}
torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --bf16 \\
 --vocab-size 32000 --micro-batch-size $BATCH --global-batch-size 64 --seq-length $SEQ --max-position-embeddings $SEQ
"""
PAGE = """# How to start it
    sh train.sh dsw
```bash
cd /workspace/examples/abacus
sh train.sh  \\
dsw  \\
8B   \\
2 \\
4096
sh train.sh dsw 8B 1 8192
sh elsewhere.sh 1 2 3 4
```
"""
YAML = """MODEL_ARGS:
  --num-layers: 6
  --hidden-size: 1024
  --num-attention-heads: 8
  --vocab-size: 32000
  --seq-length: ${SEQ_LEN}
  --max-position-embeddings: 8192
  --micro-batch-size: ${MBS}
  --global-batch-size: ${GBS}
  --tensor-model-parallel-size: ${TP}
  --pipeline-model-parallel-size: ${PP}
  --moe-token-dispatcher-type: ${MOE_TOKEN_DISPATCHER}
  --bf16: true
"""
CONF = """declare -A CONFIGS=(
    # MODEL: TP PP EP CP VPP MBS GBS LAYERS DISPATCHER GROUPED_GEMM NNODES RUN_TIME PRETRAIN SLEN DATASET
    [Abacus]="  2  4  1  1  1   2   256   6    alltoall     true       3     00:20:00    0     4096  Custom  2 2"
    [Virtual]=" 2  2  1  1  3   2   256   6    alltoall     true       1     00:20:00    0     4096  Custom"
    [Absent]="  2  2  1  1  3   2   256   6    alltoall     true       1     00:20:00    0     4096  Custom"
)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of two frameworks, and the table made of it."""
    for name, text in {
        "examples/abacus/train.sh": SCRIPT,
        "examples/abacus/README.md": PAGE,
        "model_configs/benchmarking/Abacus.yaml": YAML,
        "model_configs/benchmarking/Virtual.yaml": YAML,
        "runtime_configs/benchmarking/runtime.conf": CONF,
    }.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    table = tmp_path / "starts.csv"
    table.write_text(",".join(starts.COLUMNS) + "\n", encoding="utf-8")
    monkeypatch.setattr(starts, "TABLE", table)
    monkeypatch.setattr(maker, "TABLE", table)
    starts._starts.cache_clear()
    assert maker.merge("Pai-Megatron-Patch", tmp_path, "0123456789") == 1
    assert maker.merge("Megatron-MoE-ModelZoo", tmp_path, "0123456789") == 2
    return tmp_path


@pytest.fixture(autouse=True)
def _forget() -> object:
    yield
    starts._starts.cache_clear()


def said(recipe: Recipe) -> list[str]:
    return [remark.message for remark in recipe.remarks if remark.rule == "example-arguments"]


def test_a_script_starts_as_its_page_says(checkout: Path) -> None:
    (recipe,) = read_recipe(checkout / "examples/abacus/train.sh")
    assert (recipe.seq_length, recipe.unknowns) == (4096, ())
    assert recipe.layout is not None
    assert recipe.layout.micro_batch_size == 2
    (message,) = said(recipe)
    assert message == "started as examples/abacus/README.md of Pai-Megatron-Patch (0123456) says, with 4 arguments"
    (recipe,) = read_recipe(checkout / "examples/abacus/train.sh", {"SEQ": "1024"})
    assert recipe.seq_length == 1024


def test_a_comment_of_the_script_stands_above_the_page(checkout: Path) -> None:
    file = checkout / "examples/abacus/train.sh"
    file.write_text(SCRIPT.replace("ENV=", "# sh train.sh dsw 8B 1 2048\nENV="), encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.seq_length == 2048


@pytest.mark.parametrize("change", ["arguments", "folder", "name"])
def test_another_script_is_not_started_so(change: str, checkout: Path) -> None:
    text = SCRIPT.replace("${4}", "${5}") if change == "arguments" else SCRIPT
    name = {"folder": "examples/other/train.sh", "name": "examples/abacus/tune.sh"}.get(
        change, "examples/abacus/train.sh"
    )
    file = checkout / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert said(recipe) == []
    assert "$3" in {unknown.name for unknown in recipe.unknowns} or recipe.unknowns


def test_a_configuration_starts_as_its_launcher_tells(checkout: Path) -> None:
    (recipe,) = read_recipe(checkout / "model_configs/benchmarking/Abacus.yaml")
    layout = recipe.layout
    assert layout is not None
    assert (layout.tensor_parallel, layout.pipeline_parallel, layout.micro_batch_size, recipe.global_batch_size) == (
        2,
        4,
        2,
        256,
    )
    assert (recipe.nodes, recipe.seq_length, recipe.unknowns) == (3, 4096, ())
    # 6 layers on 4 ranks: the launcher adds the first and the last rank's own numbers.
    assert layout.stage_layers == (2, 1, 1, 2)
    assert "TP=2 PP=4" in said(recipe)[0]
    assert "NNODES=3" in said(recipe)[0]
    assert "repeated-flag" not in {remark.rule for remark in recipe.remarks}
    (recipe,) = read_recipe(checkout / "model_configs/benchmarking/Virtual.yaml")
    assert recipe.layout is not None
    assert recipe.layout.virtual_stages == 3


def test_what_the_user_tells_replaces_all_that_the_launcher_tells(checkout: Path) -> None:
    (recipe,) = read_recipe(checkout / "model_configs/benchmarking/Abacus.yaml", {"PP": "2"})
    assert said(recipe) == []
    assert {unknown.name for unknown in recipe.unknowns} >= {"TP", "MBS", "GBS", "SEQ_LEN"}


def test_the_table_names_what_it_was_made_of() -> None:
    table = starts._starts()
    assert {start.framework for start in table.values()} == set(maker.FRAMEWORKS)
    for start in table.values():
        assert all(dataclasses.astuple(start))
        assert len(start.version) == 40
