"""The commands that list what there is: `models`, `hardware`, `frameworks`, `flags`, and the JSON keys of `schema`.

    simulate models llama3.1-8b --format yaml

Each builds its listing; imported when one is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from simulator.frameworks.flags import table_names
from simulator.question.frameworks.stacks import framework
from simulator.question.specs.catalogue import hardware_names, load_hardware, load_model, model_names, spec_text
from simulator.question.vocabulary import FRAMEWORKS
from simulator.show.cli.options import (
    GENERAL_OPTIONS,
    Handler,
    Sectioned,
    SpecName,
    Word,
    answer_options,
    handled,
    listed_name,
)
from simulator.show.cli.streams import presentation, write, write_answer
from simulator.show.report.listing import (
    SpecListing,
    flags_listing,
    framework_facts,
    frameworks_listing,
    hardware_facts,
    hardware_listing,
    listing_notes,
    model_facts,
    models_listing,
    stack_notes,
    tables_listing,
)
from simulator.show.report.text import dumps

_CLASSES = (
    "priced: read, and sets what stands under `sets`, or what the meaning says where code reads it.",
    "no_effect: changes neither memory nor speed as far as they are modelled.",
    "not_modelled: has an effect that is not priced; its weight says what `simulate check` then leaves out.",
    'verdict: any verdict. bound, activations: "does not fit". figure: nothing, it warns.',
    "A flag at its default, or off, counts as absent. A flag of no table leaves the verdict cannot_tell.",
)
"""Notes under a table of flags."""


def models(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the shipped models, or show one."""
    name = values["name"]
    listing = SpecListing(records=() if name else models_listing(map(load_model, model_names())))
    if name:
        spec = load_model(name)
        listing = SpecListing(
            records=model_facts(spec),
            title=spec.name,
            notes=listing_notes(spec.sources, spec.note),
            file_text=lambda: spec_text("model", name),
        )
    write_answer(ctx, "spec listing", listing, presentation(ctx))


def hardware(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the shipped hardware, or show one."""
    name = values["name"]
    listing = SpecListing(records=() if name else hardware_listing(map(load_hardware, hardware_names())))
    if name:
        spec = load_hardware(name)
        listing = SpecListing(
            records=hardware_facts(spec),
            title=f"{spec.name}: {spec.title} ({spec.vendor})",
            notes=listing_notes(spec.sources, spec.note),
            file_text=lambda: spec_text("hardware", name),
        )
    write_answer(ctx, "spec listing", listing, presentation(ctx))


def frameworks(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the switches of all frameworks, or those of one."""
    listing = SpecListing(records=frameworks_listing(), notes=("Set one with --option NAME=VALUE.",))
    if values["name"]:
        profile = framework(values["name"])
        notes = ("Set one with --option NAME=VALUE, a column with --stack NAME.", *stack_notes(profile))
        listing = SpecListing(records=framework_facts(profile), notes=notes, title=profile.name)
    write_answer(ctx, "listing", listing, presentation(ctx))


def flags(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the tables of flags, or the flags of one."""
    name = values["name"]
    listing = SpecListing(records=tables_listing(), notes=("`simulate flags TABLE` lists the flags of one.",))
    if name:
        listing = SpecListing(records=flags_listing(name), notes=_CLASSES, title=name)
    write_answer(ctx, "listing", listing, presentation(ctx))


def schema(ctx: click.Context, values: Mapping[str, Any]) -> None:
    """List the answers, or the keys of one; as JSON their schema."""
    from simulator.show.report import schema as answers

    name, form = values["name"], values["format"]
    if form == "json":
        write(dumps(answers.schema(*[name] if name else [])) + "\n", values["output"])
        return
    notes = ("`simulate schema ANSWER` lists the keys of one; with --format json each is its JSON Schema.",)
    listing = SpecListing(records=answers.answer_rows(), notes=notes)
    if name:
        listing = SpecListing(records=answers.key_rows(name))
    write_answer(ctx, "listing", listing, presentation(ctx))


def _answer_names() -> Sequence[str]:
    from simulator.show.report.schema import answer_names

    return answer_names()


_LISTINGS: Mapping[str, tuple[click.ParamType[Any], Handler, str]] = {
    "models": (SpecName("model"), models, "List the shipped models, or show the numbers of one."),
    "hardware": (SpecName("hardware"), hardware, "List the shipped hardware, or show the numbers of one."),
    "frameworks": (Word(FRAMEWORKS), frameworks, "List the switches of the framework profiles, or those of one."),
    "flags": (
        listed_name(table_names),
        flags,
        "List the tables of frameworks' flags and keys, or the flags of one: what each is read as.",
    ),
    "schema": (
        listed_name(_answer_names),
        schema,
        "List the answers that --format json writes, or the keys of one; with --format json their JSON Schema.",
    ),
}
"""Type of the name that a command takes, what it does, and its help."""


def listing_command(name: str) -> click.Command:
    """Return a command that lists."""
    kind, handler, text = _LISTINGS[name]
    argument = click.Argument(["name"], required=False, type=kind, metavar="[NAME]")
    options = answer_options("spec listing" if isinstance(kind, SpecName) else "listing")
    return Sectioned(name, callback=handled(lambda: handler), params=[argument, *options, *GENERAL_OPTIONS], help=text)
