"""What the tests of sweeps share: questions that are answered at once, and processes that answer them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.lab.runner.processes import with_package
from tests.project.tree import ROOT
from tests.runner.trees import PATIENCE_SECONDS, as_at_a_terminal, until

NEEDS_DASK = pytest.mark.skipif(find_spec("distributed") is None, reason="distributed is not installed (extra sweep)")
MANY: dict[str, Any] = {
    "model": ["llama3.2-1b", "llama3.1-8b"],
    "hardware": ["h20", "h100-sxm-80g", "a100-sxm-80g"],
    "nodes": [1, 2],
    "seq_length": [1024, 2048],
    "global_batch_size": 64,
    "precision": ["bf16", "fp8"],
    "framework": ["megatron", "torch"],
}
"""96 questions; one in six cannot be priced."""
FEW = MANY | {"seq_length": 1024, "nodes": 1}


def written(folder: Path, questions: Any) -> Path:
    file = folder / "questions.yaml"
    file.write_text(yaml.safe_dump(questions), encoding="utf-8")
    return file


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`simulate sweep` as a process of its own, in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "simulator", "sweep", *arguments],
        env=with_package(dict(os.environ)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        preexec_fn=as_at_a_terminal,  # noqa: PLW1509  no threads here
    )


def swept(folder: Path, *arguments: str) -> str:
    """What `simulate sweep` says when it is done."""
    process = started(folder, *arguments)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    return out


def answered(table: Path) -> int:
    """How many rows of a sweep are written whole."""
    return table.read_bytes().count(b"\n") - 1 if table.exists() else 0


def scheduler_address(folder: Path) -> str:
    """Where the scheduler listens, once its file is written whole: it exists before its text does."""
    file = folder / "dask.json"
    until(lambda: file.exists() and file.read_text(encoding="utf-8").rstrip().endswith("}"))
    return str(json.loads(file.read_text(encoding="utf-8"))["address"])


@contextmanager
def dask(folder: Path, kind: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler or a worker as a process of its own; its command line names the folder."""
    command = [sys.executable, "-m", "dask", kind, "--no-dashboard", "--scheduler-file", str(folder / "dask.json")]
    with (folder / f"{kind}.log").open("ab") as log:
        process = subprocess.Popen(
            [*command, *arguments], env=with_package(dict(os.environ)), stdout=log, stderr=log, cwd=ROOT
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
