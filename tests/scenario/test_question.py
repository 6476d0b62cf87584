"""A question knows who said each value, and options beat files in one way."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.answers.cases import Case, case_of_recipe
from simulator.answers.ranking import estimate_of
from simulator.answers.run import question_object, saved_case
from simulator.errors import InputError
from simulator.evidence.measurements.question import row_question
from simulator.evidence.measurements.rows import MeasuredRow
from simulator.question.origin import ARGUMENT, NOBODY, OPTION, Origin, Place
from simulator.question.question import Question, question_of
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout
from tests.cli.running import run

RECIPE = Recipe(
    file="train.sh",
    dialect="megatron-shell",
    nodes=2,
    framework="megatron",
    model="llama3.1-8b",
    seq_length=4096,
    global_batch_size=64,
    precision="bf16",
    options={"overlap_grad_reduce": "true"},
    layout=Layout(tensor_parallel=4, pipeline_parallel=2, sequence_parallel=True, zero_stage=1),
    places={"tp": Place("train.sh", 12), "model": Place("train.sh", 3), "overlap_grad_reduce": Place("train.sh", 20)},
)


def test_each_entrance_says_who_said_a_value() -> None:
    asked = question_of({"model": "llama3.1-8b", "tp": 4, "options": {"mtp": "true"}})
    assert {asked.origin(name) for name in ("model", "tensor_parallel", "mtp")} == {ARGUMENT}
    assert asked.origin("seq_length") == NOBODY
    assert asked.value("seq_length") == 8192
    recipe = Question.of_recipe(RECIPE)
    assert recipe.origin("tensor_parallel") == Origin("file", "train.sh:12")
    assert recipe.origin("overlap_grad_reduce") == Origin("file", "train.sh:20")
    assert recipe.origin("pipeline_parallel") == Origin("framework", "megatron")
    sizes: dict[str, Any] = {"devices": 8, "seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 8}
    row = MeasuredRow(table="own", hardware="h20", model="m", step_time_s=1.0, **sizes)
    assert row_question(row).origin("micro_batch_size") == Origin("file", "own:1")
    estimate = simulator.rank(model="llama3.1-8b", nodes=1, tp=2).estimates[0]
    picked = estimate.question.with_layout(estimate.layout)
    assert picked.origin("tensor_parallel") == ARGUMENT
    assert picked.origin("pipeline_parallel").kind == "search"


def test_the_command_line_tells_options_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATE_SEQ_LENGTH", "4096")
    answer = run("estimate", "--model", "llama3.1-8b", "--tp", "2", "--optimizer", "muon", "--format", "json")
    question = json.loads(answer.stdout)["question"]
    assert question["inputs"]["model"] == {"value": "llama3.1-8b", "said_by": "option"}
    assert question["inputs"]["seq_length"] == {
        "value": 4096,
        "said_by": "environment",
        "where": "SIMULATE_SEQ_LENGTH",
    }
    assert question["switches"] == {"optimizer": {"value": "muon", "said_by": "option"}}
    assert question["layout"]["tp"]["said_by"] == "option"
    assert question["layout"]["pp"]["said_by"] == "follows"
    assert "hardware" not in question["inputs"]


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("paged_adamw_32bit", "paged_adamw"),
        ("AdamW_torch_fused", "adamw"),
        ("adamw_bnb_8bit", "adamw_8bit"),
        ("lion", "lion"),
    ],
)
def test_an_optimizer_is_named_in_the_words_of_its_trainer(word: str, name: str) -> None:
    asked: dict[str, Any] = {"model": "qwen3-0.6b", "framework": "torch", "devices": 1, "seq_length": 512}
    named, worded, switched = (
        simulator.estimate(**asked, **of_word)
        for of_word in ({"optimizer": name}, {"optimizer": word}, {"options": {"optimizer": word}})
    )
    assert named.memory.need_bytes == worded.memory.need_bytes == switched.memory.need_bytes


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"tensor_parallel": 4, "pipeline_parallel": 2, "sequence_parallel": True}),
        ({"tp": 1}, {"tensor_parallel": 1, "sequence_parallel": False, "data_parallel": 8}),
        ({"tp": 2}, {"tensor_parallel": 2, "sequence_parallel": True, "data_parallel": 4}),
        ({"pp": 4}, {"pipeline_parallel": 4, "stage_layers": (8, 8, 8, 8)}),
        ({"nodes": 1}, {"data_parallel": 1}),
        ({"stage_layers": (15, 17)}, {"stage_layers": (15, 17)}),
        ({"recompute": "full"}, {"recompute": "full", "recompute_method": "uniform"}),
    ],
)
def test_an_option_beats_a_file_and_what_follows_follows(options: dict[str, Any], fields: dict[str, Any]) -> None:
    case = case_of_recipe(RECIPE, question_of(options, origin=lambda _: OPTION))
    assert isinstance(case, Case)
    assert {name: getattr(case.layout, name) for name in fields} == fields


def test_sizes_of_the_cluster_and_of_chunks_replace_each_other() -> None:
    first = question_of({"model": "llama3.1-8b", "nodes": 2, "vpp": 2, "pp": 4})
    assert "nodes" not in question_of({"devices": 8}).over(first).inputs
    assert "devices" not in first.over(question_of({"devices": 8})).inputs
    assert "nodes" not in question_of({"hardware": "h800-sxm-80g:1,bi150-64g:1x8"}).over(first).inputs
    other = question_of({"layers_per_virtual_stage": 2}).over(first)
    assert "virtual_stages" not in other.layout


def test_a_model_named_by_an_option_has_its_own_fields() -> None:
    shaped = Question.of_recipe(Recipe(framework="megatron", model=None, model_fields={"hidden_size": 64}))
    assert not question_of({"model": "llama3.1-8b"}, origin=lambda _: OPTION).over(shaped).model_fields


@pytest.mark.parametrize(
    "options",
    [
        "",
        "--optimizer muon",
        "--option overlap_grad_reduce=false --option expert_imbalance=2",
        "--num-layers 16 --seq-length 4k --global-batch-size 64",
        "--lora-rank 16 --tp 2",
        "--stack default --calibration none",
        "--framework torch --precision fp8 --hardware h100-sxm-80g",
        "--hardware h20 --devices 4 --tp 2 --recompute full --recompute-method block --recompute-layers 3",
        "--nodes 4 --pp 4 --vpp 2 --schedule 1f1b --micro-batch-size 2 --offload optimizer",
        "--nodes 4 --stage-layers 7,9,8,8",
        "--hardware h800-sxm-80g:1,bi150-64g:1x8 --pp 2",
        "--recompute selective --recompute-modules mlp,layernorm --zero-stage 2 --no-sequence-parallel --tp 2",
    ],
)
def test_the_json_of_an_answer_holds_its_whole_question(options: str) -> None:
    answer = run("estimate", "--model", "llama3.1-8b", *shlex.split(options), "--format", "json")
    assert answer.exit_code == 0, answer.stderr
    priced = json.loads(answer.stdout)
    case = saved_case("answer.json", answer.stdout, 1, Question())
    again = estimate_of(case)
    assert again.throughput.step_seconds == pytest.approx(priced["throughput"]["step_time_s"], rel=1e-8)
    assert again.memory.device_bytes / 2**20 == pytest.approx(priced["memory"]["device_mib"], rel=1e-6)
    written = question_object(case.question)
    assert {name: written["switches"][name] for name in priced["question"]["switches"]} == priced["question"][
        "switches"
    ]
    for name, stated in priced["question"]["inputs"].items():
        if name not in ("nodes", "devices"):
            assert written["inputs"][name] == stated


COMMANDS = {
    "rank": "rank --model qwen3-30b-a3b --nodes 2 --hardware h100-sxm-80g --optimizer muon",
    "estimate": "estimate --model llama3.1-8b --optimizer muon",
    "plan": "plan --model llama3.1-8b --train-tokens 10B --offer h20:1,2@2 --option gradient_dtype=bf16",
    "explain": "explain --model llama3.1-8b --tp 2 --recompute full --num-layers 16",
    "compare": "compare '--model llama3.1-8b --tp 2' '--model llama3.1-8b --tp 4 --lora-rank 8' --precision bf16",
    "check": "check {recipe} --hardware h20 --option gradient_dtype=bf16",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_a_command_answers_is_emitted(command: str) -> None:
    recipe = Path(__file__).parents[2] / "examples" / "recipes" / "llama3-8b-megatron.sh"
    answer = run(*shlex.split(COMMANDS[command].format(recipe=recipe)), "--format", "json")
    assert answer.exit_code == 0, answer.stderr
    written = run("emit", "--force", "-", input=answer.stdout)
    assert written.exit_code == 0, written.stderr
    assert "# simulate: stack=" in written.stdout


@pytest.mark.parametrize("options", ["--nodes 4 --pp 2", "--nodes 1 --tp 8 --recompute full", "--stack default"])
def test_a_written_script_names_its_stack(options: str, tmp_path: Path) -> None:
    answer = run("estimate", "--model", "llama3.1-8b", *shlex.split(options), "--format", "json")
    script = tmp_path / "train.sh"
    assert run("emit", "--force", "-", "--output", str(script), input=answer.stdout).exit_code == 0
    checked = json.loads(run("check", str(script), "--hardware", "z2000", "--format", "json").stdout)
    found, priced = checked["results"][0]["estimate"], json.loads(answer.stdout)
    assert found["memory"]["device_mib"] == priced["memory"]["device_mib"]
    assert found["throughput"]["step_time_s"] == priced["throughput"]["step_time_s"]
    assert found["question"]["inputs"]["stack"]["where"].endswith("train.sh:4")


def test_a_stack_that_the_framework_lacks_is_an_error_with_its_line(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("# simulate: stack=z200\ntorchrun pretrain_gpt.py --num-layers 2\n", encoding="utf-8")
    shown = run("check", str(script), "--hardware", "z2000", "--format", "json")
    assert "train.sh:1: stack 'z200', did you mean 'z2000'?" in json.loads(shown.stdout)["results"][0]["reasons"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"said_by": "somebody"}, "said_by 'somebody'"),
        ({"said_by": "optin"}, "did you mean 'option'?"),
    ],
)
def test_a_changed_question_is_wrong_input(change: dict[str, str], said: str) -> None:
    answer = json.loads(run("estimate", "--model", "llama3.1-8b", "--format", "json").stdout)
    answer["question"]["inputs"]["model"] |= change
    with pytest.raises(InputError, match="is no estimate") as caught:
        saved_case("answer.json", json.dumps(answer), 1, Question())
    assert said in str(caught.value)


def test_old_spellings_of_switches_live_on() -> None:
    with pytest.warns(FutureWarning, match="position_bias_tables=true is now position_bias_tables=1"):
        question = question_of({"options": {"position_bias_tables": "true"}})
    assert question.options == {"position_bias_tables": "1"}
    with pytest.warns(FutureWarning, match="see tp_comm_overlap"):
        assert question_of({"options": {"fused_collectives": "true"}}).options == {}
    shown = run("estimate", "--model", "llama3.1-8b", "--option", "position_bias_tables=true")
    assert shown.stderr.count("\n") == 1
    assert "note: --option position_bias_tables=true is now" in shown.stderr


def test_a_stack_says_its_framework() -> None:
    question = question_of({"stack": "torchtune"})
    assert question.value("framework") == "torch"
    assert question_of({"stack": "default"}).stated("framework") is None
    assert question_of({"stack": "nvidia-recipes", "method": "lora"}).value("framework") == "megatron"
    by = {"stack": OPTION}
    assert question_of({"stack": "torchtune"}, origin=lambda name: by[name]).value("framework") == "torch"
    assert question_of({"stack": "torchtune", "framework": "megatron"}).value("framework") == "megatron"
