"""One launch of a layout: the command of its nodes, its end, its outcome; its launcher, and the interface of engines.

An `Engine` prepares the command of a node and reads how it ended; the `Launcher` starts the command on its node, with
`NNODES`, `NODE_RANK`, `MASTER_ADDR` and `MASTER_PORT`, and ends all of it.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from simulator.answers.cases import Case
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, UnsupportedError, one_line
from simulator.evidence.measurements.question import case_columns, cut_layers
from simulator.evidence.measurements.rows import MeasuredRow, RunOutcome
from simulator.frameworks.logs import OUT_OF_MEMORY, LogLine, log_lines, longer_line
from simulator.lab.runner.processes import Ended, python_path, run_guarded
from simulator.lab.trainer.job import RankResult
from simulator.lab.trainer.process import failure_in
from simulator.question.question import Question
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.names import shipped_name
from simulator.records import Record, field

OutcomeKind = Literal["ok", "oom", "error", "timeout", "interrupted"]
LOG_NAME: Final = "log.txt"
"""File of a launch's folder with the output of its nodes."""
NODE_LOG_NAME: Final = "log-{node}.txt"
"""File with the output of one further node, where each is started by itself."""


class Pick(Record, kw_only=True):
    """Layout to launch, with the number of steps."""

    scenario: Scenario
    layout: Layout
    """Layout with its cut (`stage_layers`)."""
    question: Question
    """Question that the layout answers; its model and hardware are named as a measured row names them."""
    steps: int = 8
    """Timed optimizer steps, a count."""
    warmup_steps: int = 2
    """Steps before them that are not timed, a count."""
    table: str = "validate"
    """Table that the measured row is for."""
    row: int = 1
    """Number of the measured row in it."""

    @property
    def model(self) -> str:
        """Name or path of the model spec."""
        return str(self.question.value("model"))

    @property
    def hardware(self) -> str:
        """Name or path of the hardware spec."""
        name = str(self.question.value("hardware"))
        return shipped_name("hardware", name) or name

    @property
    def options(self) -> Mapping[str, str]:
        """Switches of the framework's profile that the user set."""
        return self.question.options

    @property
    def case(self) -> Case:
        """The layout as a case of its question."""
        question = self.question.with_layout(self.layout)
        return Case(question=question, model=self.scenario.model, scenario=self.scenario, layout=self.layout)


class Command(Record, kw_only=True):
    """Command of one node."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables set beside those of the launcher."""
    folder: Path
    """Working directory."""
    files: tuple[Path, ...] = ()
    """Files that the engine wrote for it, for a dry run to show."""

    def run(self, log: Path, limit_seconds: float, environment: Mapping[str, str]) -> Ended:
        """Run it with its output alone in `log`, and `environment` beside its own variables."""
        return run_guarded(
            self.arguments,
            folder=self.folder,
            environment={**environment, **self.environment},
            log=log,
            limit_seconds=limit_seconds,
        )


class LaunchOutcome(Record, kw_only=True):
    """Outcome of a launch."""

    kind: OutcomeKind
    """Kind of outcome."""
    row: MeasuredRow | None
    """Measured row of the run; None where the launch was ended from outside before it measured anything."""
    error: str = ""
    """Error in one line; empty for `ok` and `interrupted`."""
    tail: tuple[str, ...] = ()
    """Last lines of the log of a launch that did not end well by itself."""
    ranks: tuple[RankResult, ...] = ()
    """Results of the ranks, in order, where the engine knows them."""


class Engine(Protocol):
    """Engine: a way of training a layout."""

    @property
    def name(self) -> str:
        """Name that `--engine` takes."""

    @property
    def experimental(self) -> str:
        """Reason why its figures are not proven, in a clause; empty where the tests launch it for real."""

    def check(self) -> None:
        """Raise InputError where something that every launch needs is missing. A dry run does not ask."""

    def prepare(self, pick: Pick, folder: Path) -> Command:
        """Write the launch's files into `folder`, and return each node's command; UnsupportedError skips it."""

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:
        """Return the outcome from the files of the launch in `folder`."""


class Launch(Record, kw_only=True):
    """Layout that is ready to be started."""

    title: str
    """Model and layout in a word, as its folder is called."""
    pick: Pick
    estimate: Estimate
    """Prediction of the layout."""
    command: Command
    repeat: int = 1
    """Number of this launch among those of the layout, from 1."""
    number: int = 1
    """Place in the campaign, from 1."""
    limit_seconds: float = 600.0
    """Longest time that it may run."""

    @property
    def folder(self) -> Path:
        """Folder of the launch: working directory, log and results."""
        return self.command.folder

    @property
    def log(self) -> Path:
        """File with the output of all its nodes."""
        return self.folder / LOG_NAME

    @property
    def nodes(self) -> int:
        """Nodes of the launch."""
        return self.pick.scenario.nodes


