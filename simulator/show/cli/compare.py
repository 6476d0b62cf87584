"""Commands `compare` and `explain`: differences between two questions, and causes of a memory need.

Here are their options; `answers.compare` and `answers.explain` work the answers out, `show.report` writes them.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Any

import click

from simulator.show.cli.check import open_options
from simulator.show.cli.options import (
    SURE,
    Sectioned,
    answer_options,
    batch_in_sequences,
    shown,
)
from simulator.show.cli.question import question_on_line
from simulator.show.cli.streams import default_text, presentation, write_answer

if TYPE_CHECKING:
    from simulator.answers.cases import Case
    from simulator.question.question import Question

_SIDES = (
    "an estimate of `simulate estimate --format json`, a launch script or configuration file, or the options of an "
    "estimate in quotes ('--model llama3.1-8b --nodes 1 --tp 2')"
)


class Quoted(Sectioned):
    """A command whose arguments may be options in quotes."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; one that begins with a dash and has a blank inside is options in quotes."""
        return super().parse_args(ctx, [f" {word}" if word.startswith("-") and " " in word else word for word in args])


def compare_command() -> click.Command:
    """Return the command that compares two questions."""
    return Quoted(
        "compare",
        callback=_compare,
        params=[
            click.Argument(["a"], required=False, type=str, metavar="A"),
            click.Argument(["b"], required=False, type=str, metavar="B"),
            *open_options(),
            *answer_options("comparison"),
        ],
        help=(
            f"Say by part what differs between A and B in bytes and seconds, and which input it is. Each is {_SIDES}. "
            "Options given beside them are put over both."
        ),
    )


def explain_command() -> click.Command:
    """Return the command that explains a layout."""
    return Quoted(
        "explain",
        callback=_explain,
        params=[
            click.Argument(["subject"], required=False, type=str, metavar="[WHAT]"),
            *open_options(),
            SURE,
            *answer_options("explanation"),
        ],
        help=(
            "Say why a layout needs what it needs: a bar for each pipeline rank, the causes, the smallest changes that "
            f"make it fit with their price, the longest sequence. WHAT is {_SIDES}; without it the options say it."
        ),
    )


def _compare(**values: Any) -> None:
    """Write the comparison."""
    from simulator.answers.compare import compare

    ctx = click.get_current_context()
    if not (values["a"] and values["b"]):
        raise click.UsageError("missing arguments A and B: two estimates, recipes or option strings")
    options = question_on_line(ctx)
    cases = case_of_text(values["a"], options), case_of_text(values["b"], options)
    compared = compare(*cases, (values["a"].strip(), values["b"].strip()))
    write_answer(ctx, "comparison", compared, presentation(ctx, scenarios=tuple(case.scenario for case in cases)))


def _explain(**values: Any) -> None:
    """Write the explanation."""
    from simulator.answers.explain import explain

    ctx = click.get_current_context()
    options = question_on_line(ctx)
    case = _case_of_options(options) if values["subject"] is None else case_of_text(values["subject"], options)
    explained = explain(case, values["min_fit_probability"])
    if case.question.recipe is not None:
        from simulator.recipes.check.judge import with_bounds

        explained = with_bounds(explained, case)
    assumed = values["subject"] is None and "hardware" not in options.inputs
    default = default_text(case.scenario.hardware) if assumed else ""
    write_answer(ctx, "explanation", explained, presentation(ctx, default_hardware=default))


def _case_of_options(options: Question) -> Case:
    """Return the case of options alone."""
    from simulator.answers.cases import case_of, priceable
    from simulator.answers.ranking import with_best_layout

    if "model" not in options.inputs:
        raise click.UsageError("missing option '--model'; `simulate models` lists the names")
    return priceable(case_of(with_best_layout(options)))


def case_of_text(text: str, options: Question) -> Case:
    """Return the case of an answer's file, a recipe, or options in quotes, with the command's own options over it."""
    if text.lstrip().startswith("-"):
        return _case_of_options(options.over(_quoted_question(text)))
    from simulator.question.specs.names import shipped_name
    from simulator.recipes.emit.write import case_of_file

    if not os.path.exists(text) and shipped_name("model", text):  # noqa: PTH110  false for what is no path
        raise click.UsageError(f"{shown(text)} is a model, not a file: write '--model {text}'")
    return case_of_file(text, options)


def _quoted_question(text: str) -> Question:
    """Return the question of options in quotes, read as on the command line."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"options {shown(text.strip())}: {error}") from error
    command = click.Command("options", params=[*open_options()], add_help_option=False)
    with command.make_context("options", words) as ctx:
        batch_in_sequences(ctx)
        return question_on_line(ctx)
