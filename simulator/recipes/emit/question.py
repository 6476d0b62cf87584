"""The question that a recipe is written for, from a file of estimates or from options. Writes no recipe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.frameworks.registry import framework_of, writers
from simulator.question.frameworks.profiles import PROFILES
from simulator.question.frameworks.stacks import stack_of_file
from simulator.question.scenario.complete import devices_taken
from simulator.question.scenario.inputs import DEFAULT_WORKLOAD
from simulator.question.scenario.layout import Layout, layout_of_object
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.documents import parse_json, read_limited
from simulator.question.units import to_mib
from simulator.question.vocabulary import RecipeFormat
from simulator.recipes.check.asked import Asked
from simulator.recipes.check.case import Blocked, Case, case_of
from simulator.recipes.readers.read import read_recipe
from simulator.recipes.recipe import Recipe
from simulator.search.build import bare_estimate

MOST_BYTES = 100_000_000
"""Largest file of estimates that is read, in bytes."""
_MOST = 10**15
"""Largest count in such a file."""
_SAME = 0.005
"""Largest relative difference between a file's figures and its layout's for them to be the same question."""


def question_of_options(asked: Asked, target: RecipeFormat) -> Case:
    """Return the question of an estimate's options, with the estimate's defaults. Raises InputError."""
    recipe = Recipe(
        file="options",
        framework=framework_of(target),
        dialect="options",
        model=None,
        **DEFAULT_WORKLOAD,
        layout=Layout(zero_stage=PROFILES[framework_of(target)].limits.default_zero_stage),
        nodes=1,
    )
    if asked.devices is None and asked.nodes is None:
        asked = replace(asked, devices=devices_taken(asked.layout))
    return priceable(case_of(recipe, asked))


def question_of_scenario(scenario: Scenario, layout: Layout, options: Mapping[str, str] | None = None) -> Case:
    """Return the question of a scenario and a layout; `options` are the switches set for its framework."""
    recipe = Recipe(
        file="question",
        framework=scenario.framework.name,
        dialect="estimate",
        model=scenario.model.name,
        **scenario.workload,
        layout=layout,
        nodes=1,
    )
    asked = Asked(
        hardware=scenario.hardware_name,
        devices=None if scenario.groups else scenario.devices,
        stack=scenario.framework.stack,
        options=options or {},
    )
    return Case(recipe=recipe, asked=asked, model=scenario.model, scenario=scenario, layout=layout)


def question_of_path(path: str, asked: Asked) -> Case:
    """Return the question of a saved estimate, of a saved ranking's first one, or of a recipe."""
    if Path(path).suffix.lower() == ".json" and _is_answer(path):
        return question_of_file(path, None, 1, asked)
    return priceable(case_of(read_recipe(path, {}, None)[0], asked))


def _is_answer(path: str) -> bool:
    """Whether a file holds an estimate or a ranking."""
    try:
        value = parse_json(path, read_limited(Path(path), MOST_BYTES))
        chosen = value["estimates"][0] if "estimates" in value else value
        return "framework" in chosen["layout"]
    except (InputError, KeyError, IndexError, TypeError):
        return False


def target_of(framework: str, file: str = "options") -> RecipeFormat:
    """Return the default recipe format of a framework's profile. Raises InputError for another word."""
    for target, writer in writers().items():
        if writer.is_usual and framework_of(target) == framework:
            return target
    names = tuple(dict.fromkeys(map(framework_of, writers())))
    near = did_you_mean(framework, names)
    raise InputError(f"{file}: framework '{framework[:60]}' is not one of {', '.join(names)}{near}")


def priceable(case: Case | Blocked) -> Case:
    """Return the case. Raises one InputError naming everything that it lacks."""
    if isinstance(case, Blocked):
        raise InputError("; ".join(f"{remark.message} ({remark.fix})" for remark in case.missing))
    return case


