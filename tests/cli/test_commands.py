"""What the commands answer, on which stream, with which exit code."""

import csv
import io
import json
import re
from pathlib import Path

import jsonschema
import pytest

from simulator.question.specs.catalogue import spec_text
from simulator.question.specs.names import hardware_names, model_names, variants
from simulator.show.forms import ANSWERS
from simulator.show.report.schema import schema
from tests.cli.running import TINY, refusal, run


def test_the_default_command_ranks() -> None:
    result = run(*TINY, "-v")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert result.stdout.startswith("llama3.2-1b on 1 node of h20 (2 devices): bf16")
    assert "Defaults used: --seq-length 8192, --precision bf16, --framework megatron." in result.stdout


@pytest.mark.parametrize(("words", "length"), [(("--stack", "unsloth"), 8192), (("--method", "lora"), 2048)])
def test_what_follows_from_a_stack_or_method_is_no_default(words: tuple[str, ...], length: int) -> None:
    """The framework follows from both, and the layout is a search's."""
    shown = run("estimate", *TINY, *words, "-v", env={"COLUMNS": "400"}).stdout
    assert f"Defaults used: --seq-length {length}, --precision bf16.\n" in shown


@pytest.mark.parametrize("command", ["rank", "estimate", "plan"])
def test_defaults_are_those_that_are_priced(command: str) -> None:
    """GPT-2 has 1,024 positions, and a T4 no bf16."""
    on = ("--offer", "t4:1", "--train-tokens", "1B") if command == "plan" else ("--hardware", "t4", "--devices", "1")
    shown = run(command, "--model", "gpt2-124m", *on, "--method", "lora", "-v", env={"COLUMNS": "400"}).stdout
    precision = "" if command == "plan" else ", --precision fp16"
    assert f"Defaults used: --seq-length 1024, --global-batch-size 64{precision}.\n" in shown


def test_rank_is_the_default_command() -> None:
    table, named = run(*TINY, "-q").stdout, run("rank", *TINY, "-q").stdout
    assert table == named != ""


def test_nodes_are_told_as_a_default() -> None:
    shown = run("--model", "llama3.2-1b", "--tp", "8", "-v", env={"COLUMNS": "400"}).stdout
    assert "Defaults used: --hardware z2000, --nodes 1, --seq-length 8192," in shown


def test_ranking_as_json_keeps_the_schema() -> None:
    result = run(*TINY, "--format", "json", "--tp", "1:2", "--recompute", "none,full", "--top", "3")
    found = json.loads(result.stdout)
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert len(found["estimates"]) <= 3
    assert found["defaults"] == ["seq_length", "precision", "framework"]
    assert {estimate["layout"]["recompute"] for estimate in found["estimates"]} <= {"none", "full"}


def test_the_schema_of_one_answer() -> None:
    found = json.loads(run("schema", "ranking", "--format", "json").stdout)
    assert found["anyOf"] == [{"$ref": "#/$defs/ranking"}]
    assert found["$defs"].items() <= schema()["$defs"].items()
    assert json.loads(run("schema", "--format", "json").stdout) == schema()
    assert "estimates" in run("schema", "ranking").stdout
    assert "did you mean 'ranking'?" in refusal("schema", "rankin")


def test_estimate_as_json_keeps_the_schema_and_adds_up() -> None:
    found = json.loads(run("estimate", *TINY, "--tp", "2", "--format", "json", "--train-tokens", "1B").stdout)
    jsonschema.Draft202012Validator(schema()).validate(found)
    assert found["layout"]["tp"] == 2
    assert found["layout"]["dp"] == 1
    assert found["layout"]["sequence_parallel"] is True
    assert sum(found["memory"]["breakdown_mib"].values()) == pytest.approx(found["memory"]["device_mib"], abs=0.01)
    assert sum(found["throughput"]["breakdown_s"].values()) == pytest.approx(found["throughput"]["step_time_s"])
    assert found["training"]["tokens"] == 10**9


