"""The hierarchical fit on rows with known answers, and what it says of the shipped ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulator.evidence.calibration.hierarchy import Gauss, Message, design, hierarchical
from simulator.evidence.calibration.judge import SourcesJudged, interval_factor, summary
from simulator.evidence.calibration.publish import published
from simulator.evidence.calibration.store import calibration_text
from tests.calibration.measured import consistent, figure, with_figures
from tests.calibration.pages import ANEW_HINT, FOLDER


def test_messages_are_bayes_rule() -> None:
    random = np.random.default_rng(0)
    slopes, values = random.normal(size=(5, 3)), random.normal(size=5)
    told = Gauss(np.zeros(3), np.eye(3)).told(Message(slopes.T @ slopes, slopes.T @ values))
    covariance = np.linalg.inv(np.eye(3) + slopes.T @ slopes)
    assert told.covariance == pytest.approx(covariance)
    assert told.mean == pytest.approx(covariance @ slopes.T @ values)


def test_a_passed_message_has_the_deviation_in_it() -> None:
    information = np.array([[4.0, 1.0], [1.0, 3.0]])
    passed = Message(information, information @ np.array([1.0, -2.0])).passed(0.5)
    covariance = np.linalg.inv(information) + 0.25 * np.eye(2)
    assert passed.information == pytest.approx(np.linalg.inv(covariance))
    assert np.linalg.solve(passed.information, passed.vector) == pytest.approx([1.0, -2.0])


def test_clusters_made_up_come_out() -> None:
    """Three clusters of one family with known coefficients: each is found, and what they share between them."""
    samples = [s for s in consistent() if s.row.table == "z2000-megatron"]
    found = design("time", samples)
    random = np.random.default_rng(1)
    truth = found.centre + found.spread * random.normal(0.0, 0.5, len(found.names))
    rows = []
    for cluster, gemm in enumerate((-0.06, 0.0, 0.06)):
        at = truth.copy()
        at[found.names.index("gemm_efficiency")] += gemm
        for sample in samples:
            made = with_figures(
                sample, tflops=figure("time", sample, np.exp(at)) * float(np.exp(random.normal(0, 0.01)))
            )
            rows.append(replace(made, row=replace(made.row, table=f"cluster{cluster}")))
    state = hierarchical(design("time", rows))
    index = found.names.index("gemm_efficiency")
    found_gemm = [state.point(state.cluster(f"cluster{cluster}"))[index] - truth[index] for cluster in range(3)]
    assert found_gemm[0] < found_gemm[1] < found_gemm[2]
    family = state.family("hopper")
    assert state.point(family)[index] == pytest.approx(truth[index], abs=0.05)
    assert state.hyper.noise["dense"] < 0.02
    wider = state.unseen("hopper", {"cluster0"})
    assert wider.covariance[index, index] > state.cluster("cluster0").covariance[index, index]


def test_left_out_rows_lie_in_their_intervals(judged: tuple[SourcesJudged, ...]) -> None:
    time = judged[0]
    classes = {(row.platform, row.sort) for row in time.rows}
    for platform, sort in classes:
        part = summary(row for row in time.rows if (row.platform, row.sort) == (platform, sort))
        if part.rows >= 10:
            assert 0.80 <= part.coverage <= 1.0, (platform, sort)
            # Mixtures of experts come from few sources, which differ more.
            assert part.half_width < (0.35 if sort == "dense" else 0.5), (platform, sort)


def test_intervals_are_sized_by_sources_left_out(judged: tuple[SourcesJudged, ...]) -> None:
    rows = [row for row in judged[0].rows if row.sort == "dense"]
    wider = [replace(row, source_out=replace(row.source_out, error=2.0 * row.source_out.error)) for row in rows]
    once, twice = interval_factor(rows, "A100", "dense"), interval_factor(wider, "A100", "dense")
    assert twice == pytest.approx(2.0 * once)
    assert interval_factor(rows[:3], "A100", "dense") == 1.0


def test_a_few_own_rows_help(judged: tuple[SourcesJudged, ...]) -> None:
    time = [row for row in judged[0].rows if row.sort == "dense"]
    with_few = [row for row in time if row.few]
    few = float(np.mean([abs(one.relative) for row in with_few for one in row.few]))
    assert few < float(np.mean([abs(row.source_out.relative) for row in with_few]))


def test_a_row_is_known_by_the_others_of_its_source(judged: tuple[SourcesJudged, ...]) -> None:
    """Its own figure is not asked, so it is missed by more than it is fitted, and by less than without its source."""
    rows = [row for row in judged[0].rows if row.sort == "dense"]
    fitted, known, apart = (
        float(np.mean([abs(getattr(row, name).relative) for row in rows])) for name in ("fitted", "known", "source_out")
    )
    assert fitted < known < apart
    part = summary(row for row in rows if row.platform == "A100")
    assert 0.80 <= part.known_coverage <= 0.97


def test_shipped_files_are_what_all_sources_give(judged: tuple[SourcesJudged, ...]) -> None:
    for calibration in published(judged):
        stored = (FOLDER / f"{calibration.family}.yaml").read_text(encoding="utf-8")
        fresh = calibration_text(calibration)
        assert [line.split(":")[0] for line in stored.splitlines()] == [
            line.split(":")[0] for line in fresh.splitlines()
        ], ANEW_HINT
