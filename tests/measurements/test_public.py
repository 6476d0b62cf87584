"""The public tables hold what their sources print, and every row is a question or says why not."""

import csv
import hashlib
import json
import re
from pathlib import Path

import pytest

from simulator.evidence.measurements.question import question
from simulator.evidence.measurements.rows import MeasuredRow, public_tables, read_rows
from simulator.search.build import estimate_layout
from tests.measurements.shared_tables import FOLDER, ROOT, cells, measurement

TABLES = {path.stem: path for path in public_tables()}
ALL = {row.key: row for path in TABLES.values() for row in read_rows(path)}
DIGESTS = json.loads((ROOT / "tests/measurements/public_digests.json").read_text(encoding="utf-8"))
SHARED = FOLDER / "public"
NAMES = {
    "model": "model_as_stated",
    "hardware": "hardware_as_stated",
    "source_ref": "source",
    "gpus": "devices",
    "precision": "precision",
    "seq": "seq_length",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "tflops_per_gpu": "stated_tflops_per_device",
    "tokens_per_s_per_gpu": "tokens_per_second_per_device",
    "step_s": "step_time_s",
    "mem_gib": "memory_gib",
}


def digest(path: Path) -> str:
    rows = [measurement(row) for row in cells(path)]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Whether two cells hold the same figure or word."""
    try:
        return float(one) == float(other)
    except ValueError:
        return one == other


@pytest.mark.parametrize("table", TABLES)
def test_measurements_have_not_changed(table: str) -> None:
    assert digest(TABLES[table]) == DIGESTS[table]


def test_every_row_is_there() -> None:
    assert set(DIGESTS) == set(TABLES)
    assert len(ALL) == 472


def test_rows_are_those_of_the_shared_table() -> None:
    if not (SHARED / "rows.csv").is_file():
        pytest.skip("no shared tables; SIMULATE_SHARED names the folder that holds them")
    with (SHARED / "rows.csv").open(encoding="utf-8", newline="") as stream:
        given = {str(line): row for line, row in enumerate(csv.DictReader(stream), start=2)}
    ours = {
        found[1]: row
        for path in TABLES.values()
        for row in cells(path)
        if (found := re.fullmatch(r"line (\d+)", row["source_ref"]))
    }
    assert set(ours) == set(given)
    for line, row in ours.items():
        filled = row["filled"].split("|")
        for name, column in NAMES.items():
            stated = given[line][name]
            if column in filled:
                assert not stated, (line, name)
            else:
                assert same(row[column], stated), (line, name)
        assert given[line]["notes"] in row["source_notes"]
        assert (row["outcome"] == "oom") == (given[line]["mem_kind"] == "OOM")


@pytest.mark.parametrize(("folder", "named"), [("public", "questions"), ("public2", "further questions")])
def test_questions_are_those_of_the_shared_file(folder: str, named: str) -> None:
    file = FOLDER / folder / "questions.json"
    if not file.is_file():
        pytest.skip("no shared tables; SIMULATE_SHARED names the folder that holds them")
    given = {case["id"]: case for case in json.loads(file.read_text(encoding="utf-8"))["cases"]}
    ours = {row.source_ref.split()[0]: row for row in ALL.values() if f" of the {named}" in row.source_ref}
    assert set(ours) == set(given)
    for name, case in given.items():
        row = ours[name]
        pairs = (
            *((row.devices, case["devices"]), (row.tensor_parallel, case["tp"]), (row.pipeline_parallel, case["pp"])),
            *(
                (row.context_parallel, case["cp"]),
                (row.virtual_stages or 1, case["vpp"]),
                (row.zero_stage, case["zero"]),
            ),
            *((row.micro_batch_size, case["mbs"]), (row.global_batch_size, case["gbs"]), (row.seq_length, case["seq"])),
            *(
                (row.precision, case["precision"]),
                # What keeps single operations had no word when the first questions were put.
                (row.recompute, case["recompute"] if row.recompute != "operations" else row.recompute),
                (row.step_time_s, case["step_s"]),
            ),
            *((row.tokens_per_second_per_device, case["tok_s"]), (row.memory_gib, case["mem_gib"] or None)),
        )
        assert [pair for pair in pairs if pair[0] != pair[1]] == [], name


def test_published_rows_are_those_of_the_shared_table() -> None:
    file = FOLDER / "public2" / "bridge.csv"
    if not file.is_file():
        pytest.skip("no shared tables; SIMULATE_SHARED names the folder that holds them")
    printed = {
        (row["container"], row["model"], row["system"], float(row["tok_s_gpu"]), int(row["gpus"]))
        for row in cells(file)
    }
    bridge = (row for row in ALL.values() if row.table.startswith("megatron-bridge"))
    ours = [row for row in bridge if "LLAMA3_70B" in row.model_as_stated]
    assert len(ours) == 6
    for row in ours:
        container, speed = row.source_ref.split()[0], row.tokens_per_second_per_device
        assert (f"{container} NeMo Container", "LLAMA3_70B", "DGX-H100", speed, row.devices) in printed


@pytest.mark.parametrize("row", ALL.values(), ids=ALL)
def test_a_row_is_a_question_or_says_why_not(row: MeasuredRow) -> None:
    assert row.organisation
    assert row.evidence
    if row.asks:
        scenario, layout = question(row)
        assert estimate_layout(scenario, layout).throughput.step_seconds > 0
