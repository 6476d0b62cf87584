"""Runs the command line inside the test's own process, with stdout and stderr apart."""

import inspect
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner, Result

from simulator.show.cli.main import cli

TINY = ("--model", "llama3.2-1b", "--hardware", "h20", "--devices", "2", "--global-batch-size", "8")
"""A question that is answered at once."""


def run(*args: str, env: Mapping[str, str] | None = None, **settings: Any) -> Result:
    """Run `simulate` with ``args``."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    return CliRunner(**apart).invoke(cli, list(args), env=env, **settings)


def refusal(*args: str, code: int = 2, env: Mapping[str, str] | None = None) -> str:
    """Run what must be refused with ``code``, and return its one line."""
    result = run(*args, env=env)
    assert result.exit_code == code, result.stderr
    assert result.stdout == ""
    assert result.stderr.startswith("simulate: error: ")
    assert result.stderr.endswith("\n")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("simulate: error: ").rstrip("\n")
