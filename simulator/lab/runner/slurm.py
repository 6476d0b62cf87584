"""Launches as jobs of a Slurm cluster.

Each launch is one batch script, submitted with sbatch and watched with squeue; accounting (sacct) is not needed, and
`sbatch --wait`, which looks only every half minute, is not used. A package such as submitit would add a way to call
Python functions on the nodes: here they run a command whose results lie in files, so a script says it all, and the
user can read it, change it and submit it by hand.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.errors import InputError, UnsupportedError, one_line
from simulator.lab.runner.diagnosis import BY_LAUNCHER
from simulator.lab.runner.engine import Ended
from simulator.lab.runner.launch import ARRIVE_SECONDS, Launch
from simulator.lab.runner.processes import python_path, signals_blocked

SCRIPT_NAME: Final = "launch.sbatch"
CODE_NAME: Final = "exit-code"
"""File in which the script leaves the exit code, written whole or not at all."""
_PROGRAMS: Final = ("sbatch", "squeue", "scancel", "scontrol")
_ASK_SECONDS: Final = (0.5, 5.0)
"""First and longest time between two looks at the queue."""
_END_SECONDS: Final = 120.0
"""Time for a cancelled job to leave the queue: Slurm kills what does not end by itself after 30 s."""
_SILENT_SECONDS: Final = 300.0
"""Time for which squeue may fail before the job is given up."""
_WAITING: Final = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_SHARING: Final = ("exclusive", "oversubscribe", "cpus-per-task")
_ACCELERATORS: Final = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_MEMORY: Final = ("mem", "mem-per-cpu", "mem-per-gpu")
_OWN: Final = (
    "array",
    "chdir",
    "error",
    "job-name",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "open-mode",
    "output",
    "wrap",
)
"""Options that the launch itself decides."""
_NODE: Final = "NODE_RANK=$SLURM_NODEID"
_RANK: Final = f"{_NODE} RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE="
_KEEPER: Final = "trap '' HUP INT TERM; read -r ended || scancel \"$0\""
"""Script that cancels the job when this process dies before the job's end."""


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
        return self.script(launch)

    def script(self, launch: Launch) -> str:
        """Return the batch script of a launch."""
        command = launch.command
        by_rank = bool(command.rank_arguments)
        tasks = launch.devices_per_node if by_rank else 1
        arguments = command.rank_arguments or command.arguments
        lines = ["#!/bin/bash", *(f"#SBATCH --{option}" for option in self._options(launch, tasks))]
        environment = python_path() | dict(command.environment)
        lines += [f"export {name}={shlex.quote(text)}" for name, text in environment.items()]
        who = f"{_RANK}{tasks}" if by_rank else _NODE
        run = f"bash -c 'export {who}; exec \"$@\"' rank {shlex.join(arguments)}"
        lines += [
            'first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
            # A node is reached at the address that Slurm itself uses; its name need not resolve.
            'MASTER_ADDR=$(scontrol show node "$first" --oneliner | sed -n "s/.* NodeAddr=\\([^ ]*\\).*/\\1/p")',
            "export MASTER_ADDR=${MASTER_ADDR:-$first} MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
            "export NNODES=$SLURM_JOB_NUM_NODES",
            f"srun --label --kill-on-bad-exit=1 --cpu-bind=none {run}",
            f"echo $? > {CODE_NAME}.partial && mv {CODE_NAME}.partial {CODE_NAME}",
        ]
        return "\n".join(lines) + "\n"

    def run(self, launch: Launch) -> Ended:
        """Submit the script and wait for its job's end, its time limit, or an interruption."""
        (launch.folder / SCRIPT_NAME).write_text(self.script(launch), encoding="utf-8")
        # Files of an earlier launch in the folder must not count as this one's.
        launch.log.write_bytes(b"")
        (launch.folder / CODE_NAME).unlink(missing_ok=True)
        watched = _Watched(launch=launch, queue_seconds=self.queue_seconds)
        began = time.monotonic()
        try:
            with signals_blocked():
                watched.submit()
            watched.wait()
        except KeyboardInterrupt:
            watched.interrupted = True
        finally:
            with signals_blocked():
                watched.end()
        return Ended(
            exit_code=watched.exit_code,
            log=launch.log,
            wall_seconds=time.monotonic() - (watched.started or began),
            timed_out=watched.timed_out,
            interrupted=watched.interrupted,
        )

    def _options(self, launch: Launch, tasks: int) -> Iterator[str]:
        replaced = {option.partition("=")[0].strip() for option in self.options}
        folder = launch.folder
        yield f"job-name=simulate-{launch.title}"
        yield f"nodes={launch.nodes}"
        yield f"ntasks-per-node={tasks}"
        # Slurm counts whole minutes; `wait` keeps the limit in seconds, and Slurm this one should this process be gone.
        yield f"time={int(launch.limit_seconds // 60) + 2}"
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
    if name in _OWN:
        raise InputError(f"{where}: {name} follows from the launch")


