"""Memory of a device whose name leaves it open: a V100 has 16 or 32 GB, an A100 40 or 80. One is taken and priced."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from operator import gt, lt

from simulator.cost.pricing.estimate import Estimate, OtherMemory
from simulator.late import deferred
from simulator.question.question import Question
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.names import clusters_meant, names_in
from simulator.question.units import to_gib
from simulator.records import replace

_WORDS = {"fits": "fits", "starved": "fits", "does_not_fit": "does not fit", "depends": "may fit"}


def hardware_meant(question: Question) -> tuple[str, ...]:
    """Return what a question's words for its hardware mean: what is taken first; an empty text where none is said."""
    return clusters_meant(str(question.stated("hardware") or ""))


def over_memories(question: Question, estimate: Estimate, judge: Callable[[str], Estimate]) -> Estimate:
    """Return an estimate whose verdict holds for each memory that its hardware's name may mean, or depends on it.

    `judge` returns the estimate with the memory of another cluster. Figures stay those of the hardware that is taken.
    """
    taken, *others = hardware_meant(question)
    if not others or estimate.verdict == "refused":
        return estimate
    judged = cache(judge)
    answers = deferred(lambda: tuple(OtherMemory(each, judged(each).verdict, judged(each).memory) for each in others))
    estimate = replace(estimate, other_memories=answers)
    word = _fitting_word(question, estimate)
    for other in others if word else ():
        sizes, mine = ([load_hardware(name).usable_memory_bytes for name in names_in(each)] for each in (other, taken))
        less, more = map(lt, sizes, mine), map(gt, sizes, mine)
        if not any({"fits": less, "does not fit": more}.get(word, (True,))):
            continue  # such a memory turns no verdict
        with_other = judged(other)
        if (answer := _fitting_word(question, with_other)) not in (word, ""):
            first, second = (f"{to_gib(each.memory.capacity_bytes):.2f}" for each in (estimate, with_other))
            caution = (
                f"the memory is not said: {taken} is taken, where it {word} ({first} GiB usable); "
                f"on {other} it {answer} ({second})"
            )
            known = replace(estimate.provenance, cautions=(caution, *estimate.provenance.cautions))
            turns = word != "may fit" or question.recipe is not None  # else what is open decides on this one
            return replace(estimate, verdict="depends", provenance=known, other_memory=other if turns else "")
    return estimate


def _fitting_word(question: Question, estimate: Estimate) -> str:
    """Return whether an estimate fits, in words; empty where it is refused."""
    if question.recipe is not None and estimate.memory.undecided and estimate.verdict in _WORDS:
        return "may fit"
    return _WORDS.get(estimate.verdict, "")
