"""Commands `calibrate mine.csv --output own/`, which fits coefficients, and `accuracy`, which judges predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.late import Lazy
from simulator.show.cli import options
from simulator.show.cli.question import values_by_name
from simulator.show.cli.streams import note, presentation, verbosity_of, write, write_answer
from simulator.show.forms import ANSWERS

if TYPE_CHECKING:
    from simulator.evidence.calibration import cluster, own, store
    from simulator.evidence.measurements import rows as measured
    from simulator.question.specs import catalogue
    from simulator.recipes import logs
else:
    cluster, own, store = (Lazy(f"evidence.calibration.{name}") for name in ("cluster", "own", "store"))
    measured, catalogue, logs = map(Lazy, ("evidence.measurements.rows", "question.specs.catalogue", "recipes.logs"))

_ONLY_PROBE = ("devices", "precision", "launches", "backend", "time_limit", "resume", "dry_run")


def calibrate(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Fit the coefficients of each family, or probe this machine and fit its own."""
    if values["probe"]:
        from simulator.show.cli.lab import probe  # needs POSIX, which fitting does not

        probe(ctx, values)
        return
    options.refuse_options(values, _ONLY_PROBE, "needs --probe")
    if values["list"]:
        _list(ctx, values)
        return
    if values["template"]:
        if ctx.get_parameter_source("format") is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--format {values['format']}: --template is a table of CSV")
        write(
            own.template(catalogue.load_hardware(values["hardware"]) if values["hardware"] else None), values["output"]
        )
        return
    logged = _logged(values)
    if values["rows_only"]:
        _write_rows(logged, values["output"])
        return
    if not values["files"] and not logged:
        raise click.UsageError("no measured rows: name tables, or logs with --from-log; --list shows what ships")
    rows = _together([*(_rows(values["files"])), *logged])
    samples = cluster.prepared(rows)
    fits = [own.fit_own(name, samples) for name in _chosen(_families(samples), values["family"])]
    if values["output"] is not None:
        _store_own(fits, Path(values["output"]))
    _show(ctx, "calibration", [fitted.calibration() for fitted in fits])
    believed = [text for fitted in fits for kind in fitted.fits if (text := fitted.believed(kind))]
    for reason in (*believed, *_not_stored(fits), *own.unused(rows, fits)):
        note(reason, quiet=verbosity_of(ctx) < 0)


