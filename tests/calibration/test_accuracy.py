"""The accuracy on the shipped rows: the targets, the recorded figures, and the user's own table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.accuracy import frameworks
from benchmarks.accuracy import tables as tables_module
from benchmarks.accuracy.choices import choices, chosen
from benchmarks.accuracy.frameworks import by_framework
from benchmarks.accuracy.hypotheses import doubtful_rows, hypotheses
from benchmarks.accuracy.judge import SourcesJudged
from benchmarks.accuracy.missed import reasons
from benchmarks.accuracy.own import CLUSTER, OWN, OWN_FAMILY, own_fit, own_verdicts, worst
from benchmarks.accuracy.publish import unseen_part
from benchmarks.accuracy.record import figures, recorded, worse
from benchmarks.accuracy.rows import KINDS, Judgement, samples
from benchmarks.accuracy.shipped import FOLDER
from benchmarks.accuracy.tables import by_class, by_news, by_organisation, by_source, every_row, of_choices, of_vendors
from benchmarks.accuracy.targets import Line, own_lines, target_lines
from benchmarks.accuracy.thumb import check
from benchmarks.accuracy.vendors import published_layouts
from simulator.errors import InputError
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.cluster import prepared
from simulator.evidence.calibration.own import OwnFit, fit_own
from simulator.evidence.calibration.store import read_calibration
from simulator.evidence.measurements.rows import MeasuredRow
from tests.calibration.measured import blank, contradictory, row, shipped_rows
from tests.calibration.pages import ANEW_HINT


@pytest.fixture(scope="session")
def own(judged: tuple[SourcesJudged, ...]) -> OwnFit:
    """The user's own table, fitted from what all other sources say."""
    return own_fit({one.kind: unseen_part(one, OWN_FAMILY, {OWN}) for one in judged}, samples())


@pytest.fixture(scope="session")
def lines(judgement_of_all: Judgement) -> tuple[Line, ...]:
    """Every target, as it is reached."""
    return (*target_lines(judgement_of_all), *own_lines(judgement_of_all))


def test_every_target_has_its_line(lines: tuple[Line, ...]) -> None:
    assert len({line.id for line in lines}) == len(lines) == 38
    for line in lines:
        assert (line.met is None) == (line.value is None)
        assert line.value is None or line.value >= 0.0


def test_what_is_missed_has_a_reason_and_nothing_else_has(lines: tuple[Line, ...]) -> None:
    assert set(reasons()) == {line.id for line in lines if not line.met}


def test_the_own_table_is_within_its_targets(judgement_of_all: Judgement, lines: tuple[Line, ...]) -> None:
    missed = {line.id for line in lines if line.id.startswith("own_") and not line.met}
    # Of row 23 nothing is odd but its memory, which no coefficient moves without the rows that fit.
    assert missed == set()
    assert worst(judgement_of_all.own, "memory", "fitted").fitted <= 0.05


def test_accuracy_is_no_worse_than_recorded(judgement_of_all: Judgement) -> None:
    now, before = figures(judgement_of_all), recorded("figures")
    assert set(now) == set(before), ANEW_HINT
    assert worse(now, before) == []


def test_what_gets_worse_is_told() -> None:
    before = {"tau": 0.9, "dense": 0.08, "own_time_inside": 0.9}
    assert worse(before, before) == []
    assert worse({"tau": 0.8, "dense": 0.09, "own_time_inside": 0.1}, before) == ["tau", "dense: 0.09 after 0.08"]


def test_reports_speak_of_every_row(judgement_of_all: Judgement) -> None:
    for report in (by_class, by_source, by_organisation, by_news):
        for kind, section in zip(KINDS, report(judgement_of_all), strict=True):
            counts = [int(line[section.headers.index("rows")]) for line in section.rows]
            assert counts[-1] == sum(counts[:-1]) == len(judgement_of_all.of_kind(kind))
    every = [line for section in every_row(judgement_of_all) for line in section.rows]
    assert len(every) == len(judgement_of_all.rows)
    summed, listed = of_choices(judgement_of_all)
    assert [line[1] for line in summed.rows][-1] == str(len(listed.rows))


def test_choices_follow_the_speeds(judgement_of_all: Judgement) -> None:
    found = list(choices(judgement_of_all.rows))
    assert all(choice.layouts >= 2 and 0.0 <= choice.regret < 0.5 and -1.0 <= choice.tau <= 1.0 for choice in found)
    many, *fewer = chosen(found)
    assert (many.least_layouts, fewer[-1].groups) == (4, len(found))
    assert fewer[-1].groups >= 25
    assert many.regret < 0.02
    assert many.tau > 0.7


