"""Check of this machine's devices against the named hardware spec, before anything is launched on them.

Asks torch in a process of its own; warns and never corrects a spec.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from simulator.errors import UnsupportedError, one_line
from simulator.lab.runner.processes import with_package
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.units import GIB

_LIMIT_SECONDS: Final = 300.0
_LEAST_SHARE, _MOST_SHARE = 0.85, 1.15
"""Memory that torch shows over that of the spec: a driver keeps a few per cent for itself."""
_CODE: Final = (
    "import json, sys, types\n"
    "from simulator.lab.trainer.backend import Backend\n"
    "found = Backend(types.SimpleNamespace(backend=sys.argv[1], threads=1))\n"
    "free, whole = getattr(found.module, 'mem_get_info', lambda: (0, 0))()\n"
    "print(json.dumps({'name': found.name, 'memory_bytes': whole, 'count': found.module.device_count()}))\n"
)
"""Script that asks torch in a process of its own: this one never imports it, and holds no device while ranks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Device as torch shows it."""

    name: str
    """Name in its driver's words."""
    memory_bytes: float
    """Memory; 0 where torch cannot tell."""
    count: int
    """Devices of the kind on this machine."""


def ask(backend: str) -> Device:
    """Return the first device of a kind, not a processor. Raises UnsupportedError where torch sees none here."""
    try:
        done = subprocess.run(  # noqa: S603  this Python, and the backend's name as one argument
            [sys.executable, "-c", _CODE, backend],
            env=with_package(os.environ),
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        if done.returncode == 0:
            return Device(**json.loads(done.stdout.splitlines()[-1]))
        message = next(iter(reversed(done.stderr.splitlines())), f"exit code {done.returncode}")
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError, IndexError) as error:
        message = str(error)
    message = message.partition("InputError: ")[2] or f"backend {backend}: torch could not be asked for it: {message}"
    raise UnsupportedError(f"nothing to launch on: {one_line(message)}")


def contradictions(device: Device, hardware: HardwareSpec, known: Iterable[str]) -> Iterator[str]:
    """Yield differences of a device from that of the spec; `known` are the names of all specs."""
    share = device.memory_bytes / hardware.memory_capacity_bytes
    if device.memory_bytes and not _LEAST_SHARE <= share <= _MOST_SHARE:
        yield (
            f"this machine has {device.name} with {device.memory_bytes / GIB:.1f} GiB, {hardware.name} has "
            f"{hardware.memory_capacity_bytes / GIB:.1f}: name the hardware that it is, or its rows mislead"
        )
    other = {chip for name in known if (chip := _chip(name)) and _is(device.name, chip)}
    own = _chip(hardware.name)
    if own and other and own not in other:
        yield f"this machine has {device.name}, which does not sound like {hardware.name}: its rows may mislead"


def crowded(ranks: int) -> str:
    """Return a warning where this machine has too few processors for the ranks; else an empty text."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    if ranks > cores:
        return f"{ranks} ranks share {cores} cores: steps take longer than on hardware with a core for each"
    load = os.getloadavg()[0]
    # An idle machine has a load of up to half a process.
    if ranks + load > cores + 0.5:
        return f"other work runs here (load {load:.1f} on {cores} cores, before {ranks} ranks): steps may take longer"
    return ""


def _chip(name: str) -> str:
    """Return the word of a spec's name that names the chip: the first with a digit."""
    return next((word for word in name.split("-") if re.search(r"[0-9]", word)), "")


def _is(device: str, chip: str) -> bool:
    """Tell whether a driver's words name a chip: not h20 in those of an h200."""
    end = "" if chip[-1].isalpha() else "(?![0-9])"
    return re.search(rf"(?<![0-9]){re.escape(chip)}{end}", device.lower()) is not None