def question_of_file(file: str, text: str | None, rank: int, asked: Asked, target: RecipeFormat | None = None) -> Case:
    """Return the question of an estimate in a file, as `--format json` writes it; `text` is the content of stdin.

    The default target is the format of the framework that the layout was priced for. Options in `asked` override the
    file's. Raises InputError, also where the layout no longer gives the figures of the file: it was then priced with
    options or coefficients that the file does not name.
    """
    value = parse_json(file, read_limited(Path(file), MOST_BYTES) if text is None else text)
    chosen, query = _chosen(file, value, rank)
    try:
        recipe, hardware = _recipe(file, chosen, target or target_of(str(chosen["layout"]["framework"]), file))
        options = {
            str(name): str(text)
            for switches in (query.get("options"), chosen.get("options"))
            for name, text in (switches or {}).items()
        }
        stated = _figure(chosen["memory"]["device_mib"]), _figure(chosen["throughput"]["step_time_s"])
        devices = _count(chosen["devices"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{file}: is no estimate of `simulate --format json`: {error}") from error
    untouched = asked == Asked(hardware_assumed=asked.hardware_assumed)
    if asked.hardware_assumed:
        asked = replace(asked, hardware=hardware)
    if asked.devices is None and asked.nodes is None:
        asked = replace(asked, devices=devices)
    case = priceable(case_of(recipe, replace(asked, options={**options, **asked.options})))
    if untouched:
        _compare(file, case, stated)
    return case


def _count(value: object) -> int:
    """Return a whole number of a file. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{str(value)[:40]!r} is no whole number")
    if not 0 <= value <= _MOST:
        raise ValueError(f"a count must be from 0 to {_MOST}")
    return value


def _sound(value: object) -> Any:
    """Return a layout's setting: a count, word, bool, None, or list of counts or words.

    Raises TypeError or ValueError.
    """
    if value is None or isinstance(value, str | bool):
        return value
    return [_sound(item) for item in value] if isinstance(value, list) else _count(value)


def _figure(value: object) -> float:
    """Return a finite amount of a file. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    if not 0 <= value <= _MOST or not math.isfinite(value):
        raise ValueError(f"a figure must be from 0 to {_MOST}")
    return float(value)


def _compare(file: str, case: Case, stated: tuple[float, float]) -> None:
    estimate = bare_estimate(case.scenario, case.layout)
    figures = to_mib(estimate.memory.device_bytes), estimate.throughput.step_seconds
    for unit, before, now in zip(("MiB", "s"), stated, figures, strict=True):
        if abs(now - before) > _SAME * before:
            raise InputError(
                f"{file}: says {before:.6g} {unit}, its layout gives {now:.6g}: it was priced with other options or "
                "coefficients; repeat them (--option NAME=VALUE, --calibration FILE)"
            )


def _chosen(file: str, value: Any, rank: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the estimate of a rank, and the query of its ranking."""
    if not isinstance(value, dict):
        raise InputError(f"{file}: must hold an estimate or a ranking, as --format json writes them")
    estimates = value.get("estimates")
    if estimates is None:
        if rank != 1:
            raise InputError(f"--rank {rank}: {file} holds one estimate, not a ranking")
        return value, {}
    if not isinstance(estimates, list) or not all(isinstance(entry, dict) for entry in estimates):
        raise InputError(f"{file}: estimates: must be a list of objects")
    if rank > len(estimates):
        raise InputError(f"--rank {rank}: {file} ranks {len(estimates)} layouts")
    query = value.get("query")
    return estimates[rank - 1], query if isinstance(query, dict) else {}


def _recipe(file: str, value: Mapping[str, Any], target: RecipeFormat) -> tuple[Recipe, str]:
    """Return an estimate as a recipe, and the hardware that it was priced on."""
    layout = value["layout"]
    priced_for = str(layout["framework"])
    if priced_for != framework_of(target):
        raise InputError(
            f"{file}: was priced for {priced_for}, which trains differently: price it with "
            f"--framework {framework_of(target)} first"
        )
    hardware = str(value["hardware"])
    if "," in hardware or ":" in hardware:
        raise UnsupportedError(f"{file}: hardware {hardware}: one recipe cannot launch several kinds of device")
    cut = tuple(_count(layers) for layers in layout["stage_layers"])
    stated, usuals = {**layout, **value}, DEFAULT_WORKLOAD.items()
    recipe = Recipe(
        file=file,
        framework=framework_of(target),
        dialect="estimate",
        model=str(value["model"]),
        model_fields={"num_hidden_layers": sum(cut)},
        **{name: _sound(stated[name] if usual is not None else stated.get(name)) for name, usual in usuals},
        stack=stack_of_file(value.get("stack")),
        layout=layout_of_object({name: _sound(setting) for name, setting in layout.items()}),
        nodes=1,
    )
    return recipe, hardware
