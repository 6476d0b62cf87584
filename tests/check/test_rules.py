"""Refusals hold only where the framework has them, and say where that was read."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator.answers.cases import Blocked, Case, case_of_recipe
from simulator.answers.gates import Gates
from simulator.answers.rules import FRAMEWORK_RULES
from simulator.question.question import question_of
from simulator.recipes.check.judge import check_files
from simulator.recipes.readers.read import read_recipe
from tests.check.recipes import checked, judged, recipe, rules
from tests.cli.running import run

PAIRED = """model_name_or_path: Qwen/Qwen3-0.6B
max_seq_len: 8192
tensor_model_parallel_size: 2
pipeline_model_parallel_size: 2
sequence_parallel: true
sharding: stage1
bf16: true
per_device_train_batch_size: 1
"""
LAUNCH = """{program} --model_name_or_path meta-llama/Llama-2-7b --max_seq_length 4096 --bf16 1 --fp16_opt_level O2 \\
 --tensor_parallel_degree 2 --pipeline_parallel_degree 2 --sequence_parallel 1 --per_device_train_batch_size 1
"""
PADDLE = "python -m paddle.distributed.launch --gpus 0,1,2,3,4,5,6,7"


@pytest.mark.parametrize("rule", FRAMEWORK_RULES, ids=lambda rule: rule.id)
def test_every_rule_names_a_line_or_a_run(rule: Any) -> None:
    assert re.search(r"[\w.]+ [\w.]+, [\w/]+\.py:[1-9]\d*|rows? \d+", rule.source)


def document(folder: Path, text: str) -> list[str]:
    file = folder / "recipe.yaml"
    file.write_text(text, encoding="utf-8")
    return [remark.rule for recipe in read_recipe(file) for remark in recipe.remarks]


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ("stage: SFT\n", False),
        ("stage: PT\n", False),
        ("stage: DPO\n", True),
        ("stage: VL-DPO\n", True),
        ("stage: DPO\npartial_send_recv: true\n", True),
        ("stage: DPO\npartial_send_recv: false\n", False),
        ("stage: DPO\npipeline_parallel_config: disable_partial_send_recv\n", False),
    ],
)
def test_whole_sends_are_asked_of_pairs_alone(more: str, asked: bool, tmp_path: Path) -> None:
    assert ("partial-send-recv" in document(tmp_path, PAIRED + more)) == asked
    assert "unknown-flag" not in document(tmp_path, PAIRED + more)


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        (f"{PADDLE} run_pretrain.py", False),
        (f"{PADDLE} run_finetune.py", False),
        (f"{PADDLE} ./alignment/dpo/run_dpo.py", True),
        (f"{PADDLE} ./alignment/kto/run_kto.py", True),
        ("erniekit train", True),
    ],
)
def test_whole_sends_are_asked_by_some_trainers(program: str, asked: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(LAUNCH.format(program=program), encoding="utf-8")
    (recipe,) = read_recipe(file)
    assert ("partial-send-recv" in [remark.rule for remark in recipe.remarks]) == asked


@pytest.mark.parametrize(
    ("devices", "outcome", "stage"), [(4, "fits", 0), (8, "refused", 2)], ids=["one replica", "two replicas"]
)
def test_nothing_is_sharded_over_one_replica(devices: int, outcome: str, stage: int) -> None:
    sizes: dict[str, Any] = {"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": True, "zero_stage": 2}
    found = judged("paddle", devices_per_node=devices, model="llama3.2-1b", global_batch_size=8, **sizes)
    assert found.outcome == outcome
    assert found.estimate is not None
    assert found.estimate.layout.zero_stage == stage
    assert ("sharding-off" in rules(found, "note")) == (stage == 0)


@pytest.mark.parametrize("degree", [1, 2])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_sharding_degree_of_one_empties_the_stage(stage: int, degree: int, tmp_path: Path) -> None:
    text = PAIRED.replace("stage1", f"stage{stage}") + f"sharding_parallel_size: {degree}\n"
    (tmp_path / "recipe.yaml").write_text(text, encoding="utf-8")
    (recipe,) = read_recipe(tmp_path / "recipe.yaml")
    assert recipe.layout is not None
    assert recipe.layout.zero_stage == (0 if degree == 1 else stage)


def test_heads_that_the_framework_copies_are_not_refused() -> None:
    copied = judged(tensor_parallel=16, nodes=2, sequence_parallel=True)
    assert (copied.outcome, rules(copied)) == ("fits", [])
    whole = judged("paddle", tensor_parallel=16, nodes=2, model="llama3-8b", sequence_parallel=True)
    assert whole.outcome == "not_modelled"
    assert judged("paddle", tensor_parallel=16, nodes=2, model="mixtral-8x7b-v0.1").outcome == "refused"


MEGATRON = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 30 --hidden-size 2048 --ffn-hidden-size 5632 \\
 --num-attention-heads 16 --swiglu --vocab-size 32000 --seq-length 2048 --max-position-embeddings 2048 --bf16 \\
 --micro-batch-size 1 --global-batch-size 64 --pipeline-model-parallel-size 4 --use-distributed-optimizer {more}
"""


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ("", True),
        ("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split", False),
        ("--pipeline-model-parallel-layout 'Et*7|t*8|t*8|t*7L'", False),
        ("--num-layer-list 7,8,8,7", False),
        ("--decoder-first-pipeline-num-layers 6", False),
    ],
)
def test_an_even_cut_is_asked_where_nothing_else_cuts(more: str, asked: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(MEGATRON.format(more=more), encoding="utf-8")
    (found,) = json.loads(run("check", str(file), "--hardware", "h100-sxm-80g", "--format", "json").stdout)["results"]
    named = [remark["rule"] for remark in found["remarks"] if remark["severity"] == "error"]
    assert ("megatron-uneven-layers" in named) == asked


def test_the_source_is_shown_where_more_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(MEGATRON.format(more=""), encoding="utf-8")
    (found,) = checked(str(file), "--hardware", "h100-sxm-80g", code=1)
    (said,) = [remark for remark in found["remarks"] if remark["rule"] == "megatron-uneven-layers"]
    assert said["source"].endswith("arguments.py:501")
    assert said["source"] not in run("check", str(file), "--hardware", "h100-sxm-80g").stdout
    assert said["source"] in " ".join(run("check", "-v", str(file), "--hardware", "h100-sxm-80g").stdout.split())


def test_what_a_rule_looks_at_is_there() -> None:
    case = case_of_recipe(recipe(), question_of({"hardware": "h100-sxm-80g"}))
    assert isinstance(case, Case)
    launch = case.launch(frozenset())
    for rule in FRAMEWORK_RULES:
        assert bool(rule.layout_rule) + bool(rule.remark) + bool(rule.when) == 1, rule.id
        assert not rule.is_broken(launch)
        for lines in rule.when:
            for subject in lines:
                launch.value(subject)
        assert "{" not in rule.text(launch, rule.fix + rule.breach)


# TransformerEngine 2, get_attention_backend: below sm80 only unfused attention is left.
@pytest.mark.parametrize(
    ("hardware", "word", "refused"),
    [
        ("v100-sxm-32g", "flash", True),
        ("rtx-2080-ti", "flash", True),
        ("v100-sxm-32g", "fused", True),
        ("v100-sxm-32g", "unfused", False),
        ("v100-sxm-32g", "auto", False),
        ("a100-sxm-80g", "flash", False),
    ],
)
def test_kernels_of_attention_are_refused_on_devices_without_them(
    hardware: str, word: str, refused: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.sh"
    text = MEGATRON.replace("--num-layers 30", "--num-layers 32").replace("--bf16", "--fp16")
    file.write_text(text.format(more=f"--attention-backend {word}"), encoding="utf-8")
    (found,) = check_files([str(file)], question_of({"hardware": hardware}), Gates())
    assert (found.outcome == "refused") == refused
    assert ("megatron-flash-attention" in [remark.rule for remark in found.remarks]) == refused
    if refused:
        assert found.reasons[0].startswith(f"{word} attention on {hardware}, ")
        assert "\n" not in found.reasons[0]


@pytest.mark.parametrize(
    ("hardware", "asked"),
    [("v100-sxm-32g", "fp16"), ("h100-sxm-80g", "bf16"), ("h100-sxm-80g:1,v100-sxm-32g:1", "fp16")],
)
def test_a_missing_precision_is_asked_for_as_the_devices_have_it(hardware: str, asked: str) -> None:
    found = case_of_recipe(recipe(precision=None), question_of({"hardware": hardware}))
    assert isinstance(found, Blocked)
    (fix,) = (remark.fix for remark in found.missing if remark.rule == "unknown-precision")
    assert fix == f"--precision {asked}"
