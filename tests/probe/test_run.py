"""A probe from rates to calibration, on launches whose step time a formula gives."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from simulator import api
from simulator.errors import InputError
from simulator.evidence.calibration.store import read_calibration
from simulator.evidence.measurements.rows import read_rows
from simulator.lab.probe import run as preparing
from simulator.lab.probe.run import Prepared, Probed, candidates, launch_all, prepare
from simulator.lab.runner.engine import Command, Launch, Launcher, LaunchOutcome, Pick, launched_row
from simulator.lab.runner.processes import Ended
from simulator.question.coefficients import Coefficients
from simulator.search.build import estimate_layout
from tests.probe import machine
from tests.scenario.cases import complete_layout

pytestmark = pytest.mark.usefixtures("priced_once")


@dataclass(slots=True)
class FormulaEngine:
    """Measures what the formulas give under other coefficients than the rates do."""

    truth: Coefficients
    scatter: float = 0.0
    name: str = "formula"
    experimental: str = ""
    prepared: int = 0

    def check(self) -> None:
        """Needs nothing."""

    def prepare(self, pick: Pick, folder: Path) -> Command:
        del pick
        self.prepared += 1
        return Command(arguments=("none",), folder=folder)

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:
        del ended
        scenario = replace(pick.scenario, coefficients=self.truth)
        seconds = estimate_layout(scenario, pick.layout).throughput.step_seconds
        off = np.random.default_rng(crc32(folder.name.encode())).normal(0.0, self.scatter)
        row = launched_row(pick, "ok", step_time_s=round(seconds * float(np.exp(off)), 6))
        return LaunchOutcome(kind="ok", row=row)


class NoLauncher(Launcher, kw_only=True):
    """Starts nothing."""

    fails_from: int = 10**6

    def run(self, launch: Launch) -> Ended:
        if launch.number >= self.fails_from:
            raise KeyboardInterrupt
        return Ended(exit_code=0, log=launch.log)


def silent(_: str) -> None:
    """Take a line of what happens."""


def ready(folder: Path, **changes: object) -> Prepared:
    question = machine.request_in(folder, **changes)
    if not question.rates_folder.exists():
        machine.leave_rates(question)
    return prepare(question, silent)


def truth(base: Coefficients) -> Coefficients:
    values = base.time
    return replace(
        base,
        time=replace(
            values,
            gemm_efficiency=0.8 * values.gemm_efficiency,
            memory_efficiency=0.7 * values.memory_efficiency,
            layer_overhead_seconds=0.6 * values.layer_overhead_seconds,
            tensor_overhead_seconds=1.8 * values.tensor_overhead_seconds,
            shard_overhead_seconds=1.5 * values.shard_overhead_seconds,
            optimizer_slowdown=1.3 * values.optimizer_slowdown,
        ),
    )


def probed(folder: Path, *, scatter: float = 0.0, **changes: object) -> tuple[Probed, FormulaEngine]:
    before = ready(folder, **changes)
    engine = FormulaEngine(truth(before.base), scatter)
    return launch_all(before, silent, engine=engine, launcher=NoLauncher()), engine


@pytest.fixture(scope="module", autouse=True)
def thinned() -> Iterator[None]:
    """Some of the candidates only, which are planned in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "candidates", lambda *given: candidates(*given)[::12])
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Probed, FormulaEngine]:
    return probed(tmp_path_factory.mktemp("probe"), launches=14)


