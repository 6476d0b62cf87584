"""Programs that need torch, in processes forked from one that has imported it: that takes longer than they do.

Some launches start Python anew all the same (`torchrun`, the runner's own, one trace), as users' do.
"""

import multiprocessing
import os
import runpy
import sys
import warnings
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from tests.project.tree import ROOT

IMPORTED = ("simulator.lab.trainer.worker", "simulator.lab.trace.stage", "tests.trainer.frozen")
"""What takes long to import, and what leaves it out of collections; where it cannot be, each process says so itself."""
STREAMS = ("stdin", "stdout", "stderr")


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    return context


def start(module: str, arguments: list[str], environment: Mapping[str, str], folder: Path) -> ForkServerProcess:
    """`python -m module arguments` with this environment, its streams the files stdin (if any), stdout and stderr.

    What is read of the environment at import (threads of OpenMP) is that of the process that starts the first.
    """
    folder.mkdir(exist_ok=True)
    (folder / "stdin").touch()
    process = _context().Process(target=_run, args=(module, arguments, dict(environment), folder))
    process.start()
    return process


def ended(process: ForkServerProcess, limit_seconds: float) -> int:
    """The exit code; a process that still runs by then is killed."""
    process.join(limit_seconds)
    code = process.exitcode
    process.kill()
    process.join()
    process.close()
    assert code is not None, f"still running after {limit_seconds:g} s"
    return code


def _run(module: str, arguments: list[str], environment: dict[str, str], folder: Path) -> None:
    for number, name in enumerate(STREAMS):
        with (folder / name).open("wb" if number else "rb") as stream:
            os.dup2(stream.fileno(), number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # what multiprocessing put there is empty
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(ROOT)
    sys.argv = [module, *arguments]
    warnings.filterwarnings("ignore", "'simulator.*found in sys.modules", RuntimeWarning)  # imported before, on purpose
    runpy.run_module(module, run_name="__main__", alter_sys=True)
