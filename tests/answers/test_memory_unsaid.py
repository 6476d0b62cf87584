"""A device's name that several memories share, such as V100 (16 or 32 GB): no firm verdict where they tell it apart."""

import json
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.question.specs.names import (
    clusters_meant,
    hardware_names,
    known_names,
    names_of_other_memory,
    shipped_name,
)
from tests.cli.running import run

pytestmark = pytest.mark.full_answer

DENSE: dict[str, Any] = {
    "model": "llama3.1-8b",
    "devices": 8,
    "stack": "default",
    "tensor_parallel": 8,
    "micro_batch_size": 1,
    "seq_length": 4096,
    "global_batch_size": 8,
}
"""Needs about 25 GiB of a V100 or A100; of 40,960 tokens 44 or more of an A100."""


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("v100", ("v100-sxm-32g",)),
        ("Tesla V100", ("v100-sxm-32g",)),
        ("V100-SXM2", ("v100-sxm-32g",)),
        ("a100", ("a100-sxm-40g",)),
        ("A100-SXM4", ("a100-sxm-40g",)),
        ("a100-pcie", ("a100-pcie-40g",)),
        ("dgx-a100", ("a100-sxm-40g",)),
        ("NVIDIA H100", ("h100-nvl-94g",)),
        ("bi150", ("bi150-32g",)),
        ("BI-V150", ("bi150-32g",)),
        ("天垓150", ("bi150-32g",)),
        ("Ascend 910B", ("ascend-910b-280t-32g",)),
        ("RTX 3080", ("rtx-3080-12g",)),
        ("GeForce RTX 3060", ("rtx-3060-8g",)),
        ("gh200", ("gh200-144g",)),
        ("A800-SXM4", ("a800-sxm-40g",)),
        ("a100-80gb", ()),
        ("p4d.24xlarge", ()),
        ("h100-sxm", ()),
        ("910b4", ()),
        ("h200", ()),
        ("no-such-device", ()),
    ],
)
def test_what_a_name_leaves_open(name: str, others: tuple[str, ...]) -> None:
    assert names_of_other_memory("hardware", name) == others


def test_shipped_names_say_their_memory_and_other_names_never_lead_to_themselves() -> None:
    assert not any(names_of_other_memory("hardware", name) for name in hardware_names())
    for name in known_names("hardware"):
        assert shipped_name("hardware", name) not in names_of_other_memory("hardware", name)


@pytest.mark.parametrize(
    ("name", "taken", "other", "verdict"),
    [("v100", "v100-sxm-16g", "v100-sxm-32g", "does_not_fit"), ("a100", "a100-sxm-80g", "a100-sxm-40g", "fits")],
)
def test_a_verdict_that_memories_tell_apart_depends(name: str, taken: str, other: str, verdict: str) -> None:
    question = DENSE | ({"seq_length": 40960} if name == "a100" else {})
    said, open_ = (simulator.estimate(hardware=each, **question) for each in (taken, name))
    assert (said.verdict, open_.verdict) == (verdict, "depends")
    assert (said.other_memory, open_.other_memory) == ("", other)
    assert open_.memory == said.memory
    assert taken in open_.provenance.cautions[0]
    assert other in open_.provenance.cautions[0]


def test_a_verdict_that_holds_for_each_memory_is_firm() -> None:
    small = DENSE | {"model": "llama3.2-1b"}
    large = DENSE | {"model": "llama3.1-405b"}
    assert [simulator.estimate(hardware="v100", **each).verdict for each in (small, large)] == ["fits", "does_not_fit"]


def test_a_layout_that_nobody_said_is_judged_with_each_memory_as_it_is_shown() -> None:
    question: dict[str, Any] = {"model": "llama3.1-8b", "devices": 8, "seq_length": 4096, "global_batch_size": 64}
    large = simulator.estimate(hardware="a100", **question)
    small = simulator.estimate(hardware="a100-sxm-40g", **question)
    assert large.memory.device_bytes > small.memory.capacity_bytes
    assert (large.verdict, large.other_memory, small.verdict) == ("depends", "a100-sxm-40g", "fits")
    (row, *_) = simulator.rank(hardware="a100", **question).estimates
    assert (row.layout, row.verdict) == (large.layout, large.verdict)


