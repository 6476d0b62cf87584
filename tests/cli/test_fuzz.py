"""No arguments end in a traceback, a half answer or a number that is not finite."""

import json
import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.show.cli.main import cli
from tests.cli.running import run

FLAGS = {"--help", "-h", "--version", "--output", "--debug"}
"""Left out: they answer without being asked anything, write files, or show where a defect arose."""
NAMES = sorted(
    {name for command in (cli, *cli.commands.values()) for p in command.params for name in p.opts} - FLAGS - {"name"}
)
NUMBERS = st.integers(-2, 20).map(str) | st.sampled_from(
    ["64", "1024", "8192", "1:4", "1,2", "2:8", "0:3", "9" * 30, "1e9", "nan"]
)
WORDS = st.sampled_from(
    [
        *("none", "full", "selective", "none,full", "uniform", "block", "optimizer", "optimizer_tensorwise"),
        *("activations", "json", "csv", "always", "bf16", "fp16", "fp8", "torch", "paddle", "megatron", "100B"),
        *("mtp=true", "flash_attention=false", "expert_imbalance=nan", "cross_entropy_chunk_tokens=1"),
        *("llama3.2-1b", "mixtral-8x7b-v0.1", "deepseek-v2-lite", "h20", "bi150-64g"),
    ]
)
VALUES = NUMBERS | WORDS | st.text(max_size=8)
ARGUMENTS = st.lists(
    st.tuples(st.sampled_from(NAMES), VALUES).map(list)
    | st.sampled_from(NAMES).map(lambda name: [name])
    | VALUES.map(lambda v: [v]),
    max_size=6,
)
NOT_FINITE = re.compile(r"\b(?:nan|inf|infinity)\b", re.IGNORECASE)
QUICK = settings(suppress_health_check=[HealthCheck.too_slow])


def check(args: list[str]) -> str:
    """Run ``args`` and return the answer, which is empty if they were refused."""
    result = run(*args)
    assert result.exit_code in {0, 2, 3}, (args, result.stderr)
    assert "Traceback" not in result.stderr
    if result.exit_code:
        assert result.stdout == ""
        assert result.stderr.startswith("simulate: error: ")
        assert result.stderr.count("\n") == 1
    return result.stdout


@QUICK
@given(ARGUMENTS)
def test_any_arguments(groups: list[list[str]]) -> None:
    check([word for group in groups for word in group])


@QUICK
@given(
    st.sampled_from(["rank", "estimate"]),
    st.dictionaries(st.sampled_from([n for n in NAMES if n.startswith("--")]), NUMBERS | WORDS, max_size=4),
)
def test_any_options_of_a_sound_question(command: str, options: dict[str, str]) -> None:
    question = {"--model": "llama3.2-1b", "--hardware": "h20", "--devices": "4", "--global-batch-size": "8"}
    switches = {"--verbose", "--quiet", "--sequence-parallel", "--allow-tp-across-nodes", "--variants"}
    words = [
        word
        for name, value in (question | options).items()
        for word in ((name,) if name in switches else (name, value))
    ]
    answer = check([command, *words, "--format", "json"])
    if answer:
        json.loads(answer, parse_constant=lambda word: (_ for _ in ()).throw(AssertionError(word)))
        assert not NOT_FINITE.search(answer)


@QUICK
@given(st.sampled_from(["models", "hardware", "frameworks", "flags"]), st.text(max_size=12))
def test_any_name(command: str, name: str) -> None:
    check([command, "--", name])
