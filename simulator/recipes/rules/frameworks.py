"""Refusals of a launch by its framework, in the words that its user would see. Reads rules; prices nothing.

A rule that the layout alone decides stands once, in `simulator.search.rules`; here it gets the framework's words. The
other rules look at facts of the recipe: its script, its flags, its snapshot of the code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from simulator.cost.pricing.violation import Violation
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.recipes.recipe import Place, Remark
from simulator.recipes.rules.launch import LaunchFacts
from simulator.recipes.rules.rule import FRAMEWORK_RULES, FrameworkRule, fact_of

_BLAME: Final[dict[str, tuple[str, ...]]] = {
    "devices": ("nodes", "dp", "tp", "pp"),
    "heads": ("tp", "model"),
    "kv_heads": ("tp", "model"),
    "ffn": ("tp", "etp"),
    "vocabulary": ("tp",),
    "layers": ("stage_layers", "pp"),
    "node_groups": ("pp", "nodes"),
    "virtual_stages": ("layers_per_virtual_stage", "vpp", "pp"),
    "batch": ("global_batch_size", "micro_batch_size"),
    "sequence": ("seq_length", "cp"),
    "context_heads": ("cp", "tp"),
    "experts": ("ep", "etp"),
    "sequence_parallel": ("sequence_parallel", "tp"),
    "zero_stage": ("zero_stage", "pp"),
    "sharding_groups": ("sharding_degree", "zero_stage"),
    "parameters_on_host": ("offload_parameters", "zero_stage"),
    "offload_pipeline": ("offload", "pp"),
    "offload_recompute": ("offload", "recompute"),
    "two_stages": ("layers_per_virtual_stage", "vpp", "pp"),
    "recompute_layers": ("recompute_layers", "recompute"),
}
"""Settings that decide each layout rule."""


def findings(launch: LaunchFacts, violations: Iterable[Violation]) -> tuple[Remark, ...]:
    """Return every refusal of a launch: the layout's violations in the framework's words, and the framework's own."""
    rules = [rule for rule in FRAMEWORK_RULES if rule.framework == launch.scenario.framework.name]
    return (*_of_layout(launch, rules, violations), *_of_framework(launch, rules))


def _of_layout(launch: LaunchFacts, rules: list[FrameworkRule], violations: Iterable[Violation]) -> Iterator[Remark]:
    known = {rule.layout_rule: rule for rule in rules if rule.layout_rule}
    for violation in violations:
        rule = known.get(violation.rule)
        place = _place(launch, (*(rule.blame if rule else ()), *_BLAME.get(violation.rule, ())))
        if lacking := _not_modelled(launch, violation.rule):
            yield Remark("not-modelled", "error", lacking, place, violation.fix)
        elif rule is None:
            yield Remark(violation.rule.replace("_", "-"), "error", violation.message, place, violation.fix)
        else:
            more = "" if rule.says in violation.message else f"; the framework says: {rule.says}"
            fix = rule.text(launch, rule.fix)
            yield Remark(rule.id, "error", f"{violation.message}{more}", place, fix, rule.source)


def _of_framework(launch: LaunchFacts, rules: list[FrameworkRule]) -> Iterator[Remark]:
    remarks = {remark.rule: remark for remark in (launch.recipe.remarks if launch.recipe else ())}
    for rule in rules:
        if rule.remark in remarks:
            remark = remarks[rule.remark]
            message = f"{remark.message}; the framework says: {rule.says}"
            yield Remark(rule.id, "error", message, remark.place, remark.fix, rule.source)
        elif rule.is_broken(launch):
            message = f"{_breach(rule, launch)}; the framework says: {rule.says} ({rule.versions})"
            flag = rule.misspelled(launch)
            place = flag.place if flag else _place(launch, rule.blame)
            yield Remark(rule.id, "error", message, place, rule.text(launch, rule.fix), rule.source)


def _breach(rule: FrameworkRule, launch: LaunchFacts) -> str:
    """Return what breaks a rule: the rule's numbers, else the flag at fault and the rule's condition."""
    flags = (launch.flag(name[2:]) for name in rule.blame if name.startswith("--"))
    flag = rule.misspelled(launch) or next((flag for flag in flags if flag is not None), None)
    shown = "" if flag is None else f"--{flag.spelled} {flag.text}".rstrip()[:80] + ": "
    return rule.text(launch, rule.breach) or f"{shown}{rule.about}"


def _place(launch: LaunchFacts, settings: Iterable[str]) -> Place | None:
    places = launch.recipe.places if launch.recipe else {}
    for name in settings:
        if name.startswith("--"):
            if flag := launch.flag(name[2:]):
                return flag.place
        elif name in places:
            return places[name]
    return None


def _not_modelled(launch: LaunchFacts, layout_rule: str) -> str:
    """Return what the simulator lacks where only its own layout rule is broken; empty for the framework's rules."""
    name = _keeping_whole(launch.scenario, launch.layout)
    if layout_rule == "kv_heads" and name:
        return f"Paddle's {name} keeps key-value heads that do not divide whole on every rank: that is not modelled"
    lacking: str = fact_of(launch.scenario.framework.name, "not_modelled").get(layout_rule, "")
    return lacking


def _keeping_whole(scenario: Scenario, layout: Layout) -> str:
    """Return the network that keeps all key-value heads on every rank of a layout; empty without one."""
    model, size = scenario.model, layout.tensor_parallel
    if model.num_key_value_heads % size == 0 or model.num_attention_heads % size:
        return ""
    name: str = fact_of(scenario.framework.name, "whole_key_values").get(model.architecture, "")
    return name


def replicated_key_value_heads(scenario: Scenario, layout: Layout) -> tuple[int, str]:
    """Return the key-value heads on all tensor-parallel ranks together, and the network that keeps them whole on each.

    Zero and empty where they are split, or where a rank would hold more of them than query heads.
    """
    heads = scenario.model.num_key_value_heads * layout.tensor_parallel
    name = _keeping_whole(scenario, layout)
    return (heads, name) if name and scenario.model.num_attention_heads % heads == 0 else (0, "")


def uneven_stages(framework: str, layers: int, stages: int) -> str:
    """Return what a framework does with layers that do not divide over the stages; empty where not documented."""
    text = fact_of(framework, "uneven_stages")
    return f"; {text.format(layers=layers, stages=stages)}" if text else ""
