"""A sweep: questions in, a table out, part by part, so that one that was killed goes on where it was.

Decides who prices which part; `price` prices, `parts` writes, `workers` runs.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simulator._version import __version__
from simulator.errors import InputError, SimulateError, UnsupportedError
from simulator.question.scenario.settings import check_count, check_share
from simulator.search.query import MIN_FIT_PROBABILITY
from simulator.search.rank import Progress
from simulator.show.answers.sweep.parts import SweepParts, check_replaced, check_table, read_table, write_table
from simulator.show.answers.sweep.price import COLUMNS, OUTCOMES, SweepOutcome, asked, price_part
from simulator.show.answers.sweep.questions import Questions, absolute, questions_of, read_questions
from simulator.show.answers.sweep.workers import Workers, check_workers, workers_of
from simulator.tabular import Row, Tabular

_AHEAD = 3
"""Parts handed out for each that is priced, so that no worker waits for the next."""
_POOLS = 3
"""Pools that may break before a sweep gives up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep(Tabular):
    """The end of a sweep."""

    questions: int
    """Of the whole sweep."""
    priced: int
    """Questions answered this time; the others were there."""
    missing: int
    """Questions that nobody answered yet: those of other shards."""
    outcomes: Mapping[SweepOutcome, int]
    """Questions by outcome, of those that are answered."""
    table: Path | None
    """Where the rows were written; None in memory, or with questions missing."""
    elapsed_seconds: float
    """What this command took."""
    answers: tuple[Row, ...] = ()
    """The rows of a sweep without a table."""

    def rows(self) -> Sequence[Row]:
        """A row for each question, in their order, in base units."""
        return self.answers if self.table is None else read_table(self.table)

    def __repr__(self) -> str:
        """One line: how many, how they ended, where they are."""
        outcomes = ", ".join(f"{count:,} {name}" for name, count in self.outcomes.items())
        where = "" if self.table is None else f" in {self.table}"
        return f"<Sweep of {self.questions:,} questions{where}: {outcomes or 'none answered'}>"


def sweep(  # noqa: PLR0913  questions, and how they are worked through
    questions: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Path,
    *,
    output: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    shard: tuple[int, int] | None = None,
    merge: bool = False,
    force: bool = False,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    progress: Progress | None = None,
) -> Sweep:
    """Price the best layout of every question of a product of lists.

    `questions` are keywords of `rank` (and `layout`, which narrows each search) with a value or a list each, a list of
    such mappings, or a YAML file of either. `output` is a table to write, .csv or .parquet; beside it a folder keeps
    what is done, so that a sweep that was killed goes on. Without it the rows stay in memory. `workers` are processes
    here, one for each core if left out; `scheduler` is the address or file of a Dask scheduler instead. `shard` (3, 64)
    does only that share of the parts; `merge` prices nothing and writes the table from what shards did. A table that
    answers other questions is replaced with `force` alone. A question that cannot be answered is a row that says why.
    Raises InputError for what is wrong and UnsupportedError for what is missing here.
    """
    known = read_questions(Path(questions)) if isinstance(questions, str | Path) else questions_of(questions)
    check_share("min_fit_probability", min_fit_probability)
    if workers is not None:
        check_count("workers", workers, 4096)
    check_workers(workers, scheduler)
    which = _shard(shard, merge=merge)
    if output is None:
        if shard is not None or merge:
            raise InputError("shard and merge need an output")
        with TemporaryDirectory() as scratch:
            parts = SweepParts(Path(scratch), len(known))
            job = _Job(known, parts, min_fit_probability, workers, scheduler)
            return job.run((1, 1), [], progress)
    table = Path(output)
    check_table(table)
    if not force:
        check_replaced(table, known)
    parts = SweepParts(table.with_name(f"{table.name}.parts"), len(known))
    job = _Job(known, parts, min_fit_probability, workers, scheduler)
    with parts.opened(f"{known.fingerprint()} {min_fit_probability}", which):
        return job.merged(table) if merge else job.run(which, None if shard else table, progress)


def _shard(shard: tuple[int, int] | None, *, merge: bool) -> tuple[int, int]:
    if shard is None:
        return 1, 1
    which, of = shard
    if merge:
        raise InputError("shard and merge exclude each other: merge when all shards are done")
    if not 1 <= which <= of:
        raise InputError(f"shard {which}/{of}: must be from 1/{of} to {of}/{of}")
    return which, of


