"""Every page opens with what its reader can do, leads somewhere, and is short.

By hand: `wc -w README.md docs/*.md`, and of CHANGELOG.md the part of the current release.
"""

import re

import pytest

from tests.docs.pages import DOCS, anchors, page

PAGES = ("../README.md", *sorted(path.name for path in DOCS.glob("*.md")))
LINKED = (*PAGES, "../benchmarks/README.md", "../calibration/README.md")
MOST_WORDS = 42_000
"""Of all pages."""
MOST_NEWS = 8_000
"""Words of the current release in CHANGELOG.md."""
FIRST_SCREEN = 30
"""Lines that a reader sees first."""
MODULE = re.compile(r"\bsimulator[./]\w")


def opening(name: str) -> str:
    """What stands before the second heading, as far as it is on the first screen."""
    lines = page(name).splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("## ") and name != "../README.md"]
    return "\n".join(lines[: min([*ends, FIRST_SCREEN])])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_with_a_command(name: str) -> None:
    shown = opening(name)
    assert re.search(r"^```sh\n(?:simulate|python|.*simulate)", shown, flags=re.MULTILINE)
    assert not MODULE.search(shown)


@pytest.mark.parametrize("name", LINKED)
def test_links_lead_somewhere(name: str) -> None:
    folder = (DOCS / name).parent
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page(name)):
        file, _, anchor = target.partition("#")
        leads_to = folder / file if file else DOCS / name
        assert leads_to.exists(), target
        if anchor:
            assert anchor in anchors(leads_to.read_text(encoding="utf-8")), target


def test_the_pages_are_few_words() -> None:
    counts = {name: len(page(name).split()) for name in PAGES}
    assert sum(counts.values()) <= MOST_WORDS, counts


def test_the_news_are_few_words() -> None:
    _, newest, *_ = re.split(r"^## \[", page("../CHANGELOG.md"), flags=re.MULTILINE)
    assert len(newest.split()) <= MOST_NEWS
