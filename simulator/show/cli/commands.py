"""Commands `rank` and `estimate` once their options are read; imported only when one runs: it needs all formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simulator.answers.cases import case_of, priceable
from simulator.answers.ranking import estimate_of, space_of, with_best_layout
from simulator.answers.ranking import rank as ranked
from simulator.evidence.cluster import device_kinds
from simulator.question.question import Question
from simulator.records import replace
from simulator.search.space import MIN_FIT_PROBABILITY
from simulator.show.cli.options import left_to_default
from simulator.show.cli.question import question_on_line, require_model
from simulator.show.cli.streams import default_text, note, presentation, progress_bar, write, write_answer
from simulator.show.report.presentation import Presentation

_QUESTION = ("hardware", "seq_length", "global_batch_size", "precision", "framework", "devices")
"""Inputs of every question that have a default."""
_FOR_PEOPLE = ("table", "markdown", "html")  # formats that explain why a layout does not fit


def rank(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Rank the layouts of the space."""
    question = _question(ctx, values, many=True)
    if values["deadline_days"] is not None:
        if values["train_tokens"] is None:
            raise click.UsageError("--deadline-days needs --train-tokens, such as 300B")
        if not str(values["nodes"]).startswith("auto"):
            raise click.UsageError("--deadline-days needs --nodes auto; `simulate plan` compares offers")
    searched = space_of(question, across_nodes=values["allow_tp_across_nodes"])
    shown = _presentation(ctx, values)
    quiet = shown.verbosity < 0
    with progress_bar(quiet=quiet) as progress:
        ranking = ranked(
            question,
            space=searched,
            top=values["top"],
            variants=values["variants"],
            progress=progress,
            min_fit_probability=values["min_fit_probability"],
            train_tokens=values["train_tokens"],
            deadline_days=values["deadline_days"],
        )
    write_answer(ctx, "ranking", ranking, replace(shown, question=ranking.question, space=searched))
    if not ranking.estimates and values["format"] in ("csv", "jsonl"):
        note("nothing fits; --format table or json shows the nearest miss", quiet=quiet)


def estimate(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Price one layout."""
    question = _question(ctx, values)
    case = priceable(case_of(with_best_layout(question)))
    priced, scenario, chosen = estimate_of(case), case.scenario, case.layout
    usual = {**values, **scenario.workload, "framework": scenario.framework.name, "devices": scenario.devices}
    stated = {*question.inputs, *(["devices"] if "nodes" in question.inputs else [])}
    defaults = {name: usual[name] for name in _QUESTION if name not in stated}
    of_layout = ("micro_batch_size", "zero_stage", "sequence_parallel", "recompute", "offload")
    for name in of_layout if question.layout else ():  # without one, a search chose them
        if values[name] is None and (name != "recompute" or chosen.recompute == "none"):
            defaults[name] = getattr(chosen, name)
    shown = replace(_presentation(ctx, values), defaults=defaults)
    if values["timeline"] is not None:
        from simulator.answers.timeline import timeline
        from simulator.show.report.estimate import trace_text

        write(trace_text(timeline(priced)), values["timeline"], "--timeline")
    explanation = None
    if values["format"] in _FOR_PEOPLE and shown.verbosity >= 0 and priced.verdict in ("does_not_fit", "starved"):
        from simulator.answers.explain import explain

        explanation = explain(case, MIN_FIT_PROBABILITY)
    write_answer(ctx, "estimate", priced, replace(shown, question=case.question, explanation=explanation))


def _question(ctx: click.Context, values: Mapping[str, Any], *, many: bool = False) -> Question:
    """Return the question of the options. Raises UsageError without a model."""
    require_model(values)
    if values["price_per_device_hour"] is not None and values["train_tokens"] is None:
        raise click.UsageError("--price-per-device-hour needs --train-tokens")
    return question_on_line(ctx, many=many)


def _presentation(ctx: click.Context, values: Mapping[str, Any]) -> Presentation:
    unsaid = left_to_default(ctx, "hardware")
    return presentation(
        ctx,
        default_hardware=default_text(device_kinds(values["hardware"])[0]) if unsaid else "",
        train_tokens=values["train_tokens"],
        price_per_device_hour=values["price_per_device_hour"],
        variants=bool(values.get("variants")),
    )
