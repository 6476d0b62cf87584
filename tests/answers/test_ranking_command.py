"""The command that a ranking prints: it gives the first row's figures again, and says with whose switches."""

import json
import shlex
from typing import Any

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


ON_ONE_CARD = "--method qlora --hardware rtx-4090 --devices 1 --seq-length 2048 --global-batch-size 8"


@pytest.mark.full_answer
@pytest.mark.parametrize(
    "words",
    [
        QLORA,
        f"--model qwen3-8b {ON_ONE_CARD}",
        f"--model qwen3-8b {ON_ONE_CARD} --stack unsloth",
        f"--model qwen3-8b {ON_ONE_CARD} --stack torchtune",
        "--model qwen3-8b --method qlora --hardware rtx-4090 --devices 1",
        "--model qwen3-14b --method full --hardware h100-sxm-80g --devices 8",
        "--model llama3.1-8b --framework paddle --hardware a100-sxm-80g --nodes 1",
        "--model qwen3-8b --method lora --hardware v100 --devices 4 --stack transformers",
    ],
)
def test_one_question_has_one_verdict_whoever_answers(words: str) -> None:
    """What nobody said of the run is open in each: in rows, in what an estimate or an explanation takes, in a plan."""
    ranking = simulator_json("rank", words)
    said, explained = simulator_json("estimate", words), simulator_json("explain", words)["estimate"]
    first = (ranking["estimates"] or ranking["risky"] or [ranking["nearest"]])[0]
    for other in (said, explained):
        assert other["layout"] == first["layout"]
        assert other["verdict"] == first["verdict"]
        assert other["memory"]["fit_probability"] == pytest.approx(first["memory"]["fit_probability"])
        assert ("open" in other) == ("open" in first)
    assert (said["verdict"] == "fits") == bool(ranking["estimates"])
    for each in ranking["estimates"]:
        assert each["memory"]["fit_probability"] >= 0.95
        assert each["verdict"] == "fits"
    for each in ranking["risky"]:
        sizes = (f"--{key} {each['layout'][key]}" for key in ("tp", "pp", "cp", "vpp"))
        others = (f"--{key.replace('_', '-')} {each['layout'][key]}" for key in ("micro_batch_size", "recompute"))
        again = simulator_json("estimate", " ".join((words, *sizes, *others)))
        assert again["layout"] == each["layout"]
        assert again["memory"]["fit_probability"] == pytest.approx(each["memory"]["fit_probability"])


def simulator_json(command: str, words: str) -> Any:
    return json.loads(run(command, *words.split(), "--format", "json").stdout)


@pytest.mark.full_answer
def test_a_ranking_says_what_is_open() -> None:
    ranking = " ".join(run("rank", *QLORA.split(), "-v").stdout.replace("\\\n", "").split())
    assert "not said: " in ranking
    assert "Row 1: simulate estimate --model qwen3-32b" in ranking
    assert "--stack default" not in ranking.partition("Row 1: ")[2].partition("--global-batch-size")[0]


def test_a_ranking_of_nothing_has_no_command() -> None:
    words = "--model llama3.1-405b --hardware h100 --devices 1 --format json"
    assert json.loads(run("rank", *words.split()).stdout)["command"] == ""
