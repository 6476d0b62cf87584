"""The pages stay few words, apart from what generators write and what commands print."""

import re

from tests.docs.pages import DOCS

MOST_WORDS = 50_000
_GENERATED = re.compile(r"<!-- ([\w-]+):start -->\n.*?<!-- \1:end -->|<!-- help:\w* -->\n```text\n.*?```", re.DOTALL)
_KEYS = re.compile(r"<!-- keys: .*", re.DOTALL)
_PRINTED = re.compile(r"```text\n.*?```", re.DOTALL)


def words(text: str) -> int:
    """Words that somebody wrote."""
    return len(_KEYS.sub("", _PRINTED.sub("", _GENERATED.sub("", text))).split())


def test_what_is_generated_does_not_count() -> None:
    assert words("a b\n<!-- x:start -->\n| c | d |\n<!-- x:end -->\n```text\nprinted\n```\ne\n") == 3


def test_the_pages_are_at_most_fifty_thousand_words() -> None:
    counts = {path.name: words(path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))}
    for name in ("README.md", "CHANGELOG.md"):
        counts[name] = words((DOCS.parent / name).read_text(encoding="utf-8"))
    assert sum(counts.values()) <= MOST_WORDS, counts
