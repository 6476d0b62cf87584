"""Sweeps: lists of inputs multiplied into questions, priced by many processes; a stopped one goes on at its rows."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from io import FileIO, StringIO
from itertools import islice
from itertools import product as cartesian
from math import prod
from multiprocessing import active_children, connection, get_context, parent_process
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from simulator._version import __version__
from simulator.answers.ranking import fastest, space_of
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, SimulateError, UnsupportedError, check_kind, did_you_mean, one_line, short_line
from simulator.evidence.cluster import cluster, device_kinds
from simulator.files import DATA_FOLDERS, data_folder, write_file, writing
from simulator.question.frameworks.stacks import framework, stack_for
from simulator.question.question import framework_following, question_of
from simulator.question.scenario.complete import KEYS, named
from simulator.question.scenario.inputs import BY_INPUT, DEFAULTS, LISTS, check_count, check_share
from simulator.question.scenario.layout import BY_NAME, Layout, layout_object
from simulator.question.scenario.lengths import Lengths
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import read_yaml
from simulator.question.specs.names import hub_file
from simulator.question.units import parse_count
from simulator.records import Record
from simulator.search.alternatives import option_text
from simulator.search.rank import Progress
from simulator.search.space import MIN_FIT_PROBABILITY
from simulator.tabular import Row, Tabular

MOST_QUESTIONS = 100_000_000
"""A sweep beyond this is a slip."""
KEYWORDS = (*BY_INPUT, "layout")
"""What a mapping may hold: the arguments of `simulator.rank`, and `layout`, which narrows each search."""
_MAPPINGS = ("options", "layout")
_FILES = ("model", "hardware", "calibration")  # inputs whose values are names or paths
QuestionGrid = Mapping[str, tuple[Any, ...]]
"""Values by keyword; their product are questions."""


class Questions(Record):
    """Numbered questions: those of the first grid, then those of the next."""

    grids: tuple[QuestionGrid, ...]

    def __len__(self) -> int:
        return sum(map(_size, self.grids))

    def __getitem__(self, number: int) -> dict[str, Any]:
        """The question of a number from 0; the last keyword of a grid turns fastest."""
        for grid in self.grids:
            if 0 <= number < _size(grid):
                values: dict[str, Any] = {}
                for name in reversed(list(grid)):
                    number, position = divmod(number, len(grid[name]))
                    values[name] = grid[name][position]
                return {name: values[name] for name in grid}
            number -= _size(grid)
        raise IndexError(number)

    def fingerprint(self, *settings: Any) -> str:
        """Digest of what the answers follow from: questions, settings of the sweep, version, specs, calibration."""
        digest = hashlib.sha256(json.dumps([__version__, self.grids, settings]).encode())
        folders = map(data_folder, DATA_FOLDERS)
        for file in (*(file for folder in folders for file in sorted(folder.glob("*.yaml"))), *self._named_files()):
            digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()[:16]

    def absolute(self) -> Questions:
        """The questions with the paths that they name made absolute: a worker may stand in another folder."""
        grids = ({name: tuple(map(partial(_absolute, name), grid[name])) for name in grid} for grid in self.grids)
        return Questions(tuple(grids))

    def _named_files(self) -> Iterator[Path]:
        """Files that the questions name."""
        for value in (value for grid in self.grids for name in _FILES for value in grid.get(name, ())):
            for text in (value or "").split(","):
                path, cached = Path(text), hub_file(text)
                for file in (path, path / "config.json", *((cached,) if cached is not None else ())):
                    if file.is_file():
                        yield file
                        break


def read_questions(file: Path) -> Questions:
    """The questions of a YAML file. Raises InputError for what is wrong, before any is asked."""
    return questions_of(read_yaml(file), str(file))


def questions_of(value: Any, where: str = "questions") -> Questions:
    """The questions of a mapping of keywords to values or lists of them, or of a list of such mappings."""
    mappings = value if isinstance(value, list | tuple) else [value]
    if not mappings:
        raise InputError(f"{where}: holds no question")
    if not all(isinstance(mapping, Mapping) for mapping in mappings):
        raise InputError(f"{where}: must be a mapping of inputs to lists, or a list of such mappings")
    places = [where if len(mappings) == 1 else f"{where}[{number}]" for number in range(len(mappings))]
    questions = Questions(tuple(_grid(mapping, place) for mapping, place in zip(mappings, places, strict=True)))
    if len(questions) > MOST_QUESTIONS:
        raise InputError(f"{where}: {len(questions):,} questions; at most {MOST_QUESTIONS:,}")
    return questions


def _absolute(name: str, value: Any) -> Any:
    path = Path(value or "") if name in _FILES else Path()
    named = path.suffix in (".yaml", ".yml", ".json") or (len(path.parts) > 1 and path.exists())
    return str(path.resolve()) if named else value


def _size(grid: QuestionGrid) -> int:
    return prod(map(len, grid.values()))


def _grid(mapping: Mapping[Any, Any], where: str) -> QuestionGrid:
    """The checked grid of one mapping."""
    for name in mapping:
        if name not in KEYWORDS:
            near = did_you_mean(str(name), KEYWORDS)
            raise InputError(f"{where}: unknown input '{name}'{near}; allowed: {', '.join(KEYWORDS)}")
    if "model" not in mapping:
        raise InputError(f"{where}: needs a model, or a list of them")
    # The length of a sequence follows from each model, the batch from what is trained, the precision from each device.
    following = {"seq_length", "global_batch_size", "precision", "batching", "survive"}
    following |= set() if {"method", "stack"}.isdisjoint(mapping) else {"framework"}
    defaults = {name: value for name, value in DEFAULTS.items() if value is not None and name not in following}
    inputs = {**defaults, **mapping}
    grid = {name: _values(name, inputs[name], f"{where}: {name}") for name in KEYWORDS if name in inputs}
    for name, values in grid.items():
        for value in values:
            _check(f"{where}: {name}", _CHECKS[name], value)
    if all(any(size is not None for size in grid.get(name, ())) for name in ("nodes", "devices")):
        raise InputError(f"{where}: nodes and devices exclude each other: give one")
    stated = [{"stack": stack, "method": mapping.get("method")} for stack in grid.get("stack", (None,))]
    kinds = grid.get("framework") or {framework_following(each) or DEFAULTS["framework"] for each in stated}
    for kind, options in cartesian(kinds, grid.get("options", ())):
        _check(f"{where}: options", partial(framework, kind), options)
    for kind, stack in cartesian(grid.get("framework", ()), grid.get("stack", ())):
        _check(f"{where}: stack", partial(stack_for, kind), stack)
    for machines, calibration in cartesian(grid["hardware"], grid.get("calibration", ())):
        _check(f"{where}: calibration", partial(cluster, machines, None, None), calibration)
    return grid


def _values(name: str, value: Any, where: str) -> tuple[Any, ...]:
    """The values that are listed for an input: counts as numbers, mappings with plain values."""
    listed = _several(value)
    if name in _MAPPINGS:
        if not all(isinstance(item, Mapping) for item in listed):
            raise InputError(f"{where}: must be a mapping, or a list of mappings")
        typed = option_text if name == "options" else _several  # a list of `layout` is searched
        listed = tuple({str(key): typed(item[key]) for key in item} for item in listed)
    if name in BY_INPUT and BY_INPUT[name].kind == "count":
        try:
            listed = tuple(
                parse_count(item, length=BY_INPUT[name].of_tokens) if isinstance(item, str) else item for item in listed
            )
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    if not listed:
        raise InputError(f"{where}: is an empty list")
    for position, item in enumerate(listed):
        if item in listed[:position]:
            raise InputError(f"{where}: {item!r} is there twice")
    return listed


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _check(where: str, check: Callable[[Any], object], value: Any) -> None:
    """Raise an InputError that says where a value is wrong; a sound one that cannot be priced becomes a row."""
    try:
        check(value)
    except UnsupportedError:
        return
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _loads(load: Callable[[str], object], value: Any) -> object:
    if not isinstance(value, str):
        raise InputError(f"{value!r}: must be a name or a path")
    return load(value)


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    **{name: setting._replace(name="value").check for name, setting in BY_INPUT.items()},
    "model": partial(_loads, load_model),
    "hardware": partial(_loads, device_kinds),
    "calibration": lambda value: value is None or _loads(str, value),
    "lengths": lambda value: value is None or Lengths.read(value),
    "layout": lambda layout: space_of(question_of(named(layout), KEYS, many=True)),
}


SweepOutcome = Literal["fits", "risky", "starved", "does_not_fit", "depends", "no_layout", "refused", "failed"]
"""Recommended; fits, with less probability than asked for; too near capacity; too large; on switches or a memory that
nobody said; no layout keeps the rules; the question cannot be priced; a defect of the simulator, to be reported. With
the first five the row has a layout."""
OUTCOMES: tuple[SweepOutcome, ...] = get_args(SweepOutcome)
_KINDS = {"flag": bool, "count": int, "number": int}
_FIGURES = (
    *("tokens_per_second", "mfu", "causal_mfu", "step_seconds", "step_seconds_low", "step_seconds_high"),
    *("device_bytes", "device_bytes_low", "device_bytes_high", "capacity_bytes", "fit_probability"),
)
COLUMNS: Mapping[str, type] = {
    "question": int,
    **{name: int if name in BY_INPUT and BY_INPUT[name].kind == "count" else str for name in KEYWORDS},
    "survive": float,
    "outcome": str,
    "reason": str,
    **{key: _KINDS.get(BY_NAME[key].kind, str) for key in layout_object(Layout())},
    **dict.fromkeys(_FIGURES, float),
    "fitted_to": str,
    "without_effect": str,
    "fingerprint": str,
}
"""Every column of a row with its type; any but `question`, `model`, `outcome` and `fingerprint` may be None."""
_HEADER = ",".join(COLUMNS) + "\n"
WAIT_SECONDS = 120.0
"""How long a scheduler and its first worker are waited for."""
_LONGEST_TASK = 16  # most questions that a worker is handed at a time
_TASKS_AHEAD = 2048
"""Tasks that are handed out and not yet back: many more than workers, so that none waits for the next."""
Answers = Sequence[dict[str, Any]]
"""Cells that follow from some questions, by column, without those that are None."""


class Sweep(Tabular, Record, kw_only=True):
    """The end of a sweep."""

    questions: int
    """Of the whole sweep."""
    priced: int
    """Questions answered this time; the others were there."""
    missing: int = 0
    """Questions that nobody answered: none. For programs that know shards, until 0.7."""
    outcomes: Mapping[SweepOutcome, int]
    """Questions by outcome."""
    without_effect: Mapping[str, int] = field(default_factory=dict)
    """Sentences on settings that change no figure of a question, with the number of questions; the most first."""
    table: Path | None
    """Where the rows were written; None in memory."""
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
        return f"<Sweep of {self.questions:,} questions{f' in {self.table}' if self.table else ''}: {outcomes}>"


def sweep(  # noqa: PLR0913  questions, and how they are worked through
    questions: Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | Path,
    *,
    output: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    force: bool = False,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    progress: Progress | None = None,
) -> Sweep:
    """Price the best layout of every question of a product of lists.

    `questions` are keywords of `rank` (and `layout`, which narrows each search) with a value or a list each, a list of
    such mappings, or a YAML file of either. `output` is a table to write, .csv: a row is appended as its question is
    answered, and a sweep that was killed goes on with what is left; without it the rows stay in memory. `workers` are
    processes here, one for each core if left out; `scheduler` is the address or file of a Dask scheduler instead. A
    table that answers other questions is replaced with `force` alone. A question that cannot be answered is a row that
    says why. Raises InputError for what is wrong and UnsupportedError for what is missing here.
    """
    began = time.monotonic()
    check_kind("output", output or "", (str, Path), "a path")
    known = read_questions(Path(questions)) if isinstance(questions, str | Path) else questions_of(questions)
    check_share("min_fit_probability", min_fit_probability)
    check_workers(workers, scheduler)
    with TemporaryDirectory() as scratch:
        file = Path(scratch, "rows.csv") if output is None else Path(output)
        with _opened(file, known, min_fit_probability, force=force) as table:
            before = len(table)
            _price(table, min_fit_probability, workers, scheduler, progress)
            table.sort()
        return Sweep(
            questions=len(known),
            priced=len(known) - before,
            outcomes={name: table.outcomes[name] for name in OUTCOMES if table.outcomes[name]},
            without_effect=dict(table.idle.most_common()),
            table=None if output is None else file,
            elapsed_seconds=time.monotonic() - began,
            answers=tuple(read_table(file)) if output is None else (),
        )


def _price(
    table: _Table, min_fit_probability: float, workers: int | None, scheduler: str | None, progress: Progress | None
) -> None:
    """Answer what is missing in a table; a pool that breaks is replaced as long as answers come."""
    price = partial(priced, table.questions.absolute(), min_fit_probability, __version__)
    while (before := len(table)) < len(table.questions):
        try:
            with executor_of(workers, scheduler) as executor, closing(_results(executor, price, table)) as results:
                for answers in results:
                    table.append(answers)
                    if progress:
                        progress(len(table), len(table.questions))
        except SimulateError:
            raise
        except Exception as error:
            broken = isinstance(error, BrokenProcessPool)
            if broken and len(table) > before:
                continue
            if scheduler is None and not broken:
                raise
            cause = "processes here are killed" if broken else f"scheduler {scheduler}: {str(error) or 'is gone'}"
            raise UnsupportedError(
                f"{cause}; {len(table):,} answers are kept in {table.file}: run again to go on"
            ) from error


def _results(executor: Executor | None, price: partial[Answers], table: _Table) -> Generator[Answers]:
    """Yield the answers of every task as they come, with as many tasks as allowed handed out."""
    tasks = table.tasks()
    if executor is None:
        yield from map(price, tasks)
        return
    back: SimpleQueue[Future[Answers]] = SimpleQueue()
    running: set[Future[Answers]] = set()
    try:
        while True:
            for task in islice(tasks, _TASKS_AHEAD - len(running)):
                future = executor.submit(price, task)
                running.add(future)
                future.add_done_callback(back.put)
            if not running:
                return
            future = back.get()
            running.remove(future)
            yield future.result()
    finally:
        # The thread of a pool that is ended fails on a future that was cancelled, and leaves another that never ends.
        for future in running if not isinstance(executor, ProcessPoolExecutor) else ():
            future.cancel()


@dataclass(slots=True)
class _Table:
    """Table that is open to be appended to, and which questions it answers.

    Rows come nearly in order, so that the numbers `beyond` the first unanswered question are few.
    """

    file: Path
    stream: FileIO
    questions: Questions
    fingerprint: str
    outcomes: Counter[str] = field(default_factory=Counter)
    idle: Counter[str] = field(default_factory=Counter)
    answered: int = 0
    """First number that has no answer."""
    beyond: set[int] = field(default_factory=set)
    sorted: bool = True

    def __len__(self) -> int:
        return self.answered + len(self.beyond)

    def tasks(self) -> Iterator[Sequence[int]]:
        """Yield the numbers of questions that are not answered yet, a few at a time."""
        numbers = range(self.answered, len(self.questions))
        missing = (number for number in numbers if number >= self.answered and number not in self.beyond)
        size = min(max(len(self.questions) // _TASKS_AHEAD, 1), _LONGEST_TASK)
        while task := list(islice(missing, size)):
            yield task

    def read(self) -> None:
        """Note the rows that are there, and drop a last line that is torn. Raises ValueError for another table."""
        end = 0
        with self.file.open("rb") as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                row = dict(zip(COLUMNS, next(csv.reader([line.decode()])), strict=True))
                if end:
                    number = int(row["question"])
                    if row["fingerprint"] != self.fingerprint or not 0 <= number < len(self.questions):
                        raise ValueError("another sweep")
                    self._note(number, row)
                elif list(row.values()) != list(COLUMNS):
                    raise ValueError("another table")
                end += len(line)
        if not end:
            raise ValueError("no table")
        self.stream.truncate(end)

    def append(self, answers: Answers) -> None:
        """Write rows behind the others. Raises InputError where the disk is full; what was written before stays."""
        text = StringIO()
        rows = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        for answer in answers:
            row = question_cells(self.questions[answer["question"]]) | answer | {"fingerprint": self.fingerprint}
            rows.writerow({name: _cell(value) for name, value in row.items()})
        left = memoryview(text.getvalue().encode())
        with writing(self.file):
            while left:  # without a buffer: what does not go to the disk now is not tried again on closing
                left = left[self.stream.write(left) :]
        for answer in answers:
            self._note(answer["question"], answer)

    def sort(self) -> None:
        """Put the rows in the order of the questions."""
        if not self.sorted:
            write_file(self.file, self._in_order())

    def _in_order(self) -> Iterator[str]:
        waiting: dict[int, str] = {}
        number = 0
        with self.file.open(encoding="utf-8", newline="") as lines:
            yield next(lines)
            for line in lines:
                waiting[int(line.partition(",")[0])] = line
                while number in waiting:
                    yield waiting.pop(number)
                    number += 1

    def _note(self, number: int, row: Mapping[str, Any]) -> None:
        self.sorted = self.sorted and number == self.answered
        if number >= self.answered and number not in self.beyond:
            self.outcomes[row["outcome"]] += 1
            self.idle.update(filter(None, row.get("without_effect", "").split("; ")))
            self.beyond.add(number)
        while self.answered in self.beyond:
            self.beyond.remove(self.answered)
            self.answered += 1


@contextmanager
def _opened(file: Path, questions: Questions, min_fit_probability: float, *, force: bool) -> Iterator[_Table]:
    """Open the table of a sweep, new where there is none, and keep other sweeps from it for as long.

    Raises InputError where it is the table of another sweep, unless `force` replaces that.
    """
    if file.suffix.lower() != ".csv":
        more = ": pandas.read_csv(TABLE).to_parquet(FILE) makes Parquet of one" * (file.suffix.lower() == ".parquet")
        raise InputError(f"output {file}: must end in .csv{more}")
    with writing(file, "output"):
        if file.exists() and not file.is_file():
            raise InputError(f"output {file}: is no regular file")
        if not file.exists():
            write_file(file, _HEADER, "output")
        stream = file.open("ab", buffering=0)
    with stream:
        _lock(stream)
        table = _Table(file, stream, questions, questions.fingerprint(min_fit_probability))
        try:
            table.read()
        except (ValueError, csv.Error) as error:
            if not force:
                raise InputError(
                    f"output {file}: is there, and no table of these questions, specs and version of simulate: --force "
                    "replaces it"
                ) from error
            write_file(file, _HEADER, "output")
            with _opened(file, questions, min_fit_probability, force=False) as table:
                yield table
            return
        yield table


def _lock(stream: FileIO) -> None:
    """Hold a file until it is closed. Raises InputError where another process holds it."""
    try:
        import fcntl  # noqa: PLC0415  POSIX alone has it; elsewhere nothing is held

        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(f"output {stream.name}: another sweep is at work there: wait until it ends") from error
    except (ImportError, OSError):
        pass  # a system or a file system without locks


def read_table(file: Path) -> list[Row]:
    """The rows of a table that a sweep wrote, with their types. Raises OSError, KeyError or ValueError for another."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [
            {
                name: (cell == "true" if (kind := COLUMNS[name]) is bool else kind(cell)) if cell else None
                for name, cell in row.items()
            }
            for row in csv.DictReader(stream)
        ]


