"""Formulas of docs/model.md have numbers, which docstrings of `simulator.cost` cite."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import page

COST = Path(__file__).resolve().parents[2] / "simulator" / "cost"
NUMBER = re.compile(r"\b[MT]\d+\b")
PARAGRAPH = 30
"""Words from which a cell of a table is a paragraph."""


def docstrings() -> Iterator[str]:
    for file in COST.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield ast.get_docstring(node) or ""


def stated(start: str) -> list[str]:
    return re.findall(rf"^{start}([MT]\d+)\b", page("model.md"), re.MULTILINE)


def test_formulas_are_numbered_in_turn_and_each_is_cited() -> None:
    paragraphs, rows = stated(r"(?:- )?\*\*"), stated(r"\| ")
    assert len(set(paragraphs)) == len(paragraphs)
    numbers = {*paragraphs, *rows}
    for kind in "MT":
        own = {int(number[1:]) for number in numbers if number[0] == kind}
        assert own == set(range(1, len(own) + 1)), kind
    assert {match[0] for text in docstrings() for match in NUMBER.finditer(text)} == numbers


def test_no_cell_of_a_table_is_a_paragraph() -> None:
    cells = [
        cell.strip() for line in page("model.md").splitlines() if line.startswith("|") for cell in line.split(" | ")
    ]
    assert [cell for cell in cells if len(cell.split()) > PARAGRAPH] == []
