"""A note with the options for a script's missing positional parameters."""

from __future__ import annotations

import re
from collections.abc import Iterable

from simulator.question.origin import Remark
from simulator.question.recipe import Recipe
from simulator.recipes.check.marks import text_of
from simulator.recipes.shell.example import argument_names

_NUMBER = re.compile(r"[0-9]{1,3}")
"""Positional parameters that `--set` takes."""


def arguments_line(recipe: Recipe, missing: Iterable[Remark]) -> Remark | None:
    """Return a note with the options for all missing positional parameters, by the script's names; else None."""
    missing_names = {
        remark.message.split()[0].removeprefix("$") for remark in missing if remark.rule == "unknown-value"
    }
    numbers = sorted(int(name) for name in missing_names if _NUMBER.fullmatch(name))
    if not numbers:
        return None
    names = argument_names(text_of(recipe.file))
    subject = "an argument that decides" if len(numbers) == 1 else "arguments that decide"
    fix = " ".join(f"--set {number}={names.get(number, 'VALUE').upper()}" for number in numbers)
    return Remark(
        rule="positional-parameters",
        severity="note",
        message=f"the script is started with {subject} it",
        fix=fix,
    )
