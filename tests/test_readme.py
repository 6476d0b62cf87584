"""The README is true: its Python runs and its links lead somewhere; its output is compared as all that is generated."""

from __future__ import annotations

import contextlib
import io
import re

from tests.docs.readme import PAGE, ROOT


def test_python_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.group(1), {})  # noqa: S102 - the page's own example
    assert "Layout(" in printed.getvalue()


def test_pages_exist() -> None:
    for page in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8")):
        assert (ROOT / page).is_file(), page
