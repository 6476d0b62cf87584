"""The pages stay few words, apart from the tables that generators write into them.

By hand: `cat docs/*.md README.md | wc -w`, and of CHANGELOG.md the part of the current release.
"""

import re

from tests.docs.pages import DOCS

MOST_WORDS = 50_000
_GENERATED = re.compile(r"<!-- ([\w-]+):start -->\n.*?<!-- \1:end -->", re.DOTALL)
_RELEASE = re.compile(r"^## \[", re.MULTILINE)


def words(text: str) -> int:
    """Words outside of what a generator writes."""
    return len(_GENERATED.sub("", text).split())


def current(changelog: str) -> str:
    """The part of the current release."""
    _, newest, *_ = _RELEASE.split(changelog)
    return newest


def test_what_is_generated_does_not_count() -> None:
    assert words("a b\n<!-- x:start -->\n| c | d |\n<!-- x:end -->\n```text\nprinted\n```\ne\n") == 6


def test_the_pages_are_at_most_fifty_thousand_words() -> None:
    texts = {
        path.name: path.read_text(encoding="utf-8") for path in (*sorted(DOCS.glob("*.md")), DOCS / "../README.md")
    }
    texts["CHANGELOG.md"] = current((DOCS / "../CHANGELOG.md").read_text(encoding="utf-8"))
    counts = {name: words(text) for name, text in texts.items()}
    assert sum(counts.values()) <= MOST_WORDS, counts
