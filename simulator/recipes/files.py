"""Cases of files: an answer of `--format json`, or a launch script or configuration of one run."""

from __future__ import annotations

from pathlib import Path

from simulator.answers.cases import Case, case_of_recipe, priceable
from simulator.answers.saved import is_answer, saved_case
from simulator.errors import InputError, did_you_mean
from simulator.frameworks import registry
from simulator.question.question import Question
from simulator.question.vocabulary import RecipeFormat
from simulator.recipes.readers.read import read_recipe


def case_of_file(path: str, options: Question, rank: int = 1) -> Case:
    """Return the case of a saved answer's `rank`-th layout, or of a recipe's first run, with options over it.

    Raises InputError, naming everything that the file lacks, and UnsupportedError for what cannot be priced.
    """
    if Path(path).suffix.lower() == ".json" and is_answer(path):
        return saved_case(path, None, rank, options)
    return priceable(case_of_recipe(read_recipe(path, {}, None)[0], options))


def recipe_format(framework: str) -> RecipeFormat:
    """Return the default recipe format of a framework's profile. Raises InputError for another word."""
    for target, writer in registry.writers().items():
        if writer.is_usual and registry.framework_of(target) == framework:
            return target
    names = tuple(dict.fromkeys(map(registry.framework_of, registry.writers())))
    near = did_you_mean(framework, names)
    raise InputError(f"framework '{framework[:60]}' is not one of {', '.join(names)}{near}")
