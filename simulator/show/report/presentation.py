"""Settings of an answer's presentation: verbosity, colour, width, the whole run. Values; prints nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulator.cost.pricing.estimate import Estimate
from simulator.show.answers.run import TrainingRun, run_of
from simulator.show.report.tables import Style, filled, heading
from simulator.show.report.text import amount, money, ranged

if TYPE_CHECKING:
    from simulator.question.scenario.scenario import Scenario
    from simulator.search.rank import Progress
    from simulator.search.space import Space
    from simulator.show.answers.explain import Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """Settings of a presentation: how much to show, and the whole training run."""

    verbosity: int = 0
    """Below 0: the table alone. 0: with the main assumptions. Above 0: everything."""
    colour: bool = False
    """Whether the text may hold terminal colour codes."""
    train_tokens: int | None = None
    """Tokens of the whole training run; None leaves out its duration and cost."""
    price_per_device_hour: float | None = None
    """Price of one device for one hour, in any currency; None leaves out the cost."""
    width: int | None = None
    """Characters in a line of a table; None is no limit."""
    variants: bool = False
    """Whether a ranking has every layout, not only the best of each split."""
    device_has_fp8: bool | None = None
    """Whether the hardware has an fp8 peak; None if that was not checked."""
    defaults: Mapping[str, object] = field(default_factory=dict)
    """Inputs of a single estimate that were left to their default, by option name."""
    default_hardware: str = ""
    """Default hardware of a question without any; empty where the question names it."""
    explanation: Explanation | None = None
    """Explanation of an estimate that does not fit; None where it was not asked for."""
    command: str = ""
    """Command as it was typed, for pages to name."""
    question: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of `simulator.rank` or `simulator.estimate` behind an answer, for pages that price other values."""
    space: Space | None = None
    """Space of a ranking's search, for the same pages."""
    progress: Progress | None = None
    """Callback with the number of answered questions of a page, and of all."""
    scenarios: tuple[Scenario, ...] = ()
    """Scenarios of a comparison, whose sources a page names."""


def question_block(question: str, presentation: Presentation, style: Style) -> str:
    """Return the question as a title, with the default hardware below where it names none."""
    width = presentation.width if style == "table" else None
    title = heading(filled(question, width), style)
    hardware = presentation.default_hardware
    return f"{title}\n{filled(hardware, width)}" if hardware else title


def days_text(run: TrainingRun) -> str:
    """Return the days of a run with their interval."""
    return ranged(run.days, run.days_interval, amount)


def cost_text(run: TrainingRun) -> str:
    """Return the cost of a run with its interval; a dash without a price."""
    return "-" if run.cost is None else ranged(run.cost, run.cost_interval, money)


def training_run(estimate: Estimate, presentation: Presentation) -> TrainingRun | None:
    """Return the whole run at the estimate's speed, or None if no number of tokens was given."""
    tokens = presentation.train_tokens
    if tokens is None or estimate.throughput.tokens_per_second_per_device <= 0:
        return None
    return run_of(estimate, tokens, presentation.price_per_device_hour)
