"""Commands run to their end, their time limit or an interruption, with no process left behind.

Knows nothing of training: a command, a log, a limit.
"""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from simulator.lab.runner.engine import Ended
from simulator.lab.runner.guard import adopt_orphans, descendants

GRACE_SECONDS = 3.0
"""Time for processes to end, once asked to, before they are killed."""
_GUARD_SECONDS = GRACE_SECONDS + 12.0
"""Time for the guard to end everything: the grace, and its wait for killed processes."""
_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_guarded(
    command: tuple[str, ...], *, folder: Path, environment: Mapping[str, str], log: Path, limit_seconds: float
) -> Ended:
    """Run a command with its output alone in `log`, and leave no process of it behind."""
    started = time.monotonic()
    reading, writing = os.pipe()
    guard: subprocess.Popen[bytes] | None = None
    code: int | None = None
    timed_out = interrupted = False
    others = set(descendants(os.getpid()))
    adopt_orphans(adopt=True)  # should the guard be killed, its processes become children of this one
    try:
        # Emptied of an earlier launch's output; appended to, as the processes may open it themselves.
        log.write_bytes(b"")
        with log.open("ab") as stream:
            guard = subprocess.Popen(  # noqa: S603  the command is an engine's
                _guarded(reading, command),
                cwd=folder,
                env=with_package({**os.environ, **environment}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                pass_fds=(reading,),
                start_new_session=True,
            )
        code = guard.wait(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        timed_out = True
    except KeyboardInterrupt:
        interrupted = True
    finally:
        with signals_blocked():
            # The closed pipe, or the death of this process, is the guard's order to end everything.
            os.close(writing)
            os.close(reading)
            if guard is not None:
                _wait_for(guard)
            if guard is not None and guard.returncode < 0:
                _kill(set(descendants(os.getpid())) - others)
            adopt_orphans(adopt=False)
    seconds = time.monotonic() - started
    return Ended(exit_code=code, log=log, wall_seconds=seconds, timed_out=timed_out, interrupted=interrupted)


def _guarded(reading: int, command: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "simulator.lab.runner.guard", str(reading), str(GRACE_SECONDS), *command]


def _wait_for(guard: subprocess.Popen[bytes]) -> None:
    """Wait until the guard has ended everything; one that does not is killed."""
    try:
        guard.wait(timeout=_GUARD_SECONDS)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()


def _kill(orphans: set[int]) -> None:
    """Kill the processes that a killed guard left."""
    for pid in orphans:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in orphans:
        with suppress(OSError):
            os.waitpid(pid, 0)


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with a path by which a new interpreter in any folder imports this package.

    A folder of installed packages is searched anyway; put first it would hide the standard library's modules.
    """
    root = str(Path(__file__).resolve().parents[3])
    result = dict(environment)
    searched = [*site.getsitepackages(), site.getusersitepackages()]
    own = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if root not in [os.path.realpath(folder) for folder in (*searched, *own)]:
        result["PYTHONPATH"] = os.pathsep.join([root, *own])
    return result


def python_path() -> dict[str, str]:
    """Return the variable by which an interpreter elsewhere imports this package; empty where it needs none."""
    path = with_package(os.environ).get("PYTHONPATH")
    return {"PYTHONPATH": path} if path else {}


@dataclass(slots=True)
class Interruption:
    """Signal that asked this process to stop."""

    number: int = field(default=0)
    """Number of the signal; 0 as long as none came."""


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the signals that end a process into KeyboardInterrupt, so that launches are ended and rows kept."""
    came = Interruption()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        came.number = number
        raise KeyboardInterrupt

    # A signal that the caller had ignored, such as SIGHUP under nohup, stays so.
    heard = [number for number in _INTERRUPTING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that end a process while something must not be left half done."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