def test_the_command_line_keeps_a_name_that_leaves_a_memory_open() -> None:
    options = "--model llama3.1-8b --devices 8 --stack default --tp 8 --micro-batch-size 1 --seq-length 4096"
    for name, said in (("v100", "depends: needs"), ("v100-32gb", "fits: needs")):
        result = run("estimate", *options.split(), "--global-batch-size", "8", "--hardware", name)
        assert said in result.stdout, result.output
        assert ("The memory is not said" in result.stdout) == (name == "v100")


RECIPE = """#!/bin/bash
#SBATCH --gres=gpu:{device}:8
torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --tensor-model-parallel-size 8 --num-layers 32 \
  --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 \
  --micro-batch-size 1 --global-batch-size 8 --fp16 --vocab-size 32000 --train-iters 100 --mock-data
"""


@pytest.mark.parametrize("is_said", [False, True])
@pytest.mark.parametrize(("device", "outcome"), [("v100", "depends"), ("v100-16g", "does_not_fit")])
def test_a_check_depends_whoever_names_the_device(device: str, outcome: str, is_said: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    file.write_text(RECIPE.format(device=device))
    (checked,) = (simulator.check(file, hardware=device) if is_said else simulator.check(file)).results
    assert checked.outcome == outcome
    assert not checked.passed
    assert ("memory-unsaid" in {remark.rule for remark in checked.remarks}) == (outcome == "depends")


@pytest.mark.parametrize(
    ("hardware", "fraction", "outcome"),
    [("v100", 0.4, "depends"), ("v100", 0.9, "fits"), ("v100", 0.1, "fits"), ("v100-16g", 0.4, "fits")],
)
def test_a_gate_that_one_memory_breaks_alone_decides_nothing(
    hardware: str, fraction: float, outcome: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.sh"
    file.write_text(RECIPE.format(device="v100").replace("--num-layers 32", "--num-layers 4"))
    (checked,) = simulator.check(file, hardware=hardware, max_memory_fraction=fraction).results
    assert checked.outcome == outcome
    assert checked.passed == (fraction == 0.9)
    assert ("passes" in " ".join(checked.reasons)) == (outcome == "depends")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("a100:1", ("a100-sxm-80g:1", "a100-sxm-40g:1")),
        ("a100:1,a100:2x4", ("a100-sxm-80g:1,a100-sxm-80g:2x4", "a100-sxm-40g:1,a100-sxm-40g:2x4")),
        ("v100:1, h20:1", ("v100-sxm-16g:1,h20:1", "v100-sxm-32g:1,h20:1")),
        ("a100@network=25 GB/s", ("a100-sxm-80g@network=25 GB/s", "a100-sxm-40g@network=25 GB/s")),
        ("h20", ("h20",)),
        ("", ("",)),
    ],
)
def test_what_a_cluster_means(text: str, meant: tuple[str, ...]) -> None:
    assert clusters_meant(text) == meant


@pytest.mark.parametrize("hardware", ["a100:1", "a100@network=25GB/s", "a100:1,h20:1"])
def test_groups_and_networks_leave_the_memory_open_too(hardware: str) -> None:
    sizes = {"devices": None if ":" in hardware else 8, "pipeline_parallel": 1 + hardware.count(",")}
    question = DENSE | sizes | {"seq_length": 65536 if "," in hardware else 40960}
    estimate = simulator.estimate(hardware=hardware, **question)
    assert estimate.memory.fits
    assert estimate.verdict == "depends"
    assert estimate.other_memory == hardware.replace("a100", "a100-sxm-40g")
    assert "a100-sxm-80g" in estimate.provenance.cautions[0]


def test_json_says_what_each_memory_answers() -> None:
    options = "--model llama3.1-8b --devices 8 --stack default --tp 8 --micro-batch-size 1 --seq-length 4096"
    command = ("estimate", *options.split(), "--global-batch-size", "8", "--format", "json", "--hardware")
    answers = {name: json.loads(run(*command, name).stdout) for name in ("v100", "v100-16g", "v100-32g")}
    (other,) = answers["v100"]["other_memories"]
    alone = answers["v100-32g"]
    assert (other["hardware"], other["verdict"]) == (alone["hardware"], alone["verdict"])
    assert {name: other[name] for name in ("device_mib", "capacity_mib", "fit_probability")} == {
        name: pytest.approx(alone["memory"][name], rel=0.02)
        for name in ("device_mib", "capacity_mib", "fit_probability")
    }
    assert answers["v100-16g"]["other_memories"] == alone["other_memories"] == []


