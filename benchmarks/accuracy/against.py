"""What a change made better and worse, by source: rows judged here beside those judged by another revision's code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from benchmarks.accuracy.judge import Residual
from benchmarks.accuracy.rows import Judgement
from benchmarks.accuracy.tables import percent
from simulator.errors import InputError
from simulator.show.report.presentation import Section

WORSE: Final = 0.02
"""Points of its mean error by which a source of `FEW` rows and more may not become worse without a reason."""
FEW: Final = 3
_SAME: Final = 5e-4
_ROOT: Final = Path(__file__).parents[2]
_OLDER: Final = """
import dataclasses, json
from simulator.evidence.calibration.run import prepared
from simulator.evidence.calibration.sources import judge_sources
from simulator.evidence.measurements.rows import public_tables, read_rows, shipped_tables
samples = prepared([row for path in (*shipped_tables(), *public_tables()) for row in read_rows(path)])
print(json.dumps({"rows": [
    {"kind": kind, "key": row.sample.key, "source_out": dataclasses.asdict(row.source_out)}
    for kind in ("time", "memory") for row in judge_sources(kind, samples).rows
]}))
"""
"""What prints the rows of a revision before 00699c78, when the package judged them."""


class Source(NamedTuple):
    """Mean errors of a source's rows, left out with it, that both revisions have."""

    kind: str
    name: str
    rows: int
    before: float
    now: float
    bias_before: float
    bias_now: float

    @property
    def verdict(self) -> str:
        """In a word."""
        change = self.now - self.before
        if abs(change) < _SAME:
            return "same"
        return "WORSE" if change > WORSE and self.rows >= FEW else "worse" if change > 0.0 else "better"


def against(found: Judgement, revision: str) -> Iterator[Section]:
    """Mean errors by source, left out, here and at a revision; rows of one side only count nowhere."""
    sources = sorted(compared(found, judged_at(revision)), key=lambda each: each.now - each.before)
    headers = ("of", "source", "rows", "before %", "now %", "bias before %", "bias now %", "points", "")
    lines = [
        [each.kind, each.name, str(each.rows), percent(each.before), percent(each.now)]
        + [f"{100 * value:+.1f}" for value in (each.bias_before, each.bias_now, each.now - each.before)]
        + [each.verdict]
        for each in sources
    ]
    yield Section(f"Against {revision}, source left out", (), headers, lines, text_columns=(0, 1, 8))
    means = [
        [kind, str(len(mine)), *(percent(float(np.mean(values))) for values in zip(*mine, strict=True))]
        for kind in ("time", "memory")
        if (mine := [(each.before, each.now) for each in sources if each.kind == kind])
    ]
    yield Section("Mean over sources", (), ("of", "sources", "before %", "now %"), means, text_columns=(0,))


def compared(found: Judgement, before: Mapping[tuple[str, str], float]) -> Iterator[Source]:
    """Every source with rows that both sides judged; `before` has their relative errors by kind and key."""
    errors: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for row in found.rows:
        if (row.kind, row.key) in before:
            errors[row.kind, row.source].append((before[row.kind, row.key], row.source_out.relative))
    for (kind, name), pairs in errors.items():
        both = np.array(pairs)
        mean, bias = np.abs(both).mean(axis=0).tolist(), both.mean(axis=0).tolist()
        yield Source(kind, name, len(pairs), *mean, *bias)


def judged_at(revision: str) -> dict[tuple[str, str], float]:
    """Relative errors of a revision's rows, source left out, by kind and key, as its own code prints them."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        _run(("git", "worktree", "add", "--detach", "--quiet", str(tree), revision), _ROOT, revision)
        try:
            asks: tuple[str, ...] = ("-m", "benchmarks.accuracy", "--json")
            if (tree / "benchmarks" / "accuracy.py").is_file():
                asks = ("-c", _OLDER)
            rows = json.loads(_run((sys.executable, *asks), tree, revision))["rows"]
        except json.JSONDecodeError as error:
            raise InputError(f"--against {revision}: its benchmarks.accuracy prints no rows with --json") from error
        finally:
            _run(("git", "worktree", "remove", "--force", str(tree)), _ROOT, revision)
    return {(row["kind"], row["key"]): Residual(**row["source_out"]).relative for row in rows}


def _run(command: tuple[str, ...], folder: Path, revision: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(folder)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if run.returncode:
        reason = (run.stderr.strip().splitlines() or ["no answer"])[-1]
        raise InputError(f"--against {revision}: {reason}")
    return run.stdout
