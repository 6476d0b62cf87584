"""Commands over many questions: `plan` compares offers, `sweep` prices a product of lists, `lengths` counts samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from simulator.late import Lazy
from simulator.question.origin import OPTION
from simulator.records import replace
from simulator.show.cli import options, streams
from simulator.show.cli.question import question_on_line
from simulator.show.forms import ANSWERS

if TYPE_CHECKING:
    from simulator.answers import enough, lengths, plan, ranking, sweep
    from simulator.show.report import listing
    from simulator.show.report import plan as report
else:
    enough, plan, ranking = map(Lazy, ("answers.enough", "answers.plan", "answers.ranking"))
    lengths, sweep = map(Lazy, ("answers.lengths", "answers.sweep"))
    listing, report = map(Lazy, ("show.report.listing", "show.report.plan"))

_WITH_DEFAULT = ("seq_length", "global_batch_size", "framework")
_OF_AVAILABILITY = ("device_mtbf_hours", "restart_minutes", "checkpoint_minutes", "evaluation_share")


def compare_offers(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Compare offers, or name the fewest devices of every kind."""
    if values["model"] and not values["offer"] and not values["train_tokens"]:
        _enough(ctx, values)
        return
    for name, example in (("model", "llama3.1-70b"), ("offer", "h100-sxm-80g:8,16@2.50"), ("train_tokens", "300B")):
        if not values[name]:
            raise click.UsageError(f"missing option '--{name.replace('_', '-')}', such as {example}")
    names = ("train_tokens", "deadline_days", "budget", "min_fit_probability")
    question = question_on_line(ctx, many=True, without=("precision",))
    available = {name: values[name] for name in _OF_AVAILABILITY if values[name] is not None}
    with streams.progress_bar(quiet=streams.verbosity_of(ctx) < 0, label="choices priced") as progress:
        planned = plan.plan(
            replace(question, layout={}),
            **{name: values[name] for name in names},
            offers=values["offer"],
            precisions=values["precision"] or (),
            origin=OPTION,
            availability=plan.Availability(**available) if available or values["availability"] else None,
            space=ranking.space_of(question, across_nodes=values["allow_tp_across_nodes"]),
            progress=progress,
        )
    first = next((choice.estimate for choice in planned.priced if choice.estimate), None)
    usual = {**values, **(first.workload if first else {})}  # of a model with fewer positions another sequence
    defaults = {name: usual[name] for name in _WITH_DEFAULT if name not in question.inputs}
    streams.write_answer(ctx, "plan", planned, streams.presentation(ctx, defaults=defaults))


def _enough(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Write the fewest devices of every kind, where nothing is offered."""
    options.refuse_options(values, ("deadline_days", "budget", "availability"), "needs --offer and --train-tokens")
    if len(values["precision"] or ()) > 1:
        raise click.UsageError("--precision: one without --offer")
    stated = question_on_line(ctx, many=True, without=("precision",))
    question = replace(stated, layout={})
    if values["precision"]:
        question = question.changed(OPTION, precision=values["precision"][0])
    with streams.progress_bar(quiet=streams.verbosity_of(ctx) < 0, label="kinds of hardware") as progress:
        fewest = enough.enough(
            question,
            space=ranking.space_of(stated, across_nodes=values["allow_tp_across_nodes"]),
            min_fit_probability=values["min_fit_probability"],
            progress=progress,
        )
        listed = listing.enough_listing(question, fewest)
    streams.write_answer(ctx, "listing", listed, streams.presentation(ctx))


_PASSED_ON = ("output", "workers", "scheduler", "force", "min_fit_probability")


def price_product(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Price the product of lists."""
    for option in options.listed("gone_sweep"):
        if values[option.name or ""]:
            raise click.UsageError(
                f"{option.opts[0]} is gone: one command with --scheduler uses all machines "
                "(examples/sweep/dask.sbatch does so as one Slurm job)"
            )
    if not values["questions"]:
        raise click.UsageError("missing argument 'QUESTIONS.yaml': the lists to multiply (docs/sweep.md)")
    if not values["output"]:
        raise click.UsageError("missing option '--output', such as catalogue.csv")
    quiet = streams.verbosity_of(ctx) < 0
    if values["scheduler"]:
        sweep.check_workers(values["workers"], values["scheduler"])
        streams.note(
            f"scheduler {values['scheduler']}: it and its first worker are waited for two minutes each", quiet=quiet
        )
    with streams.long_progress(quiet=quiet, label="questions answered") as progress:
        swept = sweep.sweep(values["questions"], **{name: values[name] for name in _PASSED_ON}, progress=progress)
    streams.note(report.speed_line(swept), quiet=quiet)
    streams.write(ANSWERS["sweep"].write(swept, values["format"], streams.presentation(ctx)), None)


def count_lengths(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Count the samples by length, and say how far the characters may be from tokens."""
    histogram, remarks = lengths.measured_lengths(
        values["file"], values["field"] or "text", float(values["chars_per_token"])
    )
    streams.write(histogram, values["output"])
    for line in remarks:
        streams.note(line, quiet=streams.verbosity_of(ctx) < 0)
