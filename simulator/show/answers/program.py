"""`check`, `explain` and `emit` for a Python program. Same answers as the commands; prints nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from simulator.api import resolved, spelled
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, UnsupportedError
from simulator.question.scenario.inputs import chosen_options
from simulator.question.scenario.layout import BY_NAME
from simulator.question.scenario.typed import OpenFields
from simulator.question.units import to_gib
from simulator.recipes.check.asked import asked_of
from simulator.recipes.check.baseline import Changed
from simulator.recipes.check.case import Case
from simulator.recipes.check.judge import check_files, estimate_of
from simulator.recipes.check.verdict import OUTCOMES, Checked, CheckOutcome, Gates, exit_code
from simulator.recipes.emit.question import question_of_path, question_of_scenario, target_of
from simulator.recipes.emit.recipe import emit as recipe_of
from simulator.search.query import MIN_FIT_PROBABILITY
from simulator.show.answers.compare import side_of_estimate
from simulator.show.answers.explain import Explanation
from simulator.show.answers.explain import explain as explained
from simulator.tabular import Tabular


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks(Tabular):
    """Verdicts on recipes."""

    results: tuple[Checked, ...]
    """Result of each launch of each file."""
    gates: Gates
    """Conditions of passing."""
    changed: tuple[Changed, ...] | None = None
    """Differences from the baseline; None without one."""
    patches: bool = False
    """Whether patches of helpful changes were asked for."""

    @property
    def exit_code(self) -> int:
        """Exit code of `simulate check`: 0 all pass, 1 some fail, 2 wrong input, 3 something cannot be told."""
        return exit_code(self.results, self.gates)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each launch: its verdict and, if it was priced, its memory and speed."""
        return [_row(result) for result in self.results]

    def __repr__(self) -> str:
        """Return one line: the number of recipes of each verdict."""
        outcomes = [result.outcome for result in self.results]
        counts = (f"{outcomes.count(outcome)} {outcome}" for outcome in OUTCOMES if outcome in outcomes)
        return f"<Checks of {len(outcomes)}: {', '.join(counts) or 'none'}>"


def _row(result: Checked) -> dict[str, Any]:
    priced = result.estimate
    return {
        **{name: getattr(result, name) for name in ("file", "title", "framework", "outcome", "passed")},
        "reasons": "; ".join(result.reasons),
        "device_bytes": None if priced is None else priced.memory.device_bytes,
        "capacity_bytes": None if priced is None else priced.memory.capacity_bytes,
        "fit_probability": None if priced is None else priced.memory.fit_probability,
        "step_seconds": None if priced is None else priced.throughput.step_seconds,
    }


@spelled(OpenFields, over=True)
def check(  # noqa: PLR0913  what a question about files is made of
    *files: str,
    settings: Mapping[str, str] | None = None,
    root: str | None = None,
    max_memory_fraction: float | None = None,
    min_fit_probability: float | None = None,
    fail_on: Collection[CheckOutcome] = (),
    skip_non_recipes: bool = False,
    **over: Unpack[OpenFields],
) -> Checks:
    """Judge launch scripts and configurations, or folders of them, without running any.

    `settings` are values known only at launch, such as `{"WORLD_SIZE": "4"}`; no file outside `root` is read. A recipe
    passes if it fits, within `max_memory_fraction` of the usable memory and with at least `min_fit_probability`; with
    `fail_on` only those outcomes fail. Arguments of `estimate` replace those of a recipe. An unreadable file is a
    result; raises InputError for a wrong argument.
    """
    if not files:
        raise InputError("name the recipes to judge, or a folder of them")
    gates = Gates(
        max_memory_fraction=max_memory_fraction,
        min_fit_probability=min_fit_probability,
        fail_on=tuple(fail_on) or None,
        skip_non_recipes=skip_non_recipes,
    )
    asked = asked_of(over)
    return Checks(results=check_files(files, asked, gates, settings, None, Path(root) if root else None), gates=gates)


@spelled(OpenFields, over=True)
def explain(
    what: Estimate | str | None = None,
    *,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    **question: Unpack[OpenFields],
) -> Explanation:
    """Explain the memory of a layout, with the smallest changes that make it fit.

    `what` is an estimate, or the path of an estimate or a recipe. The arguments of `estimate` define the layout without
    it, and replace values of a file. Raises InputError, or UnsupportedError for what cannot be priced.
    """
    return explained(_case(what, question), min_fit_probability)


@spelled(OpenFields, over=True)
def emit(
    what: Estimate | str | None = None,
    *,
    target: str | None = None,
    force: bool = False,
    **question: Unpack[OpenFields],
) -> str:
    """Write the recipe that launches a layout: a script or a configuration, as text.

    `what` and the arguments of `estimate` as in `explain`; `target` is one of the kinds of `simulate emit --framework`,
    by default that of the framework that the layout is priced for. Raises UnsupportedError for what the framework has
    no words for, and unless `force` for a layout that does not fit.
    """
    case = _case(what, question)
    text = recipe_of(case, target_of(case.scenario.framework.name) if target is None else target)
    memory = estimate_of(case).memory
    if not (memory.fits or force):
        need = f"{to_gib(memory.device_bytes):.1f} of {to_gib(memory.capacity_bytes):.1f} GiB"
        raise UnsupportedError(f"the layout does not fit: it needs {need}; force=True writes it all the same")
    return text


def _case(what: Estimate | str | None, question: Mapping[str, Any]) -> Case:
    if isinstance(what, str):
        return question_of_path(what, asked_of(question))
    if what is not None:
        if question:
            raise InputError("give an estimate or the arguments of one, not both")
        if not isinstance(what, Estimate):
            raise InputError(f"takes an estimate, a file, or the arguments of an estimate, not {type(what).__name__}")
        return question_of_scenario(*side_of_estimate(what)[0], what.options)
    if question.get("model") is None:
        raise InputError("model: name one, give an estimate, or a file")
    layout = {name: value for name, value in question.items() if name in BY_NAME and value is not None}
    others = {name: value for name, value in question.items() if name not in BY_NAME and value is not None}
    return question_of_scenario(*resolved(others, layout), chosen_options(others))
