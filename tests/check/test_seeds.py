"""The user's own launch scripts, unmodified: what each is expected to come to."""

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.evidence.measurements.rows import MeasuredRow, read_rows, shipped_tables
from simulator.question.question import question_of
from tests.check.recipes import checked, judged
from tests.recipes.seeds import scripts

MIXED = ("--hardware", "h800-sxm-80g:1,bi150-64g:1x8")
SIXTEEN_EIGHT = ("--model-field", "num_attention_heads=16", "--model-field", "num_key_value_heads=8")
ASCEND = ("--hardware", "ascend-910b-64g")


def script(folder: Path, number: str, which: int) -> str:
    file = folder / f"{number}-{which}.sh"
    file.write_text(scripts(number)[which], encoding="utf-8")
    return str(file)


def result(folder: Path, number: str, which: int, *options: str, code: int = 0) -> dict[str, Any]:
    (found,) = checked(script(folder, number, which), *options, code=code)
    return found


def test_000_is_refused_for_its_heads(tmp_path: Path) -> None:
    found = result(tmp_path, "000", 0, *MIXED, code=1)
    assert found["outcome"] == "refused"
    errors = {remark["rule"]: remark for remark in found["remarks"] if remark["severity"] == "error"}
    assert set(errors) == {"paddle-heads", "paddle-kv-heads"}
    assert "heads 16/8" in errors["paddle-heads"]["fix"]
    assert "head_dim 128 -> 160" in errors["paddle-heads"]["fix"]
    line = scripts("000")[0].splitlines()[found["blame"]["line"] - 1]
    assert "--tensor_parallel_degree 8" in line


def test_000_with_other_heads_is_priced_on_both_kinds(tmp_path: Path) -> None:
    found = result(tmp_path, "000", 0, *MIXED, *SIXTEEN_EIGHT)
    estimate = found["estimate"]
    assert (found["outcome"], estimate["hardware"]) == ("fits", "h800-sxm-80g:8,bi150-64g:8")
    assert len(estimate["memory"]["stages"]) == 2
    assert "changed-model" in [remark["rule"] for remark in found["remarks"]]


def test_001_fits(tmp_path: Path) -> None:
    found = result(tmp_path, "001", 0, "--hardware", "bi150-64g")
    layout = found["estimate"]["layout"]
    assert (found["outcome"], layout["tp"], layout["pp"], layout["lora_rank"]) == ("fits", 4, 4, 32)


def test_002_full_training(tmp_path: Path) -> None:
    found = result(tmp_path, "002", 0, *ASCEND, code=0)
    # No run with offload on Ascend was measured, but nearly all of its memory is counted state.
    assert found["outcome"] == "fits"
    assert found["estimate"]["memory"]["fit_probability"] > 0.95
    peaks = found["peaks"]
    assert peaks["optimizer_step"]["device_mib"] > peaks["passes"]["device_mib"] > 0
    assert found["estimate"]["memory"]["moment"] == "optimizer step"
    # The document says that 128 devices need offload_optim; the model finds a little room without it.
    without = found["without_offload"]
    assert without["layout"]["offload"] == "none"
    assert without["memory"]["device_mib"] > found["estimate"]["memory"]["device_mib"]
    (uneven,) = [remark for remark in found["remarks"] if remark["rule"] == "uneven-stages"]
    assert uneven["severity"] == "warning"
    assert "number of layers (54) should be divided by part number(16)" in uneven["message"]


@pytest.mark.full_answer
def test_002_on_more_and_fewer_devices(tmp_path: Path) -> None:
    recommended = result(tmp_path, "002", 0, *ASCEND, "--nodes", "10", "--pp", "20", "--offload", "none")
    assert (recommended["outcome"], recommended["estimate"]["devices"]) == ("fits", 160)
    half = result(tmp_path, "002", 0, *ASCEND, "--nodes", "4", "--pp", "8", code=1)
    assert (half["outcome"], half["estimate"]["layout"]["offload"]) == ("does_not_fit", "optimizer")
    assert half["changes"]


def test_002_adapters(tmp_path: Path) -> None:
    assert result(tmp_path, "002", 1, *ASCEND)["outcome"] == "fits"
    one = result(tmp_path, "002", 1, *ASCEND, "--devices", "8", "--pp", "1", code=1)
    assert one["outcome"] == "does_not_fit"


