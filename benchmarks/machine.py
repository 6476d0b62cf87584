"""What a figure was measured on, and how figures are printed. Imports neither numpy nor the simulator."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def say(line: str = "") -> None:
    """Print one line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def judged(*, met: bool) -> str:
    """Whether a target was met, in a word."""
    return "met" if met else "MISSED"


def say_machine() -> None:
    """Print date, processor, cores, Python and the packages that matter."""
    packages = ", ".join(f"{name} {_version(name)}" for name in ("numpy", "pydantic", "click"))
    say(f"date: {datetime.now(tz=UTC):%Y-%m-%d}")
    say(f"processor: {_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}")
    say(f"software: Python {platform.python_version()}, {packages}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    found = dict(_fields(Path("/proc/cpuinfo")))
    name = found.get("model name") or platform.processor() or "unknown processor"
    places = {key: found[key] for key in ("cpu family", "model", "stepping") if key in found}
    detail = ", ".join(f"{key} {value}" for key, value in places.items())
    return f"{name} ({detail})" if detail else name


def _fields(file: Path) -> Iterator[tuple[str, str]]:
    if not file.is_file():
        return
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            yield key.strip(), value.strip()
