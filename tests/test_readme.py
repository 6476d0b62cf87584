"""The README is true: its output is the program's, its Python runs, its accuracy figures are the recorded ones."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
WIDE = {**os.environ, "COLUMNS": "120"}
"""As where stdout is no terminal and nobody says how wide it is."""
TIMED = re.compile(r"in (?:under )?[0-9.]+ s:")


def block(name: str, text: str) -> str:
    """What stands between the markers of `name`."""
    found = re.search(rf"<!-- {name}:start -->\n(.*?)<!-- {name}:end -->", text, re.DOTALL)
    assert found, f"README.md has no {name} markers"
    return found.group(1)


def main_job_output() -> str:
    """The output block as it should stand, the elapsed time masked."""
    command = [sys.executable, "-m", "simulator", "--model", "llama3.1-70b", "--nodes", "8"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=WIDE)
    lines = "\n".join(line.rstrip() for line in TIMED.sub("in 0.03 s:", result.stdout).splitlines())
    return f"```text\n{lines}\n```\n"


def test_output_is_the_programs() -> None:
    assert block("output", README.read_text(encoding="utf-8")) == main_job_output()


def test_python_example_runs() -> None:
    code = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code.group(1), {})  # noqa: S102 - the page's own example
    assert "Layout(" in printed.getvalue()


def test_pages_exist() -> None:
    for page in re.findall(r"\]\(([^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (ROOT / page).is_file(), page


if __name__ == "__main__":
    page = README.read_text(encoding="utf-8")
    start, end = "<!-- output:start -->\n", "<!-- output:end -->"
    before, after = page.split(start)[0], page.split(end)[1]
    README.write_text(f"{before}{start}{main_job_output()}{end}{after}", encoding="utf-8")
