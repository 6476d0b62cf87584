"""Launches of Megatron-Bridge's performance scripts: a recipe of a release, and what the flags change of it."""

from pathlib import Path
from typing import Any

import pytest

from simulator.answers.gates import Gates
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.check.verdict import Checked

RECIPE = "python scripts/performance/run_script.py --model_family_name {} --model_recipe_name {} --gpu {} "
WRAPPED = """#!/bin/bash
worker_command=$(cat <<- EOM
\tcd /opt/Megatron-Bridge ;
\tnumactl --cpunodebind=\\$((LOCAL_RANK/2)) nice -10 \\
\t{}

EOM
)
echo "$worker_command" > worker_command.sh
torchrun --nproc-per-node="4" --nnodes="2" --no-python bash worker_command.sh 2>&1 | tee log
"""


def judged(family: str, name: str, device: str, flags: str, folder: Path, **options: Any) -> Checked:
    file = folder / "launcher.sh"
    file.write_text(WRAPPED.replace("{}", RECIPE.format(family, name, device) + flags), encoding="utf-8")
    (result,) = check_files([str(file)], question_of(options), Gates(), root=folder)
    return result


def test_a_here_document_that_torchrun_starts_is_read_with_the_device_that_it_names(tmp_path: Path) -> None:
    flags = "--num_gpus 8 --gpus_per_node 4 --compute_dtype fp8_mx --micro_batch_size 4 --global_batch_size 512"
    result = judged("qwen", "qwen3_30b_a3b", "gb200", f"{flags} logger.log_throughput=True", tmp_path)
    assert (result.dialect, result.outcome) == ("bridge-shell", "fits"), result.reasons
    case = result.case
    assert case is not None
    assert (case.scenario.hardware.name, case.scenario.devices, case.scenario.model.name) == (
        "gb200-nvl72",
        8,
        "qwen3-30b-a3b",
    )
    assert (case.layout.micro_batch_size, case.layout.expert_parallel, case.scenario.seq_length) == (4, 8, 4096)
    assert (case.scenario.precision, case.scenario.framework.fp8_recipe) == ("fp8", "mxfp8")
    elsewhere = judged("qwen", "qwen3_30b_a3b", "gb200", flags, tmp_path, hardware="h100-sxm-80g")
    assert elsewhere.outcome == "refused"


@pytest.mark.parametrize(
    ("family", "name", "flags", "sizes", "cut"),
    [
        ("deepseek", "deepseek_v3", "--pipeline_model_parallel_size 16", (16, 1, 8), (*[4] * 15, 1)),
        (
            "llama",
            "llama31_405b",
            "-pp 8 -vp 2 --tensor_model_parallel_size 8",
            (8, 2, 1),
            (7, *[8] * 14, 7),
        ),
        ("llama", "llama3_70b", "-vp None -pp 8 --micro_batch_size 1", (8, 1, 1), (*[10] * 8,)),
    ],
)
def test_flags_change_the_recipe_of_the_newest_release_that_starts_so(  # noqa: PLR0917  a case
    family: str, name: str, flags: str, sizes: tuple[int, int, int], cut: tuple[int, ...], tmp_path: Path
) -> None:
    result = judged(family, name, "b200", f"--num_gpus 256 --compute_dtype fp8_mx {flags}", tmp_path)
    case = result.case
    assert case is not None
    layout = case.layout
    assert (layout.pipeline_parallel, layout.virtual_stages, layout.expert_parallel) == sizes
    assert (layout.chunk_layers or layout.stage_layers) == cut
    assert case.scenario.devices == 256


def test_what_no_release_has_is_not_modelled(tmp_path: Path) -> None:
    result = judged("llama", "llama3_70b", "gb200", "--num_gpus 8 --compute_dtype fp8_zz", tmp_path)
    assert result.outcome == "not_modelled"
    other = judged("llama", "llama3_8b", "b200", "--num_gpus 8 --num_layers 4", tmp_path)
    assert (other.outcome, "--num_layers" in other.reasons[0]) == ("not_modelled", True)


def test_words_without_a_value_of_the_run_are_open(tmp_path: Path) -> None:
    result = judged("llama", "llama3_8b", "b200", "--num_gpus \\$WORLD_SIZE", tmp_path)
    assert result.outcome == "cannot_tell"
    assert "WORLD_SIZE" in result.reasons[0]


LAID_OVER = """
run: {data: "blends:latest"}
recipe:
  _target_: megatron.bridge.recipes.llama.llama3.llama3_8b_pretrain_config
  per_split_data_args_path: ${art:data,path}/x.json
train: {train_iters: 10, global_batch_size: 128}
model: {tensor_model_parallel_size: 2}
logger: {wandb_project: "${run.wandb.project}"}
"""
"""A file as those of NVIDIA-NeMo/Nemotron name a library recipe and change some of its keys."""


def test_a_file_is_laid_over_the_recipe_that_it_names(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(LAID_OVER, encoding="utf-8")
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.case is not None, result.reasons
    layout = result.case.layout
    assert (result.dialect, result.case.model.name) == ("bridge-yaml", "llama3-8b")
    assert (layout.tensor_parallel, layout.context_parallel, result.case.scenario.global_batch_size) == (2, 2, 128)
    assert result.case.scenario.seq_length == 8192


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("llama3_8b_pretrain_config", "llama9_pretrain_config", "has none of this name"),
        (
            "per_split_data_args_path: ${art:data,path}/x.json",
            "packed_sequence: true",
            "--packed_sequence: not read",
        ),
        ("tensor_model_parallel_size: 2", "seq_length: '${art:data,size}'", "is not known"),
        ("global_batch_size: 128", "global_batch_size: []", "train.global_batch_size: empty over"),
        ("model: {", "optimizer: {main_grads_dtype: null}\nmodel: {", "optimizer.main_grads_dtype: empty over fp32"),
    ],
)
def test_what_such_a_file_leaves_open_is_said(old: str, new: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(LAID_OVER.replace(old, new), encoding="utf-8")
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert result.outcome in {"not_modelled", "cannot_tell"}
    assert reason in " ".join(result.reasons)


def test_a_file_says_what_it_leaves_to_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(LAID_OVER, encoding="utf-8")
    (result,) = check_files([str(file)], question_of({"hardware": "h100-sxm-80g"}), Gates(), root=tmp_path)
    assert any(remark.message.startswith("what is left out is as in llama3_8b") for remark in result.remarks)
