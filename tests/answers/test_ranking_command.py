"""The command that a ranking prints: it gives the first row's figures again, and says with whose switches."""

import json
import shlex

import pytest

from tests.cli.running import run

QLORA = "--model qwen3-32b --method qlora --hardware a100-sxm-80g --devices 1 --seq-length 2048"
"""An estimate without a stack leaves dropout and losses open, so that it is less sure to fit."""


@pytest.mark.full_answer
@pytest.mark.parametrize(
    "words",
    [
        QLORA,
        "--model qwen3-30b-a3b --hardware h100 --nodes 2",
        "--model llama3.1-8b --hardware a100:1,h100:1",
        "--model llama3.1-8b --hardware a100 --devices 8 --option gradient_dtype=fp32 --tp 2",
        "--model qwen2.5-vl-7b --hardware h100-sxm-80g --devices 8 --images 2x448x448@trained",
        "--model llama3.1-8b --hardware ascend-910b-64g-8 --nodes 2",
    ],
)
def test_the_command_gives_the_first_row_again(words: str) -> None:
    found = json.loads(run("rank", *words.split(), "--format", "json").stdout)
    again = json.loads(run(*shlex.split(found["command"])[1:], "--format", "json").stdout)
    first = found["estimates"][0]
    assert again["layout"] == first["layout"]
    for of, name in (("memory", "fit_probability"), ("memory", "device_mib"), ("throughput", "step_time_s")):
        assert again[of][name] == pytest.approx(first[of][name])


@pytest.mark.full_answer
def test_a_ranking_says_whose_switches_its_chances_are_of() -> None:
    bare = json.loads(run("estimate", *QLORA.split(), "--format", "json").stdout)
    ranking = run("rank", *QLORA.split()).stdout
    assert bare["memory"]["fit_probability"] < 0.9
    assert "(fits 98.0 % with --stack default)" in " ".join(ranking.split())
    assert "%)." in run("rank", *QLORA.split(), "--stack", "peft").stdout
    more = " ".join(run("rank", *QLORA.split(), "-v").stdout.replace("\\\n", "").split())
    assert "an estimate leaves open what nobody said" in more
    assert "Row 1: simulate estimate --model qwen3-32b" in more


def test_a_ranking_of_nothing_has_no_command() -> None:
    words = "--model llama3.1-405b --hardware h100 --devices 1 --format json"
    assert json.loads(run("rank", *words.split()).stdout)["command"] == ""
