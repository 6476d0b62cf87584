"""Calibration files: the YAML that a fit writes and an estimate reads, with a check of every value.

`calibration.own` fits what is written; `calibration.apply` moves estimates by what is read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simulator.errors import InputError
from simulator.evidence.calibration.ranges import CalibratedRange, RowsCoverage
from simulator.files import data_folder
from simulator.question.arrays import Matrix
from simulator.question.coefficients import CoefficientKind, Coefficients, Prior, priors, replaced
from simulator.question.frameworks.stacks import stack_of_file
from simulator.question.specs.documents import read_yaml
from simulator.question.vocabulary import StackName

KINDS: tuple[CoefficientKind, ...] = ("memory", "time")
OTHER_FAMILY = "other"
"""Name of the calibration for device families without rows."""
_MOST_NAMED = 3
RETIRED = frozenset({"ring_slowdown"})
"""Coefficients of earlier formulas: a file that has one is refused, for its others mean something else too."""
MOST_NOISE = 1.0
"""Largest relative scatter that a file may hold."""
MOST_SIZE = 10.0
"""Largest size of a range's contribution that a file may hold."""
MOST_VARIANCE = 100.0
"""Largest variance that a file may hold, in squares of the width of the coefficient's bounds."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedPart:
    """Coefficients of one kind as stored: fitted, or known by how the hardware works."""

    values: Mapping[str, float]
    covariance: Matrix
    """Covariance in the order of `values`; all zero where they are known."""
    noise: float
    """Relative scatter of the rows used."""
    rows_used: tuple[str, ...]
    rows_left_out: Mapping[str, float]
    """Relative error of each row left out."""
    decided_by: Mapping[str, tuple[str, ...]]
    """Rows that decide most of each coefficient."""
    noise_by: Mapping[str, float] = field(default_factory=dict)
    """Relative scatter by sort: `dense` and `moe` models, or kinds of memory figure; may be empty."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Sizes of a range's contributions; of coefficients and scatter a missing one is 1, of others 0."""
    coverage: RowsCoverage | None = None
    """Coverage of the rows; None for files without it."""
    known: str = ""
    """Why the values need no rows, in one sentence; empty for fitted ones."""

    @property
    def names(self) -> tuple[str, ...]:
        """Coefficient names in the covariance's order."""
        return tuple(self.values)

    @property
    def vector(self) -> Matrix:
        """Values in the covariance's order."""
        return np.array(list(self.values.values()), dtype=np.float64)


class Calibration(NamedTuple):
    """Coefficients of one hardware family or cluster, with the range of its rows."""

    family: str
    """Hardware family the rows were measured on."""
    tool_version: str
    tables: tuple[str, ...]
    memory: FittedPart | None
    time: FittedPart | None
    range: CalibratedRange
    stack: StackName | None = None
    """Named stack that all of its rows ran; an estimate on the family assumes it."""

    @property
    def name(self) -> str:
        """Name in every estimate's provenance."""
        many = len(self.tables) > _MOST_NAMED
        return f"{self.family} ({f'{len(self.tables)} sources' if many else ', '.join(self.tables) or 'known'})"

    def part(self, kind: CoefficientKind) -> FittedPart | None:
        """Return the coefficients of one kind."""
        return self.memory if kind == "memory" else self.time

    def coefficients(self, base: Coefficients | None = None) -> Coefficients:
        """Return the coefficient set that formulas take; coefficients that were not fitted come from `base`."""
        result = base or Coefficients()
        for kind in KINDS:
            if (part := self.part(kind)) is not None:
                result = replaced(result, kind, part.names, part.vector)
        return dataclasses.replace(result, name=self.name)


def calibration_text(calibration: Calibration) -> str:
    """Return the text of a calibration's file."""
    document = {
        "family": calibration.family,
        "tool_version": calibration.tool_version,
        "tables": list(calibration.tables),
        **({} if calibration.stack is None else {"stack": calibration.stack}),
        "range": calibration.range.as_document(),
    }
    for kind in KINDS:
        if (part := calibration.part(kind)) is not None:
            document[kind] = _part_document(kind, part)
    known = all(part is None or part.known for part in (calibration.memory, calibration.time))
    fitted = "known without measured runs" if known else "fitted by `simulate calibrate`"
    head = (
        f"# Coefficients of family {calibration.family}, {fitted}.\n"
        "# docs/calibration.md explains each.\n"
        "# Edit a value to try it; fit again to replace the file.\n"
    )
    import yaml  # noqa: PLC0415  start-up time

    return head + yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True)


def _part_document(kind: CoefficientKind, part: FittedPart) -> dict[str, Any]:
    known = priors(kind)
    if part.known:
        named = {
            name: {"value": _rounded(value), "unit": known[name].unit, "about": known[name].about}
            for name, value in part.values.items()
        }
        return {"known": part.known, "noise": _rounded(part.noise), "coefficients": named}
    # Of the rounded covariance, so that a file read and written again is the same.
    errors = [math.sqrt(_rounded(float(variance))) for variance in np.diag(part.covariance)]
    coefficients = {
        name: {
            "value": _rounded(value),
            "standard_error": _rounded(error),
            "unit": known[name].unit,
            "about": known[name].about,
            "decided_by": list(part.decided_by.get(name, ())),
        }
        for (name, value), error in zip(part.values.items(), errors, strict=True)
    }
    by_sort = {"noise_by": {sort: _rounded(noise) for sort, noise in part.noise_by.items()}} if part.noise_by else {}
    return {
        "noise": _rounded(part.noise),
        **by_sort,
        **({"sizes": {name: _rounded(size) for name, size in part.sizes.items()}} if part.sizes else {}),
        **({} if part.coverage is None else {"coverage": part.coverage.as_document()}),
        "coefficients": coefficients,
        "covariance_order": list(part.names),
        "covariance": [[_rounded(float(x)) for x in row] for row in part.covariance],
        "rows_used": list(part.rows_used),
        "rows_left_out": {key: _rounded(value) for key, value in part.rows_left_out.items()},
    }


