"""What the tests of the pages share: their text, tables and blocks."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def first_cells(text: str) -> list[str]:
    """The first cell of every row of every table, headings and rulers left out."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    kept = [row for row, below in zip(rows, [*rows[1:], ""], strict=True) if not re.match(r"\|[-|]+\|$", below)]
    return [row.split("|")[1].strip() for row in kept if not re.match(r"\|[-|]+\|$", row)]


def code_words(text: str) -> set[str]:
    """Everything in backticks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)))


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def section(text: str, heading: str) -> str:
    """What stands below a heading of the second level, up to the next one."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
