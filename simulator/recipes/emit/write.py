"""Writes the recipe that launches a case, in the format of one framework.

Refused are layouts priced for another framework, settings that the format has no word for, and what the framework would
refuse at its start. `frameworks.registry` has the writers, `answers.cases` the case, `show.cli.recipes` the command;
`emit.patch` edits an existing recipe. Also here: `case_of_file`, the case of a saved answer or a recipe, which
`show.cli.recipes` and `api` read.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from simulator.answers.cases import Case, case_of_recipe, priceable
from simulator.answers.ranking import estimate_of, with_best_layout
from simulator.answers.rules import LaunchFacts, findings
from simulator.answers.run import is_answer, saved_case
from simulator.errors import InputError, UnsupportedError, not_one_of
from simulator.frameworks import registry
from simulator.frameworks.write import Head
from simulator.question.frameworks.stacks import ADAPTER_STACK, DEFAULT, METHOD_FRAMEWORK, lacking
from simulator.question.question import FOLLOWS, Question
from simulator.question.scenario.inputs import WORKLOAD
from simulator.question.units import to_gib
from simulator.question.vocabulary import RecipeFormat
from simulator.recipes.readers.read import read_recipe
from simulator.search.space import Space

_WRITTEN = ("seq_length", "global_batch_size", "precision", "lora_rank")  # workload fields that writers support


def emit(case: Case, target: str | None) -> str:
    """Return the recipe that launches a case. Raises UnsupportedError for settings without a word in the framework.

    Without a target it is the first format of its framework that has words for the case.
    """
    if target is None:
        return _in_usual_format(case)
    if target not in registry.writers():
        raise InputError(f"target '{target[:60]}'{not_one_of(target, registry.writers())}")
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
    if case.scenario.images is not None:
        raise UnsupportedError("images: recipes are written for text alone")
    for setting in WORKLOAD:
        if setting.name not in _WRITTEN and getattr(case.scenario, setting.name) != setting.default:
            raise UnsupportedError(f"{setting.option}: {target} recipes have no word for it")
    estimate = estimate_of(case)
    refused = findings(LaunchFacts(scenario=case.scenario, layout=case.layout), estimate.violations)
    if refused:
        fix = f" ({refused[0].fix})" if refused[0].fix else ""
        raise UnsupportedError(f"{target} would refuse the layout: {refused[0].message}{fix}")
    per_node = min(case.scenario.hardware.devices_per_node, case.scenario.devices)
    memory, lengths = estimate.memory, case.scenario.lengths
    need = f"{to_gib(memory.device_bytes):.1f} of {to_gib(memory.capacity_bytes):.1f}"
    head = Head(
        nodes=case.scenario.devices // per_node,
        devices_per_node=per_node,
        lines=(
            f"Written by `simulate emit`: {case.scenario.model.name} on {case.scenario.devices} x {estimate.hardware}.",
            f"Estimated: {need} GiB usable, {estimate.throughput.step_seconds:.3g} s per step.",
            *([f"Memory is of {case.scenario.seq_length} tokens; lengths: {lengths}."] if lengths else []),
            f"simulate: stack={case.scenario.framework.stack}",
        ),
    )
    return registry.writers()[target].text(case.scenario, case.layout, head)


def _in_usual_format(case: Case) -> str:
    """Return the recipe in the first format of its framework that has words for it, else refuse as the usual one."""
    usual, *others = formats_of(case.scenario.framework.name, case.scenario.framework.stack)
    try:
        return emit(case, usual)
    except UnsupportedError:
        for other in others:
            with contextlib.suppress(UnsupportedError):
                return emit(case, other)
        raise


def question_to_launch(question: Question, target: str | None) -> tuple[Question, str | None]:
    """Return a question with a layout that a format can write, and the format, None for that of its framework.

    A question that names a library over Transformers, or adapters for torch, is written for accelerate; one without a
    layout has the fastest that the format has words for.
    """
    stack = question.stated("stack")
    adapters = question.stated("lora_rank") is not None and question.stated("framework") == METHOD_FRAMEWORK
    if target is None and (adapters if stack is None else lacking(stack)):
        target = "accelerate"
    if target is not None and question.stated("framework") is None and target in registry.writers():
        question = question.changed(FOLLOWS, framework=registry.framework_of(target))
    if target == "nemo" and stack is None and not question.layout:
        # Its configurations have no word for what is published for speed: gradients of 16 bits.
        question = question.changed(FOLLOWS, stack=DEFAULT)
    space = Space()
    if target == "accelerate":
        sizes: dict[str, Any] = dict.fromkeys(lacking(ADAPTER_STACK), (1,))
        space = Space(**sizes, recompute=("none", "full"))
    return with_best_layout(question, space), target


def case_of_file(path: str, options: Question) -> Case:
    """Return the case of a saved answer's first layout, or of a recipe's first run, with options over it.

    Raises InputError, naming everything that the file lacks, and UnsupportedError for what cannot be priced.
    """
    if Path(path).suffix.lower() == ".json" and is_answer(path):
        return saved_case(path, None, 1, options)
    return priceable(case_of_recipe(read_recipe(path, {}, None)[0], options))


def formats_of(framework: str, stack: str) -> list[RecipeFormat]:
    """Return the formats of a framework, the usual one first; alone where its own stack has it. Raises InputError."""
    names = dict.fromkeys(map(registry.framework_of, registry.writers()))
    if framework not in names:
        raise InputError(f"framework '{framework[:60]}'{not_one_of(framework, names)}")
    own = [target for target in registry.writers() if registry.framework_of(target) == framework]
    own.sort(key=lambda target: registry.writers()[target].is_usual == bool(lacking(stack)))
    return own if stack == DEFAULT or lacking(stack) else own[:1]
