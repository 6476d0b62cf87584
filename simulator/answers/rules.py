"""Refusals of a layout by its framework, in the framework's own words: reading and testing of each `rules.yaml`.

A rule that the layout alone decides stands once, in `simulator.search.rules`; here it gets the framework's words.

A rule describes a check that a framework makes at its start::

    - id: megatron-positions
      versions: versions that were read or run and have it; by default the file's
      source: repository, version, file and line of the check, or the measured rows that met it
      about: what must hold
      says: the framework's own message, with ... for numbers; omitted where a layout rule quotes it
      when:                                                   # broken where all lines of one entry hold
        - flag.max-position-embeddings: less than workload.seq_length
      breach: the numbers that break it, where the flag at fault is not enough
      fix: --max-position-embeddings {workload.seq_length} in the recipe
      blame: [settings or dashed flags at fault; the first in the recipe is shown]

A line of `when` has a subject, as `LaunchFacts.value` lists them, and a value, `absent`, `present`, `none of A B`,
`more than A`, `less than A` or `no multiple of A`, where A may be a subject too. `layout_rule` (a rule of
`simulator.search.rules`, which gets the framework's words) or `remark` (a reader's) replace `when`; `underscored`
(flags that must have dashes) adds to it. Names in braces are subjects, or computed in `texts`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final, Literal

from simulator.cost.operations.sums import total_parameters
from simulator.cost.pricing.estimate import Violation
from simulator.late import late_pattern
from simulator.question.origin import Place, RecipeFlag, Remark
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.stacks import framework_files
from simulator.question.units import GIGA
from simulator.records import Bare, replace
from simulator.search.rules import RULES
from simulator.search.space import divisors

Mark = Literal["llama3.1-example", "megatron-240718", "megatron-before-0.12"]
"""A sign in a recipe's text of the code that it starts."""


class LaunchFacts(Bare, kw_only=True):
    """The facts that rules refer to."""

    scenario: Scenario
    layout: Layout
    recipe: Recipe | None = None
    marks: frozenset[Mark] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Settings of the user's that override the recipe's, by their names in `Layout` and `Scenario`."""

    def flag(self, *names: str) -> RecipeFlag | None:
        """Return the first of the recipe's flags with one of these names; None without one."""
        plain = (name.replace("-", "_") for name in names)
        return next((self._flags[name] for name in plain if name in self._flags), None)

    @cached_property
    def _flags(self) -> Mapping[str, RecipeFlag]:
        return {flag.name: flag for flag in self.recipe.flags} if self.recipe else {}

    def value(self, subject: str) -> Any:
        """Return the value that a line of a rule refers to, by name.

        `layout.X`, `model.X`, `hardware.X`, `workload.X`, `option.X` (a switch), `stated.X` (whether the recipe itself
        turns a switch on), `flag.X` (its text, None where it is absent), `mark.X`, `replaced.X`, and properties as
        `recipe.X`.
        """
        kind, _, name = subject.partition(".")
        match kind:
            case "flag":
                flag = self.flag(name)
                return None if flag is None else flag.text
            case "stated":
                text = self.recipe.options.get(name, "") if self.recipe else ""
                return text.lower() in ("true", "1", "on", "yes")
            case "mark":
                return name in self.marks
            case "replaced":
                return name in self.replaced
            case "recipe":
                return getattr(self, name)
            case _:
                scenario = self.scenario
                owners = {"layout": self.layout, "option": scenario.framework, "workload": scenario}
                return getattr(owners.get(kind) or getattr(scenario, kind), name)

    @property
    def is_command_line(self) -> bool:
        """Whether Megatron-LM's own parser reads the flags, which checks more than the library does."""
        return self.recipe is not None and self.recipe.dialect == "megatron-shell"

    @property
    def is_core(self) -> bool:
        """Whether Megatron-core builds the layers for sure; NeMo 1 has its own, unless told `mcore_gpt`."""
        return self.recipe is None or self.recipe.dialect not in ("nemo-yaml", "nemo-shell")

    @property
    def is_laid_out(self) -> bool:
        """Whether the recipe states its whole layout."""
        return self.recipe is not None and self.recipe.layout is not None

    @property
    def cuts(self) -> bool:
        """Whether the recipe states the cut of the layers that is priced."""
        own = self.recipe.layout.stage_layers if self.recipe and self.recipe.layout else ()
        return bool(own) and own == self.layout.stage_layers


