"""Launchers: this machine, one of several started alike, or a Slurm cluster.

    >>> LocalLauncher().run(launch).exit_code
    0
    >>> print(SlurmLauncher(partition="train").command_text(launch))
    #!/bin/bash
    #SBATCH --job-name=simulate-1-llama3.1-8b-tp2-pp1-dp8-mbs1-zero1
    ...

With Slurm a launch is one script that the user can read, change and submit by hand. `sbatch --wait` submits it and
waits for its end, which it sees up to half a minute late; Slurm keeps to the limits (`--time`, `--deadline`), and its
own record of the job says how it ended.
"""

from __future__ import annotations

import re
import secrets
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from simulator.errors import InputError, UnsupportedError, one_line
from simulator.lab.runner.engine import BY_LAUNCHER, NODE_LOG_NAME, Launch, shell_line
from simulator.lab.runner.processes import Ended, python_path, run_guarded

_HERE: Final = "127.0.0.1"
SCRIPT_NAME: Final = "launch.sbatch"
_PROGRAMS: Final = ("sbatch", "srun", "scancel", "scontrol")
_SUBMIT: Final = """
trap '' TERM
sbatch --wait --job-name="$0" "$1" &
trap 'sleep 1; scancel --name="$0"; exit 143' TERM
wait $!
"""
"""Shell that submits a script and waits for its job; asked to end, it cancels the job, by its name.

`sbatch` itself is deaf to that, so that no job is submitted and not known: the second is for it to answer.
"""
_LATE_SECONDS: Final = 180.0
"""Time beyond all limits after which Slurm is not waited for any more."""
_TIMED_OUT: Final = 124
"""Exit code of `timeout` for what it ended."""
_SHARING: Final = ("exclusive", "oversubscribe", "cpus-per-task")
_ACCELERATORS: Final = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")
_OF_LAUNCH: Final = (
    *("array", "chdir", "error", "job-name", "nodes", "ntasks", "ntasks-per-node", "open-mode", "output", "wrap"),
)
"""Options that the launch itself decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher:
    """Launcher that starts the command of one node here: the only node, or one of several started alike."""

    endpoint: str = ""
    """Host and port where the first of several nodes waits for the others; each launch takes the next port."""
    node_rank: int = 0
    """Number of this node, from 0."""
    name: str = "local"

    def check(self, nodes: int) -> None:
        """Raise InputError for several nodes that do not know of each other, or a node that is not one of them."""
        if nodes > 1 and not self.endpoint:
            raise InputError(
                f"--launcher local: starts one node, the layouts take {nodes}; use --launcher slurm, or start this on "
                "each node with --rdzv-endpoint HOST:PORT and its --node-rank"
            )
        if self.node_rank >= nodes:
            raise InputError(f"--node-rank {self.node_rank}: the layouts take {nodes} nodes, numbered from 0")
        if self.endpoint and nodes == 1:
            raise InputError("--rdzv-endpoint: the layouts take one node, which meets no other")

    def command_text(self, launch: Launch) -> str:
        """Return the command line, with the folder it runs in."""
        command = launch.command
        environment = {name: text for name, text in self._node(launch, 0).items() if name != "MASTER_PORT"}
        line = shell_line(command.arguments, python_path() | environment | dict(command.environment))
        return f"cd {shlex.quote(str(command.folder))}\n{line}\n"

    def run(self, launch: Launch) -> Ended:
        """Start the command and wait for its end, its time limit, or an interruption."""
        command = launch.command
        log = launch.log if self.node_rank == 0 else launch.folder / NODE_LOG_NAME.format(node=self.node_rank)
        with held_port() as port:
            return run_guarded(
                command.arguments,
                folder=command.folder,
                environment=self._node(launch, port) | dict(command.environment),
                log=log,
                limit_seconds=launch.limit_seconds,
            )

    def _node(self, launch: Launch, port: int) -> dict[str, str]:
        """Return the variables for the command of a node; torchrun reads its own options from variables too.

        Ranks meet at the endpoint of the nodes, or at a port here.
        """
        host, _, first = self.endpoint.rpartition(":")
        address, number = (host, int(first) + launch.number - 1) if host else (_HERE, port)
        variables = {"NNODES": str(launch.nodes), "NODE_RANK": str(self.node_rank)}
        variables |= {"MASTER_ADDR": address, "MASTER_PORT": str(number)}
        if host:
            variables |= {"PET_NODE_RANK": str(self.node_rank), "PET_RDZV_ENDPOINT": f"{address}:{number}"}
        return variables


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port that nobody listens on, so that the system gives it to nobody else.

    Bound and never listened on: a program that is told the port and sets SO_REUSEADDR, as servers do, can take it.
    """
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HERE, 0))
        yield bound.getsockname()[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLauncher:
    """Launcher that submits a script for each launch and waits for its job."""

    partition: str = ""
    account: str = ""
    options: tuple[str, ...] = ()
    """Further `#SBATCH` lines, without their dashes."""
    gpus: bool = False
    """Whether a node's devices are asked for as GPUs."""
    queue_seconds: float = 3600.0
    """Longest time a job may wait before it starts."""
    name: str = "slurm"

    def check(self, nodes: int) -> None:
        """Raise UnsupportedError where Slurm's programs are missing, InputError for unsafe names."""
        del nodes
        for name, text in (("partition", self.partition), ("account", self.account)):
            if not re.fullmatch(r"[\w.,:@+-]*", text, re.ASCII):
                raise InputError(f"--slurm-{name} {one_line(text)!r}: expected a name without spaces and quotes")
        for option in self.options:
            _check_option(option)
        for program in _PROGRAMS:
            if shutil.which(program) is None:
                raise UnsupportedError(f"--launcher slurm: {program} is not on PATH")

    def command_text(self, launch: Launch) -> str:
        """Return the batch script."""
        command = launch.command
        tasks = launch.devices_per_node if command.rank_arguments else 1
        lines = ["#!/bin/bash", *(f"#SBATCH --{option}" for option in self._options(launch, tasks))]
        environment = python_path() | dict(command.environment)
        lines += [f"export {name}={shlex.quote(text)}" for name, text in environment.items()]
        arguments = shlex.join(command.rank_arguments or command.arguments)
        run = f"bash -c 'export NODE_RANK=$SLURM_NODEID; exec \"$@\"' rank {arguments}"
        lines += [
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            # A node is reached at the address that Slurm itself uses; its name need not resolve.
            'MASTER_ADDR=$(scontrol show node "$first" --oneliner | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
            "export MASTER_ADDR=${MASTER_ADDR:-$first} MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            "export NNODES=$SLURM_JOB_NUM_NODES",
            # Slurm itself counts whole minutes.
            f"timeout --kill-after=30 {launch.limit_seconds:g} srun --label --kill-on-bad-exit=1 --cpu-bind=none {run}",
        ]
        return "\n".join(lines) + "\n"

    def run(self, launch: Launch) -> Ended:
        """Submit the script and wait for its job's end, its limits, or an interruption."""
        script = launch.folder / SCRIPT_NAME
        script.write_text(self.command_text(launch), encoding="utf-8")
        ended = run_guarded(
            ("bash", "-c", _SUBMIT, f"simulate-{launch.title}-{secrets.token_hex(4)}", str(script)),
            folder=launch.folder,
            environment={},
            log=launch.log,
            limit_seconds=self.queue_seconds + launch.limit_seconds + _LATE_SECONDS,
        )
        with launch.log.open(encoding="utf-8", errors="replace") as lines:  # a site's own notices may come first
            job = next(filter(None, (re.match(r"Submitted batch job (\d+)", line) for line in lines)), None)
        return ended if job is None or ended.exit_code is None else self._recorded(launch, ended, job[1])

    def _recorded(self, launch: Launch, ended: Ended, job: str) -> Ended:
        """Return the end of a job as Slurm recorded it; the log is told why one did not end by itself."""
        command = ("scontrol", "show", "job", "--oneliner", job)
        known = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  Slurm's own program
        record = dict(re.findall(r"\b(JobState|Reason|ExitCode|NodeList|RunTime)=(\S+)", known.stdout))
        if not record:
            return ended
        state = record["JobState"]
        code, _, signal = record["ExitCode"].partition(":")
        ended = replace(ended, wall_seconds=_seconds(record["RunTime"]))
        if int(code) == _TIMED_OUT:
            return replace(ended, exit_code=None, timed_out=True)
        if state in ("COMPLETED", "FAILED"):
            return replace(ended, exit_code=int(code) or (int(signal) and 128 + int(signal)))
        words = " ".join(f"{name}={word}" for name, word in record.items())
        note = f"waited in the queue for {self.queue_seconds:g} s" if state == "DEADLINE" else f"ended early: {words}"
        with launch.log.open("a", encoding="utf-8") as stream:
            stream.write(f"{BY_LAUNCHER}job {job} {note}\n")
        return replace(ended, exit_code=None, timed_out=state in ("DEADLINE", "TIMEOUT"))

    def _options(self, launch: Launch, tasks: int) -> Iterator[str]:
        replaced = {option.partition("=")[0].strip() for option in self.options}
        folder = launch.folder
        yield f"job-name=simulate-{launch.title}"
        yield f"nodes={launch.nodes}"
        yield f"ntasks-per-node={tasks}"
        minutes = int(launch.limit_seconds // 60) + 2
        yield f"time={minutes}"
        yield f"deadline=now+{int(self.queue_seconds) + 60 * minutes}"
        yield f"chdir={shlex.quote(str(folder))}"
        yield f"output={shlex.quote(str(launch.log).replace('%', '%%'))}"
        yield "open-mode=append"
        yield "no-requeue"
        if self.partition:
            yield f"partition={self.partition}"
        if self.account:
            yield f"account={self.account}"
        if self.gpus and not replaced.intersection(_ACCELERATORS):
            yield f"gpus-per-node={launch.devices_per_node}"
        if not replaced.intersection(_SHARING):
            yield "exclusive"  # neighbours on a node would be measured too
            if not replaced.intersection(_MEMORY):
                yield "mem=0"  # all of the node's: a cluster's usual share may be too small for a launch
        yield from self.options


def _check_option(option: str) -> None:
    """Raise InputError for an option that is not one line of a script, or is the launch's own."""
    where = f"--slurm-option {one_line(option)!r}"
    try:
        single = len(shlex.split(option)) == 1
    except ValueError:  # a quote that is not closed
        single = False
    if not (single and option.isprintable() and re.match(r"[A-Za-z][A-Za-z-]*(=|$)", option)):
        raise InputError(f"{where}: expected NAME or NAME=VALUE, with a value that has spaces in quotes")
    name = option.partition("=")[0]
    if name in _OF_LAUNCH:
        raise InputError(f"{where}: {name} follows from the launch")


def _seconds(clock: str) -> float:
    """Return the seconds of Slurm's `days-hours:minutes:seconds`."""
    days, _, time = clock.rpartition("-")
    hours, minutes, seconds = map(int, time.split(":"))
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)
