"""Remedies in the recipe's words: each patch, applied, makes a recipe that passes with what was promised."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import FITS, size
from simulator.cost.stages import usable_bytes
from simulator.question.question import question_of
from tests.check.recipes import checked, judged
from tests.cli.running import run

pytestmark = pytest.mark.full_answer

H100 = ("--hardware", "h100-sxm-80g")
SHAPE = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --untie-embeddings-and-output-weights --vocab-size 128256 --bf16 "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope "
    "--seq-length 8192 --max-position-embeddings 8192 --global-batch-size 256 --tensor-model-parallel-size 2 "
    "--sequence-parallel --use-distributed-optimizer"
)
LINES = SHAPE.replace(" --", " \\\n    --")
RECIPES = {
    "one-line.sh": f"torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py {SHAPE} --micro-batch-size 4\n",
    "lines.sh": f"#!/bin/bash\n# a launch\n\ntorchrun --nnodes=1 --nproc-per-node 8 pretrain_gpt.py \\\n    "
    f"--micro-batch-size 4 \\\n    {LINES}\n",
    "variables.sh": f'#!/bin/bash\nNODES=1\nMBS=${{MBS:-4}}\nARGS="\n    {LINES}\n    --micro-batch-size $MBS\n"\n'
    "torchrun --nnodes $NODES --nproc-per-node 8 pretrain_gpt.py $ARGS\n",
    "array.sh": "ARGS=(\n    --micro-batch-size 4\n    " + SHAPE.replace(" --", "\n    --") + "\n)\n"
    "torchrun --nnodes 1 --nproc-per-node 8 pretrain_gpt.py ${ARGS[@]}\n",
    "paddle.sh": "python -m paddle.distributed.launch --devices 0,1,2,3,4,5,6,7 run_pretrain.py \\\n"
    "    --model_name_or_path meta-llama/Llama-3.1-8B --max_seq_length 8192 --bf16 1 --fp16_opt_level O2 \\\n"
    "    --tensor_parallel_degree 2 --sequence_parallel 1 --sharding stage1 \\\n"
    "    --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --use_flash_attention 1\n",
    "paddle.yaml": "model_name_or_path: meta-llama/Llama-3.1-8B\nmax_seq_len: 8192\nbf16: true\nfp16_opt_level: O2\n"
    "tensor_model_parallel_size: 2  # over a pair\nsequence_parallel: true\nsharding: stage1\n"
    "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\n",
    "paddle.json": '{\n  "model_name_or_path": "meta-llama/Llama-3.1-8B",\n  "max_seq_length": 8192,\n  "bf16": true,\n'
    '  "fp16_opt_level": "O2",\n  "tensor_parallel_degree": 2,\n  "sequence_parallel": true,\n  "sharding": "stage1",\n'
    '  "per_device_train_batch_size": 4,\n  "gradient_accumulation_steps": 8\n}\n',
    "titan.toml": '[model]\nname = "llama3"\nflavor = "8B"\n\n[training]\nlocal_batch_size = 4\nseq_len = 32768\n'
    "global_batch_size = 64\n\n[parallelism]\ndata_parallel_shard_degree = 8\ntensor_parallel_degree = 1\n\n"
    '[activation_checkpoint]\nmode = "none"\n',
}
"""One that does not fit, in each form."""
EXPECTED = {
    "one-line.sh": "--micro-batch-size 1",
    "lines.sh": "+    --micro-batch-size 1 \\",
    "variables.sh": "+MBS=${MBS:-1}",
    "array.sh": "+    --micro-batch-size 1\n",
    "paddle.sh": "--per_device_train_batch_size 1",
    "paddle.yaml": "+per_device_train_batch_size: 1\n",
    "paddle.json": '+  "per_device_train_batch_size": 1,',
    "titan.toml": '+mode = "full"',
}
"""What one of its patches says."""


@pytest.mark.parametrize("name", RECIPES)
def test_a_patch_makes_what_was_promised(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(name)
    file.write_text(RECIPES[name], encoding="utf-8")
    (found,) = checked(name, *H100, "--diff", code=1)
    assert found["outcome"] == "does_not_fit"
    patches = [change for change in found["changes"] if change["patch"]]
    assert any(EXPECTED[name] in change["patch"] for change in patches), [change["patch"] for change in patches]
    for change in patches:
        file.write_text(RECIPES[name], encoding="utf-8")
        subprocess.run(["git", "apply", "-"], input=change["patch"], text=True, check=True)  # noqa: S607  of the path
        promised = change["estimate"]
        unsure = 0.05 < promised["memory"]["fit_probability"] < 0.95
        (after,) = checked(name, *H100, code=3 if unsure else 0)
        assert after["outcome"] == ("cannot_tell" if unsure else "fits")
        got = after["estimate"]
        assert got["layout"]["tp"] == promised["layout"]["tp"]
        assert got["memory"]["device_mib"] == pytest.approx(promised["memory"]["device_mib"], rel=0.01)


def test_the_command_prints_them_fastest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("lines.sh").write_text(RECIPES["lines.sh"], encoding="utf-8")
    shown = run("check", "--diff", "lines.sh", *H100).stdout
    assert "-    --micro-batch-size 4 \\\n+    --micro-batch-size 1 \\\n" in shown
    (found,) = checked("lines.sh", *H100, code=1)
    ratios = [change["speed_ratio"] for change in found["changes"] if not change["options"].startswith("--nodes")]
    assert ratios == sorted(ratios, reverse=True)
    assert not any(change["patch"] for change in found["changes"])
    assert "--- a/lines.sh" not in run("check", "lines.sh", *H100).stdout


def test_segments_that_grow_come_first_where_they_suffice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = RECIPES["lines.sh"].replace("batch-size 4", "batch-size 1").replace("8192", "15360")
    Path("train.sh").write_text(text, encoding="utf-8")
    (found,) = checked("train.sh", *H100, "--diff", code=3)
    first = found["changes"][0]
    assert first["options"] == "--option expandable_segments=true"
    assert first["speed_ratio"] == pytest.approx(1)
    assert "+export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" in first["patch"]
    Path("train.sh").write_text(
        text.replace("# a launch\n", "export PYTORCH_CUDA_ALLOC_CONF=backend:native\n"), "utf-8"
    )
    (found,) = checked("train.sh", *H100, "--diff", code=3)
    assert "+export PYTORCH_CUDA_ALLOC_CONF=backend:native,expandable_segments:True" in found["changes"][0]["patch"]


@pytest.mark.parametrize(
    ("hardware", "vendor_has"), [("h100-sxm-80g", True), ("ascend-910b-64g-8", False), ("bi150-64g", False)]
)
def test_nothing_is_proposed_that_the_framework_cannot_do(hardware: str, vendor_has: bool) -> None:
    sizes: dict[str, Any] = {"tensor_parallel": 4, "sequence_parallel": True, "recompute": "full", "zero_stage": 1}
    found = judged(model="qwen2.5-32b", asked=question_of({"hardware": hardware}), global_batch_size=64, **sizes)
    assert found.outcome == "does_not_fit"
    proposed = " ".join(change.text for change in found.changes)
    assert found.changes
    assert ("--offload" in proposed) == vendor_has
    assert "--offload optimizer " not in f"{proposed} "
    assert "--zero-stage 3" not in proposed


@pytest.mark.parametrize(
    ("more", "has"),
    [("", False), ("stage: SFT\n", True), ("tensorwise_offload_optimizer: false\n", True)],
    ids=["PaddleNLP", "PaddleFormers", "named"],
)
def test_paddle_moves_its_state_where_the_trainer_can(more: str, has: bool, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(_on_one_node("17408") + more, "utf-8")
    (found,) = checked(str(file), "--hardware", "a100-sxm-40g", "--nodes", "1", code=1)
    assert any("--offload" in change["options"] for change in found["changes"]) == has


def _on_one_node(length: str) -> str:
    text = RECIPES["paddle.yaml"].replace("tensor_model_parallel_size", "tensor_parallel_degree")
    return text.replace("size: 4", "size: 1").replace("stage1", "stage1\nrecompute: true").replace("8192", length)


def test_over_the_capacity_by_less_than_the_interval_is_no_firm_verdict(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(_on_one_node("9216"), "utf-8")
    (found,) = checked(str(file), "--hardware", "a100-sxm-40g", "--nodes", "1", code=3)
    memory = found["estimate"]["memory"]
    assert memory["interval"]["low_mib"] < memory["capacity_mib"] < memory["device_mib"]
    assert found["outcome"] == "cannot_tell"
    assert "a run decides" in found["reasons"][0]
    assert found["changes"]


def test_under_the_capacity_by_less_than_the_interval_is_no_firm_verdict(tmp_path: Path) -> None:
    """The other side: more likely to fit than not is not the same as fits."""
    file = tmp_path / "recipe.yaml"
    outcomes = {}
    for length in ("8192", "8704", "9216", "14336"):
        file.write_text(_on_one_node(length), "utf-8")
        answer = run("check", str(file), "--hardware", "a100-sxm-40g", "--nodes", "1", "--format", "json")
        (found,) = json.loads(answer.stdout)["results"]
        memory = found["estimate"]["memory"]
        outcomes[found["outcome"]] = memory["fit_probability"]
        reaches = memory["interval"]["low_mib"] <= memory["capacity_mib"] <= memory["interval"]["high_mib"]
        assert reaches == (found["outcome"] == "cannot_tell")
    assert set(outcomes) == {"cannot_tell", "does_not_fit"}


def test_values_keep_their_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = RECIPES["paddle.json"].replace(
        '"sharding"', '"recompute": false,\n  "recompute_granularity": "full",\n  "sharding"'
    )
    Path("recipe.json").write_text(text, encoding="utf-8")
    (found,) = checked("recipe.json", *H100, "--diff", code=1)
    patches = "".join(change["patch"] for change in found["changes"])
    assert '-  "recompute": false,\n+  "recompute": true,\n' in patches
    assert '"recompute_granularity": full' not in patches


def test_a_hostile_line_is_not_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = RECIPES["one-line.sh"]
    Path("train.sh").write_text(f"cat > /dev/null <<'X'\n::error::mine\nX\n{text}", encoding="utf-8")
    shown = run("check", "--diff", "train.sh", *H100).stdout
    assert "no patch" in shown
    assert "mine" not in shown


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor_parallel": 2, "sequence_parallel": True},
        {"tensor_parallel": 2, "sequence_parallel": True, "pipeline_parallel": 2, "virtual_stages": 2},
        {"tensor_parallel": 2, "sequence_parallel": True, "context_parallel": 2, "seq_length": 16384},
        {"recompute": "full", "global_batch_size": 72},
    ],
)
def test_what_is_said_to_fit_is_the_last_that_does(changes: dict[str, Any]) -> None:
    found = judged(**{"global_batch_size": 64, **changes})
    room, case, estimate = found.room, found.case, found.estimate
    assert room is not None
    assert case is not None
    assert estimate is not None
    assert estimate.memory.interval_bytes is not None
    likely = estimate.memory.interval_bytes.high / estimate.memory.device_bytes

    def fits(seq_length: int = case.scenario.seq_length, micro_batch_size: int = case.layout.micro_batch_size) -> bool:
        """Whether the end of the case's 90 % range stays below the capacity."""
        layout = replace(case.layout, micro_batch_size=micro_batch_size)
        sized = size(pricing_of(replace(case.scenario, seq_length=seq_length), layout))
        usable = usable_bytes(case.scenario, sized.memory.contents)[sized.binding_stage, 0]
        return bool(sized.verdict[0] == FITS and sized.need_bytes[0] * likely <= usable)

    assert room.seq_length is not None
    assert fits(seq_length=room.seq_length)
    assert not fits(seq_length=room.seq_length + 1024 * (case.layout.context_parallel * case.layout.tensor_parallel))
    assert room.micro_batch_size is not None
    assert fits(micro_batch_size=room.micro_batch_size)
    sequences = case.scenario.global_batch_size // case.layout.data_parallel
    larger = [each for each in range(room.micro_batch_size + 1, sequences + 1) if sequences % each == 0]
    assert not any(fits(micro_batch_size=each) for each in larger if case.layout.virtual_stages == 1)


