"""The optimizer that a recipe names, read as a switch, for the words of every framework. Counts no state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.question.frameworks.stacks import profile_of
from simulator.question.specs.optimizers import OPTIMIZERS, Optimizer, optimizer_of_word

_USUAL: Final = "adamw"


def read_optimizer(  # noqa: PLR0913  one per fact of a word
    arguments: Arguments,
    name: str,
    framework: str,
    *,
    default: str | None = None,
    own: Mapping[str, str] | None = None,
    bound: bool = False,
) -> dict[str, str]:
    """Return the switch that a word sets; empty for AdamW, the default of most stacks.

    name : flag or key that holds the word
    framework : framework whose profile lists the optimizers that it offers
    default : word of a recipe without one
    own : optimizers by words that mean another one, or nothing, in other frameworks
    bound : whether AdamW keeps the most state of all, so that others may be priced as it
    """
    word = arguments.text("optimizer", name) or default
    if not word:
        return {}
    optimizer = _optimizer(word, own or {})
    if optimizer is None or optimizer.name not in profile_of(framework).limits.optimizers:
        if bound:
            message = f"optimizer {word[:40]} is priced as AdamW, which keeps more than others"
            arguments.remark("upper-bound", "warning", message, name)
            return {}
        offered = ", ".join(profile_of(framework).limits.optimizers)
        arguments.not_modelled(f"optimizer {word[:60]} is not priced; priced are {offered}", name)
        return {}
    if "paged" in word.lower():
        message = f"{word[:60]}: state that may move to the host is priced on the device"
        arguments.remark("upper-bound", "warning", message, name)
    return {} if optimizer.name == _USUAL else {"optimizer": optimizer.name}


def _optimizer(word: str, own: Mapping[str, str]) -> Optimizer | None:
    name = own.get(word.rpartition(".")[2].lower())
    return OPTIMIZERS[name] if name else optimizer_of_word(word)
