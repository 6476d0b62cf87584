"""Bad input gets one line: what, where, what is allowed, the nearest name."""

import csv
import json
from pathlib import Path

import pytest

from simulator.errors import UnsupportedError
from simulator.show.cli import commands, main
from simulator.show.cli.options import answer_options, layout_options, listed, question_options
from tests.cli.running import TINY, refusal, run


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--modle", "x"), "no such option '--modle', did you mean '--model'?"),
        (
            ("modles",),
            "no such command 'modles', did you mean 'models'?; commands: rank, estimate, plan",
        ),
        (("--model", "llama3.1-8b", "estimate"), "--model stands before the command 'estimate'"),
        (("--tp", "2", "hardware"), "--tp stands before the command 'hardware'"),
        (("--nodes", "2"), "missing option '--model'"),
        (("estimate",), "missing option '--model'; `simulate models` lists the names"),
        (("--model", "lama3.1-8b"), "did you mean 'llama3.1-8b'?"),
        (("--model", "llama3.1-8b", "--hardware", "h2o"), "did you mean 'h20'?"),
        ((*TINY, "--model", "llama3.1-8b"), "--model is given 2 times: give it once"),
        ((*TINY, "--tp", "2", "--tp=4"), "--tp is given 2 times: give it once"),
        (("--model", "llama3.1-8b", "--global-batch-tokens", "4M", "--seq-length", "7k"), "no whole sequences of 7168"),
        (("--model", "llama3.1-8b", "--global-batch-tokens", "4G"), "such as 8k"),
        ((*TINY, "--global-batch-tokens", "4M"), "--global-batch-size and --global-batch-tokens exclude each other"),
        ((*TINY, "--precision", "bf61"), "'bf61', did you mean 'bf16'?; allowed are bf16, fp16, fp8, fp4, fp32"),
        ((*TINY, "--framework", "deepspeed"), "write --framework torch --stack deepspeed"),
        ((*TINY, "--framework", "TRL"), "write --framework torch --stack trl"),
        (
            (*TINY, "--recompute", "none,ful"),
            "'ful', did you mean 'full'?; allowed are none, selective, full, attention, operations",
        ),
        ((*TINY, "--tp", "two"), "invalid value for '--tp': 'two' is not understood; write numbers"),
        ((*TINY, "--tp", "2,two"), "'2,two': 'two' is not understood; write numbers from 1 to 1048576"),
        ((*TINY, "--tp", "0"), "invalid value for '--tp': '0' is outside 1 to 1048576"),
        ((*TINY, "--tp", "-1"), "'-1' is outside 1 to 1048576"),
        ((*TINY, "--tp", "9" * 5000), "is outside 1 to 1048576"),
        ((*TINY, "--tp", "1,0"), "'1,0': '0' is outside 1 to 1048576"),
        ((*TINY, "--tp", "4:2"), "'4:2' counts down; write 2:4"),
        ((*TINY, "--stage-layers", "9,7", "--layers-per-virtual-stage", "1"), "--stage-layers 9,7 is uneven"),
        ((*TINY, "--tp", "1:100000"), "lists more than 4096 values"),
        ((*TINY, "--tp", "1:3000,1:3000"), "lists more than 4096 values"),
        ((*TINY, "--zero-stage", "4"), "'4' is outside 0 to 3"),
        ((*TINY, "--top", "0"), "'0' is not a whole number from 1 to 10000"),
        ((*TINY, "--seq-length", "9" * 5000), "is not a whole number from 1 to 134217728"),
        ((*TINY, "--seq-length", "\uff11"), "is not a whole number"),
        ((*TINY, "--nodes", "1"), "--nodes and --devices exclude each other"),
        ((*TINY, "--vpp", "2", "--layers-per-virtual-stage", "2"), "exclude each other"),
        ((*TINY, "--pp", "1,4", "--stage-layers", "8,8"), "names 2 stages, --pp is 1,4"),
        ((*TINY, "--recompute", "none", "--recompute-layers", "2"), "--recompute-layers needs --recompute full"),
        (
            (*TINY, "--recompute-layer-list", "1,2", "--recompute-method", "block"),
            "--recompute-layer-list and --recompute-method exclude each other",
        ),
        ((*TINY, "--train-tokens", "1.5"), "is not a whole number"),
        ((*TINY, "--train-tokens", "0"), "is not from 1 to 1e18 tokens"),
        ((*TINY, "--train-tokens", "1B", "--price-per-device-hour", "nan"), "'nan' is not a number from 0 to 1e9"),
        ((*TINY, "--train-tokens", "1B", "--price-per-device-hour", "inf"), "is not a number from 0 to 1e9"),
        ((*TINY, "--price-per-device-hour", "1"), "--price-per-device-hour needs --train-tokens"),
        ((*TINY, "--option", "mtp"), "'mtp' is not NAME=VALUE; `simulate frameworks` lists the names"),
        ((*TINY, "--option", "mpt=true"), "did you mean 'mtp'?"),
        ((*TINY, "--option", "mtp=true", "--option", "mtp=false"), "given as 'true' and as 'false'"),
        ((*TINY, "--format", "jason"), "did you mean 'json'?"),
        ((*TINY, "--stack", "torchtitan@2019"), "'torchtitan@2019', did you mean 'torchtitan'?; --help, or "),
        (("frameworks", "torhc"), "did you mean 'torch'?"),
        (("schema", "nope"), "invalid value for NAME: 'nope'"),
        (("models", "no-such-model"), "no-such-model"),
        (("hardware", "no\nsuch"), "no such"),
    ],
)
def test_refused(args: tuple[str, ...], said: str) -> None:
    assert said.lower() in refusal(*args).lower()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--tp", "3"), "--tp 3 x --pp 1 x --cp 1 = 3 does not divide the 2 devices"),
        (("--tp", "2", "--dp", "2"), "takes 4 devices; there are 2"),
        (("--tp", "1,2"), "'1,2' is not a whole number"),
        (("--recompute", "none,full"), "'none,full', did you mean 'none'?; allowed are none, selective, full"),
        (("--recompute-method", "block", "--recompute", "selective"), "--recompute-method needs --recompute full"),
        (("--pp", "2", "--layers-per-virtual-stage", "3"), "does not divide the model's 16"),
        (("--stage-layers", "8,8", "--pp", "1"), "--stage-layers names 2 stages, --pp is 1"),
    ],
)
def test_an_estimate_takes_one_value_that_makes_sense(args: tuple[str, ...], said: str) -> None:
    assert said in refusal("estimate", *TINY, *args)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--load-in-4bit", "--method qlora"),
        ("--load-in-8bit", "--method qlora --option quantised_bits=8"),
        ("--load_in_4bit", "--method qlora"),
        ("--quantised-base", "--method qlora"),
        ("--lora", "--method lora"),
        ("--qlora", "--method qlora"),
        ("--gradient-checkpointing", "--recompute full"),
        ("--per-device-train-batch-size", "--micro-batch-size"),
        ("--gradient-accumulation-steps", "--global-batch-size"),
        ("--max-seq-length", "--seq-length"),
        ("--cutoff_len", "--seq-length"),
        ("--bf16", "--precision bf16"),
        ("--fp16", "--precision fp16"),
        ("--deepspeed", "--stack deepspeed"),
        ("--nproc-per-node", "--devices"),
        ("--flash-attn", "--option flash_attention=true"),
        ("--target-modules", "--option adapter_targets=all"),
    ],
)
def test_what_people_type_for_their_framework_names_the_option_and_its_value(typed: str, meant: str) -> None:
    for command in ((), ("estimate",), ("explain",)):
        assert refusal(*command, "--model", "qwen3-8b", typed, "1").endswith(
            f"no such option '{typed}', did you mean '{meant}'?"
        )


