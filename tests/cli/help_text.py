"""The help of every command as `docs/cli.md` holds it; `python -m tests.cli.help_text` writes it anew."""

import re
from pathlib import Path

from tests.cli.running import run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
BLOCKS = (
    "",
    "rank",
    "estimate",
    "plan",
    "compare",
    "explain",
    "models",
    "hardware",
    "frameworks",
    "calibrate",
    "accuracy",
    "check",
    "emit",
    "trace",
    "validate",
)
_BLOCK = re.compile(r"<!-- help:([a-z]*) -->\n```text\n(.*?)```\n", re.DOTALL)


def help_of(name: str) -> str:
    return run(*name.split(), "--help", terminal_width=100).stdout


def documented() -> dict[str, str]:
    return dict(_BLOCK.findall(PAGE.read_text(encoding="utf-8")))


def written_anew(page: str) -> str:
    return _BLOCK.sub(lambda found: f"<!-- help:{found[1]} -->\n```text\n{help_of(found[1])}```\n", page)


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
