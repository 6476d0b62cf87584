"""`simulate calibrate --probe`: rates, a few launches, and the coefficients that they decide."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import UnsupportedError
from simulator.show.cli.options import Option
from simulator.show.cli.parameters import Whole, Word
from simulator.show.cli.streams import note, verbosity_of, write

if TYPE_CHECKING:
    from simulator.lab.probe.asked import Asked

PROBE = "Probe"
_LONGEST_SECONDS = 10**6
_ONLY_PROBE = ("devices", "precision", "launches", "backend", "time_limit", "resume", "dry_run")
_NOT_PROBE = ("files", "family", "from_log", "option", "rows_only")
_FORMATS = ("table", "markdown", "json")


def probe_options() -> list[click.Parameter]:
    """Return what a probe is asked."""
    words: list[tuple[str, dict[str, Any]]] = [
        (
            "--probe",
            {
                "is_flag": True,
                "default": False,
                "help": "Measure this machine: rates, and the launches that say most about the coefficients.",
            },
        ),
        ("--devices", {"type": Whole(1, 1024), "help": "Ranks of a launch; 2 on a processor, else the node's."}),
        ("--precision", {"type": Word(("bf16", "fp32")), "help": "Type of matrix products; bf16."}),
        ("--launches", {"type": Whole(1, 1000), "help": "Launches to make; 20."}),
        (
            "--backend",
            {
                "type": str,
                "metavar": "NAME",
                "help": "Kind of device in torch's words; follows from the hardware: cpu, npu (Ascend) or cuda.",
            },
        ),
        ("--time-limit", {"type": Whole(1, _LONGEST_SECONDS), "help": "Seconds that a launch may take; 600."}),
        ("--resume", {"is_flag": True, "default": False, "help": "Take rates and rows that the folder holds already."}),
        ("--dry-run", {"is_flag": True, "default": False, "help": "Show the plan, and start nothing."}),
    ]
    return [Option(name, section=PROBE, **attributes) for name, attributes in words]


def check_probe_options(values: Mapping[str, Any]) -> None:
    """Refuse options of a probe where none is asked for."""
    for name in _ONLY_PROBE:
        if values[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --probe")


def probe(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Plan, measure, launch, fit, and tell how to use the result."""
    from simulator.lab.probe.measure import rates_command  # noqa: PLC0415  start-up time
    from simulator.lab.probe.prepare import outlook, prepare  # noqa: PLC0415  start-up time
    from simulator.lab.probe.run import launch_all  # noqa: PLC0415  start-up time
    from simulator.show.report.probe_json import outlook_json, probe_json  # noqa: PLC0415  start-up time
    from simulator.show.report.probe_table import outlook_table, probe_table  # noqa: PLC0415  start-up time

    asked, form = _asked(values), _form(values)
    quiet = verbosity_of(ctx) < 0
    if values["dry_run"]:
        ready = outlook(asked)
        command = rates_command(asked)
        write(outlook_json(ready) if form == "json" else outlook_table(ready, command, form), None)
        return

    def tell(line: str) -> None:
        note(line, quiet=quiet)

    asked.check()
    probed = launch_all(prepare(asked, tell), tell)
    write(probe_json(probed) if form == "json" else probe_table(probed, form, verbosity_of(ctx)), None)
    signal = probed.campaign.interrupted_by
    ctx.exit(128 + signal if signal else 0 if probed.campaign.all_well and probed.calibration_file else 1)


def _asked(values: Mapping[str, Any]) -> Asked:
    from simulator.lab.probe.asked import FOLDER, Asked  # noqa: PLC0415  start-up time
    from simulator.lab.runner.reference import usual_backend  # noqa: PLC0415  start-up time
    from simulator.question.specs.catalogue import load_hardware  # noqa: PLC0415  start-up time

    for name in _NOT_PROBE:
        if values[name]:
            said = "FILES" if name == "files" else f"--{name.replace('_', '-')}"
            raise click.UsageError(f"--probe and {said}: a probe measures rows of its own")
    if values["hardware"] is None:
        raise click.UsageError("--probe needs --hardware: the spec that comes nearest; `simulate hardware` lists them")
    hardware = load_hardware(values["hardware"])
    backend = values["backend"] or usual_backend(hardware.family)
    return Asked(
        hardware=values["hardware"],
        devices=values["devices"] or (2 if backend == "cpu" else hardware.devices_per_node),
        folder=Path(values["output"] or FOLDER),
        model=values["model"],
        precision=values["precision"] or "bf16",
        backend=backend,
        launches=values["launches"] or 20,
        limit_seconds=float(values["time_limit"] or 600),
        resume=values["resume"],
    )


def _form(values: Mapping[str, Any]) -> Any:
    if values["format"] not in _FORMATS:
        raise UnsupportedError(f"--format {values['format']} and --probe: allowed are {', '.join(_FORMATS)}")
    return values["format"]
