"""Changes of a layout as patches of the recipe's text, accepted only if the new text asks the intended question."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from simulator.answers.cases import Case, case_of_recipe
from simulator.answers.changes import Change
from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import FITS, size
from simulator.errors import SimulateError, one_line
from simulator.frameworks import registry
from simulator.frameworks.framework import RecipeWriter
from simulator.question.question import Inputs, Question
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import standing_in
from simulator.recipes.check.verdict import Checked
from simulator.recipes.emit.edits import RecipeSetting, edited, with_variable
from simulator.recipes.readers.read import read_recipe

_NEMO = {
    "recompute_granularity": "activations_checkpoint_granularity",
    "recompute_method": "activations_checkpoint_method",
    "recompute_num_layers": "activations_checkpoint_num_layers",
}
"""NeMo's names of Megatron's flags, where they differ."""
_ALSO: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel_degree": ("tensor_model_parallel_size",),
    "pipeline_parallel_degree": ("pipeline_model_parallel_size",),
    "context_parallel_degree": ("context_parallel_size",),
    "expert_parallel_degree": ("expert_model_parallel_size",),
    "virtual_pp_degree": ("virtual_pipeline_model_parallel_size",),
    "sharding_parallel_degree": ("sharding_parallel_size",),
    "recompute": ("use_recompute",),
    "recompute_activations": ("recompute_granularity",),
}
"""Other names of a setting, which a recipe may use instead."""


def patched(
    results: Iterable[Checked], settings: Mapping[str, str], environment: Mapping[str, str], root: Path | None = None
) -> tuple[Checked, ...]:
    """Return the results with a patch for each change that the recipe's text allows."""
    return tuple(
        replace(
            result,
            changes=tuple(
                replace(change, patch=patch_of(result, change, settings, environment, root))
                for change in result.changes
            ),
        )
        for result in results
    )