def other_heads(model: ModelSpec, tensor_parallel: int) -> tuple[int, int] | None:
    """Return the nearest heads and key-value heads that tensor parallelism can split, at the same hidden size."""
    shared = -(-model.num_key_value_heads // tensor_parallel) * tensor_parallel
    fitting = [n for n in range(shared, 4 * model.num_attention_heads + 1, shared) if model.hidden_size % n == 0]
    if model.attention == "mla" or not fitting:
        return None
    return min(fitting, key=lambda n: (abs(n - model.num_attention_heads), n)), shared


def _other_heads(launch: LaunchFacts) -> str:
    model, size = launch.scenario.model, launch.layout.tensor_parallel
    text = f"--tp {math.gcd(model.num_attention_heads, model.num_key_value_heads)}"
    other = other_heads(model, size)
    if other is None:
        return text
    heads, shared = other
    fields = f"--model-field num_attention_heads={heads} --model-field num_key_value_heads={shared}"
    even = model.head_dim * model.num_attention_heads == model.hidden_size
    size = model.hidden_size // heads if even else model.head_dim
    changed = replace(model, num_attention_heads=heads, num_key_value_heads=shared, head_dim=size)
    counts = f"{total_parameters(model) / GIGA:.2f}B -> {total_parameters(changed) / GIGA:.2f}B parameters"
    return (
        f"{text}; or another model with heads {heads}/{shared} ({fields}): head_dim {model.head_dim} -> "
        f"{changed.head_dim}, {counts}, and the published weights no longer match"
    )


def _other_chunks(launch: LaunchFacts) -> str:
    cut, pipeline = launch.layout.stage_layers, launch.layout.pipeline_parallel
    if pipeline < 2:
        return "--vpp 1: chunks need a pipeline"
    if len(set(cut)) != 1:
        return "--vpp 1, or a pipeline size that divides the layers"
    sizes = ", ".join(str(d) for d in divisors(cut[0], cut[0] - 1))
    return f"--layers-per-virtual-stage {sizes}, and micro batches of a step that are a multiple of {pipeline}"


def _other_cuts(launch: LaunchFacts) -> str:
    layers, stages = launch.scenario.model.num_hidden_layers, launch.layout.pipeline_parallel
    sizes = ", ".join(str(d) for d in divisors(layers, min(layers, 2 * stages)))
    cut = default_cut(layers, stages)
    ends = f"--decoder-first-pipeline-num-layers {cut[0]} --decoder-last-pipeline-num-layers {cut[-1]}"
    spread = f"{ends} in the recipe" if len(set(cut[1:-1])) <= 1 else "--pipeline-model-parallel-layout in the recipe"
    return f"--pp {sizes}; or {spread}"


TEXTS: Final[Mapping[str, Callable[[LaunchFacts], str]]] = {
    "other_heads": _other_heads,
    "other_chunks": _other_chunks,
    "other_cuts": _other_cuts,
    "samples_at_once": lambda launch: str(launch.layout.micro_batch_size * launch.layout.data_parallel),
}


_NAMED: Final = late_pattern(r"\{([\w.-]+)\}")
_COMPARED: Final = late_pattern(r"(more than|less than|no multiple of) ([\w.]+)")


class FrameworkRule(Bare, kw_only=True):
    """One refusal of one framework, as in its file."""

    id: str
    framework: str
    versions: str
    source: str
    about: str
    fix: str
    says: str = ""
    breach: str = ""
    layout_rule: str = ""
    remark: str = ""
    when: tuple[Mapping[str, Any], ...] = ()
    underscored: tuple[str, ...] = ()
    blame: tuple[str, ...] = ()

    def is_broken(self, launch: LaunchFacts) -> bool:
        """Whether flags and layout of a launch break the rule."""
        broken = any(all(_holds(launch, *line) for line in lines.items()) for lines in self.when)
        return broken and (not self.underscored or self.misspelled(launch) is not None)

    def misspelled(self, launch: LaunchFacts) -> RecipeFlag | None:
        """Return the first of the recipe's flags that must not be spelled with underscores; None without one."""
        flags = launch.recipe.flags if launch.recipe else ()
        return next((flag for flag in flags if "_" in flag.spelled and flag.name in self.underscored), None)

    def text(self, launch: LaunchFacts, text: str) -> str:
        """Return a text of the rule with the names in braces replaced."""

        def filled(match: re.Match[str]) -> str:
            name = match[1]
            if name == "dashed":
                flag = self.misspelled(launch)
                return "" if flag is None else f"--{flag.spelled.replace('_', '-')}"
            return TEXTS[name](launch) if name in TEXTS else str(launch.value(name))

        return _NAMED.sub(filled, text)


def _holds(launch: LaunchFacts, subject: str, expected: Any) -> bool:
    """Whether one line of a rule holds."""
    value = launch.value(subject)
    if expected in ("absent", "present"):
        return bool((value is None) == (expected == "absent"))
    if isinstance(expected, str) and expected.startswith("none of "):
        return ("absent" if value is None else value) not in expected.split()[2:]
    compared = _COMPARED.fullmatch(expected) if isinstance(expected, str) else None
    if compared is None:
        return bool(value == expected)
    if value is None or not str(value).isdecimal():
        return False
    number, other = int(value), int(compared[2] if compared[2].isdecimal() else launch.value(compared[2]))
    holds = {"more than": number > other, "less than": number < other, "no multiple of": number % other != 0}
    return bool(holds[compared[1]])


def _files() -> Mapping[str, Mapping[str, Any]]:
    """Return the content of each framework's files, with their rules merged."""
    files: dict[str, dict[str, Any]] = {}
    for file, content in framework_files().items():
        if not file.endswith("/rules.yaml"):
            continue
        own = files.setdefault(content["framework"], {"rules": []})
        own |= {name: value for name, value in content.items() if name != "rules"}
        own["rules"] = [*own["rules"], *(_rule(file, content, rule) for rule in content["rules"])]
    return files


def _rule(file: str, content: Mapping[str, Any], rule: Mapping[str, Any]) -> FrameworkRule:
    lists = {name: tuple(value) for name, value in rule.items() if isinstance(value, list)}
    try:
        return FrameworkRule(**{"framework": content["framework"], "versions": content["versions"], **rule, **lists})
    except TypeError as error:
        raise ValueError(f"{file}: {rule.get('id')}: {error}") from error


_FILES: Final = _files()
FRAMEWORK_RULES: Final[tuple[FrameworkRule, ...]] = tuple(rule for own in _FILES.values() for rule in own["rules"])
"""Rules of all frameworks; a ranking also drops layouts that break one with a `layout_rule`."""
READER_RULES: Final = frozenset(rule.remark for rule in FRAMEWORK_RULES if rule.remark)
"""Readers' remarks that a rule restates in the framework's words."""


def fact_of(framework: str, name: str) -> Any:
    """Return an entry of a framework's file beside its rules; empty without one."""
    return _FILES.get(framework, {}).get(name, {})


def findings(launch: LaunchFacts, violations: Iterable[Violation]) -> tuple[Remark, ...]:
    """Return every refusal of a launch: the layout's violations in the framework's words, and the framework's own."""
    rules = [rule for rule in FRAMEWORK_RULES if rule.framework == launch.scenario.framework.name]
    return (*_of_layout(launch, rules, violations), *_of_framework(launch, rules))


def _of_layout(launch: LaunchFacts, rules: list[FrameworkRule], violations: Iterable[Violation]) -> Iterator[Remark]:
    known = {rule.layout_rule: rule for rule in rules if rule.layout_rule}
    settings = {rule.id: rule.settings for rule in RULES}
    for violation in violations:
        rule = known.get(violation.rule)
        place = _place(launch, (*(rule.blame if rule else ()), *settings.get(violation.rule, ())))
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
            flag = rule.misspelled(launch)
            place = flag.place if flag else _place(launch, rule.blame)
            flag = flag or launch.flag(*(name[2:] for name in rule.blame if name.startswith("--")))
            shown = "" if flag is None else f"--{flag.spelled} {flag.text}".rstrip()[:80] + ": "
            breach = rule.text(launch, rule.breach) or f"{shown}{rule.about}"
            message = f"{breach}; the framework says: {rule.says} ({rule.versions})"
            yield Remark(rule.id, "error", message, place, rule.text(launch, rule.fix), rule.source)


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