@dataclass(slots=True, kw_only=True)
class _Watched:
    """Job of a launch, from its submission to its end."""

    launch: Launch
    queue_seconds: float
    job: str = ""
    """Number of the job; empty before it is submitted."""
    keeper: subprocess.Popen[bytes] | None = None
    started: float | None = None
    """Time when it was first seen running."""
    left_queue: bool = False
    """Whether it left the queue by itself."""
    exit_code: int | None = None
    timed_out: bool = False
    interrupted: bool = False

    def submit(self) -> None:
        """Submit the script; without a job number, write the output of sbatch to the log."""
        code, output = _ask("sbatch", "--parsable", str(self.launch.folder / SCRIPT_NAME))
        job = re.match(r"\d+", output)
        if code or job is None:
            self._note(f"sbatch: {output}")
            self.exit_code = code or 1
            return
        self.job = job.group()
        self.keeper = subprocess.Popen(  # noqa: S603  fixed words and the job's number
            ["/bin/sh", "-c", _KEEPER, self.job], stdin=subprocess.PIPE, start_new_session=True
        )

    def wait(self) -> None:
        """Return when the job has left the queue or a limit has passed."""
        submitted = answered = time.monotonic()
        pause, longest = _ASK_SECONDS
        while self.job:
            state, now = _state(self.job), time.monotonic()
            if state == "":
                self.left_queue = True
                return
            if state is not None:
                answered = now
                if state not in _WAITING:
                    self.started = self.started or now
            if now - answered > _SILENT_SECONDS:
                self._note(f"job {self.job}: squeue has not answered for {_SILENT_SECONDS:g} s")
                return
            self.timed_out = self._too_long(now, submitted)
            if self.timed_out:
                return
            time.sleep(pause)
            pause = min(pause * 1.3, longest)

    def end(self) -> None:
        """Cancel a job that has not ended and wait for its end; note in the log one that left no exit code."""
        if not self.job:
            return
        if self.left_queue:
            self.exit_code = _exit_code(self.launch.folder)
            if self.exit_code is None:
                _, state = _ask("scontrol", "show", "job", "--oneliner", self.job)
                words = re.findall(r"\b(?:JobState|Reason|ExitCode|NodeList)=\S+", state)
                self._note(f"job {self.job} ended without an exit code: {' '.join(words) or state}")
        else:
            _ask("scancel", self.job)
            until = time.monotonic() + _END_SECONDS
            while _state(self.job) != "" and time.monotonic() < until:
                time.sleep(_ASK_SECONDS[0])
        if self.keeper is not None:
            self.keeper.communicate(b"ended\n")

    def _too_long(self, now: float, submitted: float) -> bool:
        if self.started is not None:
            return now - self.started > self.launch.limit_seconds
        if now - submitted <= self.queue_seconds:
            return False
        self._note(f"job {self.job} waited in the queue for {self.queue_seconds:g} s")
        return True

    def _note(self, text: str) -> None:
        with self.launch.log.open("a", encoding="utf-8") as stream:
            stream.write(f"{BY_LAUNCHER}{one_line(text)}\n")


def _state(job: str) -> str | None:
    """Return the job's state in squeue's words; empty once it is gone, None where squeue does not answer."""
    code, output = _ask("squeue", "--noheader", "--format=%T", f"--jobs={job}")
    if code:
        return "" if "Invalid job id" in output else None
    return output.split()[0] if output else ""


def _ask(*command: str) -> tuple[int, str]:
    """Run one of Slurm's programs; return exit code and output."""
    try:
        done = subprocess.run(  # noqa: S603  Slurm's own programs
            command, capture_output=True, text=True, check=False, timeout=120, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, one_line(str(error))
    return done.returncode, (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip()


def _exit_code(folder: Path) -> int | None:
    """Return the exit code that the script wrote, waiting as long as a shared folder may take; None without it."""
    until = time.monotonic() + ARRIVE_SECONDS
    while True:
        with suppress(OSError, ValueError):
            return int((folder / CODE_NAME).read_text(encoding="utf-8"))
        if time.monotonic() > until:
            return None
        time.sleep(0.1)
        with suppress(OSError):
            list(folder.iterdir())  # listing the folder makes a network file system read it anew
