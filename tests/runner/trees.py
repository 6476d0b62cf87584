"""Processes for the tests to start, and the search for those that stayed behind."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

TORCHRUN_LIKE = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else signal.SIG_DFL)
ranks = [
    subprocess.Popen([sys.executable, "-c", RANK, sys.argv[1], *sys.argv[2:]], start_new_session=True) for _ in range(2)
]
print("started", flush=True)
if "leave" in sys.argv:
    sys.exit(3)
sys.exit(max(rank.wait() for rank in ranks))
"""
RANK = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in sys.argv else signal.SIG_DFL)
print("rank", flush=True)
time.sleep(600)
"""
"""As torchrun does, the ranks get sessions of their own; `deaf` ones do not end when they are asked to."""


def tree_script() -> str:
    return f"RANK = {RANK!r}\n{TORCHRUN_LIKE}"


def as_at_a_terminal() -> None:
    """Hear signals as a process started at a terminal does; what a script starts in the background ignores some."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def processes_with(text: str) -> dict[int, str]:
    """Processes whose command line holds a text, such as a folder that only the test knows."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found[int(entry.parent.name)] = line
    return found


PATIENCE_SECONDS = 240.0
"""How long a test waits for what must come; it ends a test that hangs, and no verdict depends on it."""


def until(come: Callable[[], object], what: Callable[[], object] = str, pause_seconds: float = 0.02) -> None:
    """Wait until something has come; `what` tells of what has not."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not come():
        assert time.monotonic() < end, what()
        time.sleep(pause_seconds)


def none_left(text: str) -> dict[int, str]:
    """What is still there after a while: nothing, as soon as nothing is."""
    end = time.monotonic() + PATIENCE_SECONDS
    while (found := processes_with(text)) and time.monotonic() < end:
        time.sleep(0.05)
    return found


def wait_for(text: str, count: int) -> None:
    """Wait until so many processes have a text in their command line."""
    until(lambda: len(processes_with(text)) >= count, lambda: processes_with(text))
