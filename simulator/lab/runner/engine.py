"""What a launch is: a layout picked, the command of its nodes, its end, its outcome; and who takes part in it.

    >>> launch = Launch(title="1-tiny", pick=pick, estimate=estimate, command=engine.prepare(pick, folder))
    >>> engine.outcome(pick, folder, launcher.run(launch)).kind
    'ok'

An `Engine` (the reference trainer, Megatron-LM, Paddle) prepares the command of a node and reads how it ended; a
`Launcher` (this machine, Slurm) starts the command once on each node and ends all of it. A launcher sets `NNODES`,
`NODE_RANK`, `MASTER_ADDR` and `MASTER_PORT` there; the command starts the ranks of its node, and output of all nodes
goes to one log.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from simulator.answers.cases import Case
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import UnsupportedError
from simulator.evidence.measurements.question import case_columns, cut_layers
from simulator.evidence.measurements.rows import MeasuredRow, RunOutcome
from simulator.lab.runner.processes import Ended
from simulator.lab.trainer.job import RankResult
from simulator.question.question import Question
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

OutcomeKind = Literal["ok", "oom", "error", "timeout", "interrupted"]
LOG_NAME: Final = "log.txt"
"""File of a launch's folder with the output of its nodes."""
NODE_LOG_NAME: Final = "log-{node}.txt"
"""File with the output of one further node, where each is started by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
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
        return str(self.question.value("hardware"))

    @property
    def options(self) -> Mapping[str, str]:
        """Switches of the framework's profile that the user set."""
        return self.question.options

    @property
    def case(self) -> Case:
        """The layout as a case of its question."""
        question = self.question.with_layout(self.layout)
        return Case(question=question, model=self.scenario.model, scenario=self.scenario, layout=self.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Command of one node."""

    arguments: tuple[str, ...]
    """Program and arguments."""
    rank_arguments: tuple[str, ...] = ()
    """Command of one rank, for a launcher that starts the ranks itself, by srun; empty where the engine's own program
    has to start them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables set beside those of the launcher."""
    folder: Path
    """Working directory."""
    files: tuple[Path, ...] = ()
    """Files that the engine wrote for it, for a dry run to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOutcome:
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
        """Write the files of the launch into `folder`, and return the command of each node.

        Raises UnsupportedError for a layout that the engine cannot run: it is skipped, with that reason.
        """

    def outcome(self, pick: Pick, folder: Path, ended: Ended) -> LaunchOutcome:
        """Return the outcome from the files of the launch in `folder`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
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

    @property
    def devices_per_node(self) -> int:
        """Ranks of each node."""
        return self.pick.scenario.devices // self.nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """Launch that was started, with its end and outcome."""

    launch: Launch
    ended: Ended
    outcome: LaunchOutcome


class Launcher(Protocol):
    """Launcher: starts the processes of a launch, and ends all of them."""

    @property
    def name(self) -> str:
        """Name that `--launcher` takes."""

    def check(self, nodes: int) -> None:
        """Raise InputError or UnsupportedError where nothing can be started this way, on so many nodes."""

    def command_text(self, launch: Launch) -> str:
        """Return the command that would be started, as text that a shell takes."""

    def run(self, launch: Launch) -> Ended:
        """Start a launch and wait for its end; none of its processes is left."""


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
            num_layers=cut_layers(pick.scenario, pick.model),
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
