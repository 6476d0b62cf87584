"""Rows of measured runs: one field per column, with the source's figures and annotations; reading of their tables."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from simulator.errors import InputError, did_you_mean
from simulator.files import data_folder, write_file
from simulator.question.frameworks.stacks import current_switches
from simulator.question.scenario.inputs import WORKLOAD
from simulator.question.scenario.layout import FIELDS
from simulator.question.specs.documents import read_limited
from simulator.question.units import GIB, MIB
from simulator.question.vocabulary import (
    FrameworkName,
    NamedRecomputeMethod,
    Offload,
    Precision,
    RecomputeMode,
    RecomputeModule,
    ScheduleName,
    StackName,
)
from simulator.records import Record

RunOutcome = Literal["ok", "oom", "error"]
MemoryKind = Literal["allocated", "reserved", "device", "unstated"]
MemoryRank = Literal["fullest", "last", "mean"]
RowStatus = Literal[
    "consistent",
    "assumed_layout",
    "borrowed_memory",
    "memory_only",
    "relabelled",
    "inactive_recompute",
    "unexplained",
    "starved",
    "failed",
    "no_spec",
    "duplicate",
    "unpriced",
]
"""How far a row can be trusted; docs/measure.md says what each word means, and which figures of such a row count."""
_MEMORY_COUNTS: Final = frozenset({"consistent", "assumed_layout", "memory_only"})
_SPEED_COUNTS: Final = frozenset({"consistent", "assumed_layout", "borrowed_memory", "unexplained"})
_ASKS_NOTHING: Final = frozenset({"failed", "no_spec", "duplicate", "unpriced"})


class StepSpread(Record, kw_only=True):
    """Spread of the steps behind a median, in seconds."""

    samples: int
    """Steps the median was taken over, a count."""
    minimum: float
    """Shortest step, in seconds."""
    maximum: float
    """Longest step, in seconds."""
    interquartile: float
    """Distance of the upper from the lower quartile, in seconds."""


class MeasuredRow(Record, kw_only=True):
    """Measured run. Each field is a column of the tables in `calibration/measured`; None and empty stand for blank."""

    table: str = ""
    """Short name of the table the row belongs to; with `row` it names the run."""
    row: int = 1
    """Number of the row in its source's table, from 1."""
    source: str = ""
    """Document or public page the row comes from."""
    source_ref: str = ""
    """Place within the source: section, file, case."""
    model_as_stated: str = ""
    """The model in the source's words."""
    hardware_as_stated: str = ""
    """The hardware in the source's words."""
    model: str = ""
    """Name or path of the model spec; blank when no spec has the shape."""
    num_layers: int | None = None
    """Decoder layers when the model was truncated, a count; blank for all its layers."""
    hardware: str
    """Name or path of the hardware spec."""
    framework: FrameworkName = "megatron"
    """Framework profile the run is priced with."""
    options: tuple[tuple[str, str], ...] = ()
    """Switches that differ from those of the stack, `NAME=VALUE` joined by `;`."""
    stack: StackName | None = None
    """Named stack of the run; blank for that of the hardware's spec, else the framework's own defaults."""
    devices: int
    """Devices of the run as stated, a count."""
    precision: Precision = "bf16"
    """Compute type of the matrix products."""
    seq_length: int
    """Tokens per sequence, a count."""
    micro_batch_size: int
    """Sequences per micro batch on one replica, a count."""
    global_batch_size: int
    """Sequences per optimizer step over all replicas, a count."""
    tensor_parallel: int = 1
    """Ranks that share every weight matrix, a count."""
    pipeline_parallel: int = 1
    """Pipeline ranks, a count."""
    context_parallel: int = 1
    """Ranks that share one sequence, a count."""
    expert_parallel: int = 1
    """Ranks over which routed experts are spread, a count."""
    expert_tensor_parallel: int | None = None
    """Ranks that share every routed expert, a count; blank for 1."""
    virtual_stages: int | None = None
    """Model chunks per pipeline rank, a count, where the source states chunks; blank for none."""
    layers_per_virtual_stage: int | None = None
    """Layers per model chunk, a count, where the source states that instead; blank for none."""
    schedule: ScheduleName = "1f1b"
    """Order of the passes of a pipeline, in the simulator's words."""
    stage_layers: tuple[int, ...] = ()
    """Layers on each pipeline rank, joined by `|`, where the source states an uneven cut."""
    chunk_layers: tuple[int, ...] = ()
    """Layers of every model chunk in the order of the layers, joined by `|`, where the source states uneven chunks."""
    zero_stage: int | None = None
    """What is sharded over data-parallel ranks, 0 to 3; blank for 1, the optimizer state."""
    sequence_parallel: bool | None = None
    """Whether the sequence is split over the tensor-parallel group; blank for yes when that has several ranks."""
    recompute: RecomputeMode = "none"
    """What the backward pass computes again, in the simulator's words."""
    recompute_modules: tuple[RecomputeModule, ...] = ()
    """For selective recompute: parts of a layer, joined by `|`; blank for `core_attn`."""
    recompute_method: NamedRecomputeMethod | None = None
    """For full recompute: every layer in units, or the first layers of each chunk; blank for `uniform`."""
    recompute_layers: int | None = None
    """For full recompute: layers per unit or per chunk, a count; blank for 1."""
    offload: Offload = "none"
    """What is kept in host memory between uses."""
    lora_rank: int | None = None
    """Rank of the trained adapters, a count; blank when all weights are trained."""
    outcome: RunOutcome = "ok"
    """`ok`: it ran; `oom`: memory ran out; `error`: it ended for another reason."""
    error: str = ""
    """Error text of a run that did not end well, verbatim on one line."""
    tflops_per_device: float | None = None
    """Model FLOPs per second and device, attention counted in full, in TFLOP/s."""
    stated_tflops_per_device: float | None = None
    """TFLOP/s per device as the source counts them, where that is another way; never compared."""
    tokens_per_second_per_device: float | None = None
    """Tokens per second and device."""
    step_time_ms: float | None = None
    """Time of one optimizer step in milliseconds, where the source gives that unit."""
    step_time_s: float | None = None
    """Time of one optimizer step in seconds, where the source gives that unit."""
    step_samples: int | None = None
    """Steps the step time is the median of, a count; blank where the source gives one figure."""
    step_min_s: float | None = None
    """Shortest of those steps, in seconds."""
    step_max_s: float | None = None
    """Longest of those steps, in seconds."""
    step_iqr_s: float | None = None
    """Distance between the quartiles of those steps, in seconds."""
    memory_mib: float | None = None
    """Memory of the fullest device in MiB, where the source gives that unit."""
    memory_gib: float | None = None
    """Memory of the fullest device in GiB, where the source gives that unit."""
    memory_reserved_mib: float | None = None
    """Most memory the framework's allocator held from the driver, in MiB."""
    memory_reserved_gib: float | None = None
    """Most memory the framework's allocator held from the driver, in GiB."""
    memory_kind: MemoryKind | None = None
    """What `memory_*` is: `allocated` to tensors at the peak, `reserved` by the allocator, what the `device` tool
    shows, or `unstated`."""
    memory_rank: MemoryRank | None = None
    """Pipeline rank the memory is of; blank for the fullest."""
    source_notes: str = ""
    """Other notes of the source's table, verbatim."""
    layers_per_virtual_stage_from_script: int | None = None
    """Annotation: layers per model chunk that the run's script sets where the table leaves it blank, a count."""
    devices_from_figures: int | None = None
    """Annotation: devices that the row's own speed and time imply, a count, where they differ from `devices`."""
    status: RowStatus = "consistent"
    """Annotation: how far the row can be trusted."""
    evidence: str = ""
    """Annotation: one sentence with the reason for the annotations."""
    organisation: str = ""
    """Annotation: who ran it; blank for whoever the table is named after."""
    options_source: str = ""
    """Annotation: where the switches in `options` are documented; blank where they are a reading."""
    filled: tuple[str, ...] = ()
    """Annotation: columns that the source leaves blank and a reading fills, joined by `|`."""
    tuned: bool | None = None
    """Annotation: whether the source publishes the row, or the fastest of rows like it, as tuned for speed."""

    def __post_init__(self) -> None:
        """Raise InputError, naming row and column, for a row that contradicts itself."""
        problem = _problem(self)
        if problem:
            raise InputError(f"{self.key}: {problem}")

    @property
    def key(self) -> str:
        """Name of the run: table and row."""
        return f"{self.table}:{self.row}"

    @property
    def run_devices(self) -> int:
        """Devices of the run, a count: those that its figures imply if annotated, else the stated ones."""
        return self.devices_from_figures or self.devices

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step, a count."""
        return self.seq_length * self.global_batch_size

    @property
    def step_seconds(self) -> float | None:
        """Time of one optimizer step in seconds as measured; None when the source gives none."""
        return self.step_time_ms / 1000 if self.step_time_ms is not None else self.step_time_s

    @property
    def step_time_spread(self) -> StepSpread | None:
        """Spread of the steps behind the step time; None when the source gives one figure."""
        if self.step_samples is None or self.step_min_s is None or self.step_max_s is None:
            return None
        return StepSpread(
            samples=self.step_samples,
            minimum=self.step_min_s,
            maximum=self.step_max_s,
            interquartile=self.step_iqr_s or 0.0,
        )

    @property
    def memory_bytes(self) -> float | None:
        """Memory of the fullest device in bytes; None when the source gives none."""
        return _bytes(self.memory_mib, self.memory_gib)

    @property
    def reserved_bytes(self) -> float | None:
        """Most memory the allocator held, in bytes; None when the source gives none."""
        return _bytes(self.memory_reserved_mib, self.memory_reserved_gib)

    @property
    def asks(self) -> bool:
        """Whether the row is a question that can be priced."""
        return bool(self.model) and self.status not in _ASKS_NOTHING

    @property
    def compares_with(self) -> Literal["allocated", "reserved", "device"] | None:
        """Predicted figure the memory compares with; an unstated kind is read as the device's. None without memory."""
        if self.memory_bytes is None:
            return None
        if self.memory_kind is None or self.memory_kind == "unstated":
            return "device"
        return self.memory_kind

    @property
    def memory_counts(self) -> bool:
        """Whether the memory figure is a sample of its `memory_kind`."""
        return self.outcome == "ok" and self.memory_bytes is not None and self.status in _MEMORY_COUNTS

    @property
    def speed_counts(self) -> bool:
        """Whether the speed is a sample of the stated layout."""
        return self.outcome == "ok" and _has_speed(self) and self.status in _SPEED_COUNTS


