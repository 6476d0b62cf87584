import hashlib
import json
from pathlib import Path
from typing import get_args

import pytest

from simulator.evidence.measurements.question import figures_devices, question
from simulator.evidence.measurements.rows import (
    COLUMNS,
    MeasuredRow,
    RowStatus,
    public_tables,
    read_rows,
    shipped_tables,
    write_rows,
)
from simulator.question.specs.names import hardware_names, model_names
from simulator.search.build import estimate_layout
from tests.measurements.shared_tables import ANNOTATIONS, FOLDER, ROOT, ROWS, cells, expected, measurement

TABLES = {path.stem: path for path in shipped_tables()}
ALL = {row.key: row for path in TABLES.values() for row in read_rows(path)}
Z2000 = {row.row: row for row in ALL.values() if row.table == "z2000-megatron"}
# SHA-256 of all cells but the annotations. It changes only when a table is copied again from its source.
DIGESTS = json.loads((ROOT / "tests/measurements/digests.json").read_text(encoding="utf-8"))


def digest(rows: list[dict[str, str]]) -> str:
    return hashlib.sha256(json.dumps([measurement(row) for row in rows]).encode()).hexdigest()


def test_every_table_is_shipped() -> None:
    assert set(TABLES) == set(ROWS)
    assert all(path.is_relative_to(ROOT / "calibration") for path in TABLES.values())


@pytest.mark.parametrize("table", ROWS)
def test_measurements_have_not_changed(table: str) -> None:
    rows = cells(TABLES[table])
    assert len(rows) == ROWS[table]
    assert digest(rows) == DIGESTS[table]


@pytest.mark.parametrize("table", ROWS)
def test_measurements_are_those_of_the_shared_table(table: str) -> None:
    source = FOLDER / f"{table}.csv"
    if not source.is_file():
        pytest.skip(f"no shared tables in {FOLDER.name}; SIMULATE_SHARED names the folder that holds them")
    theirs = cells(source)
    ours = cells(TABLES[table])
    assert len(ours) == len(theirs)
    for number, (row, given) in enumerate(zip(ours, theirs, strict=True), start=1):
        assert row["row"] == str(number)
        wanted = expected(table, given)
        assert {name: row[name] for name in wanted} == wanted
        assert given.get("notes", "") in row["source_notes"]
        assert given.get("flops_convention_note", "") in row["source_notes"]
        if row["memory_reserved_gib"]:
            assert f"real_reserved_gib={row['memory_reserved_gib']};" in given["notes"]
        if row["stage_layers"]:
            assert f"num-layer-list={row['stage_layers'].replace('|', ',')}" in given["notes"]
        if table == "z2000-megatron":
            assert int(given["nodes"]) * 8 == int(row["devices"])


@pytest.mark.parametrize("table", ROWS)
def test_a_table_survives_writing(table: str, tmp_path: Path) -> None:
    rows = read_rows(TABLES[table])
    write_rows(tmp_path / "again.csv", rows)
    assert read_rows(tmp_path / "again.csv") == rows


@pytest.mark.parametrize("row", ALL.values(), ids=ALL)
def test_names_are_those_of_shipped_specs(row: MeasuredRow) -> None:
    assert row.hardware in hardware_names()
    assert (row.model in model_names()) == (row.status != "no_spec")
    assert row.source
    assert row.evidence or row.status == "consistent"


@pytest.mark.parametrize("row", ALL.values(), ids=ALL)
def test_rows_that_ran_or_ran_out_can_be_priced(row: MeasuredRow) -> None:
    if row.status in ("failed", "no_spec"):
        return
    scenario, layout = question(row)
    found = estimate_layout(scenario, layout)
    assert found.throughput.step_seconds > 0
    assert not found.violations
    assert layout.devices == scenario.devices == row.run_devices
    assert sum(layout.stage_layers) == scenario.model.num_hidden_layers


def test_every_status_is_used_and_described() -> None:
    public = {row.status for path in public_tables() for row in read_rows(path)}
    assert {row.status for row in ALL.values()} | public == set(get_args(RowStatus))


def test_z2000_statuses_are_those_of_the_design_notes() -> None:
    ran = {number for number, row in Z2000.items() if row.outcome == "ok"}
    assert len(ran) == 30
    consistent = {number for number in ran if Z2000[number].status == "consistent"}
    assert ran - consistent == {5, 6, 7, 8, 29, 42}
    assert {n for n, row in Z2000.items() if row.memory_counts} == consistent
    assert {n for n, row in Z2000.items() if row.speed_counts} == consistent | {5, 7}
    oom = {number for number, row in Z2000.items() if row.outcome == "oom"}
    assert len(oom) == 13
    assert {n for n in oom if Z2000[n].status != "consistent"} == {3, 4, 33}
    assert {n for n, row in Z2000.items() if row.outcome == "error"} == {
        n for n, row in Z2000.items() if row.status == "failed"
    }


def test_z2000_annotations() -> None:
    assert {n: row.devices_from_figures for n, row in Z2000.items() if row.devices_from_figures} == {1: 16}
    scripts = {n: row.layers_per_virtual_stage_from_script for n, row in Z2000.items()}
    assert {n: x for n, x in scripts.items() if x} == {41: 10, 47: 2, 48: 2, 49: 2, 50: 5, 52: 10}


def test_figures_give_the_devices() -> None:
    for row in Z2000.values():
        implied = figures_devices(row)
        if row.outcome == "ok":
            assert implied == pytest.approx(row.run_devices, rel=2e-3), row.key
        else:
            assert implied is None
    assert Z2000[1].devices == 32


def test_annotations_are_columns() -> None:
    assert set(ANNOTATIONS) <= set(COLUMNS)
    assert len(COLUMNS) == len(set(COLUMNS))


def test_b200_memory_is_counted_once_per_run() -> None:
    b200 = [row for row in ALL.values() if row.table == "b200-megatron"]
    assert [row.row for row in b200 if row.memory_counts] == [1, 2, 3, 4]
    assert all(row.speed_counts and row.num_layers == 12 for row in b200)
    assert {row.compares_with for row in b200} == {"allocated"}


def test_uneven_cut_and_chunks_reach_the_layout() -> None:
    assert question(ALL["ascend-mindspeed:8"])[1].stage_layers == (17, 20, 22, 21)
    assert question(ALL["ascend-mindspeed:4"])[1].virtual_stages == 4
    assert question(Z2000[49])[1].virtual_stages == 5
    assert question(Z2000[33])[1].virtual_stages == 1
