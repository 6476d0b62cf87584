"""The reports, to the letter."""

import pytest

from tests.report.cases import CASES, FOLDER


@pytest.mark.parametrize("name", CASES)
def test_report_is_the_snapshot(name: str) -> None:
    assert CASES[name]() == (FOLDER / name).read_text(encoding="utf-8")


def test_every_snapshot_has_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(CASES)
