"""Every measured row that counts, predicted under the fits that matter to it; computed once for each state of the code.

The fit of all sources is made anew, time and memory in a process each, and kept in `.accuracy/` of the checkout under a
digest of everything that it depends on: the package, the specs and the measured tables. Processes that ask at the same
time wait for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from benchmarks.accuracy.coverage import pair_widths
from benchmarks.accuracy.judge import Residual, RowJudged, SourcesJudged, errors_of, judge_sources
from benchmarks.accuracy.own import OWN, OWN_FAMILY, OwnRow, own_rows
from benchmarks.accuracy.publish import unseen_part
from benchmarks.accuracy.vendors import PublishedLayout, published_layouts
from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import DOES_NOT_FIT, size
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.cluster import Sample, predict, prepared
from simulator.evidence.measurements.rows import public_tables, read_rows, shipped_tables
from simulator.question.coefficients import CoefficientKind

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".accuracy"
KINDS: Final[tuple[CoefficientKind, ...]] = ("time", "memory")
_FIT: Final = (
    *("simulator/**/*.py", "simulator/**/*.csv", "simulator/**/*.yaml", "model_specs/*.yaml", "hardware_specs/*.yaml"),
    "calibration/measured/**/*",
    *(f"benchmarks/accuracy/{name}.py" for name in ("rows", "judge", "hierarchy", "holdouts", "sizes")),
)
"""What the fit of all sources depends on."""
_SHIPPED: Final = (
    "calibration/*.yaml",
    *(f"benchmarks/accuracy/{name}.py" for name in ("own", "vendors", "order", "publish", "coverage")),
)
"""What else the judgement by what ships depends on."""
_KEPT: Final = 4
"""Results that stay in the cache."""


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """One figure of a measured run, and how far off it is predicted; errors are ln(predicted / measured)."""

    kind: str
    """`time` or `memory`."""
    key: str
    source: str
    organisation: str
    platform: str
    """Class of the device."""
    sort: str
    """`dense` or `moe`; of memory `allocated`, `reserved` or `device`."""
    framework: str
    moe: bool
    devices: int
    tensor_parallel: int
    zero_stage: int
    precision: str
    lora: bool
    tuned: bool
    """Whether the source publishes it as tuned for speed."""
    options_source: str
    """Where the switches are documented; empty where they are a reading."""
    question: str
    """Model, cluster, sequence and batch: rows that share it differ in the layout or the stack."""
    layout: str
    """Digest of layout and stack of the run."""
    measured: float
    """TFLOP/s per device, or bytes."""
    uncalibrated: float
    """With the priors."""
    shipped: float
    """With the calibration that ships for its hardware."""
    said_to_fit: bool
    """With that calibration: whether the need fits the device."""
    fitted: Residual
    known: Residual
    """With the other rows of its source."""
    source_out: Residual
    left_out: Mapping[str, Residual]
    """By what was left out, the source and organisation too."""
    beyond: bool
    """Whether without its source it lies beyond the other rows' stacks, nodes or features."""
    few: Mapping[int, Residual]
    """With three other rows of its source, by the number of the draw."""

    @property
    def organisation_out(self) -> Residual:
        """Without all sources of its organisation."""
        return self.left_out["organisation"]

    @property
    def errors(self) -> Mapping[str, float]:
        """Predicted over measured less one, by what the row was predicted with."""
        return errors_of(self.uncalibrated, self.fitted, self.known, self.left_out)

    @property
    def half_width(self) -> float:
        """Half of the 90 % range with its source left out."""
        return self.source_out.half_width


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that the reports are made of."""

    rows: tuple[JudgedRow, ...]
    pairs: tuple[tuple[float, float, float], ...]
    """Of speed, pairs of one question: measured and predicted difference, and its half-width, in the logarithm."""
    own: tuple[OwnRow, ...]
    """The user's own table, fitted as own rows are."""

    def of_kind(self, kind: CoefficientKind) -> list[JudgedRow]:
        """The rows of time, or of memory."""
        return [row for row in self.rows if row.kind == kind]


@cache
def judgement() -> Judgement:
    """Judge all rows."""
    return _cached("rows", _judgement, *_FIT, *_SHIPPED)


@cache
def fitted_sources() -> tuple[SourcesJudged, ...]:
    """The fit of all sources, of time and of memory."""
    return _cached("sources", _fitted_sources, *_FIT)


@cache
def published() -> tuple[PublishedLayout, ...]:
    """What vendors publish as tuned, and where a search puts it."""
    return _cached("published", lambda: tuple(published_layouts(samples())), *_FIT, *_SHIPPED)


