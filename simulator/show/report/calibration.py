"""Fitted coefficients as tables and JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.evidence.calibration.fit import UNFITTED, Fit
from simulator.evidence.calibration.run import FamilyFit
from simulator.evidence.calibration.store import KINDS, Calibration, FittedPart, calibration_text
from simulator.evidence.calibration.uncertainty import NORMAL_90
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, priors
from simulator.question.units import GIB
from simulator.show.report.accuracy_json import doubt_object
from simulator.show.report.as_json import dumps
from simulator.show.report.grid import Style, grid
from simulator.show.report.sections import Section, sections_text
from simulator.show.report.text import amount

_TITLES: Mapping[CoefficientKind, str] = {"memory": "Memory", "time": "Time"}


def calibration_tables(fits: Sequence[FamilyFit], style: Style) -> str:
    """Return the coefficients of the families, with what they rest on."""
    return sections_text([section for fitted in fits for section in _family(fitted)], style)


def calibration_yaml(fits: Sequence[FamilyFit]) -> str:
    """Return the calibration files, one document each."""
    return "---\n".join(calibration_text(fitted.calibration()) for fitted in fits)


def dumped(value: object) -> str:
    """Return JSON text of a report."""
    return dumps(value) + "\n"


def calibration_object(fits: Sequence[FamilyFit]) -> dict[str, Any]:
    """Return fits as plain values."""
    return {"families": [_object(fitted) for fitted in fits]}


def not_stored_lines(fitted: FamilyFit) -> list[str]:
    """Return why parts of a family are not stored, one sentence each."""
    return [reason for kind in KINDS if (reason := fitted.not_stored(kind))]


def _family(fitted: FamilyFit) -> Iterator[Section]:
    calibration = fitted.calibration()
    for kind in KINDS:
        fit = fitted.fit(kind)
        part = calibration.part(kind)
        title = f"{_TITLES[kind]}, family {fitted.family}"
        if part is not None and part.known:
            yield Section(title, (f"Not fitted: {part.known}.",))
            continue
        if part is None or fit is None:
            reason = fitted.not_stored(kind) or f"{kind} of family {fitted.family} has no rows"
            yield Section(title, (f"{reason}; an estimate takes it from the family that has most rows.",))
            continue
        rows = [[name, *_cells(kind, name, part), _decided(part, name)] for name in part.names]
        headers = ("coefficient", "value", "standard error", "90 % interval", "prior", "bounds", "decided by rows")
        yield Section(title, tuple(_rests_on(fit)), headers, rows, text_columns=(0, 6), wrapped=("decided by rows",))
    if fitted.doubts:
        yield Section(
            f"Doubtful rows, family {fitted.family}",
            headers=("row", "finding", "what is found"),
            rows=[[doubt.key, doubt.finding, doubt.says] for doubt in fitted.doubts],
            text_columns=(0, 1, 2),
            wrapped=("what is found",),
        )


def _rests_on(fit: Fit) -> Iterator[str]:
    text = f"{len(fit.keys)} rows used, scatter {100 * fit.noise:.2f} %"
    if fit.left_out:
        out = ", ".join(f"{key} ({100 * fit.residuals[key]:+.1f} %)" for key in fit.left_out)
        text += f"; left out: {out}"
    yield f"{text}."


def _cells(kind: CoefficientKind, name: str, part: FittedPart) -> list[str]:
    index = part.names.index(name)
    value, error = float(part.vector[index]), float(np.sqrt(part.covariance[index, index]))
    prior = priors(kind)[name]
    low, high = max(value - NORMAL_90 * error, prior.low), min(value + NORMAL_90 * error, prior.high)
    at = prior_value(kind, name)
    return [
        shown(value, prior.unit),
        shown(error, prior.unit),
        f"{shown(low, prior.unit)} to {shown(high, prior.unit)}",
        f"{shown(at, prior.unit)} ± {100 * prior.spread:.0f} %",
        f"{shown(prior.low, prior.unit)} to {shown(prior.high, prior.unit)}",
    ]


def prior_value(kind: CoefficientKind, name: str) -> float:
    """The prior of a coefficient."""
    return float(getattr(getattr(Coefficients(), kind), name))


def shown(value: float, unit: str) -> str:
    """Return a value in a unit that people read: GiB for bytes, ms for seconds."""
    if unit == "bytes":
        return f"{amount(value / GIB)} GiB"
    if unit.startswith("seconds"):
        return f"{amount(value * 1e3)} ms"
    return amount(value)


def _decided(part: FittedPart, name: str) -> str:
    rows = part.decided_by.get(name, ())
    return " ".join(rows) if rows else "none: the prior"


def _object(fitted: FamilyFit) -> dict[str, Any]:
    calibration = fitted.calibration()
    parts: dict[str, Any] = {}
    for kind in KINDS:
        fit, part = fitted.fit(kind), calibration.part(kind)
        if part is not None and part.known:
            parts[kind] = {"known": part.known, "noise": part.noise, "coefficients": dict(part.values)}
        elif fit is not None:
            parts[kind] = {
                "not_stored": fitted.not_stored(kind) or None,
                "noise": fit.noise,
                "rows_used": list(fit.keys),
                "rows_left_out": {key: fit.residuals[key] for key in fit.left_out},
                "coefficients": None if part is None else list(_coefficients(kind, part)),
            }
    return {
        "family": fitted.family,
        "tool_version": calibration.tool_version,
        "tables": list(calibration.tables),
        "parts": parts,
        "doubts": [doubt_object(doubt) for doubt in fitted.doubts],
    }


def _coefficients(kind: CoefficientKind, part: FittedPart) -> Iterator[dict[str, Any]]:
    known = priors(kind)
    for index, name in enumerate(part.names):
        prior = known[name]
        yield {
            "name": name,
            "value": float(part.vector[index]),
            "standard_error": float(np.sqrt(part.covariance[index, index])),
            "unit": prior.unit,
            "prior": prior_value(kind, name),
            "prior_spread": prior.spread,
            "bounds": [prior.low, prior.high],
            "about": prior.about,
            "decided_by": list(part.decided_by.get(name, ())),
        }


def meaning_table(kind: CoefficientKind) -> str:
    """Return the page's table of what each coefficient means, with prior and bounds."""
    rows = []
    for name, prior in priors(kind).items():
        at = shown(prior_value(kind, name), prior.unit)
        bounds = f"{shown(prior.low, prior.unit)} to {shown(prior.high, prior.unit)}"
        fitted = "no" if name in UNFITTED else "yes"
        rows.append([f"`{name}`", prior.about, prior.unit, f"{at} ± {100 * prior.spread:.0f} %", bounds, fitted])
    headers = ("coefficient", "meaning", "unit", "prior", "bounds", "fitted")
    return grid(headers, rows, "markdown", text_columns=(0, 1, 2, 5))


def value_table(kind: CoefficientKind, calibration: Calibration) -> str:
    """Return the page's table of one family's fitted values; empty where the kind is not fitted."""
    part = calibration.part(kind)
    if part is None:
        return ""
    rows = []
    for name in part.names:
        value, error, interval, _, _ = _cells(kind, name, part)
        rows.append([f"`{name}`", value, error, interval, _decided(part, name)])
    headers = ("coefficient", "value", "standard error", "90 % interval", "decided by rows")
    return grid(headers, rows, "markdown", text_columns=(0, 4))
