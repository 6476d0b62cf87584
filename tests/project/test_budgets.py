"""Functions and files stay short enough to be read in one go, and the package small enough to be known."""

import ast
import tomllib
from collections.abc import Iterator

from tests.project.tree import ROOT, files_under

LINES_PER_FUNCTION = 60
LINES_PER_FILE = 800


def long_functions(source: str) -> Iterator[str]:
    """Functions of a module that are over the budget, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LINES_PER_FUNCTION:
                yield f"{node.name}: {lines} lines"


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """Path and text of every Python file of the folders."""
    for folder in folders:
        for path in files_under(folder, ".py"):
            yield path.as_posix(), (ROOT / path).read_text(encoding="utf-8")


def test_a_long_function_is_found() -> None:
    body = "    x = 1\n"
    assert list(long_functions("def f():\n" + body * (LINES_PER_FUNCTION - 1))) == []
    assert list(long_functions("def f():\n" + body * LINES_PER_FUNCTION)) == ["f: 61 lines"]


def test_functions_are_short() -> None:
    assert [f"{path}: {long}" for path, text in sources("simulator", "tools") for long in long_functions(text)] == []


def test_files_are_short() -> None:
    lines = {path: len(text.splitlines()) for path, text in sources("simulator", "tests", "tools", "benchmarks")}
    assert len(lines) > 400
    assert {path: count for path, count in lines.items() if count > LINES_PER_FILE} == {}


def test_the_package_stays_within_its_budget() -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["simulate"]["budget"]
    lines = [len(text.splitlines()) for _, text in sources("simulator")]
    assert sum(lines) <= budget["lines"]
    assert len(lines) <= budget["files"]
