"""Real launches of the reference trainer: any way of cutting it, the model computes the same."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulator.lab.trainer.__main__ import main
from simulator.lab.trainer.job import RankResult, TrainingJob
from tests.trainer import forked
from tests.trainer.launches import (
    LIMIT_SECONDS,
    NEEDS_TORCH,
    TRAINER,
    job_of,
    last_failure,
    launch,
    results,
    run_ranks,
    tiny_model,
    written,
)

pytestmark = [pytest.mark.launch, NEEDS_TORCH]

LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor parallel": {"tensor_parallel": 2, "micro_batch_size": 2, "recompute": "full"},
    "tensor and sequence parallel": {"tensor_parallel": 2, "micro_batch_size": 2, "sequence_parallel": True},
    "pipeline": {"pipeline_parallel": 2, "stage_layers": (1, 3)},
    "interleaved": {"pipeline_parallel": 2, "virtual_stages": 2, "recompute": "selective"},
    "replicas": {"data_parallel": 2, "zero_stage": 0},
    "sharded optimizer": {"data_parallel": 2, "zero_stage": 1},
    "sharded gradients": {"data_parallel": 2, "zero_stage": 2},
    "sharded parameters": {"data_parallel": 2, "zero_stage": 3},
}


GRADIENTS = "tests.trainer.with_gradients"


@dataclass(frozen=True)
class Trained:
    results: tuple[RankResult, ...]
    norms: dict[str, float]
    """Norm of every gradient of the model before the first update, from whichever rank has it."""

    @property
    def losses(self) -> tuple[float, ...]:
        return self.results[-1].losses


def train(job: TrainingJob, folder: Path) -> Trained:
    found = launch(job, folder, GRADIENTS)
    norms: dict[str, float] = {}
    for rank in range(job.layout.devices):
        norms |= json.loads((folder / f"norms-{rank}.json").read_text(encoding="utf-8"))
    return Trained(found, norms)


SHALLOW = tiny_model(num_hidden_layers=2)
"""Layers enough where no pipeline shares them out; each costs every rank as much time."""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """One rank, nothing split."""
    return train(job_of(model=SHALLOW), tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def alone_deep(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The same with a layer for each stage of interleaved pipelines."""
    return train(job_of(), tmp_path_factory.mktemp("alone_deep"))


