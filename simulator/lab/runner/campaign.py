"""Campaigns: the best layouts of a ranking, launched one after the other; a row of each is safe as it ends."""

from __future__ import annotations

import fcntl
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.errors import InputError, SimulateError, UnsupportedError, one_line
from simulator.evidence.calibration.cluster import prepared
from simulator.evidence.calibration.own import fit_own, unused
from simulator.evidence.calibration.store import KINDS, calibration_text
from simulator.evidence.measurements.rows import LAYOUT_COLUMNS, WORKLOAD_COLUMNS, MeasuredRow, read_rows, rows_text
from simulator.files import write_file, writing
from simulator.lab.runner import engine
from simulator.lab.runner.engine import Engine, Launch, Launched, Launcher, LaunchOutcome, Pick
from simulator.lab.runner.processes import Ended, interruptible, signals_blocked
from simulator.lab.trainer.job import RankResult
from simulator.question.scenario.layout import Layout
from simulator.records import Record

Tell = Callable[[str], None]
"""Function that shows one line of progress."""
_MOST_RUNS: Final = 100_000
_IDENTITY: Final = (
    *("model", "num_layers", "hardware", "framework", "options", "stack", "devices"),
    *WORKLOAD_COLUMNS,
    *LAYOUT_COLUMNS,
)  # columns of the question that was launched; the others hold its outcome