def _cell(value: Any) -> Any:
    """A cell, texts of one line."""
    return str(value).lower() if isinstance(value, bool) else one_line(value) if isinstance(value, str) else value


def priced(questions: Questions, min_fit_probability: float, version: str, numbers: Sequence[int]) -> Answers:
    """The cells that answer the questions of these numbers. Raises UnsupportedError for a sweep of another version."""
    if version != __version__:
        raise UnsupportedError(f"a worker has simulate {__version__}, the sweep {version}: install one version on both")
    return [_answer(questions[number], min_fit_probability) | {"question": number} for number in numbers]


def question_cells(question: Mapping[str, Any]) -> dict[str, Any]:
    """The cells that repeat a question."""
    return {
        name: " ".join(f"{key}={_listed(item)}" for key, item in value.items()) if isinstance(value, Mapping) else value
        for name, value in question.items()
    }


def _answer(question: Mapping[str, Any], min_fit_probability: float) -> dict[str, Any]:
    inputs = dict(question)
    try:
        searched = question_of(inputs.pop("layout", {}) | inputs, KEYS, many=True)
        layouts = fastest(searched, min_fit_probability=min_fit_probability)
    except SimulateError as error:
        return {"outcome": "refused", "reason": str(error)}
    except Exception as error:  # noqa: BLE001  one question in a million stops no sweep
        return {"outcome": "failed", "reason": short_line(f"internal error: {type(error).__name__}: {error}")}
    estimate = layouts.recommended or layouts.nearest
    if estimate is None:
        return {"outcome": "no_layout", "reason": "no layout keeps the rules"}
    if estimate.other_memory:
        return {"outcome": "depends", "reason": estimate.provenance.cautions[0], **_cells(estimate)}
    unsure = "risky" if estimate.verdict == "fits" else estimate.verdict
    return {"outcome": "fits" if layouts.recommended is not None else unsure, **_cells(estimate)}


