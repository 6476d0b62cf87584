"""Streams that are closed, full or left, keys that are pressed early: the exit code still says what happened."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import refusal, run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="streams close in another way there")
COMMAND = f"{sys.executable} -m simulator"
ROOT = Path(__file__).resolve().parents[2]


def shell(text: str, folder: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    bash = shutil.which("bash")
    assert bash is not None
    return subprocess.run([bash, "-c", text], capture_output=True, text=True, check=False, cwd=folder, timeout=60)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("{} models 2>&-", 0),
        ("{} models <&-", 0),
        ("{} models 2>/dev/full", 0),
        ("{} modls 2>/dev/full", 2),
        ("{} models >&-", 2),
        ("{} models >&- 2>&-", 2),
        ("{} --help >&-", 2),
        ("{} emit - --framework megatron <&-", 2),
        ("{} estimate --model llama3.2-1b --hardware h20 2>&- --output /dev/null", 0),
    ],
)
def test_exit_codes(command: str, code: int) -> None:
    done = shell(command.format(COMMAND))
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") <= 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("stdin", [b"", bytes(range(256)) * 400])
def test_what_is_no_estimate_is_refused(stdin: bytes) -> None:
    refused = run("emit", "-", "--framework", "megatron", input=stdin)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("words", ["emit /dev/zero --framework megatron", "check x.sh --baseline /dev/zero"])
def test_a_file_without_end_is_refused(words: str) -> None:
    refusal(*words.split())


def test_a_baseline_from_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert refusal("check", "x.sh", "--baseline", str(tmp_path / "pipe")).endswith("not a regular file")


@pytest.mark.parametrize("command", ["--help", "models", "check --help"])
def test_a_reader_that_left_gets_no_gate(command: str) -> None:
    # The reader is gone before anything is written.
    done = shell(f"{{ sleep 1; {COMMAND} {command}; echo $? >&2; }} | true")
    assert done.stderr.strip() == "141"


def test_an_answer_is_not_lost_with_stderr(tmp_path: Path) -> None:
    question = f"{COMMAND} estimate --model llama3.2-1b --hardware h20 --devices 2 --global-batch-size 8"
    with_stderr, without = shell(question), shell(f"{question} 2>&-")
    assert without.returncode == 0
    assert with_stderr.stdout == without.stdout
    # Nothing that is opened takes the number of a stream that is closed.
    for name, closed in (("answer", ""), ("alone", "<&- >&- 2>&-")):
        assert shell(f"{question} --output {tmp_path / name} {closed}").returncode == 0
    answers = [(tmp_path / name).read_text(encoding="utf-8") for name in ("answer", "alone")]
    assert answers[0] == answers[1] != ""


@pytest.mark.parametrize("module", ["click", "simulator.show.cli.main", "simulator.show.cli.options"])
def test_ctrl_c_while_importing_says_nothing(module: str) -> None:
    # The key is pressed at the moment when a module is imported.
    code = (
        # A shell that starts the suite in the background has the key ignored.
        "import builtins, os, signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "real = builtins.__import__\n"
        f"def spied(name, *rest):\n    if name == {module!r}:\n        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = spied\nfrom simulator.__main__ import run\nrun()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")
