import csv
import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InputError, UnsupportedError
from simulator.evidence.measurements.question import (
    figures_devices,
    measured_tflops_per_device,
    measured_tokens_per_second_per_device,
    question,
)
from simulator.evidence.measurements.rows import COLUMNS, MeasuredRow, read_rows, shipped_tables, write_rows
from simulator.question.units import GIB, MIB

ROW = MeasuredRow(
    table="mine",
    row=1,
    source="a document",
    model_as_stated="Llama 3.1 8B",
    hardware_as_stated="H100",
    model="llama3.1-8b",
    hardware="h100-sxm-80g",
    framework="megatron",
    options=(("expandable_segments", "false"), ("cp_communication", "all_to_all")),
    devices=32,
    precision="bf16",
    seq_length=8192,
    micro_batch_size=1,
    global_batch_size=1024,
    tensor_parallel=1,
    pipeline_parallel=2,
    context_parallel=1,
    expert_parallel=1,
    zero_stage=0,
    sequence_parallel=False,
    recompute="none",
    outcome="ok",
    tflops_per_device=501.5,
    step_time_ms=30272.5,
    step_samples=3,
    step_min_s=30.2,
    step_max_s=30.4,
    step_iqr_s=0.0,
    memory_mib=65012.0,
    memory_kind="device",
)


def written(tmp_path: Path, changes: dict[str, str], *, header: tuple[str, ...] = COLUMNS) -> Path:
    path = tmp_path / "table.csv"
    write_rows(path, [ROW])
    with path.open(encoding="utf-8", newline="") as table:
        cells = next(csv.DictReader(table)) | changes
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([header, [cells.get(name, "1") for name in header]])
    path.write_text(stream.getvalue(), encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_rows(path)
    return str(caught.value).removeprefix(str(path))


def test_a_row_survives_writing(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    uneven = dataclasses.replace(ROW, row=2, stage_layers=(15, 17))
    chunks_without_layers = dataclasses.replace(ROW, row=3, chunk_layers=(0, 16, 16, 0))
    write_rows(path, [ROW, uneven, chunks_without_layers])
    assert read_rows(path) == (ROW, uneven, chunks_without_layers)
    assert question(chunks_without_layers)[1].chunk_layers == (0, 16, 16, 0)


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("devices", "32.0", ":2: column 'devices': '32.0' must be a whole number from 1 to 2147483648"),
        ("devices", "", ":2: column 'devices' must not be blank"),
        ("zero_stage", "4", ":2: column 'zero_stage': '4' must be a whole number from 0 to 3"),
        ("step_time_ms", "-1", ":2: column 'step_time_ms': '-1' must be a number above zero"),
        ("step_time_ms", "nan", ":2: column 'step_time_ms': 'nan' must be a number above zero"),
        ("step_time_ms", "1e999", ":2: column 'step_time_ms': '1e999' must be a number above zero"),
        ("memory_mib", "0", ":2: column 'memory_mib': '0' must be a number above zero"),
        ("sequence_parallel", "yes", ":2: column 'sequence_parallel': 'yes' must be true or false"),
        ("stage_layers", "16,16", ":2: column 'stage_layers': '16,16' must be a whole number"),
        ("stage_layers", "16|8|8", ":2: mine:1: stage_layers has 3 stages; pipeline_parallel is 2"),
        ("options", "a=1;a=2", ":2: column 'options': 'a=2' must be NAME=VALUE"),
        (
            "precision",
            "bf8",
            ":2: column 'precision': 'bf8', did you mean 'fp8'?; allowed are bf16, fp16, fp8, fp4, fp32",
        ),
        ("status", "relabeled", ":2: column 'status': 'relabeled', did you mean 'relabelled'?; allowed are"),
        ("step_time_s", "30", ":2: mine:1: step_time_ms and step_time_s are both given"),
        ("memory_mib", "", ":2: mine:1: memory_kind must be given with memory_mib or memory_gib"),
        ("error", "crashed", ":2: mine:1: error must be blank when outcome is ok"),
        ("step_samples", "", ":2: mine:1: step_samples must be given with"),
        ("evidence", "bell \a", ":2: column 'evidence': text must be one line of printable characters"),
    ],
)
def test_a_wrong_cell_is_refused_by_line_and_column(tmp_path: Path, column: str, text: str, message: str) -> None:
    assert refusal(written(tmp_path, {column: text})).startswith(message)