def _list(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Print the meaning of each coefficient, or the shipped values of families and clusters."""
    names = _chosen(store.shipped_names(), values["family"], "nothing ships for it") if values["family"] else ()
    if names:
        _show(ctx, "calibration", [known for name in names if (known := store.shipped_calibration(name)) is not None])
    elif values["format"] == "yaml":
        raise click.UsageError("--list --format yaml needs --family NAME, whose file it prints")
    else:
        _show(ctx, "coefficients", None)


def _show(ctx: click.Context, name: str, value: object) -> None:
    """Print an answer to stdout, as `--output` names a folder."""
    write(ANSWERS[name].write(value, ctx.params["format"], presentation(ctx)), None)


def accuracy(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Show the errors of predictions: of shipped rows by class, or of own rows before and after their calibration."""
    if values["files"]:
        samples = cluster.prepared(_together(_rows(values["files"])))
        families = _chosen(_families(samples), values["family"])
        mine = [s for s in samples if s.scenario.hardware.family in families and values["table"] in (None, s.row.table)]
        write_answer(ctx, "own accuracy", tuple(own.own_errors(mine, values["calibration"])), presentation(ctx))
        return
    if values["calibration"] is not None:
        raise click.UsageError("--calibration needs the own rows: simulate accuracy mine.csv --calibration FILE")
    judged = own.judged_runs()
    families = _chosen(sorted({row.family for row in judged}), values["family"])
    tables, table = sorted({row.source for row in judged}), values["table"]
    if table is not None and table not in tables:
        raise InputError(f"--table {table}: no such table{did_you_mean(table, tables)}; there are {', '.join(tables)}")
    chosen = [row for row in judged if row.family in families and table in {None, row.source}]
    if not chosen:
        raise InputError(f"--table {table}: no row of it is of --family {', '.join(families)}")
    write_answer(ctx, "accuracy by row" if values["rows"] else "accuracy", chosen, presentation(ctx))


def _families(samples: Sequence[cluster.Sample]) -> tuple[str, ...]:
    """Return the hardware families of rows that ran. Raises InputError without any."""
    if not samples:
        raise InputError("no row that ran names a model and hardware that are known")
    return tuple(sorted({sample.scenario.hardware.family for sample in samples}))


def _chosen(known: Sequence[str], families: Sequence[str], why: str = "no row that ran") -> tuple[str, ...]:
    """Return the chosen families, else all known ones. Raises InputError with `why` for an unknown one."""
    for name in families:
        if name not in known:
            raise InputError(f"--family {name}: {why}{did_you_mean(name, known)}; there are {', '.join(known)}")
    return tuple(name for name in known if not families or name in families)


def _rows(files: Sequence[str]) -> list[measured.MeasuredRow]:
    return [row for name in files for row in measured.read_rows(Path(name), logs.stand_in)]


def _together(rows: Sequence[measured.MeasuredRow]) -> list[measured.MeasuredRow]:
    """Return the rows. Raises InputError where two have the same name."""
    seen: set[str] = set()
    for row in rows:
        if row.key in seen:
            raise InputError(f"{row.key} is there twice; each table needs a name of its own in column 'table'")
        seen.add(row.key)
    return list(rows)


def _logged(values: Mapping[str, Any]) -> list[measured.MeasuredRow]:
    if not values["from_log"]:
        options.refuse_options(values, ("rows_only", "model", "option", "recipe", "set"), "needs --from-log")
        return []
    if values["hardware"] is None:
        raise click.UsageError(
            "--from-log needs --hardware, which logs do not say; `simulate hardware` lists the names"
        )
    inputs = {name: values[name] for name in ("hardware", "model", "warmup")}
    switches = values_by_name("--option", values["option"])
    fixed = measured.read_cells(dict(values["set"]))
    columns = dict(fixed)
    if values["recipe"] is not None:
        known = {"hardware": values["hardware"]} | ({"model": values["model"]} if values["model"] else {}) | fixed
        columns |= logs.stand_in([Path(values["recipe"])], known)
    inputs |= {"options": switches, "columns": columns, "fixed": fixed}
    return [row for log in values["from_log"] for row in logs.read_log(Path(log), **inputs)]


def _write_rows(rows: Sequence[measured.MeasuredRow], folder: str | None) -> None:
    """Write the rows of the logs, to stdout or as a table for each log."""
    _together(rows)
    if folder is None:
        write(measured.rows_text(rows), None)
        return
    _check_folder(Path(folder))
    for name in dict.fromkeys(row.table for row in rows):
        measured.write_rows(Path(folder) / f"{name}.csv", [row for row in rows if row.table == name])


def _store_own(fits: Sequence[own.OwnFit], folder: Path) -> None:
    """Write the files of the families with a fit to store."""
    stored = [fitted for fitted in fits if fitted.stored("memory") or fitted.stored("time")]
    if not stored:
        reasons = _not_stored(fits)
        reasons = reasons or ["no row has a figure that counts; give step_time_s or memory_gib of runs that ended well"]
        raise UnsupportedError(f"nothing can be stored: {'; '.join(reasons)}")
    _check_folder(folder)
    for fitted in stored:
        write(store.calibration_text(fitted.calibration()), str(folder / f"{fitted.family}.yaml"))


def _not_stored(fits: Sequence[own.OwnFit]) -> list[str]:
    """Return why parts of a family are not stored, one sentence each."""
    return [reason for fitted in fits for kind in fitted.fits if (reason := fitted.not_stored(kind))]


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"--output {folder}: no such folder")
