"""The optimizer that a recipe names, as a switch: one reader for the words of every framework. Counts no state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.question.frameworks.profiles import profile_of
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
    """The switch that a word sets: nothing where it is Adam's, as most stacks have it.

    name : of the flag or key that holds the word
    framework : whose profile says which optimizers it has
    default : what stands where no word does
    own : words that mean another optimizer here than elsewhere, or that are no names elsewhere
    bound : whether all others that the framework has keep less than Adam, as which they are then priced
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
