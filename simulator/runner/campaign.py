"""A campaign: the best layouts of a ranking, launched one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from simulator.errors import InputError, SimulateError, UnsupportedError, one_line
from simulator.measurements.row import MeasuredRow
from simulator.pricing.estimate import Estimate
from simulator.runner.compare import Comparison, compared
from simulator.runner.engine import Ended, Engine, Outcome, Pick
from simulator.runner.engines.launched import launched_row
from simulator.runner.launch import LOG_NAME, Launch, Launched, Launcher, slug
from simulator.runner.processes import interruptible
from simulator.runner.record import Record, identity
from simulator.scenario.layout import Layout

Tell = Callable[[str], None]
"""Takes one line about what happens now."""
_MOST_RUNS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Refused:
    """A layout that the engine cannot run."""

    layout: Layout
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How much to launch."""

    top: int = 3
    """Layouts, the best of each split."""
    repeats: int = 1
    """Launches of each."""
    limit_seconds: float = 600.0
    """Longest time of one."""
    resume: bool = False
    """Whether what the record holds is not launched again."""
    retry_failed: bool = False
    """Whether, resumed, launches that failed are tried once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is launched, and what is not."""

    layouts: tuple[tuple[str, Estimate], ...]
    """The layouts by title, best first."""
    launches: tuple[Launch, ...]
    """In order: each layout once, then each once more."""
    known: dict[str, list[MeasuredRow]]
    """Rows of the layouts that the record held already, by title."""
    refused: tuple[Refused, ...]
    """Faster layouts that the engine cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Campaign:
    """What became of a plan."""

    plan: Plan
    comparisons: tuple[Comparison, ...]
    interrupted_by: int = 0
    """Number of the signal that ended it early; 0 where none did."""

    @property
    def all_well(self) -> bool:
        """Whether every launch ran, and none contradicts its verdict."""
        return all(one.rows and not one.failures and not one.contradiction for one in self.comparisons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Chooses the layouts to launch, and writes what their launches read."""

    engine: Engine
    pick: Pick
    """The question; its layout is replaced."""
    folder: Path
    """Where each launch gets a folder."""
    record: Record
    wanted: Wanted = Wanted()

    def plan(self, estimates: Sequence[Estimate]) -> Plan:
        """Take, of each split, the fastest layout that the engine can run. Raises UnsupportedError without any."""
        before = self.record.rows() if self.wanted.resume else ()
        layouts: list[tuple[str, Estimate]] = []
        known: dict[str, list[MeasuredRow]] = {}
        launches: list[Launch] = []
        refused: list[Refused] = []
        splits: set[tuple[int, ...]] = set()
        for estimate in estimates:
            if len(layouts) == self.wanted.top:
                break
            if _split(estimate.layout) in splits:
                continue
            title = f"{len(layouts) + 1}-{slug(self.pick.model, estimate.layout)}"
            rows = self._measured(estimate.layout, before)
            try:
                launches += self._launches(title, estimate, rows)
            except UnsupportedError as error:
                refused.append(Refused(estimate.layout, str(error)))
                continue
            splits.add(_split(estimate.layout))
            layouts.append((title, estimate))
            known[title] = rows
        if not layouts:
            raise UnsupportedError(
                f"nothing to launch: engine {self.engine.name} can run none of the {len(refused)} best layouts; of the "
                f"first it says: {refused[0].reason}"
            )
        launches.sort(key=lambda launch: launch.repeat)
        numbered = tuple(replace(launch, number=at) for at, launch in enumerate(launches, start=1))
        return Plan(layouts=tuple(layouts), launches=numbered, known=known, refused=tuple(refused))

    def _measured(self, layout: Layout, before: Sequence[MeasuredRow]) -> list[MeasuredRow]:
        """What the record holds of a layout already, as far as it counts."""
        wanted = identity(launched_row(replace(self.pick, layout=layout), "error"))
        rows = [row for row in before if identity(row) == wanted]
        return [row for row in rows if row.outcome == "ok" or not self.wanted.retry_failed]

    def _launches(self, title: str, estimate: Estimate, rows: Sequence[MeasuredRow]) -> Iterator[Launch]:
        """The launches of one layout that are still to be done: none after one that failed."""
        if any(row.outcome != "ok" for row in rows):
            return
        pick = replace(self.pick, layout=estimate.layout)
        for repeat in range(len(rows) + 1, self.wanted.repeats + 1):
            place = self.folder / (title if repeat == 1 else f"{title}-{repeat}")
            yield Launch(
                title=title,
                pick=pick,
                estimate=estimate,
                command=self.engine.prepare(pick, place.absolute()),
                repeat=repeat,
                limit_seconds=self.wanted.limit_seconds,
            )


