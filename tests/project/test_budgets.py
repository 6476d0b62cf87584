"""Functions and files stay short enough to be read in one go."""

import ast
from pathlib import Path

import pytest

from tests.project.tree import ROOT, files_under

LINES_PER_FUNCTION = 60
LINES_PER_FILE = 500

SOURCES = files_under("simulator", ".py")
TESTS = files_under("tests", ".py")


def long_functions(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LINES_PER_FUNCTION:
                found.append(f"{node.name}: {lines} lines")
    return found


def test_a_long_function_is_found() -> None:
    body = "    x = 1\n"
    assert long_functions("def f():\n" + body * (LINES_PER_FUNCTION - 1)) == []
    assert long_functions("def f():\n" + body * LINES_PER_FUNCTION) == ["f: 61 lines"]


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_functions_are_short(path: Path) -> None:
    assert long_functions((ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=str)
def test_files_are_short(path: Path) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= LINES_PER_FILE
