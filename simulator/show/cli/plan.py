"""The command `plan`: offers in, a booking out; `answers.plan` chooses.

simulate plan --model llama3.1-70b --train-tokens 300B --offer h100-sxm-80g:8,16@2.50 --deadline-days 30
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from simulator.question.vocabulary import PRECISIONS
from simulator.show.cli.options import (
    GENERAL_OPTIONS,
    QUESTION,
    SURE,
    TOKENS,
    Option,
    Parsed,
    Sectioned,
    SpecName,
    WordSet,
    amount,
    answer_options,
    layout_options,
    left_to_default,
    percentage,
    question_options,
)
from simulator.show.cli.streams import presentation, progress_bar, verbosity_of, write_answer

if TYPE_CHECKING:
    from simulator.show.answers.availability import Availability
    from simulator.show.answers.offers import Offer

_OF_OFFERS = ("hardware", "nodes", "devices", "precision")
_ASKED = ("seq_length", "global_batch_size", "framework")
_OF_AVAILABILITY = ("device_mtbf_hours", "restart_minutes", "checkpoint_minutes", "evaluation_share")


def _offer(text: str) -> Offer:
    from simulator.show.answers.offers import parse_offer

    return parse_offer(text)


_OFFERS = (
    Option(
        "--offer",
        QUESTION,
        "What may be booked: NAME:NODES[,NODES...]@PRICE of a device hour, or NAME:LOW:HIGH[:STEP]@PRICE; repeatable.",
        type=Parsed("OFFER", _offer, lambda: SpecName("hardware").completions("")),
        multiple=True,
    ),
    Option("--train-tokens", QUESTION, "Tokens of the whole run, such as 300B.", type=TOKENS),
    Option("--deadline-days", QUESTION, "Days that the run may take.", type=amount("DAYS")),
    Option("--budget", QUESTION, "What it may cost, in the currency of the offers.", type=amount()),
    Option(
        "--precision",
        QUESTION,
        "Types of matrix products to compare: bf16,fp8.",
        type=WordSet(PRECISIONS),
        default="bf16",
    ),
)
_SECTION = "Availability"
_AVAILABILITY = (
    Option(
        "--availability",
        _SECTION,
        "Count failures, checkpoints and evaluation; implied by the options below.",
        is_flag=True,
    ),
    Option("--device-mtbf-hours", _SECTION, "Mean time between failures of one device.", type=amount("HOURS")),
    Option(
        "--restart-minutes", _SECTION, "From a failure to loading the checkpoint.", type=amount("MINUTES", zero=True)
    ),
    Option(
        "--checkpoint-minutes", _SECTION, "Between checkpoints; by default what loses least.", type=amount("MINUTES")
    ),
    Option("--evaluation-share", _SECTION, "Evaluation, as a share of the steps' time.", type=percentage(zero=True)),
)


def plan_command() -> click.Command:
    """Return the command that compares offers."""
    question = [param for param in question_options() if param.name not in _OF_OFFERS]
    return Sectioned(
        "plan",
        callback=_plan,
        params=[
            *_OFFERS,
            *question,
            *layout_options(many=True),
            *_AVAILABILITY,
            SURE,
            *answer_options("plan"),
            *GENERAL_OPTIONS,
        ],
        help=(
            "Say which hardware to book for a training run: of every offer the best layout, with days and cost as 90 % "
            "ranges, whether it is in time and in budget, and the least nodes that are in time."
        ),
    )


def _plan(**values: Any) -> None:
    """Price the offers and write the plan."""
    from simulator.show.answers.plan import plan
    from simulator.show.cli.layouts import framework_options, space

    ctx = click.get_current_context()
    for name, example in (("model", "llama3.1-70b"), ("offer", "h100-sxm-80g:8,16@2.50"), ("train_tokens", "300B")):
        if not values[name]:
            raise click.UsageError(f"missing option '--{name.replace('_', '-')}', such as {example}")
    names = (
        *("model", "lora_rank", "num_layers", "stack", "calibration", *_ASKED),
        *("train_tokens", "deadline_days", "budget", "min_fit_probability"),
    )
    with progress_bar(quiet=verbosity_of(ctx) < 0, label="choices priced") as progress:
        planned = plan(
            **{name: values[name] for name in names},
            options=framework_options(values),
            offers=values["offer"],
            precisions=values["precision"],
            availability=_availability(values),
            space=space(values),
            progress=progress,
        )
    defaults = {name: values[name] for name in _ASKED if left_to_default(ctx, name)}
    write_answer(ctx, "plan", planned, presentation(ctx, defaults=defaults))


def _availability(values: Mapping[str, Any]) -> Availability | None:
    """Return the availability of a run, with defaults; None if no option asks for it."""
    from simulator.show.answers.availability import Availability

    figures = {name: values[name] for name in _OF_AVAILABILITY if values[name] is not None}
    return Availability(**figures) if figures or values["availability"] else None