def check_result(job: TrainingJob, rank: int, result: RankResult) -> None:
    assert result.rank == rank
    assert len(result.step_seconds) == job.steps
    assert min(result.step_seconds) > 0.0
    assert result.forward_seconds is not None
    assert result.backward_seconds is not None
    assert 0.0 < result.forward_seconds + result.backward_seconds < sum(result.step_seconds)
    assert sum(result.peak_parts.values()) == result.peak_bytes > result.base_bytes
    assert min(result.peak_parts.values()) >= 0
    assert result.device_name
    assert result.versions["communication"] == "gloo"


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_cut_computes_the_losses_and_gradients_of_one_rank(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    deep = "pipeline_parallel" in LAYOUTS[name]
    alone: Trained = request.getfixturevalue("alone_deep" if deep else "alone")
    job = job_of(LAYOUTS[name], model=None if deep else SHALLOW)
    found = train(job, tmp_path)
    assert found.norms == pytest.approx(alone.norms, rel=1e-4)
    for rank, result in enumerate(found.results):
        check_result(job, rank, result)
        known = result.stage == job.layout.pipeline_parallel - 1
        assert result.losses == (pytest.approx(alone.losses, rel=1e-5) if known else ())
        assert result.layers == job.layout.stage_layers[result.stage]
    assert len({result.stage for result in found.results}) == job.layout.pipeline_parallel


def test_the_model_learns(alone: Trained) -> None:
    assert alone.losses[0] - alone.losses[-1] > 0.1


def test_fp32_training_on_one_rank_rests_on_three_copies_of_the_parameters(alone: Trained) -> None:
    (result,) = alone.results
    parameters = 4 * (2 * (256 * 256 * 3 + 256 * 704 * 3 + 2 * 256) + 2 * 2048 * 256 + 256)
    assert result.peak_parts["parameters"] == result.peak_parts["gradients"] == parameters
    # Beside the moments a step count for each parameter; beside the copies the data and the rotary tables.
    assert 2 * parameters <= result.peak_parts["optimizer"] < 2.001 * parameters
    assert 3 * parameters < result.base_bytes < 3.02 * parameters


def test_tied_tables_on_two_pipeline_ranks_stay_equal(tmp_path: Path) -> None:
    model = tiny_model(tie_word_embeddings=True, num_hidden_layers=2)
    trained: list[Trained] = []
    layouts: tuple[dict[str, Any], ...] = ({}, {"pipeline_parallel": 2, "tensor_parallel": 2})
    for layout in layouts:
        folder = tmp_path / str(len(trained))
        folder.mkdir()
        trained.append(train(job_of(layout, model=model), folder))
    one, two = trained
    assert two.losses == pytest.approx(one.losses, rel=1e-5)
    table = two.norms.pop("head.weight")
    assert table == two.norms["embedding.weight"]
    assert two.norms == pytest.approx(one.norms, rel=1e-4)


def test_bf16_stays_near_fp32(alone: Trained, tmp_path: Path) -> None:
    layout = {"tensor_parallel": 2, "micro_batch_size": 2, "sequence_parallel": True, "zero_stage": 3}
    job = job_of(layout, precision="bf16", model=SHALLOW)
    for result in launch(job, tmp_path):
        assert result.losses == pytest.approx(alone.losses, abs=0.01)
        assert result.losses != pytest.approx(alone.losses, rel=1e-7)
        # Parameters rest in fp32, half of them on each rank.
        assert result.base_bytes * 2 == pytest.approx(alone.results[0].base_bytes, rel=0.01)


def test_memory_that_runs_out_is_the_last_line_and_the_exit_code(tmp_path: Path) -> None:
    job = job_of(memory_limit_bytes=40 * 2**20)
    ((code, errors),) = run_ranks(job, tmp_path)
    assert code == 3
    assert last_failure(errors).kind == "out-of-memory"
    assert not list(tmp_path.glob("rank-*"))


def test_memory_for_the_tensors_is_enough(alone: Trained, tmp_path: Path) -> None:
    # What a rank maps beside its tensors, stacks of threads for one, is no memory that a device would need.
    job = job_of(model=SHALLOW, memory_limit_bytes=alone.results[0].peak_bytes + 8 * 2**20)
    assert len(launch(job, tmp_path)) == 1


def test_a_job_it_cannot_run_is_refused_by_every_rank(tmp_path: Path) -> None:
    for rank, (code, errors) in enumerate(run_ranks(job_of({"context_parallel": 2}), tmp_path)):
        assert code == 1
        assert last_failure(errors).rank == rank
        assert last_failure(errors).kind == "unsupported"


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"backend": "abacus"}, "abacus"), ({"communication": "pigeon"}, "pigeon"), ({"surprise": 1}, "surprise")],
)
def test_what_the_machine_does_not_have_is_an_error(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = written(job_of(), tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    process = forked.start(TRAINER, [str(path)], os.environ, tmp_path)
    assert forked.ended(process, LIMIT_SECONDS) == 1
    failure = last_failure((tmp_path / "stderr").read_text(encoding="utf-8"))
    assert failure.kind == "error"
    assert says in failure.text


def test_a_pipeline_keeps_a_buffer_for_every_micro_batch(tmp_path: Path) -> None:
    # torch's schedule receives each micro batch into a buffer of its own and keeps them all between steps.
    job = job_of({"pipeline_parallel": 2}, global_batch_size=6)
    boundary = 4 * job.seq_length * job.model.hidden_size
    for result in launch(job, tmp_path):
        kept = result.base_bytes - result.peak_parts["parameters"] - result.peak_parts["optimizer"]
        data_and_tables = 2 * 6 * job.seq_length * 8 + 2 * job.seq_length * job.model.head_dim // 2 * 4
        assert 6 * boundary + data_and_tables <= kept < 6 * boundary + data_and_tables + 1024


def test_a_rank_is_a_function_call_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    job = job_of({"zero_stage": 3}, precision="bf16", model=tiny_model(num_hidden_layers=1))
    assert main([str(written(job, tmp_path))]) == 0
    (result,) = results(job, tmp_path)
    check_result(job, 0, result)
    assert result.peak_parts["gradients"] == result.peak_parts["parameters"]


def test_a_call_without_a_job_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "usage: python -m simulator.lab.trainer [rates] JOB.json" in last_failure(capsys.readouterr().err).text