@pytest.mark.parametrize("command", ["rank", "estimate"])
@pytest.mark.parametrize("format_name", ANSWERS["listing"].formats)
def test_every_answer_has_every_format(command: str, format_name: str) -> None:
    result = run(command, *TINY, "--format", format_name)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("\n")


@pytest.mark.parametrize("command", ["models", "hardware", "frameworks", "flags"])
@pytest.mark.parametrize("format_name", ANSWERS["listing"].formats)
def test_every_list_has_every_format(command: str, format_name: str) -> None:
    result = run(command, "--format", format_name)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("\n")


def test_lists_hold_the_shipped_names() -> None:
    for command, names in (("models", [*model_names(), *variants()]), ("hardware", hardware_names())):
        rows = csv.reader(io.StringIO(run(command, "--format", "csv").stdout))
        assert [row[0] for row in rows][1:] == list(names)


@pytest.mark.parametrize(
    ("command", "name", "said"),
    [
        ("models", "llama3.1-8b", "num_hidden_layers"),
        ("hardware", "z2000", "memory_bandwidth"),
        ("frameworks", "torch", "flash_attention"),
        ("flags", "megatron", "layout.tensor_parallel"),
    ],
)
def test_one_is_shown(command: str, name: str, said: str) -> None:
    result = run(command, name)
    assert result.exit_code == 0
    assert result.stdout.startswith(name)
    assert said in result.stdout
    assert not run(command, name, "-q").stdout.startswith(name)


def test_a_spec_is_written_as_yaml() -> None:
    assert run("hardware", "gb300-nvl72", "--format", "yaml").stdout == spec_text("hardware", "gb300-nvl72")
    assert run("models", "qwen3-8b", "--format", "yaml").stdout == spec_text("model", "qwen3-8b")
    several = run("hardware", "--format", "yaml")
    assert (several.exit_code, several.stderr) == (
        2,
        "simulate: error: --format yaml writes one file: name what to start from\n",
    )
    assert run("frameworks", "torch", "--format", "yaml").exit_code == 2


