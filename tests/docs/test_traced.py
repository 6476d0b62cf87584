"""The page on traces: its table against the formulas, its example against the command."""

import json
import re

import pytest

from simulator.api import scenario_of
from simulator.lab.trace.run import tensors_only
from simulator.question.scenario.complete import complete_layout
from simulator.question.units import MIB
from simulator.search.build import estimate_layout
from tests.cli.running import run
from tests.docs.pages import blocks, page

PAGE = page("trace.md")


def rows() -> list[list[str]]:
    """Cells of the table of traced figures: a layout, the traced MiB, the predicted MiB, the difference in %."""
    table = PAGE.split("<!-- traced figures -->")[1]
    lines = [line for line in table.splitlines() if line.startswith("| llama")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("row", rows(), ids=" ".join)
def test_a_prediction_is_within_one_percent_of_the_trace(row: list[str]) -> None:
    model, tp, pp, dp, zero, recompute, stage, traced, predicted, difference = row
    layout = {"tensor_parallel": int(tp), "pipeline_parallel": int(pp), "data_parallel": int(dp)}
    devices = int(tp) * int(pp) * int(dp)
    scenario = scenario_of(
        model=model,
        hardware="h100-sxm-80g",
        devices=devices,
        global_batch_size=512,
        framework="torch",
        calibration="none",
    )
    chosen = complete_layout(scenario, **layout, zero_stage=int(zero), recompute=recompute)
    found = estimate_layout(tensors_only(scenario), chosen).memory.stages[int(stage)].allocated_bytes / MIB
    assert f"{found:.1f}" == predicted
    assert f"{100 * (found / float(traced) - 1):+.2f}" == difference
    assert found == pytest.approx(float(traced), rel=0.01)


def test_the_table_covers_what_it_should() -> None:
    found = rows()
    assert {row[1] for row in found} == {"1", "4", "8"}
    assert {row[4] for row in found} == {"2", "3"}
    assert {row[5] for row in found} == {"none", "selective", "full"}
    assert {row[6] for row in found if row[2] == "4"} == {"0", "1", "3"}


def test_why_a_trace_is_no_estimate() -> None:
    question = ("estimate", "--model", "llama3.1-70b", "--nodes", "8", "--tp", "8", "--pp", "4", "--format", "json")
    for more in ((), ("--framework", "torch", "--zero-stage", "3")):
        memory = json.loads(run(*question, *more).stdout)["memory"]
        figures = [memory["device_mib"], memory["breakdown_mib"]["activations"]]
        figures += [memory["stages"][0]["allocated_mib"]] if more else []
        for figure in figures:
            assert re.search(rf"\b{figure / 1024:.2f}\b", PAGE), figure


def test_the_example_is_what_the_command_says() -> None:
    pytest.importorskip("torch", reason="torch is not installed: a trace runs it")
    (asked,) = re.findall(r"^simulate (trace .*)$", blocks(PAGE, "sh")[0], flags=re.MULTILINE)
    assert run(*asked.split()).stdout == blocks(PAGE, "text")[0]
