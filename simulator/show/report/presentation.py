"""Settings of how an answer is shown (`Presentation`), with tables and sentences laid out by them.

    shown = Presentation(verbosity=1, width=100)
    shown.titled("Speed", shown.grid(["figure", "value"], [["MFU %", "41.2"]]))
    shown.prose(["A sentence that is broken into lines of 100 characters."])

Writers return blocks of text made so; `joined` puts them under each other. `report.tables` lays out a table,
`report.text` writes numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from simulator.answers.run import TrainingRun, run_of
from simulator.cost.pricing.estimate import Estimate
from simulator.question.question import Question
from simulator.show.report.tables import Column, Style, filled, grid, heading, paragraph
from simulator.show.report.text import amount, money, ranged

if TYPE_CHECKING:
    from simulator.answers.explain import Explanation
    from simulator.question.scenario.scenario import Scenario
    from simulator.search.rank import Progress
    from simulator.search.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Presentation:
    """Settings of a presentation: how much to show, and the whole training run."""

    style: Style = "table"
    """What the text is for."""
    verbosity: int = 0
    """Below 0: the table alone. 0: with the main assumptions. Above 0: everything."""
    colour: bool = False
    """Whether the text may hold terminal colour codes."""
    train_tokens: int | None = None
    """Tokens of the whole training run; None leaves out its duration and cost."""
    price_per_device_hour: float | None = None
    """Price of one device for one hour, in any currency; None leaves out the cost."""
    width: int | None = None
    """Characters in a line of a terminal; None is no limit."""
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
    question: Question = field(default_factory=Question)
    """Question behind an answer, for pages that price other values."""
    space: Space | None = None
    """Space of a ranking's search, for the same pages."""
    progress: Progress | None = None
    """Callback with the number of answered questions of a page, and of all."""
    scenarios: tuple[Scenario, ...] = ()
    """Scenarios of a comparison, whose sources a page names."""

    @property
    def line(self) -> int | None:
        """Characters in a line of the text; None is no limit."""
        return self.width if self.style == "table" else None

    @property
    def full(self) -> bool:
        """Whether every row is shown: with more verbosity, and in a notebook, which has room."""
        return self.verbosity > 0 or self.style == "html"

    def prose(self, lines: Iterable[str]) -> str:
        """Return sentences, each broken into lines of the text."""
        return paragraph((filled(line, self.line) for line in lines), self.style)

    def sentences(self, lines: Iterable[str]) -> str:
        """Return sentences, each on a line however long it is."""
        return paragraph(lines, self.style)

    def grid(
        self,
        headers: Sequence[str],
        rows: Iterable[Sequence[str]],
        text_columns: Iterable[int] = (0,),
        wrapped: Collection[str] | Mapping[str, int] = (),
        bars: Mapping[int, Sequence[float]] = MappingProxyType({}),
    ) -> str:
        """Return a table, as `tables.grid` does; by default its first column is text."""
        return grid(headers, rows, self.style, text_columns=text_columns, wrapped=wrapped, bars=bars)

    def columns(self, columns: Sequence[Column], wrapped: Mapping[str, int] = MappingProxyType({})) -> str:
        """Return columns as a table; those with a `wrapped` header are broken into lines, as in `tables.grid`."""
        rows = list(zip(*(column.cells for column in columns), strict=True))
        text_columns = [position for position, column in enumerate(columns) if column.is_text]
        bars = {position: column.bars for position, column in enumerate(columns) if column.bars}
        return self.grid([column.header for column in columns], rows, text_columns, wrapped, bars).rstrip("\n")

    def titled(self, title: str, text: str) -> str:
        """Return a table or sentences under their title."""
        return f"{heading(title, self.style)}\n{text}"

    def question_block(self, question: str) -> str:
        """Return the question as a title, with the default hardware below where it names none."""
        title = heading(filled(question, self.line), self.style)
        hardware = self.default_hardware
        return f"{title}\n{filled(hardware, self.line)}" if hardware else title

    def run_of(self, estimate: Estimate) -> TrainingRun | None:
        """Return the whole run at the estimate's speed, or None if no number of tokens was given."""
        if self.train_tokens is None or estimate.throughput.tokens_per_second_per_device <= 0:
            return None
        return run_of(estimate, self.train_tokens, self.price_per_device_hour)


def joined(blocks: Iterable[str]) -> str:
    """Return the parts of an answer that are not empty, a blank line between them."""
    return "\n\n".join(block.rstrip("\n") for block in blocks if block) + "\n"


def days_text(run: TrainingRun) -> str:
    """Return the days of a run with their interval."""
    return ranged(run.days, run.days_interval, amount)


def cost_text(run: TrainingRun) -> str:
    """Return the cost of a run with its interval; a dash without a price."""
    return "-" if run.cost is None else ranged(run.cost, run.cost_interval, money)
