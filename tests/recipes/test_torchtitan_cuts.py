"""How torchtitan's keys cut the layers over pipeline ranks and model chunks."""

import json
from pathlib import Path

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked
from simulator.recipes.readers.read import read_recipe
from tests.check.bare import without_advice

HEAD = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 8
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
"""


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    without_advice(monkeypatch)


def written(folder: Path, pipeline: int, keys: str) -> Path:
    file = folder / "run.toml"
    file.write_text(f"{HEAD}pipeline_parallel_degree = {pipeline}\n{keys}\n", encoding="utf-8")
    return file


def judged(folder: Path, pipeline: int, keys: str) -> Checked:
    (result,) = check_files(
        [str(written(folder, pipeline, keys))], question_of({"hardware": "h100-sxm-80g", "nodes": 2}), Gates()
    )
    return result


INTERLEAVED = 'pipeline_parallel_schedule = "Interleaved1F1B"'


def _listed(*sizes: int) -> str:
    ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
    names = [[f"layers.{layer}" for layer in range(end - size, end)] for size, end in zip(sizes, ends, strict=True)]
    return f"module_fqns_per_model_part = {json.dumps(names)}"


@pytest.mark.parametrize(
    ("pipeline", "keys", "ranks", "chunks"),
    [
        (2, "", (), ()),
        # Of 34 layers, two of them embedding and output, two are left over for the first stages.
        (4, "", (8, 9, 8, 7), ()),
        (4, "pipeline_parallel_first_stage_less_layers = 0\npipeline_parallel_last_stage_less_layers = 0", (), ()),
        (2, INTERLEAVED, (16, 16), (8, 9, 8, 7)),
        (2, f"{INTERLEAVED}\npipeline_parallel_layers_per_stage = 6", (16, 16), (5, 6, 6, 6, 5, 4)),
        (2, 'pipeline_parallel_schedule = "ZBVZeroBubble"', (15, 17), (8, 9, 8, 7)),
        (2, _listed(20, 12), (20, 12), ()),
        (2, f"{INTERLEAVED}\n{_listed(7, 9, 7, 9)}", (14, 18), ()),
        (2, 'pipeline_parallel_split_points = ["layers.12"]', (12, 20), ()),
    ],
)
def test_layers_of_ranks_and_chunks(
    pipeline: int, keys: str, ranks: tuple[int, ...], chunks: tuple[int, ...], tmp_path: Path
) -> None:
    (recipe,) = read_recipe(written(tmp_path, pipeline, keys))
    assert recipe.layout is not None
    assert (recipe.layout.stage_layers, recipe.layout.chunk_layers) == (ranks, chunks)
    result = judged(tmp_path, pipeline, keys)
    assert result.outcome in {"fits", "starved", "cannot_tell"}, result.reasons
    assert result.estimate is not None


@pytest.mark.parametrize(
    ("pipeline", "keys", "message"),
    [
        (4, f"{INTERLEAVED}\npipeline_parallel_layers_per_stage = 5", "32 layers make 7 stages on 4 pipeline ranks"),
        (2, "pipeline_parallel_layers_per_stage = 9", "takes one on a rank"),
        (4, "pipeline_parallel_first_stage_less_layers = 20", "are more than a stage"),
    ],
)
def test_stages_that_torchtitan_does_not_build(pipeline: int, keys: str, message: str, tmp_path: Path) -> None:
    result = judged(tmp_path, pipeline, keys)
    assert result.outcome == "refused"
    assert any(message in reason for reason in result.reasons)
