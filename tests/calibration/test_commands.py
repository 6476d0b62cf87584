"""`simulate calibrate` and `simulate accuracy` from the command line."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from simulator.evidence.calibration import own
from simulator.evidence.calibration.cluster import Sample
from simulator.evidence.calibration.store import calibration_text, read_calibration
from simulator.evidence.measurements.rows import read_rows, shipped_tables, write_rows
from simulator.question.coefficients import priors
from simulator.show.forms import ANSWERS
from tests.calibration.measured import contradictory, shipped_rows
from tests.calibration.pages import FOLDER
from tests.cli.running import refusal, run

LOG = Path(__file__).parents[1] / "measurements" / "data" / "megatron-8b.log"
TABLES = {path.stem: str(path) for path in shipped_tables()}
OWN = TABLES["a100-paddlenlp"]
"""Rows that stand for somebody's own."""


@pytest.fixture(scope="module", autouse=True)
def fitted_once() -> Iterator[None]:
    """A table is fitted once for all the forms of an answer."""
    fits: dict[str, own.OwnFit] = {}

    def fit(family: str, samples: Sequence[Sample]) -> own.OwnFit:
        key = repr((family, [sample.row for sample in samples]))
        if key not in fits:
            fits[key] = fit_own(family, samples)
        return fits[key]

    fit_own = own.fit_own
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(own, "fit_own", fit)
        yield


@pytest.mark.parametrize("format_name", ANSWERS["calibration"].formats)
def test_calibrate_has_every_format(format_name: str) -> None:
    result = run("calibrate", TABLES["b200-megatron"], "--format", format_name)
    assert result.exit_code == 0, result.stderr
    assert "not stored" in result.stderr  # what ships was fitted to these rows already
    assert "workspace_bytes" in result.stdout
    if format_name == "json":
        [family] = json.loads(result.stdout)["families"]
        assert family["family"] == "blackwell"
        names = [found["name"] for found in family["parts"]["memory"]["coefficients"]]
        assert names[0] == "workspace_bytes"
    if format_name == "yaml":
        assert yaml.safe_load(result.stdout)["family"] == "blackwell"


def test_calibrate_says_what_is_not_stored_and_why(tmp_path: Path) -> None:
    write_rows(tmp_path / "odd.csv", contradictory())
    odd = str(tmp_path / "odd.csv")
    result = run("calibrate", odd)
    assert result.exit_code == 0
    assert "memory of family ampere is not stored" in result.stderr
    assert "rows still scatter by" in result.stderr
    assert "at most 20 %" in result.stderr
    assert "Nothing is fitted" in result.stdout
    assert run("calibrate", odd, "-q").stderr == ""


@pytest.mark.parametrize("format_name", ["table", "markdown", "json", "yaml"])
def test_what_ships_is_listed(format_name: str) -> None:
    result = run("calibrate", "--list", "--family", "z2000", "--format", format_name)
    assert result.exit_code == 0, result.stderr
    assert "gemm_efficiency" in result.stdout
    assert "z2000-megatron" in result.stdout
    if format_name == "yaml":
        assert result.stdout == calibration_text(read_calibration(FOLDER / "z2000.yaml"))


def test_every_coefficient_is_listed_as_json() -> None:
    found = json.loads(run("calibrate", "--list", "--format", "json").stdout)
    assert [one["name"] for kind in ("memory", "time") for one in found[kind]] == [*priors("memory"), *priors("time")]
    ring = next(one for one in found["time"] if one["name"] == "ring_bytes_per_query_element")
    assert (ring["unit"], round(ring["prior"])) == ("bytes", 17)