def test_a_row_that_ran_needs_a_figure(tmp_path: Path) -> None:
    blank = dict.fromkeys(COLUMNS[COLUMNS.index("tflops_per_device") : COLUMNS.index("source_notes")], "")
    assert refusal(written(tmp_path, blank)) == ":2: mine:1: outcome ok needs a speed, a step time or a memory figure"


def test_headers_are_strict(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, {}, header=(*COLUMNS, "step_time_msec"))) == (
        ":1: unknown column 'step_time_msec', did you mean 'step_time_ms'?"
    )
    without = tuple(name for name in COLUMNS if name != "seq_length")
    assert refusal(written(tmp_path, {}, header=without)).startswith(
        ":1: missing column 'seq_length'; `simulate calibrate --template`"
    )
    assert refusal(written(tmp_path, {}, header=(*COLUMNS, "row"))) == ":1: column 'row' stands twice"
    empty = tmp_path / "empty.csv"
    empty.write_text("", encoding="utf-8")
    assert refusal(empty).startswith(":1: missing columns 'devices', 'global_batch_size', 'hardware'")
    for mark, said in ((";", "';'"), ("\t", "tabs")):
        empty.write_text(mark.join(COLUMNS) + "\n", encoding="utf-8")
        assert refusal(empty) == f":1: columns are separated by commas here, not by {said}"


