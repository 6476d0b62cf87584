"""Launches in commands: whether one starts a training, a text for a shell or a script, on how many processes.

`srun -N 2 singularity exec IMAGE torchrun --nproc_per_node 8 train.py --tp 2` is a launch by `torch` of `train.py` with
the arguments `--tp 2`, spread by srun over 2 nodes; in `ssh host 'cd x; torchrun …'` the text in quotes starts it.

Example arguments of a script are from its comment (`# sh run.sh dsw 7B 1 8`) or from pages of its framework: for
`# bash run.sh 8 4096`, `example_of` returns the words 8 and 4096 by number. `starts.csv` is made by `tools/starts.py`
from checkouts: the first start of a file that pages or launchers show. A start applies to that very text only; another
file of the same name may order its arguments differently.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path, PurePath
from typing import Final, get_args

from simulator.files import read_table
from simulator.frameworks.arguments import LaunchCommand, LauncherName
from simulator.frameworks.values import Cause
from simulator.recipes.shell.values import Value, base_name, hole, joined, text_value

TABLE: Final = Path(__file__).with_name("starts.csv")
COLUMNS: Final = ("framework", "version", "document", "file", "digest", "words")
_EXPORT: Final = re.compile(r"[A-Za-z_]\w*=")


@dataclass(frozen=True, slots=True)
class DocumentedStart:
    """One documented start of a launch file."""

    framework: str
    version: str
    """Commit of the framework."""
    document: str
    """Page or launcher of the framework that shows it."""
    file: str
    """Launch file, relative to the framework's root."""
    digest: str
    """`digest` of that file's text."""
    words: list[str]
    """Arguments in order, after `NAME=value` for exported variables; for a configuration file, `NAME=value` of its
    variables and `--flag=value` of added flags. An empty argument is `''` in the table."""

    @property
    def exported(self) -> dict[str, str]:
        """Variables that the page exports before it starts a script."""
        return dict(word.split("=", 1) for word in takewhile(_EXPORT.match, self.words))

    def __str__(self) -> str:
        """Name the document and the framework's version."""
        return f"{self.document} of {self.framework} ({self.version[:7]})"


def digest(text: str) -> str:
    """Return the first 16 hexadecimal digits of a text's SHA-256, without blanks at the ends of lines."""
    plain = "\n".join(line.rstrip(" \t\r") for line in text.split("\n")).rstrip("\n")
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def start_of(file: str, text: str) -> DocumentedStart | None:
    """Return the documented start of a framework's own launch file with this name and this text; None without one.

    Where several folders of the framework have the same file, the folder's name decides; None where it does not and
    their starts differ.
    """
    named = _starts().get(base_name(file), ())
    same = [start for start in named if start.digest == digest(text)] if named else []
    starts = [start for start in same if PurePath(start.file).parts[-2:] == PurePath(file).parts[-2:]] or same
    return starts[0] if starts and all(start.words == starts[0].words for start in starts) else None


@functools.cache
def _starts() -> Mapping[str, Sequence[DocumentedStart]]:
    """Return the starts by the name of the launch file."""
    starts: dict[str, list[DocumentedStart]] = {}
    for row in read_table(str(TABLE), TABLE.stem):
        words = [word.replace("''", "") for word in row.pop("words").split()]
        start = DocumentedStart(**row, words=words)
        starts.setdefault(base_name(start.file), []).append(start)
    return starts


# Examples.

_LINE: Final = re.compile(
    r"^#+[ \t]*(?:(?:sh|bash|sbatch)[ \t]+)?([\w./-]{1,200}\.(?:sh|bash|slurm))[ \t]+(\S[^\n]{0,4000})$", re.MULTILINE
)
_READ: Final = re.compile(r"\$(?:([1-9])|\{([1-9][0-9]?)\b)")  # a positional parameter that the script reads
_COMMENT: Final = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"^[^#\n=]{0,80}?\b([A-Za-z_]\w{0,60})=[\"']?\$\{?([1-9][0-9]?)\b", re.MULTILINE)
"""`NAME=$1`, `export NAME="${1:-x}"`."""
_OPEN: Final = re.compile(r"[$<`\\]")  # a placeholder that only the reader of the comment can fill in
_SIZES: Final = re.compile(r"\w*(?:SEQ|BATCH|SIZE)\w*|[MG]BS|(?:[A-Z]+_)?(?:TP|PP|CP|EP|ETP|VPP)")
"""Variables whose arguments the remark shows: sequence, batch, sizes."""


