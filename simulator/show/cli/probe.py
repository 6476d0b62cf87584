"""The options of `simulate calibrate --probe`. Measures nothing: `probing` calls what does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simulator.show.cli.options import Option
from simulator.show.cli.parameters import Whole, Word

PROBE = "Probe"
LONGEST_SECONDS = 10**6
"""Most that a limit of a launch may be."""
_ONLY_PROBE = ("devices", "precision", "launches", "backend", "time_limit", "resume", "dry_run")


def probe_options() -> list[click.Parameter]:
    """Return what a probe is asked."""
    measured = "Measure this machine: rates, and the launches that say most about the coefficients."
    return [
        Option("--probe", PROBE, measured, is_flag=True),
        Option("--devices", PROBE, "Ranks of a launch; 2 on a processor, else the node's.", type=Whole(1, 1024)),
        Option("--precision", PROBE, "Type of matrix products; bf16.", type=Word(("bf16", "fp32"))),
        Option("--launches", PROBE, "Launches to make; 20.", type=Whole(1, 1000)),
        backend_option(PROBE),
        Option("--time-limit", PROBE, "Seconds that a launch may take; 600.", type=Whole(1, LONGEST_SECONDS)),
        Option("--resume", PROBE, "Take rates and rows that the folder holds already.", is_flag=True),
        Option("--dry-run", PROBE, "Show the plan, and start nothing.", is_flag=True),
    ]


def backend_option(section: str) -> Option:
    """Return on what kind of device ranks run."""
    text = "Kind of device in torch's words; follows from the hardware: cpu, npu (Ascend) or cuda."
    return Option("--backend", section, text, metavar="NAME")


def check_probe_options(values: Mapping[str, Any]) -> None:
    """Refuse options of a probe where none is asked for."""
    for name in _ONLY_PROBE:
        if values[name]:
            raise click.UsageError(f"--{name.replace('_', '-')} needs --probe")
