"""The accuracy on the shipped rows: the targets, the recorded figures, and what the report says of single rows."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.targets import COVERAGE, TABLE, Evidence, targets
from simulator.errors import InputError
from simulator.evidence.calibration.accuracy import accuracy, ordering
from simulator.evidence.calibration.assessment import Assessment, FamilyAccuracy, assess
from simulator.evidence.calibration.doubts import Doubt
from simulator.evidence.calibration.run import fit_family, prepared
from simulator.evidence.measurements.row import MeasuredRow
from simulator.show.report.accuracy_json import accuracy_object
from tests.calibration.measured import blank, contradictory, row, shipped_rows
from tests.calibration.pages import ANEW_HINT, OWN, RECORD, record, shipped

MISSED = {"memory_worst"}
"""Targets that are out of reach, with their reason in the report."""


def family(assessed: Assessment, name: str) -> FamilyAccuracy:
    return next(found for found in assessed.families if found.fitted.family == name)


def doubts(assessed: Assessment, name: str = "hopper") -> dict[str, Doubt]:
    return {doubt.key: doubt for doubt in family(assessed, name).fitted.doubts if doubt.finding != "stands_out"}


def test_targets_are_met_or_say_why_not(assessed: Assessment) -> None:
    assert len(assessed.targets) == 14
    assert {target.id for target in assessed.targets if not target.met} == MISSED
    for target in assessed.targets:
        assert bool(target.reason) != target.met


def test_targets_are_those_of_the_project(assessed: Assessment) -> None:
    value = {target.id: target.value for target in assessed.targets}
    assert value["memory_mean"] <= 0.010
    assert value["memory_left_out_mean"] <= 0.015
    assert value["tflops_mean"] <= 0.015
    assert value["tflops_left_out_mean"] <= 0.022
    assert value["tflops_left_out_worst"] <= 0.07
    assert value["tflops_left_model_out_mean"] <= 0.04
    assert value["ordering"] >= 0.95
    assert value["best_within"] <= 0.01
    assert value["ran_fits"] == 30
    assert value["out_of_memory"] == 10
    assert value["allocated_mean"] <= 0.01
    assert COVERAGE[0] <= value["memory_coverage"] <= COVERAGE[1]
    assert COVERAGE[0] <= value["tflops_coverage"] <= COVERAGE[1]


def test_the_worst_memory_has_its_reason(assessed: Assessment) -> None:
    [missed] = [target for target in assessed.targets if target.id == "memory_worst"]
    assert missed.value <= 0.055
    assert "z2000-megatron:23" in missed.reason
    assert "would be explained by" in missed.reason


def test_accuracy_is_no_worse_than_recorded(assessed: Assessment) -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["figures"]
    now = record(assessed)
    assert set(now) == set(recorded), ANEW_HINT
    worse = []
    for name, value in recorded.items():
        if name.endswith("_coverage"):
            continue  # held by its target, from both sides
        if name in {"target.ordering", "target.ran_fits", "target.out_of_memory"}:
            worse += [name] if now[name] < value - 1e-9 else []
        elif now[name] > 1.02 * value + 0.0005:
            worse.append(f"{name}: {now[name]} after {value}")
    assert worse == []


def test_rows_that_alone_have_a_feature_are_told_apart(assessed: Assessment) -> None:
    memory = family(assessed, "hopper").memory
    assert memory is not None
    alone = {found.key for found in memory.rows if found.sole_support and found.table == TABLE}
    assert alone == {f"{TABLE}:21", f"{TABLE}:37", f"{TABLE}:49"}


def test_the_baseline_is_worse(assessed: Assessment) -> None:
    for part in family(assessed, "hopper").parts:
        physics, constant = part.errors("left_out"), part.errors("baseline")
        assert physics is not None
        assert constant is not None
        assert physics.mean < 0.3 * constant.mean


@pytest.mark.parametrize(
    ("number", "finding", "said"),
    [
        (1, "devices", "16"),
        (5, "unexplained", "unexplained"),
        (6, "ambiguous", "tp1 pp4 cp1 vp1 recompute none"),
        (7, "unexplained", "unexplained"),
        (8, "relabelled", "tp2 pp2 cp1 vp1 recompute selective"),
        (29, "relabelled", "recompute none"),
        (42, "starved", "starved"),
    ],
)
def test_doubtful_rows_come_out_by_themselves(assessed: Assessment, number: int, finding: str, said: str) -> None:
    doubt = doubts(assessed)[f"{TABLE}:{number}"]
    assert doubt.finding == finding
    assert said in doubt.says


def test_nothing_else_is_doubted(assessed: Assessment) -> None:
    assert set(doubts(assessed)) == {f"{TABLE}:{number}" for number in (1, 5, 6, 7, 8, 29, 42)}
    assert doubts(assessed, "blackwell") == {}


def test_what_the_fit_leaves_out_is_what_the_annotations_say(assessed: Assessment) -> None:
    for part in family(assessed, "hopper").parts:
        # A row whose memory nothing explains keeps its speed; the starved row keeps neither.
        assert {found.key for found in part.rows if found.used != found.counted} == set()


def test_rows_out_of_memory_that_nothing_explains_are_listed(assessed: Assessment) -> None:
    open_rows = {verdict.sample.key for found in assessed.families for verdict in found.verdicts if not verdict.agrees}
    assert open_rows == {f"{TABLE}:{number}" for number in (3, 4, 33)}


def test_the_starved_row_is_said_to_starve(assessed: Assessment) -> None:
    said = {verdict.sample.key: verdict.said for verdict in family(assessed, "hopper").verdicts}
    assert said[f"{TABLE}:42"] == "starved"


def test_a_family_that_cannot_be_described_is_not_stored() -> None:
    fitted = fit_family("ampere", prepared(contradictory()))
    assert "memory of family ampere is not stored" in fitted.not_stored("memory")
    assert fitted.calibration().memory is None


def test_carried_over_coefficients_predict_another_generation(assessed: Assessment) -> None:
    time = family(assessed, "ampere").time
    assert time is not None
    errors = time.errors("carried")
    assert errors is not None
    assert errors.worst < 0.15


def test_rules_of_thumb_are_checked(assessed: Assessment) -> None:
    outcomes = [checked.outcome for checked in assessed.rules]
    assert outcomes == ["comes out", "in part", "comes out", "comes out"]
    assert all(checked.findings for checked in assessed.rules)
    assert any("Why not in full" in text for text in assessed.rules[1].findings)


@pytest.mark.parametrize("name", OWN)
def test_the_shipped_file_is_what_the_shipped_rows_give(assessed: Assessment, name: str) -> None:
    stored, fitted = shipped(name), family(assessed, OWN[name]).fitted.calibration()
    assert stored.tables == fitted.tables
    assert stored.range == fitted.range
    for part, other in ((stored.memory, fitted.memory), (stored.time, fitted.time)):
        assert (part is None) == (other is None)
        if part is None or other is None:
            continue
        assert part.names == other.names
        # A ten-thousandth of the value, or for one at zero of its standard error.
        errors = np.sqrt(np.diag(other.covariance))
        assert (np.abs(part.vector - other.vector) <= 1e-4 * np.maximum(other.vector, errors)).all(), ANEW_HINT
        assert part.noise == pytest.approx(other.noise, rel=1e-3)
        assert part.rows_used == other.rows_used
        assert set(part.rows_left_out) == set(other.rows_left_out)


def test_the_fit_reads_no_annotation(assessed: Assessment) -> None:
    rows = [blank(found) for found in shipped_rows() if found.table in (TABLE, "h100-flagperf")]
    plain = fit_family("hopper", prepared(rows))
    usual = family(assessed, "hopper").fitted
    for kind in ("memory", "time"):
        ours, theirs = plain.fit(kind), usual.fit(kind)
        assert ours is not None
        assert theirs is not None
        assert (ours.values == theirs.values).all()
        assert ours.keys == theirs.keys
    assert [(d.key, d.finding) for d in plain.doubts] == [(d.key, d.finding) for d in usual.doubts]


def test_a_missed_target_names_its_reason(assessed: Assessment) -> None:
    hopper = family(assessed, "hopper")
    assert hopper.memory is not None
    assert hopper.time is not None
    assert assessed.ordering is not None
    poor = replace(assessed.ordering, right=10, best_within=0.05)
    verdicts = [replace(verdict, said="does_not_fit" if verdict.ran else "fits") for verdict in hopper.verdicts]
    found = targets(Evidence(hopper.memory, hopper.time, poor, verdicts, (), None))
    missed = {target.id: target.reason for target in found if not target.met}
    assert {"ordering", "best_within", "ran_fits", "out_of_memory", "memory_worst"} <= set(missed)
    assert all(missed.values())


def test_ordering_speaks_of_one_table_and_the_family_apart(assessed: Assessment) -> None:
    fitted = family(assessed, "hopper").fitted
    printed = accuracy_object(assessed)
    one = ordering(fitted, fitted.coefficients(), table=TABLE)
    assert printed["ordering"] == {"pairs": one.pairs, "right": one.right, "best_within": one.best_within}
    others = assess([found for found in shipped_rows() if found.table == "h100-flagperf"])
    assert others.ordering is None
    assert others.family_ordering is not None
    assert printed["family_ordering"]["pairs"] == one.pairs + others.family_ordering.pairs


def test_a_family_with_one_row_is_judged_too() -> None:
    lone = [replace(row("a100-paddlenlp:1"), table="mine")]
    fitted = fit_family("ampere", prepared(lone))
    found = accuracy(fitted, "time")
    assert found is not None
    assert found.errors("left_model_out") is None
    assert found.errors("baseline") is None
    assert found.errors("left_out") is not None


def test_a_layout_that_is_none_is_an_error() -> None:
    wrong: MeasuredRow = replace(row("z2000-megatron:10"), tensor_parallel=3)
    with pytest.raises(InputError, match="z2000-megatron:10"):
        prepared([wrong])
