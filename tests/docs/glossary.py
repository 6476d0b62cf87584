"""The tables of docs/glossary.md that the code holds; `python -m tools.regenerate glossary` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from simulator.question.scenario.layout import SETTINGS
from simulator.search.rules import ACROSS_NODES, RULES
from tests.docs.pages import DOCS

PAGE = DOCS / "glossary.md"


def _fields() -> Iterator[str]:
    yield "| field | option | a search tries |"
    yield "|---|---|---|"
    yield from (f"| `{setting.name}` | `{setting.option}` | {setting.search} |" for setting in SETTINGS)
    yield "| `tensor_parallel_across_nodes` | `--allow-tp-across-nodes` | no |"


def _rules() -> Iterator[str]:
    yield "| rule | what must hold |"
    yield "|---|---|"
    yield from (f"| `{rule.id}` rule | {rule.about} |" for rule in (*RULES, ACROSS_NODES))


def generated() -> Mapping[Path, str]:
    """The page with fresh tables."""
    text = PAGE.read_text(encoding="utf-8")
    for name, lines in (("layout-fields", _fields()), ("layout-rules", _rules())):
        start, end = f"<!-- {name}:start -->\n", f"<!-- {name}:end -->"
        before, rest = text.split(start)
        text = f"{before}{start}" + "\n".join([*lines, ""]) + end + rest.split(end, 1)[1]
    return {PAGE: text}
