"""Commands run to their end, their time limit or an interruption, with none of their processes left behind.

A launcher such as torchrun starts its ranks in sessions of their own: a signal to its process group does not reach
them, and when it is killed they live on. So a guard, a process of this module, starts the command and watches a pipe
whose other end its parent holds. When the parent closes it, or dies in whatever way, every process that psutil finds
below the guard is ended. The guard adopts those that lose their parent (Linux), so that they are found again.
"""

from __future__ import annotations

import os
import select
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from simulator.lab.trainer.process import adopt_orphans, end_with_parent
from simulator.records import Record

GRACE_SECONDS = 3.0
"""Time for processes to end, once asked to, before they are killed."""
_KILL_SECONDS = 10.0  # time for killed processes to disappear; a driver can hold one for good
_GUARD_SECONDS = GRACE_SECONDS + _KILL_SECONDS + 2.0  # time for the guard to end everything
_TICK_SECONDS = 0.1
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # signals that ask a process to end


class Ended(Record, kw_only=True):
    """End of a command."""

    exit_code: int | None
    """Status of the first node that failed, else 0; None where it was ended from outside."""
    log: Path
    """File with its output, that of all nodes."""
    wall_seconds: float = 0.0
    """Seconds from the start of its processes, or of its job, to their end."""
    timed_out: bool = False
    interrupted: bool = False


def run_guarded(
    command: tuple[str, ...], *, folder: Path, environment: Mapping[str, str], log: Path, limit_seconds: float
) -> Ended:
    """Run a command with its output alone in `log`, and leave no process of it behind."""
    started = time.monotonic()
    reading, writing = os.pipe()
    guard: subprocess.Popen[bytes] | None = None
    code: int | None = None
    timed_out = interrupted = False
    others = {process.pid for process in _descendants()}
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
            if guard is not None and not _ends(guard):
                end_all(lambda: [process for process in _descendants() if process.pid not in others])
            adopt_orphans(adopt=False)
    seconds = time.monotonic() - started
    return Ended(exit_code=code, log=log, wall_seconds=seconds, timed_out=timed_out, interrupted=interrupted)


def _guarded(reading: int, command: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "simulator.lab.runner.processes", str(reading), *command]


def _ends(guard: subprocess.Popen[bytes]) -> bool:
    """Wait until the guard has ended everything; tell whether it did, as one that hangs is killed."""
    try:
        guard.wait(timeout=_GUARD_SECONDS)
    except subprocess.TimeoutExpired:
        guard.kill()
        guard.wait()
    return guard.returncode >= 0


def guard(pipe: int, command: list[str]) -> int:
    """Run a command until it ends or `pipe` is closed; end its processes; return its exit code as a shell does."""
    adopt_orphans(adopt=True)
    # Orders to the guard come through the pipe; a signal to all processes must not end it before the others.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=_begin)  # noqa: PLW1509, S603  no threads here
    while child.poll() is None and not select.select([pipe], [], [], _TICK_SECONDS)[0]:
        pass
    code = child.returncode
    left = end_all(_descendants, 0.0 if code is not None else GRACE_SECONDS)
    if left:
        print(f"simulate: processes that cannot be ended: {left}", file=sys.stderr)  # noqa: T201  into the log
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def _begin() -> None:
    """Prepare the command's process: default signals, and its death with the guard's.

    Asked to end, it may wait for ranks that nobody ends; ranks of the reference trainer in turn end with it.
    """
    for number in _ENDING:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()


def _descendants() -> list[Any]:
    """Return the processes that come from this one."""
    import psutil  # noqa: PLC0415  only a launch needs it

    return list(psutil.Process().children(recursive=True))


def end_all(processes: Callable[[], list[Any]], grace_seconds: float = GRACE_SECONDS) -> list[int]:
    """End processes, listed again and again: ask first, kill after the grace. Return those that are still there."""
    import psutil  # noqa: PLC0415  only a launch needs it

    ending = processes() if grace_seconds else []
    for process in ending:
        with suppress(psutil.Error):
            process.terminate()
    psutil.wait_procs(ending, timeout=grace_seconds)
    until = time.monotonic() + _KILL_SECONDS
    while (left := processes()) and time.monotonic() < until:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=_TICK_SECONDS)
    return [process.pid for process in left]


def with_package(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with a path by which a new interpreter in any folder imports this package.

    A folder of installed packages is searched anyway; put first it would hide the standard library's modules.
    """
    root = str(Path(__file__).resolve().parents[3])
    result = dict(environment)
    searched = [*site.getsitepackages(), site.getusersitepackages()]
    listed = [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if root not in [os.path.realpath(folder) for folder in (*searched, *listed)]:
        result["PYTHONPATH"] = os.pathsep.join([root, *listed])
    return result


def python_path() -> dict[str, str]:
    """Return the variable by which an interpreter elsewhere imports this package; empty where it needs none."""
    path = with_package(os.environ).get("PYTHONPATH")
    return {"PYTHONPATH": path} if path else {}


@dataclass(slots=True)
class Interruption:
    """Signal that asked this process to stop."""

    number: int = 0
    """Number of the signal; 0 as long as none came."""


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the signals that end a process into KeyboardInterrupt, so that launches are ended and rows kept."""
    came = Interruption()

    def stop(number: int, _frame: FrameType | None) -> None:
        came.number = number
        raise KeyboardInterrupt

    # A signal that the caller had ignored, such as SIGHUP under nohup, stays so.
    heard = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block the signals that end a process while something must not be left half done."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:]))
