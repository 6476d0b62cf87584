"""The command `plan`: offers in, a booking out. Reads options; `show.answers.plan` chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from simulator.question.origin import OPTION
from simulator.show.cli.options import (
    Sectioned,
    answer_options,
    layout_options,
    left_to_default,
    listed,
    question_options,
)
from simulator.show.cli.question import question_on_line
from simulator.show.cli.streams import answer, presentation, progress_bar, verbosity_of

if TYPE_CHECKING:
    from simulator.answers.availability import Availability

_OF_OFFERS = ("hardware", "nodes", "devices", "precision")
_ASKED = ("seq_length", "global_batch_size", "framework")
_OF_AVAILABILITY = ("device_mtbf_hours", "restart_minutes", "checkpoint_minutes", "evaluation_share")


def plan_command() -> click.Command:
    """Return the command that compares offers."""
    question = [param for param in question_options() if param.name not in _OF_OFFERS]
    return Sectioned(
        "plan",
        callback=_plan,
        params=[
            *listed("plan"),
            *question,
            *layout_options(many=True),
            *listed("availability"),
            *listed("sure"),
            *answer_options("plan"),
            *listed("general"),
        ],
        help=(
            "Say which hardware to book for a training run: of every offer the best layout, with days and cost as 90 % "
            "ranges, whether it is in time and in budget, and the least nodes that are in time."
        ),
    )


def _plan(**values: Any) -> None:
    """Price the offers and write the plan."""
    from simulator.answers.plan import plan  # noqa: PLC0415  start-up time
    from simulator.answers.ranking import space_of  # noqa: PLC0415  start-up time

    ctx = click.get_current_context()
    for name, example in (("model", "llama3.1-70b"), ("offer", "h100-sxm-80g:8,16@2.50"), ("train_tokens", "300B")):
        if not values[name]:
            raise click.UsageError(f"missing option '--{name.replace('_', '-')}', such as {example}")
    names = ("train_tokens", "deadline_days", "budget", "min_fit_probability")
    question = question_on_line(ctx, many=True, without=("precision",))
    with progress_bar(quiet=verbosity_of(ctx) < 0, label="choices priced") as progress:
        planned = plan(
            replace(question, layout={}),
            **{name: values[name] for name in names},
            offers=values["offer"],
            precisions=values["precision"],
            origin=OPTION,
            availability=_availability(values),
            space=space_of(question, across_nodes=values["allow_tp_across_nodes"]),
            progress=progress,
        )
    defaults = {name: values[name] for name in _ASKED if left_to_default(ctx, name)}
    answer(ctx, "plan", planned, presentation(ctx, defaults=defaults))


def _availability(values: Mapping[str, Any]) -> Availability | None:
    """Return the availability of a run, with defaults; None if no option asks for it."""
    from simulator.answers.availability import Availability  # noqa: PLC0415  start-up time

    figures = {name: values[name] for name in _OF_AVAILABILITY if values[name] is not None}
    return Availability(**figures) if figures or values["availability"] else None
