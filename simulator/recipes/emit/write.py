"""Recipes of a case, by its framework's writer. Refuses what no framework can express."""

from __future__ import annotations

from simulator.answers.cases import Case
from simulator.answers.ranking import estimate_of
from simulator.answers.rules import LaunchFacts, findings
from simulator.errors import InputError, UnsupportedError, did_you_mean
from simulator.frameworks import registry
from simulator.frameworks.write import Head
from simulator.question.scenario.inputs import WORKLOAD
from simulator.question.units import to_gib

_WRITTEN = ("seq_length", "global_batch_size", "precision", "lora_rank")
"""Workload fields that writers support."""


def emit(case: Case, target: str) -> str:
    """Return the recipe that launches a case. Raises UnsupportedError for settings without a word in the framework."""
    if target not in registry.writers():
        names = tuple(registry.writers())
        raise InputError(f"target '{target[:60]}': is not one of {', '.join(names)}{did_you_mean(target, names)}")
    priced_for = case.scenario.framework.name
    if priced_for != registry.framework_of(target):
        raise InputError(
            f"the layout was priced for {priced_for}, which trains differently: price it with --framework "
            f"{registry.framework_of(target)} first"
        )
    if case.scenario.groups:
        raise UnsupportedError(f"hardware {case.scenario.hardware_name}: one recipe launches one kind of device")
    model = case.scenario.model
    if model.extensions:
        raise UnsupportedError(
            f"model {model.name}: recipes are written for plain decoder layers; this one sets {model.extensions[0]}"
        )
    for setting in WORKLOAD:
        if setting.name not in _WRITTEN and getattr(case.scenario, setting.name) != setting.default:
            raise UnsupportedError(f"{setting.option}: {target} recipes have no word for it")
    estimate = estimate_of(case)
    refused = findings(LaunchFacts(scenario=case.scenario, layout=case.layout), estimate.violations)
    if refused:
        fix = f" ({refused[0].fix})" if refused[0].fix else ""
        raise UnsupportedError(f"{target} would refuse the layout: {refused[0].message}{fix}")
    per_node = min(case.scenario.hardware.devices_per_node, case.scenario.devices)
    memory = estimate.memory
    need = f"{to_gib(memory.device_bytes):.1f} of {to_gib(memory.capacity_bytes):.1f}"
    head = Head(
        nodes=case.scenario.devices // per_node,
        devices_per_node=per_node,
        lines=(
            f"Written by `simulate emit`: {case.scenario.model.name} on {case.scenario.devices} x {estimate.hardware}.",
            f"Estimated: {need} GiB usable, {estimate.throughput.step_seconds:.3g} s per step.",
            f"simulate: stack={case.scenario.framework.stack}",
        ),
    )
    return registry.writers()[target].text(case.scenario, case.layout, head)
