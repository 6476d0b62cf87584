"""How flags cut the layers over pipeline ranks and chunks."""

from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe
from tests.recipes.seeds import about
from tests.recipes.test_megatron import BASE

NAME = "--pipeline-model-parallel-layout"
EMBEDDING, LOSS = (f"--account-for-{end}-in-pipeline-split" for end in ("embedding", "loss"))


def read(layout: str, pipeline: int, folder: Path) -> Recipe:
    file = folder / "run.sh"
    words = f"{' '.join(BASE.split())} --pipeline-model-parallel-size {pipeline} {NAME} '{layout}'"
    file.write_text(f"\ntorchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {words}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    return recipe


@pytest.mark.parametrize(
    ("text", "pipeline", "stages", "chunks"),
    [
        ("Et*8|(t*8|)*2t*8L", 4, (), 1),
        ("Et*7|(t*9|)*2t*7,L", 4, (7, 9, 9, 7), 1),
        ("Et*15|t*17L", 2, (15, 17), 1),
        ("Et*4|(tttt|)*6ttttL", 4, (), 2),
        (r"Et*8\\|\(t*8\|\)*2t*8L", 4, (), 1),
        ("E" + "t" * 32 + "L", 1, (), 1),
    ],
)
def test_a_described_cut(text: str, pipeline: int, stages: tuple[int, ...], chunks: int, tmp_path: Path) -> None:
    recipe = read(text, pipeline, tmp_path)
    assert recipe.layout is not None
    assert (recipe.layout.stage_layers, recipe.layout.virtual_stages) == (stages, chunks)
    assert about(recipe, "not-modelled") == []
    assert recipe.layout.chunk_layers == ()


@pytest.mark.parametrize(
    ("text", "pipeline", "chunks"),
    [
        ("Et*11|t*11|t*10|L", 4, (11, 11, 10, 0)),
        ("Et*3|(tttt|)*6tttttL", 4, (3, *[4] * 6, 5)),
        ("E|(t*16|)*2L", 4, (0, 16, 16, 0)),
    ],
)
def test_a_described_cut_of_unequal_chunks(text: str, pipeline: int, chunks: tuple[int, ...], tmp_path: Path) -> None:
    recipe = read(text, pipeline, tmp_path)
    assert recipe.layout is not None
    assert recipe.layout.chunk_layers == chunks
    assert recipe.layout.stage_layers == tuple(sum(chunks[rank::pipeline]) for rank in range(pipeline))
    assert about(recipe, "not-modelled") == []


@pytest.mark.parametrize(
    ("flags", "pipeline", "chunks"),
    [
        (f"{EMBEDDING} {LOSS} --num-layers 30", 4, (7, 8, 8, 7)),
        (f"{EMBEDDING} {LOSS} --num-layers 30 --num-layers-per-virtual-pipeline-stage 2", 4, (1, *[2] * 14, 1)),
        (f"{LOSS} --num-layers 31 --num-virtual-stages-per-pipeline-rank 4", 4, (*[2] * 15, 1)),
        (f"{LOSS} --num-layers 3", 4, (1, 1, 1, 0)),
    ],
)
def test_embedding_and_loss_count_as_layers(flags: str, pipeline: int, chunks: tuple[int, ...], tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    base = BASE.replace("--num-layers 32", "")
    words = f"{' '.join(base.split())} --pipeline-model-parallel-size {pipeline} {flags}"
    file.write_text(f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {words}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.layout is not None
    held = recipe.layout.chunk_layers or recipe.layout.stage_layers
    assert held == chunks
    assert about(recipe, "not-modelled") == []


@pytest.mark.parametrize(
    ("text", "pipeline", "says"),
    [
        ("t*16|Et*16L", 2, "the cut of embedding, loss or next-token layers"),
        ("Et*16m|t*16L", 2, "the cut of embedding, loss or next-token layers"),
    ],
)
def test_a_described_cut_that_is_not_priced(text: str, pipeline: int, says: str, tmp_path: Path) -> None:
    assert any(says in message for message in about(read(text, pipeline, tmp_path), "not-modelled"))


@pytest.mark.parametrize(
    "text", ["Et*16|x*16L", "Et*16|t*8|t*8L", "Et*999999|(t*999999)*999999L", "", "((((", "E(t|*3"]
)
def test_a_description_that_is_none(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"run\.sh:2: {NAME}: "):
        read(text, 2, tmp_path)


@pytest.mark.parametrize(
    ("flags", "width"),
    [("", 10880), ("--multiple-of 256", 11008), ("--multiple-of 4096 --hidden-dim-multiplier 1.3", 16384)],
)
def test_the_width_that_flagscale_derives(flags: str, width: int, tmp_path: Path) -> None:
    shape = " ".join(BASE.replace("--ffn-hidden-size 14336", "").split())
    file = tmp_path / "run.sh"
    file.write_text(f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {shape} {flags}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.model_fields["intermediate_size"] == width


def test_heads_are_as_wide_as_said(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    words = f"{' '.join(BASE.split())} --kv-channels 160 --num-experts 8 --tensor-model-parallel-size 4"
    file.write_text(f"torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py {words}\n", encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert recipe.model_fields["head_dim"] == 160
    assert recipe.layout is not None
    assert recipe.layout.expert_tensor_parallel == 4