def test_optional_columns_are_optional(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    needed = "hardware,devices,seq_length,micro_batch_size,global_batch_size,step_time_s"
    path.write_text(f"{needed}\nz2000,8,8192,1,64,2.5\nz2000,8,8192,1,128,4.9\n", encoding="utf-8")
    first, second = read_rows(path)
    assert (first.key, second.key) == ("mine:1", "mine:2")
    assert (first.framework, first.precision, first.tensor_parallel, first.outcome) == ("megatron", "bf16", 1, "ok")


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    header = "hardware,devices,seq_length,micro_batch_size,global_batch_size,step_time_s,memory"
    path.write_text(f"{header}\nz2000,x,8192,1,,2.5,1\n\nz2000,8,8192,1,64,-1,1\n", encoding="utf-8")
    told = [re.match(r":?(\d+): ", text) for text in refusal(path).split("; ") if re.match(r":?\d+: ", text)]
    assert [found[1] for found in told if found] == ["1", "2", "2", "4"]


def test_columns_may_stand_in_any_order(tmp_path: Path) -> None:
    assert read_rows(written(tmp_path, {}, header=COLUMNS[::-1])) == (ROW,)


def test_rows_are_named_once_and_have_all_cells(tmp_path: Path) -> None:
    path = written(tmp_path, {})
    text = path.read_text(encoding="utf-8")
    path.write_text(text + text.splitlines()[1] + "\n", encoding="utf-8")
    assert refusal(path) == ":3: mine:1 stands in line 2 already; row must differ"
    path.write_text(text + "mine,2\n", encoding="utf-8")
    assert refusal(path) == f":3: 2 cells; the header has {len(COLUMNS)}"
    path.write_text(text + '\n"open', encoding="utf-8")
    assert "not valid CSV" in refusal(path)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.csv") == ": no such file"
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00")
    assert refusal(binary).startswith(": not UTF-8 text")
    with pytest.raises(InputError, match="cannot be written"):
        write_rows(tmp_path / "none" / "table.csv", [ROW])


@given(st.binary(max_size=400))
def test_only_input_errors_escape_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "table.csv"
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_rows(path)


@given(st.sampled_from(COLUMNS), st.text(max_size=30))
def test_only_input_errors_escape_cells(tmp_path_factory: pytest.TempPathFactory, column: str, text: str) -> None:
    path = written(tmp_path_factory.mktemp("fuzz"), {column: text.encode("utf-8", "replace").decode("utf-8")})
    try:
        rows = read_rows(path)
    except InputError:
        return
    assert len(rows) == 1


def test_derived_figures() -> None:
    assert ROW.key == "mine:1"
    assert ROW.step_seconds == 30.2725
    assert ROW.memory_bytes == 65012 * MIB
    assert measured_tflops_per_device(ROW) == 501.5
    assert ROW.compares_with == "device"
    assert ROW.step_time_spread is not None
    assert ROW.step_time_spread.maximum == 30.4
    timed = dataclasses.replace(ROW, tflops_per_device=None)
    assert measured_tflops_per_device(timed) == pytest.approx(501.5, rel=1e-3)
    assert figures_devices(timed) is None
    speed = dataclasses.replace(timed, step_time_ms=None, tokens_per_second_per_device=8659.0)
    assert measured_tflops_per_device(speed) == pytest.approx(501.5, rel=1e-3)
    assert speed.step_seconds is None
    only = dataclasses.replace(ROW, step_time_ms=None)
    assert measured_tokens_per_second_per_device(only) == pytest.approx(8659.0, rel=1e-3)
    both = dataclasses.replace(timed, tokens_per_second_per_device=8659.0)
    assert figures_devices(both) == pytest.approx(32, rel=1e-3)
    none = dataclasses.replace(speed, tokens_per_second_per_device=None)
    assert measured_tflops_per_device(none) is None
    assert not none.speed_counts
    gib = dataclasses.replace(ROW, memory_mib=None, memory_gib=60.5, memory_reserved_gib=61.0, memory_kind="unstated")
    assert gib.memory_bytes == 60.5 * GIB
    assert gib.reserved_bytes == 61.0 * GIB
    assert gib.compares_with == "device"
    nothing = dataclasses.replace(ROW, memory_mib=None, memory_kind=None, step_samples=None, step_min_s=None,
                                  step_max_s=None, step_iqr_s=None)  # fmt: skip
    assert nothing.compares_with is None
    assert nothing.step_time_spread is None


def test_the_annotation_counts_where_the_table_is_silent() -> None:
    assert question(ROW)[1].virtual_stages == 1
    annotated = dataclasses.replace(ROW, layers_per_virtual_stage_from_script=4, devices_from_figures=16)
    scenario, layout = question(annotated)
    assert (scenario.devices, layout.virtual_stages, layout.data_parallel) == (16, 4, 8)
    stated = dataclasses.replace(annotated, layers_per_virtual_stage=8)
    assert question(stated)[1].virtual_stages == 2


def test_the_question_has_the_rows_choices() -> None:
    row = dataclasses.replace(ROW, num_layers=12, recompute="full", recompute_method="block", recompute_layers=2)
    scenario, layout = question(row)
    assert scenario.model.num_hidden_layers == 12
    assert not scenario.framework.expandable_segments
    assert scenario.framework.cp_communication == "all_to_all"
    assert (layout.recompute_method, layout.recompute_layers, layout.zero_stage) == ("block", 2, 0)
    assert layout.stage_layers == (6, 6)
    assert question(dataclasses.replace(ROW, tensor_parallel=2, sequence_parallel=None))[1].sequence_parallel
    assert not question(dataclasses.replace(ROW, sequence_parallel=True))[1].sequence_parallel


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": ""}, "mine:1: no spec for model 'Llama 3.1 8B'"),
        ({"model": "llama4"}, "mine:1: unknown model 'llama4'"),
        ({"options": (("expandable", "true"),)}, "mine:1: --option expandable: unknown switch"),
        ({"layers_per_virtual_stage": 5}, "mine:1: layers_per_virtual_stage 5 x pipeline_parallel 2 does not divide"),
        (
            {"tensor_parallel": 3},
            "mine:1: tensor_parallel 3 x pipeline_parallel 2 x context_parallel 1 = 6 does",
        ),
        ({"stage_layers": (16, 15)}, "mine:1: stage_layers add up to 31, not to the model's 32"),
        ({"pipeline_parallel": 32, "num_layers": 2}, "mine:1: pipeline_parallel 32 is more than the 2 layers"),
        ({"devices": 12}, "mine:1: devices 12: more than one node"),
    ],
)
def test_a_row_without_a_question_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        question(dataclasses.replace(ROW, **changes))
    assert str(caught.value).startswith(message)


def test_what_cannot_be_priced_stays_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="mine:1"):
        question(dataclasses.replace(ROW, hardware="a100-sxm-80g", precision="fp8", options=()))


def test_shipped_tables_are_found() -> None:
    assert len(shipped_tables()) == 5
