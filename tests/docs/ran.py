"""Commands on the pages with what they print; `python -m tools.regenerate commands` writes the output anew.

On a page a command and its output are two fenced blocks, `sh` and `text`, right behind `<!-- ran -->`.
"""

import re
import shlex
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cli.running import run
from tests.docs.pages import DOCS

BLOCK = re.compile(r"<!-- ran -->\n```sh\n(.*?)```\n\n```text\n(.*?)```\n", re.DOTALL)
_TIMED = re.compile(r"in (?:under )?[0-9.]+ s:")


def printed(command: str) -> str:
    """What a command prints on a line of 120 characters, the elapsed time masked."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == "simulate", command
    with TemporaryDirectory() as scratch, chdir(scratch):  # for files that it writes
        Path("examples").symlink_to(DOCS.parent / "examples")
        result = run(*words[1:], env={"COLUMNS": "120"})
    assert result.exit_code in (0, 1), result.stderr
    return "\n".join(line.rstrip() for line in _TIMED.sub("in 0.10 s:", result.stdout).splitlines()) + "\n"


def written_anew(page: str) -> str:
    return BLOCK.sub(lambda b: f"<!-- ran -->\n```sh\n{b[1]}```\n\n```text\n{printed(b[1])}```\n", page)


def generated() -> Mapping[Path, str]:
    pages = {path: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    return {path: written_anew(text) for path, text in pages.items() if BLOCK.search(text)}