WORKLOAD_COLUMNS: Final = tuple(field.name for field in WORKLOAD if field.name in MeasuredRow.__dataclass_fields__)
"""Columns that are fields of the workload."""
LAYOUT_COLUMNS: Final = tuple(field.name for field in FIELDS if field.name in MeasuredRow.__dataclass_fields__)
"""Columns that are fields of the layout."""


def _bytes(mib: float | None, gib: float | None) -> float | None:
    if mib is not None:
        return mib * MIB
    return None if gib is None else gib * GIB


_ONE_OF: Final = (
    ("step_time_ms", "step_time_s"),
    ("memory_mib", "memory_gib"),
    ("memory_reserved_mib", "memory_reserved_gib"),
    ("virtual_stages", "layers_per_virtual_stage"),
)


def _problem(row: MeasuredRow) -> str:
    """Return how the row contradicts itself, or an empty text."""
    for first, second in _ONE_OF:
        if getattr(row, first) is not None and getattr(row, second) is not None:
            return f"{first} and {second} are both given; leave one blank"
    spread = (row.step_min_s, row.step_max_s, row.step_iqr_s)
    stages, pipeline = len(row.stage_layers), row.pipeline_parallel
    chunks = len(row.chunk_layers)
    checks = (
        (
            row.memory_bytes is None and row.memory_kind is not None,
            "memory_kind must be given with memory_mib or memory_gib only",
        ),
        (stages not in (0, pipeline), f"stage_layers has {stages} stages; pipeline_parallel is {pipeline}"),
        (chunks % pipeline != 0, f"chunk_layers has {chunks} chunks; pipeline_parallel is {pipeline}"),
        (row.outcome == "ok" and row.error != "", "error must be blank when outcome is ok"),
        (
            row.outcome == "ok" and row.memory_bytes is None and not (_has_speed(row) or row.stated_tflops_per_device),
            "outcome ok needs a speed, a step time or a memory figure",
        ),
        (
            len({value is None for value in (row.step_samples, *spread)}) > 1,
            "step_samples must be given with step_min_s, step_max_s and step_iqr_s",
        ),
    )
    return next((text for wrong, text in checks if wrong), "")


