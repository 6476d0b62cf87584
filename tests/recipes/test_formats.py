"""Formats of recipes that other readers' tests do not cover."""

from pathlib import Path

import pytest

from simulator.recipes.readers.read import read_recipe
from simulator.recipes.recipe import Recipe
from tests.recipes.corpus import public
from tests.recipes.seeds import rules


def read(text: str, folder: Path, name: str = "x.yaml", **settings: str) -> Recipe:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(file, settings)
    return recipe


@pytest.mark.parametrize("end", ["\\", "\\\n", " \\\n", "\\\\\\\n"])
def test_a_file_that_ends_within_a_line(end: str, tmp_path: Path) -> None:
    text = f"torchrun --nproc-per-node 8 t.py --num-layers 2 --micro-batch-size 1 --save x{end}"
    assert read(text, tmp_path, "x.sh").devices_per_node == 8


def test_a_public_file_that_ends_within_a_line() -> None:
    (recipe,) = read_recipe(public("nemo-launcher", "20b_fp8_1node.sh"))
    assert recipe.layout is not None
    assert (recipe.nodes, recipe.layout.micro_batch_size, recipe.layout.tensor_parallel) == (1, 4, 4)
    assert "base-configuration" in rules(recipe)


ARGS = """ENV_VARS:
  PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True
MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --ffn-hidden-size: 14336
  --num-attention-heads: 32
  --group-query-attention: true
  --num-query-groups: 8
  --swiglu: true
  --untie-embeddings-and-output-weights: true
  --vocab-size: 128256
  --seq-length: 8192
  --micro-batch-size: ${MBS}
  --global-batch-size: 16
  --tensor-model-parallel-size: $TP
  --sequence-parallel: true
  --use-distributed-optimizer: false
  --recompute-granularity: selective
  --recompute-modules: "[core_attn]"
  --bf16: true
TEST_TYPE: regular
"""


def test_model_args(tmp_path: Path) -> None:
    recipe = read(ARGS, tmp_path, MBS="1", TP="2")
    assert (recipe.dialect, recipe.model, recipe.seq_length) == ("megatron-yaml", "llama3-8b", 8192)
    assert recipe.layout is not None
    layout = recipe.layout
    assert (layout.tensor_parallel, layout.sequence_parallel, layout.zero_stage) == (2, True, 0)
    assert (layout.recompute, recipe.options["expandable_segments"]) == ("selective", "true")
    assert (recipe.places["tp"].line, recipe.unknowns, rules(recipe)) == (16, (), set())


def test_model_args_that_the_environment_gives(tmp_path: Path) -> None:
    recipe = read(ARGS, tmp_path)
    assert {unknown.name: unknown.affects for unknown in recipe.unknowns} == {
        "MBS": ("micro_batch_size",),
        "TP": ("tp",),
    }
    assert recipe.layout is None


def test_public_model_args() -> None:
    (recipe,) = read_recipe(public("megatron-tests", "gpt3_mcore_te_tp2_pp2_mla_1node/model_config.yaml"))
    assert recipe.layout is not None
    assert (recipe.layout.tensor_parallel, recipe.layout.pipeline_parallel) == (2, 2)
    assert (recipe.model_fields["attention"], recipe.model_fields["vocab_size"]) == ("mla", 50432)
    settings = {"TP": "1", "PP": "1", "EP": "8", "CP": "1", "MBS": "1", "GBS": "256", "SEQ_LEN": "4096"}
    (recipe,) = read_recipe(public("megatron-moe-zoo", "Mixtral-8x2B.yaml"), settings)
    assert recipe.layout is not None
    assert (recipe.layout.expert_parallel, recipe.seq_length, recipe.global_batch_size) == (8, 4096, 256)
    (recipe,) = read_recipe(
        public("megatron-tests", "mixtral-nemo_8x7b_mr_mbs1_gbs8_mcore_te_tp2_pp1_ep2_1N8G/model_config.yaml")
    )
    assert recipe.layout is not None
    assert (recipe.dialect, recipe.layout.tensor_parallel, recipe.layout.expert_parallel) == ("nemo-yaml", 2, 4)
    assert (recipe.nodes, recipe.devices_per_node, recipe.global_batch_size) == (1, 8, 8)
