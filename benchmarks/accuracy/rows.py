"""Every measured row that counts, predicted under the fits that matter to it; computed once for each state of the code.

The fit of all sources is made anew, time and memory in a process each, and kept in `.accuracy/` of the checkout under a
digest of everything that it depends on: the package, the specs and the measured tables.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.accuracy.own import OWN, OWN_FAMILY, OwnRow, own_rows
from benchmarks.accuracy.vendors import PublishedLayout, published_layouts
from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import DOES_NOT_FIT, size
from simulator.evidence.calibration.apply import applied
from simulator.evidence.calibration.judge import Residual, RowJudged, judge_sources
from simulator.evidence.calibration.publish import unseen_part
from simulator.evidence.calibration.sample import Sample, predict, prepared
from simulator.evidence.calibration.store import FittedPart
from simulator.evidence.measurements.rows import public_tables, read_rows, shipped_tables
from simulator.question.coefficients.values import CoefficientKind

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".accuracy"
KINDS: Final[tuple[CoefficientKind, ...]] = ("time", "memory")
_DEPENDS_ON: Final = (
    *("simulator/**/*.py", "simulator/**/*.csv", "simulator/**/*.yaml", "model_specs/*.yaml", "hardware_specs/*.yaml"),
    *("calibration/*.yaml", "calibration/measured/**/*"),
    *(f"benchmarks/accuracy/{name}.py" for name in ("rows", "own", "vendors", "order")),
)
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
    organisation_out: Residual
    few: tuple[Residual, ...]
    """With three other rows of its source, for several draws."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that the reports are made of."""

    rows: tuple[JudgedRow, ...]
    published: tuple[PublishedLayout, ...]
    """What vendors publish as tuned, and where a search puts it."""
    own: tuple[OwnRow, ...]
    """The user's own table, fitted as own rows are."""

    def of_kind(self, kind: CoefficientKind) -> list[JudgedRow]:
        """The rows of time, or of memory."""
        return [row for row in self.rows if row.kind == kind]


@cache
def judgement() -> Judgement:
    """Judge all rows, from the cache where nothing has changed."""
    file = CACHE / f"{digest()}.json"
    if file.is_file():
        return _read(json.loads(file.read_text(encoding="utf-8")))
    with ProcessPoolExecutor(max_workers=len(KINDS)) as pool:
        published = pool.submit(_published)
        done = dict(zip(KINDS, pool.map(_judged, KINDS), strict=True))
        own = tuple(own_rows({kind: part for kind, (_, part) in done.items()}, samples()))
        found = Judgement(tuple(row for rows, _ in done.values() for row in rows), published.result(), own)
    CACHE.mkdir(exist_ok=True)
    for old in sorted(CACHE.glob("*.json"), key=lambda path: path.stat().st_mtime)[: 1 - _KEPT]:
        old.unlink()
    file.write_text(json.dumps(dataclasses.asdict(found)), encoding="utf-8")
    return found


@cache
def samples() -> tuple[Sample, ...]:
    """The rows of all tables that ran."""
    return prepared(row for path in (*shipped_tables(), *public_tables()) for row in read_rows(path))


def digest() -> str:
    """Of everything that the predictions depend on."""
    found = hashlib.sha256()
    for pattern in _DEPENDS_ON:
        for path in sorted(ROOT.glob(pattern)):
            if path.is_file():
                found.update(str(path.relative_to(ROOT)).encode())
                found.update(path.read_bytes())
    return found.hexdigest()[:24]


def _judged(kind: CoefficientKind) -> tuple[list[JudgedRow], FittedPart]:
    """The rows of one kind, and what all other sources say of the own table's cluster."""
    found = judge_sources(kind, samples())
    return [_judged_row(kind, row) for row in found.rows], unseen_part(found, OWN_FAMILY, {OWN})


def _published() -> tuple[PublishedLayout, ...]:
    return tuple(published_layouts(samples()))


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
        organisation_out=row.organisation_out,
        few=row.few,
    )


def _question(sample: Sample) -> str:
    scenario = sample.scenario
    model = f"{scenario.model.name} ({scenario.model.num_hidden_layers} layers)"
    return (
        f"{sample.row.table} {model} on {scenario.devices}, {scenario.seq_length} tokens, "
        f"batch {scenario.global_batch_size}, {scenario.precision}"
    )


def _read(document: dict[str, Any]) -> Judgement:
    return Judgement(
        rows=tuple(map(_row_of, document["rows"])),
        published=tuple(PublishedLayout(**one) for one in document["published"]),
        own=tuple(OwnRow(**one) for one in document["own"]),
    )


def _row_of(document: dict[str, Any]) -> JudgedRow:
    single = {name: Residual(**document[name]) for name in ("fitted", "known", "source_out", "organisation_out")}
    return JudgedRow(**document | single | {"few": tuple(Residual(**one) for one in document["few"])})
