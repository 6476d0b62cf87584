"""The registry: every format by its name, for an estimate, a ranking and a plain listing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from simulator.cost.pricing.estimate import Estimate
from simulator.search.result import Ranking
from simulator.show.report.as_csv import estimates_csv
from simulator.show.report.as_json import dumps, estimate_object, ranking_text, reporters
from simulator.show.report.estimate_table import estimate_table
from simulator.show.report.presentation import Presentation
from simulator.show.report.ranking_table import ranking_table

EstimateReporter = Callable[[Estimate, Presentation], str]
RankingReporter = Callable[[Ranking, Presentation], str]


def _line(value: object) -> str:
    return dumps(value, indent=None) + "\n"


ESTIMATE_REPORTERS: Mapping[str, EstimateReporter] = MappingProxyType(
    {
        **reporters(estimate_table, estimate_object),
        "jsonl": lambda estimate, presentation: _line(estimate_object(estimate, presentation)),
        "csv": lambda estimate, presentation: estimates_csv([estimate], presentation),
    }
)
"""Text of one estimate, by the format's name."""

RANKING_REPORTERS: Mapping[str, RankingReporter] = MappingProxyType(
    {
        "table": lambda ranking, presentation: ranking_table(ranking, presentation, "table"),
        "json": lambda ranking, presentation: ranking_text(ranking, presentation) + "\n",
        "jsonl": lambda ranking, presentation: "".join(
            _line(estimate_object(estimate, presentation)) for estimate in ranking.estimates
        ),
        "csv": lambda ranking, presentation: estimates_csv(ranking.estimates, presentation),
        "markdown": lambda ranking, presentation: ranking_table(ranking, presentation, "markdown"),
    }
)
"""Text of a ranking, by the format's name."""
