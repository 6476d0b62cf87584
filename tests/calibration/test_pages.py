"""The pages hold what the program prints; rows asked plainly are answered as the page says."""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from statistics import fmean
from typing import Final, get_args

import pytest

from benchmarks.accuracy.kinds import KINDS as KINDS_OF_FAULT
from benchmarks.accuracy.kinds import reported
from benchmarks.accuracy.plain import PlainRow, plain_rows
from benchmarks.accuracy.rows import Judgement, samples
from simulator.cost.pricing.estimate import Coverage
from simulator.evidence.calibration.cluster import UNFITTED
from simulator.evidence.calibration.own import MOST_SCATTER
from simulator.evidence.measurements.rows import public_tables, read_rows, shipped_tables
from simulator.question.coefficients import MemoryCoefficients, TimeCoefficients, priors
from tests.calibration.pages import ANEW_HINT, FOLDER, KNOWN, ROOT, SHIPPED, asked_plainly, blocks, differences, quoted
from tests.cli.running import run

MOST_WORDS = {"accuracy": 2300, "calibration": 1550}
"""Of a page, what its tables say included."""


KINDS_JUDGED: Final = (
    *("outside the tensors", "step of DeepSpeed"),
    *("optimizers and small devices", "offload", "pipelines of PyTorch"),
)
"""Kinds of fault judged here. Each is a fit without its rows, by one function, which the fit anew makes of all of them;
the first two leave out half of the rows between them, and no row that is fitted is of the others."""


def test_pages_quote_the_program(judgement_of_all: Judgement) -> None:
    for path, found in blocks(judgement_of_all, KINDS_JUDGED).items():
        page = path.read_text(encoding="utf-8")
        for name, text in found.items():
            said = quoted(page, name)
            if name == "kinds":
                said = "\n".join(line for line in said.splitlines() if _kind(line) in ("", "kind", *KINDS_JUDGED))
            assert differences(said, text) == [], f"{path.name}: {name}; {ANEW_HINT}"


def _kind(line: str) -> str:
    """The kind of fault of a line of the table; empty for what is none."""
    return line.strip("|- ").split("|")[0].strip() if line.startswith("| ") else ""


def test_every_kind_of_fault_stands_on_the_page_with_its_rows() -> None:
    fitted = [each for each in samples() if each.counts("memory")]
    rows = {kind: (sum(map(holds, fitted)), sum(map(holds, reported()))) for kind, holds in KINDS_OF_FAULT.items()}
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("|")[1:3]] for line in quoted(page, "kinds").splitlines()[4:]]
    assert cells == [[kind, f"{one}+{other}"] for kind, (one, other) in rows.items() if one + other]


def test_differences_are_found() -> None:
    assert differences("a | 1.00 |", "a  | 1.01 |") == []
    assert differences("a 1.00", "a 1.20") == ["a 1.00\na 1.20"]
    assert differences("a 1.00", "b 1.00")
    assert differences("a", "a\nb")


def test_every_shipped_family_has_its_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*SHIPPED, *KNOWN}
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert [name for name in (*SHIPPED, *KNOWN) if f"| `{name}.yaml` |" not in page] == []


@pytest.mark.parametrize("name", MOST_WORDS)
def test_pages_are_short(name: str) -> None:
    words = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").split()
    assert len([word for word in words if any(map(str.isalnum, word))]) <= MOST_WORDS[name]


def test_every_coefficient_is_listed() -> None:
    listed = run("calibrate", "--list").stdout
    assert [name for name in (*priors("memory"), *priors("time")) if name not in listed] == []


def test_what_is_not_fitted_is_named() -> None:
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    section = page.split("## Not fitted")[1].split("\n## ")[0]
    owners = (MemoryCoefficients, TimeCoefficients)
    fixed = {f.name for owner in owners for f in dataclasses.fields(owner) if "prior" not in f.metadata}
    assert [name for name in sorted({*UNFITTED, *fixed}) if f"`{name}`" not in section] == []


def test_words_of_what_is_known_are_explained() -> None:
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert [status for status in get_args(Coverage) if f"| `{status}` |" not in page] == []
    assert f"{100 * MOST_SCATTER:.0f} %" in page


SAMPLED: Final = 9
"""Every so many rows of a table are asked here; the fit anew asks all."""


def test_recorded_rows_are_asked_as_they_are_now() -> None:
    """Of one row in fifty the verdict may lie at a limit, which the last digit of a fit decides."""
    recorded = {row.key: row for row in asked_plainly()}
    ran = {row.key for table in (*shipped_tables(), *public_tables()) for row in read_rows(table)}
    asked = {row.key: row for row in plain_rows(SAMPLED, recorded)}
    assert asked.keys() <= recorded.keys() <= ran, ANEW_HINT
    assert len(asked) > len(recorded) // SAMPLED
    words = attrgetter("classes", "verdict", "inside")
    others = [key for key, row in asked.items() if words(row) != words(recorded[key])]
    assert len(others) <= len(asked) // 50, f"{others}; {ANEW_HINT}"
    for key, row in asked.items():
        assert row.probability == pytest.approx(recorded[key].probability, abs=0.05), f"{key}; {ANEW_HINT}"
        for name in ("documented", "with_stack", "plain", "half_widths"):
            assert getattr(row, name) == pytest.approx(getattr(recorded[key], name), abs=0.01), f"{key}; {ANEW_HINT}"


FEWEST: Final = 16
"""Rows of a class that is judged by itself."""


def _rows_of(name: str) -> list[PlainRow]:
    return [row for row in asked_plainly() if name in row.classes]


def test_runs_that_ran_are_rarely_called_unlikely() -> None:
    rows = asked_plainly()
    assert len(rows) > 400
    for limit, most in ((0.05, 0.02), (0.005, 0.007)):
        assert fmean(row.probability < limit for row in rows) <= most
    # Rows whose source leaves recompute out are said not to fit however they are asked.
    assert fmean(row.verdict == "does_not_fit" for row in rows) <= 0.021


def test_answers_decide() -> None:
    assert fmean(row.verdict != "depends" for row in asked_plainly()) >= 0.55
    for name in ("dense", "mixture", "ampere", "hopper", "megatron", "torch"):
        assert fmean(row.verdict != "depends" for row in _rows_of(name)) >= 0.4, name


def test_ranges_hold_of_what_is_open() -> None:
    for kind, inside, widest in (("time", 0.87, 0.31), ("memory", 0.86, 0.38)):
        rows = [row for row in asked_plainly() if kind in row.plain]
        assert fmean(row.inside[kind] for row in rows) >= inside
        assert fmean(row.half_widths[kind] for row in rows) <= widest
    for name in {each for row in asked_plainly() for each in row.classes}:
        rows = [row for row in _rows_of(name) if "time" in row.plain]
        if len(rows) >= FEWEST:
            assert fmean(row.inside["time"] for row in rows) >= 0.81, name
