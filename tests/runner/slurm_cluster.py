"""A Slurm cluster of a few nodes on this machine, in one folder, for as long as a test takes."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.runner.ports import held_ports
from tests.runner.trees import processes_with, until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol", "srun")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout=300
KillWait=2
MinJobAge=300
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster."""

    nodes: int
    environment: dict[str, str]
    """What its programs need to find it."""

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False, timeout=60
        )
        return done.stdout + done.stderr


def missing() -> str:
    """Why no cluster can be started here; empty where one can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "slurmd starts only as root"
    absent = [name for name in PROGRAMS if _program(name) is None]
    return f"not installed: {', '.join(absent)} (Debian: slurm-wlm, slurmd, slurmctld, slurm-client, munge)" * bool(
        absent
    )


@contextmanager
def cluster(folder: Path, nodes: int = 3) -> Iterator[Cluster]:
    """Start a cluster in a folder, and end all of its processes."""
    folder.mkdir()
    file = folder / "slurm.conf"
    with ExitStack() as stack:
        ports = stack.enter_context(held_ports(nodes + 1))
        file.write_text(_configuration(folder, ports), encoding="utf-8")
        (folder / "state").mkdir()
        daemons: list[subprocess.Popen[bytes]] = []
        stack.callback(end_all, folder, daemons)
        daemons.append(_munge(folder))
        # In the foreground, so that the folder stands in the command line of each.
        daemons.append(_start(folder, "slurmctld", "-D", "-f", str(file)))
        for number in range(1, nodes + 1):
            (folder / f"spool-n{number}").mkdir()
            daemons.append(_start(folder, "slurmd", "-D", "-N", f"n{number}", "-f", str(file)))
        found = Cluster(nodes, {"SLURM_CONF": str(file)})
        _wait(lambda: found.ask("sinfo", "--noheader", "--format=%T %D").split() == ["idle", str(nodes)], folder)
        yield found


def _configuration(folder: Path, ports: list[int]) -> str:
    """What the daemons read: the controller has the first port, and each node one of the others."""
    host = socket.gethostname()
    names = ",".join(f"n{number}" for number in range(1, len(ports)))
    lines = [
        f"NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=1000 State=UNKNOWN"
        for number, port in enumerate(ports[1:], start=1)
    ]
    lines.append(f"PartitionName=test Nodes={names} Default=YES MaxTime=60 State=UP")
    return CONFIGURATION.format(host=host, ports=ports, folder=folder) + "\n".join(lines) + "\n"


def end_all(folder: Path, daemons: list[subprocess.Popen[bytes]]) -> None:
    """End what was started in the folder, and what came from it: a job's steps name it too."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + 10.0
        while (left := processes_with(str(folder))) and time.monotonic() < end:
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, number)
            for daemon in daemons:
                daemon.poll()
            time.sleep(0.1)
    for daemon in daemons:
        daemon.wait(timeout=60)


def _munge(folder: Path) -> subprocess.Popen[bytes]:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    words = [f"--{name}={folder}/munge.{name}" for name in ("socket", "pid-file", "seed-file", "log-file")]
    daemon = _start(folder, "munged", "--foreground", "--force", f"--key-file={key}", *words)
    _wait((folder / "munge.socket").exists, folder)
    return daemon


def _start(folder: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    with (folder / "output.log").open("ab") as log:
        return subprocess.Popen(
            [str(_program(name)), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _wait(ready: Callable[[], bool], folder: Path) -> None:
    def logs() -> str:
        texts = [path.read_text(encoding="utf-8", errors="replace")[-2000:] for path in folder.glob("*.log")]
        return "the cluster does not start:\n" + "\n".join(texts)

    until(ready, logs)


def _program(name: str) -> str | None:
    """Where a program is; daemons stand in folders that a user's PATH may lack."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))
