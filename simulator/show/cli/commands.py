"""The commands `rank` and `estimate` once their options are read. Imported only when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from simulator import api
from simulator.cluster import device_kinds
from simulator.question.scenario.complete import OPTIONS
from simulator.search.result import Ranking
from simulator.show.cli.layouts import check_cluster, framework_options, layout_values, space
from simulator.show.cli.options import left_to_default
from simulator.show.cli.streams import default_text, note, presentation, progress_bar, write, write_answer
from simulator.show.report.presentation import Presentation

if TYPE_CHECKING:
    from simulator.show.answers.explain import Explanation

_QUESTION = ("hardware", "seq_length", "global_batch_size", "precision", "framework")
"""Inputs of every question that have a default."""
_FOR_PEOPLE = ("table", "markdown", "html")
"""Formats that explain why a layout does not fit."""


def rank(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Rank the layouts of the space."""
    question = _question(values)
    if values["deadline_days"] is not None:
        if values["train_tokens"] is None:
            raise click.UsageError("--deadline-days needs --train-tokens, such as 300B")
        if not str(values["nodes"]).startswith("auto"):
            raise click.UsageError("--deadline-days needs --nodes auto; `simulate plan` compares offers")
    searched = space(values)
    shown = _presentation(ctx, values)
    quiet = shown.verbosity < 0
    with progress_bar(quiet=quiet) as progress:
        ranking = api.rank(
            **question,
            space=searched,
            top=values["top"],
            variants=values["variants"],
            progress=progress,
            min_fit_probability=values["min_fit_probability"],
            train_tokens=values["train_tokens"],
            deadline_days=values["deadline_days"],
        )
    question["nodes"] = ranking.query["nodes"] if ranking.fewest else question["nodes"]
    ranking = replace(ranking, defaults=_ranking_defaults(ctx, values, ranking))
    write_answer(ctx, "ranking", ranking, replace(shown, question=question, space=searched))
    if not ranking.estimates and values["format"] in ("csv", "jsonl"):
        note("nothing fits; --format table or json shows the nearest miss", quiet=quiet)


def estimate(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Price one layout."""
    question = _question(values)
    scenario, chosen = api.resolved(question, layout_values(values), OPTIONS, filled=True)
    priced = api.answer(scenario, chosen, question["options"])
    defaults = {name: values[name] for name in _QUESTION if left_to_default(ctx, name)}
    if values["nodes"] is None and values["devices"] is None:
        defaults["devices"] = scenario.devices
    for name in ("micro_batch_size", "zero_stage", "sequence_parallel", "recompute", "offload"):
        if values[name] is None and (name != "recompute" or chosen.recompute == "none"):
            defaults[name] = getattr(chosen, name)
    shown = replace(_presentation(ctx, values), defaults=defaults)
    if values["timeline"] is not None:
        from simulator.show.answers.timeline import timeline
        from simulator.show.report.estimate import trace_text

        write(trace_text(timeline(priced)), values["timeline"], "--timeline")
    explanation = None
    if values["format"] in _FOR_PEOPLE and shown.verbosity >= 0 and priced.verdict in ("does_not_fit", "starved"):
        explanation = _explained(ctx, values)
    write_answer(ctx, "estimate", priced, replace(shown, question=question, explanation=explanation))


def _explained(ctx: click.Context, values: Mapping[str, Any]) -> Explanation:
    """Return the explanation of an estimate that does not fit, with changes that help."""
    from simulator.search.query import MIN_FIT_PROBABILITY
    from simulator.show.answers.explain import explain
    from simulator.show.cli.check import asked
    from simulator.show.cli.compare import case_of_options

    return explain(case_of_options(asked(ctx, {**values, "model_field": ()})), MIN_FIT_PROBABILITY)


def _question(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that `estimate` and `rank` of the API share."""
    if not values["model"]:
        raise click.UsageError("missing option '--model'; `simulate models` lists the names")
    if values["price_per_device_hour"] is not None and values["train_tokens"] is None:
        raise click.UsageError("--price-per-device-hour needs --train-tokens")
    check_cluster(values)
    names = ("model", "nodes", "devices", "lora_rank", "num_layers", "stack", "calibration", *_QUESTION)
    return {name: values[name] for name in names} | {"options": framework_options(values)}


def _ranking_defaults(ctx: click.Context, values: Mapping[str, Any], ranking: Ranking) -> tuple[str, ...]:
    """Return the names in the query that were left to their default."""
    names = [name for name in _QUESTION if left_to_default(ctx, name)]
    if values["nodes"] is None and values["devices"] is None:
        names.insert(1, "nodes")
    return tuple(name for name in names if name in ranking.query)


def _presentation(ctx: click.Context, values: Mapping[str, Any]) -> Presentation:
    kinds = device_kinds(values["hardware"])
    return presentation(
        ctx,
        default_hardware=default_text(kinds[0]) if left_to_default(ctx, "hardware") else "",
        train_tokens=values["train_tokens"],
        price_per_device_hour=values["price_per_device_hour"],
        variants=bool(values.get("variants")),
        device_has_fp8=all("fp8" in kind.peak_flops_per_second for kind in kinds),
    )