def test_it_is_said_in_table_and_json(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(RECIPES["one-line.sh"], encoding="utf-8")
    (found,) = checked(str(file), *H100, code=1)
    said = f"sequence of {found['largest']['seq_length']}; micro batch of {found['largest']['micro_batch_size']}"
    assert said in run("check", str(file), *H100).stdout
    assert found["largest"]["micro_batch_size"] == 1


def test_the_step_of_a_stated_accumulation_grows_with_its_micro_batch(tmp_path: Path) -> None:
    """Trainer has no global batch: of 2 sequences on each of 8 devices, a larger micro batch makes a larger step."""
    file, recipe = tmp_path / "train.sh", "torchrun --nproc_per_node 8 run_clm.py --do_train --bf16 --output_dir out"
    words = "--model_name_or_path meta-llama/Llama-2-7b-hf --block_size 2048 --deepspeed ds.json"
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}', "utf-8")

    def largest(size: int) -> int:
        file.write_text(f"{recipe} {words} --per_device_train_batch_size {size}\n", encoding="utf-8")
        (found,) = checked(str(file), *H100)
        return int(found["largest"]["micro_batch_size"])

    most = largest(1)
    assert most > 2
    assert largest(most) == largest(2) == most


def test_what_fits_no_likelier_is_no_remedy(tmp_path: Path) -> None:
    """Near the capacity a run decides; on one device ZeRO shards nothing, and the loss of 2,048 tokens is one chunk."""
    text = "--precision bf16-true --quantize bnb.nf4 --train.micro_batch_size 1 --train.max_seq_length 2048 --devices 1"
    (tmp_path / "x.sh").write_text(f"litgpt finetune_lora meta-llama/Llama-3.1-8B --data Alpaca {text}\n", "utf-8")
    (found,) = checked(str(tmp_path / "x.sh"), "--hardware", "rtx-4090", code=3)
    changes = [change["options"] for change in found["changes"]]
    assert "--recompute full" in changes
    assert not any("--zero-stage" in change or "chunk_tokens" in change for change in changes)
