"""Command `emit`: its options, and the way from a layout to a recipe that launches it, which `recipes.emit` writes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from simulator.question.origin import OPTION
from simulator.question.vocabulary import RECIPE_FORMATS
from simulator.show.cli.check import open_options
from simulator.show.cli.options import EMITTED, RECIPE_FILE, Option, Sectioned, Word
from simulator.show.cli.question import question_on_line, require_model
from simulator.show.cli.streams import note, tell, verbosity_of, write

if TYPE_CHECKING:
    from simulator.answers.cases import Case

_ALSO = {"bridge": "nemo", "deepspeed": "accelerate", "torch": "torchtitan"}
"""Other names of targets; `deepspeed` selects its own stack too."""
DOES_NOT_FIT = 1
"""Exit code if nothing is written because the layout would not run."""


def emit_command() -> click.Command:
    """Return the command that writes a recipe."""
    framework = "Whose recipe to write; by default the one that the layout was priced for, else megatron."
    return Sectioned(
        "emit",
        callback=_emit,
        params=[
            click.Argument(["layout"], required=False, type=str, metavar="[LAYOUT]"),
            Option("--framework", framework, Word((*RECIPE_FORMATS, *_ALSO)), section="Recipe"),
            *EMITTED,
            *open_options(without="framework"),
            RECIPE_FILE,
        ],
        help=(
            "Write a recipe that launches a layout: LAYOUT is a file of `simulate estimate --format json` or of a "
            "ranking, or - for stdin; without it the options of an estimate say the layout."
        ),
        epilog="Exit code: 1 where the layout does not fit, 3 where the framework has no words for something in it.",
    )


def _emit(**values: Any) -> None:
    """Write the recipe of a layout."""
    from simulator.answers.cases import case_of, priceable
    from simulator.answers.saved import saved_case
    from simulator.recipes.emit.write import emit, question_to_launch, recipe_format

    ctx = click.get_current_context()
    target = _ALSO.get(values["framework"], values["framework"])
    file = values["layout"]
    question = question_on_line(ctx, without=("framework",))
    if file is None:
        require_model(values)
        if values["framework"] == "deepspeed" and "stack" not in question.inputs:
            question = question.changed(OPTION, stack="deepspeed")
        question, target = question_to_launch(question, target)
        case = priceable(case_of(question))
    else:
        case = saved_case(file, _stdin() if file == "-" else None, values["rank"], question)
    recipe = emit(case, target or recipe_format(case.scenario.framework.name))
    problem, is_firm = _problem(case)
    if is_firm and not values["force"]:
        tell(f"simulate: error: {problem}; --force writes it all the same")
        ctx.exit(DOES_NOT_FIT)
    if problem:
        note(problem, quiet=verbosity_of(ctx) < 0)
    write(recipe, values["output"])


def _problem(case: Case) -> tuple[str, bool]:
    """Return why a layout may not run, empty if it does, and whether that holds whatever nobody said."""
    from simulator.answers.ranking import estimate_of
    from simulator.show.report.text import verdict_sentence

    estimate = estimate_of(case)
    runs = estimate.memory.fits and estimate.verdict != "depends"
    text = "" if runs else f"the layout {verdict_sentence(estimate, colour=False)}"
    return text, bool(text) and estimate.verdict != "depends"


def _stdin() -> str:
    """Return the text of stdin. Raises InputError if it is closed, too long or no text."""
    from simulator.answers.saved import MOST_BYTES
    from simulator.errors import InputError
    from simulator.question.units import MEGA

    if sys.stdin is None:
        raise InputError("stdin: is closed")
    try:
        text = sys.stdin.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise InputError(f"stdin: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(text) > MOST_BYTES:
        raise InputError(f"stdin: is larger than {MOST_BYTES // MEGA} MB")
    return text