def test_an_own_file_is_shown(tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 100,
        "tie_word_embeddings": False,
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    assert "given by the file" in run("models", str(file)).stdout


def test_the_answer_goes_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    result = run(*TINY, "--format", "json", "--output", str(file), "--color", "always")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert json.loads(file.read_text(encoding="utf-8"))["schema_version"] == "2"
    assert run(*TINY, "-q", "--output", "-").stdout == run(*TINY, "-q").stdout


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    said = refusal(*TINY, "--output", str(tmp_path / "no" / "answer.txt"))
    assert said.endswith("cannot be written: No such file or directory")
    assert refusal("check", "README.md", "--output", str(tmp_path / "no" / "x")).endswith(said.rpartition(": ")[2])


def test_the_answer_is_coloured_on_request() -> None:
    assert "\x1b[" not in run(*TINY).stdout
    assert "\x1b[" not in run(*TINY, env={"NO_COLOR": "1", "FORCE_COLOR": "1"}).stdout
    assert "\x1b[" in run(*TINY, env={"NO_COLOR": "", "FORCE_COLOR": "1"}).stdout
    assert "\x1b[" in run(*TINY, "--color", "always", env={"NO_COLOR": "1"}).stdout
    assert "\x1b[" in run("--color", "always", "rank", *TINY).stdout
    assert "\x1b[" not in run("--color", "always", "rank", *TINY, "--color", "never").stdout


def test_verbosity_may_stand_before_or_behind_the_command() -> None:
    assert run("-q", "rank", *TINY).stdout == run("rank", *TINY, "-q").stdout
    assert "Assumed: " in run(*TINY, "-v").stdout


def test_options_come_from_the_environment() -> None:
    env = {"SIMULATE_MODEL": "llama3.2-1b", "SIMULATE_HARDWARE": "h20", "SIMULATE_DEVICES": "2"}
    for command in ((), ("rank",)):
        result = run(*command, env=env)
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith("llama3.2-1b on 1 node of h20 (2 devices)")
        assert "--hardware" not in result.stdout


@pytest.mark.parametrize(
    ("command", "name", "text", "said"),
    [
        (TINY, "TP", "two", "SIMULATE_TP: 'two'"),
        (("check", "README.md"), "FORMAT", "csv", "SIMULATE_FORMAT: 'csv' is not one of table, json, github"),
        (("check", "README.md"), "FORMAT", "junit", ""),
        (("explain", *TINY), "FORMAT", "csv", "SIMULATE_FORMAT: 'csv' is not one of table, json, markdown"),
        (("models",), "TP", "two", ""),
    ],
)
def test_a_wrong_variable_is_named(command: tuple[str, ...], name: str, text: str, said: str) -> None:
    """A command that follows takes what its own options take; the ranking's own are not asked then."""
    result = run(*command, env={f"SIMULATE_{name}": text})
    assert "invalid value" not in result.stderr if not said else f"invalid value for {said}" in result.stderr


def test_training_columns() -> None:
    shown = run(*TINY, "--train-tokens", "1B", "--price-per-device-hour", "2.5", "--format", "markdown").stdout
    assert re.search(r"\| +train days \| +train cost \|", shown)
    assert re.search(r"\| 0\.[0-9]+ \([0-9.]+-[0-9.]+\) \|", shown)


def test_nothing_fits_is_an_answer() -> None:
    question = ("--model", "llama3.1-405b", "--hardware", "a100-sxm-40g", "--nodes", "1", "--tp", "8")
    one = ("--pp", "1", "--cp", "1", "--vpp", "1", "--micro-batch-size", "1")
    result = run(*question, *one)
    assert result.exit_code == 0
    assert "Nothing fits. Nearest miss: " in result.stdout
    rows = run(*question, *one, "--format", "csv")
    assert rows.stdout.count("\n") == 1
    assert rows.stderr.startswith("simulate: note: nothing fits")
    assert run(*question, *one, "--format", "csv", "-q").stderr == ""


def test_estimate_defaults_follow_the_framework_and_the_devices() -> None:
    found = json.loads(run("estimate", *TINY, "--framework", "torch", "--format", "json").stdout)
    assert found["layout"]["zero_stage"] == 3
    assert found["layout"]["dp"] == 2
    found = json.loads(
        run(
            "estimate",
            "--model",
            "llama3.2-1b",
            "--tp",
            "2",
            "--dp",
            "3",
            "--global-batch-size",
            "9",
            "--format",
            "json",
        ).stdout
    )
    assert found["devices"] == 6
    assert "--devices 8" in run("estimate", "--model", "llama3.2-1b", "-v", env={"COLUMNS": "400"}).stdout


def test_layers_per_virtual_stage_are_turned_into_chunks() -> None:
    question = (*TINY, "--pp", "2", "--layers-per-virtual-stage", "4", "--format", "json")
    assert json.loads(run("estimate", *question).stdout)["layout"]["vpp"] == 2
    explicit = (*TINY, "--stage-layers", "8,8", "--layers-per-virtual-stage", "4", "--format", "json")
    assert json.loads(run("estimate", *explicit).stdout)["layout"]["vpp"] == 2
    uneven = run(*TINY, "--stage-layers", "9,7", "--vpp", "1,2", "--format", "json")
    assert uneven.exit_code == 0, uneven.stderr


def test_an_option_of_the_framework_counts() -> None:
    plain = run("estimate", *TINY, "--format", "json").stdout
    assert run("estimate", *TINY, "--option", "gradient_dtype=bf16", "--format", "json").stdout != plain


def test_a_template_goes_where_output_says(tmp_path: Path) -> None:
    assert run("calibrate", "--template", "--output", str(tmp_path / "rows.csv")).stdout == ""
    assert "--template is a table of CSV" in run("calibrate", "--template", "--format", "json").stderr
    assert (tmp_path / "rows.csv").read_text(encoding="utf-8") == run("calibrate", "--template").stdout


def test_a_base_of_four_bits_is_said() -> None:
    words = ("rank", "--model", "llama3.1-8b", "--hardware", "h100", "--top", "1", "--method")
    for method, text in (("lora", "LoRA of rank 8, "), ("qlora", "LoRA of rank 8 over 4 bits, ")):
        assert text in " ".join(run(*words, method).stdout.split())
