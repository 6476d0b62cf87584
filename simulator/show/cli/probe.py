"""The options of `simulate calibrate --probe`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simulator.show.cli.options import Option
from simulator.show.cli.parameters import Whole, Word

PROBE = "Probe"
_LONGEST_SECONDS = 10**6
_ONLY_PROBE = ("devices", "precision", "launches", "backend", "time_limit", "resume", "dry_run")


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
