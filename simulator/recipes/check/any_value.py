"""Verdicts that hold for any value of a missing setting: any vocabulary, any ZeRO stage. Prices nothing itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simulator.answers.cases import Blocked, Case, case_of
from simulator.question.origin import OPTION, Input, Remark
from simulator.question.question import Question
from simulator.question.recipe import Recipe
from simulator.recipes.check.machines import Reread
from simulator.recipes.check.verdict import Checked

SMALLEST_VOCABULARY, LARGEST_VOCABULARY = 1 << 15, 1 << 18
"""Bounds of language models' vocabularies, Llama's 32,000 entries to Gemma's 262,144; both divide well."""
_STAGES: Final = ("z0", "z1", "z2", "z3")
"""Presets of DeepSpeed's configuration without offload, by name."""
_WIDE: Final = {"gradient_dtype": "fp32"}
"""The most that a configuration's `grad_accum_dtype` asks for."""


def of_any_vocabulary(question: Question, judge: Callable[[Case], Checked]) -> Checked | None:
    """Return the verdict where only the vocabulary is missing and both bounds have the same one; else None."""
    if question.by_user("vocab_size"):
        return None
    cases: list[Case] = []
    for size in (SMALLEST_VOCABULARY, LARGEST_VOCABULARY):
        fields = {"vocab_size": Input(size, OPTION)}
        case = case_of(Question(model_fields=fields).over(question))
        if isinstance(case, Blocked):
            return None
        cases.append(case)
    small, large = map(judge, cases)
    if (small.outcome, small.passed) != (large.outcome, large.passed):
        return None
    size, chosen = (LARGEST_VOCABULARY, large) if large.passed else (SMALLEST_VOCABULARY, small)
    message = (
        f"the vocabulary is missing: {size:,} entries are priced; the verdict is the same from "
        f"{SMALLEST_VOCABULARY:,} to {LARGEST_VOCABULARY:,}"
    )
    others = (remark for remark in chosen.remarks if remark.rule != "no-vocabulary")
    assumed = Remark("vocabulary-assumed", "note", message, fix="--model-field vocab_size=N")
    return replace(chosen, remarks=(*others, assumed))


def of_any_stage(
    recipe: Recipe, options: Question, reread: Reread, judge: Callable[[Recipe, Question], Checked]
) -> Checked | None:
    """Return the verdict where only DeepSpeed's configuration is missing and every ZeRO stage passes; else None.

    The file may also offload, which lowers the need of a device, so that failures without it are not final.
    """
    missing = [unknown for unknown in recipe.unknowns if unknown.affects]
    if len({unknown.name for unknown in missing}) != 1 or any(
        set(unknown.affects) != {"zero_stage"} for unknown in missing
    ):
        return None
    judged: list[Checked] = []
    for stage, switches in (*((stage, {}) for stage in _STAGES), (_STAGES[0], _WIDE)):
        other = reread({missing[0].name: stage}, options)
        wider = options.with_switches({**switches, **options.options}, OPTION)
        if other is None or not (verdict := judge(other, wider)).passed:
            return None
        judged.append(verdict)
    message = (
        "DeepSpeed's configuration is not at hand: memory and speed are those without ZeRO, and it passes with every "
        "stage and with fp32 gradients"
    )
    assumed = Remark("zero-stage-assumed", "warning", message, missing[0].place, f"--set {missing[0].name}=PATH")
    return replace(judged[0], remarks=(*judged[0].remarks, assumed))
