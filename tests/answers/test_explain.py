"""Explanations and comparisons: their figures are those of estimates, their sentences follow from the layout."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import simulator
from simulator.show.report.compare import headline
from simulator.show.report.schema import schema
from tests.cli.running import refusal, run

TOO_BIG = ("--model", "llama3.1-70b", "--nodes", "2", "--tp", "8", "--pp", "2")
ROOT = Path(__file__).resolve().parents[2]


def answered(*arguments: str, part: str) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    jsonschema.Draft202012Validator({**schema(), "anyOf": [{"$ref": f"#/$defs/{part}"}]}).validate(found)
    return found


def estimated(*options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("estimate", *options, "--format", "json").stdout)
    return found


@pytest.mark.full_answer
def test_what_is_explained_is_the_estimate() -> None:
    found = answered("explain", *TOO_BIG, part="explanation")
    assert found["estimate"] == estimated(*TOO_BIG)
    assert any("DP is 1, so nothing shards the optimizer" in cause for cause in found["causes"])


SHARDED = "--framework torch --hardware h100 --devices 8 --zero-stage 3"


@pytest.mark.full_answer
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--hardware ascend-910b-64g-8", {"hardware": "ascend-910b-64g-8"}),
        ("--hardware h20 --stack nvidia-recipes", {"hardware": "h20", "stack": "nvidia-recipes"}),
        ("--option tp_comm_overlap=false --option mtp=true", {"options": {"tp_comm_overlap": "false", "mtp": "true"}}),
    ],
)
def test_one_question_has_one_answer(options: str, words: dict[str, Any]) -> None:
    question = f"--model llama3.1-8b --nodes 2 --tp 4 --pp 2 {options}"
    expected = estimated(*question.split())
    assert answered("explain", *question.split(), part="explanation")["estimate"] == expected
    compared = answered("compare", question, question, part="comparison")
    assert (compared["first"], compared["second"]) == (expected, expected)
    asked = {"model": "llama3.1-8b", "nodes": 2, "tp": 4, "pp": 2, **words}
    assert simulator.compare(asked, asked).first == simulator.estimate(**asked)


@pytest.mark.full_answer
def test_each_change_makes_it_fit_as_priced() -> None:
    found = answered("explain", *TOO_BIG, part="explanation")
    assert found["changes"]
    for change in found["changes"]:
        words = " ".join(change["options"]).split()
        kept = [x for pair in zip(TOO_BIG[::2], TOO_BIG[1::2], strict=True) if pair[0] not in words for x in pair]
        again = estimated(*kept, *words)
        assert again["memory"]["device_mib"] == pytest.approx(change["estimate"]["memory"]["device_mib"], rel=1e-6)
        assert again["verdict"] == "fits"
        assert again["memory"]["fit_probability"] >= 0.95


@pytest.mark.full_answer
def test_a_layout_that_nobody_said_has_the_remedies_of_a_ranking() -> None:
    """Methods come before devices, and each stands with the layout and the stack that it was priced with."""
    asked: dict[str, Any] = {"model": "llama3.2-3b", "hardware": "rtx-4090", "devices": 1, "seq_length": 4096}
    remedies = simulator.rank(**asked).remedies
    changes = simulator.explain(**asked).changes
    names = [change.options[0].split()[-2] for change in changes]
    assert names.index("--method") < names.index("--devices")
    assert {change.options[0] for change in changes} == {remedy.change for remedy in remedies}
    assert all(change.estimate.verdict == "fits" for change in changes)
    words = " ".join(changes[-1].options).split()
    again = estimated("--model", "llama3.2-3b", "--hardware", "rtx-4090", "--seq-length", "4096", *words)
    assert again["memory"]["device_mib"] == pytest.approx(changes[-1].estimate.memory.device_bytes / 2**20, rel=1e-6)


def test_more_devices_are_asked_for_in_the_unit_of_the_question() -> None:
    asked: dict[str, Any] = {
        "model": "llama3.2-3b",
        "hardware": "rtx-4090",
        "devices": 1,
        "pp": 1,
        "framework": "torch",
    }
    options = [option for change in simulator.explain(**asked).changes for option in change.options]
    assert any("--devices" in option for option in options)
    assert not any("--nodes" in option for option in options)


@pytest.mark.full_answer
def test_one_device_is_not_asked_to_shard(tmp_path: Path) -> None:
    text = "base_model: meta-llama/Llama-3.1-8B\nadapter: qlora\nload_in_4bit: true\nlora_target_linear: true\n"
    sizes = "sequence_len: 4096\nmicro_batch_size: 2\ngradient_checkpointing: true\nbf16: true\n"
    (tmp_path / "x.yml").write_text(f"{text}{sizes}datasets: []\nlora_r: 32\nsample_packing: true\n", encoding="utf-8")
    said = run("check", str(tmp_path / "x.yml"), "--hardware", "rtx-4090", "--devices", "1").stdout
    assert "--micro-batch-size 1" in said
    assert "--zero-stage 1" not in said


@pytest.mark.full_answer
@pytest.mark.parametrize("least", [0.5, 0.95])
def test_the_longest_sequence_is_the_longest(least: float) -> None:
    options = ("--model", "llama3.1-8b", "--hardware", "h20", "--nodes", "1", "--tp", "2", "--cp", "2")
    longest = answered("explain", *options, "--min-fit-probability", str(least), part="explanation")["longest_sequence"]
    at, beyond = (estimated(*options, "--seq-length", str(length)) for length in (longest, longest + 128))
    assert at["verdict"] == "fits"
    assert at["memory"]["fit_probability"] >= least
    assert beyond["verdict"] != "fits" or beyond["memory"]["fit_probability"] < least


@pytest.mark.parametrize("stack", ["trl", "unsloth"])
def test_the_largest_micro_batch_is_the_largest(stack: Any) -> None:
    card: dict[str, Any] = {"model": "qwen3-8b", "method": "qlora", "hardware": "rtx-4090", "devices": 1}
    said: dict[str, Any] = {**card, "stack": stack, "recompute": "full", "offload": "none"}
    largest = simulator.explain(**said, micro_batch_size=1).largest_micro_batch
    assert largest is not None
    chances = [simulator.estimate(**said, micro_batch_size=n).memory.fit_probability for n in (largest, 2 * largest)]
    assert chances[0] is not None
    assert chances[1] is not None
    assert chances[0] >= 0.95 > chances[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--model llama3.1-70b --nodes 1 --tp 1", "every device holds all parameters"),
        ("--model llama3.1-8b --nodes 1 --zero-stage 0", "ZeRO is 0, so each of 8 replicas holds the whole optimizer"),
        ("--model llama3.1-8b --nodes 1 --tp 8 --no-sequence-parallel", "sequence parallelism is off"),
        ("--model mixtral-8x7b-v0.1 --nodes 4 --tp 2 --etp 1", "every device of a stage holds all 8 experts"),
        ("--model mixtral-8x7b-v0.1 --nodes 4 --tp 2", "every device of a stage holds 1/2 of each of the 8 experts"),
        (f"{SHARDED} --model mixtral-8x7b-v0.1 --recompute full", "every device gathers all 8 experts of a layer"),
        (f"{SHARDED} --model llama3.1-70b", "ZeRO 3 shards the parameters over 8 devices and gathers them in turn"),
        (f"{SHARDED} --model llama3.1-8b --option sharding_degree=4", "the optimizer over 4 of 8 replicas"),
        (f"{SHARDED} --model llama3.1-8b --offload activations", "--offload activations leaves activations on the"),
        ("--model llama3.1-8b --framework torch --devices 1 --zero-stage 3", "every device holds all parameters"),
        ("--model llama3.1-8b --framework torch --devices 1 --zero-stage 3", "ZeRO 3 over one device keeps gradients"),
        ("--model llama3.1-8b --nodes 1 --seq-length 65536 --recompute full", "recompute full leaves activations"),
        ("--model llama3.1-8b --nodes 1 --tp 4 --micro-batch-size 4", "the last stage holds the logits of"),
        ("--model exaone-3.5-7.8b --hardware t4 --devices 8 --stack unsloth --method qlora", "4,096 MiB of fp32 at a"),
        ("--model llama3.1-70b --nodes 8 --tp 4 --pp 8", "in flight stay"),
    ],
)
def test_causes_follow_from_the_layout(options: str, said: str) -> None:
    assert any(said in cause for cause in answered("explain", options, part="explanation")["causes"])


@pytest.mark.full_answer
def test_an_estimate_that_does_not_fit_ends_with_its_explanation() -> None:
    shown = run("estimate", *TOO_BIG).stdout
    assert "DP is 1, so nothing shards the optimizer" in shown
    assert "What would make it fit" in shown
    assert "Longest sequence" in shown
    assert "DP is 1" not in run("estimate", *TOO_BIG, "-q").stdout
    fits = run("estimate", "--model", "llama3.1-8b", "--hardware", "h20", "--tp", "8")
    assert "What would make it fit" not in fits.stdout


@pytest.mark.full_answer
def test_differences_are_those_of_two_estimates() -> None:
    a, b = "--model llama3.1-8b --nodes 2 --tp 2", "--model llama3.1-8b --nodes 2 --tp 4 --recompute full"
    found = answered("compare", a, b, part="comparison")
    assert found["first"] == estimated(*a.split())
    assert found["second"] == estimated(*b.split())
    totals = [sum(part[side] for part in found["memory_mib"]) for side in ("first", "second", "difference")]
    assert totals[0] == pytest.approx(found["first"]["memory"]["device_mib"], abs=0.1)
    assert totals[1] == pytest.approx(found["second"]["memory"]["device_mib"], abs=0.1)
    assert totals[2] == pytest.approx(totals[1] - totals[0], abs=0.1)
    steps = sum(part["difference"] for part in found["step_s"])
    pair = (found["first"]["throughput"]["step_time_s"], found["second"]["throughput"]["step_time_s"])
    assert steps == pytest.approx(pair[1] - pair[0], abs=1e-6)


def test_an_input_alone_is_priced_alone() -> None:
    a, b = "--model llama3.1-8b --nodes 2 --tp 2", "--model llama3.1-8b --nodes 2 --tp 4 --recompute full"
    found = answered("compare", a, b, part="comparison")
    inputs = {one["name"]: one for one in found["inputs"]}
    assert set(inputs) == {"tensor_parallel", "recompute"}
    alone = estimated(*a.replace("--tp 2", "--tp 4").split())
    expected = alone["memory"]["device_mib"] - found["first"]["memory"]["device_mib"]
    assert inputs["tensor_parallel"]["memory_mib"] == pytest.approx(expected, abs=0.01)
    recomputed = estimated(*a.split(), "--recompute", "full")
    seconds = recomputed["throughput"]["step_time_s"] - found["first"]["throughput"]["step_time_s"]
    assert inputs["recompute"]["step_time_s"] == pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "causes"),
    [
        ("--tp 2", "--tp 2 --precision fp8", ("B's peak is at loss", "parameters +", "precision fp8: 8-bit copies")),
        ("--tp 2", "--tp 2 --pp 4", ("optimizer +", "pipeline parallel 4: fewer replicas shard it (1 of data")),
        (
            "--framework torch --zero-stage 2 --recompute none",
            "--framework torch --recompute none",
            ("(cached +", "zero stage 3: whole layers are gathered"),
        ),
        ("--tp 2", "--tp 2", ()),
    ],
)
def test_what_grew_has_its_moment_and_the_input_that_does_it_alone(
    first: str, second: str, causes: tuple[str, ...]
) -> None:
    asked = "--model llama3.1-8b --hardware h100 --devices 8 --stack default"
    found = answered("compare", f"{asked} {first}", f"{asked} {second}", part="comparison")
    assert bool(found["causes"]) is bool(causes)
    shown = " ".join(found["causes"])
    for words in causes:
        assert words in shown
    grew = {part["name"].replace("_", " ") for part in found["memory_mib"] if part["difference"] > 1024}
    assert all(any(cause.startswith(name) for cause in found["causes"]) for name in grew)


@pytest.mark.full_answer
def test_recipes_and_files_are_compared_too(tmp_path: Path) -> None:
    recipe = ROOT / "examples" / "recipes" / "llama3-8b-megatron.sh"
    stored = tmp_path / "estimate.json"
    options = "--model llama3.1-8b --hardware h100-sxm-80g --nodes 4 --tp 2 --pp 2"
    run("estimate", *options.split(), "--format", "json", "--output", str(stored))
    found = answered("compare", str(recipe), str(stored), "--hardware", "h100-sxm-80g", part="comparison")
    assert found["names"] == [str(recipe), str(stored)]
    assert found["second"]["memory"] == estimated(*options.split())["memory"]
    same = answered("compare", str(stored), str(stored), part="comparison")
    assert same["inputs"] == []
    assert all(part["difference"] == 0 for part in (*same["memory_mib"], *same["step_s"]))


def test_an_input_that_cannot_stand_alone_says_so() -> None:
    shown = run("compare", "--model llama3.1-8b --devices 3 --pp 3", "--model llama3.1-8b --devices 8 --tp 8").stdout
    assert "only with others" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("compare", "a.json"), "missing arguments A and B"),
        (("compare", "a.json", "b.json"), "a.json"),
        (("compare", "--model nothing --nodes 1", "--model llama3.1-8b --nodes 1"), "unknown model 'nothing'"),
        (("compare", "--model llama3.1-8b --tpp 1", "--model llama3.1-8b --nodes 1"), "no such option '--tpp'"),
        (("compare", "--model 'llama", "--model llama3.1-8b --nodes 1"), "No closing quotation"),
        (("explain",), "--model"),
        (("explain", "no.sh"), "no such file"),
    ],
)
def test_bad_input_is_answered_in_one_line(arguments: tuple[str, ...], said: str) -> None:
    assert said in refusal(*arguments)


@pytest.mark.parametrize("command", [("explain", *TOO_BIG), ("compare", " ".join(TOO_BIG), " ".join(TOO_BIG))])
def test_markdown_is_written(command: tuple[str, ...]) -> None:
    assert "| ---" in run(*command, "--format", "markdown").stdout.replace("|--", "| --")


def test_inputs_without_effect_stand_on_one_line() -> None:
    sides = ("--model llama3.1-8b --hardware h20 --tp 1", "--model llama3.1-8b --hardware ascend-910b-64g-8 --tp 1")
    text = run("compare", *sides, "-v").stdout
    [line] = [line for line in text.splitlines() if line.startswith("Without effect on A alone: ")]
    told = {
        one["name"]: (one["memory_mib"], one["step_time_s"])
        for one in answered("compare", *sides, part="comparison")["inputs"]
    }
    idle = {name for name, (memory, seconds) in told.items() if abs(memory) < 5.12 and abs(seconds) < 0.0005}
    assert idle
    for name in told:
        assert (name.replace("_", " ") in line) == (name in idle)


@pytest.mark.full_answer
def test_a_layout_that_may_not_fit_says_how_sure_it_is_and_what_helps() -> None:
    question = ("examples/recipes/llama3-8b-megatron.sh", "--hardware", "a100-sxm-40g")
    text = run("explain", *question, "--min-fit-probability", "0.97").stdout
    [checked] = json.loads(run("check", *question, "--format", "json").stdout)["results"]
    priced = checked["estimate"]["memory"]
    assert priced["fits"]
    assert f"fits with {100 * priced['fit_probability']:.1f} %" in text
    assert "What would make it fit with at least 97 %" in text
    assert "What would make it fit\n" in run("explain", *TOO_BIG, "--calibration", "none").stdout


@pytest.mark.full_answer
def test_a_comparison_says_whether_two_steps_differ_for_sure() -> None:
    """What two layouts of one question share is in no range of their difference; two devices share nothing."""
    asked: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 2, "tensor_parallel": 2}
    others = [asked | {"tensor_parallel": 4}, asked | {"micro_batch_size": 2}, asked | {"hardware": "b200-sxm"}]
    layouts, near, devices = (simulator.compare(asked, other) for other in others)
    wide = [math.log(one.high / one.low) / 2 for one in (layouts.first.throughput.interval_seconds,) if one]
    assert layouts.differ is True
    assert near.differ is False
    assert near.step_half_width is not None
    assert near.step_half_width < wide[0]
    assert devices.step_half_width is not None
    assert devices.step_half_width > wide[0]
    unknown = simulator.compare(asked | {"calibration": "none"}, others[0] | {"calibration": "none"})
    assert (unknown.step_half_width, unknown.differ) == (None, None)
    assert headline(near).startswith("B may be ")
    assert headline(layouts).startswith("B is ")
    assert " %) and needs " in headline(layouts)