def test_every_other_name_of_an_option_means_one_and_its_value_is_allowed() -> None:
    rows = list(csv.DictReader(Path(main.__file__).with_name("other_names.csv").read_text("utf-8").splitlines()))
    names = [name for row in rows for name in row["names"].split()]
    assert len(names) == len(set(names))
    for hint in (f"--{each}" for row in rows for each in row["option"].removeprefix("--").split(" --")):
        option, _, value = hint.partition(" ")
        params = [
            *(*question_options(), *layout_options(many=False), *listed("ranking")),
            *(*listed("plan"), *answer_options("ranking")),
        ]
        (param, *_) = (each for each in params if option in each.opts)
        assert not value or param.type.convert(value, param, None)


@pytest.mark.parametrize("hardware", ["t4", "v100-sxm-16g"])
def test_a_device_without_a_type_names_the_one_that_trains_there(hardware: str) -> None:
    words = ("--model", "qwen3-0.6b", "--hardware", hardware, "--devices", "1", "--precision", "bf16")
    for command in ((), ("estimate",), ("explain",)):
        answer = run(*command, *words)
        assert answer.exit_code == 3
        assert "has no bf16 peak; it has: fp32, fp16 (--precision fp16)" in answer.stderr


def test_words_ignore_case() -> None:
    plain, capital = (
        json.loads(run(*TINY, "--precision", word, "--recompute", f"None,{word_set}", "--format", "json").stdout)
        for word, word_set in (("bf16", "full"), ("BF16", "FULL"))
    )
    assert plain["estimates"] == capital["estimates"]
    nodes = ("--model", "qwen3-8b", "--hardware", "h100-sxm-80g", "--method", "LoRA", "--nodes", "Auto")
    assert "LoRA of rank" in run(*nodes).stdout


def test_what_cannot_be_priced_is_exit_3() -> None:
    question = ("--model", "llama3.2-1b", "--hardware", "ascend-910c", "--precision", "fp8")
    assert "fp8" in refusal(*question, code=3)
    assert "fp8" in refusal("estimate", *question, code=3)


@pytest.mark.parametrize(
    ("cut", "rule"),
    [
        (("--pp", "2", "--stage-layers", "9,7", "--vpp", "2"), "virtual_stages"),
        # Layers that the model has not, one of them done again.
        (("--pp", "2", "--stage-layers", "20,5", "--recompute", "full", "--recompute-layer-list", "0,20"), "layers"),
    ],
)
def test_a_cut_that_is_none_is_refused_by_its_rule(cut: tuple[str, ...], rule: str) -> None:
    answer = run("estimate", *TINY, *cut, "--format", "json")
    assert answer.exit_code == 0, answer.stderr
    assert rule in {one["rule"] for one in json.loads(answer.stdout)["violations"]}


def test_an_unexpected_error_is_one_line_unless_debugged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr(commands, "rank", fail)
    result = run(*TINY)
    assert result.exit_code == 70
    told = "simulate: internal error: ZeroDivisionError: a b; --debug shows where, please report it\n"
    assert (result.stdout, result.stderr) == ("", told)
    for debugged in (run(*TINY, "--debug"), run(*TINY, env={"SIMULATE_DEBUG": "1"})):
        assert debugged.exit_code == 70
        assert "Traceback" in debugged.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (UnsupportedError("x"), 3), (MemoryError(), 70), (EOFError(), 70)],
)
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(commands, "rank", fail)
    result = run(*TINY)
    assert result.exit_code == code
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
