"""One question of a sweep to a row: its best layout, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from simulator._version import __version__
from simulator.api import fastest
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.errors import SimulateError, UnsupportedError, short_line
from simulator.question.scenario.layout import BY_NAME, Layout, layout_object
from simulator.question.scenario.settings import LISTS
from simulator.show.answers.sweep.questions import KEYWORDS

SweepOutcome = Literal["fits", "risky", "starved", "does_not_fit", "no_layout", "refused", "failed"]
"""Recommended; fits, with less probability than asked for; too near capacity; too large; no layout keeps the rules; the
question cannot be priced; a defect of the simulator, to be reported. With the first four the row has a layout."""
OUTCOMES: tuple[SweepOutcome, ...] = get_args(SweepOutcome)
_TEXTS = frozenset({"model", "hardware", "precision", "framework", "options", "stack", "calibration", "layout"})
_LAYOUT = tuple(layout_object(Layout()))
_LISTED = frozenset(key for key in _LAYOUT if BY_NAME[key].kind in LISTS)
_FIGURES = (
    *("tokens_per_second", "mfu", "step_seconds", "step_seconds_low", "step_seconds_high"),
    *("device_bytes", "device_bytes_low", "device_bytes_high", "capacity_bytes", "fit_probability"),
)


def _kind_of(key: str) -> type:
    setting = BY_NAME[key]
    return bool if setting.kind == "flag" else int if setting.kind in ("count", "number") else str


COLUMNS: Mapping[str, type] = {
    "question": int,
    **{name: str if name in _TEXTS else int for name in KEYWORDS},
    "outcome": str,
    "reason": str,
    **{key: _kind_of(key) for key in _LAYOUT},
    **dict.fromkeys(_FIGURES, float),
    "fitted_to": str,
}
"""Every column of a row with its type; any but `question`, `model` and `outcome` may be None."""


def price_part(
    numbered: Sequence[tuple[int, Mapping[str, Any]]], min_fit_probability: float, version: str
) -> list[list[Any]]:
    """The rows of some questions, as cells in the order of `COLUMNS`.

    Raises UnsupportedError where the caller is of another version than this process.
    """
    if version != __version__:
        raise UnsupportedError(f"a worker has simulate {__version__}, the sweep {version}: install one version on both")
    rows = (_row(question, min_fit_probability) | {"question": number} for number, question in numbered)
    return [[row.get(name) for name in COLUMNS] for row in rows]


def asked(question: Mapping[str, Any]) -> dict[str, Any]:
    """The columns that repeat a question."""
    columns = dict(question)
    for name in ("options", "layout"):
        if name in columns:
            columns[name] = " ".join(f"{key}={_listed(value)}" for key, value in columns[name].items()) or None
    return columns


def _row(question: Mapping[str, Any], min_fit_probability: float) -> dict[str, Any]:
    arguments = dict(question)
    try:
        layouts = fastest(min_fit_probability=min_fit_probability, **arguments.pop("layout", {}), **arguments)
    except SimulateError as error:
        return {"outcome": "refused", "reason": str(error)}
    except Exception as error:  # noqa: BLE001  one question in a million stops no sweep
        return {"outcome": "failed", "reason": short_line(f"internal error: {type(error).__name__}: {error}")}
    estimate = layouts.recommended or layouts.nearest
    if estimate is None:
        return {"outcome": "no_layout", "reason": "no layout keeps the rules"}
    short_of = "risky" if estimate.verdict == "fits" else estimate.verdict
    return {
        "outcome": "fits" if layouts.recommended is not None else short_of,
        **_layout(estimate.layout),
        **_figures(estimate),
    }


def _layout(layout: Layout) -> dict[str, Any]:
    return {key: (_listed(cell) or None) if key in _LISTED else cell for key, cell in layout_object(layout).items()}


def _listed(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _figures(estimate: Estimate) -> dict[str, Any]:
    speed, memory = estimate.throughput, estimate.memory
    return {
        "devices": estimate.devices,  # where nodes were asked for
        "tokens_per_second": speed.tokens_per_second_per_device * estimate.devices,
        "mfu": speed.mfu,
        "step_seconds": speed.step_seconds,
        **_ends("step_seconds", speed.interval_seconds),
        "device_bytes": memory.device_bytes,
        **_ends("device_bytes", memory.interval_bytes),
        "capacity_bytes": memory.capacity_bytes,
        "fit_probability": memory.fit_probability,
        "fitted_to": estimate.provenance.calibration,
    }


def _ends(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {f"{name}_low": low, f"{name}_high": high}
