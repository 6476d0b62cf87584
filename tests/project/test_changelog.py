"""The changelog keeps its form: dated releases, newest first, one table of moved predictions each, short entries."""

import re
from itertools import pairwise

from simulator import __version__
from tests.project.tree import ROOT

TEXT = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## \[([^]]+)\](.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))
LONGEST_ENTRY = 450
"""Characters of an entry: one fact and its reason."""
HEADINGS = {"Predictions changed", "Added", "Changed", "Fixed", "Removed"}


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


def test_releases_are_dated_and_newest_first() -> None:
    first, *releases = SECTIONS
    assert first == "Unreleased"
    assert all(re.match(r" - \d{4}-\d{2}-\d{2}\n", SECTIONS[release]) for release in releases)
    assert all(number(newer) > number(older) for newer, older in pairwise(releases))
    assert number(__version__) > number(releases[0])


def test_a_release_has_each_heading_once() -> None:
    for release, text in SECTIONS.items():
        found = re.findall(r"^### (.*)$", text, re.MULTILINE)
        assert len(found) == len(set(found)), release
        assert set(found) <= HEADINGS, release


def test_moved_predictions_have_before_after_and_why() -> None:
    for text in SECTIONS.values():
        for row in re.findall(r"^\|.*$", text, re.MULTILINE):
            assert len(row.split("|")) == 6, row


def test_entries_are_short() -> None:
    entries = [
        " ".join(entry.split()) for entry in re.findall(r"^- .*?(?=^- |^#|\Z|\n\n)", TEXT, re.MULTILINE | re.DOTALL)
    ]
    assert len(entries) > 50
    assert [entry for entry in entries if len(entry) > LONGEST_ENTRY] == []