def test_the_fit_finds_what_the_launches_show(whole: tuple[Probed, FormulaEngine]) -> None:
    done, engine = whole
    assert done.fitted is not None
    assert done.fitted.fits["time"].scatter < 0.01
    off = [abs(one.planned.step_seconds / (one.measured_seconds or 0.0) - 1.0) for one in done.compared]
    assert max(off) > 0.15
    after = done.fitted.coefficients(done.base)
    # Layouts and shapes that were not launched.
    for question in ({"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"zero_stage": 3}, {"recompute": "full"}):
        scenario = replace(done.design.launches[0].candidate.scenario, global_batch_size=8, seq_length=384)
        layout = complete_layout(scenario, **{"zero_stage": 1} | question)
        figures = [
            estimate_layout(replace(scenario, coefficients=values), layout).throughput.step_seconds
            for values in (after, engine.truth)
        ]
        assert figures[0] == pytest.approx(figures[1], rel=0.06), question


def test_what_no_launch_decides_is_said_and_stays_at_its_prior(whole: tuple[Probed, FormulaEngine]) -> None:
    done, _ = whole
    assert {"context_exposed", "ring_bytes_per_query_element", "expert_exposed", "link_efficiency"} <= set(
        done.undetermined
    )
    assert "tensor_overhead_seconds" not in done.undetermined
    assert done.fitted is not None
    fitted = dict(zip(done.fitted.fits["time"].names, done.fitted.fits["time"].values, strict=True))
    for name in ("context_exposed", "ring_bytes_per_query_element", "expert_exposed", "link_efficiency"):
        assert fitted[name] == pytest.approx(getattr(done.base.time, name), rel=1e-6)


def test_the_files_serve_an_estimate(whole: tuple[Probed, FormulaEngine]) -> None:
    done, _ = whole
    asked = done.request
    assert done.calibration_file == asked.folder / "cpu.yaml"
    stored = read_calibration(done.calibration_file)
    assert (stored.family, stored.tables) == ("cpu", ("rows",))
    assert stored.memory is not None
    assert set(stored.memory.values.values()) == {0.0}
    rows = read_rows(asked.rows_file)
    assert len(rows) == 14
    row = rows[0]
    estimate = api.estimate(
        model=row.model,
        hardware=str(done.spec_file),
        devices=2,
        num_layers=row.num_layers,
        framework="torch",
        seq_length=row.seq_length,
        global_batch_size=row.global_batch_size,
        calibration=str(done.calibration_file),
        layout=done.design.launches[0].candidate.layout,
    )
    assert estimate.provenance.status == "measured"
    assert estimate.throughput.step_seconds == pytest.approx(row.step_seconds, rel=0.03)


def test_resumed_only_what_is_missing_is_launched(tmp_path: Path) -> None:
    first = ready(tmp_path)
    engine = FormulaEngine(truth(first.base))
    stopped = launch_all(first, silent, engine=engine, launcher=NoLauncher(fails_from=3))
    assert len(read_rows(first.request.rows_file)) == 2
    assert [one.measured_seconds is None for one in stopped.compared] == [False, False, True, True]
    again = FormulaEngine(engine.truth)
    finished = launch_all(ready(tmp_path), silent, engine=again, launcher=NoLauncher())
    assert again.prepared == 2
    assert len(read_rows(first.request.rows_file)) == 4
    assert None not in [one.measured_seconds for one in finished.compared]


def test_more_launches_go_on_from_fewer(tmp_path: Path) -> None:
    probed(tmp_path, launches=2)
    _, engine = probed(tmp_path, launches=4)
    assert engine.prepared == 2


def test_rows_that_scatter_too_much_make_no_calibration(tmp_path: Path) -> None:
    done, _ = probed(tmp_path, scatter=2.0, launches=12)
    assert done.calibration_file is None
    assert done.fitted is not None
    assert "still scatter by" in done.fitted.not_stored("time")
    assert not (tmp_path / "cpu.yaml").exists()
    assert [one.after_seconds for one in done.compared] == [None] * 12


def test_launches_that_scatter_a_little_are_all_used(tmp_path: Path) -> None:
    done, engine = probed(tmp_path, scatter=0.05, launches=14)
    assert done.fitted is not None
    assert done.fitted.fits["time"].left_out == ()
    after = done.fitted.coefficients(done.base)
    for planned in done.design.launches:
        candidate = planned.candidate
        fitted, true = (
            estimate_layout(replace(candidate.scenario, coefficients=values), candidate.layout).throughput.step_seconds
            for values in (after, engine.truth)
        )
        assert fitted == pytest.approx(true, rel=0.15), candidate.title


def test_rates_of_other_ranks_are_refused(tmp_path: Path) -> None:
    ready(tmp_path)
    with pytest.raises(InputError, match=r"--devices 4: the rates in .* are of 2"):
        ready(tmp_path, devices=4)


def test_an_earlier_probe_is_not_mixed_with_a_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.lab.runner.engines.ReferenceEngine.check", lambda _: None)
    question = machine.request_in(tmp_path, resume=False)
    question.check()
    question.rows_file.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="holds an earlier probe; --resume continues it"):
        question.check()
    replace(question, resume=True).check()
