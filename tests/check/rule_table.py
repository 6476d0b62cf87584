"""The table of docs/check.md, made of the rules themselves; `python -m tools.regenerate rules` writes it."""

from collections.abc import Mapping
from pathlib import Path

from simulator.answers.rules import FRAMEWORK_RULES
from tests.docs.pages import DOCS

PAGE = DOCS / "check.md"
_HEAD = "| rule | what must hold | holds for | read at |\n"


def rendered() -> str:
    rows = [f"| `{rule.id}` | {rule.about} | {rule.versions} | {rule.source} |" for rule in FRAMEWORK_RULES]
    return "\n".join([_HEAD + "|---|---|---|---|", *rows, ""])


def generated() -> Mapping[Path, str]:
    """The page with a fresh table."""
    before, rest = PAGE.read_text(encoding="utf-8").split(_HEAD)
    kept = rest.splitlines(keepends=True)
    while kept and kept[0].startswith("|"):
        del kept[0]
    return {PAGE: before + rendered() + "".join(kept)}