def patch_of(
    checked: Checked,
    change: Change,
    settings: Mapping[str, str],
    environment: Mapping[str, str],
    root: Path | None = None,
) -> str:
    """Return a unified diff that makes the recipe ask the change's question; empty where the text does not allow it.

    The patched text is read again in the recipe's place, below the same `root`; a patch that asks another question is
    dropped.
    """
    if checked.case is None:
        return ""
    recipe = checked.case.recipe
    try:
        with Path(recipe.file).open(encoding="utf-8", newline="") as stream:
            text = stream.read()
        changed = _changed(text, checked.case, change.case)
        read = partial(read_recipe, recipe.file, settings, environment, root)
        if changed is None or changed == text or not _asks(changed, checked.case, change.case, read):
            return ""
    except (SimulateError, OSError, ValueError):
        return ""
    name = one_line(recipe.file)
    names = (name, name) if Path(recipe.file).is_absolute() else (f"a/{name}", f"b/{name}")
    lines = list(difflib.unified_diff(_lines(text), _lines(changed), *names, n=2))
    if not all(_shown(line) for line in lines):
        return ""
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _shown(line: str) -> bool:
    """Whether a line may be printed as it is: without control characters or commands to a GitHub runner."""
    plain_text = line[1:].rstrip("\r\n").replace("\t", " ")
    return plain_text.isprintable() and not plain_text.lstrip().startswith("::") and "##[" not in line


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _changed(text: str, base: Case, case: Case) -> str | None:
    """Return the recipe's text with the settings of another case; None where it does not allow them."""
    recipe = base.recipe
    written = registry.writer_of(recipe.dialect)
    shell = recipe.dialect.endswith("-shell")
    if written is None:
        return None
    name, writer = written
    other_names = registry.table(name).aliases
    before, after = (_settings(writer, each, switch="" if shell else "true") for each in (base, case))
    present = _present(recipe)

    def named(word: str) -> str:
        return _name(word, present, recipe, tuple(flag.name for flag, text in other_names.get(word, ()) if not text))

    changes = {named(word): value for word, value in after.items() if before.get(word) != value}
    if base.scenario.devices != case.scenario.devices:
        nodes = _nodes(text, present, recipe)
        if nodes is None or recipe.devices_per_node is None:
            return None
        present = {**present, "nodes": nodes}
        changes["nodes"] = str(case.scenario.devices // recipe.devices_per_node)
    if recipe.dialect.startswith("nemo") and "model.use_distributed_optimizer" in changes:
        return None  # NeMo shards by another optimizer, Megatron-Bridge by a key of another section.
    dropped = [named(word) for word in before if word not in after]
    if "recompute_granularity" in changes:
        dropped.append("recompute_activations")
    if recipe.framework == "megatron" and recipe.dialect == "megatron-shell":
        changes = {name if name in present else name.replace("_", "-"): value for name, value in changes.items()}
    changed = edited(text, present, changes, dropped, shell=shell) if changes or dropped else text
    grows = case.scenario.framework.expandable_segments and not base.scenario.framework.expandable_segments
    if changed is None or not grows:
        return changed
    if not shell:
        return None
    part = "NPU" if case.scenario.hardware.vendor == "Huawei" else "CUDA"
    return with_variable(changed, f"PYTORCH_{part}_ALLOC_CONF", "expandable_segments:True")


def _nodes(text: str, present: Mapping[str, RecipeSetting], recipe: Recipe) -> RecipeSetting | None:
    """Return the setting of the number of nodes in the recipe; None without a unique one."""
    for name, setting in present.items():
        if name.rsplit(".", 1)[-1] == "num_nodes":
            return setting
    places = [(number, match) for number, line in enumerate(_lines(text), 1) if (match := _NODES.match(line))]
    if len(places) != 1 or not recipe.dialect.endswith("-shell"):
        return None
    number, match = places[0]
    return RecipeSetting(spelled=match[1], text=str(recipe.nodes), line=number)


_NODES = re.compile(r"^[^#\n]*?--(nnodes|num_nodes)\b")


def _settings(writer: RecipeWriter, case: Case, *, switch: str) -> dict[str, str]:
    """Return a case's words, the last of each; `switch` is the text of a word without one."""
    return {name: text or switch for name, text in writer.words(case.scenario, case.layout)}


def _present(recipe: Recipe) -> dict[str, RecipeSetting]:
    """Return the flags in the recipe's own file, batch and parallel sizes first."""
    flags = [flag for flag in recipe.flags if flag.place.file == recipe.file]
    flags.sort(key=lambda flag: ("micro_batch" not in flag.name, "parallel" not in flag.name))
    return {flag.name: RecipeSetting(spelled=flag.spelled, text=flag.text, line=flag.place.line) for flag in flags}


def _name(name: str, present: Mapping[str, RecipeSetting], recipe: Recipe, others: tuple[str, ...]) -> str:
    """Return a setting's name in the recipe."""
    if recipe.dialect.startswith("nemo"):
        name = _NEMO.get(name, name)
        return next((key for key in present if key.rsplit(".", 1)[-1] == name), f"model.{name}")
    return next((other for other in (*_ALSO.get(name, ()), *others) if other in present and name not in present), name)


def _asks(text: str, base: Case, case: Case, read: Callable[[], Iterable[Recipe]]) -> bool:
    """Whether the text, read in the recipe's place, asks the question of a case with the same options, and fits."""
    with standing_in(Path(base.recipe.file), text):
        recipes = read()
    cases = [case_of_recipe(recipe, _options(base)) for recipe in recipes if recipe.title == base.recipe.title]
    same = [x for x in cases if isinstance(x, Case) and _question(x) == _question(case)]
    return bool(same) and bool(size(pricing_of(same[0].scenario, same[0].layout)).verdict[0] == FITS)


def _options(case: Case) -> Question:
    """Return what the user said beside the recipe."""
    question = case.question

    def by_user(group: Inputs) -> Inputs:
        return {name: stated for name, stated in group.items() if stated.origin.is_user}

    return Question(
        inputs=by_user(question.inputs),
        model_fields=by_user(question.model_fields),
        layout=by_user(question.layout),
        switches=by_user(question.switches),
    )


def _question(case: Case) -> tuple[object, ...]:
    scenario = case.scenario
    # The vocabulary is padded to the layout.
    shape = {name: size for name, size in scenario.model.shape().items() if name != "vocab_size"}
    workload = (scenario.devices, scenario.seq_length, scenario.global_batch_size, scenario.precision)
    return case.layout, scenario.framework, scenario.lora_rank, shape, workload