def run(plan: Plan, launcher: Launcher, engine: Engine, record: Record | None, tell: Tell) -> Campaign:
    """Launch everything; each launch that ends is recorded at once, and one that fails stops no other layout.

    Without a record the rows are for the comparison alone: another node keeps them.
    """
    launched: list[Launched] = []
    rows = {title: list(found) for title, found in plan.known.items()}
    with interruptible() as came:
        try:
            for launch in plan.launches:
                if any(row.outcome != "ok" for row in rows[launch.title]):
                    continue
                tell(f"launch {launch.number} of {len(plan.launches)}: {launch.folder.name}")
                done = _one(launch, launcher, engine)
                launched.append(done)
                if done.outcome.row is not None:
                    note = replace(done.outcome.row, source_ref=f"{launch.folder.parent.name}/{launch.folder.name}")
                    rows[launch.title].append(note if record is None else record.add(note))
                tell(f"{done.outcome.kind} after {done.ended.wall_seconds:.1f} s {done.outcome.error}".rstrip())
                if done.outcome.kind == "interrupted":
                    break
        except KeyboardInterrupt:
            tell("interrupted")
    comparisons = tuple(compared(plan.layouts, rows, launched))
    return Campaign(plan=plan, comparisons=comparisons, interrupted_by=came.number)


def _one(launch: Launch, launcher: Launcher, engine: Engine) -> Launched:
    ended = Ended(exit_code=None, log=launch.log)
    try:
        ended = launcher.run(launch)
        outcome = engine.outcome(launch.pick, launch.folder, ended)
    except (OSError, SimulateError) as error:
        said = one_line(str(error))
        outcome = Outcome(kind="error", row=launched_row(launch.pick, "error", said), error=said)
    return Launched(launch=launch, ended=ended, outcome=outcome)


def run_folder(work: Path) -> Path:
    """A new folder for a campaign, so that no launch finds what an earlier one left."""
    taken = [int(path.name.removeprefix("run-")) for path in work.glob("run-*") if path.name[4:].isdecimal()]
    for number in range(max(taken, default=0) + 1, _MOST_RUNS):
        folder = work / f"run-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise UnsupportedError(f"--work-folder {work}: holds {_MOST_RUNS} runs; remove some")


def shared_folder(work: Path, node_rank: int) -> Path:
    """The folder of a campaign on several nodes that are started by themselves: they cannot agree on a new one.

    Raises InputError on the first node where it holds what an earlier campaign left.
    """
    # The log of a launch is written by the first node alone: another node that was faster has left none.
    if node_rank == 0 and any(found for name in ("rank-*.json", LOG_NAME) for found in work.glob(f"*/{name}")):
        raise InputError(f"--work-folder {work}: holds results of earlier launches; name a new one on all nodes")
    work.mkdir(parents=True, exist_ok=True)
    return work


def _split(layout: Layout) -> tuple[int, ...]:
    return (
        layout.tensor_parallel,
        layout.pipeline_parallel,
        layout.context_parallel,
        layout.expert_parallel,
        layout.expert_tensor_parallel,
    )