def _cells(estimate: Estimate) -> dict[str, Any]:
    """The cells of a layout and of its figures; those that are None are left out."""
    speed, memory = estimate.throughput, estimate.memory
    seconds, size = speed.interval_seconds, memory.interval_bytes
    cells = {
        **{
            key: _listed(cell) if BY_NAME[key].kind in LISTS else cell
            for key, cell in layout_object(estimate.layout).items()
        },
        "devices": estimate.devices,  # where nodes were asked for
        "framework": estimate.framework,
        "seq_length": estimate.seq_length,
        "precision": estimate.precision,
        "tokens_per_second": speed.tokens_per_second_per_device * estimate.devices,
        "mfu": speed.mfu,
        "causal_mfu": speed.causal_mfu,
        "step_seconds": speed.step_seconds,
        "step_seconds_low": seconds and seconds.low,
        "step_seconds_high": seconds and seconds.high,
        "device_bytes": memory.device_bytes,
        "device_bytes_low": size and size.low,
        "device_bytes_high": size and size.high,
        "capacity_bytes": memory.capacity_bytes,
        "fit_probability": memory.fit_probability,
        "fitted_to": estimate.provenance.calibration,
        "without_effect": "; ".join(estimate.provenance.without_effect) or None,
    }
    return {name: cell for name, cell in cells.items() if cell is not None}