_Result = TypeVar("_Result")


def _cached(name: str, compute: Callable[[], _Result], *depends_on: str) -> _Result:
    """The result for this state of some files, from the cache where it is there."""
    file = CACHE / f"{name}-{_digest(depends_on)}.pickle"
    with _locked(name):
        if not file.is_file():
            for old in sorted(CACHE.glob(f"{name}-*.pickle"), key=lambda path: path.stat().st_mtime)[: 1 - _KEPT]:
                old.unlink()
            result = compute()
            file.write_bytes(_dumped(result))
            return result
    found: _Result = _loaded(file.read_bytes())
    return found


@contextmanager
def _locked(name: str) -> Iterator[None]:
    """One process at a time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _Pickler(pickle.Pickler):
    """Writes samples as their keys: they hold the specs, which are read again."""

    def persistent_id(self, obj: object) -> str | None:
        return obj.key if isinstance(obj, Sample) else None


class _Unpickler(pickle.Unpickler):
    """Reads what the other wrote."""

    def persistent_load(self, pid: str) -> Sample:
        return _by_key()[pid]


@cache
def _by_key() -> dict[str, Sample]:
    return {sample.key: sample for sample in samples()}


def _dumped(value: object) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream).dump(value)
    return stream.getvalue()


def _loaded(data: bytes) -> Any:
    return _Unpickler(io.BytesIO(data)).load()


def _fitted_sources() -> tuple[SourcesJudged, ...]:
    with ProcessPoolExecutor(max_workers=len(KINDS)) as pool:
        return tuple(map(_loaded, pool.map(_fitted, KINDS)))


def _fitted(kind: CoefficientKind) -> bytes:
    return _dumped(judge_sources(kind, samples()))


def _judgement() -> Judgement:
    found = fitted_sources()
    parts = {one.kind: unseen_part(one, OWN_FAMILY, {OWN}) for one in found}
    rows = tuple(_judged_row(one.kind, row) for one in found for row in one.rows)
    pairs = tuple(pair for one in found for pair in pair_widths(one))
    return Judgement(rows, pairs, tuple(own_rows(parts, samples())))


@cache
def samples() -> tuple[Sample, ...]:
    """The rows of all tables that ran."""
    return prepared(row for path in (*shipped_tables(), *public_tables()) for row in read_rows(path))


def _digest(patterns: Iterable[str]) -> str:
    """Of the files that match."""
    found = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                found.update(str(path.relative_to(ROOT)).encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:24]


def _judged_row(kind: CoefficientKind, row: RowJudged) -> JudgedRow:
    sample, scenario, layout = row.sample, row.sample.scenario, row.sample.layout
    hardware = scenario.hardware
    shipped = applied(hardware.family, None, hardware.name).coefficients()
    predicted = float(predict(kind, sample, shipped, (), np.zeros((0, 1)))[0])
    measured = float(sample.figure(kind) or 0.0)
    verdict = size(Pricing(replace(scenario, coefficients=shipped), sample.block)).verdict[0]
    return JudgedRow(
        kind=kind,
        key=sample.key,
        source=row.source,
        organisation=sample.row.organisation or row.source,
        platform=row.platform,
        sort=row.sort,
        framework=scenario.framework.name,
        moe=scenario.model.is_moe,
        devices=scenario.devices,
        tensor_parallel=layout.tensor_parallel,
        zero_stage=layout.zero_stage,
        precision=scenario.precision,
        lora=scenario.lora_rank is not None,
        tuned=bool(sample.row.tuned),
        options_source=sample.row.options_source,
        question=_question(sample),
        layout=hashlib.sha256(repr((layout, scenario.framework)).encode()).hexdigest()[:16],
        measured=measured,
        uncalibrated=row.uncalibrated,
        shipped=float(np.log(predicted / measured)),
        said_to_fit=bool(verdict != DOES_NOT_FIT),
        fitted=row.fitted,
        known=row.known,
        source_out=row.source_out,
        left_out=row.left_out,
        beyond=row.beyond,
        few=row.few,
    )


def _question(sample: Sample) -> str:
    scenario = sample.scenario
    model = f"{scenario.model.name} ({scenario.model.num_hidden_layers} layers)"
    return (
        f"{sample.row.table} {model} on {scenario.devices}, {scenario.seq_length} tokens, "
        f"batch {scenario.global_batch_size}, {scenario.precision}"
    )