def _has_speed(row: MeasuredRow) -> bool:
    figures = (row.tflops_per_device, row.tokens_per_second_per_device, row.step_seconds)
    return any(figure is not None for figure in figures)


COLUMNS: Final = tuple(field.name for field in dataclasses.fields(MeasuredRow))
"""Header of every table, in order."""
STAND_IN: Final = "taken_from"
"""Column of files, joined by `|`, that fill a row's blank cells: a log, a recipe, a saved estimate."""
StandIn = Callable[[Sequence[Path], Mapping[str, Any]], Mapping[str, Any]]
"""Function from files and a row's own values to the other columns, as the files state them."""
Reader = Callable[[str, str, str], Any]
"""Function that reads a cell from its place, column and text. Raises InputError."""

_MAXIMUM_BYTES: Final = 16 * MIB
_HIGHEST_COUNT: Final = 2**31
_WHOLE: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", re.ASCII)
_LOWEST: Final = {"zero_stage": 0, "chunk_layers": 0}
_HIGHEST: Final = {"zero_stage": 3}
_ZERO_ALLOWED: Final = frozenset({"step_iqr_s"})
_REQUIRED: Final = frozenset(f.name for f in dataclasses.fields(MeasuredRow) if f.default is dataclasses.MISSING)


def shipped_tables() -> tuple[Path, ...]:
    """Return the shipped tables by name: those in the package (`_data`), or beside it in a checkout."""
    return tuple(sorted((data_folder("calibration") / "measured").glob("*.csv")))


