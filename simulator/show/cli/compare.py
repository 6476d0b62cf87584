"""The commands `compare` and `explain`: differences between two questions, and causes of a memory need.

Reads options; `show.answers` works the answers out, `show.report` writes them.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from simulator.show.cli.check import SAME, asked, open_options
from simulator.show.cli.options import (
    GENERAL_OPTIONS,
    SURE,
    Sectioned,
    answer_options,
    batch_in_sequences,
)
from simulator.show.cli.streams import default_text, presentation, write_answer

if TYPE_CHECKING:
    from simulator.recipes.check.asked import Asked
    from simulator.recipes.check.case import Case

_SWITCHES = ("framework", "stack", "calibration")
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
            *GENERAL_OPTIONS,
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
            click.Argument(["what"], required=False, type=str, metavar="[WHAT]"),
            *open_options(),
            SURE,
            *answer_options("explanation"),
            *GENERAL_OPTIONS,
        ],
        help=(
            "Say why a layout needs what it needs: a bar for each pipeline rank, the causes, the smallest changes that "
            f"make it fit with their price, the longest sequence. WHAT is {_SIDES}; without it the options say it."
        ),
    )


def _compare(**values: Any) -> None:
    """Write the comparison."""
    from simulator.show.answers.compare import compare_cases

    ctx = click.get_current_context()
    if not (values["a"] and values["b"]):
        raise click.UsageError("missing arguments A and B: two estimates, recipes or option strings")
    own = asked(ctx, values)
    cases = case_of_text(values["a"], own), case_of_text(values["b"], own)
    compared = compare_cases(*cases, (values["a"].strip(), values["b"].strip()))
    write_answer(ctx, "comparison", compared, presentation(ctx, scenarios=tuple(case.scenario for case in cases)))


def _explain(**values: Any) -> None:
    """Write the explanation."""
    from simulator.show.answers.explain import explain

    ctx = click.get_current_context()
    own = asked(ctx, values)
    case = case_of_options(own) if values["what"] is None else case_of_text(values["what"], own)
    explained = explain(case, values["min_fit_probability"])
    default = default_text(case.scenario.hardware) if values["what"] is None and own.hardware_assumed else ""
    write_answer(ctx, "explanation", explained, presentation(ctx, default_hardware=default))


def case_of_options(own: Asked) -> Case:
    """Return the question of options, with an estimate's defaults."""
    from simulator.recipes.emit.question import question_of_options, target_of

    if own.model is None:
        raise click.UsageError("missing option '--model'; `simulate models` lists the names")
    return question_of_options(own, target_of(own.framework or "megatron"))


def case_of_text(text: str, own: Asked) -> Case:
    """Return the question of an estimate's file, a recipe, or options in quotes."""
    if text.lstrip().startswith("-"):
        return case_of_options(_over(_asked_of(text), own))
    from simulator.recipes.emit.question import question_of_path

    return question_of_path(text, own)


def _asked_of(text: str) -> Asked:
    """Return options in quotes, read as on the command line."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"options '{text[:60]}': {error}") from error
    command = click.Command("options", params=[*open_options()], add_help_option=False)
    with command.make_context("options", words) as ctx:
        batch_in_sequences(ctx)
        return asked(ctx, ctx.params)


def _over(inner: Asked, outer: Asked) -> Asked:
    """Return the options in quotes, replaced by those of the command itself."""
    outside = {name: value for name in (*SAME, *_SWITCHES) if (value := getattr(outer, name)) is not None}
    if not outer.hardware_assumed:
        outside |= {"hardware": outer.hardware, "hardware_assumed": False}
    for name in ("model_fields", "options", "layout"):
        outside[name] = {**getattr(inner, name), **getattr(outer, name)}
    return replace(inner, **outside)
