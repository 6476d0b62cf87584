"""A guarded command leaves no process behind, whoever ends it and however."""

import json
import os
import signal
import site
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.lab.runner import processes
from simulator.lab.runner.processes import Ended, interruptible, run_guarded, with_package
from tests.runner.fakes import ROOT
from tests.runner.trees import PATIENCE_SECONDS, none_left, processes_with, tree_script, until, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked for in /proc")


GUARD = "-m simulator.lab.runner.processes"


def tree(folder: Path, *words: str) -> tuple[str, ...]:
    """A command that starts two ranks, as torchrun would; the folder stands in every command line."""
    return (sys.executable, "-c", tree_script(), str(folder), *words)


def run(folder: Path, *command: str, limit_seconds: float = PATIENCE_SECONDS) -> Ended:
    return run_guarded(command, folder=folder, environment={}, log=folder / "log", limit_seconds=limit_seconds)


@pytest.mark.parametrize(("code", "expected"), [("0", 0), ("7", 7)])
def test_the_exit_code_is_the_commands(code: str, expected: int, tmp_path: Path) -> None:
    found = run(tmp_path, sys.executable, "-c", f"import sys; print('said'); sys.exit({code})")
    assert (found.exit_code, found.timed_out, found.interrupted) == (expected, False, False)
    assert (tmp_path / "log").read_text(encoding="utf-8") == "said\n"


def test_the_log_is_this_launchs_alone(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("MemoryError\n", encoding="utf-8")
    run(tmp_path, sys.executable, "-c", "print('said')")
    assert (tmp_path / "log").read_text(encoding="utf-8") == "said\n"


def test_a_killed_command_shows_the_signal(tmp_path: Path) -> None:
    found = run(tmp_path, sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert found.exit_code == 128 + signal.SIGKILL


def test_environment_and_folder_are_the_launchs(tmp_path: Path) -> None:
    code = "import os, simulator; print(os.environ['RANKS'], os.getcwd())"
    run_guarded(
        (sys.executable, "-c", code),
        folder=tmp_path,
        environment={"RANKS": "4"},
        log=tmp_path / "log",
        limit_seconds=PATIENCE_SECONDS,
    )
    assert (tmp_path / "log").read_text(encoding="utf-8").split() == ["4", str(tmp_path)]


def test_the_time_limit_ends_ranks_in_other_sessions(tmp_path: Path) -> None:
    found = run(tmp_path, *tree(tmp_path, "deaf"), limit_seconds=5.0)
    assert (found.exit_code, found.timed_out) == (None, True)
    assert "started" in (tmp_path / "log").read_text(encoding="utf-8")
    assert processes_with(str(tmp_path)) == {}


def test_ranks_that_outlive_their_launcher_are_ended(tmp_path: Path) -> None:
    assert run(tmp_path, *tree(tmp_path, "leave")).exit_code == 3
    assert processes_with(str(tmp_path)) == {}


INTERRUPTED = """
import json, sys
from pathlib import Path
from simulator.lab.runner.processes import interruptible, run_guarded
from tests.runner.trees import as_at_a_terminal
as_at_a_terminal()
folder = Path(sys.argv[1])
with interruptible() as came:
    found = run_guarded(
        tuple(sys.argv[2:]), folder=folder, environment={}, log=folder / "log", limit_seconds=600.0
    )
print(json.dumps([found.exit_code, found.interrupted, came.number]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interruption_ends_all_and_is_told(number: int, tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), *tree(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as parent:
        wait_for(str(tmp_path), 5)  # the parent, the guard, what starts the ranks, and they
        parent.send_signal(number)
        told, _ = parent.communicate(timeout=PATIENCE_SECONDS)
    assert json.loads(told) == [None, True, number]
    assert processes_with(str(tmp_path)) == {}


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


PARENT = """
import sys
from pathlib import Path
from simulator.lab.runner.processes import run_guarded
folder = Path(sys.argv[1])
run_guarded(tuple(sys.argv[2:]), folder=folder, environment={}, log=folder / "log", limit_seconds=600.0)
"""


@pytest.mark.parametrize("victim", ["parent", "guard", "launcher"])
def test_no_rank_survives_whoever_is_killed(victim: str, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), *tree(tmp_path)], env=with_package(dict(os.environ))
    )
    wait_for(str(tmp_path), 5)
    marks = {"guard": GUARD, "launcher": "start_new_session=True"}
    found = {
        pid: line
        for pid, line in processes_with(str(tmp_path)).items()
        if victim != "parent" and marks[victim] in line and pid != parent.pid
        if victim == "guard" or GUARD not in line
    }
    pid = parent.pid if victim == "parent" else min(found)
    os.kill(pid, signal.SIGKILL)
    parent.wait(timeout=PATIENCE_SECONDS)
    assert none_left(str(tmp_path)) == {}


RANKED = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
rank = """
import sys, time
from simulator.lab.trainer.process import end_with_parent
end_with_parent()
print("knows whose end is its own", flush=True)
time.sleep(600)
"""
subprocess.Popen([sys.executable, "-c", rank, sys.argv[1]], start_new_session=True).wait()
'''


def test_no_rank_survives_the_parent_and_the_guard(tmp_path: Path) -> None:
    command = (sys.executable, "-c", RANKED, str(tmp_path))
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), *command], env=with_package(dict(os.environ))
    )
    wait_for(str(tmp_path), 4)
    log = tmp_path / "log"
    until(lambda: log.exists() and "knows" in log.read_text(encoding="utf-8"))
    [guard] = [pid for pid, line in processes_with(str(tmp_path)).items() if GUARD in line]
    os.kill(guard, signal.SIGSTOP)  # so that it cannot end anything in between
    for pid in (parent.pid, guard):
        os.kill(pid, signal.SIGKILL)
    parent.wait(timeout=PATIENCE_SECONDS)
    assert none_left(str(tmp_path)) == {}


def test_a_guard_that_hangs_is_ended_with_what_it_guards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = "import subprocess, sys, time; subprocess.Popen(sys.argv[2:]); time.sleep(600)"
    monkeypatch.setattr(processes, "_GUARD_SECONDS", 0.5)
    monkeypatch.setattr(
        processes, "_guarded", lambda pipe, command: [sys.executable, "-c", hanging, str(pipe), *command]
    )
    found = run(tmp_path, sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path), limit_seconds=1.0)
    assert found.timed_out
    assert processes_with(str(tmp_path)) == {}


def test_an_installed_package_is_not_put_before_the_standard_library(monkeypatch: pytest.MonkeyPatch) -> None:
    root = str(Path(processes.__file__).resolve().parents[3])
    assert with_package({"PYTHONPATH": "own"})["PYTHONPATH"] == f"{root}{os.pathsep}own"
    assert with_package({})["PYTHONPATH"] == root
    monkeypatch.setattr(site, "getsitepackages", lambda: [root])
    assert with_package({}) == {}