def _rounded(value: float) -> float:
    """Return a value with eight significant digits: files do not differ in the last bit of a fit."""
    return float(f"{value:.8g}")


def read_calibration(path: Path) -> Calibration:
    """Read a calibration file. Raises InputError naming the file and the key."""
    document = read_yaml(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: a calibration is a mapping with the keys family, tables, range, memory, time")
    try:
        return Calibration(
            family=str(document["family"]),
            tool_version=str(document["tool_version"]),
            tables=tuple(str(t) for t in document["tables"]),
            memory=_read_part(path, "memory", document.get("memory")),
            time=_read_part(path, "time", document.get("time")),
            range=CalibratedRange.from_document(document["range"]),
            stack=stack_of_file(document.get("stack")),
        )
    except KeyError as error:
        raise InputError(f"{path}: not a calibration file: no {error}") from error
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise InputError(f"{path}: not a calibration file: {error}") from error


def _read_part(path: Path, kind: CoefficientKind, document: Any) -> FittedPart | None:
    if document is None:
        return None
    reason = str(document.get("known") or "")
    entries = document["coefficients"]
    order = list(map(str, entries if reason else document["covariance_order"]))
    if sorted(order) != sorted(map(str, entries)):
        raise InputError(f"{path}: {kind}.covariance_order: must name the coefficients, each once")
    values = {
        name: _read_value(f"{path}: {kind}.coefficients", kind, entries, name, known=bool(reason)) for name in order
    }
    if not values:
        raise InputError(f"{path}: {kind}.coefficients: at least one is needed")
    noise = float(document["noise"])
    noise_by = {str(sort): float(value) for sort, value in (document.get("noise_by") or {}).items()}
    for name, value in {"noise": noise, **{f"noise_by.{sort}": value for sort, value in noise_by.items()}}.items():
        if not 0.0 < value <= MOST_NOISE:
            raise InputError(f"{path}: {kind}.{name}: {value:g} is not above 0 and at most {MOST_NOISE:g}")
    if reason:
        return FittedPart(values, np.zeros((len(values), len(values))), noise, (), {}, {}, known=reason)
    sizes = {str(name): float(size) for name, size in (document.get("sizes") or {}).items()}
    for name, size in sizes.items():
        if not 0.0 <= size <= MOST_SIZE:
            raise InputError(f"{path}: {kind}.sizes.{name}: {size:g} is not from 0 to {MOST_SIZE:g}")
    covered = document.get("coverage")
    covariance = np.array(document["covariance"], dtype=np.float64)
    _check_covariance(f"{path}: {kind}.covariance", covariance, [priors(kind)[name] for name in values])
    return FittedPart(
        values=values,
        covariance=covariance,
        noise=noise,
        rows_used=tuple(str(k) for k in document["rows_used"]),
        rows_left_out={str(k): float(v) for k, v in document["rows_left_out"].items()},
        decided_by={
            str(name): tuple(str(k) for k in entry.get("decided_by", ()))
            for name, entry in document["coefficients"].items()
        },
        noise_by=noise_by,
        sizes=sizes,
        coverage=None if covered is None else RowsCoverage.from_document(covered),
    )


def _read_value(where: str, kind: CoefficientKind, entries: Any, name: str, *, known: bool) -> float:
    """Return a coefficient's value; a `known` one may be 0, whatever the bounds of a fit. Raises InputError."""
    prior = priors(kind).get(name)
    if name in RETIRED:
        raise InputError(f"{where}.{name}: the file is of earlier formulas; fit it again with `simulate calibrate`")
    if prior is None:
        raise InputError(f"{where}.{name}: unknown coefficient; allowed: {', '.join(priors(kind))}")
    value, low = float(entries[name]["value"]), 0.0 if known else prior.low
    if not (math.isfinite(value) and low <= value <= prior.high):
        raise InputError(f"{where}.{name}: {value:g} is outside {low:g} to {prior.high:g}")
    return value


def _check_covariance(where: str, covariance: Matrix, known: Sequence[Prior]) -> None:
    """Raise InputError for a matrix that is no covariance of coefficients with these bounds."""
    count = len(known)
    if covariance.shape != (count, count) or not np.isfinite(covariance).all():
        raise InputError(f"{where}: must be {count} x {count} finite numbers")
    # In units of the bounds' width, so that no figure over- or underflows.
    widths = np.array([prior.high - prior.low for prior in known])
    scaled = covariance / widths[:, None] / widths[None, :]
    if not np.isfinite(scaled).all() or np.abs(scaled).max() > MOST_VARIANCE:
        raise InputError(f"{where}: a standard error is beyond ten times the width of the bounds")
    if not np.allclose(scaled, scaled.T) or np.linalg.eigvalsh(scaled).min() < -1e-6 * np.abs(scaled).max():
        raise InputError(f"{where}: must be symmetric and positive")


def shipped_names() -> tuple[str, ...]:
    """Return the hardware families and clusters for which a calibration ships."""
    return tuple(sorted(path.stem for path in data_folder("calibration").glob("*.yaml")))


@lru_cache(maxsize=32)
def shipped_calibration(name: str) -> Calibration | None:
    """Return the calibration shipped for a hardware family, or for a cluster by its spec's name; None without one."""
    path = data_folder("calibration") / f"{name}.yaml"
    return read_calibration(path) if path.is_file() else None
