"""Campaigns: the best layouts of a ranking, launched one after the other, each recorded as it ends.

    >>> planner = Planner(engine=engine, pick=pick, folder=folder, record=record, wanted=Wanted(top=3))
    >>> run(planner.plan(estimates), launcher, engine, record, print).all_well
    True

A launch that fails stops no other, and no measured row is lost to an interruption: the `Record`, a file of rows, is
whole at any moment, whoever else writes. `compare` sets the rows beside the predictions.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, SimulateError, UnsupportedError, one_line
from simulator.evidence.measurements.rows import LAYOUT_COLUMNS, WORKLOAD_COLUMNS, MeasuredRow, read_rows, rows_text
from simulator.files import write_file, writing
from simulator.lab.runner.compare import LayoutComparison, compared
from simulator.lab.runner.engine import (
    LOG_NAME,
    Engine,
    Launch,
    Launched,
    Launcher,
    LaunchOutcome,
    Pick,
    launched_row,
    slug,
)
from simulator.lab.runner.processes import Ended, interruptible, signals_blocked
from simulator.question.scenario.layout import Layout

Tell = Callable[[str], None]
"""Function that shows one line of progress."""
_MOST_RUNS: Final = 100_000
_IDENTITY: Final = (
    *("model", "num_layers", "hardware", "framework", "options", "stack", "devices"),
    *WORKLOAD_COLUMNS,
    *LAYOUT_COLUMNS,
)
"""Columns of the question that was launched; the others hold its outcome."""


@dataclass(frozen=True, slots=True)
class Record:
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
    launched = launched_row(pick, "error")
    return [row for row in rows if all(getattr(row, name) == getattr(launched, name) for name in _IDENTITY)]


@dataclass(frozen=True, slots=True)
class Refused:
    """Layout that the engine cannot run."""

    layout: Layout
    reason: str
    """Reason, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Number and length of launches."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlan:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Planner that chooses the layouts to launch and writes the files of their launches."""

    engine: Engine
    pick: Pick
    """Question of the launches; its layout is replaced."""
    folder: Path
    """Folder of the launches' folders."""
    record: Record
    wanted: Wanted = Wanted()

    def plan(self, estimates: Sequence[Estimate]) -> LaunchPlan:
        """Return the plan of the fastest runnable layout of each split. Raises UnsupportedError without any."""
        before = self.record.rows() if self.wanted.resume else ()
        layouts: list[tuple[str, Estimate]] = []
        known: dict[str, list[MeasuredRow]] = {}
        launches: list[Launch] = []
        refused: list[Refused] = []
        splits: set[tuple[int, ...]] = set()
        for estimate in estimates:
            if len(layouts) == self.wanted.top:
                break
            if estimate.layout.split in splits:
                continue
            title = f"{len(layouts) + 1}-{slug(self.pick.model, estimate.layout)}"
            rows = self._measured(estimate.layout, before)
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

    def _measured(self, layout: Layout, before: Sequence[MeasuredRow]) -> list[MeasuredRow]:
        """Return the rows of a layout that the record holds, without failed ones that are tried again."""
        rows = launches_of(replace(self.pick, layout=layout), before)
        return [row for row in rows if row.outcome == "ok" or not self.wanted.retry_failed]

    def _launches(self, title: str, estimate: Estimate, rows: Sequence[MeasuredRow]) -> Iterator[Launch]:
        """Yield the launches of one layout that are still to be done: none after one that failed."""
        if any(row.outcome != "ok" for row in rows):
            return
        pick = replace(self.pick, layout=estimate.layout)
        for repeat in range(len(rows) + 1, self.wanted.repeats + 1):
            place = self.folder / (title if repeat == 1 else f"{title}-{repeat}")
            with writing(place, "--work-folder"):
                command = self.engine.prepare(pick, place.absolute())
            yield Launch(
                title=title,
                pick=pick,
                estimate=estimate,
                command=command,
                repeat=repeat,
                limit_seconds=self.wanted.limit_seconds,
            )


def run(plan: LaunchPlan, launcher: Launcher, engine: Engine, record: Record | None, tell: Tell) -> Campaign:
    """Run all launches; each is recorded as it ends, and one that fails stops no other layout.

    A record that cannot be written stops nothing either: the rows are compared, and `unwritten` says why they are
    missing. Without a record the rows are compared only: another node records them.
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
    comparisons = tuple(compared(plan.layouts, rows, launched))
    return Campaign(plan=plan, comparisons=comparisons, interrupted_by=came.number, unwritten=keeper.unwritten)


@dataclass(slots=True)
class _Keeper:
    """Writer of rows to a record; rows that cannot be written are tried again with the next."""

    record: Record | None
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
    return LaunchOutcome(kind="error", row=launched_row(launch.pick, "error", error), error=error)


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
    """Return the folder of a campaign on several nodes started by themselves: they cannot agree on a new one.

    Raises InputError on the first node where it holds what an earlier campaign left.
    """
    # Only the first node writes the log of a launch: another node that started earlier has written none.
    with writing(work, "--work-folder"):
        work.mkdir(parents=True, exist_ok=True)
    if node_rank == 0 and any(file for name in ("rank-*.json", LOG_NAME) for file in work.glob(f"*/{name}")):
        raise InputError(f"--work-folder {work}: holds results of earlier launches; name a new one on all nodes")
    return work
