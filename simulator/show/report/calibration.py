"""Fitted coefficients as tables, JSON and YAML. Fits nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from simulator.evidence.calibration.linear import UNFITTED
from simulator.evidence.calibration.store import KINDS, Calibration, FittedPart, calibration_text
from simulator.evidence.calibration.uncertainty import NORMAL_90
from simulator.question.coefficients import Coefficients
from simulator.question.coefficients.values import CoefficientKind, priors
from simulator.question.units import GIB
from simulator.show.report.as_json import dumps
from simulator.show.report.grid import Style
from simulator.show.report.presentation import Presentation
from simulator.show.report.sections import Section, sections_text
from simulator.show.report.text import amount

TITLES: Final[Mapping[CoefficientKind, str]] = {"memory": "Memory", "time": "Time"}


def calibration_table(calibrations: Sequence[Calibration], _presentation: Presentation, style: Style) -> str:
    """Return the coefficients of each calibration, with their sources."""
    return sections_text([section for calibration in calibrations for section in _sections(calibration)], style)


def calibration_yaml(calibrations: Sequence[Calibration], _presentation: Presentation) -> str:
    """Return the calibration files, one document each."""
    return "---\n".join(map(calibration_text, calibrations))


def calibration_json(calibrations: Sequence[Calibration], _presentation: Presentation) -> str:
    """Return calibrations as JSON."""
    families = {
        "families": [
            {
                "family": calibration.family,
                "tool_version": calibration.tool_version,
                "tables": list(calibration.tables),
                "parts": {
                    kind: _part_object(kind, part) for kind in KINDS if (part := calibration.part(kind)) is not None
                },
            }
            for calibration in calibrations
        ]
    }
    return dumps(families) + "\n"


def _sections(calibration: Calibration) -> Iterator[Section]:
    for kind in KINDS:
        part = calibration.part(kind)
        title = f"{TITLES[kind]}, family {calibration.family}"
        if part is None:
            text = f"Nothing is fitted: an estimate takes {TITLES[kind].lower()} from what ships for the hardware."
            yield Section(title, (text,))
        elif part.known:
            yield Section(title, (f"Not fitted: {part.known}.",))
        else:
            rows = [[name, *_cells(kind, name, part), _decided(part, name)] for name in part.names]
            headers = ("coefficient", "value", "standard error", "90 % interval", "prior", "bounds", "decided by")
            yield Section(title, (_rests_on(part),), headers, rows, text_columns=(0, 6), wrapped=("decided by",))


def _rests_on(part: FittedPart) -> str:
    text = f"{len(part.rows_used)} rows used, scatter {100 * part.noise:.2f} %"
    if part.rows_left_out:
        out = ", ".join(f"{key} ({100 * error:+.1f} %)" for key, error in part.rows_left_out.items())
        text += f"; left out: {out}"
    return f"{text}."


def _cells(kind: CoefficientKind, name: str, part: FittedPart) -> list[str]:
    index = part.names.index(name)
    value, error = float(part.vector[index]), float(np.sqrt(part.covariance[index, index]))
    prior = priors(kind)[name]
    low, high = max(value - NORMAL_90 * error, prior.low), min(value + NORMAL_90 * error, prior.high)
    return [
        shown(value, prior.unit),
        shown(error, prior.unit),
        f"{shown(low, prior.unit)} to {shown(high, prior.unit)}",
        *_prior_cells(kind, name),
    ]


def _prior_cells(kind: CoefficientKind, name: str) -> tuple[str, str]:
    """Return the cells of a prior with its spread, and of its bounds."""
    prior = priors(kind)[name]
    at, low, high = (shown(value, prior.unit) for value in (prior_value(kind, name), prior.low, prior.high))
    return f"{at} ± {100 * prior.spread:.0f} %", f"{low} to {high}"


def prior_value(kind: CoefficientKind, name: str) -> float:
    """Return the prior of a coefficient."""
    return float(getattr(getattr(Coefficients(), kind), name))


def shown(value: float, unit: str) -> str:
    """Return a value in a unit that people read: GiB for large bytes, ms for seconds."""
    if unit == "bytes" and (value == 0.0 or value >= _SMALL_BYTES):
        return f"{amount(value / GIB)} GiB"
    if unit.startswith("seconds"):
        return f"{amount(value * 1e3)} ms"
    return amount(value)


_SMALL_BYTES: Final = 1024.0
"""Bytes below which a coefficient is one of an element, not of a device."""


def _decided(part: FittedPart, name: str) -> str:
    rows = part.decided_by.get(name, ())
    return " ".join(rows) if rows else "none: the prior"


def _part_object(kind: CoefficientKind, part: FittedPart) -> dict[str, Any]:
    if part.known:
        return {"known": part.known, "noise": part.noise, "coefficients": dict(part.values)}
    return {
        "noise": part.noise,
        "rows_used": list(part.rows_used),
        "rows_left_out": dict(part.rows_left_out),
        "coefficients": list(_coefficients(kind, part)),
    }


def _coefficients(kind: CoefficientKind, part: FittedPart) -> Iterator[dict[str, Any]]:
    for index, name in enumerate(part.names):
        yield {
            "name": name,
            "value": float(part.vector[index]),
            "standard_error": float(np.sqrt(part.covariance[index, index])),
            **_meaning(kind, name),
            "decided_by": list(part.decided_by.get(name, ())),
        }


def _meaning(kind: CoefficientKind, name: str) -> dict[str, Any]:
    prior = priors(kind)[name]
    return {
        "unit": prior.unit,
        "prior": prior_value(kind, name),
        "prior_spread": prior.spread,
        "bounds": [prior.low, prior.high],
        "about": prior.about,
    }


def meaning_table(_answer: None, _presentation: Presentation, style: Style) -> str:
    """Return what each coefficient means, with its unit, prior and bounds, and whether shipped rows fit it."""
    sections = []
    for kind in KINDS:
        rows = [
            [name, prior.about, prior.unit, *_prior_cells(kind, name), "no" if name in UNFITTED else "yes"]
            for name, prior in priors(kind).items()
        ]
        headers = ("coefficient", "meaning", "unit", "prior", "bounds", "fitted")
        wrapped = ("meaning", "unit")
        sections.append(
            Section(f"{TITLES[kind]} coefficients", (), headers, rows, text_columns=(0, 1, 2, 5), wrapped=wrapped)
        )
    return sections_text(sections, style)


def meaning_json(_answer: None, _presentation: Presentation) -> str:
    """Return the same as JSON."""
    meanings = {
        kind: [{"name": name, **_meaning(kind, name), "fitted": name not in UNFITTED} for name in priors(kind)]
        for kind in KINDS
    }
    return dumps(meanings) + "\n"
