"""The commands that fit coefficients to measured rows and say how far off the result is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.evidence.calibration.assessment import assess, chosen_families
from simulator.evidence.calibration.own import fit_own, own_errors, template, unused
from simulator.evidence.calibration.run import fit_family, prepared
from simulator.evidence.calibration.sources import judge_sources
from simulator.evidence.calibration.store import calibration_text
from simulator.evidence.measurements.log import read_log
from simulator.evidence.measurements.rows import (
    public_tables,
    read_cells,
    read_rows,
    rows_text,
    shipped_tables,
    write_rows,
)
from simulator.question.specs.catalogue import load_hardware
from simulator.recipes.emit.stand_in import stand_in
from simulator.show.cli.layouts import framework_options
from simulator.show.cli.options import handled
from simulator.show.cli.probe import check_probe_options
from simulator.show.cli.streams import note, typed, verbosity_of, write
from simulator.show.report import calibration as report
from simulator.show.report.accuracy import accuracy_text
from simulator.show.report.accuracy_json import accuracy_object
from simulator.show.report.accuracy_sources import own_object, own_text, sources_object, sources_text
from simulator.show.report.calibration import dumped

if TYPE_CHECKING:
    from simulator.evidence.calibration.run import FamilyFit
    from simulator.evidence.measurements.row import MeasuredRow
    from simulator.question.coefficients.values import CoefficientKind
    from simulator.show.report.grid import Style

_KINDS: tuple[CoefficientKind, ...] = ("time", "memory")


def calibrate(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Fit the coefficients of each family, or probe this machine and fit its own."""
    if values["probe"]:
        handled("probe", "probing")(**values)  # needs POSIX, which fitting does not
        return
    check_probe_options(values)

    if values["template"]:
        write(template(load_hardware(values["hardware"]) if values["hardware"] else None), None)
        return
    logged = _logged(values)
    if values["rows_only"]:
        _write_rows(logged, values["output"])
        return

    own = bool(values["files"] or logged)
    rows = _together([*(_rows(values["files"]) if values["files"] or not logged else ()), *logged])
    samples = prepared(rows)
    # Own rows start from what ships for their hardware, the shipped ones from the priors.
    fits = [(fit_own if own else fit_family)(name, samples) for name in chosen_families(rows, values["family"])]
    if values["output"] is not None:
        _store(fits, Path(values["output"]))
    reporters: dict[str, Callable[[Sequence[FamilyFit]], str]] = {
        "table": lambda found: report.calibration_tables(found, "table"),
        "markdown": lambda found: report.calibration_tables(found, "markdown"),
        "json": lambda found: report.dumped(report.calibration_object(found)),
        "yaml": report.calibration_yaml,
    }
    write(reporters[values["format"]](fits), None)
    reasons = [reason for fitted in fits for reason in report.not_stored_lines(fitted)]
    for reason in (*reasons, *(unused(rows, fits) if own else ())):
        note(reason, quiet=verbosity_of(ctx) < 0)


def accuracy(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Judge the fit of each family by the rows themselves."""
    if values["calibration"] is not None or values["own"]:
        _own_accuracy(ctx, values)
        return
    rows = _together(_rows(values["files"]))
    public = _public(rows) if not values["files"] and not values["family"] else []
    table = values["table"]
    tables = sorted({row.table for row in (*rows, *public)})
    if table is not None and table not in tables:
        raise InputError(f"--table {table}: no such table{did_you_mean(table, tables)}; there are {', '.join(tables)}")
    found = assess(rows, values["family"])
    sources = [judge_sources(kind, prepared(public)) for kind in _KINDS] if public else []
    if values["format"] == "html":
        from simulator.show.pages.accuracy import accuracy_page  # noqa: PLC0415  start-up time

        text = accuracy_page(found, sources, table, typed(ctx))
    elif values["format"] == "json":
        text = dumped(accuracy_object(found, table=table) | {"sources": sources_object(sources, table=table)})
    else:
        style: Style = "markdown" if values["format"] == "markdown" else "table"
        text = accuracy_text(found, style, table=table)
        text += "\n" + sources_text(sources, style, table=table) if sources else ""
    write(text, values["output"])


def _own_accuracy(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Show own rows before and after their calibration."""
    if not values["files"]:
        raise click.UsageError(
            "--calibration and --own need the own rows: simulate accuracy mine.csv --calibration FILE"
        )
    found = tuple(own_errors(prepared(_together(_rows(values["files"]))), values["calibration"]))
    style: Style = "markdown" if values["format"] == "markdown" else "table"
    if values["format"] == "html":
        from simulator.show.pages.accuracy import own_page  # noqa: PLC0415  start-up time

        text = own_page(found, typed(ctx))
    else:
        text = dumped(own_object(found)) if values["format"] == "json" else own_text(found, style)
    write(text, values["output"])


def _public(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows with those of the public tables."""
    return _together([*rows, *(row for path in public_tables() for row in read_rows(path))])


def _rows(files: Sequence[str]) -> list[MeasuredRow]:
    """Return the rows of the files, or of the shipped tables."""
    paths = [Path(name) for name in files] or list(shipped_tables())
    return [row for path in paths for row in read_rows(path, stand_in)]


def _together(rows: Sequence[MeasuredRow]) -> list[MeasuredRow]:
    """Return the rows, unless two have the same name."""
    seen: set[str] = set()
    for row in rows:
        if row.key in seen:
            raise InputError(f"{row.key} is there twice; each table needs a name of its own in column 'table'")
        seen.add(row.key)
    return list(rows)


def _logged(values: Mapping[str, Any]) -> list[MeasuredRow]:
    """Return the rows of the logs."""
    if not values["from_log"]:
        for name in ("rows_only", "model", "option", "recipe", "set"):
            if values[name]:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --from-log")
        return []
    if values["hardware"] is None:
        raise click.UsageError(
            "--from-log needs --hardware, which logs do not say; `simulate hardware` lists the names"
        )

    given = {name: values[name] for name in ("hardware", "model", "warmup")}
    options = framework_options(values)
    own = read_cells(dict(values["set"]))
    columns = dict(own)
    if values["recipe"] is not None:
        known = {"hardware": values["hardware"]} | ({"model": values["model"]} if values["model"] else {}) | own
        columns |= stand_in([Path(values["recipe"])], known)
    logs = (Path(name) for name in values["from_log"])
    return [row for log in logs for row in read_log(log, options=options, columns=columns, fixed=own, **given)]


def _write_rows(rows: Sequence[MeasuredRow], folder: str | None) -> None:
    """Write the rows of the logs, to stdout or as a table for each log."""
    _together(rows)
    if folder is None:
        write(rows_text(rows), None)
        return
    _check_folder(Path(folder))
    for name in dict.fromkeys(row.table for row in rows):
        write_rows(Path(folder) / f"{name}.csv", [row for row in rows if row.table == name])


def _store(fits: Sequence[FamilyFit], folder: Path) -> None:
    """Write the files of the families that have something to store."""
    stored = [fitted for fitted in fits if fitted.stored("memory") or fitted.stored("time")]
    if not stored:
        reasons = [reason for fitted in fits for reason in report.not_stored_lines(fitted)]
        reasons = reasons or ["no row has a figure that counts; give step_time_s or memory_gib of runs that ended well"]
        raise UnsupportedError(f"nothing can be stored: {'; '.join(reasons)}")
    _check_folder(folder)
    for fitted in stored:
        write(calibration_text(fitted.calibration()), str(folder / f"{fitted.family}.yaml"))


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"--output {folder}: no such folder")
