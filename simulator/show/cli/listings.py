"""What the lists of specs and switches do with their options. Imported when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simulator.question.frameworks.stacks import framework
from simulator.question.specs.catalogue import hardware_names, load_hardware, load_model, model_names
from simulator.show.cli.streams import answer, presentation, write
from simulator.show.report.listing import (
    SpecListing,
    framework_facts,
    frameworks_listing,
    hardware_facts,
    hardware_listing,
    listing_notes,
    model_facts,
    models_listing,
    stack_notes,
)


def models(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the shipped models, or show one."""
    if values["name"] is None:
        _answer(ctx, SpecListing(records=models_listing(load_model(name) for name in model_names())))
        return
    spec = load_model(values["name"])
    notes = listing_notes(spec.sources, spec.note)
    _answer(ctx, SpecListing(records=model_facts(spec), notes=notes, title=spec.name))


def hardware(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the shipped hardware, or show one."""
    if values["name"] is None:
        _answer(ctx, SpecListing(records=hardware_listing(load_hardware(name) for name in hardware_names())))
        return
    spec = load_hardware(values["name"])
    title = f"{spec.name}: {spec.title} ({spec.vendor})"
    _answer(ctx, SpecListing(records=hardware_facts(spec), notes=listing_notes(spec.sources, spec.note), title=title))


def frameworks(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the switches of all frameworks, or those of one."""
    if values["name"] is None:
        _answer(ctx, SpecListing(records=frameworks_listing(), notes=("Set one with --option NAME=VALUE.",)))
        return
    profile = framework(values["name"])
    notes = ("Set one with --option NAME=VALUE, a column with --stack NAME.", *stack_notes(profile))
    _answer(ctx, SpecListing(records=framework_facts(profile), notes=notes, title=profile.name))


def schema(_ctx: click.Context, values: Mapping[str, Any]) -> None:
    """Print the schema of the answers."""
    from simulator.show.report.as_json import dumps  # noqa: PLC0415  start-up time
    from simulator.show.report.schema import schema as schema_of_answers  # noqa: PLC0415  imports every answer

    write(dumps(schema_of_answers()) + "\n", values["output"])


def _answer(ctx: click.Context, listing: SpecListing) -> None:
    answer(ctx, "listing", listing, presentation(ctx))
