"""Every kept report is one that is written anew; tests/project/test_regenerate.py compares them to the letter."""

from tests.report.cases import CASES, FOLDER


def test_every_snapshot_has_a_case() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(CASES)
