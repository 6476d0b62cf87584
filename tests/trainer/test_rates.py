"""What the timings of a machine leave out, and what they take for its free memory."""

import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simulator.lab.trainer.job import RatesJob, Timing
from tests.trainer.launches import NEEDS_TORCH, Late

pytestmark = NEEDS_TORCH

torch: Any = Late("torch")
distributed: Any = Late("torch.distributed")
attention: Any = Late("torch.nn.attention")
devices: Any = Late("simulator.lab.trainer.backend")
rates: Any = Late("simulator.lab.trainer.rates")

ADD = Timing(operation="add", precision="fp32", sizes={"elements": 64})
ATTENTION = Timing(
    operation="attention",
    precision="fp32",
    sizes={"batch": 1, "heads": 2, "kv_heads": 1, "tokens": 16, "head_dim": 8},
)


def timed(job: RatesJob) -> list[str]:
    backend = devices.Backend(job)
    backend.join(job, 0)
    try:
        return [found.timing.operation for found in rates.timings(job, backend)]
    finally:
        distributed.destroy_process_group()


def test_attention_is_timed_with_the_kernels_of_the_trainer_and_left_out_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = RatesJob(timings=(ATTENTION, ADD), devices=1, repeats=1, threads=torch.get_num_threads())
    assert timed(job) == ["attention", "add"]
    # A kernel that no processor has.
    monkeypatch.setattr("simulator.lab.trainer.rates.KERNELS", [attention.SDPBackend.CUDNN_ATTENTION])
    assert timed(job) == ["add"]
    assert "not timed" in capsys.readouterr().err


def test_memory_that_the_file_cache_gives_back_counts_as_usable_and_ranks_divide_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(total=9000, free=10, available=7000))
    job = RatesJob(timings=(), devices=2, threads=torch.get_num_threads())
    assert rates._memory(job, devices.Backend(job)) == (4500, 3500)


def test_a_system_that_does_not_tell_what_a_process_has_is_not_limited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def set_anyway(*_limit: object) -> None:
        raise AssertionError

    monkeypatch.setattr("simulator.lab.trainer.backend.Path", lambda _name: tmp_path / "missing")
    monkeypatch.setattr(resource, "setrlimit", set_anyway)
    job = RatesJob(timings=(), devices=1, threads=torch.get_num_threads())
    devices.Backend(job).limit_memory(1)