def test_calibrate_writes_what_an_estimate_takes(tmp_path: Path) -> None:
    # Rows that run 15 % slower than the prediction are news.
    rows = list(csv.DictReader(Path(OWN).read_text(encoding="utf-8").splitlines()))
    for row in rows:
        for name in ("tokens_per_second_per_device", "tflops_per_device"):
            row[name] = str(float(row[name]) / 1.15) if row[name] else ""
        row["step_time_ms"] = str(1.15 * float(row["step_time_ms"])) if row["step_time_ms"] else ""
    with (tmp_path / "a100-paddlenlp.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    folder = tmp_path / "written"
    folder.mkdir()
    result = run("calibrate", str(tmp_path / "a100-paddlenlp.csv"), "--output", str(folder))
    assert result.exit_code == 0, result.stderr
    written = folder / "ampere.yaml"
    assert [path.name for path in folder.iterdir()] == [written.name]
    found = read_calibration(written)
    assert found.time is not None
    text = "--model llama-2-7b --hardware a100-sxm-80g --devices 8 --tp 2 --global-batch-size 64 --seq-length 4096"
    question = (*text.split(), "--format", "json")
    told = json.loads(run("estimate", *question, "--calibration", str(written)).stdout)
    assert "ampere (a100-paddlenlp)" in told["provenance"]["calibration"]
    shipped = json.loads(run("estimate", *question).stdout)
    assert re.search(r"ampere \(\d+ sources\)", shipped["provenance"]["calibration"])
    priors = json.loads(run("estimate", *question, "--calibration", "none").stdout)
    assert priors["provenance"]["calibration"] == "priors"
    assert priors["throughput"]["interval"] is None
    assert set(told["throughput"]["interval"]) == {"low", "high"}
    assert set(told["memory"]["interval"]) == {"low_mib", "high_mib"}
    assert 0.0 <= told["memory"]["fit_probability"] <= 1.0


def test_a_log_becomes_rows(tmp_path: Path) -> None:
    log = ("calibrate", "--from-log", str(LOG), "--hardware", "h100-sxm-80g", "--rows-only")
    printed = run(*log)
    assert printed.exit_code == 0, printed.stderr
    (tmp_path / "printed.csv").write_text(printed.stdout, encoding="utf-8")
    assert run(*log, "--output", str(tmp_path)).stdout == ""
    rows = read_rows(tmp_path / "megatron-8b.csv")
    assert rows == read_rows(tmp_path / "printed.csv")
    assert {row.table for row in rows} == {"megatron-8b"}
    # The table that was written is one more file to fit.
    both = run("calibrate", str(tmp_path / "megatron-8b.csv"), "--format", "json")
    assert both.exit_code == 0, both.stderr


def test_a_log_starts_from_what_ships_for_its_hardware() -> None:
    result = run("calibrate", "--from-log", str(LOG), "--hardware", "a100-sxm-80g", "--format", "json")
    assert result.exit_code == 0, result.stderr
    [family] = json.loads(result.stdout)["families"]
    assert family["family"] == "ampere"
    assert family["tables"] == ["megatron-8b"]
    assert "memory" in family["parts"]
    # The log is of an H100: no A100 is as fast.
    assert "time of family ampere is not stored" in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("calibrate", "none.csv"), "none.csv: no such file"),
        (("calibrate", "--from-log", str(LOG)), "--from-log needs --hardware"),
        (("calibrate", "--rows-only"), "--rows-only needs --from-log"),
        (("calibrate", "--model", "llama3.1-8b"), "--model needs --from-log"),
        (("calibrate", "--from-log", "none.log", "--hardware", "h20"), "none.log: no such file"),
        (("calibrate", "--format", "csv"), "'csv' is not one of table, json, yaml, markdown"),
        (("calibrate", TABLES["b200-megatron"], "--output", "no/such/folder"), "no such folder"),
        (("calibrate", TABLES["b200-megatron"], TABLES["b200-megatron"]), "b200-megatron:1 is there twice"),
        (("calibrate", "--list", "--family", "hoper"), "did you mean 'hopper'?"),
        (("calibrate", "--list", "--format", "yaml"), "needs --family"),
        (("accuracy", OWN, "--family", "volta"), "no row that ran; there are ampere"),
        (("accuracy", "--calibration", "none"), "needs the own rows"),
        (("accuracy", "--table", "z2000"), "did you mean 'z2000-megatron'?"),
        (("accuracy", "--family", "volta"), "no row that ran; there are"),
        (("accuracy", "--family", "cdna3", "--table", "z2000-megatron"), "no row of it is of --family cdna3"),
        (("calibrate",), "no measured rows"),
        (("estimate", "--model", "llama3.1-8b", "--calibration", "none.yaml"), "none.yaml: no such file"),
        (("--model", "llama3.1-8b", "--calibration", TABLES["b200-megatron"]), "b200-megatron.csv"),
    ],
)
def test_refused(args: tuple[str, ...], said: str) -> None:
    assert said in refusal(*args)


