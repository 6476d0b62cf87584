"""Commands that start another one: on other machines, in a container, under a scheduler. The inner one is read.

`srun -N 2 singularity exec IMAGE torchrun ...` launches torchrun. Nothing is run; commands not listed here are no
wrappers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from simulator.recipes.shell.values import Value, joined, text_value

MPI: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")
STARTERS: Final = frozenset(["srun", *MPI])
"""Commands that start several processes of the command after them."""
_REMOTE: Final = frozenset(["ssh", "pdsh", "clush"])
_CONTAINERS: Final = frozenset(["docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "kubectl"])
WRAPPERS: Final = (
    frozenset(
        ["nohup", "exec", "time", "sudo", "env", "numactl", "stdbuf", "timeout", "nice", "taskset", "command", "setsid"]
    )
    | frozenset(["coverage", "py-spy", "nsys", "ncu", "rocprof", "rocprofv3", "perf", "strace"])
    | frozenset(["ray", "uv", "conda", "mamba", "micromamba", "poetry", "pdm", "pipenv", "hatch", "pixi"])
    | frozenset(["chrt", "ionice", "unbuffer", "xvfb-run", "flock", "gosu", "runuser"])
    | STARTERS
    | _REMOTE
    | _CONTAINERS
)
QUEUES: Final = frozenset(["sbatch", "qsub", "bsub"])
"""Commands that hand a script to a scheduler."""
SHELLS: Final = frozenset(["bash", "sh", "zsh"])
SCRIPTS: Final = ("sh", "bash", "slurm", "sbatch", "pbs", "qsub", "lsf", "job", "sub")
"""Ends of the names of shell scripts and jobs."""
_VALUED: Final = re.compile(r"-[pilFJwo]")
"""Options of `ssh` and similar commands that take a value."""
FARTHEST: Final = 64
"""Most words before a program."""
_NAMES: Final = {
    "srun": {
        "-N": "nodes",
        "--nodes": "nodes",
        "-n": "tasks",
        "--ntasks": "tasks",
        "--ntasks-per-node": "tasks_per_node",
    },
    "mpirun": {
        "-np": "tasks",
        "-n": "tasks",
        "--np": "tasks",
        "-c": "tasks",
        "-N": "tasks_per_node",
        "-npernode": "tasks_per_node",
        "--npernode": "tasks_per_node",
        "-ppn": "tasks_per_node",
        "--map-by": "map",
        "-map-by": "map",
    },
}
_HEADER: Final = re.compile(r"#SBATCH[ \t]+(--?[A-Za-z][A-Za-z-]*)(?:[ \t]*=[ \t]*|[ \t]+|(?<=-[Nn])(?=\d))(\S+)")
_VARIABLES: Final = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "tasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
"""Variables that Slurm sets, by the quantity that a `#SBATCH` line requests."""


def shell_text(argv: Sequence[Value]) -> tuple[Value, Sequence[Value]] | None:
    """Return the text that a command passes to a shell, and the parameters behind it; None without one.

    `srun … bash -c TEXT`, `ssh HOST TEXT`.
    """
    first = PurePath(argv[0].text).name
    for number, value in enumerate(argv[:FARTHEST]):
        if value.known and value.text.startswith("--wrap="):
            return value.after(len("--wrap=")), ()
        if PurePath(value.text).name in SHELLS:
            place = number + 1
            while place < len(argv) - 1 and argv[place].known and argv[place].text.startswith("-"):
                if re.fullmatch(r"-[a-z]*c", argv[place].text):
                    return argv[place + 1], argv[place + 3 :]
                place += 1
    remote = _remote(argv[1:]) if first in _REMOTE else None
    return None if remote is None else (remote, ())


def _remote(words: Sequence[Value]) -> Value | None:
    """Return the command of `ssh`: the words after its options and the host; None without one."""
    place = 0
    while place < len(words) and words[place].text.startswith("-"):
        place += 2 if _VALUED.fullmatch(words[place].text) else 1
    space = text_value(" ", 0)
    rest = [part for word in words[place + 1 :] for part in (word, space)]
    return joined(rest) if rest else None


def process_counts(argv: Sequence[Value]) -> dict[str, Value]:
    """Return the processes that `srun` or `mpirun` starts, as far as its options state; empty for other commands."""
    for number, value in enumerate(argv[:FARTHEST]):
        name = PurePath(value.text).name
        if name in STARTERS:
            return {"starter": value} | _options(argv[number + 1 :], _NAMES["srun" if name == "srun" else "mpirun"])
        if name not in WRAPPERS and not value.text.startswith("-"):
            return {}
    return {}


def _options(words: Sequence[Value], names: dict[str, str]) -> dict[str, Value]:
    options: dict[str, Value] = {}
    for number, word in enumerate(words):
        name, equals, _ = word.text.partition("=")
        option = names.get(name)
        short = re.fullmatch(r"(-[Nn])(\d+)", word.text)
        if short:
            options[names[short[1]]] = text_value(short[2], word.line)
        elif option and equals:
            options[option] = word.after(len(name) + 1)
        elif option and number + 1 < len(words):
            options[option] = words[number + 1]
        if PurePath(word.text).name in SHELLS or re.fullmatch(r"python[0-9.]*|torchrun", PurePath(word.text).name):
            break
    ratio = re.fullmatch(r"ppr:(\d+):node.*", options.pop("map", text_value("", 0)).text)
    if ratio:
        options["tasks_per_node"] = text_value(ratio[1], words[0].line)
    return options


def scheduled_variables(text: str) -> dict[str, Value]:
    """Return the variables that Slurm or PBS sets by a script's `#SBATCH` or `#PBS` lines.

    The submission folder is the one that the script's paths begin at. For PBS, the outputs of commands that count the
    lines of the host file are included.
    """
    submitted = (("#SBATCH", "SLURM_SUBMIT_DIR"), ("#PBS", "PBS_O_WORKDIR"))
    variables = {name: text_value(".", 0) for mark, name in submitted if mark in text} | _counted_hosts(text)
    for number, line in enumerate(text.split("\n"), start=1):
        match = _HEADER.match(line)
        if match is None:
            continue
        option, value = match.groups()
        count = re.fullmatch(r"(?:gpu:(?:[\w.-]+:)?)?(\d{1,6})(?:\(.*)?", value, re.ASCII)
        name = _NAMES["srun"].get(option) or ("gpus_per_node" if option in ("--gpus-per-node", "--gres") else None)
        if name and count:
            variables |= {variable: text_value(count[1], number) for variable in _VARIABLES[name]}
    return variables


_SELECT: Final = re.compile(
    r"^#PBS[ \t]+-l[ \t]*select=([1-9]\d{0,4})(?!\d|[^\n]*\+)(?:[^\n]*:mpiprocs=([1-9]\d{0,3}))?", re.MULTILINE
)
"""Number of chunks that a job requests, one per host, and processes per chunk."""
_HOSTS: Final = ("sort -u {}", "uniq {}", "cat {} | uniq", "cat {} | sort -u", "cat {} | sort | uniq")


def _counted_hosts(text: str) -> dict[str, Value]:
    """Return `wc -l` of `$PBS_NODEFILE` by command: one line per process, or per host where repeats are removed."""
    match = _SELECT.search(text)
    if match is None:
        return {}
    line, hosts = text.count("\n", 0, match.start()) + 1, int(match[1])
    counted: dict[str, Value] = {}
    for name in ("$PBS_NODEFILE", "${PBS_NODEFILE}"):
        counted |= {f"$({command.format(name)} | wc -l)": text_value(str(hosts), line) for command in _HOSTS}
        processes = text_value(str(hosts * int(match[2] or 1)), line)
        counted |= {f"$({command})": processes for command in (f"wc -l < {name}", f"cat {name} | wc -l")}
    return counted