def public_tables() -> tuple[Path, ...]:
    """Return the tables of public runs of many organisations, in order of name."""
    return tuple(sorted((data_folder("calibration") / "measured" / "public").glob("*.csv")))


def read_rows(path: Path, stand_in: StandIn | None = None) -> tuple[MeasuredRow, ...]:
    """Return the rows of a table; blank or missing columns have their defaults, `table` and `row` from the file.

    Models, hardware and stand-ins named by a file beside the table are found there; `stand_in` reads the latter.
    Raises InputError with all problems of the file, each with its line and column.
    """
    reader = csv.reader(io.StringIO(read_limited(path, _MAXIMUM_BYTES), newline=""), strict=True)
    rows: list[MeasuredRow] = []
    lines: dict[str, int] = {}
    problems: list[str] = []
    try:
        header = next(reader, [])
        problems += _header_problems(f"{path}:1", header)
        known = [name for name in header if name in (*COLUMNS, STAND_IN)]
        for cells in reader:
            if not cells or (len(cells) == 1 and not cells[0].strip()):
                continue
            where = f"{path}:{reader.line_num}"
            if len(cells) != len(header):
                problems.append(f"{where}: {len(cells)} cells; the header has {len(header)}")
                continue
            texts = {name: text for name, text in zip(header, cells, strict=True) if name in known}
            filled = {"table": path.stem, "row": str(len(lines) + 1)}
            stand_ins = texts.pop(STAND_IN, "")
            filled |= {name: text for name, text in texts.items() if text or (name in _REQUIRED and not stand_ins)}
            files = [path.parent / name for name in stand_ins.split("|") if name]
            row = _row(where, filled, path.parent, problems, (files, stand_in) if files else None)
            if row is None:
                continue
            if row.key in lines:
                problems.append(f"{where}: {row.key} stands in line {lines[row.key]} already; row must differ")
            lines[row.key] = reader.line_num
            rows.append(row)
    except csv.Error as error:
        problems.append(f"{path}:{reader.line_num}: not valid CSV: {error}")
    if problems:
        first, *others = dict.fromkeys(problems)
        raise InputError("; ".join([first, *(text.removeprefix(f"{path}:") for text in others)]))
    return tuple(rows)


def rows_text(rows: Iterable[MeasuredRow]) -> str:
    """Return the table of some rows as CSV."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_cell(getattr(row, name)) for name in COLUMNS])
    return stream.getvalue()


def write_rows(path: Path, rows: Iterable[MeasuredRow]) -> None:
    """Write a table that `read_rows` gives back equal. Raises InputError when the file cannot be written."""
    write_file(path, rows_text(rows))


def _header_problems(where: str, header: Sequence[str]) -> Iterator[str]:
    """Yield the problems of a header, one sentence each."""
    if len(header) == 1 and (mark := next((mark for mark in (";", "\t") if mark in header[0]), "")):
        yield f"{where}: columns are separated by commas here, not by {'tabs' if mark != ';' else repr(mark)}"
        return
    for name in dict.fromkeys(header):
        if name not in (*COLUMNS, STAND_IN):
            yield f"{where}: unknown column '{name[:60]}'{did_you_mean(name, COLUMNS)}"
        elif header.count(name) > 1:
            yield f"{where}: column '{name}' stands twice"
    missing = [] if STAND_IN in header else [name for name in sorted(_REQUIRED) if name not in header]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        yield f"{where}: missing column{'s' if missing[1:] else ''} {names}; `simulate calibrate --template` shows all"


def read_cells(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return columns read from texts by name. Raises InputError naming the first unknown or malformed one."""
    for name in texts:
        if name not in COLUMNS:
            near = did_you_mean(name, COLUMNS) or "; `simulate calibrate --template` lists them"
            raise InputError(f"--set {name[:60]}: no such column{near}")
    return {name: _READERS[name](f"--set {name}", name, text) for name, text in texts.items()}


