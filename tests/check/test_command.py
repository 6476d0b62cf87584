"""The command on files: options over recipes, bad files, baselines, exit codes."""

import json
import os
import time
from pathlib import Path

import pytest

from simulator.recipes.check.folders import expanded
from tests.check.recipes import EXAMPLES, checked
from tests.cli.running import refusal, run

MEGATRON = str(EXAMPLES / "llama3-8b-megatron.sh")
PADDLE = str(EXAMPLES / "ernie-21b-lora-paddle.sh")
TITAN = str(EXAMPLES / "llama3-8b-torchtitan.toml")
SECONDS = 20.0


def test_every_example_passes() -> None:
    found = checked(MEGATRON, PADDLE, TITAN, "--hardware", "h800-sxm-80g", "--devices", "8", "--pp", "1")
    assert [result["outcome"] for result in found] == ["fits"] * 3
    assert [result["framework"] for result in found] == ["megatron", "paddle", "torch"]


def test_options_of_an_estimate_replace_the_recipe() -> None:
    args = ("--nodes", "2", "--tp", "1", "--pp", "4", "--micro-batch-size", "2", "--recompute-layers", "2")
    more = ("--recompute-method", "block", "--seq-length", "4096", "--global-batch-size", "64", "--precision", "fp8")
    (found,) = checked(MEGATRON, *args, *more, "--option", "fused_cross_entropy=true", "--hardware", "z2000")
    layout = found["estimate"]["layout"]
    expected = {"tp": 1, "pp": 4, "dp": 4, "micro_batch_size": 2, "recompute": "full", "recompute_method": "block"}
    assert {name: layout[name] for name in expected} == expected
    assert (found["estimate"]["precision"], layout["seq_length"], layout["global_batch_size"]) == ("fp8", 4096, 64)


def test_the_same_as_an_estimate() -> None:
    (found,) = checked(MEGATRON, "--hardware", "z2000", "--stack", "z2000")
    args = ("--model", "llama3.1-8b", "--nodes", "4", "--tp", "2", "--pp", "2", "--format", "json")
    estimate = json.loads(run("estimate", *args).stdout)
    assert found["estimate"]["memory"] == estimate["memory"]
    assert found["estimate"]["throughput"] == estimate["throughput"]


def test_a_cluster_that_the_degrees_do_not_fill(capsys: pytest.CaptureFixture[str]) -> None:
    del capsys
    (found,) = checked(MEGATRON, "--devices", "6", code=1)
    assert found["outcome"] == "refused"
    assert "tp 2 x pp 2 x cp 1 = 4 does not divide the 6 devices" in found["reasons"][0]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("none.sh", None),
        ("empty.sh", b""),
        ("binary.sh", bytes(range(256)) * 10),
        ("latin.sh", "#!/bin/bash\necho caf\xe9\ntorchrun train.py\n".encode("latin-1")),
        ("prose.sh", b"Dear reader,\n\nthis is no script.\n"),
        ("large.sh", b"#!/bin/bash\n" + b"# nothing at all\n" * 3_000_000),
        ("nested.sh", b"#!/bin/bash\n" + b"if true; then\n" * 20_000),
        ("cut.sh", Path(MEGATRON).read_bytes()[:900]),
        ("wrong.yaml", b"a: [1, 2\n"),
        ("wrong.toml", b"[model\n"),
        ("wrong.json", b"{"),
        ("other.yaml", b"a: 1\n"),
        ("deep.json", b"[" * 100_000),
    ],
)
def test_bad_files_are_one_line_each(tmp_path: Path, name: str, data: bytes | None) -> None:
    file = tmp_path / name
    if data is not None:
        file.write_bytes(data)
    started = time.monotonic()
    (bad, good) = checked(str(file), MEGATRON, code=2)
    assert time.monotonic() - started < SECONDS
    assert (bad["outcome"], good["outcome"]) == ("unreadable", "fits")
    (reason,) = bad["reasons"]
    assert "\n" not in reason
    assert str(file) in reason or name in reason
    assert len(reason) < 1000