class Launched(Record, kw_only=True):
    """Launch that was started, with its end and outcome."""

    launch: Launch
    ended: Ended
    outcome: LaunchOutcome


def slug(model: str, layout: Layout) -> str:
    """Return a folder's name for model and layout."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"\.(?:ya?ml|json)$", "", Path(model).name)).strip("-.") or "model"
    more = {"cp": layout.context_parallel, "ep": layout.expert_parallel, "vp": layout.virtual_stages}
    return "-".join(
        [
            f"{name}-tp{layout.tensor_parallel}-pp{layout.pipeline_parallel}-dp{layout.data_parallel}",
            *(f"{short}{size}" for short, size in more.items() if size > 1),
            f"mbs{layout.micro_batch_size}-zero{layout.zero_stage}",
            *([layout.recompute] if layout.recompute != "none" else []),
        ]
    )


def shell_line(arguments: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """Return a command with its variables as a line of shell."""
    return " ".join([*(f"{name}={shlex.quote(text)}" for name, text in environment.items()), shlex.join(arguments)])


def launched_row(pick: Pick, outcome: RunOutcome, error: str = "", **figures: Any) -> MeasuredRow:
    """Return the row of a launch: model, workload and layout, outcome, and measured `figures`."""
    columns: dict[str, Any] = {
        "table": pick.table,
        "row": pick.row,
        "source": "simulate validate",
        "model_as_stated": pick.model,
        "hardware_as_stated": pick.hardware,
        "hardware": pick.hardware,
        **case_columns(
            pick.scenario,
            pick.layout,
            model=pick.model,
            options=pick.options,
            num_layers=cut_layers(load_model(pick.model), pick.scenario.model.num_hidden_layers),
        ),
    }
    return MeasuredRow(**columns | figures, outcome=outcome, error=error)


def check_installed(*packages: str) -> None:
    """Raise UnsupportedError for the first package that is missing; they are looked for and not imported."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise UnsupportedError(
                f"{name} is not installed: pip install '.[runner]' in a checkout brings it, else pip install {name}"
            )


TAIL_LINES: Final = 20
"""Lines of the log that a failed launch shows."""
BY_LAUNCHER: Final = "simulate: "
"""Beginning of a line that a launcher adds to the log about its processes."""
_LONGEST: Final = 300
_MEMORY: Final = re.compile(
    OUT_OF_MEMORY.pattern + r"|DefaultCPUAllocator: (?:can't allocate|not enough) memory|Cannot allocate memory"
    r"|std::bad_alloc|\bMemoryError\b"
    r"|CUDA error: out of memory|[Cc]uda failure.{0,8}out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|[Dd]etected \d+ oom[-_]kill event|[Oo]ut [Oo]f [Mm]emory: Killed process"
)  # memory that ran out: the device's in the frameworks' words and the libraries', and the host's
_KILLED: Final = re.compile(r"exitcode\s*:\s*-9\b|Signal 9 \(SIGKILL\)|: task \d+: Killed\b")
"""Rank that SIGKILL ended, as torchrun and srun report it."""
_RAISED: Final = re.compile(r"(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Za-z_]\w{0,60}(?:Error|Exception)(?::.*)?|what\(\):.*")
"""Exception, as Python prints it or as a C++ library does that ended the process."""
_AFTERMATH: Final = re.compile(
    r"ChildFailedError|SignalException|DistBackendError|DistNetworkError|[Cc]onnection (?:reset|closed|refused)"
    r"|[Bb]roken pipe|[Ss]ocket closed"
)  # errors of other ranks and the launcher once one rank has failed
_REFUSED: Final = re.compile(r"[\w./-]+\.py: error: .*|.*: (?:command not found|No such file or directory)")
"""Program that rejected its arguments, or is missing."""
_SIGNS: Final = {
    "launcher": re.compile(re.escape(BY_LAUNCHER)).match,
    "raised": _RAISED.fullmatch,
    "refused": _REFUSED.fullmatch,
    "killed": _KILLED.search,
}  # signs in lines that are not the trainer's; the first that matches counts
_REASONS: Final = ("trainer", "raised", "followed", "refused", "launcher")  # signs of an error, the most telling first
_KILLED_CODE: Final = 137
_KILLED_TEXT: Final = "killed, perhaps out of the host's memory"
"""Not memory that ran out for sure: a person, a scheduler and a container's limit kill alike."""


