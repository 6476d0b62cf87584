"""The README is true and short: its questions and its Python run, its links lead somewhere."""

from __future__ import annotations

import contextlib
import io
import re
import shlex

import pytest

from tests.cli.running import run
from tests.docs.pages import blocks
from tests.docs.readme import PAGE, ROOT

QUESTIONS = [line.partition("#")[0] for line in blocks(PAGE.read_text(encoding="utf-8"), "sh")[1].splitlines()]


def test_python_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.group(1), {})  # noqa: S102 - the page's own example
    assert "Layout(" in printed.getvalue()


def test_the_readme_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1000


def test_there_are_five_questions() -> None:
    assert len(QUESTIONS) == 5


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered(question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(question)
    paths = [str(path) for word in words if "*" in word for path in sorted(ROOT.glob(word))]
    result = run(*(word for word in words if "*" not in word), *paths)
    assert program == "simulate"
    assert result.exit_code == 0, result.stderr


def test_pages_exist() -> None:
    for page in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (ROOT / page).is_file(), page
