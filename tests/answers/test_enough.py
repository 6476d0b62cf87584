"""The fewest devices of every kind that hold a training, where nothing is offered."""

import json
from typing import Any

import pytest

import simulator
from simulator.answers.enough import enough
from simulator.errors import InputError
from simulator.question.question import question_of
from simulator.search.space import Space
from tests.cli.running import refusal, run

KINDS = ("a100-sxm-80g", "a40", "bi-v100", "h100-sxm-80g", "rtx-4090")


@pytest.fixture(autouse=True)
def few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five kinds stand for all of the catalogue."""
    monkeypatch.setattr("simulator.answers.enough.hardware_names", lambda: KINDS)


ASKED = ("plan", "--model", "qwen3-8b", "--seq-length", "4096")


def test_every_number_is_the_fewest_that_a_ranking_recommends() -> None:
    """A power of two below it holds nothing; its speed is that of the ranking."""
    held = {
        (each.hardware, each.method): each for each in enough(question_of({"model": "qwen3-8b", "seq_length": 4096}))
    }
    for key in (("rtx-4090", "full"), ("rtx-4090", "qlora"), ("h100-sxm-80g", "full"), ("a40", "lora")):
        hardware, method = key
        fewest = held[key]
        question: dict[str, Any] = {
            "model": "qwen3-8b",
            "seq_length": 4096,
            "hardware": hardware,
            "stack": "trl",
            "method": method,
        }
        best = simulator.rank(**question, devices=fewest.devices, top=1).estimates[0]
        assert best.throughput.step_seconds == pytest.approx(fewest.layout.step_seconds)
        assert fewest.seconds_per_sample == pytest.approx(best.throughput.step_seconds / 64)
        if fewest.devices > 1:
            assert not simulator.rank(**question, devices=fewest.devices // 2, top=1).estimates


def test_fewest_need_not_be_a_power_of_two() -> None:
    question = question_of({"model": "llama3.1-8b", "seq_length": 4096, "global_batch_size": 48})
    held = {each.hardware: each.devices for each in enough(question) if each.method == "full"}
    # 16 bytes a weight in parts, 60 GiB on each of two, 20 on each of six, and 2 between micro batches whole.
    assert (held["h100-sxm-80g"], held["a40"]) == (2, 6)


def test_a_thriftier_method_never_takes_more_devices() -> None:
    rows = json.loads(run(*ASKED, "--format", "json").stdout)
    assert {row["hardware"] for row in rows} == set(KINDS)
    for row in rows:
        counts = [row[f"{method}_devices"] for method in ("qlora", "lora", "full")]
        known = [count for count in counts if count is not None]
        assert known == sorted(known)


def test_it_stands_on_one_screen() -> None:
    lines = run(*ASKED, env={"COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 20
    assert lines[0].startswith("qwen3-8b: sequence 4096")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--deadline-days", "3"), "--deadline-days needs --offer and --train-tokens"),
        (("--train-tokens", "1B"), "missing option '--offer'"),
    ],
)
def test_what_needs_offers_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in refusal(*ASKED, *words)


def test_hardware_is_not_said() -> None:
    with pytest.raises(InputError, match="hardware: every kind of hardware"):
        list(enough(question_of({"model": "qwen3-8b", "hardware": "h100"})))


def test_precision_is_asked_for_and_methods_are_those_of_the_framework() -> None:
    """A device without 8-bit products has no row in fp8; Megatron's own trainer has no adapters."""
    rows = json.loads(run(*ASKED, "--precision", "fp8", "--format", "json").stdout)
    assert not [row for row in rows if row["hardware"].startswith("a100")]
    megatron = json.loads(run(*ASKED, "--framework", "megatron", "--format", "json").stdout)
    assert {row["lora_devices"] for row in megatron} == {None}


def test_layouts_and_the_probability_are_those_of_the_question() -> None:
    """A smaller probability never takes more devices, and some fewer; one micro batch size holds for all."""
    question = question_of({"model": "qwen3-8b", "seq_length": 8192})
    usual = {(each.hardware, each.method): each.devices for each in enough(question)}
    daring = {(each.hardware, each.method): each.devices for each in enough(question, min_fit_probability=0.3)}
    assert all(daring[key] <= devices for key, devices in usual.items())
    assert daring != usual
    two = list(enough(question, space=Space(micro_batch_size=(2,))))
    assert {each.layout.layout.micro_batch_size for each in two} == {2}