@dataclass(frozen=True, slots=True)
class Example:
    """An example command line of a script."""

    line: int
    """Line of the comment; 1 for a documented example."""
    message: str
    """Remark that names its source and its most important arguments."""
    documented: bool
    """Whether it comes from documentation, not from the script's comment."""
    words: Mapping[int, str]
    """Arguments by number, without placeholders."""
    used_settings: frozenset[str]
    """Settings of the user's that replace arguments, by the variables that take these."""
    exported: Mapping[str, str]
    """Variables exported before the start, except those that the user sets."""


def example_of(text: str, file: str, settings: Mapping[str, str]) -> Example | None:
    """Return an example command line with as many words as the script reads parameters; None without one.

    The one with the fewest placeholders counts, the script's comments before its framework's documentation. None also
    where the user sets all arguments (`@`). Other lines belong to other scripts or versions and would misplace the
    arguments. A setting for the variable that takes an argument replaces that argument.
    """
    most = parameters(text)
    if not most or "@" in settings:
        return None
    takers = _takers(text)
    taken = {number: name for number, name in takers if name in settings}
    settings_by_number = {number: settings[name] for number, name in taken.items()}
    settings_by_number |= {number: settings[str(number)] for number in range(1, most + 1) if str(number) in settings}
    names = argument_names(text)
    examples = [
        (line, start, {number: word for number, word in enumerate(words, start=1) if not _OPEN.search(word)})
        for line, start, words in _lines(text, file)
        if len(words) == most
    ]
    if not examples:
        return None
    line, start, by_number = max(examples, key=lambda example: len(example[2]))
    remark = f"started as {start or 'its comment'} says, with {most} arguments"
    exported = start.exported if start else {}
    exported = {name: value for name, value in exported.items() if name not in settings}
    sizes = {names.get(n, ""): word for n, word in by_number.items() if n not in settings_by_number}
    sizes = {name: word for name, word in sizes.items() if _SIZES.fullmatch(name.upper())}
    shown = " ".join(f"{name}={value}" for name, value in (*exported.items(), *sizes.items()))
    if start and shown:
        remark = f"started as {start} says first: {shown}"
    return Example(line, remark, start is not None, by_number | settings_by_number, frozenset(taken.values()), exported)


def argument_names(text: str) -> dict[int, str]:
    """Return the first variable that takes each of a script's arguments, by the argument's number."""
    return dict(reversed(_takers(text)))


@functools.lru_cache(maxsize=4)
def _takers(text: str) -> tuple[tuple[int, str], ...]:
    """Return the argument's number and the variable of every line `NAME=$n`."""
    return tuple((int(number), name) for name, number in _ASSIGNED.findall(_COMMENT.sub("", text)))


def parameters(text: str) -> int:
    """Return the highest number of the positional parameters that a script reads; 0 without one."""
    code = _COMMENT.sub("", text) if _READ.search(text) else ""
    return max((int(match[1] or match[2]) for match in _READ.finditer(code)), default=0)


def _lines(text: str, file: str) -> Iterator[tuple[int, DocumentedStart | None, list[str]]]:
    """Yield each example's line, its document unless it is a comment, and its arguments."""
    for match in _LINE.finditer(text):
        if base_name(match[1]) == base_name(file):
            yield text.count("\n", 0, match.start()) + 1, None, match[2].split()
    start = start_of(file, text)
    if start is not None:
        yield 1, start, start.words[len(start.exported) :]


FARTHEST: Final = 64
"""Most words before a program."""


def _commands(kind: str) -> dict[str, dict[str, str]]:
    """Return the rows of a kind in `commands.csv`, by their word."""
    return {row["word"]: row for row in read_table(__file__, "commands") if row["kind"] == kind}


