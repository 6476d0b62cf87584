"""Sweeps: rows against rankings, the same rows however they are worked through, nothing lost where one is killed."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import simulator
from simulator import InputError, UnsupportedError
from simulator.answers import sweep as questions_module
from simulator.answers import sweep as sweeping
from simulator.answers.sweep import COLUMNS, OUTCOMES, questions_of, read_questions, read_table
from simulator.show.report.schema import schema
from tests.answers.sweeps import FEW, MANY, answered, started, swept, written
from tests.cli.running import refusal
from tests.cli.running import run as simulate
from tests.docs.pages import code_words, page
from tests.project.tree import ROOT
from tests.runner.trees import PATIENCE_SECONDS, none_left, processes_with, until

ONE: dict[str, Any] = {"model": "llama3.2-1b", "hardware": "h20", "devices": 2, "global_batch_size": 8}


def test_the_framework_follows_from_a_method_or_a_stack() -> None:
    """As in `simulate estimate`: a row is what that command answers."""
    card: dict[str, Any] = {"model": "qwen3-0.6b", "hardware": "rtx-4090", "devices": 1}
    (row,) = simulator.sweep(card | {"method": "lora"}, workers=1).rows()
    alone = simulator.estimate(**card, method="lora")
    assert (row["framework"], row["device_bytes"]) == ("torch", alone.memory.device_bytes)
    named = simulator.sweep(card | {"stack": ["trl", "nvidia-recipes"]}, workers=1).rows()
    assert [row["framework"] for row in named] == ["torch", "megatron"]
    with pytest.raises(InputError, match="options"):
        simulator.sweep(card | {"method": "lora", "options": {"tp_overlap": "true"}})


def test_questions_are_the_product_of_the_lists_of_each_block() -> None:
    found = questions_of([{"model": ["llama3.2-1b", "llama3.1-8b"], "nodes": [1, 2, 4]}, {"model": "llama3.1-8b"}])
    assert len(found) == 7
    asked = [(found[number]["model"], found[number].get("nodes")) for number in range(7)]
    assert asked == [
        *((model, nodes) for model in ("llama3.2-1b", "llama3.1-8b") for nodes in (1, 2, 4)),
        ("llama3.1-8b", None),
    ]
    assert "seq_length" not in found[0]  # follows from each model
    with pytest.raises(IndexError):
        found[7]


def test_a_catalogue_is_not_laid_out() -> None:
    found = questions_of({"model": "llama3.1-8b", "seq_length": list(range(1, 3001)), "nodes": list(range(1, 3001))})
    assert len(found) == 9_000_000
    assert (found[8_999_999]["seq_length"], found[8_999_999]["nodes"]) == (3000, 3000)


def test_a_sweep_says_which_settings_change_nothing(tmp_path: Path) -> None:
    idle = {"options": [{}, {"fp8_recipe": "mxfp8"}], "precision": "bf16"}
    found = simulator.sweep({**ONE, **idle}, workers=1)
    plain, other = found.rows()
    text = "--option fp8_recipe=mxfp8 has no effect without --precision fp8"
    assert (plain["without_effect"], other["without_effect"]) == (None, text)
    assert plain["step_seconds"] == other["step_seconds"]
    assert found.without_effect == {text: 1}
    assert simulator.rank(**ONE, options={"fp8_recipe": "mxfp8"}).estimates[0].provenance.without_effect == (text,)
    (tmp_path / "q.json").write_text(json.dumps({**ONE, **idle}), encoding="utf-8")
    words = ("sweep", str(tmp_path / "q.json"), "--output", str(tmp_path / "rows.csv"), "--workers", "1")
    assert f"{text}: 1 question." in " ".join(simulate(*words).stdout.split())
    assert json.loads(simulate(*words, "--format", "json").stdout)["without_effect"] == {text: 1}


def test_a_row_is_the_first_layout_of_its_ranking() -> None:
    [row] = simulator.sweep(ONE, workers=1).rows()
    best = simulator.rank(**ONE).estimates[0]
    assert row["outcome"] == "fits"
    assert row["step_seconds"] == best.throughput.step_seconds
    assert best.throughput.interval_seconds is not None
    assert row["step_seconds_low"] == best.throughput.interval_seconds.low
    assert row["tokens_per_second"] == best.throughput.tokens_per_second_per_device * 2
    assert row["device_bytes"] == best.memory.device_bytes
    assert row["seq_length"] == best.seq_length == 8192
    assert (row["tp"], row["pp"], row["dp"]) == (
        best.layout.tensor_parallel,
        best.layout.pipeline_parallel,
        best.layout.data_parallel,
    )


def test_a_layout_narrows_the_search() -> None:
    rows = simulator.sweep(ONE | {"layout": [{"tp": 2}, {"pp": 2, "tp": [1, 2]}, {}]}, workers=1).rows()
    assert [(row["tp"], row["pp"]) for row in rows[:2]] == [(2, 1), (1, 2)]
    assert [row["layout"] for row in rows] == ["tp=2", "pp=2 tp=1,2", None]


def test_precision_is_that_of_the_device_where_none_is_said() -> None:
    rows = simulator.sweep(ONE | {"hardware": ["v100-sxm-32g", "h20"]}, workers=1).rows()
    assert [(row["precision"], row["outcome"]) for row in rows] == [("fp16", "fits"), ("bf16", "fits")]


def test_what_cannot_be_answered_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ONE | {"model": ["llama3.2-1b", "llama3.1-405b"], "precision": ["bf16", "fp8"], "hardware": "a100-sxm-40g"}
    rows = simulator.sweep(asked, workers=1).rows()
    assert [row["outcome"] for row in rows] == ["fits", "refused", "does_not_fit", "refused"]
    assert "fp8" in rows[1]["reason"]
    assert rows[1]["step_seconds"] is None
    assert rows[2]["device_bytes"] > rows[2]["capacity_bytes"]

    def broken(*_: object, **_named: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(sweeping, "fastest", broken)
    [row] = simulator.sweep(ONE, workers=1).rows()
    assert (row["outcome"], row["reason"]) == ("failed", "internal error: ZeroDivisionError: a defect")


def test_how_sure_a_recommendation_is_can_be_said() -> None:
    asked = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "nodes": 1, "precision": "fp8", "layout": {"tp": 1}}
    sure, any_that_fits = (simulator.sweep(asked, workers=1, min_fit_probability=p).rows()[0] for p in (0.95, 0.0))
    assert any_that_fits["outcome"] == "fits"
    assert sure["fit_probability"] >= 0.95 or sure["outcome"] == "risky"


@pytest.mark.parametrize(
    ("questions", "said"),
    [
        ([], "holds no question"),
        ([8], "must be a mapping"),
        ({"nodes": [1]}, "needs a model"),
        ({"model": "llama3.1-8b", "node": 1}, "unknown input 'node', did you mean 'nodes'?"),
        ({"model": "llama3.1-8c"}, "model: unknown model 'llama3.1-8c'"),
        ({"model": 8}, "must be a name or a path"),
        ({"model": "llama3.1-8b", "hardware": ["h1000"]}, "hardware: unknown hardware 'h1000'"),
        ({"model": "llama3.1-8b", "seq_length": "8G"}, "seq_length: count '8G': unknown suffix 'G'"),
        ({"model": "llama3.1-8b", "nodes": []}, "nodes: is an empty list"),
        ({"model": "llama3.1-8b", "nodes": [1, 1]}, "nodes: 1 is there twice"),
        ({"model": "llama3.1-8b", "nodes": [0]}, "nodes: value 0: must be a whole number"),
        ({"model": "llama3.1-8b", "nodes": 1, "devices": 8}, "nodes and devices exclude each other"),
        ({"model": "llama3.1-8b", "precision": "bf17"}, "allowed are"),
        ({"model": "llama3.1-8b", "stack": "none such"}, "stack: "),
        ({"model": "llama3.1-8b", "framework": "jax"}, "allowed are"),
        ({"model": "llama3.1-8b", "options": {"nothing": 1}}, "options: "),
        ({"model": "llama3.1-8b", "options": "nothing"}, "options: must be a mapping"),
        ({"model": "llama3.1-8b", "layout": {"tensor": 1}}, "layout: unknown field 'tensor'"),
        ({"model": "llama3.1-8b", "layout": {"tp": "four"}}, "'four'"),
        ({"model": "llama3.1-8b", "calibration": "./none.yaml"}, "calibration: "),
        ([{"model": "llama3.1-8b"}, {"model": "x"}], "questions[1]: model: unknown model 'x'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_asked(questions: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        simulator.sweep(questions)
    assert said in str(caught.value)


def test_too_many_questions_are_a_slip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions_module, "MOST_QUESTIONS", 3)
    with pytest.raises(InputError, match="4 questions; at most 3"):
        questions_of({"model": "llama3.1-8b", "nodes": [1, 2, 4, 8]})


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "QUESTIONS.yaml"),
        (("q.yaml",), 2, "--output"),
        (("none.yaml", "--output", "x.csv"), 2, "none.yaml"),
        (("q.yaml", "--output", "x.xlsx"), 2, "must end in .csv"),
        (
            ("q.yaml", "--output", "x.parquet"),
            2,
            "must end in .csv: pandas.read_csv(TABLE).to_parquet(FILE) makes Parquet",
        ),
        (("q.yaml", "--output", "folder.csv"), 2, "output folder.csv: is no regular file"),
        (("q.yaml", "--output", "none/x.csv"), 2, "none/x.csv: cannot be written: No such file or directory"),
        (("q.yaml", "--output", "x.csv", "--shard", "3/64"), 2, "--shard is gone: one command with --scheduler"),
        (("q.yaml", "--output", "x.csv", "--merge"), 2, "--merge is gone: one command with --scheduler"),
        (("q.yaml", "--output", "x.csv", "--workers", "2", "--scheduler", "tcp://a:1"), 2, "exclude each other"),
        (("q.yaml", "--output", "x.csv", "--scheduler", "nowhere"), 2, "tcp://HOST:PORT"),
        (("q.yaml", "--output", "x.csv", "--scheduler", "nowhere.json"), 2, "nowhere.json: no such file"),
        (("q.yaml", "--output", "q.yaml"), 2, "--output q.yaml: is read by this command"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.yaml").write_text("model: llama3.2-1b\n", encoding="utf-8")
    (tmp_path / "folder.csv").mkdir()
    assert said in refusal("sweep", *arguments, code=code)


def test_without_the_extra_the_reason_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "distributed", None)
    (tmp_path / "q.yaml").write_text("model: llama3.2-1b\n", encoding="utf-8")
    arguments = ("q.yaml", "--output", "x.csv", "--scheduler", "tcp://a:1")
    assert "pip install distributed" in refusal("sweep", *arguments, code=3)


def test_the_answer_keeps_to_the_contract(tmp_path: Path) -> None:
    file = written(tmp_path, ONE | {"seq_length": [1024, 2048]})
    table = tmp_path / "rows.csv"
    done = simulate("sweep", str(file), "--output", str(table), "--workers", "1", "--format", "json")
    found = json.loads(done.stdout)
    jsonschema.validate(found, schema())
    assert (found["questions"], found["priced"], found["outcomes"]) == (2, 2, {"fits": 2})
    told = simulate("sweep", str(file), "--output", str(table), "--workers", "1").stdout
    assert f"Rows: {table}" in told
    assert schema()["$defs"]["sweep"]["properties"]["outcomes"]["propertyNames"]["enum"] == list(OUTCOMES)


OTHER = "is there, and no table of these questions, specs and version of simulate: --force replaces it"


def test_a_table_of_other_questions_is_not_replaced_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, ONE)
    asked = ("sweep", "questions.yaml", "--output", "rows.csv", "--workers", "1")
    assert "1 of 1 questions priced" in simulate(*asked).stderr
    before = Path("rows.csv").read_text(encoding="utf-8")
    assert "nothing was left to price" in simulate(*asked, "--force").stderr
    written(tmp_path, ONE | {"seq_length": [1024, 2048]})
    assert f"rows.csv: {OTHER}" in refusal(*asked)
    assert Path("rows.csv").read_text(encoding="utf-8") == before
    assert simulate(*asked, "--force").exit_code == 0
    assert len(read_table(Path("rows.csv"))) == 2


@pytest.mark.parametrize("text", ["", "mine\n1\n", "mine", "question,model\n0,x\n", "\0\n", "\xff\n"])
def test_what_is_no_table_of_a_sweep_is_not_touched(text: str, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match=OTHER):
        simulator.sweep(ONE, output=table, workers=1)
    assert table.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("force", [False, True])
def test_the_second_of_two_sweeps_into_one_table_says_so_at_once(force: bool, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    simulator.sweep(ONE, output=table, workers=1)
    text = table.read_text(encoding="utf-8")
    with (
        sweeping._opened(table, questions_of(ONE), 0.95, force=False),
        pytest.raises(InputError, match="another sweep is at work there"),
    ):
        simulator.sweep(ONE | {"seq_length": 1024}, output=table, workers=1, force=force)
    assert table.read_text(encoding="utf-8") == text


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    found = simulator.sweep(FEW, output=table, workers=1)
    assert list(found.rows()) == list(simulator.sweep(FEW, workers=1).rows())
    assert list(found.rows()[0]) == list(COLUMNS)
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
    assert repr(found).startswith("<Sweep of 24 questions in ")


def test_one_process_and_several_give_the_same_table(tmp_path: Path) -> None:
    file = written(tmp_path, FEW)
    tables = [tmp_path / f"{name}.csv" for name in ("one", "pool")]
    swept(tmp_path, str(file), "--output", str(tables[0]), "--workers", "1")
    assert "Rows: " in swept(tmp_path, str(file), "--output", str(tables[1]), "--workers", "2")
    assert tables[0].read_bytes() == tables[1].read_bytes()
    assert none_left(str(tmp_path)) == {}


def test_rows_that_come_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    simulator.sweep(FEW, output=table, workers=1)
    whole = table.read_text(encoding="utf-8")
    header, *lines = whole.splitlines(keepends=True)
    lines = [*lines[5:9], *lines[:3], *lines[12:], *lines[5:7]]  # some twice, as of a sweep that was killed
    table.write_text(header + "".join(lines), encoding="utf-8")
    assert simulator.sweep(FEW, output=table, workers=1).priced == 5
    assert table.read_text(encoding="utf-8") == whole


def test_a_row_of_no_question_is_not_taken_over(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    simulator.sweep(ONE, output=table, workers=1)
    text = table.read_text(encoding="utf-8")
    for number in ("1", "-1", "x"):
        table.write_text(text.replace("\n0,", f"\n{number},"), encoding="utf-8")
        with pytest.raises(InputError, match=OTHER):
            simulator.sweep(ONE, output=table, workers=1)


def test_a_torn_last_line_is_dropped(tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    simulator.sweep(FEW, output=table, workers=1)
    whole = table.read_bytes()
    for size in (len(whole) - 1, len(whole) - 20, whole.index(b"\n") + 2):
        table.write_bytes(whole[:size])
        found = simulator.sweep(FEW, output=table, workers=1)
        assert found.priced == 24 - (whole[:size].count(b"\n") - 1)
        assert sum(found.outcomes.values()) == 24
        assert table.read_bytes() == whole


def test_a_killed_sweep_leaves_nothing_running_and_goes_on_where_it_was(tmp_path: Path) -> None:
    file, table = written(tmp_path, MANY), tmp_path / "rows.csv"
    process = started(tmp_path, str(file), "--output", str(table), "--workers", "2")
    until(lambda: answered(table) >= 3)
    pool = _pool_of(process.pid)
    assert len(pool) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)
    until(lambda: _gone(pool))
    kept = answered(table)
    assert 3 <= kept < 96
    done = json.loads(swept(tmp_path, str(file), "--output", str(table), "--workers", "2", "--format", "json"))
    assert done["priced"] == 96 - kept
    rows = read_table(table)
    assert [row["question"] for row in rows] == list(range(96))
    known = questions_of(MANY)
    for number in (0, 5, 60, 95):
        [alone] = simulator.sweep(known[number], workers=1).rows()
        assert {**alone, "question": number, "fingerprint": rows[number]["fingerprint"]} == rows[number]


def test_memory_does_not_grow_with_what_is_asked(tmp_path: Path) -> None:
    lengths, batches = list(range(1024, 11_024)), list(range(1, 10_001))
    most = ONE | {"seq_length": lengths, "global_batch_size": batches}
    assert len(questions_of(most)) == 100_000_000
    peaks = []
    for name, questions in (("many.csv", MANY), ("most.csv", most)):
        process = started(tmp_path, str(written(tmp_path, questions)), "--output", name, "--workers", "2")
        until(partial(lambda table: answered(table) >= 16, tmp_path / name))
        peaks.append(_peak_mib(process.pid))
        process.kill()
        process.communicate(timeout=PATIENCE_SECONDS)
    assert peaks[1] - peaks[0] < 40.0


def _peak_mib(pid: int) -> float:
    [line] = [
        line
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) / 2**10


def _pool_of(pid: int) -> list[int]:
    """Processes that price for a process: those of its pool, which Python's multiprocessing spawned."""
    found = []
    for child in processes_with("spawn_main"):
        with suppress(OSError):
            stat = Path(f"/proc/{child}/stat").read_text(encoding="utf-8", errors="replace")
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(child)
    return found


