"""The walk of `docs/measure.md`, from a template to an estimate; `python -m tests.docs.walk` writes its blocks anew.

The cluster is made up: `SLOWER` than its family in everything, so that what its launches would measure is known.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import simulator
from simulator.cost.pricing.estimate import Estimate
from tests.cli.running import run
from tests.docs.pages import DOCS

PAGE = DOCS / "measure.md"
SLOWER = 1.12
"""Times that the made-up cluster takes of its family's."""
ASKED: dict[str, Any] = {"model": "llama3.1-8b", "hardware": "h100-sxm-80g", "devices": 16, "global_batch_size": 256}
ROWS = ((2, 1), (4, 1), (2, 2))
"""Tensor and pipeline sizes of the runs that were measured."""
NEXT: dict[str, Any] = {"tensor_parallel": 1, "pipeline_parallel": 4}
"""The layout that is asked about, and was not measured."""


@dataclass(frozen=True)
class Walk:
    """What the walk gives."""

    template: str
    table: str
    errors: str
    before: Estimate
    after: Estimate

    @property
    def truth(self) -> float:
        """Seconds of a step that the cluster takes for the layout asked about."""
        return SLOWER * self.before.throughput.step_seconds

    def blocks(self) -> dict[str, str]:
        """The page's blocks by name."""
        return {
            "template": f"```text\n{self.template}```",
            "rows": f"```csv\n{self.table}```",
            "errors": f"```text\n{self.errors.rstrip()}\n```",
            "estimate": self._estimates(),
        }

    def _estimates(self) -> str:
        lines = ["| calibration | step s | 90 % interval | measured s |", "|---|---|---|---|"]
        for name, found in (("what ships", self.before), ("`hopper.yaml`", self.after)):
            interval = found.throughput.interval_seconds
            assert interval is not None
            span = f"{interval.low:.2f} to {interval.high:.2f}"
            lines.append(f"| {name} | {found.throughput.step_seconds:.2f} | {span} | {self.truth:.2f} |")
        return "\n".join(lines)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, as the reader does."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def walked(folder: Path) -> Walk:
    """Take the walk in a folder."""
    with inside(folder):
        template = run("calibrate", "--template").stdout
        header = next(csv.reader(io.StringIO(template)))
        lines = [",".join(header)]
        for tensor, pipeline in ROWS:
            found = simulator.estimate(**ASKED, tensor_parallel=tensor, pipeline_parallel=pipeline)
            step, memory = SLOWER * found.throughput.step_seconds, found.memory.device_bytes / 2**30
            lines.append(f"llama3.1-8b,h100-sxm-80g,16,8192,256,1,{tensor},{pipeline},{step:.2f},{memory:.1f}")
        table = "\n".join(lines) + "\n"
        Path("mine.csv").write_text(table, encoding="utf-8")
        fitted = run("calibrate", "mine.csv", "--output", ".")
        assert fitted.exit_code == 0, fitted.stderr
        errors = run("accuracy", "mine.csv", "--calibration", "hopper.yaml")
        assert errors.exit_code == 0, errors.stderr
        before = simulator.estimate(**ASKED, **NEXT)
        after = simulator.estimate(**ASKED, **NEXT, calibration="hopper.yaml")
    return Walk(template, table, errors.stdout, before, after)


def write() -> None:
    """Write the page's blocks anew."""
    from tests.calibration.pages import written_anew  # noqa: PLC0415  that module writes this page too

    with TemporaryDirectory() as folder:
        found = walked(Path(folder))
    page = PAGE.read_text(encoding="utf-8")
    for name, block in found.blocks().items():
        page = written_anew(page, name, block)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write()
