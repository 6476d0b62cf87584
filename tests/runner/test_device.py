"""What a launch is told of the devices of this machine."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

from simulator.errors import UnsupportedError
from simulator.lab.runner.engines import Device, ask, contradictions, crowded
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.names import hardware_names


def said(hardware: str, name: str, gib: float) -> list[str]:
    found = Device(name=name, memory_bytes=gib * 2**30, count=8)
    return list(contradictions(found, load_hardware(hardware), hardware_names()))


@pytest.mark.parametrize(
    ("hardware", "name", "gib"),
    [
        ("h100-sxm-80g", "NVIDIA H100 80GB HBM3", 79.2),
        ("h20", "NVIDIA H20", 95.1),
        ("h200-sxm", "NVIDIA H200", 139.8),
        ("ascend-910b-64g-8", "Ascend910B3", 61.3),
        ("mi300x", "AMD Instinct MI300X", 191.7),
        ("h20", "a device of which nothing is known", 0.0),
    ],
)
def test_the_device_of_the_spec_is_no_contradiction(hardware: str, name: str, gib: float) -> None:
    assert said(hardware, name, gib) == []


def test_another_device_is_told_by_its_memory_or_its_name() -> None:
    [memory, name] = said("h20", "NVIDIA H200", 139.8)
    assert memory.startswith("this machine has NVIDIA H200 with 139.8 GiB, h20 has ")
    assert name.startswith("this machine has NVIDIA H200, which does not sound like h20")
    assert len(said("h100-sxm-80g", "NVIDIA A100-SXM4-80GB", 79.2)) == 1
    assert len(said("h100-sxm-80g", "NVIDIA H100 80GB HBM3", 39.4)) == 1


def answers(monkeypatch: pytest.MonkeyPatch, code: int, out: str = "", err: str = "") -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(subprocess, "run", run)


def test_torch_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, 0, 'a warning\n{"name": "NVIDIA H20", "memory_bytes": 5, "count": 8}\n')
    assert ask("cuda") == Device(name="NVIDIA H20", memory_bytes=5, count=8)


@pytest.mark.parametrize(
    ("code", "out", "err", "reason"),
    [
        (1, "", "Traceback\nsimulator.errors.InputError: backend cuda: torch sees no device\n", "torch sees no device"),
        (1, "", "Traceback\nImportError: libcudart.so\n", "torch could not be asked for it: ImportError: libcudart.so"),
        (-11, "", "", "torch could not be asked for it: exit code -11"),
        (0, "nothing", "", "torch could not be asked for it: "),
    ],
)
def test_no_device_ends_before_any_launch(
    code: int, out: str, err: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, code, out, err)
    with pytest.raises(UnsupportedError, match=r"^nothing to launch on: backend cuda: ") as raised:
        ask("cuda")
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("ranks", "load", "words"),
    [(2, 0.3, ""), (2, 1.0, "other work runs here (load 1.0 on 2 cores"), (4, 0.0, "4 ranks share 2 cores")],
)
def test_a_crowded_machine_is_told(ranks: int, load: float, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    found = crowded(ranks)
    assert found.startswith(words) if words else not found