def _gone(pids: list[int]) -> bool:
    return not set(pids) & set(processes_with("spawn_main"))


def test_an_interrupted_sweep_ends_its_processes(tmp_path: Path) -> None:
    file, table = written(tmp_path, MANY), tmp_path / "rows.csv"
    process = started(tmp_path, str(file), "--output", str(table), "--workers", "2")
    until(lambda: answered(table) >= 2)
    pool = _pool_of(process.pid)
    assert len(pool) == 2
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, err
    until(lambda: _gone(pool))


def test_a_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    file, table = written(tmp_path, MANY), tmp_path / "rows.csv"
    process = started(tmp_path, str(file), "--output", str(table), "--workers", "2")
    until(lambda: answered(table) >= 2)
    os.kill(_pool_of(process.pid)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, err
    assert [row["question"] for row in read_table(table)] == list(range(96))


def test_rows_of_another_sweep_are_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "rows.csv"
    model = tmp_path / "own.yaml"
    model.write_text((ROOT / "model_specs" / "llama3.2-1b.yaml").read_text(encoding="utf-8"), encoding="utf-8")
    asked = ONE | {"model": str(model)}
    simulator.sweep(asked, output=table, workers=1)
    with pytest.raises(InputError, match=OTHER):
        simulator.sweep(asked, output=table, workers=1, min_fit_probability=0.5)
    with monkeypatch.context() as patched:
        patched.setattr(questions_module, "__version__", "0.0.0")
        with pytest.raises(InputError, match=OTHER):
            simulator.sweep(asked, output=table, workers=1)
    assert simulator.sweep(asked, output=table, workers=1).priced == 0
    model.write_text(f"{model.read_text(encoding='utf-8')}\n# another\n", encoding="utf-8")
    with pytest.raises(InputError, match=OTHER):
        simulator.sweep(asked, output=table, workers=1)


def test_a_pool_that_breaks_before_any_answer_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> object:
        raise BrokenProcessPool("dead")

    monkeypatch.setattr(sweeping, "executor_of", broken)
    with pytest.raises(UnsupportedError, match=r"0 answers are kept in .*rows\.csv: run again to go on"):
        simulator.sweep(ONE, output=tmp_path / "rows.csv", workers=2)


def test_what_is_handed_out_is_taken_back_where_the_sweep_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    began: list[object] = []

    def counted(*arguments: Any) -> Any:
        began.append(arguments)
        return priced(*arguments)

    def ended(_done: int, _total: int) -> None:
        raise InputError("the disk is full")

    priced = sweeping.priced
    monkeypatch.setattr(sweeping, "priced", counted)
    monkeypatch.setattr(sweeping, "executor_of", lambda *_: ThreadPoolExecutor(1))
    with pytest.raises(InputError, match="the disk is full"):
        simulator.sweep(MANY, progress=ended)
    assert len(began) < 90


UNNOTED = """
import simulator
from simulator.answers import sweep

def note(*_):
    raise KeyError("a row that cannot be noted")

sweep._Table._note = note
asked = {"model": "pythia-14m", "hardware": "h20", "devices": 1, "options": {"loss_chunks": "2"}}
simulator.sweep([asked | {"global_batch_size": size} for size in range(1, 6000)], workers=2)
"""


def test_a_sweep_that_fails_at_a_row_ends_though_its_questions_are_more_than_a_pipe_holds() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNNOTED], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'a row that cannot be noted'\n")
    assert "InvalidStateError" not in done.stderr


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"a worker has simulate .*, the sweep 0\.0\.0"):
        sweeping.priced(questions_of(ONE), 0.95, "0.0.0", [0])


def test_the_example_is_a_sweep_and_the_page_names_every_column_and_outcome() -> None:
    assert len(read_questions(ROOT / "examples" / "sweep" / "catalogue.yaml")) == 33
    known = code_words(page("sweep.md"))
    assert set(COLUMNS) <= known
    assert set(OUTCOMES) <= known
    assert set(questions_module.KEYWORDS) <= known
