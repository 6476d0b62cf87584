"""The linters, the formatter, the type checker and the layer contracts all pass."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

BESIDE_PYTHON = Path(sys.executable).parent
RUNNING = ".".join(map(str, sys.version_info[:2]))
"""numpy's stubs are of the Python that they were installed for."""
CHECKS = {
    "ruff-check": [sys.executable, "-m", "ruff", "check", "--no-cache", "."],
    "ruff-format": [sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "."],
    "mypy": [sys.executable, "-m", "mypy", "--python-version", RUNNING],
    "lint-imports": [str(BESIDE_PYTHON / "lint-imports"), "--no-cache"],
}


@pytest.mark.static
@pytest.mark.parametrize("name", CHECKS)
def test_static_check_passes(name: str) -> None:
    done = subprocess.run(CHECKS[name], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
