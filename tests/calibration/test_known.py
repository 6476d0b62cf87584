"""Coefficients that need no rows: what ships for processors, and what a fit does with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import simulator
from simulator.errors import InputError
from simulator.evidence.calibration.cluster import prepared
from simulator.evidence.calibration.own import fit_own
from simulator.evidence.calibration.store import FittedPart, calibration_text, read_calibration
from simulator.evidence.measurements.rows import MeasuredRow, write_rows
from simulator.question.coefficients import priors
from tests.calibration.pages import FOLDER
from tests.cli.running import run

FILE = FOLDER / "cpu.yaml"
TINY = FOLDER.parent / "examples" / "models" / "tiny.yaml"
QUESTION: dict[str, Any] = {
    "model": str(TINY),
    "hardware": "local-cpu",
    "devices": 2,
    "framework": "torch",
    "seq_length": 256,
    "global_batch_size": 8,
}


def known() -> FittedPart:
    part = read_calibration(FILE).memory
    assert part is not None
    return part


def rows(factor: float = 1.0) -> list[MeasuredRow]:
    """Rows that are `factor` times as slow as predicted, and hold what is predicted."""
    found = []
    for number, (tp, pp) in enumerate(((1, 1), (2, 1), (1, 2)), start=1):
        priced = simulator.estimate(**QUESTION, tensor_parallel=tp, pipeline_parallel=pp)
        found.append(
            MeasuredRow(
                table="own",
                row=number,
                source="test",
                model_as_stated="tiny",
                hardware_as_stated="local-cpu",
                model=str(TINY),
                hardware="local-cpu",
                framework="torch",
                devices=2,
                precision="bf16",
                seq_length=256,
                micro_batch_size=1,
                global_batch_size=8,
                tensor_parallel=tp,
                pipeline_parallel=pp,
                context_parallel=1,
                expert_parallel=1,
                zero_stage=3,
                recompute="none",
                outcome="ok",
                step_time_s=factor * priced.throughput.step_seconds,
                memory_mib=max(stage.allocated_bytes for stage in priced.memory.stages) / 2**20,
                memory_kind="allocated",
            )
        )
    return found


def test_a_processor_holds_the_tensors_alone() -> None:
    priced = simulator.estimate(**QUESTION)
    for stage in priced.memory.stages:
        assert stage.device_bytes == stage.allocated_bytes
    assert set(priced.memory.outside_parts_bytes.values()) == {0.0}
    assert dict(known().values) == dict.fromkeys(priors("memory"), 0.0)


def test_its_interval_is_the_noise_alone() -> None:
    memory = simulator.estimate(**QUESTION | {"stack": "default"}).memory
    assert memory.interval_bytes is not None
    assert memory.interval_bytes.high / memory.device_bytes == pytest.approx(1.0506, abs=1e-4)  # exp(1.645 x 3 %)


def test_the_status_is_that_of_the_speed() -> None:
    found = simulator.estimate(**QUESTION).provenance
    assert found.status == "never"
    assert found.calibration.startswith("memory: cpu (known); time: other (")
    assert [note for note in found.notes if note.startswith("memory: a processor")]
    assert not [note for note in found.notes if "memory: no measured run" in note]


def test_the_file_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(calibration_text(read_calibration(FILE)), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("value", "said"), [(-1.0, "-1 is outside 0 to"), (1e12, "is outside 0 to"), ("x", "could not")]
)
def test_a_known_value_has_bounds_too(value: object, said: str, tmp_path: Path) -> None:
    document = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    document["memory"]["coefficients"]["context_bytes"]["value"] = value
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_calibration(path)


def test_a_fitted_value_keeps_the_bounds_of_a_fit(tmp_path: Path) -> None:
    document = yaml.safe_load((FOLDER / "hopper.yaml").read_text(encoding="utf-8"))
    document["memory"]["coefficients"]["context_bytes"]["value"] = 0.0
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    with pytest.raises(InputError, match="context_bytes: 0 is outside"):
        read_calibration(path)


def test_rows_fit_time_and_leave_memory_known() -> None:
    fitted = fit_own("cpu", prepared(rows(factor=1.1)))
    assert fitted.fits.get("memory") is None
    stored = fitted.calibration().memory
    assert stored is not None
    assert (stored.known, stored.values) == (known().known, known().values)
    assert set(fitted.fits["time"].keys) == {"own:1", "own:2", "own:3"}


def test_what_is_written_serves_an_estimate(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    write_rows(table, rows(factor=1.1))
    result = run("calibrate", str(table), "--output", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    assert "Not fitted: a processor's memory" in result.stdout
    before, after = (simulator.estimate(**QUESTION, calibration=file) for file in (None, str(tmp_path / "cpu.yaml")))
    assert after.memory.stages == before.memory.stages
    assert after.provenance.calibration == "cpu (own)"
    assert after.throughput.step_seconds == pytest.approx(1.1 * before.throughput.step_seconds, rel=0.05)


def test_json_tells_it_too(tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    write_rows(table, rows())
    [family] = json.loads(run("calibrate", str(table), "--format", "json").stdout)["families"]
    assert family["parts"]["memory"]["known"].startswith("a processor's memory")
    assert set(family["parts"]["memory"]["coefficients"].values()) == {0.0}


def test_a_file_with_times_alone_takes_the_rest_from_its_family(tmp_path: Path) -> None:
    document = yaml.safe_load((FOLDER / "hopper.yaml").read_text(encoding="utf-8"))
    del document["memory"]
    document["family"] = "cpu"
    path = tmp_path / "times.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    found = simulator.estimate(**QUESTION, calibration=str(path))
    assert found.memory.stages == simulator.estimate(**QUESTION).memory.stages
    assert found.provenance.calibration.startswith("memory: cpu (known); time: cpu (")