_LAUNCHERS: Final[Mapping[str, LauncherName]] = {name: name for name in get_args(LauncherName)}
_PROGRAMS: Final = {name: _LAUNCHERS[row["launcher"]] for name, row in _commands("program").items()}
_MODULES: Final = {name: _LAUNCHERS[row["launcher"]] for name, row in _commands("module").items()}
_TRAINING: Final = {name: row["trains"].split() for name, row in _commands("program").items() if row["trains"]}
"""Subcommands that train, of programs that have others too."""
_WORDS_BEFORE_OPTIONS: Final = ("accelerate", "tune")
"""Programs whose subcommand takes a launcher's options, a script, and the script's arguments."""
_UNREAD: Final = frozenset(["colossalai", "xtuner"])
_UNREAD_MODULES: Final = re.compile(r"openrlhf\.cli\.train_[^sd]\w+|verl\.trainer\.(main_ppo|\w*sft_trainer)\w*")
"""Programs, and modules of `python -m`, that train by themselves and whose flags are not read."""
_SUBMITTERS: Final = frozenset(["mason.py"])
_PYTHON: Final = re.compile(r"python[0-9.]*")
_WITHOUT_VALUE: Final = frozenset(_commands("flag"))  # options of launchers that take no value


@dataclass(frozen=True)
class TrainingCommand(LaunchCommand):
    """A training command of a shell script, whose arguments may be lists of words."""

    script: Value
    arguments: tuple[Value, ...]
    options: Mapping[str, Value]


def find_launch(argv: Sequence[Value], environment: Mapping[str, Value], line: int) -> TrainingCommand | None:
    """Return the launch that a command is; None for other commands."""
    for start in _programs(argv):
        launch = _launch(argv, start, environment, line)
        if launch is not None and base_name(launch.script.text) in _SUBMITTERS:
            return _submitted(launch, environment) or launch
        if launch is not None:
            in_front = _causes(argv, range(start))
            return dataclasses.replace(launch, in_front=in_front) if in_front else launch
    return None


def _submitted(submitter: TrainingCommand, environment: Mapping[str, Value]) -> TrainingCommand | None:
    """Return the launch after `--` of a program that starts it on several machines; None without one.

    mason.py of open-instruct e6c3044 multiplies the processes of `accelerate launch` by its machines (line 537).
    """
    texts = [value.text for value in submitter.arguments]
    if "--" not in texts:
        return None
    place = texts.index("--")
    stated, _, _, _ = _options(submitter.arguments[:place])
    ends = [number for number, text in enumerate(texts) if number >= place and text in ("--", "&&", ";")]
    commands = (submitter.arguments[start + 1 : end] for start, end in pairwise([*ends, len(texts)]))
    launches = (find_launch(words, environment, submitter.line) for words in commands if words)
    launch = next((submitted for submitted in launches if submitted is not None), None)
    nodes = stated.get("num_nodes")
    if launch is None or launch.launcher != "accelerate" or nodes is None:
        return launch
    each = launch.options.get("num_processes")
    options = {**launch.options, "num_machines": nodes}
    if each is not None and each.text.isdecimal() and nodes.text.isdecimal():
        options["num_processes"] = text_value(str(int(each.text) * int(nodes.text)), each.line)
    return dataclasses.replace(launch, options=options)


def _launch(argv: Sequence[Value], start: int, environment: Mapping[str, Value], line: int) -> TrainingCommand | None:
    """Return the launch of the program at an index; None without one."""
    if _is_script(argv[start]):
        return TrainingCommand("python", "", line, argv[start], tuple(argv[start + 1 :]), {}, environment)
    program = base_name(argv[start].text)
    rest = list(argv[start + 1 :])
    if _PYTHON.fullmatch(program):
        # Return the words behind `python` without its options that take a value, `-X dev` and `-W ignore`.
        place = 0
        while place < len(rest) and rest[place].text[:1] == "-" and rest[place].text not in ("-m", "-c", "-"):
            place += 2 if re.fullmatch(r"-[a-zA-Z]*[XW]", rest[place].text) else 1
        rest = list(rest[place:])
    launcher = _PROGRAMS.get(program)
    if launcher is None:
        module = _module(rest)
        if module is None:
            return _plain_python(program, rest, environment, line)
        launcher, rest = module
    by_word = program in ("erniekit", "paddleformers-cli", *_WORDS_BEFORE_OPTIONS) or launcher == "other"
    if by_word and (not rest or rest[0].text not in _TRAINING.get(program, (rest[0].text,))):
        return None
    if program in _WORDS_BEFORE_OPTIONS:
        rest = rest[1:]
    elif by_word:
        return TrainingCommand(launcher, program, line, rest[0], tuple(rest[1:]), {}, environment)
    options, script, arguments, causes = _options(rest)
    if script is None:
        return None
    return TrainingCommand(launcher, program, line, script, tuple(arguments), options, environment, open_options=causes)


