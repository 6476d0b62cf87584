"""The two questions: what does this layout cost, and which layouts are best."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from simulator.calibration.apply import Applied, applied, with_calibration
from simulator.cluster import cluster
from simulator.errors import InputError
from simulator.frameworks.profile import framework as framework_profile
from simulator.pricing.build import estimate_layout
from simulator.pricing.estimate import Estimate
from simulator.scenario.layout import Layout, default_cut
from simulator.scenario.scenario import MOST_DEVICES, Scenario
from simulator.search.rank import Progress, search
from simulator.search.result import Counts, Ranking, Remedy
from simulator.search.space import Space
from simulator.specs.catalogue import load_model


def scenario_of(
    *,
    model: str,
    hardware: str = "z2000",
    nodes: int | None = None,
    devices: int | None = None,
    seq_length: int = 8192,
    global_batch_size: int = 1024,
    precision: str = "bf16",
    lora_rank: int | None = None,
    num_layers: int | None = None,
    framework: str = "megatron",
    options: Mapping[str, str] | None = None,
    calibration: str | None = None,
) -> Scenario:
    """The scenario of a question.

    `model` and `hardware` are shipped names or paths, `hardware` also node groups (see `simulator.cluster`); without
    `nodes` and `devices` it is one node. `calibration` is None for the shipped one of the hardware's family, `none` for
    the priors, or a file. Raises InputError for what is wrong and UnsupportedError for what cannot be priced.
    """
    machines = cluster(hardware, nodes, devices, calibration)
    model_spec = load_model(model)
    if num_layers is not None:
        model_spec = model_spec.with_layers(num_layers)
    return Scenario(
        model=model_spec,
        hardware=machines.hardware,
        devices=machines.devices,
        groups=machines.groups,
        seq_length=seq_length,
        global_batch_size=global_batch_size,
        precision=precision,
        lora_rank=lora_rank,
        framework=framework_profile(framework, dict(options or {})),
        coefficients=machines.used.coefficients(),
    )


def estimate(*, layout: Layout | None = None, **question: Any) -> Estimate:
    """Price one layout.

    Takes the arguments of `scenario_of` and a layout; a layout without a cut of the layers gets the default cut.
    """
    scenario, used = _asked(question)
    layout = layout or Layout(data_parallel=scenario.devices)
    if layout.stage_layers and len(layout.stage_layers) != layout.pipeline_parallel:
        raise InputError(
            f"stage_layers names {len(layout.stage_layers)} stages, pipeline_parallel is {layout.pipeline_parallel}"
        )
    if not layout.stage_layers:
        if layout.pipeline_parallel > scenario.model.num_hidden_layers:
            raise InputError(
                f"pp {layout.pipeline_parallel}: {scenario.model.name} has {scenario.model.num_hidden_layers} layers, "
                f"allowed are 1 to {scenario.model.num_hidden_layers}"
            )
        layout = replace(layout, stage_layers=default_cut(scenario.model.num_hidden_layers, layout.pipeline_parallel))
    return _price(scenario, used, layout)


def _asked(question: Mapping[str, Any]) -> tuple[Scenario, Applied]:
    """The scenario of a question, and the calibrations behind its coefficients."""
    scenario = scenario_of(**question)
    return scenario, applied(scenario.hardware.family, question.get("calibration"))


def _price(scenario: Scenario, used: Applied, layout: Layout) -> Estimate:
    return with_calibration(scenario, estimate_layout(scenario, layout), used)


def rank(
    *,
    space: Space | None = None,
    top: int = 10,
    variants: bool = False,
    progress: Progress | None = None,
    **question: Any,
) -> Ranking:
    """Rank the layouts of `space`, fastest first; takes the arguments of `scenario_of`.

    Without `variants` the ranking shows the best of each split (tensor, pipeline, context and expert parallel sizes).
    """
    started = time.perf_counter()
    space = space or Space()
    scenario, used = _asked(question)
    found = search(scenario, space, top=max(top, 1), variants=variants, progress=progress)
    elapsed = time.perf_counter() - started
    best = tuple(_price(scenario, used, layout) for layout in found.fastest[:top])
    nearest = _price(scenario, used, found.nearest[0]) if found.nearest and not found.fastest else None
    return Ranking(
        query=_query(scenario, question, space),
        defaults=tuple(name for name in _QUESTION if name not in question),
        counts=Counts(
            evaluated=found.evaluated, feasible=found.feasible, rejected=found.rejected, elapsed_seconds=elapsed
        ),
        estimates=best,
        starved=tuple(_price(scenario, used, layout) for layout in found.starved),
        nearest=nearest,
        remedies=() if found.fastest else tuple(_remedies(scenario, used, space)),
        fp8=_fp8(scenario, used, space),
    )


_QUESTION = (
    "hardware",
    "nodes",
    "seq_length",
    "global_batch_size",
    "precision",
    "lora_rank",
    "num_layers",
    "framework",
    "options",
    "calibration",
)


def _query(scenario: Scenario, question: Mapping[str, Any], space: Space) -> dict[str, object]:
    """Every input with its value after defaults."""
    values: dict[str, object] = {
        "model": question["model"],
        "hardware": scenario.hardware_name,
        "nodes": scenario.nodes,
        "devices": scenario.devices,
        "seq_length": scenario.seq_length,
        "global_batch_size": scenario.global_batch_size,
        "precision": scenario.precision,
        "lora_rank": scenario.lora_rank,
        "num_layers": scenario.model.num_hidden_layers,
        "framework": scenario.framework.name,
        "options": dict(question.get("options") or {}),
        "calibration": scenario.coefficients.name,
    }
    narrowed = {f.name: getattr(space, f.name) for f in dataclasses.fields(space) if getattr(space, f.name)}
    return values | {"space": narrowed}


def _fp8(scenario: Scenario, used: Applied, space: Space) -> Estimate | None:
    """The best layout in fp8, where something else was asked for and the device has it."""
    if scenario.precision == "fp8" or any("fp8" not in h.peak_flops_per_second for h in scenario.kinds_of_device):
        return None
    narrow = replace(scenario, precision="fp8")
    found = search(narrow, space, top=1)
    return _price(narrow, used, found.fastest[0]) if found.fastest else None


def _remedies(scenario: Scenario, used: Applied, space: Space) -> Iterator[Remedy]:
    """Changes after which something fits, each with its fastest layout; single changes only."""
    for change, other, wider in _changes(scenario, space):
        found = search(other, wider, top=1)
        if found.fastest:
            yield Remedy(change, _price(other, used, found.fastest[0]))


def _changes(scenario: Scenario, space: Space) -> Iterator[tuple[str, Scenario, Space]]:
    for axis in dataclasses.fields(space):
        if getattr(space, axis.name) != axis.default:
            free: dict[str, Any] = {axis.name: axis.default}
            yield f"free choice of {axis.name}", scenario, replace(space, **free)
    for offload in ("optimizer", "optimizer_tensorwise"):
        if offload not in (space.offload or ()):
            yield f"--offload {offload}", scenario, replace(space, offload=(offload,))
    if scenario.groups:
        return
    per_node = scenario.hardware.devices_per_node
    for doubled in range(1, 7):
        devices = (
            scenario.nodes * per_node * 2**doubled if scenario.devices >= per_node else per_node * 2 ** (doubled - 1)
        )
        if devices > MOST_DEVICES:
            return
        other = replace(scenario, devices=devices)
        if search(other, space, top=1).fastest:
            yield f"--nodes {devices // per_node}", other, space
            return
