"""Interface of an engine: the command that it starts on each node, and the outcome that it reads.

A launcher starts the command once on each node and sets there, in its environment, `NNODES`, `NODE_RANK`,
`MASTER_ADDR` and `MASTER_PORT`; the command starts the ranks of its node. Output of all nodes goes to one log.
Values and one protocol: nothing is started here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from simulator.answers.cases import Case
from simulator.evidence.measurements.row import MeasuredRow
from simulator.lab.trainer.job import RankResult
from simulator.question.question import Question
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario

OutcomeKind = Literal["ok", "oom", "error", "timeout", "interrupted"]
TAIL_LINES = 20
"""Lines of the log that a failed launch shows."""


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
    """Command of one rank, for a launcher that starts the ranks itself and sets `RANK`, `LOCAL_RANK`, `WORLD_SIZE` and
    `LOCAL_WORLD_SIZE` too; empty where the engine's own program has to start them."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables set beside those of the launcher."""
    folder: Path
    """Working directory."""
    files: tuple[Path, ...] = ()
    """Files that the engine wrote for it, for a dry run to show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """End of a launch, as the launcher saw it."""

    exit_code: int | None
    """Status of the first node that failed, else 0; None where it was ended from outside."""
    log: Path
    """File with the output of all nodes."""
    wall_seconds: float = 0.0
    """Seconds from the start of its processes, or of its job, to their end."""
    timed_out: bool = False
    interrupted: bool = False


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