def other_trainer(launch: TrainingCommand) -> str:
    """Return the program or module of a trainer whose flags are never read; empty for others."""
    if _UNREAD_MODULES.fullmatch(launch.script.text):
        return launch.script.text
    if "actor_zero_stage" in launch.flags:
        return "step 3 of DeepSpeed-Chat"
    return launch.program if launch.program in _UNREAD else ""


def _programs(argv: Sequence[Value]) -> Iterator[int]:
    """Yield the indices of possible launching programs, after `nohup`, `srun -N 4`, `env A=B` and unknown words."""
    wrapped = False
    for number, value in enumerate(argv[:FARTHEST]):
        name = base_name(value.text)
        module = argv[2].text if number == 0 and len(argv) > 2 and argv[1].text == "-m" else ""
        starts_module = module != "" and (not value.known or module in _MODULES)
        if name in _PROGRAMS or _PYTHON.fullmatch(name) or _is_script(value) or starts_module:
            yield number
        wrapped = wrapped or name in WRAPPERS or not value.known
        if not wrapped:
            return


def _is_script(value: Value) -> bool:
    """Whether a word is a Python file; the path before its name may be unknown."""
    text = value.text
    return text.endswith(".py") and not text.startswith("-") and len(text.split()) == 1 and value.pieces[-1].known


def _module(rest: Sequence[Value]) -> tuple[LauncherName, list[Value]] | None:
    """Return the launcher of `python -m` and the words after it; None without one."""
    for number, value in enumerate(rest):
        if value.text == "-m" and number + 1 < len(rest):
            module = rest[number + 1].text
            if _UNREAD_MODULES.fullmatch(module):
                return "other", list(rest[number + 1 :])
            launcher = _MODULES.get(module)
            return (launcher, list(rest[number + 2 :])) if launcher else None
        if not value.text.startswith("-"):
            return None
    return None


def _plain_python(
    program: str, rest: Sequence[Value], environment: Mapping[str, Value], line: int
) -> TrainingCommand | None:
    """Return `python train.py ...` or `python -m package.train ...`, which has one device; None for others."""
    plain = [i for i, value in enumerate(rest) if not value.text.startswith("-")]
    # `python $OPTIONS train.py`
    number = next((i for i in plain if rest[i].known or rest[i].text.endswith(".py")), next(iter(plain), None))
    if number is None or not (rest[number].text.endswith(".py") or rest[number - 1].text == "-m"):
        return None
    return TrainingCommand("python", program, line, rest[number], tuple(rest[number + 1 :]), {}, environment)


def _options(rest: Sequence[Value]) -> tuple[dict[str, Value], Value | None, list[Value], frozenset[Cause]]:
    """Return the launcher's options, the script, its arguments, and what unknown options depend on."""
    options: dict[str, Value] = {}
    skipped: list[int] = []
    position = 0
    while position < len(rest):
        value = rest[position]
        text = value.text
        if not text.startswith("-") or not value.pieces[0].known:
            if not value.known and not text.endswith(".py") and position + 1 < len(rest):
                skipped.append(position)
                position += 1
                continue
            return options, value, list(rest[position + 1 :]), _causes(rest, skipped)
        name, equals, _ = text.partition("=")
        key = name.lstrip("-").replace("-", "_")
        if equals:
            options[key] = value.after(len(name) + 1)
            position += 1
        elif key in _WITHOUT_VALUE or position + 1 >= len(rest):
            options[key] = value
            position += 1
        else:
            options[key] = rest[position + 1]
            position += 2
    if not skipped:
        return options, None, [], frozenset()
    # The last word that may be the script is taken for it; its arguments follow.
    place = skipped.pop()
    return options, rest[place], list(rest[place + 1 :]), _causes(rest, skipped)