def test_layouts_that_vendors_publish_are_judged(judgement_of_all: Judgement, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ("nemo-h100", "megatron-bridge-b200")
    found = tuple(published_layouts(sample for sample in samples() if sample.row.table in tables))
    assert len({one.key for one in found}) == len(found) >= 8
    for one in found:
        assert (one.faster == 0) == (one.layout == one.best) == (one.lacks == 0.0)
        assert 0.0 <= one.lacks < 0.5
        assert abs(one.error) < 0.3
        assert one.tau is None or one.layouts >= 3
    for module in (tables_module, frameworks):
        monkeypatch.setattr(module, "published", lambda: found)
    [vendors] = of_vendors(judgement_of_all)
    assert len(vendors.rows) == len(found)
    [by_name] = by_framework(judgement_of_all, recorded("ascend_runs"), recorded("configurations"))
    assert {"MindSpeed", "Paddle", "Megatron", "torch", "mixtures of experts"} <= {line[0] for line in by_name.rows}


def test_rows_that_alone_have_a_feature_are_told_apart(judgement_of_all: Judgement) -> None:
    alone = {found.key for found in judgement_of_all.own if found.sole_support and found.kind == "memory"}
    assert alone == {f"{OWN}:21", f"{OWN}:37", f"{OWN}:49"}


def test_rows_that_do_not_belong_are_left_out_unasked(own: OwnFit) -> None:
    memory, time = own.fits["memory"], own.fits["time"]
    assert own.starved == {f"{OWN}:42"}
    assert set(memory.left_out) == {f"{OWN}:{number}" for number in (5, 6, 7, 8, 29)}
    # What a row's memory says of it holds for its speed.
    timed = {s.key for s in time.state.design.samples}
    assert timed.isdisjoint({*own.starved, *memory.left_out})


def test_the_fit_reads_no_annotation(own: OwnFit, judged: tuple[SourcesJudged, ...]) -> None:
    rows = [blank(found) for found in shipped_rows() if found.table == OWN]
    parts = {one.kind: unseen_part(one, OWN_FAMILY, {OWN}) for one in judged}
    plain = own_fit(parts, prepared(rows))
    for kind in ("memory", "time"):
        assert (plain.fits[kind].values == own.fits[kind].values).all()
        assert plain.fits[kind].keys == own.fits[kind].keys


def test_rows_far_off_are_told_with_what_would_explain_them(judgement_of_all: Judgement) -> None:
    [section] = doubtful_rows(judgement_of_all)
    assert {f"{OWN}:{number}" for number in (5, 6, 7, 8, 29, 42)} <= {line[0] for line in section.rows}


def test_a_row_that_is_another_layout_has_a_hypothesis() -> None:
    coefficients = applied(OWN_FAMILY, None, CLUSTER).coefficients()
    [sample] = prepared([row(f"{OWN}:8")])
    best, *_ = hypotheses(sample, coefficients)
    assert (best.layout.tensor_parallel, best.layout.pipeline_parallel, best.layout.recompute) == (2, 2, "selective")
    assert abs(best.memory_error) < 0.03
    assert abs(best.speed_error) < 0.04


def test_rows_out_of_memory_that_nothing_explains_are_listed() -> None:
    found = {one.key: one for one in own_verdicts(shipped_rows(), applied(OWN_FAMILY, None, CLUSTER).coefficients())}
    assert {key for key, one in found.items() if not one.right} == {f"{OWN}:{number}" for number in (3, 4, 33)}
    assert found[f"{OWN}:42"].said == "starved"


def test_rules_of_thumb_are_checked() -> None:
    found = check(applied(OWN_FAMILY, None, CLUSTER).coefficients())
    assert [checked.outcome for checked in found] == ["comes out", "in part", "comes out", "comes out"]
    assert all(checked.findings for checked in found)
    assert any("Why not in full" in text for text in found[1].findings)


def test_the_shipped_file_of_the_cluster_is_what_its_rows_give(own: OwnFit) -> None:
    stored, fitted = read_calibration(Path(FOLDER / f"{CLUSTER}.yaml")), own.calibration()
    assert stored.tables == fitted.tables == (OWN,)
    assert stored.range == fitted.range
    for part, other in ((stored.memory, fitted.memory), (stored.time, fitted.time)):
        assert part is not None
        assert other is not None
        assert part.names == other.names
        # A ten-thousandth of the value, or for one at zero of its standard error.
        errors = np.sqrt(np.diag(other.covariance))
        assert (np.abs(part.vector - other.vector) <= 1e-4 * np.maximum(other.vector, errors)).all(), ANEW_HINT
        assert part.noise == pytest.approx(other.noise, rel=1e-3)
        assert part.rows_used == other.rows_used
        assert set(part.rows_left_out) == set(other.rows_left_out)


def test_a_family_that_cannot_be_described_is_not_stored() -> None:
    fitted = fit_own("ampere", prepared(contradictory()))
    assert "memory of family ampere is not stored" in fitted.not_stored("memory")
    assert fitted.calibration().memory is None


def test_one_row_is_fitted_too() -> None:
    fitted = fit_own("ampere", prepared([replace(row("a100-paddlenlp:1"), table="mine")]))
    assert fitted.fits["time"].keys == ("mine:1",)
    nothing = np.zeros(1, dtype=np.bool_)
    assert (fitted.fits["time"].known_by(nothing).mean == fitted.fits["time"].prior.mean).all()


def test_a_layout_that_is_none_is_an_error() -> None:
    wrong: MeasuredRow = replace(row("z2000-megatron:10"), tensor_parallel=3)
    with pytest.raises(InputError, match="z2000-megatron:10"):
        prepared([wrong])
