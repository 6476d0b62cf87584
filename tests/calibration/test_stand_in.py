"""A log, a recipe or a saved estimate in the place of a row's cells."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.evidence.measurements.rows import MeasuredRow, read_rows
from simulator.recipes.logs import stand_in
from tests.cli.running import refusal, run

LOG = Path(__file__).parents[1] / "measurements" / "data" / "megatron-8b.log"
ASKED = (
    *("--model", "llama3.1-8b", "--hardware", "h100-sxm-80g", "--devices", "16", "--global-batch-size", "128"),
    *("--seq-length", "4096", "--tp", "2", "--pp", "2", "--vpp", "4", "--recompute", "selective"),
)
SCRIPT = """\
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \\
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention \\
  --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 128 \\
  --vocab-size 128256 --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear \\
  --untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --sequence-parallel \\
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --no-position-embedding
"""


def table(folder: Path, header: str, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


def only(path: Path) -> MeasuredRow:
    (row,) = read_rows(path, stand_in)
    return row


def estimate(folder: Path) -> Path:
    path = folder / "estimate.json"
    path.write_text(run("estimate", *ASKED, "--format", "json").stdout, encoding="utf-8")
    return path


def test_a_saved_estimate_gives_the_layout(tmp_path: Path) -> None:
    estimate(tmp_path)
    row = only(table(tmp_path, "taken_from,step_time_s", "estimate.json,7.5"))
    assert (row.model, row.hardware, row.devices, row.seq_length) == ("llama3.1-8b", "h100-sxm-80g", 16, 4096)
    assert (row.tensor_parallel, row.pipeline_parallel, row.virtual_stages) == (2, 2, 4)
    assert (row.recompute, row.global_batch_size, row.step_time_s) == ("selective", 128, 7.5)
    assert "What the row leaves blank is of estimate.json." in row.evidence


def test_the_best_of_a_saved_ranking_gives_the_layout(tmp_path: Path) -> None:
    path = tmp_path / "ranking.json"
    asked = ("--model", "llama3.2-1b", "--hardware", "h100-sxm-80g", "--devices", "8", "--global-batch-size", "64")
    path.write_text(run(*asked, "--format", "json").stdout, encoding="utf-8")
    best = json.loads(path.read_text(encoding="utf-8"))["estimates"][0]
    row = only(table(tmp_path, "taken_from,step_time_s", "ranking.json,1.5"))
    assert row.micro_batch_size == best["layout"]["micro_batch_size"]
    assert row.tensor_parallel == best["layout"]["tp"]


def test_a_recipe_gives_the_layout_and_cells_come_first(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    row = only(table(tmp_path, "hardware,taken_from,micro_batch_size,step_time_s", "h100-sxm-80g,run.sh,2,9.25"))
    assert (row.model, row.devices, row.tensor_parallel, row.pipeline_parallel) == ("llama3-8b", 16, 2, 2)
    assert (row.recompute, row.seq_length, row.global_batch_size) == ("full", 4096, 128)
    assert row.micro_batch_size == 2


def test_a_log_gives_layout_and_figures(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text(LOG.read_text(encoding="utf-8"), encoding="utf-8")
    row = only(table(tmp_path, "hardware,taken_from,options", "h100-sxm-80g,run.log,expandable_segments=false"))
    assert (row.key, row.devices, row.step_time_ms, row.memory_kind) == ("mine:1", 32, 30271.75, "allocated")
    assert dict(row.options)["expandable_segments"] == "false"


def test_a_log_without_layout_and_a_recipe_make_a_row(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    steps = "".join(
        f" iteration {at}/ 100 | elapsed time per iteration (ms): {time} | global batch size: 128 |\n"
        for at, time in enumerate((900.0, 710.0, 701.0, 702.0, 703.0), start=1)
    )
    (tmp_path / "run.log").write_text(steps, encoding="utf-8")
    row = only(table(tmp_path, "hardware,taken_from", "h100-sxm-80g,run.sh|run.log"))
    assert (row.model, row.tensor_parallel, row.recompute, row.step_time_ms) == ("llama3-8b", 2, "full", 702.0)
    # The same from the command line.
    given = ("--hardware", "h100-sxm-80g", "--rows-only")
    made = run("calibrate", "--from-log", str(tmp_path / "run.log"), "--recipe", str(tmp_path / "run.sh"), *given)
    assert made.exit_code == 0, made.stderr
    (tmp_path / "made.csv").write_text(made.stdout, encoding="utf-8")
    (same,) = read_rows(tmp_path / "made.csv")
    assert (same.model, same.tensor_parallel, same.step_time_ms) == ("llama3-8b", 2, 702.0)


def test_columns_of_the_command_line_complete_a_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(" iteration 5/ 10 | elapsed time per iteration (ms): 702.0 | global batch size: 8 |\n" * 3, "utf-8")
    given = ("calibrate", "--from-log", str(log), "--hardware", "h100-sxm-80g", "--rows-only", "--warmup", "0")
    said = refusal(*given)
    assert "does not say model, devices, seq_length, micro_batch_size" in said
    told = ("model=llama3.1-8b", "devices=8", "seq_length=4096", "micro_batch_size=1", "tensor_parallel=8")
    made = run(*given, *(word for pair in told for word in ("--set", pair)))
    assert made.exit_code == 0, made.stderr
    assert "llama3.1-8b" in made.stdout
    assert "did you mean 'devices'?" in refusal(*given, "--set", "device=8")
    assert "must be a whole number" in refusal(*given, "--set", "devices=many")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("h100-sxm-80g,none.json", "none.json"),
        ("h100-sxm-80g,none.log", "none.log: no such file"),
        (",run.sh", "recipes do not say the hardware"),
        (",run.log", "logs do not say the hardware"),
    ],
)
def test_what_cannot_stand_in_is_refused_by_line(tmp_path: Path, line: str, said: str) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "run.log").write_text(LOG.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_rows(table(tmp_path, "hardware,taken_from,step_time_s", f"{line},7.5"), stand_in)
    assert ":2: " in str(caught.value)
    assert said in str(caught.value)


def test_a_fit_takes_them(tmp_path: Path) -> None:
    estimate(tmp_path)
    path = table(tmp_path, "taken_from,step_time_s", "estimate.json,4.9")
    found = run("calibrate", str(path), "--format", "json")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["families"][0]["family"] == "hopper"
