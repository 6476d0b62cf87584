"""Completion of a log's columns by what the user knows, or one list of what is missing. Guesses nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from simulator.errors import InputError, one_line
from simulator.evidence.measurements.row import MeasuredRow
from simulator.evidence.measurements.shapes import LoggedFields, Match, match_shape
from simulator.frameworks.logs import LogLine

NEEDED: Final = ("model", "devices", "seq_length", "micro_batch_size", "global_batch_size")
"""Columns that every question needs."""
DEGREES: Final = ("tensor_parallel", "pipeline_parallel", "zero_stage", "recompute")
"""Columns that a log without its run's configuration leaves open, and whose blank cells mean none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContext:
    """Facts of a run that its log does not state."""

    table: str
    """Name of the table its rows form."""
    hardware: str
    """Name or path of the hardware spec."""
    model: str | None = None
    """Name or path of the model spec; None to find a shipped one by its shape."""
    options: dict[str, str] = field(default_factory=dict)
    """Profile switches that the log does not show."""
    warmup: int = 2
    """Logged steps to leave out at the start, a count."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Columns of a row that are known beside the log: of a recipe, of an estimate, or the user's own."""
    fixed: frozenset[str] = frozenset()
    """Names of `columns` that replace what the log says."""


def completed(
    where: str, columns: Mapping[str, Any], context: LogContext, switches: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the non-blank columns of a log's run, completed or replaced by those of `context`.

    `switches` are those of the framework's profile that the log shows. Raises InputError listing all that are missing.
    """
    logged = {name: value for name, value in columns.items() if value is not None}
    values = logged | {
        name: value for name, value in context.columns.items() if name not in logged or name in context.fixed
    }
    values |= {"hardware_as_stated": context.hardware, "hardware": context.hardware}
    missing = [name for name in NEEDED if not values.get(name)]
    if missing:
        raise InputError(asking(where, missing, configured="tensor_parallel" in values))
    options = {**switches, **dict(values.get("options", ())), **context.options}
    return values | {"options": tuple(options.items())}


def asking(where: str, missing: list[str], *, configured: bool) -> str:
    """Return one sentence that asks for everything missing."""
    names = ", ".join(missing)
    open_too = "" if configured else f" (and {', '.join(DEGREES)}, where they are not 1 and none)"
    return (
        f"{where}: the log does not say {names}{open_too}; give each with --set NAME=VALUE, or the run's recipe with "
        "--recipe FILE"
    )


def matched(where: str, shape: LoggedFields | None, context: LogContext, *, vocab_padding: int = 0) -> Match:
    """Return the model of a run: by its logged shape, else the caller's; blank without either."""
    name = context.model or context.columns.get("model")
    if shape is None:
        return Match(str(name or ""), None, "The log shows no shape; the model is the caller's." if name else "")
    return match_shape(where, shape, None if name is None else str(name), vocab_padding=vocab_padding)


def ran_out(line: LogLine) -> dict[str, Any]:
    """Return the columns of a run that ran out of memory, from the line that says so."""
    return {"outcome": "oom", "error": one_line(line.text)[:300]}


def row_of(
    values: Mapping[str, Any], context: LogContext, row: int, line: int, notes: Iterable[str] = (), /, **figures: Any
) -> MeasuredRow:
    """Return a row of completed columns and measured figures, with notes on both."""
    named: dict[str, Any] = {
        "table": context.table,
        "row": row,
        "source": f"log {context.table}",
        "source_ref": f"line {line}",
    }
    return MeasuredRow(**(named | dict(values) | figures | {"evidence": " ".join(filter(None, notes))}))
