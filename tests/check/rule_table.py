"""The table of docs/check.md, made of the rules themselves; `python -m tools.regenerate rules` writes it."""

from collections.abc import Mapping
from pathlib import Path

from simulator.answers.rules import FRAMEWORK_RULES
from tests.docs.pages import DOCS

PAGE = DOCS / "check.md"
_HEAD = "| rule | what must hold | holds for |\n"


_SHORT = {"Megatron-core ": "core ", " and later": "+", "PaddleNLP 2.6 to 3, PaddleFormers, ERNIEKit": "Paddle"}
"""Words of versions, as the page's sentence above the table shortens them."""


def rendered() -> str:
    rows = []
    for rule in FRAMEWORK_RULES:
        versions = rule.versions
        for words, short in _SHORT.items():
            versions = versions.replace(words, short)
        rows.append(f"| `{rule.id}` | {rule.about} | {versions} |")
    return "\n".join([_HEAD + "|---|---|---|", *rows, ""])


def generated() -> Mapping[Path, str]:
    """The page with a fresh table."""
    before, rest = PAGE.read_text(encoding="utf-8").split(_HEAD)
    kept = rest.splitlines(keepends=True)
    while kept and kept[0].startswith("|"):
        del kept[0]
    return {PAGE: before + rendered() + "".join(kept)}
