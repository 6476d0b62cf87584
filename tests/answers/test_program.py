"""`check`, `explain` and `emit` in Python answer as the commands do."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator import InputError, UnsupportedError
from simulator.answers.gates import FIRM
from tests.cli.running import run

RECIPE = str(Path(__file__).parents[2] / "examples" / "recipes" / "llama3-8b-megatron.sh")
QUESTION: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 2, "tp": 2}
WORDS = ("--model", "llama3.1-8b", "--hardware", "h100-sxm-80g", "--nodes", "2", "--tp", "2")
NOTHING: Any = 3
SMALL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
}


class Config:
    """As an object of transformers."""

    def to_dict(self) -> dict[str, Any]:
        return SMALL


def test_emit_writes_what_the_command_writes(tmp_path: Path) -> None:
    estimate = simulator.estimate(**QUESTION)
    written = run("emit", *WORDS).stdout
    assert simulator.emit(**QUESTION) == simulator.emit(estimate) == written
    saved = tmp_path / "estimate.json"
    saved.write_text(run("estimate", *WORDS, "--format", "json").stdout, encoding="utf-8")
    assert simulator.emit(str(saved)) == written
    large: dict[str, Any] = {"model": "llama3.1-70b", "tp": 8}
    with pytest.raises(UnsupportedError, match=r"does not fit: it needs .*force=True"):
        simulator.emit(**large)
    assert simulator.emit(**large, force=True).startswith("#!/bin/bash")


@pytest.mark.parametrize("more", ["--framework torch --recompute full", "--tp 2 --ep 8 --pp 2"])
def test_options_ask_what_an_estimate_of_them_asks(more: str, tmp_path: Path) -> None:
    words = ("--model", "qwen3-30b-a3b", "--nodes", "4", "--hardware", "h200-sxm", "--global-batch-size", "512")
    saved = tmp_path / "estimate.json"
    saved.write_text(run("estimate", *words, *more.split(), "--format", "json").stdout, encoding="utf-8")
    written = run("emit", str(saved), "--force").stdout
    assert written
    assert run("emit", *words, *more.split(), "--force").stdout == written


@pytest.mark.full_answer
def test_explain_says_what_the_command_says() -> None:
    told = json.loads(run("explain", "--model", "llama3.1-70b", "--nodes", "2", "--tp", "8", "--format", "json").stdout)
    question: dict[str, Any] = {"model": "llama3.1-70b", "nodes": 2, "tp": 8}
    for found in (simulator.explain(**question), simulator.explain(simulator.estimate(**question))):
        assert list(found.causes) == told["causes"]
        assert [list(change.options) for change in found.changes] == [one["options"] for one in told["changes"]]
        assert found.longest_sequence == told["longest_sequence"]
        assert len(found.rows()) == len(found.changes)
    over = simulator.explain(RECIPE, hardware="h100-sxm-80g", seq_length=4096)
    assert over.estimate.seq_length == 4096


def test_check_judges_as_the_command_does(tmp_path: Path) -> None:
    found = simulator.check(RECIPE, hardware="h100-sxm-80g", nodes=4)
    told = json.loads(run("check", RECIPE, "--hardware", "h100-sxm-80g", "--nodes", "4", "--format", "json").stdout)
    assert [row["outcome"] for row in found.rows()] == [one["outcome"] for one in told["results"]]
    assert found.exit_code == 0
    strict = simulator.check(RECIPE, hardware="h100-sxm-80g", max_memory_fraction=0.01)
    assert (strict.exit_code, strict.rows()[0]["passed"]) == (1, False)
    absent = simulator.check(str(tmp_path / "absent.sh"))
    assert (absent.exit_code, absent.rows()[0]["outcome"]) == (2, "unreadable")
    assert simulator.check(str(tmp_path / "absent.sh"), fail_on=FIRM[2:3]).exit_code == 0


@pytest.mark.parametrize("model", [SMALL, Config()])
def test_a_configuration_is_a_model(model: Any) -> None:
    question: dict[str, Any] = {"model": model, "nodes": 1, "global_batch_size": 64}
    assert simulator.rank(**question, top=1).estimates
    assert simulator.explain(**question).causes
    assert "--hidden-size" in simulator.emit(**question, tp=2, force=True)


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (simulator.check, "name the recipes to judge"),
        (lambda: simulator.check(RECIPE, model=SMALL), "over a file it is a name"),
        (lambda: simulator.explain(NOTHING), "not int"),
        (simulator.explain, "model: name one"),
        (lambda: simulator.explain(simulator.estimate(model="llama3.2-1b"), tp=2), "not both"),
        (lambda: simulator.explain("absent.json"), "no such file"),
        (lambda: simulator.emit(**QUESTION, target="megatorn"), "did you mean 'megatron'"),
    ],
)
def test_what_is_wrong_is_one_line(ask: Callable[[], object], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        ask()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["check", "compare", "emit", "estimate", "explain", "plan", "rank", "sweep"])
def test_help_shows_every_argument(name: str) -> None:
    function = getattr(simulator, name)
    parameters = inspect.signature(function).parameters
    assert "kwargs" not in parameters
    assert inspect.getdoc(function)
    if name in ("check", "emit", "estimate", "explain", "rank"):
        assert {"model", "hardware", "tp", "tensor_parallel", "seq_length"} <= set(parameters)
        assert "Required" not in str(parameters["model"])
