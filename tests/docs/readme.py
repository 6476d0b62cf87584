"""What the README quotes: `python -m tools.regenerate readme` writes what the main job prints.

The line on accuracy needs the fit: `tests.calibration.pages` writes it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.accuracy.own import CLUSTER, mean
from benchmarks.accuracy.rows import JudgedRow, Judgement
from simulator.evidence.calibration.own import summary
from simulator.question.coefficients import CoefficientKind

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "README.md"
WIDE = {**os.environ, "COLUMNS": "120"}
"""As where stdout is no terminal and nobody says how wide it is."""
LEAST_ROWS = 5
"""Rows of a platform and class below which its mean error is not quoted."""
TIMED = re.compile(r"in (?:under )?[0-9.]+ s:")
_START, _END = "<!-- output:start -->\n", "<!-- output:end -->"


def main_job_output() -> str:
    """The block as it should stand, the elapsed time masked."""
    command = [sys.executable, "-m", "simulator", "--model", "llama3.1-70b", "--nodes", "8"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=WIDE)
    lines = "\n".join(line.rstrip() for line in TIMED.sub("in 0.03 s:", result.stdout).splitlines())
    return f"```text\n{lines}\n```\n"


def generated() -> Mapping[Path, str]:
    """The page with what the main job prints."""
    before, rest = PAGE.read_text(encoding="utf-8").split(_START)
    return {PAGE: f"{before}{_START}{main_job_output()}{_END}{rest.split(_END, 1)[1]}"}


def accuracy_line(found: Judgement) -> str:
    """How far off predictions are, in one sentence for the cluster of its own rows and one for all others."""
    coverage = sum(row.source_out.inside for row in found.rows) / len(found.rows)
    memory, speed = (100 * mean(found.own, kind, "left_out", sole_support=False) for kind in ("memory", "time"))
    return (
        f"On the {CLUSTER.upper()} cluster, each run left out of the fit in turn, memory misses "
        f"by {memory:.1f} % and speed by {speed:.1f} % in the mean. On public runs of other clusters, with the whole "
        f"source left out, speed misses by {_spread(found, 'time')} and memory by {_spread(found, 'memory')}, by "
        f"platform and class, and {100 * coverage:.0f} % of the {len(found.rows)} figures lie in their 90 % interval: "
        "[accuracy](docs/accuracy.md)."
    )


def _spread(found: Judgement, kind: CoefficientKind) -> str:
    """The best and the worst mean error of a platform and class with more than a handful of rows."""
    groups: dict[tuple[str, str], list[JudgedRow]] = {}
    for row in found.of_kind(kind):
        groups.setdefault((row.platform, row.sort), []).append(row)
    means = [100 * summary(rows).source_out for rows in groups.values() if len(rows) >= LEAST_ROWS]
    return f"{min(means):.1f} to {max(means):.1f} %"