def _causes(words: Sequence[Value], places: Iterable[int]) -> frozenset[Cause]:
    return frozenset(cause for place in places for cause in words[place].causes)


# Commands in front of a program.

MPI: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun")
STARTERS: Final = frozenset(["srun", *MPI])
"""Commands that start several processes of the command after them."""
_REMOTE: Final = frozenset(["ssh", "pdsh", "clush"])
_CONTAINERS: Final = frozenset(["docker", "podman", "nerdctl", "singularity", "apptainer", "enroot", "kubectl"])
WRAPPERS: Final = frozenset(_commands("wrapper")) | STARTERS | _REMOTE | _CONTAINERS
QUEUES: Final = frozenset(["sbatch", "qsub", "bsub"])
"""Commands that hand a script to a scheduler."""
SHELLS: Final = frozenset(["bash", "sh", "zsh"])
SCRIPTS: Final = ("sh", "bash", "slurm", "sbatch", "pbs", "qsub", "lsf", "job", "sub")
"""Ends of the names of shell scripts and jobs."""
_VALUED: Final = re.compile(r"-[pilFJwo]")  # options of `ssh` and similar commands that take a value
_SRUN: Final = {option: row["counts"] for option, row in _commands("srun").items()}
_MPIRUN: Final = {option: row["counts"] for option, row in _commands("mpirun").items()}
"""Options that state how many processes are started."""
_HEADER: Final = re.compile(r"[ \t](--?[A-Za-z][A-Za-z-]*)(?:[ \t]*=[ \t]*|[ \t]+|(?<=-[Nn])(?=\d))([^\s-]\S*)")
_VARIABLES: Final = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "tasks_per_node": ("SLURM_NTASKS_PER_NODE",),
    "gpus_per_node": ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}  # variables that Slurm sets, by the quantity that a `#SBATCH` line requests


def shell_text(argv: Sequence[Value]) -> tuple[Value, Sequence[Value]] | None:
    """Return the text that a command such as `srun … bash -c TEXT` passes to a shell, and its parameters; or None."""
    first = base_name(argv[0].text)
    for number, value in enumerate(argv[:FARTHEST]):
        if value.known and value.text.startswith("--wrap="):
            return value.after(len("--wrap=")), ()
        if base_name(value.text) in SHELLS:
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
        name = base_name(value.text)
        if name in STARTERS:
            return {"starter": value} | _counts(argv[number + 1 :], _SRUN if name == "srun" else _MPIRUN)
        if name not in WRAPPERS and not value.text.startswith("-"):
            return {}
    return {}


def started_by(launch: TrainingCommand) -> dict[str, Value]:
    """Return the processes of `torchrun --no-python bash FILE`, as of `process_counts`; empty for other launches."""
    name = base_name(launch.script.text)
    if launch.launcher != "torch" or "no_python" not in launch.options or name not in SHELLS:
        return {}
    nodes = launch.options.get("nnodes", text_value("1", launch.line))
    each = launch.options.get("nproc_per_node", text_value("1", launch.line))
    return {"starter": text_value(launch.program, launch.line), "nodes": nodes, "tasks_per_node": each}


