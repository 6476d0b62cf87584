"""Own rows: before and after their calibration; the walk of `docs/measure.md` stands with the pages."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.cluster import prepared
from simulator.evidence.calibration.own import fit_own, own_errors, shipped_knowledge, unused
from simulator.evidence.calibration.store import calibration_text
from simulator.evidence.measurements.rows import MeasuredRow, read_rows
from tests.cli.running import run

pytestmark = pytest.mark.usefixtures("bare")

ASKED: dict[str, Any] = {
    "model": "llama3.1-8b",
    "hardware": "h100-sxm-80g",
    "devices": 16,
    "global_batch_size": 256,
}
SLOWER = 1.12
"""What the made-up cluster is slower by than its family."""


def figures(tensor: int, pipeline: int) -> tuple[float, float]:
    """Step time and memory that a cluster slower than its family would measure."""
    found = simulator.estimate(**ASKED, tensor_parallel=tensor, pipeline_parallel=pipeline)
    return SLOWER * found.throughput.step_seconds, found.memory.device_bytes / 2**30


def mine(folder: Path, sizes: tuple[tuple[int, int], ...] = ((2, 1), (4, 1), (2, 2))) -> Path:
    """A table written by hand into the template."""
    template = run("calibrate", "--template")
    assert template.exit_code == 0
    header, *_ = csv.reader(io.StringIO(template.stdout))
    assert len(header) == 10
    lines = [",".join(header)]
    for tensor, pipeline in sizes:
        step, memory = figures(tensor, pipeline)
        lines.append(f"llama3.1-8b,h100-sxm-80g,16,8192,256,1,{tensor},{pipeline},{step},{memory}")
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_template_is_a_table_that_can_be_fitted(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(run("calibrate", "--template").stdout, encoding="utf-8")
    [row] = read_rows(path)
    assert row.speed_counts
    assert row.memory_counts
    assert run("calibrate", str(path)).exit_code == 0


def test_own_rows_are_shown_before_and_after(tmp_path: Path) -> None:
    path = mine(tmp_path)
    assert run("calibrate", str(path), "--output", str(tmp_path)).exit_code == 0
    shown = run("accuracy", str(path), "--calibration", str(tmp_path / "hopper.yaml"), "--format", "json")
    assert shown.exit_code == 0, shown.stderr
    rows = [row for row in json.loads(shown.stdout)["own_rows"] if row["kind"] == "time"]
    assert [row["key"] for row in rows] == ["mine:1", "mine:2", "mine:3"]
    for row in rows:
        assert row["before"] > 0.0
        assert abs(row["after"]) < abs(row["before"])
        assert abs(row["left_out"]) < abs(row["before"])
    told = run("accuracy", str(path)).stdout
    assert "Speed of own rows" in told
    assert "left out %" in told
    assert "needs the own rows" in run("accuracy", "--calibration", "none").stderr


@pytest.mark.parametrize("factor", [0.9, 1.15])
@pytest.mark.parametrize("sizes", [((2, 1), (4, 1)), ((2, 1), (4, 1), (2, 2), (1, 2), (4, 2), (8, 1))])
def test_a_tightly_calibrated_cluster_that_changed_is_learned(
    factor: float, sizes: tuple[tuple[int, int], ...], tmp_path: Path
) -> None:
    """Rows of Z2000 that are all slower, or faster, move the next prediction by most of the offset."""
    asked: dict[str, Any] = ASKED | {"hardware": "z2000"}
    lines = [
        "model,hardware,devices,seq_length,global_batch_size,micro_batch_size,tensor_parallel,pipeline_parallel,step_time_s"
    ]
    for tensor, pipeline in sizes:
        found = simulator.estimate(**asked, tensor_parallel=tensor, pipeline_parallel=pipeline)
        step = factor * found.throughput.step_seconds
        lines.append(f"llama3.1-8b,z2000,16,8192,256,1,{tensor},{pipeline},{step}")
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    fitted = fit_own("hopper", prepared(read_rows(tmp_path / "mine.csv")))
    (tmp_path / "hopper.yaml").write_text(calibration_text(fitted.calibration()), encoding="utf-8")
    before, after = (
        simulator.estimate(**asked, tensor_parallel=4, pipeline_parallel=4, calibration=choice).throughput.step_seconds
        for choice in (None, str(tmp_path / "hopper.yaml"))
    )
    assert after / before - 1.0 == pytest.approx(factor - 1.0, rel=0.3)


def test_memory_learns_from_own_rows(tmp_path: Path) -> None:
    """Three rows that hold 2 GiB more than predicted: so does the next layout, after the calibration."""
    held = 2.0
    lines = mine(tmp_path).read_text(encoding="utf-8").splitlines()
    more = [line.rpartition(",") for line in lines[1:]]
    (tmp_path / "mine.csv").write_text(
        "\n".join([lines[0], *(f"{front},{float(memory) + held}" for front, _, memory in more)]) + "\n",
        encoding="utf-8",
    )
    assert run("calibrate", str(tmp_path / "mine.csv"), "--output", str(tmp_path)).exit_code == 0
    asked = ASKED | {"tensor_parallel": 1, "pipeline_parallel": 4}
    before, after = (
        simulator.estimate(**asked, calibration=choice).memory for choice in (None, str(tmp_path / "hopper.yaml"))
    )
    assert after.device_bytes - before.device_bytes == pytest.approx(held * 2**30, rel=0.3)
    wide = [one.interval_bytes.high / one.interval_bytes.low for one in (before, after) if one.interval_bytes]
    assert wide[1] < wide[0]


def test_rows_that_do_not_predict_one_another_change_nothing(tmp_path: Path) -> None:
    """One fast, one slow, one as predicted: what was known before stays, and the command says so."""
    lines = mine(tmp_path).read_text(encoding="utf-8").splitlines()
    cells = [line.split(",") for line in lines]
    for row, factor in zip(cells[1:], (0.85, 1.0, 1.15), strict=True):
        row[-2] = str(float(row[-2]) / SLOWER * factor)
    (tmp_path / "mine.csv").write_text("\n".join(map(",".join, cells)) + "\n", encoding="utf-8")
    rows = read_rows(tmp_path / "mine.csv")
    fitted = fit_own("hopper", prepared(rows))
    assert fitted.fits["time"].belief == "prior"
    assert "what was known before stays" in fitted.not_stored("time")
    for error in own_errors(prepared(rows)):
        if error.kind == "time":
            assert error.before == pytest.approx(error.after)
            assert error.before == pytest.approx(error.left_out)


def test_a_row_that_agrees_changes_nothing(tmp_path: Path) -> None:
    """Never worse than with none: rows of a cluster that is its family's mean leave it where it is."""
    used = applied("hopper", None, "h100-sxm-80g")
    base = used.coefficients()
    path = mine(tmp_path, ((2, 1),))
    [row] = read_rows(path)
    assert row.step_seconds is not None
    honest = MeasuredRow(**{**_fields(row), "step_time_s": row.step_seconds / SLOWER})
    fitted = fit_own("hopper", prepared([honest])).fits["time"]
    known, _ = shipped_knowledge("hopper", "h100-sxm-80g")
    errors = known["time"].values * np.sqrt(np.diag(known["time"].covariance))
    for name, value, error in zip(fitted.names, fitted.values, errors, strict=True):
        assert value == pytest.approx(getattr(base.time, name), abs=0.02 * error)
    assert fitted.noise > 0.5 * known["time"].scatter("dense")


