"""The output block of the README; `python -m tools.regenerate readme` writes it anew."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "README.md"
WIDE = {**os.environ, "COLUMNS": "120"}
"""As where stdout is no terminal and nobody says how wide it is."""
TIMED = re.compile(r"in (?:under )?[0-9.]+ s:")
_START, _END = "<!-- output:start -->\n", "<!-- output:end -->"


def main_job_output() -> str:
    """The block as it should stand, the elapsed time masked."""
    command = [sys.executable, "-m", "simulator", "--model", "llama3.1-70b", "--nodes", "8"]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=WIDE)
    lines = "\n".join(line.rstrip() for line in TIMED.sub("in 0.03 s:", result.stdout).splitlines())
    return f"```text\n{lines}\n```\n"


def generated() -> Mapping[Path, str]:
    """The page with what the main job prints."""
    before, rest = PAGE.read_text(encoding="utf-8").split(_START)
    return {PAGE: f"{before}{_START}{main_job_output()}{_END}{rest.split(_END, 1)[1]}"}
