"""The linters, the formatter, the type checker and the layer contracts all pass."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.project.tree import ROOT

BESIDE_PYTHON = Path(sys.executable).parent
TYPED = tuple(
    map(int, tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["python_version"].split("."))
)
CHECKS = {
    "ruff-check": [sys.executable, "-m", "ruff", "check", "--no-cache", "."],
    "ruff-format": [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."],
    "mypy": [sys.executable, "-m", "mypy"],
    "lint-imports": [str(BESIDE_PYTHON / "lint-imports"), "--no-cache"],
}


@pytest.mark.static
@pytest.mark.parametrize("name", CHECKS)
def test_static_check_passes(name: str) -> None:
    if name == "mypy" and sys.version_info[:2] != TYPED:
        pytest.skip(
            "types are checked as of the oldest Python: numpy's stubs for a later one are no Python of that age"
        )
    done = subprocess.run(CHECKS[name], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
