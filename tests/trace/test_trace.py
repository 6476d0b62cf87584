"""Traces of whole stages agree with the predictions; what cannot be traced is refused."""

import importlib.util
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.api import scenario_of
from simulator.errors import InputError, UnsupportedError
from simulator.lab.trace import tracing
from simulator.lab.trace.tracing import TraceComparison, tensors_only, trace
from simulator.lab.trainer.job import Traced, TraceRequest, from_json, to_json
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from tests.cli.running import refusal, run
from tests.scenario.cases import complete_layout
from tests.trainer import forked

NEEDS_TORCH = "torch is not installed: a trace runs it"


def scenario_and_layout(model: str = "llama3.1-8b", **given: Any) -> tuple[Scenario, Layout]:
    """A question; fields of `Layout` make the layout, the rest the scenario."""
    sizes = {name: given.pop(name) for name in Layout.__dataclass_fields__ if name in given}
    scenario = scenario_of(
        model=model, hardware="h100-sxm-80g", framework="torch", calibration="none", **({"devices": 8} | given)
    )
    return scenario, complete_layout(scenario, **sizes)


CASES: dict[str, tuple[dict[str, Any], int]] = {
    "8B widths, FSDP2 over 64": ({"num_layers": 3, "devices": 64, "global_batch_size": 128, "zero_stage": 3}, 0),
    "ZeRO 2": ({"num_layers": 2, "devices": 64, "global_batch_size": 192, "zero_stage": 2}, 0),
    "TP 4, full recompute": ({"num_layers": 2, "tensor_parallel": 4, "recompute": "full", "global_batch_size": 6}, 0),
    "TP 8, one micro batch": ({"num_layers": 2, "tensor_parallel": 8, "global_batch_size": 1, "seq_length": 1024}, 0),
    "fp32 on one device": (
        {"num_layers": 2, "devices": 1, "global_batch_size": 2, "seq_length": 1024, "precision": "fp32"},
        0,
    ),
    "70B widths, TP 8, first of four": (
        {"model": "llama3.1-70b", "num_layers": 8, "devices": 32, "tensor_parallel": 8, "pipeline_parallel": 4},
        0,
    ),
    "middle, selective": (
        {
            "model": "llama3.1-70b",
            "num_layers": 8,
            "devices": 64,
            "tensor_parallel": 8,
            "pipeline_parallel": 4,
            "recompute": "selective",
            "global_batch_size": 16,
        },
        1,
    ),
    "operations, two sequences": (
        {"num_layers": 2, "micro_batch_size": 2, "global_batch_size": 16, "recompute": "operations"},
        0,
    ),
    "operations, TP 8, middle": (
        {
            "model": "llama3.1-70b",
            "num_layers": 4,
            "devices": 64,
            "tensor_parallel": 8,
            "pipeline_parallel": 4,
            "recompute": "operations",
            "global_batch_size": 16,
        },
        1,
    ),
    "last": (
        {
            "model": "llama3.1-70b",
            "num_layers": 4,
            "devices": 32,
            "tensor_parallel": 8,
            "pipeline_parallel": 4,
            "global_batch_size": 16,
        },
        3,
    ),
}


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Traces in forked processes; the page on traces has one in a process that is started."""

    def traced(request: TraceRequest) -> Traced:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        (folder / "stdin").write_text(to_json(request), encoding="utf-8")
        code = forked.ended(forked.start("simulator.lab.trace", [], os.environ, folder), tracing.LIMIT_SECONDS)
        assert code == 0, (folder / "stderr").read_text(encoding="utf-8")
        return from_json(Traced, (folder / "stdout").read_text(encoding="utf-8"))

    monkeypatch.setattr(tracing, "_in_a_process", traced)


@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("name", CASES)
def test_a_trace_agrees_with_the_prediction(name: str) -> None:
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    given, stage = CASES[name]
    found = trace(*scenario_and_layout(**given), stage)
    assert abs(found.difference) < 0.01
    traced, predicted = found.traced, found.predicted
    assert traced.stage == predicted.stage == stage
    assert traced.moment == predicted.moment
    assert sum(traced.parts_bytes.values()) == traced.peak_bytes
    assert 0 < traced.base_bytes < traced.peak_bytes
    for part, counted, priced in found.rows:
        assert counted == pytest.approx(priced, rel=0.01, abs=2**20), part
    assert sum(counted for _, counted, _ in found.rows) == traced.peak_bytes


@pytest.mark.usefixtures("forks")
def test_a_trace_is_the_same_every_time() -> None:
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    question = scenario_and_layout(num_layers=2, tensor_parallel=8, global_batch_size=2, seq_length=512)
    first, second = (trace(*question).traced for _ in range(2))
    assert replace(first, seconds=0.0, resident_bytes=0) == replace(second, seconds=0.0, resident_bytes=0)


def test_the_stage_that_needs_most_is_traced_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    monkeypatch.setattr(tracing, "_in_a_process", lambda request: made(stage=request.stage))
    question = scenario_and_layout(num_layers=8, pipeline_parallel=4, global_batch_size=32)
    found = trace(*question)
    stages = found.estimate.memory.stages
    assert found.traced.stage == max(range(4), key=lambda stage: stages[stage].device_bytes)


def test_only_as_many_micro_batches_run_as_show_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    requests: list[TraceRequest] = []

    def recorded(request: TraceRequest) -> Traced:
        requests.append(request)
        return made(stage=request.stage)

    monkeypatch.setattr(tracing, "_in_a_process", recorded)
    for stage in (0, 3):
        trace(*scenario_and_layout(num_layers=8, pipeline_parallel=4, global_batch_size=512), stage)
    trace(*scenario_and_layout(num_layers=8, pipeline_parallel=4, global_batch_size=512, virtual_stages=2), 0)
    trace(*scenario_and_layout(num_layers=8, global_batch_size=16), 0)
    jobs = [request.job for request in requests]
    assert [job.global_batch_size // job.layout.data_parallel for job in jobs] == [6, 4, 12, 2]
    assert [request.micro_batches for request in requests] == [256, 256, 256, 2]


def made(**fields: Any) -> Traced:
    usual: dict[str, Any] = {
        "stage": 0,
        "peak_bytes": 2**30,
        "moment": "loss",
        "parts_bytes": {"parameters": 2**29, "activations": 2**29},
        "base_bytes": 2**29,
        "micro_batches": 2,
        "seconds": 1.0,
        "resident_bytes": 2**28,
        "torch_version": "2",
    }
    return Traced(**(usual | fields))


def test_a_result_survives_the_way_between_processes() -> None:
    assert from_json(Traced, to_json(made())) == made()


def test_only_tensors_are_priced() -> None:
    scenario, _ = scenario_and_layout()
    values = tensors_only(scenario).coefficients.memory
    assert (values.workspace_bytes, values.unfused_loss_bytes_per_logit) == (0.0, 0.0)
    assert values.context_bytes == scenario.coefficients.memory.context_bytes


@pytest.mark.parametrize(
    ("given", "stage", "said"),
    [
        ({"pipeline_parallel": 2}, 2, "stage 2: the pipeline has 2 ranks, allowed are 0 to 1"),
        ({}, -1, "stage -1: the pipeline has 1 ranks"),
    ],
)
def test_a_rank_that_there_is_none_of(given: dict[str, Any], stage: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        trace(*scenario_and_layout(**given), stage)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"model": "deepseek-v3", "devices": 64}, "the reference trainer has no mixture-of-experts layers"),
        ({"precision": "fp8"}, "precision fp8: the reference trainer computes in bf16 and fp32"),
        ({"lora_rank": 8}, "lora_rank 8: the reference trainer trains all weights"),
        ({"context_parallel": 2}, "context_parallel 2: the reference trainer has 1 only"),
        ({"offload": "optimizer"}, "offload optimizer: the reference trainer has none only"),
        ({"global_batch_size": 12}, "rule batch: "),
    ],
)
def test_what_the_trainer_cannot_run(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        trace(*scenario_and_layout(**given))
    assert said in str(refused.value)


def test_other_frameworks_are_not_traced() -> None:
    scenario = scenario_of(model="llama3.1-8b", hardware="h100-sxm-80g", devices=8)
    with pytest.raises(UnsupportedError, match="framework megatron: a trace runs PyTorch"):
        trace(scenario, complete_layout(scenario))


TINY = ("trace", "--model", "llama3.2-1b", "--hardware", "h100-sxm-80g", "--devices", "1", "--global-batch-size", "2")


def test_without_torch_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    said = "trace: torch is not installed; pip install '.[runner]' in a checkout brings it"
    assert refusal(*TINY, code=3) == said


def test_a_trace_that_fails_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho first >&2\necho 'RuntimeError: no such kernel' >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    assert refusal(*TINY, code=3) == "trace: torch ended with status 7: RuntimeError: no such kernel"


def test_a_trace_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: object())
    stuck = tmp_path / "python"
    stuck.write_text("#!/bin/sh\nexec sleep 60\n")
    stuck.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stuck))
    monkeypatch.setattr(tracing, "LIMIT_SECONDS", 0.2)
    with pytest.raises(UnsupportedError, match="did not end within"):
        trace(*scenario_and_layout(num_layers=4))


def test_the_command_needs_a_model() -> None:
    assert "missing option '--model'" in refusal("trace")


def compared() -> TraceComparison:
    scenario, layout = scenario_and_layout(num_layers=2, devices=1, global_batch_size=2)
    from simulator.search.build import estimate_layout  # noqa: PLC0415 - next to its only use

    estimate = estimate_layout(tensors_only(scenario), layout)
    peak = int(estimate.memory.allocated_bytes * 0.9)
    parts = {"parameters": peak // 2, "activations": peak - peak // 2}
    return TraceComparison(estimate=estimate, traced=made(peak_bytes=peak, parts_bytes=parts))


def test_the_answer_in_every_form(monkeypatch: pytest.MonkeyPatch) -> None:
    found = compared()
    monkeypatch.setattr(tracing, "trace", lambda *_question: found)
    table = run(*TINY).stdout
    assert "(+11.1 %)" in table
    assert "Traced 2 micro batches in 1.00 s and 256 MiB of memory, torch 2." in table
    assert "Traced 2 micro batches" not in run(*TINY, "-q").stdout
    assert "| peak " in run(*TINY, "--format", "markdown").stdout
    value = json.loads(run(*TINY, "--format", "json").stdout)
    assert value["difference"] == pytest.approx(1 / 0.9 - 1)
    for side in ("traced", "predicted"):
        assert sum(value[side]["breakdown_mib"].values()) == pytest.approx(value[side]["peak_mib"], abs=0.01)
    assert (value["stage"], value["layers"], value["layout"]["framework"]) == (0, 2, "torch")