@dataclass(frozen=True, slots=True)
class _Job:
    """A sweep with all that it needs."""

    questions: Questions
    parts: SweepParts
    min_fit_probability: float
    workers: int | None
    scheduler: str | None

    def run(self, shard: tuple[int, int], to: Path | list[Row] | None, progress: Progress | None) -> Sweep:
        """Price what is missing of a shard; without a shard all rows go to a table or to memory."""
        began, done = time.monotonic(), 0
        total = sum(len(self.parts.numbers(part)) for part in range(shard[0] - 1, len(self.parts), shard[1]))
        left = self._count(self.parts.missing(shard))
        for part in self._priced(shard):
            done += len(self.parts.numbers(part))
            if progress:
                progress(total - left + done, total)
        return self._ended(to, done, began)

    def merged(self, table: Path) -> Sweep:
        """Write the table of what is there. Raises InputError where something is missing."""
        gone = self.parts.missing()
        if gone:
            raise InputError(
                f"{self.parts.folder}: {len(gone):,} of {len(self.parts):,} parts are missing, the first is part "
                f"{gone[0] + 1}: run the shards that have them, or run without a shard to price what is left"
            )
        return self._ended(table, 0, time.monotonic())

    def _ended(self, to: Path | list[Row] | None, done: int, began: float) -> Sweep:
        """The end of a sweep: rows to a table, to memory, or where some are missing nowhere, but counted."""
        outcomes: Counter[SweepOutcome] = Counter()
        missing = self._count(self.parts.missing())
        if isinstance(to, Path):
            write_table(to, self._rows(outcomes))
            self.parts.remove()
        else:
            for cells in self._rows(outcomes):
                if to is not None:
                    to.append(dict(zip(COLUMNS, cells, strict=True)))
        return Sweep(
            questions=len(self.questions),
            priced=done,
            missing=missing,
            outcomes={name: outcomes[name] for name in OUTCOMES if outcomes[name]},
            table=to if isinstance(to, Path) else None,
            elapsed_seconds=time.monotonic() - began,
            answers=tuple(to) if isinstance(to, list) else (),
        )

    def _count(self, parts: Sequence[int]) -> int:
        return sum(len(self.parts.numbers(part)) for part in parts)

    def _rows(self, outcomes: Counter[SweepOutcome]) -> Iterator[list[Any]]:
        """All rows that are there, with the columns that repeat the question."""
        names, outcome = tuple(COLUMNS), tuple(COLUMNS).index("outcome")
        places = {name: position for position, name in enumerate(names)}
        for cells in self.parts.rows():
            for name, value in asked(self.questions[cells[0]]).items():
                if value is not None:
                    cells[places[name]] = value
            outcomes[cells[outcome]] += 1
            yield cells

    def _priced(self, shard: tuple[int, int]) -> Iterator[int]:
        """Price and keep each missing part of a shard; a pool that breaks is replaced a few times."""
        for attempt in range(1, _POOLS + 1):
            missing = self.parts.missing(shard)
            if not missing:
                return
            try:
                with workers_of(self.workers, self.scheduler) as workers:
                    yield from self._handed_out(missing, workers)
            except BrokenProcessPool as error:
                if attempt == _POOLS:
                    raise self._lost("processes here were killed again and again", shard) from error
            except CancelledError as error:
                raise self._lost(f"scheduler {self.scheduler} is gone", shard) from error
            except SimulateError:
                raise
            except Exception as error:
                if self.scheduler is None:
                    raise
                raise self._lost(f"scheduler {self.scheduler}: {error}", shard) from error

    def _lost(self, cause: str, shard: tuple[int, int]) -> UnsupportedError:
        answered = len(self.questions) - self._count(self.parts.missing(shard))
        return UnsupportedError(f"{cause}; {answered:,} answers are kept in {self.parts.folder}: run again to go on")

    def _handed_out(self, missing: Sequence[int], workers: Workers) -> Iterator[int]:
        """Keep workers busy, and keep what they bring."""
        waiting = list(reversed(missing))
        running: dict[Future[Any], int] = {}
        while waiting or running:
            while waiting and len(running) < (workers.slots() * _AHEAD if self.workers != 1 else 1):
                part = waiting.pop()
                numbered = [(number, absolute(self.questions[number])) for number in self.parts.numbers(part)]
                running[workers.executor.submit(price_part, numbered, self.min_fit_probability, __version__)] = part
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                part = running.pop(future)
                self.parts.store(part, future.result())
                yield part
