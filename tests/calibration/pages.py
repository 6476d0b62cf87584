"""What the pages quote of the calibration; `python -m tests.calibration.pages` writes it anew, after a new fit too."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.ascend_runs import FOLDER as ASCEND_RUNS
from benchmarks.ascend_runs import runs, summed_up
from benchmarks.by_framework import frameworks_table
from benchmarks.targets import held
from simulator.evidence.calibration.assessment import Assessment, assess, figures
from simulator.evidence.calibration.publish import published
from simulator.evidence.calibration.run import fit_family, prepared
from simulator.evidence.calibration.sources import SourcesJudged, judge_sources
from simulator.evidence.calibration.store import Calibration, calibration_text, read_calibration, shipped_calibration
from simulator.evidence.calibration.vendors import published_layouts
from simulator.question.coefficients.values import CoefficientKind
from simulator.show.report.accuracy import accuracy_text
from simulator.show.report.accuracy_sources import sources_text
from simulator.show.report.as_json import dumps
from simulator.show.report.calibration import meaning_table, value_table
from tests.calibration.measured import all_rows, shipped_rows
from tests.docs import walk
from tests.docs.readme import accuracy_line
from tests.specs.test_public_configs import FOLDER as CONFIGURATIONS
from tests.specs.test_public_configs import counted

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "calibration"
RECORD = FOLDER / "accuracy.json"
OWN: Mapping[str, str] = {"z2000": "hopper"}
"""Clusters fitted to their own rows, and their families."""
FAMILIES = ("hopper", "ampere", "ascend-910", "blackwell", "other")
"""Families whose coefficients the rows of all sources give."""
SHIPPED = (*OWN, *FAMILIES)
KINDS: tuple[CoefficientKind, ...] = ("memory", "time")
KNOWN = ("cpu",)
"""Families with coefficients that need no rows."""
ANEW_HINT = "python -m tests.calibration.pages writes it anew"
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def shipped(family: str) -> Calibration:
    return read_calibration(FOLDER / f"{family}.yaml")


def calibration_blocks() -> dict[str, str]:
    """Tables of `docs/calibration.md` by marker."""
    found = {f"meaning-{kind}": meaning_table(kind) for kind in KINDS}
    for name in SHIPPED:
        found |= {f"{name}-{kind}": value_table(kind, shipped(name)) for kind in KINDS}
    return found


def blocks(assessed: Assessment, judged: Sequence[SourcesJudged]) -> dict[Path, dict[str, str]]:
    """Everything quoted, by page and marker."""
    return {
        ROOT / "docs" / "accuracy.md": {
            "accuracy": accuracy_text(assessed, "markdown").rstrip("\n"),
            "sources": sources_text(judged, "markdown").rstrip("\n"),
            "frameworks": frameworks_table(judged, recorded("ascend_runs"), recorded("configurations")),
        },
        ROOT / "docs" / "calibration.md": calibration_blocks(),
        ROOT / "README.md": {"accuracy": accuracy_line(assessed, judged)},
    }


def quoted(page: str, name: str) -> str:
    """What stands between the markers of a name."""
    found = re.search(rf"<!-- {name}:start -->\n(.*?)\n?<!-- {name}:end -->", page, re.DOTALL)
    assert found, name
    return found[1].strip("\n")


def written_anew(page: str, name: str, text: str) -> str:
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    before, rest = page.split(start, 1)
    return f"{before}{start}\n{text}\n{end}{rest.split(end, 1)[1]}"


def differences(one: str, other: str) -> list[str]:
    """Lines that differ by more than the last digit of a fit; widths of tables do not count."""
    rows = [[re.sub(r"[ -]+", " ", line) for line in text.splitlines() if line] for text in (one, other)]
    if len(rows[0]) != len(rows[1]):
        return [f"{len(rows[0])} lines, {len(rows[1])} lines"]
    return [f"{a}\n{b}" for a, b in zip(*rows, strict=True) if not _same(a, b)]


def _same(one: str, other: str) -> bool:
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return False
    pairs = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= 0.03 + 0.01 * abs(float(a)) for a, b in pairs)


def recorded(name: str) -> dict[str, Any]:
    """What is recorded of files outside the project: MindSpeed-LLM's own runs, and public configurations."""
    found: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))[name]
    return found


def record(assessed: Assessment) -> dict[str, float]:
    return figures(assessed)


if __name__ == "__main__":
    samples = prepared(shipped_rows())
    for name, family in OWN.items():
        text = calibration_text(fit_family(family, samples).calibration())
        (FOLDER / f"{name}.yaml").write_text(text, encoding="utf-8")
    sources = tuple(judge_sources(kind, prepared(all_rows())) for kind in ("time", "memory"))
    for calibration in published(sources):
        (FOLDER / f"{calibration.family}.yaml").write_text(calibration_text(calibration), encoding="utf-8")
    judged = held(assess(shipped_rows()))
    shipped_calibration.cache_clear()  # what follows starts from what was just written
    tuned = tuple(published_layouts(prepared(all_rows())))
    sources = tuple(replace(one, published=tuned) if one.kind == "time" else one for one in sources)
    measured = dict(summed_up(runs())) if ASCEND_RUNS.exists() else recorded("ascend_runs")
    models = counted() if CONFIGURATIONS.is_dir() else recorded("configurations")
    found_outside = {"ascend_runs": measured, "configurations": models}
    RECORD.write_text(dumps({"figures": record(judged)} | found_outside) + "\n", encoding="utf-8")
    for path, found in blocks(judged, sources).items():
        page = path.read_text(encoding="utf-8")
        for name, block in found.items():
            page = written_anew(page, name, block)
        path.write_text(page, encoding="utf-8")
    walk.write()
    print(json.dumps(record(judged), indent=1))  # noqa: T201 - run by hand