SEARCHED: dict[str, Any] = {"model": "llama3.1-8b", "devices": 8, "seq_length": 4096, "global_batch_size": 64}


def test_rows_of_a_ranking_depend_where_the_memory_turns_them() -> None:
    fast = simulator.rank(hardware="a100", **SEARCHED)
    small = simulator.rank(hardware="a100", **SEARCHED, tensor_parallel=8, micro_batch_size=1)
    verdicts = [{estimate.verdict for estimate in ranking.estimates} for ranking in (fast, small)]
    assert verdicts == [{"depends"}, {"fits"}]
    usable = small.estimates[0].other_memories[0].memory.capacity_bytes
    assert min(each.memory.need_bytes for each in fast.estimates) > usable
    assert simulator.rank(hardware="v100", **SEARCHED).nearest.verdict == "depends"  # type: ignore[union-attr]


def test_plans_and_sweeps_depend_too() -> None:
    question = {name: value for name, value in SEARCHED.items() if name != "devices"}
    plan = simulator.plan(**question, train_tokens=10**9, offers=["a100:1", "v100:1", "a100-sxm-80g:1"])
    assert [choice.verdict for choice in plan.choices] == ["maybe", "no", "yes"]
    assert "v100-sxm-32g it fits" in str(plan.choices[1].reason)
    rows = simulator.sweep(SEARCHED | {"hardware": ["a100", "v100", "a100-sxm-80g", "v100-sxm-32g"]}).rows()
    assert [row["outcome"] for row in rows] == ["depends", "depends", "fits", "fits"]
    assert "a100-sxm-40g" in str(rows[0]["reason"])


def test_what_would_make_it_fit_names_the_other_memory_and_does() -> None:
    question: dict[str, Any] = {"model": "llama3.1-8b", "devices": 8, "seq_length": 4096, "global_batch_size": 64}
    ranking = simulator.rank(hardware="v100", **question)
    assert not ranking.estimates
    assert "--hardware v100-sxm-32g" in [remedy.change for remedy in ranking.remedies]
    assert simulator.rank(hardware="v100-sxm-32g", **question).estimates


def test_changes_that_are_proposed_fit_whatever_the_memory() -> None:
    question = DENSE | {"tensor_parallel": 2, "micro_batch_size": 2, "seq_length": 8192, "global_batch_size": 64}
    explained = simulator.explain(hardware="a100", **question)
    assert explained.changes
    assert {change.estimate.verdict for change in explained.changes} == {"fits"}
    small = simulator.estimate(hardware="a100-sxm-40g", **question).memory.capacity_bytes
    assert all(change.estimate.memory.device_bytes < small for change in explained.changes)


def test_another_memory_is_named_where_what_is_open_decides_on_the_one_that_is_taken() -> None:
    question: dict[str, Any] = {"model": "qwen3-14b", "method": "qlora", "devices": 1, "stack": "unsloth"}
    question |= {"seq_length": 8192, "global_batch_size": 1024}
    small, large, open_ = (
        simulator.estimate(hardware=name, **question) for name in ("v100-sxm-16g", "v100-sxm-32g", "v100")
    )
    assert (small.verdict, large.verdict, open_.verdict) == ("depends", "fits", "depends")
    assert "v100-sxm-16g is taken, where it may fit" in open_.provenance.cautions[0]
    assert "on v100-sxm-32g it fits" in open_.provenance.cautions[0]
    assert open_.other_memory == ""  # a switch decides first


def test_a_check_names_another_memory_where_a_range_reaches_the_one_that_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "train.sh"
    said = {}
    for name in ("v100-16g", "v100"):
        file.write_text(RECIPE.format(device=name).replace("--num-layers 32", "--num-layers 14"))
        (said[name],) = simulator.check(file).results
    assert [checked.outcome for checked in said.values()] == ["cannot_tell", "depends"]
    assert "on v100-sxm-32g it fits" in said["v100"].reasons[0]
