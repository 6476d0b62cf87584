"""What the lists of specs and switches do with their options. Imported when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from simulator.errors import InputError
from simulator.question.frameworks.stacks import framework
from simulator.question.specs.catalogue import hardware_names, load_hardware, load_model, model_names, spec_text
from simulator.show.cli.streams import verbosity_of, write
from simulator.show.report.listing import (
    LISTING_REPORTERS,
    ListingRow,
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
        _list(ctx, values, models_listing(load_model(name) for name in model_names()), ())
        return
    spec = load_model(values["name"])
    if values["format"] == "yaml":
        write(spec_text("model", values["name"]), values["output"])
        return
    _list(ctx, values, model_facts(spec), listing_notes(spec.sources, spec.note), title=spec.name)


def hardware(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the shipped hardware, or show one."""
    if values["name"] is None:
        _list(ctx, values, hardware_listing(load_hardware(name) for name in hardware_names()), ())
        return
    spec = load_hardware(values["name"])
    if values["format"] == "yaml":
        write(spec_text("hardware", values["name"]), values["output"])
        return
    title = f"{spec.name}: {spec.title} ({spec.vendor})"
    _list(ctx, values, hardware_facts(spec), listing_notes(spec.sources, spec.note), title=title)


def frameworks(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the switches of all frameworks, or those of one."""
    if values["name"] is None:
        _list(ctx, values, frameworks_listing(), ("Set one with --option NAME=VALUE.",))
        return
    profile = framework(values["name"])
    notes = ("Set one with --option NAME=VALUE, a column with --stack NAME.", *stack_notes(profile))
    _list(ctx, values, framework_facts(profile), notes, title=profile.name)


def _list(
    ctx: click.Context,
    values: Mapping[str, Any],
    records: list[ListingRow],
    notes: tuple[str, ...] | list[str],
    title: str = "",
) -> None:
    """Write a listing; what stands around it is for people only. Raises InputError for YAML of several."""
    if values["format"] == "yaml":
        raise InputError("--format yaml writes one file: name what to start from")
    text = LISTING_REPORTERS[values["format"]](records)
    if values["format"] in ("table", "markdown") and verbosity_of(ctx) >= 0:
        around = [title] if title else []
        text = "\n\n".join([*around, text.rstrip("\n"), *(["\n".join(notes)] if notes else [])]) + "\n"
    write(text, values["output"])