def _fields(row: MeasuredRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__dataclass_fields__}


def test_what_is_not_used_has_a_reason(tmp_path: Path) -> None:
    path = mine(tmp_path)
    text = path.read_text(encoding="utf-8").splitlines()
    path.write_text(
        "\n".join(
            [f"{text[0]},outcome", *(f"{line},ok" for line in text[1:]), f"{text[1]},oom", f",{text[1][12:]},ok"]
        ),
        encoding="utf-8",
    )
    rows = read_rows(path)
    fits = [fit_own("hopper", prepared(rows))]
    reasons = list(unused(rows, fits))
    assert [reason.partition(": ")[0] for reason in reasons] == ["mine:4", "mine:5"]
    assert "outcome oom" in reasons[0]
    assert "names no model" in reasons[1]
    assert all(reason in run("calibrate", str(path)).stderr for reason in reasons)


def test_a_run_is_not_called_starved_by_a_prediction_alone(tmp_path: Path) -> None:
    path = mine(tmp_path, ((2, 1),))
    [row] = read_rows(path)
    tight = MeasuredRow(**{**_fields(row), "micro_batch_size": 8, "memory_gib": None})
    fitted = fit_own("hopper", prepared([tight]))
    assert fitted.fits["time"].keys == (row.key,)


@pytest.mark.parametrize(("hardware", "family"), [("bi150-64g", "iluvatar-bi"), ("ascend-910b-64g-8", "ascend-910")])
def test_a_device_whose_owner_writes_runs_by_hand(hardware: str, family: str, tmp_path: Path) -> None:
    """The template of a device, three runs of Paddle in it, the calibration, and a layout that did not run."""
    header, example = csv.reader(io.StringIO(run("calibrate", "--template", "--hardware", hardware).stdout))
    assert (header[1], example[1], header[-1]) == ("hardware", hardware, "framework")
    asked: dict[str, Any] = {
        "model": "llama-13b",
        "hardware": hardware,
        "framework": "paddle",
        "devices": 16,
        "seq_length": 2048,
    }
    asked |= {"global_batch_size": 256, "sequence_parallel": True}
    lines = [",".join((*header, "sequence_parallel"))]
    for tensor, pipeline in ((8, 2), (4, 2), (4, 4)):
        found = simulator.estimate(**asked, tensor_parallel=tensor, pipeline_parallel=pipeline)
        measured = f"{1.4 * found.throughput.step_seconds},{found.memory.device_bytes / 2**30}"
        lines.append(f"llama-13b,{hardware},16,2048,256,1,{tensor},{pipeline},{measured},paddle,true")
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    done = run("calibrate", str(path), "--output", str(tmp_path))
    assert done.exit_code == 0, done.stderr
    layout: dict[str, Any] = {"tensor_parallel": 8, "pipeline_parallel": 1}
    before = simulator.estimate(**asked, **layout)
    after = simulator.estimate(**asked, **layout, calibration=str(tmp_path / f"{family}.yaml"))
    truth = 1.4 * before.throughput.step_seconds
    assert after.throughput.step_seconds == pytest.approx(truth, rel=0.12)
    span = after.throughput.interval_seconds
    assert span is not None
    assert span.low < truth < span.high


def test_figures_in_another_unit_are_asked_about(tmp_path: Path) -> None:
    path = mine(tmp_path, ((2, 1),))
    cells = path.read_text(encoding="utf-8").replace("memory_gib", "memory_mib")
    path.write_text(cells, encoding="utf-8")
    done = run("calibrate", str(path), "--output", str(tmp_path))
    assert "memory of family hopper is not stored" in done.stderr
    # After the fit; before it, the factor between the two units.
    assert re.search(
        r"mine:1 is (9\d\d|1\.[01]\d?e\+03) times what was measured: is it in the column's unit\?", done.stderr
    )