def _listed(value: Any) -> str:
    return ",".join(map(str, _several(value)))


def check_workers(workers: int | None, scheduler: str | None) -> None:
    """Refuse what names no workers. Raises InputError or UnsupportedError."""
    if workers is not None:
        check_count("workers", workers, 4096)
    if scheduler is None:
        return
    if workers is not None:
        raise InputError("workers and scheduler exclude each other: give one")
    if not re.fullmatch(r"(?:tcp|tls)://.+:\d+|.+\.json", scheduler):
        raise InputError(f"scheduler '{scheduler}': write tcp://HOST:PORT, tls://HOST:PORT or a scheduler file .json")
    if scheduler.endswith(".json") and not Path(scheduler).is_file():
        raise InputError(f"scheduler {scheduler}: no such file; `dask scheduler --scheduler-file FILE` writes it")
    try:
        import distributed  # noqa: F401, PLC0415  only who names a scheduler needs it
    except ImportError as error:
        raise UnsupportedError(
            "scheduler: Dask's distributed is not installed: pip install '.[sweep]' in a checkout, else pip install "
            "distributed"
        ) from error


@contextmanager
def executor_of(workers: int | None, scheduler: str | None) -> Iterator[Executor | None]:
    """The executor of a Dask scheduler, else a pool of processes, one for each core by default; None for one alone."""
    count = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if scheduler is not None:
        with _dask(scheduler) as executor:
            yield executor
    elif count == 1:
        yield None
    else:
        with _pool(count) as pool:
            yield pool