def test_003_all_stages_fit() -> None:
    """The script that document 003 names, written from the facts about it."""
    kept = {4, 5, 9, 10, 14, 15, 19, 20, 24, 25, *range(29, 40)}
    found = judged(
        "paddle",
        asked=question_of({"hardware": "bi150-64g"}),
        model="llama-13b",
        nodes=4,
        devices_per_node=16,
        seq_length=2048,
        global_batch_size=2048,
        precision="fp16",
        options={"gradient_dtype": "fp32"},
        pipeline_parallel=8,
        micro_batch_size=2,
        recompute="full",
        recompute_method="list",
        recompute_layer_list=tuple(layer for layer in range(40) if layer not in kept),
        stage_layers=(4, 5, 5, 5, 5, 5, 6, 5),
    )
    # No run of BI150 tells how far its memory is missed: the range is wider than the room that is left.
    assert found.outcome == "cannot_tell"
    assert found.estimate is not None
    assert found.estimate.memory.fits
    assert (found.estimate.memory.fit_probability or 0.0) > 0.8
    stages = found.estimate.memory.stages
    assert len(stages) == 8
    assert all(stage.device_bytes < 32768 * 2**20 for stage in stages)


# Which script, its settings, and the row of the measured table that it ran as.
RUNS = [
    pytest.param(2, ("--set", "WORLD_SIZE=4"), 2, id="8b-tp1-pp1"),
    pytest.param(3, ("--set", "WORLD_SIZE=4"), 13, id="8b-fp8-selective"),
    pytest.param(5, ("--set", "WORLD_SIZE=4"), 19, id="14b-tp1-pp4"),
    pytest.param(6, ("--set", "WORLD_SIZE=8"), 34, id="70b-tp2-pp2"),
    pytest.param(7, ("--set", "WORLD_SIZE=8"), 54, id="72b-tp4-pp8-selective"),
]
TOLERANCE = 0.05


def row(number: int) -> MeasuredRow:
    (table,) = (path for path in shipped_tables() if path.stem == "z2000-megatron")
    return next(row for row in read_rows(table) if row.row == number)


@pytest.mark.parametrize(("which", "settings", "number"), RUNS)
def test_004_scripts_price_as_their_rows(tmp_path: Path, which: int, settings: tuple[str, ...], number: int) -> None:
    file = script(tmp_path, "004", which)
    measured = row(number)
    ran = measured.outcome == "ok"
    (found,) = checked(file, "--hardware", "z2000", "--set", "TQ_GPU_NUM=8", *settings, code=0 if ran else 1)
    if not ran:
        assert (measured.outcome, found["outcome"]) == ("oom", "does_not_fit")
        return
    assert found["estimate"]["memory"]["device_mib"] == pytest.approx(measured.memory_mib, rel=TOLERANCE)
    assert found["estimate"]["throughput"]["step_time_s"] == pytest.approx(
        (measured.step_time_ms or 0) / 1e3, rel=TOLERANCE
    )


@pytest.mark.parametrize("which", [1, 4])
def test_004_positional_parameters_are_named(tmp_path: Path, which: int) -> None:
    found = result(tmp_path, "004", which, code=3)
    assert found["outcome"] == "cannot_tell"
    named = {remark["fix"].split("=")[0] for remark in found["remarks"] if remark["rule"] == "unknown-value"}
    assert {f"--set {number}" for number in (1, 2, 3, 4, 7, 9, 10, 11, 12)} <= named
    assert all(remark["place"] for remark in found["remarks"] if remark["rule"] == "unknown-value")


def test_004_full_recompute_fails_in_the_llama_example_only(tmp_path: Path) -> None:
    options = ("--set", "TQ_GPU_NUM=8", "--set", "WORLD_SIZE=4", "--recompute", "full", "--hardware", "z2000")
    llama = result(tmp_path, "004", 3, *options, code=1)
    assert llama["outcome"] == "refused"
    assert "pai-te-checkpoint" in [remark["rule"] for remark in llama["remarks"]]
    qwen = result(tmp_path, "004", 5, *options)
    assert qwen["outcome"] == "fits"
    offload = result(tmp_path, "004", 3, *options[:-4], "--offload", "activations", "--recompute", "none", code=1)
    assert "megatron-offload-pipeline" in [remark["rule"] for remark in offload["remarks"]]


def test_004_layers_that_do_not_divide(tmp_path: Path) -> None:
    settings = ("--set", "TQ_GPU_NUM=8", "--set", "WORLD_SIZE=4")
    sizes = ("--tp", "2", "--pp", "2", "--layers-per-virtual-stage", "5")
    found = result(tmp_path, "004", 5, *settings, *sizes, code=1)
    assert "megatron-virtual-stages" in [remark["rule"] for remark in found["remarks"]]


def test_the_largest_model_of_002_keeps_a_believable_share_of_the_peak() -> None:
    """Mixtures of experts reach less than dense models; of those the best published run on this platform has 0.71."""
    for nodes in (8, 16):
        ranked = simulator.rank(
            model="ernie-4.5-300b-a47b", hardware="ascend-910b-64g", nodes=nodes, framework="paddle", top=5
        )
        best = ranked.estimates or ranked.risky
        assert best
        assert max(found.throughput.mfu for found in best) < 0.4
