"""Values of keys that no attribute of an answer holds, by function; `simulator.show.report.keys` names each.

A function's return type is the key's type, its docstring the key's meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from simulator._version import __version__
from simulator.answers.gates import OUTCOMES
from simulator.answers.saved import question_object
from simulator.search.result import Ranking
from simulator.show.report.presentation import Presentation, training_run
from simulator.show.report.text import sharded_layout_text

if TYPE_CHECKING:
    from pathlib import Path

    from simulator.answers.run import TrainingRun
    from simulator.cost.pricing.estimate import Estimate, StageMemory
    from simulator.lab.probe.run import Probed
    from simulator.lab.runner.campaign import Refused
    from simulator.lab.runner.compare import LayoutComparison, Learned
    from simulator.recipes.check.verdict import Checks


def schema_version(_answer: object, _presentation: Presentation) -> Literal["2"]:
    """Version of these keys; it changes when a key is removed or changes its meaning."""
    return "2"


def trace_schema_version(_answer: object, _presentation: Presentation) -> Literal[1]:
    """Version of these keys; it changes when a key is removed or changes its meaning."""
    return 1


def tool_version(_answer: object, _presentation: Presentation) -> str:
    """Version of simulate."""
    return __version__


def question(answer: Estimate | Ranking, _presentation: Presentation) -> Mapping[str, Any]:
    """Values of the question by group (inputs, model fields, layout, switches), each with who said it and where."""
    return question_object(answer.question)


def outcome_counts(checks: Checks, _presentation: Presentation) -> Mapping[str, int]:
    """Recipes, those that passed and failed, and those of each verdict."""
    outcomes, passed = [result.outcome for result in checks.results], sum(each.passed for each in checks.results)
    ended = {"recipes": len(outcomes), "passed": passed, "failed": len(outcomes) - passed}
    return ended | {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


def training(estimate: Estimate, presentation: Presentation) -> TrainingRun | None:
    """The whole run; with `--train-tokens` only."""
    return training_run(estimate, presentation)


def runs(compared: LayoutComparison, _presentation: Presentation) -> int:
    """Rows of launches that ended well."""
    return len(compared.ran)


def sharded_layout(refused: Refused, _presentation: Presentation) -> str:
    """The layout on one line."""
    return sharded_layout_text(refused.layout)


def stored_file(learned: Learned, _presentation: Presentation) -> Path | None:
    """The calibration that was written; null for none."""
    return learned.path if learned.stored else None


def allocated_parts(stage: StageMemory, _presentation: Presentation) -> Mapping[str, float]:
    """Parts of the predicted peak that are tensors."""
    return {name: size for name, size in stage.parts_bytes.items() if name != "outside_allocator"}


def rates_measured(probe: Any, _presentation: Presentation) -> bool:
    """Whether the rates were measured; else they follow from the numbers of the spec."""
    return getattr(probe, "prepared", probe).measured is not None


def interrupted(probed: Probed, _presentation: Presentation) -> bool:
    """Whether a signal ended the launches early."""
    return bool(probed.campaign.interrupted_by)
