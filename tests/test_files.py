"""Files are written as a whole or not at all."""

import csv
import errno
import io
import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from simulator import InputError
from simulator.files import write_file
from simulator.lab.runner.processes import with_package
from tests.cli.running import TINY, refusal, run

_MOST_BYTES = 500
"""Of a file, in a process whose disk is full."""


def full_disk(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_BYTES, _MOST_BYTES))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    return subprocess.run(
        [sys.executable, "-m", "simulator", *command],
        cwd=folder,
        # Python does not notice a `.pyc` that the limit cuts, and later processes fail over it.
        env=with_package(dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}),
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("file", "command"),
    [
        ("mine.json", ("estimate", *TINY, "--format", "json", "--output", "mine.json")),
        ("mine.json", ("estimate", *TINY, "--timeline", "mine.json")),
        ("mine.json", ("rank", *TINY, "--format", "json", "--output", "mine.json")),
        ("mine.csv", ("sweep", "q.yaml", "--workers", "1", "--output", "mine.csv", "--force")),
        (
            "run.csv",
            ("calibrate", "--from-log", "run.log", "--hardware", "h800-sxm-80g", "--rows-only", "--output", "."),
        ),
        ("hopper.yaml", ("calibrate", "rows.csv", "--output", ".")),
    ],
)
def test_a_full_disk_leaves_the_earlier_file(file: str, command: tuple[str, ...], tmp_path: Path) -> None:
    questions = "{model: llama3.2-1b, hardware: h20, devices: 2, global_batch_size: 8}"
    (tmp_path / "q.yaml").write_text(questions, encoding="utf-8")
    root = Path(__file__).parents[1]
    log = (root / "tests" / "measurements" / "data" / "megatron-8b.log").read_text(encoding="utf-8")
    (tmp_path / "run.log").write_text(log, encoding="utf-8")
    rows = (root / "calibration" / "measured" / "z2000-megatron.csv").read_text(encoding="utf-8")
    with (tmp_path / "rows.csv").open("w", encoding="utf-8", newline="") as stream:
        records = list(csv.DictReader(io.StringIO(rows)))
        writer = csv.DictWriter(stream, records[0].keys(), lineterminator="\n")
        writer.writeheader()
        # A cluster of its own: what its rows say is stored only where it is news.
        for row in records:
            row["hardware"] = "h100-sxm-80g"
            row["tflops_per_device"] = row["tokens_per_second_per_device"] = ""
            row["step_time_ms"] = str(1.15 * float(row["step_time_ms"])) if row["step_time_ms"] else ""
        writer.writerows(records)
    (tmp_path / file).write_text("earlier", encoding="utf-8")
    before = {path.name for path in tmp_path.iterdir()}
    done = full_disk(*command, folder=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "cannot be written: File too large" in done.stderr
    assert done.stderr.count("\n") == 1
    assert (tmp_path / file).read_text(encoding="utf-8") == "earlier"
    assert {path.name for path in tmp_path.iterdir()} - {"mine.csv.parts"} == before


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("earlier", encoding="utf-8")
    file.chmod(0o640)
    link.symlink_to("file")
    write_file(link, ["one", " two"])
    assert link.is_symlink()
    assert file.read_text(encoding="utf-8") == "one two"
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(pipe.read_text(encoding="utf-8")))
    reader.start()
    write_file(pipe, "text")
    reader.join()
    assert said == ["text"]
    assert pipe.is_fifo()


def test_a_file_that_cannot_be_replaced_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> object:
        raise OSError(errno.EBUSY, "mounted by itself")

    file = tmp_path / "file"
    file.write_text("earlier", encoding="utf-8")
    monkeypatch.setattr(Path, "replace", busy)
    write_file(file, "text")
    assert file.read_text(encoding="utf-8") == "text"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("name", ["no/such/folder", "x" * 300, "a\0b", "."])
def test_what_cannot_be_written_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--output .*: cannot be written: "):
        write_file(tmp_path / name, "text", "--output")


@pytest.mark.parametrize(
    "command",
    [
        ("estimate", *TINY[2:], "--model", "own.yaml", "--output", "own.yaml"),
        ("estimate", *TINY, "--timeline", "own.json", "--output", "x.txt", "--calibration", "own.json"),
        ("rank", "--model", "llama3.2-1b", "--hardware", "h20:1,./own.yaml:1", "--output", "own.yaml"),
        ("estimate", *TINY[2:], "--model", "folder", "--output", "folder/config.json"),
        ("compare", "own.json", "own.json", "--output", "./own.json"),
        ("check", "own.sh", "--baseline", "own.json", "--output", "own.json"),
        ("accuracy", "own.csv", "--output", "link.csv"),
        ("plan", "--model", "llama3.2-1b", "--train-tokens", "1B", "--offer", "own.yaml:1", "--output", "own.yaml"),
    ],
)
def test_an_output_is_never_an_input(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("own.yaml", "own.json", "own.sh", "own.csv", "folder/config.json"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    (tmp_path / "link.csv").symlink_to("own.csv")
    assert "is read by this command: write somewhere else" in refusal(*command)
    assert all(path.read_text(encoding="utf-8") == "mine" for path in tmp_path.rglob("*.*") if path.is_file())


def test_an_output_beside_an_input_is_written(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    assert run("estimate", *TINY, "--format", "json", "--output", str(file)).exit_code == 0
    assert run("emit", str(file), "--framework", "megatron", "--output", str(tmp_path / "run.sh")).exit_code == 0
