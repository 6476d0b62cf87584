"""What a few own rows of a source do to its other rows, over random draws. Fits nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from benchmarks.accuracy.judge import DRAWS, FEW, SEED, Residual
from simulator.question.coefficients import CoefficientKind
from simulator.show.report.calibration import TITLES
from simulator.show.report.presentation import Section
from simulator.show.report.text import percent

WORSE_BY: Final = 0.005
"""Mean absolute error by which a draw of own rows counts as worse than none."""


class Drawn(Protocol):
    """A row predicted without its source, with a few rows of it, and with all."""

    @property
    def source(self) -> str:
        """Table of the row."""

    @property
    def fitted(self) -> Residual:
        """With all rows."""

    @property
    def source_out(self) -> Residual:
        """Without its source."""

    @property
    def few(self) -> Mapping[int, Residual]:
        """With FEW other rows of its source, by the number of the draw, which does not hold it."""


@dataclass(frozen=True, slots=True)
class DrawsJudged:
    """What own rows do to the other rows of their source; errors are mean absolute relative errors."""

    draws: int
    """Random subsets of FEW rows, DRAWS of each source with more rows than that."""
    worse: int
    """Draws with which the source's other rows are predicted worse than with none, by more than WORSE_BY."""
    unlearned: int
    """Draws that left-out rows do not show to help: what was known before stays."""
    none: float
    """Without any own row."""
    few: float
    """With those of the draw."""
    every: float
    """With all rows of the source in the fit, the row itself too: what the coefficients cannot explain."""


def draws_judged(rows: Iterable[Drawn]) -> DrawsJudged | None:
    """Count the draws of some rows; None where no source has more than FEW."""
    draws: dict[tuple[str, int], list[Drawn]] = {}
    for row in rows:
        for draw in row.few:
            draws.setdefault((row.source, draw), []).append(row)
    if not draws:
        return None
    none = [np.mean([abs(row.source_out.relative) for row in members]) for members in draws.values()]
    few = [np.mean([abs(row.few[draw].relative) for row in members]) for (_, draw), members in draws.items()]
    every = [np.mean([abs(row.fitted.relative) for row in members]) for members in draws.values()]
    sizes = [len(members) for members in draws.values()]
    gains = np.array(none) - np.array(few)
    return DrawsJudged(
        draws=len(draws),
        worse=int(np.sum(gains < -WORSE_BY)),
        unlearned=int(np.sum(np.abs(gains) < 1e-9)),
        none=float(np.average(none, weights=sizes)),
        few=float(np.average(few, weights=sizes)),
        every=float(np.average(every, weights=sizes)),
    )


def few_error(rows: Iterable[Drawn]) -> float:
    """Mean absolute error with FEW own rows of the source, over all draws; 0 where no source has more than FEW."""
    errors = [abs(judged.relative) for row in rows for judged in row.few.values()]
    return float(np.mean(errors)) if errors else 0.0


def draws_sections(rows: Mapping[CoefficientKind, Sequence[Drawn]]) -> Iterator[Section]:
    """Yield what a few own rows do to the other rows of their source, one line a kind of figure."""
    judged = {TITLES[kind]: draws_judged(of_kind) for kind, of_kind in rows.items()}
    cells = [
        [
            *(title, str(draws.draws), str(draws.unlearned), f"{draws.worse} ({74 * draws.worse / draws.draws:.1f})"),
            *map(percent, (draws.none, draws.few, draws.every)),
        ]
        for title, draws in judged.items()
        if draws is not None
    ]
    text = (
        f"Random subsets of {FEW} rows of each source that has more, {DRAWS} a source, seed {SEED}. Nothing is learned "
        "of those that do not predict one another better than what was known before. Worse: the source's other rows "
        f"are missed by {100 * WORSE_BY:g} points more than without own rows. All rows: fitted with every row of the "
        "source, themselves too, which is what the coefficients cannot explain."
    )
    headers = ("", "draws", "nothing\nlearned", "worse\n(of 74)", "no own\nrow %", f"{FEW} own\nrows %", "all\nrows %")
    if cells:
        yield Section(f"{FEW} own rows", (text,), headers, cells, text_columns=(0,))