def _counts(words: Sequence[Value], names: dict[str, str]) -> dict[str, Value]:
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
        if base_name(word.text) in SHELLS or re.fullmatch(r"python[0-9.]*|torchrun", base_name(word.text)):
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
    for number, line in enumerate(text.split("\n") if "#SBATCH" in text else (), start=1):
        for option, value in _HEADER.findall(line) if line.startswith("#SBATCH") else ():
            count = re.fullmatch(r"(?:gpu:(?:[\w.-]+:)?)?(\d{1,6})(?:\(.*)?", value, re.ASCII)
            name = _SRUN.get(option) or ("gpus_per_node" if option in ("--gpus-per-node", "--gres") else None)
            if name and count:
                variables |= {variable: text_value(count[1], number) for variable in _VARIABLES[name]}
    each, nodes = variables.get("SLURM_NTASKS_PER_NODE"), variables.get("SLURM_NNODES")
    if each is not None and nodes is not None:
        several = f"(x{nodes.text})" if nodes.text != "1" else ""
        variables["SLURM_TASKS_PER_NODE"] = text_value(each.text + several, each.line)
    return variables


def submitted_variables(words: Sequence[Value], text: str) -> dict[str, Value]:
    """Return the variables that Slurm sets in a job by its own lines, and by the options of `sbatch`, which count more.

    words : the command up to the job's name
    """
    counts = _counts(words[1:], _SRUN)
    stated = {variable: value for name, value in counts.items() for variable in _VARIABLES[name]}
    return scheduled_variables(text) | stated


_SELECT: Final = re.compile(
    r"^#PBS[ \t]+-l[ \t]*select=([1-9]\d{0,4})(?!\d|[^\n]*\+)(?:[^\n]*:mpiprocs=([1-9]\d{0,3}))?", re.MULTILINE
)  # number of chunks that a job requests, one per host, and processes per chunk
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


# Variables that words in front pass on or keep away.

_APART: Final = _REMOTE | frozenset(["docker", "podman", "nerdctl", "kubectl", "ray", "sudo", "qsub"])
"""Commands whose program may see no variable of the shell that starts it, unless one is passed by name."""
_REMOVES: Final = re.compile(r"-i|-|-u|--unset(=.*)?|--ignore-environment")  # options of `env`
VARIABLE_FILES: Final = frozenset(["--env-file", "--runtime-env", "--runtime-env-json"])
"""Options whose file or text sets variables."""
_PROGRAM: Final = re.compile(rf"python[0-9.]*|torchrun|deepspeed|accelerate|.*\.(?:py|{'|'.join(SCRIPTS)})")
_FOR_CONTAINERS: Final = re.compile(r"(?:SINGULARITY|APPTAINER)ENV_(?=[A-Za-z_])")
"""Beginnings of variables that a container sees without them."""
_NAMED: Final = re.compile(r"(?:^|[=,\s])([A-Za-z_]\w*)=", re.ASCII)


def passed_environment(environment: Mapping[str, Value], argv: Sequence[Value], line: int) -> dict[str, Value]:
    """Return an environment as the words in front of a program change it for the program, unknown where they may.

    Known are `env A=1`, `sudo A=1`, `mpirun -x A=1`, `docker run -e A=1`; unknown is A in `srun --export=ALL,A=1`, and
    what `docker`, `ssh` or `sudo` may keep away.
    """
    words = list(takewhile(_is_in_front, argv[:FARTHEST]))
    names = {base_name(word.text) for word in words}
    texts = [word.text for word in words]
    passed = {part for text in texts for part in re.split("[,=]", text)}
    apart = bool(names & _APART) or ("--export" in passed and "ALL" not in passed)
    removes = "env" in names and any(map(_REMOVES.fullmatch, texts))
    variables = {
        name: hole(f"${name}", line, [Cause(line, name)]) if removes or (apart and name not in passed) else value
        for name, value in environment.items()
    }
    for before, word in pairwise(words):
        stated = _NAMED.findall(word.text) + [word.text] * (before.text in ("-env", "-genv"))
        name, equals, _ = word.text.partition("=")
        if equals and stated == [name] and before.text != "-v":
            variables[name] = word.after(len(name) + 1)
        else:
            variables |= {name: hole(f"${name}", line, [Cause(line, name)]) for name in stated}
    return variables | {_FOR_CONTAINERS.sub("", name): value for name, value in variables.items()}


def _is_in_front(word: Value) -> bool:
    """Whether a word may stand in front of a program."""
    name = base_name(word.text)
    return name not in SHELLS and (word.text[:1] == "-" or "=" in word.text or _PROGRAM.fullmatch(name) is None)
