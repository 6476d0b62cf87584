"""Guard process between this one and a launch, which leaves none of the launch's processes behind.

A launcher such as torchrun starts its ranks in sessions of their own: a signal to its process group does not reach
them, and when it is killed they live on. So a guard starts the launcher and watches a pipe whose other end the parent
holds. When the parent closes it, or dies in whatever way, every process that came from the launcher is ended. The
guard is a subreaper (Linux): a process that lost its parent becomes the guard's child, where it is found again.

Only the standard library is imported: it runs as `python -m simulator.lab.runner.guard PIPE GRACE_SECONDS COMMAND...`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36
_KILL_SECONDS = 10.0
"""Time for killed processes to disappear; a driver can hold one for good."""
_TICK_SECONDS = 0.1
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_C_LIBRARY = ctypes.CDLL(None)


def guard(pipe: int, grace_seconds: float, command: list[str]) -> int:
    """Run a command until it ends or `pipe` is closed, end its remaining processes, and return its exit code.

    A command ended by a signal gives 128 and the signal's number, as a shell does.
    """
    adopt_orphans(adopt=True)
    # Orders to the guard come through the pipe; a signal to all processes must not end it before the others.
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen(command, start_new_session=True, preexec_fn=_begin)  # noqa: PLW1509, S603  no threads here
    code: int | None = None
    while code is None:
        ready, _, _ = select.select([pipe], [], [], _TICK_SECONDS)
        if ready:
            break
        code = child.poll()
        _reap(child.pid)
    _end(child, 0.0 if code is not None else grace_seconds)
    code = child.poll() if code is None else code
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def descendants(ancestor: int) -> list[int]:
    """Return the processes that come from one, by the parents that `/proc` names; zombies are left out."""
    children: dict[int, list[int]] = {}
    dead: set[int] = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            # The command's name stands in brackets and may hold anything; state and parent follow the last bracket.
            state, parent = entry.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[:2]
            pid = int(entry.parent.name)
            children.setdefault(int(parent), []).append(pid)
            if state in ("Z", "X"):
                dead.add(pid)
    processes: list[int] = []
    waiting = [ancestor]
    while waiting:
        mine = children.get(waiting.pop(), [])
        processes += mine
        waiting += mine
    return [pid for pid in processes if pid not in dead]


def _end(child: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """End the child and all its descendants: ask first, kill after the grace."""
    until = time.monotonic() + grace_seconds
    if grace_seconds > 0.0:
        _signal_all(child.pid, signal.SIGTERM)
    while time.monotonic() < until and _alive(child):
        time.sleep(_TICK_SECONDS)
    until = time.monotonic() + _KILL_SECONDS
    # Repeated, as a process may start another between the look and the signal.
    while _alive(child):
        _signal_all(child.pid, signal.SIGKILL)
        if time.monotonic() > until:
            remaining = ", ".join(map(str, descendants(os.getpid())))
            print(f"simulate: processes that cannot be ended: {remaining}", file=sys.stderr)  # noqa: T201  into the log
            return
        time.sleep(_TICK_SECONDS)


def _alive(child: subprocess.Popen[bytes]) -> bool:
    ended = child.poll() is not None
    _reap(child.pid)
    return not ended or bool(descendants(os.getpid()))


def _signal_all(child: int, number: int) -> None:
    """Signal the child's process group, and every descendant in whichever group it is."""
    with suppress(OSError):
        os.killpg(child, number)
    for pid in descendants(os.getpid()):
        with suppress(OSError):
            os.kill(pid, number)


def _reap(child: int) -> None:
    """Take the exit codes of orphans that became children of this process; the command's own is left to its owner."""
    for pid in _orphans(child):
        with suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def _orphans(child: int) -> list[int]:
    with suppress(OSError):
        listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8")
        return [int(pid) for pid in listed.split() if int(pid) != child]
    return []


def _begin() -> None:
    """Prepare the command's process: default signals, and its death with the guard's.

    Asked to end, it may wait for ranks that nobody ends; ranks of the reference trainer in turn end with it.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    _control(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def adopt_orphans(*, adopt: bool) -> None:
    """Make descendants that lose their parent children of this process, or no longer."""
    _control(_SET_CHILD_SUBREAPER, int(adopt))


def _control(option: int, value: int) -> None:
    """Call prctl, which only Linux has."""
    with suppress(AttributeError):
        _C_LIBRARY.prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