@contextmanager
def _pool(count: int) -> Iterator[Executor]:
    """A pool whose processes keep to a core each, and do not outlive this one."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    threads = {name: "1" for name in names if name not in os.environ}
    others = set(active_children())
    os.environ.update(threads)
    try:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_follow_parent) as pool:
            try:
                yield pool
            except BaseException:
                for process in set(active_children()) - others:
                    process.kill()
                raise
    finally:
        for name in threads:
            del os.environ[name]


def _follow_parent() -> None:
    """End with the process that started this one, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and ends the pool
    parent = parent_process()

    def watch() -> None:
        connection.wait([parent.sentinel] if parent is not None else [])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _dask(scheduler: str) -> Iterator[Executor]:
    """The executor of a running scheduler, on the workers that it has at the time."""
    import distributed  # noqa: PLC0415  only who names a scheduler needs it

    where: dict[str, Any] = {"scheduler_file": scheduler} if scheduler.endswith(".json") else {"address": scheduler}
    try:
        client = distributed.Client(**where, timeout=WAIT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise UnsupportedError(f"scheduler {scheduler}: {str(error) or 'does not answer'}") from error
    try:
        try:
            client.wait_for_workers(1, timeout=WAIT_SECONDS)
        except TimeoutError as error:
            raise UnsupportedError(f"scheduler {scheduler}: no worker came in {WAIT_SECONDS:.0f} s") from error
        with client.get_executor(pure=False) as executor:
            yield executor
    finally:
        with suppress(Exception):
            client.close(timeout=5)
