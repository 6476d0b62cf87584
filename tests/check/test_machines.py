"""Machines that nobody states decide no failure: the answer is with how many a recipe passes."""

from pathlib import Path

import pytest

from simulator.cost.pricing.estimate import Estimate
from simulator.question.origin import Remark
from simulator.recipes.check import judge
from tests.check.recipes import checked
from tests.check.test_starts import BASE, H100, SHAPE, TENSOR, script

FLAGS = f"{BASE} --num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8"
MIXTRAL = FLAGS.replace(TENSOR, f"{TENSOR} --pipeline-model-parallel-size 4")


@pytest.mark.parametrize(
    ("machines", "fix"),
    [
        ("--nnodes ${SLURM_NNODES:-1} --nproc_per_node 8", "--nodes N, or --set SLURM_NNODES=N"),
        ("--nnodes $((NODES)) --nproc_per_node 8", "--nodes N, or --set NUM_NODES=N"),
        ("--nnodes $NODES --nproc_per_node ${GPUS:-8}", "--nodes N, or --set NUM_NODES=N"),
    ],
)
def test_a_default_decides_no_refusal(machines: str, fix: str, tmp_path: Path) -> None:
    file = script(tmp_path, f'NODES=${{NUM_NODES:-"1"}}\ntorchrun {machines} pretrain_gpt.py {MIXTRAL}')
    (found,) = checked(file, *H100, code=3)
    assert found["outcome"] == "cannot_tell"
    (missing,) = [remark for remark in found["remarks"] if remark["severity"] == "error"]
    assert (missing["rule"], missing["fix"]) == ("unknown-nodes", fix)
    assert "on 8 devices it is refused (expert parallel 8" in missing["message"]
    assert "with --nodes 8 it passes" in missing["message"]
    assert checked(file, *H100, "--nodes", "8")[0]["outcome"] == "fits"
    assert checked(file, *H100, "--nodes", "1", code=1)[0]["outcome"] == "refused"
    name = fix.rpartition(" ")[2].replace("=N", "=8")
    assert checked(file, *H100, "--set", name)[0]["outcome"] == "fits"


def test_machines_on_which_a_run_decides_refuse_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsure(estimate: Estimate, _unpriced_bytes: float) -> tuple[Remark, ...]:
        return (Remark(judge.UNDECIDED, "error", "a run decides"),) if estimate.memory.fits else ()

    monkeypatch.setattr(judge, "_unsure", unsure)
    file = script(tmp_path, f"torchrun --nnodes ${{SLURM_NNODES:-1}} --nproc_per_node 8 pretrain_gpt.py {MIXTRAL}")
    (found,) = checked(file, *H100, code=3)
    assert found["outcome"] == "cannot_tell"
    assert "with --nodes 8 it is not known to pass (a run decides)" in found["reasons"][0]


def test_what_the_script_states_itself_is_firm(tmp_path: Path) -> None:
    (found,) = checked(
        script(tmp_path, f"NODES=1\ntorchrun --nnodes $NODES --nproc_per_node 8 pretrain_gpt.py {MIXTRAL}"),
        *H100,
        code=1,
    )
    assert found["outcome"] == "refused"


def test_degrees_that_do_not_fill_defaulted_nodes(tmp_path: Path) -> None:
    wide = BASE.replace("parallel-size 2", "parallel-size 8").replace(
        "num-layers 32", "num-layers 32 --pipeline-model-parallel-size 8"
    )
    stated = script(tmp_path, f"torchrun --nnodes 1 --nproc_per_node 8 pretrain_gpt.py {wide}", "stated.sh")
    (found,) = checked(stated, *H100, code=1)
    assert (found["outcome"], found["estimate"]) == ("refused", None)
    assert "tp 8 x pp 8 x cp 1 = 64 does not divide the 8 devices" in found["reasons"][0]
    open_ = script(tmp_path, f"torchrun --nnodes ${{N_NODES:-1}} --nproc_per_node 8 pretrain_gpt.py {wide}", "open.sh")
    (found,) = checked(open_, *H100, code=3)
    assert "with --nodes 8 it passes" in found["reasons"][0]


COUNTING = """NUM=$(($(ds_ssh nvidia-smi --query-gpu=name --format=csv,noheader | wc -l)-2))
MICRO=$((512 / NUM))
deepspeed pretrain_gpt.py --vocab-size 50304 --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --bf16 \\
 --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size $MICRO --global-batch-size 512
"""


def test_devices_that_a_command_counts_decide_nothing(tmp_path: Path) -> None:
    file = script(tmp_path, COUNTING)
    (found,) = checked(file, *H100, code=3)
    assert "on 8 devices it does not pass" in found["reasons"][0]
    passing = found["reasons"][0].partition("with --nodes ")[2].split()[0]
    assert checked(file, *H100, "--nodes", passing)[0]["outcome"] == "fits"


def test_devices_of_a_node_that_nobody_names_refuse_nothing(tmp_path: Path) -> None:
    flags = f"{SHAPE} --num-layers 4 --vocab-size 32000 --seq-length 2048 --max-position-embeddings 2048 --bf16"
    few = f"{flags} --micro-batch-size 2 --global-batch-size 8"
    (found,) = checked(script(tmp_path, f"torchrun --nproc_per_node gpu pretrain_gpt.py {few}"), *H100, code=3)
    assert "does not divide by micro batch 2 x data parallel 8" in found["reasons"][0]
    assert "with --devices 4 it passes" in found["reasons"][0]
    (found,) = checked(script(tmp_path, f"torchrun --nproc_per_node 8 pretrain_gpt.py {few}"), *H100, code=1)
    assert found["outcome"] == "refused"


def test_a_refusal_says_the_numbers_that_break_it(tmp_path: Path) -> None:
    short = BASE.replace("embeddings 8192", "embeddings 4096")
    (found,) = checked(
        script(tmp_path, f"torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py {short}"), *H100, code=1
    )
    assert found["reasons"][0].startswith("max-position-embeddings 4096 < seq-length 8192; the framework says")
