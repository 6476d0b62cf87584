"""Verdicts over what a device's name leaves open: a V100 has 16 or 32 GB, an A100 40 or 80."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from simulator.answers.cases import Case
from simulator.cost.pricing.estimate import Estimate, Verdict
from simulator.late import late_pattern
from simulator.question.question import Question
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.names import names_of_other_memory
from simulator.question.units import to_gib
from simulator.records import replace

_APART: Final = late_pattern(r"[\s=/:|&,]+")
"""What stands between words that name a device, such as `gres=gpu:a100:8`."""
_MEMORY: Final = late_pattern(r"(?<![a-z\d])\d+gi?b?(?![a-z\d])")  # a memory that such words state
_RUNS: Final[tuple[Verdict, ...]] = ("fits", "starved")
_WORDS: Final = {"fits": "fits", "starved": "starts", "does_not_fit": "does not fit", "depends": "may fit"}
"""Verdicts in a sentence."""


def over_memories(case: Case, estimate: Estimate, judge: Callable[[HardwareSpec], Estimate]) -> Estimate:
    """Return an estimate whose verdict holds for each memory that its device's name may mean, or depends on it.

    `judge` returns the estimate with the memory of another device. Figures stay those of the hardware that is taken.
    """
    question, scenario = case.question, case.scenario
    if estimate.verdict not in _WORDS or scenario.groups:
        return estimate
    for other in map(load_hardware, _others(question)):
        if _cannot_turn(estimate, other):
            continue
        taken, judged = scenario.hardware, judge(other)
        if (judged.verdict in _RUNS) == (estimate.verdict in _RUNS) and judged.verdict != "depends":
            continue
        sizes = [f"{to_gib(each.usable_memory_bytes):.2f}" for each in (taken, other)]
        caution = (
            f"the memory is not said: {taken.name} is taken, where it {_WORDS[estimate.verdict]} with {sizes[0]} GiB "
            f"usable; with the {sizes[1]} of {other.name} it {_WORDS[judged.verdict]}"
        )
        known = replace(estimate.provenance, cautions=(caution, *estimate.provenance.cautions))
        return replace(estimate, verdict="depends", provenance=known, memory_decides=True)
    return estimate


def _cannot_turn(estimate: Estimate, other: HardwareSpec) -> bool:
    """Return whether another memory leaves a verdict as it is: less of one that does not fit, more of one that does."""
    more = other.usable_memory_bytes > estimate.memory.capacity_bytes
    return estimate.verdict == "depends" or more == (estimate.verdict in _RUNS)


def _others(question: Question) -> Iterator[str]:
    """Yield the names of hardware of other memory that the words which name a question's device mean as well."""
    if question.recipe is None or question.origin("hardware").kind != "file":
        yield from names_of_other_memory("hardware", str(question.stated("hardware") or "").partition("@")[0])
    elif not _MEMORY.search(question.recipe.device_word.lower()):
        for word in _APART.split(question.recipe.device_word):
            for part in (word, *word.replace("_", "-").split("-")):
                yield from names_of_other_memory("hardware", part)
