"""The pages hold what the program prints, and the shipped files are what the shipped rows give."""

from __future__ import annotations

import dataclasses
from typing import get_args

import pytest

from simulator.cost.pricing.estimate import PredictionStatus
from simulator.evidence.calibration.assessment import Assessment
from simulator.evidence.calibration.fit import UNFITTED
from simulator.evidence.calibration.run import MOST_SCATTER
from simulator.evidence.calibration.sources import SourcesJudged
from simulator.question.coefficients import MemoryCoefficients, TimeCoefficients
from simulator.question.coefficients.values import priors
from tests.calibration.pages import ANEW_HINT, FOLDER, KNOWN, ROOT, SHIPPED, blocks, differences, quoted


def test_pages_quote_the_program(assessed: Assessment, judged: tuple[SourcesJudged, ...]) -> None:
    for path, found in blocks(assessed, judged).items():
        page = path.read_text(encoding="utf-8")
        for name, text in found.items():
            assert differences(quoted(page, name), text) == [], f"{path.name}: {name}; {ANEW_HINT}"


def test_differences_are_found() -> None:
    assert differences("a | 1.00 |", "a  | 1.01 |") == []
    assert differences("a 1.00", "a 1.20") == ["a 1.00\na 1.20"]
    assert differences("a 1.00", "b 1.00")
    assert differences("a", "a\nb")


def test_every_shipped_family_has_its_page() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {*SHIPPED, *KNOWN}
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert [name for name in (*SHIPPED, *KNOWN) if f"| `{name}.yaml` |" not in page] == []


@pytest.mark.parametrize("name", [*priors("memory"), *priors("time")])
def test_every_coefficient_is_explained(name: str) -> None:
    text = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    # In the table of meanings, and in at least one family's values or among those that are not fitted.
    assert text.count(f"| `{name}`") >= (1 if name in UNFITTED else 2)


def test_what_is_not_fitted_is_named() -> None:
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    section = page.split("## Not fitted")[1].split("\n## ")[0]
    owners = (MemoryCoefficients, TimeCoefficients)
    fixed = {f.name for owner in owners for f in dataclasses.fields(owner) if "prior" not in f.metadata}
    assert [name for name in sorted({*UNFITTED, *fixed}) if f"`{name}`" not in section] == []


def test_statuses_are_explained() -> None:
    page = (ROOT / "docs" / "calibration.md").read_text(encoding="utf-8")
    assert [status for status in get_args(PredictionStatus) if f"| `{status}` |" not in page] == []
    assert f"{100 * MOST_SCATTER:.0f} %" in page
