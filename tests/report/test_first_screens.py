"""The first screen of every question: the answer in words, nothing cut on a terminal of 80 columns and 40 rows."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

from tests.cli.running import run

ROOT = Path(__file__).resolve().parents[2]
SCREEN = {"COLUMNS": "80", "LINES": "40"}
RECIPE = "examples/recipes/llama3-8b-megatron.sh"
SCREENS = {
    "rank": ("rank --model llama3.1-70b --nodes 8", ("Fastest: TP", "if your launch has", "Known: device ", "-v: ")),
    "codes for short texts": (
        "rank --model mixtral-8x7b --nodes 8 --precision fp8",
        ("±", "spare", "fit", "recomp. R1: selective"),
    ),
    "ascend": ("rank --model deepseek-v3 --hardware 910b --nodes 64", ("stack mindspeed-llm", "Fastest: ")),
    "nothing": ("rank --model llama3.1-70b --nodes 1 --hardware h100", ("Nothing fits", "what would make it fit")),
    "fewest nodes": (
        "rank --model llama3.1-70b --nodes auto --hardware h100 --train-tokens 1T --deadline-days 60",
        ("Fewest in 60 days: ", "nodes would fit", "Fastest: TP"),
    ),
    "no number of nodes": ("rank --model llama3.1-405b --nodes auto:4", ("Nothing fits on up to 4 nodes", "--nodes ")),
    "estimate": (
        "estimate --model llama3.1-70b --nodes 8 --tp 8 --pp 4 --train-tokens 1T",
        ("speed: ", " days for 1T"),
    ),
    "estimate that does not fit": ("estimate --model llama3.1-70b --nodes 2 --tp 8", ("What would make it fit", "Why")),
    "broken rules": ("estimate --model llama3.1-70b --nodes 8 --schedule zb_v --pp 4", ("Rules broken",)),
    "deep pipeline": ("estimate --model llama3.1-70b --nodes 8 --tp 4 --pp 16", ("(6 of 16)", "Time of a step: ")),
    "plan": (
        "plan --model llama3.1-8b --train-tokens 1T --deadline-days 60 --offer h100:8@2.5 --offer b200:8@4",
        ("Book: ", "Its layout: TP", "known", "Part by part: simulate estimate"),
    ),
    "explain": ("explain --model llama3.1-70b --nodes 8 --tp 8 --pp 4", ("z2000, the default: ", "Why", "Longest")),
    "explain experts that do not fit": (
        "explain --model deepseek-v3 --hardware h800 --nodes 32 --pp 16 --ep 16 --tp 1",
        ("does not fit", "(3 of 16: -v)", "What would make it fit", "--recompute full", "Next to measure"),
    ),
    "explain a deep pipeline": (
        "explain --model llama3.1-405b --nodes 16 --pp 16 --tp 8",
        ("z2000, the default: ", "What would make it fit", "Longest sequence"),
    ),
    "own configuration": (
        "rank --model config.json --hardware h100 --nodes 2",
        ("config.json", "Fastest: TP", "Known: device "),
    ),
    "check": (f"check {RECIPE} --hardware h100", ("1 recipe: 1 fits; 0 failed", "fits: needs ", "speed: ", "largest")),
}


CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
"""Qwen3-8B (config.json)."""


CUT = re.compile(r"\w\.\.\.|\.\.\.\w|Too narrow")


@cache
def screen(*words: str) -> str:
    """What a command shows; nothing of it is cut or beyond the screen."""
    result = run(*words, env=SCREEN)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert [line for line in lines if len(line) > 80 or CUT.search(line)] == []
    return result.stdout


@pytest.mark.parametrize("name", SCREENS)
def test_a_first_screen(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words, texts = SCREENS[name]
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    # Names of files are short, however long the path of the checkout is.
    monkeypatch.chdir(tmp_path if "config.json" in words else ROOT)
    shown = screen(*words.split())
    for text in texts:
        assert text in shown


@pytest.mark.parametrize(
    ("model", "hardware"),
    [("deepseek-v3", "h800"), ("mixtral-8x7b", "z2000"), ("ernie-4.5-21b-a3b", "bi150")],
)
def test_every_figure_of_a_mixture_of_experts_has_its_column(model: str, hardware: str) -> None:
    nodes = "4" if model != "deepseek-v3" else "32"
    lines = screen("rank", "--model", model, "--hardware", hardware, "--nodes", nodes).splitlines()
    [header] = [line for line in lines if line.lstrip().startswith("#")]
    assert {"TP", "PP", "DP", "EP", "mbs", "tokens/s", "±", "MFU", "GiB", "spare", "fit"} <= set(header.split())


EXPERTS = "--model deepseek-v3 --hardware h800 --nodes 32 --pp 16 --ep 16 --tp 1"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("--model llama3.1-8b --hardware h20 --tp 2", "--model llama3.1-8b --hardware h20 --tp 4"),
        (EXPERTS, f"{EXPERTS} --recompute full --option expert_dispatch=deepep"),
        (
            EXPERTS,
            "--model llama3.1-70b --hardware b200 --nodes 8 --tp 4 --pp 4 --precision fp8 --framework torch",
        ),
        (RECIPE, "examples/recipes/ernie-21b-lora-paddle.sh"),
    ],
)
def test_a_comparison_on_one_screen(first: str, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = screen("compare", first, second)
    assert re.search(r"^B (is|may be) .* % (faster|slower) \(.* %\) and needs .* GiB (more|less)", shown, re.MULTILINE)
    whole = run("compare", first, second, "-v", env=SCREEN).stdout
    assert len(whole.splitlines()) > len(shown.splitlines()) + 10


def test_signs_are_those_of_the_reader_s_change() -> None:
    words = ["--model", "llama3.1-70b", "--nodes", "8", "--tp", "8", "--pp", "4", "--hardware", "h100"]
    text = run("estimate", *words, env=SCREEN).stdout
    row = next(line for line in text.splitlines() if line.startswith("--option tp_comm_overlap=true"))
    other = [*words, "--option", "tp_comm_overlap=true"]
    steps = [
        json.loads(run("estimate", *asked, "--format", "json").stdout)["throughput"]["step_time_s"]
        for asked in (words, other)
    ]
    assert row.split()[2] == f"{100 * (steps[0] / steps[1] - 1):+.1f}"


def test_advice_can_be_taken() -> None:
    """What a device has no kernels for, or rules refuse, is not proposed; a stack only to devices that it is for."""
    ascend = screen(*SCREENS["ascend"][0].split())
    assert not re.search("deepep|fp8_dispatch|tp_comm_overlap", ascend)
    assert "overlap_expert_exchange" not in ascend
    amd = run("rank", "--model", "llama3.1-8b", "--hardware", "mi300x", "--nodes", "2", env=SCREEN).stdout
    assert "nvidia-recipes" not in amd
    nvidia = run("rank", "--model", "llama3.1-8b", "--hardware", "h100", "--nodes", "2", env=SCREEN).stdout
    assert "stack nvidia-recipes" in nvidia
    assert "--stack default" in nvidia
    slower = run("rank", "--model", "llama3.1-8b", "--hardware", "bi150", "--nodes", "2", env=SCREEN).stdout
    assert "--precision fp8" not in slower


def test_quiet_keeps_what_to_book() -> None:
    plan = SCREENS["plan"][0].split()
    assert run(*plan, "-q", env=SCREEN).stdout.startswith("Book: ")
    assert run("rank", "--model", "llama3.1-8b", "-q", env=SCREEN).stdout.lstrip().startswith("#")


def test_a_comparison_with_what_is_refused_names_the_rule_and_has_no_figures_of_it(tmp_path: Path) -> None:
    sides = [f"--model qwen2.5-7b --hardware h20 --tp {size}" for size in (4, 8)]
    shown = screen("compare", *sides)
    assert "B: refused: 28 attention heads do not divide by tensor parallel 8" in shown
    assert re.search(r"^tokens/s +[0-9,]+ +-$", shown, re.MULTILINE)
    assert not re.search("faster|slower", shown)
    page = tmp_path / "page.html"
    assert run("compare", *sides, "--output", str(page)).exit_code == 0
    assert "B: heads: 28 attention heads" in page.read_text(encoding="utf-8")