def _row(
    where: str,
    texts: Mapping[str, str],
    folder: Path,
    problems: list[str],
    stand_ins: tuple[Sequence[Path], StandIn | None] | None = None,
) -> MeasuredRow | None:
    """Return the row of some cells; None where cells are wrong, with their problems added to `problems`."""
    values: dict[str, Any] = {}
    blanks = [f"{where}: column '{name}' must not be blank" for name, text in texts.items() if not text]
    for name, text in texts.items():
        if not text:
            continue
        try:
            values[name] = _READERS[name](f"{where}: column '{name}'", name, text)
        except InputError as error:
            blanks.append(str(error))
    if not blanks and (stand_ins or set(texts) >= _REQUIRED):
        values |= {name: _beside(folder, values[name]) for name in ("model", "hardware") if name in values}
        try:
            if stand_ins:
                values = _completed(values, *stand_ins)
            return MeasuredRow(**values)
        except InputError as error:
            blanks.append(f"{where}: {error}")
    problems += blanks
    return None


def _completed(values: Mapping[str, Any], files: Sequence[Path], read: StandIn | None) -> dict[str, Any]:
    """Return the cells completed by their stand-ins. Raises InputError with all columns that neither states."""
    if read is None:
        raise InputError(f"column '{STAND_IN}': only the command line reads other files")
    completed = dict(values) | dict(read(files, values))
    if missing := sorted(name for name in _REQUIRED if completed.get(name) is None):
        raise InputError(f"neither the row nor {', '.join(map(str, files))} says {', '.join(missing)}")
    names = ", ".join(file.name for file in files)
    completed["evidence"] = " ".join(
        filter(None, [completed.get("evidence", ""), f"What the row leaves blank is of {names}."])
    )
    return completed


def _beside(folder: Path, name: str) -> str:
    """Return a spec's file beside the table as a path; a shipped name or another path as it is."""
    file = folder / name
    return str(file) if name.endswith((".yaml", ".yml", ".json")) and file.is_file() else name


def _read_text(where: str, _name: str, text: str) -> str:
    if not text.isprintable():
        raise InputError(f"{where}: text must be one line of printable characters")
    return text


def _read_whole(where: str, name: str, text: str) -> int:
    low, high = _LOWEST.get(name, 1), _HIGHEST.get(name, _HIGHEST_COUNT)
    if not _WHOLE.fullmatch(text) or not low <= int(text) <= high:
        raise InputError(f"{where}: '{text[:40]}' must be a whole number from {low} to {high}")
    return int(text)


def _read_number(where: str, name: str, text: str) -> float:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    low = 0.0 if name in _ZERO_ALLOWED else math.ulp(0.0)
    if not low <= value < math.inf:
        raise InputError(f"{where}: '{text[:40]}' must be a number above zero")
    return value


def _read_flag(where: str, _name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise InputError(f"{where}: '{text[:40]}' must be true or false")
    return text == "true"


def _read_options(where: str, _name: str, text: str) -> tuple[tuple[str, str], ...]:
    options: dict[str, str] = {}
    for part in text.split(";"):
        name, equals, value = part.partition("=")
        if not (name and equals and value) or name in options:
            raise InputError(f"{where}: '{part[:60]}' must be NAME=VALUE, each name once, joined by ';'")
        options[name] = value
    return tuple(current_switches(options).items())


def _read_word(words: tuple[str, ...], where: str, _name: str, text: str) -> str:
    if text not in words:
        raise InputError(f"{where}: '{text[:40]}'{did_you_mean(text, words)}; allowed are {', '.join(words)}")
    return text


def _reader(hint: Any) -> Reader:
    """Return the reader of a column of this type."""
    plain: Mapping[Any, Reader] = {
        str: _read_text,
        int: _read_whole,
        int | None: _read_whole,
        float | None: _read_number,
        bool | None: _read_flag,
        tuple[tuple[str, str], ...]: _read_options,
    }
    if hint in plain:
        return plain[hint]
    if get_origin(hint) is tuple:
        read = _reader(get_args(hint)[0])
        return lambda where, name, text: tuple(read(where, name, part) for part in text.split("|"))
    # The remaining types are words: a Literal, or a Literal or None.
    literal = next((arm for arm in get_args(hint) if get_args(arm)), hint)
    return partial(_read_word, get_args(literal))


_READERS: Final = {name: _reader(hint) for name, hint in get_type_hints(MeasuredRow).items()}


def _cell(value: object) -> str:
    """Return the text of a value, the shortest that reads back equal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return (
            ";".join("=".join(x) for x in value) if value and isinstance(value[0], tuple) else "|".join(map(str, value))
        )
    return str(value)