class RowsFile(Record):
    """File of measured rows."""

    path: Path

    @property
    def table(self) -> str:
        """Name of the table: the file's, without its ending."""
        return self.path.stem

    def check(self) -> None:
        """Raise InputError where rows could not be added, before anything is launched."""
        self.rows()
        with writing(self.path, "--output"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass

    def rows(self) -> tuple[MeasuredRow, ...]:
        """Return the rows of the file; none where there is no file."""
        return read_rows(self.path) if self.path.exists() else ()

    def add(self, row: MeasuredRow) -> MeasuredRow:
        """Add a row with the table's next number and return it. Raises InputError where the file cannot be written."""
        with writing(self.path, "--output"), signals_blocked(), self._locked():
            before = self.rows()
            numbers = [known.row for known in before if known.table == self.table]
            numbered = replace(row, table=self.table, row=max(numbers, default=0) + 1)
            write_file(self.path, rows_text([*before, numbered]), "--output")
        return numbered

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from writing; the lock ends with the process that holds it."""
        target = self.path.resolve()
        with target.with_name(f".{target.name}.lock").open("a", encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def launches_of(pick: Pick, rows: Iterable[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows of launches of the same question and layout."""
    launched = engine.launched_row(pick, "error")
    return [row for row in rows if all(getattr(row, name) == getattr(launched, name) for name in _IDENTITY)]


class Refused(Record):
    """Layout that the engine cannot run."""

    layout: Layout
    reason: str
    """Reason, in one line."""


class LaunchPlan(Record, kw_only=True):
    """Launches to make, and layouts that the engine cannot run."""

    layouts: tuple[tuple[str, Estimate], ...]
    """Layouts by title, best first."""
    launches: tuple[Launch, ...]
    """Launches in order: each layout once, then each once more."""
    known: dict[str, list[MeasuredRow]]
    """Rows of the layouts in the record before the campaign, by title."""
    refused: tuple[Refused, ...]
    """Faster layouts that the engine cannot run."""

    @property
    def failed_before(self) -> int:
        """Layouts that are not launched because the record holds a failed launch, a count."""
        return sum(any(row.outcome != "ok" for row in rows) for rows in self.known.values())


class Campaign(Record, kw_only=True):
    """Outcome of a plan."""

    plan: LaunchPlan
    comparisons: tuple[LayoutComparison, ...]
    """All launched layouts, in the order of the ranking."""
    interrupted_by: int = 0
    """Number of the signal that ended it early; 0 without one."""
    unwritten: str = ""
    """Reason why the record lacks measured rows; empty where it has them all."""

    @property
    def all_well(self) -> bool:
        """Whether every launch ran, and none contradicts its verdict."""
        return all(
            comparison.rows and not comparison.failures and not comparison.contradiction
            for comparison in self.comparisons
        )


class Planner(Record, kw_only=True):
    """Planner that chooses the layouts to launch and writes the files of their launches."""

    engine: Engine
    pick: Pick
    """Question of the launches; its layout is replaced."""
    folder: Path
    record: RowsFile
    top: int = 3
    """Layouts to launch, the best of each split."""
    repeats: int = 1
    """Launches of each layout."""
    limit_seconds: float = 600.0
    """Longest time of one launch."""
    resume: bool = False
    """Whether launches that the record holds are left out."""
    retry_failed: bool = False
    """Whether a resumed campaign tries failed launches again."""

    def plan(self, estimates: Sequence[Estimate]) -> LaunchPlan:
        """Return the plan of the fastest runnable layout of each split. Raises UnsupportedError without any."""
        before = self.record.rows() if self.resume else ()
        layouts: list[tuple[str, Estimate]] = []
        known: dict[str, list[MeasuredRow]] = {}
        launches: list[Launch] = []
        refused: list[Refused] = []
        splits: set[tuple[int, ...]] = set()
        for estimate in estimates:
            if len(layouts) == self.top:
                break
            if estimate.layout.split in splits:
                continue
            title = f"{len(layouts) + 1}-{engine.slug(self.pick.model, estimate.layout)}"
            rows = launches_of(replace(self.pick, layout=estimate.layout), before)
            rows = [row for row in rows if row.outcome == "ok" or not self.retry_failed]
            try:
                launches += self._launches(title, estimate, rows)
            except UnsupportedError as error:
                refused.append(Refused(estimate.layout, str(error)))
                continue
            splits.add(estimate.layout.split)
            layouts.append((title, estimate))
            known[title] = rows
        if not layouts:
            raise UnsupportedError(
                f"nothing to launch: engine {self.engine.name} can run none of the {len(refused)} best layouts; of the "
                f"first it says: {refused[0].reason}"
            )
        launches.sort(key=lambda launch: launch.repeat)
        numbered = tuple(replace(launch, number=at) for at, launch in enumerate(launches, start=1))
        return LaunchPlan(layouts=tuple(layouts), launches=numbered, known=known, refused=tuple(refused))

    def _launches(self, title: str, estimate: Estimate, rows: Sequence[MeasuredRow]) -> Iterator[Launch]:
        """Yield the launches of one layout that are still to be done: none after one that failed."""
        if any(row.outcome != "ok" for row in rows):
            return
        pick = replace(self.pick, layout=estimate.layout)
        for repeat in range(len(rows) + 1, self.repeats + 1):
            place = self.folder / (title if repeat == 1 else f"{title}-{repeat}")
            with writing(place, "--work-folder"):
                command = self.engine.prepare(pick, place.absolute())
            yield Launch(
                title=title,
                pick=pick,
                estimate=estimate,
                command=command,
                repeat=repeat,
                limit_seconds=self.limit_seconds,
            )


def run(plan: LaunchPlan, launcher: Launcher, engine: Engine, record: RowsFile | None, tell: Tell) -> Campaign:
    """Run all launches, each recorded as it ends; neither a failure nor a record that cannot be written stops others.

    Rows are compared without a record too; `unwritten` says why they are missing.
    """
    launched: list[Launched] = []
    keeper = _Keeper(record)
    rows = {title: list(measured) for title, measured in plan.known.items()}
    with interruptible() as came:
        try:
            for launch in plan.launches:
                if any(row.outcome != "ok" for row in rows[launch.title]):
                    continue
                tell(f"launch {launch.number} of {len(plan.launches)}: {launch.folder.name}")
                ended = _ended(launch, launcher)
                with signals_blocked():  # measured results are read and recorded before any interruption
                    done = _read(launch, ended, engine)
                    launched.append(done)
                    if done.outcome.row is not None:
                        where = f"{launch.folder.parent.name}/{launch.folder.name}"
                        rows[launch.title].append(keeper.keep(replace(done.outcome.row, source_ref=where)))
                tell(f"{done.outcome.kind} after {done.ended.wall_seconds:.1f} s {done.outcome.error}".rstrip())
                if done.outcome.kind == "interrupted":
                    break
        except KeyboardInterrupt:
            tell("interrupted")
    comparisons = tuple(
        LayoutComparison(
            title=title,
            estimate=estimate,
            rows=tuple(rows.get(title, ())),
            launched=tuple(launch for launch in launched if launch.launch.title == title),
        )
        for title, estimate in plan.layouts
    )
    return Campaign(plan=plan, comparisons=comparisons, interrupted_by=came.number, unwritten=keeper.unwritten)


@dataclass(slots=True)
class _Keeper:
    """Writer of rows to a record; rows that cannot be written are tried again with the next."""

    record: RowsFile | None
    waiting: list[MeasuredRow] = field(default_factory=list)
    error: str = ""

    def keep(self, row: MeasuredRow) -> MeasuredRow:
        """Add a row, after those that wait, and return it as written."""
        if self.record is None:
            return row
        self.waiting.append(row)
        try:
            while self.waiting:
                row = self.record.add(self.waiting[0])
                del self.waiting[0]
        except SimulateError as error:
            self.error = one_line(str(error))
        return row

    @property
    def unwritten(self) -> str:
        """Sentence on rows that were not written; empty where all were."""
        return f"{self.error}; rows left out: {len(self.waiting)}" if self.waiting else ""


def _ended(launch: Launch, launcher: Launcher) -> Ended | str:
    """Return the end of a launch, or why it was not started."""
    try:
        return launcher.run(launch)
    except (OSError, SimulateError) as error:
        return one_line(str(error))


def _read(launch: Launch, ended: Ended | str, engine: Engine) -> Launched:
    if isinstance(ended, str):
        return Launched(launch=launch, ended=Ended(exit_code=None, log=launch.log), outcome=_broken(launch, ended))
    try:
        outcome = engine.outcome(launch.pick, launch.folder, ended)
    except (OSError, SimulateError) as error:
        outcome = _broken(launch, one_line(str(error)))
    return Launched(launch=launch, ended=ended, outcome=outcome)


def _broken(launch: Launch, error: str) -> LaunchOutcome:
    return LaunchOutcome(kind="error", row=engine.launched_row(launch.pick, "error", error), error=error)


def run_folder(work: Path) -> Path:
    """Make a new folder for a campaign, so that no launch reads files of an earlier one."""
    numbers = [int(path.name[4:]) for path in work.glob("run-*") if path.name[4:].isdecimal()]
    with writing(work, "--work-folder"):
        work.mkdir(parents=True, exist_ok=True)
        for number in range(max(numbers, default=0) + 1, _MOST_RUNS):
            with suppress(FileExistsError):
                folder = work / f"run-{number}"
                folder.mkdir()
                return folder
    raise UnsupportedError(f"--work-folder {work}: holds {_MOST_RUNS} runs; remove some")


def shared_folder(work: Path, node_rank: int) -> Path:
    """Return the folder of a campaign on nodes started by themselves; InputError if an earlier one left files."""
    # Only the first node writes the log of a launch: another node that started earlier has written none.
    with writing(work, "--work-folder"):
        work.mkdir(parents=True, exist_ok=True)
    if node_rank == 0 and any(file for name in ("rank-*.json", engine.LOG_NAME) for file in work.glob(f"*/{name}")):
        raise InputError(f"--work-folder {work}: holds results of earlier launches; name a new one on all nodes")
    return work


Rank = Callable[[str], Sequence[Estimate]]
"""Function that ranks the campaign's question with a calibration file, best first."""
_WORDS = {"oom": "out of memory", "error": "failed"}


class ComparedFigure(Record, kw_only=True):
    """Predicted and measured value of one figure, in base units."""

    predicted: float
    """Estimated value."""
    interval: Interval | None
    """90 % interval of the prediction; None without a calibration."""
    measured: float
    """Median of the launches."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool | None:
        """Whether the measured figure lies in the predicted 90 % interval; None without one."""
        return None if self.interval is None else self.interval.low <= self.measured <= self.interval.high


class RankFigure(Record, kw_only=True):
    """Peak memory of one rank, in bytes, and the time of its passes in a step, in seconds."""

    rank: int
    """Global rank, from 0."""
    stage: int
    """Pipeline rank it belongs to, from 0."""
    predicted: float
    """Tensors alive at its peak, as estimated."""
    measured: float
    """Tensors alive at its peak, as measured."""
    predicted_forward_seconds: float
    """Forward passes of a step, as estimated."""
    forward_seconds: float | None
    """Forward passes of a step, as measured; None where the engine does not know them."""
    predicted_backward_seconds: float
    """Backward passes of a step, as estimated."""
    backward_seconds: float | None
    """Backward passes of a step, as measured; None where the engine does not know them."""
    predicted_device_bytes: float
    """Estimated memory of the device: tensors, allocator, libraries and driver."""
    device_bytes: float | None
    """Memory by the device's own tool, other processes included; None without one."""

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1.0


class LayoutComparison(Record, kw_only=True):
    """Layout with its prediction and its launches."""

    title: str
    """Place in the ranking, model and layout in a word."""
    estimate: Estimate
    """Prediction."""
    rows: tuple[MeasuredRow, ...]
    """Measured rows of this campaign, and of the earlier one that it resumed."""
    launched: tuple[Launched, ...]
    """Launches of this campaign, in order."""

    @property
    def ran(self) -> tuple[MeasuredRow, ...]:
        """Rows of launches that ended well."""
        return tuple(row for row in self.rows if row.outcome == "ok")

    @property
    def earlier(self) -> int:
        """Rows that an earlier campaign measured, a count."""
        return len(self.rows) - len([launched for launched in self.launched if launched.outcome.row is not None])

    @property
    def scatter(self) -> float:
        """Widest distance of a launch's quartiles over its median step; 0 where no spread is known."""
        return max(
            (
                spread.interquartile / row.step_seconds
                for row in self.ran
                if (spread := row.step_time_spread) is not None and row.step_seconds
            ),
            default=0.0,
        )

    @property
    def failures(self) -> tuple[str, ...]:
        """Failures of launches, in a few words each."""
        return tuple(f"{_WORDS[row.outcome]}: {row.error}" for row in self.rows if row.outcome != "ok")

    @property
    def contradiction(self) -> str:
        """Contradiction of a launch to the verdict, or an empty text; a starved layout may run or not."""
        outcomes = {row.outcome for row in self.rows}
        if self.estimate.verdict == "fits" and "oom" in outcomes:
            return "predicted to fit, ran out of memory"
        if self.estimate.verdict == "does_not_fit" and "ok" in outcomes:
            return "predicted not to fit, ran"
        return ""

    @property
    def predicted_memory(self) -> tuple[float, Interval | None]:
        """Bytes on the fullest rank, of the kind that was measured (tensors, unless rows say otherwise)."""
        need, interval = self.estimate.memory, self.estimate.memory.interval_bytes
        if self._memory_kind == "device":
            return need.device_bytes, interval
        allocated = max(stage.allocated_bytes for stage in need.stages)
        # The interval is that of the device figure; tensors are assumed to be as uncertain, in relation.
        relation = allocated / need.device_bytes
        return allocated, interval and Interval(interval.low * relation, interval.high * relation)

    @property
    def memory(self) -> ComparedFigure | None:
        """Memory of the fullest rank; None where it was not measured."""
        kind = self._memory_kind
        sizes = [row.memory_bytes for row in self.ran if row.memory_bytes is not None and row.compares_with == kind]
        if not sizes:
            return None
        predicted, interval = self.predicted_memory
        return ComparedFigure(predicted=predicted, interval=interval, measured=statistics.median(sizes))

    @property
    def _memory_kind(self) -> str:
        return next((row.compares_with for row in self.ran if row.compares_with is not None), "allocated")

    @property
    def step(self) -> ComparedFigure | None:
        """Seconds of an optimizer step; None where they were not measured."""
        seconds = [row.step_seconds for row in self.ran if row.step_seconds is not None]
        if not seconds:
            return None
        speed = self.estimate.throughput
        return ComparedFigure(
            predicted=speed.step_seconds, interval=speed.interval_seconds, measured=statistics.median(seconds)
        )

    @property
    def ranks(self) -> tuple[RankFigure, ...]:
        """Figures of every rank whose engine knows its peak; medians over several launches."""
        results = [launched.outcome.ranks for launched in self.launched if launched.outcome.kind == "ok"]
        return tuple(self._rank(same) for same in zip(*results, strict=False))

    def _rank(self, same: Sequence[RankResult]) -> RankFigure:
        """Return the figures of one rank, from all launches."""
        stage, layout = same[0].stage, self.estimate.layout
        passes = self.estimate.throughput.stages[stage]
        micro_batches = self.estimate.global_batch_size / (layout.micro_batch_size * layout.data_parallel)
        return RankFigure(
            rank=same[0].rank,
            stage=stage,
            predicted=self.estimate.memory.stages[stage].allocated_bytes,
            measured=statistics.median(result.peak_bytes for result in same),
            predicted_forward_seconds=micro_batches * passes.forward_seconds,
            forward_seconds=_median([result.forward_seconds for result in same]),
            predicted_backward_seconds=micro_batches * passes.backward_seconds,
            backward_seconds=_median([result.backward_seconds for result in same]),
            predicted_device_bytes=self.estimate.memory.stages[stage].device_bytes,
            device_bytes=_median([result.device_bytes for result in same]),
        )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


class Moved(Record, kw_only=True):
    """Layout in both rankings."""

    layout: Layout
    """The layout."""
    before: int | None
    """Place among the layouts ranked, from 1; None beyond them."""
    after: int | None
    """Place with the new calibration."""
    estimate_before: Estimate | None
    """Estimate before; None beyond the layouts ranked."""
    estimate_after: Estimate | None
    """Estimate with the new calibration; None beyond the layouts ranked."""
    measured_seconds: float | None
    """Median step of its launches; None where it was not launched."""


class Learned(Record, kw_only=True):
    """Changes that the rows of a record made."""

    path: Path
    """File of the calibration, written or not."""
    stored: bool
    rows: int
    """Rows that decide a coefficient."""
    reasons: tuple[str, ...]
    """Reasons why something was not stored or not used."""
    moved: tuple[Moved, ...]
    """Best layouts of both rankings, in the new order; empty where nothing was stored."""


def learn(rows: Sequence[MeasuredRow], path: Path, *, before: Sequence[Estimate], rank: Rank, top: int) -> Learned:
    """Fit all rows of a record, write the calibration, and rank again: the best `top` of both. Raises InputError."""
    samples = prepared(rows)
    fitted = fit_own(samples[0].scenario.hardware.family, samples)
    stored = [fit for kind in KINDS if (fit := fitted.stored(kind))]
    reasons = tuple(filter(None, (*map(fitted.not_stored, KINDS), *unused(rows, [fitted]))))
    if not stored:
        return Learned(path=path, stored=False, rows=0, reasons=reasons, moved=())
    write_file(path, calibration_text(fitted.calibration()))
    used = {key for fit in stored for key in fit.keys}
    seconds: dict[Layout, list[float]] = {}
    for sample in samples:
        if sample.row.step_seconds is not None:
            seconds.setdefault(sample.layout, []).append(sample.row.step_seconds)
    medians = {layout: sorted(times)[len(times) // 2] for layout, times in seconds.items()}
    moved = _moved(before, rank(str(path)), medians, top)
    return Learned(path=path, stored=True, rows=len(used), reasons=reasons, moved=moved)


def _moved(
    before: Sequence[Estimate], after: Sequence[Estimate], measured: Mapping[Layout, float], top: int
) -> tuple[Moved, ...]:
    """Return the best `top` of either ranking and all measured layouts, in the new order."""
    places = [{row.layout: (at, row) for at, row in enumerate(ranking, start=1)} for ranking in (before, after)]
    layouts = [*(row.layout for row in after[:top]), *(row.layout for row in before[:top])]
    layouts += [row.layout for row in before if row.layout in measured]
    moved = []
    for layout in dict.fromkeys(layouts):
        was, now = places[0].get(layout), places[1].get(layout)
        moved.append(
            Moved(
                layout=layout,
                before=was and was[0],
                after=now and now[0],
                estimate_before=was and was[1],
                estimate_after=now and now[1],
                measured_seconds=measured.get(layout),
            )
        )
    last = len(before) + len(after)
    return tuple(sorted(moved, key=lambda row: (row.after or last, row.before or last)))