def diagnosis(ended: Ended, more: Iterable[Path] = ()) -> LaunchOutcome:
    """Return why a launch failed, memory first, as other ranks then hang; `more` are logs of single ranks.

    The tail is that of the rank that failed, or of all where that is not known; a row is still to be added.
    """
    signs: dict[str, LogLine] = {}
    for line in chain.from_iterable(map(_lines, (ended.log, *more))):
        sign = _sign(line.text.strip())
        if sign == "memory":
            signs[sign] = longer_line(signs.get(sign), line)
        elif sign:
            signs.setdefault(sign, line)
    memory, launcher = signs.get("memory"), signs.get("launcher")
    reason = next(filter(None, map(signs.get, _REASONS)), None)
    if memory is not None:
        return _diagnosed("oom", memory.text, ended, memory.rank)
    if ended.timed_out:
        message = "did not end within the time limit" if launcher is None else _by_launcher(launcher)
        return _diagnosed("timeout", message, ended)
    if reason is not None:
        return _diagnosed("error", _by_launcher(reason), ended, reason.rank)
    if "killed" in signs or ended.exit_code == _KILLED_CODE:
        return _diagnosed("error", _KILLED_TEXT, ended)
    last = tail_of(ended.log, most=1)
    status = "ended without an exit code" if ended.exit_code is None else f"exit code {ended.exit_code}"
    return _diagnosed("error", f"{last[0]} ({status})" if last else status, ended)


def _sign(text: str) -> str:
    """Return the sign of a failure in a line of a log; empty for most lines."""
    by_trainer = failure_in(text)
    if (by_trainer and by_trainer.kind == "out-of-memory") or _MEMORY.search(text):
        return "memory"
    if by_trainer:
        return "followed" if _AFTERMATH.search(text) else "trainer"
    sign = next((name for name, matches in _SIGNS.items() if matches(text)), "")
    return "" if sign == "raised" and _AFTERMATH.search(text) else sign


def _by_launcher(line: LogLine) -> str:
    return line.text.removeprefix(BY_LAUNCHER)


def tail_of(log: Path, rank: str = "", most: int = TAIL_LINES) -> tuple[str, ...]:
    """Return the last lines that are not blank, of one rank where it is named."""
    texts = (line.text for line in _lines(log) if line.text.strip() and rank in ("", line.rank))
    return tuple(deque(texts, maxlen=most))


def _diagnosed(kind: OutcomeKind, error: str, ended: Ended, rank: str = "") -> LaunchOutcome:
    text = one_line(error)
    text = text if len(text) <= _LONGEST else text[:_LONGEST] + "..."
    return LaunchOutcome(kind=kind, row=None, error=text, tail=tail_of(ended.log, rank))


def _lines(log: Path) -> Iterator[LogLine]:
    """Yield the lines of a log; none where it is missing."""
    try:
        yield from log_lines(log)
    except InputError:
        return


_HERE: Final = "127.0.0.1"


@contextmanager
def held_port() -> Iterator[int]:
    """Hold a port, bound and never listened on, so that only a program that sets SO_REUSEADDR can take it."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((_HERE, 0))
        yield bound.getsockname()[1]


class Launcher(Record, kw_only=True):
    """Launcher that starts the command of one node here: the only node, or one of several started alike."""

    endpoint: str = ""
    """Host and port where the first of several nodes waits for the others; each launch takes the next port."""
    node_rank: int = 0

    def check(self, nodes: int) -> None:
        """Raise InputError for several nodes that do not know of each other, or a node that is not one of them."""
        if nodes > 1 and not self.endpoint:
            raise InputError(
                f"this starts one node, the layouts take {nodes}: start it on each, with --rdzv-endpoint HOST:PORT and "
                "its --node-rank (examples/validate/slurm.sbatch does so as a Slurm job)"
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
        """Start the command and wait for its end, its time limit, or an interruption; none of its processes is left."""
        log = launch.log if self.node_rank == 0 else launch.folder / NODE_LOG_NAME.format(node=self.node_rank)
        with held_port() as port:
            return launch.command.run(log, launch.limit_seconds, self._node(launch, port))

    def _node(self, launch: Launch, port: int) -> dict[str, str]:
        """Return the variables for the command of a node; ranks meet at the endpoint of the nodes, or here."""
        host, _, first = self.endpoint.rpartition(":")
        address, number = (host, int(first) + launch.number - 1) if host else (_HERE, port)
        variables = {"NNODES": str(launch.nodes), "NODE_RANK": str(self.node_rank)}
        variables |= {"MASTER_ADDR": address, "MASTER_PORT": str(number)}
        if host:
            variables |= {"PET_NODE_RANK": str(self.node_rank), "PET_RDZV_ENDPOINT": f"{address}:{number}"}
        return variables