def test_rows_without_one_that_ran_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "failed.csv", [row for row in shipped_rows() if row.outcome == "error"])
    assert "no row that ran" in refusal("accuracy", str(tmp_path / "failed.csv"))


def test_nothing_to_store_is_exit_3(tmp_path: Path) -> None:
    bare = [replace(row, tokens_per_second_per_device=None) for row in contradictory()]
    write_rows(tmp_path / "memory.csv", bare)
    said = refusal("calibrate", str(tmp_path / "memory.csv"), "--output", str(tmp_path), code=3)
    assert "nothing can be stored: memory of family ampere" in said


@pytest.mark.parametrize("format_name", ANSWERS["accuracy"].formats)
def test_accuracy_has_every_format(format_name: str, tmp_path: Path) -> None:
    asked = ("accuracy", "--family", "ampere", "--format", format_name)
    result = run(*asked)
    assert result.exit_code == 0, result.stderr
    assert "A100" in result.stdout
    assert "H-class" not in result.stdout
    rows = run(*asked, "--rows").stdout
    assert "bigscience-a100:1" in rows
    if format_name == "markdown":
        run(*asked, "--output", str(tmp_path / "page"))
        assert (tmp_path / "page").read_text(encoding="utf-8") == result.stdout
    if format_name == "html":
        assert result.stdout.startswith("<!DOCTYPE html>")
    if format_name == "json":
        found = json.loads(result.stdout)
        assert {one["platform"] for one in found["speed"]["by_class"]} == {"A100"}
        assert len(found["speed"]["rows"]) == sum(one["rows"] for one in found["speed"]["by_source"])
    if format_name == "csv":
        header, *lines = csv.reader(io.StringIO(rows))
        assert "source_left_out" in header
        assert {line[header.index("platform")] for line in lines} == {"A100"}


def test_a_kind_without_rows_is_an_empty_list() -> None:
    found = json.loads(run("accuracy", "--family", "cdna3", "--format", "json").stdout)
    assert found["speed"]["rows"]
    assert found["memory"] == {"by_class": [], "by_source": [], "rows": []}


def test_accuracy_of_one_table_shows_no_other() -> None:
    shown = run("accuracy", "--rows", "--table", "a100-paddlenlp").stdout
    assert "a100-paddlenlp:1" in shown
    assert "b200-megatron" not in shown


@pytest.mark.parametrize("format_name", ANSWERS["accuracy"].formats)
def test_accuracy_of_own_rows_has_every_format(format_name: str) -> None:
    result = run("accuracy", OWN, "--format", format_name)
    assert result.exit_code == 0, result.stderr
    assert "a100-paddlenlp:1" in result.stdout


def test_variants_show_more_than_one_layout_of_a_split() -> None:
    question = ("--model", "llama3.2-1b", "--devices", "2", "--global-batch-size", "8", "--tp", "2", "--format", "json")
    few, many = (json.loads(run(*question, *more).stdout)["estimates"] for more in ((), ("--variants",)))
    assert len(few) < len(many)