def test_what_is_not_modelled_is_code_3(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("print()\n", encoding="utf-8")
    (found,) = checked(str(file), code=3)
    assert found["outcome"] == "not_modelled"
    assert run("check", str(file), "--exit-zero").exit_code == 0


def test_a_pattern_stands_for_the_files_that_match_it(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.sh", "deep/b.sh", "[c].sh"):
        (tmp_path / name).write_bytes(Path(MEGATRON).read_bytes())
    asked = [f"{tmp_path}/**/?.sh", f"{tmp_path}/[c].sh", f"{tmp_path}/*.toml"]
    assert [Path(file).name for file, _ in expanded(asked)] == ["a.sh", "b.sh", "[c].sh", "*.toml"]


def test_a_folder_stands_for_the_recipes_in_it(tmp_path: Path) -> None:
    (empty,) = checked(str(tmp_path), code=2)
    assert empty["outcome"] == "unreadable"
    assert "no file below this folder may be a recipe" in empty["reasons"][0]
    (piped,) = checked("-", code=2)
    assert piped["reasons"] == ["-: no file: standard input is not read"]
    for folder in ("a", "a/b", ".hidden", "node_modules"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.sh").write_bytes(Path(MEGATRON).read_bytes())
    (tmp_path / "a" / "env.sh").write_text("export A=1\n", encoding="utf-8")
    (tmp_path / "a" / "README.md").write_text("torchrun train.py\n", encoding="utf-8")
    (tmp_path / "a" / "tokenizer.json").write_text("{" + " " * (1 << 20) + "}", encoding="utf-8")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = checked(str(tmp_path))
    names = [(Path(one["file"]).relative_to(tmp_path).as_posix(), one["outcome"]) for one in found]
    skipped = [("a/env.sh", "skipped"), ("a/tokenizer.json", "skipped")]
    assert names == [*skipped, ("a/train.sh", "fits"), ("a/b/train.sh", "fits")]
    # What is named is judged, and what trains nothing then fails.
    assert checked(str(tmp_path / "a" / "env.sh"), code=2)[0]["outcome"] == "unreadable"


@pytest.mark.parametrize("end", ["pbs", "qsub", "lsf", "job", "sub"])
def test_a_job_of_another_scheduler(end: str, tmp_path: Path) -> None:
    (tmp_path / f"train.{end}").write_bytes(Path(MEGATRON).read_bytes())
    (tmp_path / f"queue.{end}").write_text("executable = prepare\nqueue 1\n", encoding="utf-8")
    (tmp_path / "submit.sh").write_text(f"qsub train.{end}\n", encoding="utf-8")
    found = {Path(one["file"]).name: one["outcome"] for one in checked(str(tmp_path))}
    assert found == {f"train.{end}": "fits", f"queue.{end}": "skipped", "submit.sh": "fits"}


def test_a_walk_passes_over_pipes_and_says_what_it_cannot_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.sh").write_bytes(Path(MEGATRON).read_bytes())
    os.mkfifo(tmp_path / "pipe.sh")
    (tmp_path / "gone.sh").symlink_to("nowhere.sh")
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def refusing(path: str) -> object:
        if path == str(tmp_path / "closed"):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", refusing)
    found = checked(str(tmp_path), code=2)
    outcomes = {Path(one["file"]).name: one["outcome"] for one in found}
    assert outcomes == {"gone.sh": "unreadable", "train.sh": "fits", "closed": "unreadable"}


def test_a_baseline_beside_the_recipes_is_none(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_bytes(Path(MEGATRON).read_bytes())
    stored = tmp_path / "recipes.json"
    assert (
        run("check", str(tmp_path), "--hardware", "z2000", "--format", "json", "--output", str(stored)).exit_code == 0
    )
    again = run("check", str(tmp_path), "--hardware", "z2000", "--baseline", str(stored))
    assert again.stdout.startswith("1 recipe: 1 fits; 0 failed; 1 file skipped: no training")
    assert "nothing changed" in again.stdout


def failing(folder: Path) -> list[str]:
    """Files with each outcome that may fail, but for starved ones."""
    text = Path(MEGATRON).read_text(encoding="utf-8")
    texts = {
        "fits.sh": text,
        "large.sh": text.replace("--micro-batch-size 1", "--micro-batch-size 64"),
        "refused.sh": text.replace("TP=2", "TP=3"),
        "open.sh": text.replace("TP=2", "TP=$DEGREE"),
        "other.sh": "xtuner train x.py\n",
        "broken.sh": "if true; then\n",
    }
    for name, content in texts.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [str(folder / name) for name in texts]


@pytest.mark.parametrize(
    ("options", "code", "failed"),
    [
        ((), 2, {"large.sh", "refused.sh", "open.sh", "other.sh", "broken.sh"}),
        (("--fail-on", "does-not-fit,refused"), 1, {"large.sh", "refused.sh"}),
        (("--fail-on", "refused"), 1, {"refused.sh"}),
        (("--fail-on", "starved"), 1, {"large.sh"}),
        (("--fail-on", "refused", "--fail-on", "cannot-tell"), 1, {"refused.sh", "open.sh"}),
        (("--fail-on", "cannot-tell"), 3, {"open.sh"}),
        (("--fail-on", "not-modelled"), 3, {"other.sh"}),
        (("--fail-on", "unreadable,not-modelled"), 2, {"broken.sh", "other.sh"}),
        (("--fail-on", "refused", "--max-memory-fraction", "40%"), 1, {"refused.sh", "fits.sh"}),
        (("--fail-on", "does-not-fit", "--exit-zero"), 0, {"large.sh"}),
    ],
)
def test_what_fails_is_what_was_asked(options: tuple[str, ...], code: int, failed: set[str], tmp_path: Path) -> None:
    found = checked(*failing(tmp_path), "--hardware", "z2000", *options, code=code)
    assert {Path(one["file"]).name for one in found if not one["passed"]} == failed
    outcomes = [one["outcome"] for one in found]
    assert outcomes == ["fits", "does_not_fit", "refused", "cannot_tell", "not_modelled", "unreadable"]


def test_an_unknown_outcome_is_answered_with_the_nearest() -> None:
    assert "did you mean 'does-not-fit'?" in refusal("check", MEGATRON, "--fail-on", "doesnt-fit")


def test_a_baseline_is_a_ratchet(tmp_path: Path) -> None:
    files = failing(tmp_path)
    stored = str(tmp_path / "baseline.json")
    options = ("--hardware", "z2000", "--baseline", stored)
    assert run("check", *files, *options[:2], "--format", "json", "--output", stored).exit_code == 2
    known = checked(*files, *options)
    assert [one["known"] for one in known] == [not one["passed"] for one in known]
    assert "0 failed, and 5 as in the baseline" in run("check", *files, *options).stdout
    # Another failure than the stored one is new, and so is a file that was not there.
    (tmp_path / "open.sh").write_text((tmp_path / "refused.sh").read_text(encoding="utf-8"), encoding="utf-8")
    worse = checked(*files, *options, code=1)
    assert [Path(one["file"]).name for one in worse if not one["passed"] and not one["known"]] == ["open.sh"]
    (tmp_path / "more.sh").write_text((tmp_path / "large.sh").read_text(encoding="utf-8"), encoding="utf-8")
    more = checked(*files[:3], str(tmp_path / "more.sh"), *options, code=1)
    assert [one["known"] for one in more] == [False, True, True, False]


def test_values_of_the_run(tmp_path: Path) -> None:
    text = Path(MEGATRON).read_text(encoding="utf-8").replace("NNODES=4", "NNODES=$WORLD_SIZE")
    file = tmp_path / "train.sh"
    file.write_text(text.replace("TP=2", "TP=$DEGREE"), encoding="utf-8")
    (asked,) = checked(str(file), code=3)
    (remark,) = [remark for remark in asked["remarks"] if remark["severity"] == "error"]
    assert (remark["fix"], remark["place"]["line"]) == ("--set DEGREE=VALUE", text.split("TP=2")[0].count("\n") + 1)
    file.write_text(text, encoding="utf-8")
    (fewest,) = checked(str(file))
    assert fewest["estimate"]["devices"] == 8
    assert {remark["rule"] for remark in fewest["remarks"]} >= {"nodes-assumed", "devices-counted"}
    (told,) = checked(str(file), "--set", "WORLD_SIZE=2")
    assert told["estimate"]["devices"] == 16
    (sized,) = checked(str(file), "--nodes", "3", "--tp", "1", "--global-batch-size", "96")
    assert sized["estimate"]["devices"] == 24
    result = run("check", str(file), "--from-environment", "--format", "json", env={"WORLD_SIZE": "4"})
    assert json.loads(result.stdout)["results"][0]["estimate"]["devices"] == 32
    unread = run("check", str(file), "--format", "json", env={"WORLD_SIZE": "4"})
    assert json.loads(unread.stdout)["results"][0]["estimate"]["devices"] == 8


def test_gates_and_exit_zero() -> None:
    assert run("check", MEGATRON, "--max-memory-fraction", "40%").exit_code == 1
    assert run("check", MEGATRON, "--max-memory-fraction", "0.9", "--min-fit-probability", "0.9").exit_code == 0
    assert run("check", MEGATRON, "--max-memory-fraction", "40%", "--exit-zero").exit_code == 0
    assert run("check", MEGATRON, "--tp", "1", "--pp", "1", "--fail-on", "starved").exit_code == 1
    assert "SHARE" in run("check", "--help").stdout


@pytest.mark.parametrize("share", ["0", "1.5", "x", "-1%", "nan"])
def test_shares_are_bounded(share: str) -> None:
    assert "--max-memory-fraction" in refusal("check", MEGATRON, f"--max-memory-fraction={share}")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "name the recipes to judge"),
        ((MEGATRON, "--nodes", "2", "--devices", "8"), "exclude each other"),
        ((MEGATRON, "--vpp", "2", "--layers-per-virtual-stage", "2"), "exclude each other"),
        ((MEGATRON, "--recompute", "none", "--recompute-layers", "2"), "needs --recompute full"),
        ((MEGATRON, "--set", "A=1", "--set", "A=2"), "--set A: given as '1' and as '2'"),
        ((MEGATRON, "--model-field", "num_layers=2"), "no such field"),
        ((MEGATRON, "--model-field", "hidden_size=big"), "must be a whole number"),
        ((MEGATRON, "--model-field", "qk_norm=2"), "allowed are true and false"),
        ((MEGATRON, "--model-field", "hidden_size=2", "--model-field", "hidden_size=4"), "given as '2' and as '4'"),
        ((MEGATRON, "--baseline", "nothing.json"), "--baseline nothing.json: no such file"),
        ((MEGATRON, "--option", "nothing=1"), "unknown switch"),
        ((MEGATRON, "--framework", "megatron", "--option", "nothing=1"), "unknown switch"),
    ],
)
def test_wrong_use(args: tuple[str, ...], message: str) -> None:
    assert message in refusal("check", *args)


def test_baseline_reports_what_changed(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    args = (MEGATRON, PADDLE, "--hardware", "z2000")
    assert run("check", *args, "--format", "json", "--output", str(file)).exit_code == 0
    same = json.loads(run("check", *args, "--format", "json", "--baseline", str(file)).stdout)
    assert same["changed"] == []
    result = run("check", MEGATRON, "--hardware", "z2000", "--tp", "1", "--pp", "1", "--baseline", str(file))
    assert result.exit_code == 1
    assert f"new failure: {MEGATRON} (pretrain_gpt.py): fits -> does not fit, memory +" in result.stdout
    assert f"removed: {PADDLE} (train.py): in the baseline only" in result.stdout
    assert run("check", *args, "--baseline", str(file), "--precision", "fp16").stdout.count("Since the baseline") == 1


def test_baselines_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    result = '{"results": [{"file": "x", "title": "", "outcome": "fits", "passed": true, "estimate": {"memory": '
    figures = [
        f'{result}{{"device_mib": {mib}}}, "throughput": {{"step_time_s": 1}}}}}}]}}'
        for mib in ("1e-320", "-1", "true", '"x"', "1" + "0" * 400)
    ]
    for text in ("[]", '{"results": [1]}', *figures):
        file.write_text(text, encoding="utf-8")
        assert "is not what `simulate check --format json` writes" in refusal(
            "check", MEGATRON, "--baseline", str(file)
        )
    for text in ("{", "[" * 100_000, '{"results": Infinity}', '{"results": 1e999}'):
        file.write_text(text, encoding="utf-8")
        assert f"--baseline {file}" in refusal("check", MEGATRON, "--baseline", str(file))
    assert "not a regular file" in refusal("check", MEGATRON, "--baseline", "/dev/zero")


DEGREES = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
global_batch_size = 64
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
"""


def test_the_degrees_of_torchtitan_size_the_cluster(tmp_path: Path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(DEGREES, encoding="utf-8")
    (found,) = checked(str(file))
    assert found["estimate"]["devices"] == 32
    assert found["estimate"]["layout"]["dp"] == 16
    assert "other-replicas" not in [remark["rule"] for remark in found["remarks"]]
    (found,) = checked(str(file), "--nodes", "2")
    assert (found["estimate"]["devices"], found["estimate"]["layout"]["dp"]) == (16, 8)
    assert "other-replicas" in [remark["rule"] for remark in found["remarks"]]
    file.write_text(DEGREES.replace("data_parallel_shard_degree = 8\n", ""), encoding="utf-8")
    (found,) = checked(str(file), "--nodes", "2")
    assert (found["estimate"]["devices"], found["estimate"]["layout"]["dp"]) == (16, 8)
    assert "other-replicas" not in [remark["rule"] for remark in found["remarks"]]
    file.write_text(DEGREES.replace("replicate_degree = 2", "replicate_degree = 1").replace("= 8\n", "= -1\n"), "utf-8")
    (found,) = checked(str(file))
    assert found["estimate"]["devices"] == 8
    (assumed,) = [remark for remark in found["remarks"] if remark["rule"] == "nodes-assumed"]
    assert assumed["fix"] == "--nodes N"
