"""Judging recipes: each file read, asked, priced and compared with what passes. Every file gets an answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from simulator.calibration.apply import with_calibration
from simulator.check.asked import Asked
from simulator.check.case import Blocked, Case, case_of
from simulator.check.changes import changes_for
from simulator.check.marks import marks_of
from simulator.check.peaks import peaks_of
from simulator.check.verdict import Checked, Gates, Outcome
from simulator.errors import SimulateError, UnsupportedError
from simulator.pricing.build import estimate_layout
from simulator.pricing.estimate import Estimate
from simulator.recipes.recipe import Place, Recipe, Remark
from simulator.rules.frameworks import READER_RULES, findings

_SEVERITIES = ("error", "warning", "note")


def check_files(
    files: Iterable[str],
    asked: Asked,
    gates: Gates,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Checked]:
    """Judge every launch of every file, in order. An error in one file is its result and does not stop the others."""
    from simulator.recipes.read import read_recipe  # noqa: PLC0415  brings a parser

    for file in files:
        try:
            recipes: Sequence[Recipe] = read_recipe(file, settings or {}, environment)
        except SimulateError as error:
            yield _failed(file, "", error)
            continue
        for recipe in recipes:
            yield check_recipe(recipe, asked, gates)


def check_recipe(recipe: Recipe, asked: Asked, gates: Gates) -> Checked:
    """Judge one launch."""
    try:
        case = case_of(recipe, asked)
        if isinstance(case, Blocked):
            return _blocked(case)
        return _judged(case, gates)
    except SimulateError as error:
        failed = _failed(recipe.file, recipe.title, error)
        return replace(failed, framework=recipe.framework, dialect=recipe.dialect, remarks=_ordered(recipe.remarks))


def estimate_of(case: Case) -> Estimate:
    """The estimate of a case, with intervals where a calibration gives them."""
    return with_calibration(case.scenario, estimate_layout(case.scenario, case.layout), case.used)


def _judged(case: Case, gates: Gates) -> Checked:
    estimate = estimate_of(case)
    marks = marks_of(case.recipe.file)
    refusals = (*findings(case.launch(marks), estimate.violations), *_errors(case.remarks))
    outcome: Outcome = "refused" if refusals else estimate.verdict
    if any(refusal.rule == "not-modelled" for refusal in refusals):
        outcome = "not_modelled"
    broken = gates.broken(estimate)
    passed = outcome in ("fits", "starved") and not broken
    reasons = tuple(refusal.message for refusal in refusals) or broken
    return Checked(
        file=case.recipe.file,
        title=case.recipe.title,
        framework=case.scenario.framework.name,
        dialect=case.recipe.dialect,
        outcome=outcome,
        passed=passed,
        reasons=reasons,
        remarks=_ordered((*refusals, *(remark for remark in case.remarks if remark.severity != "error"))),
        blame=None if passed else _blame(case, estimate, refusals),
        estimate=estimate,
        peaks=peaks_of(case.scenario, case.layout),
        without_offload=_on_device(case),
        changes=() if passed or outcome == "not_modelled" else changes_for(case, estimate, marks, gates),
    )


def _errors(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """What the reader itself found that the framework would refuse."""
    return tuple(remark for remark in remarks if remark.severity == "error" and remark.rule not in READER_RULES)


def _on_device(case: Case) -> Estimate | None:
    """The same layout without offloading, where there is some."""
    if case.layout.offload == "none":
        return None
    layout = replace(case.layout, offload="none")
    return with_calibration(case.scenario, estimate_layout(case.scenario, layout), case.used)


def _blame(case: Case, estimate: Estimate, refusals: Sequence[Remark]) -> Place | None:
    """The line of the flag that decides: of the refusal, else of what weighs most on the binding stage."""
    places = case.recipe.places
    found = next((refusal.place for refusal in refusals if refusal.place is not None), None)
    if found is not None:
        return found
    parts = estimate.memory.parts_bytes
    heaviest = max(parts, key=lambda name: parts[name]) if parts else ""
    order = (*_DECIDES.get(heaviest, ()), "pp", "tp", "micro_batch_size", "model", "nodes")
    return next((places[name] for name in order if name in places), None)


_DECIDES: dict[str, tuple[str, ...]] = {
    "activations": ("recompute", "micro_batch_size", "seq_length", "cp"),
    "logits": ("micro_batch_size", "seq_length"),
    "optimizer": ("zero_stage", "offload", "pp"),
    "gradients": ("zero_stage", "pp"),
    "parameters": ("pp", "tp"),
}


def _blocked(blocked: Blocked) -> Checked:
    recipe = blocked.recipe
    reasons = tuple(_sentence(remark) for remark in blocked.missing)
    return Checked(
        file=recipe.file,
        title=recipe.title,
        framework=recipe.framework,
        dialect=recipe.dialect,
        outcome="cannot_tell",
        passed=False,
        reasons=reasons,
        remarks=_ordered((*blocked.missing, *blocked.remarks)),
        blame=next((remark.place for remark in blocked.missing if remark.place), None),
    )


def _sentence(remark: Remark) -> str:
    place = f"line {remark.place.line}: " if remark.place else ""
    return f"{place}{remark.message}" + (f" ({remark.fix})" if remark.fix else "")


def _failed(file: str, title: str, error: SimulateError) -> Checked:
    outcome: Outcome = "not_modelled" if isinstance(error, UnsupportedError) else "unreadable"
    return Checked(file=file, title=title, outcome=outcome, passed=False, reasons=(str(error),))


def _ordered(remarks: Iterable[Remark]) -> tuple[Remark, ...]:
    """Errors first, the same remark once."""
    return tuple(sorted(dict.fromkeys(remarks), key=lambda remark: _SEVERITIES.index(remark.severity)))
