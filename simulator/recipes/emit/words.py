"""Pieces that the writers of recipes share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.errors import InputError, UnsupportedError
from simulator.question.frameworks.profile import switches
from simulator.question.frameworks.stacks import framework
from simulator.question.scenario.layout import default_cut
from simulator.question.specs.catalogue import load_model
from simulator.recipes.check.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The launch, and what stands at the top of the file."""

    nodes: int
    devices_per_node: int
    lines: tuple[str, ...]


def refuse_switches(case: Case, expressible: Iterable[str], target: str) -> None:
    """Refuse switches that differ from the framework's usual ones and have no flag."""
    profile = case.scenario.framework
    usual = framework(profile.name, stack=profile.stack)
    known = set(expressible)
    for switch in switches():
        value = getattr(profile, switch.name)
        if value != getattr(usual, switch.name) and switch.name not in known:
            raise UnsupportedError(f"--option {switch.name}={value}: {target} has no setting for it")


def shipped_name(case: Case, target: str, *, layers: bool = False) -> str:
    """The shipped name of the model; with `layers` it may have another number of layers.

    Raises UnsupportedError where the recipe could not name the model.
    """
    model = case.scenario.model
    try:
        shipped = load_model(model.name)
    except InputError:
        shipped = None
    if shipped is not None and layers:
        shipped = shipped.with_layers(model.num_hidden_layers)
    if shipped is None or shipped.shape() != model.shape():
        raise UnsupportedError(f"model {model.name}: a recipe of {target} names a published model; this is none")
    return model.name


def default_cut_only(case: Case) -> bool:
    """Whether the layers are cut as the framework would by itself."""
    layout = case.layout
    return not layout.chunk_layers and layout.stage_layers == default_cut(
        case.scenario.model.num_hidden_layers, layout.pipeline_parallel
    )


def even_cut(case: Case) -> bool:
    """Whether every stage has as many layers."""
    return not case.layout.chunk_layers and len(set(case.layout.stage_layers)) == 1


def accumulation(case: Case) -> int:
    """Micro batches of a replica in a step."""
    layout = case.layout
    return case.scenario.global_batch_size // (layout.micro_batch_size * layout.data_parallel)


def shell(lines: Iterable[str], command: str, arguments: Iterable[str], head: Head) -> str:
    """A launch script: comments, settings, and one command over several lines."""
    comments = [f"# {line}" for line in head.lines]
    call = " \\\n    ".join([command, *arguments])
    return "\n".join(["#!/bin/bash", *comments, "set -e", "", *lines, "", call]) + "\n"


def flag(name: str, value: object) -> str:
    """One flag with its value."""
    return f"--{name} {value}"
