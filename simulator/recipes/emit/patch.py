"""Patches of a recipe's text: settings changed at their place, or added.

`answers.explain` finds the changes; each framework's writer knows its words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from simulator.answers.cases import Case, case_of_recipe
from simulator.answers.explain import Change
from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import FITS, size
from simulator.errors import SimulateError, one_line
from simulator.frameworks import registry
from simulator.question.origin import Place, RecipeFlag
from simulator.question.recipe import Recipe
from simulator.question.specs.documents import standing_in
from simulator.recipes.check.verdict import Checked
from simulator.recipes.readers.read import read_recipe
from simulator.records import replace

_WORD = r"""(?:"[^"\n]*"|'[^'\n]*'|[^\s"'\\)]+)"""
_HEADER = re.compile(r"#|\s*$")


def edited(
    text: str, present: Mapping[str, RecipeFlag], changes: Mapping[str, str], dropped: Sequence[str], *, shell: bool
) -> str | None:
    """Return the text with some flags or keys set and others dropped; None where it offers no place for them.

    A flag with an empty value is a switch.
    """
    lines = text.splitlines(keepends=True)
    added: dict[str, str] = {}
    for name, value in changes.items():
        setting = present.get(name)
        if setting is None:
            added[name] = value
        elif value not in ("", setting.text) and not (
            _set_flag(lines, setting, value) if shell else _set_key(lines, setting, value)
        ):
            return None
    for name in dropped:
        if name in present and not _drop(lines, present[name], shell=shell):
            return None
    if added and not (_add_flags(lines, present, added) if shell else _add_keys(lines, present, added)):
        return None
    return "".join(lines)


def with_variable(text: str, name: str, value: str) -> str:
    """Return a script that exports a variable after its first comments; a variable it sets itself is extended."""
    lines = text.splitlines(keepends=True)
    own = re.compile(rf"^(\s*(?:export\s+)?{name}=)([\"']?)([^\"'\s;]*)\2")
    for number, line in enumerate(lines):
        match = own.match(line)
        if match:
            more = f"{match[3]},{value}" if match[3] else value
            lines[number] = own.sub(lambda match, more=more: f"{match[1]}{match[2]}{more}{match[2]}", line)  # type: ignore[misc]  # binds the loop's value
            return "".join(lines)
    first = next((number for number, line in enumerate(lines) if not _HEADER.match(line)), len(lines))
    return "".join([*lines[:first], f"export {name}={value}\n", *lines[first:]])


def _flag(setting: RecipeFlag) -> re.Pattern[str]:
    name = re.escape(setting.spelled)
    return re.compile(rf"(?<![\w.-])(--?{name}|\+{{0,2}}(?:\w+\.)+{name}(?==))(?![\w-])(?:([ =]+)({_WORD}))?")


def _set_flag(lines: list[str], setting: RecipeFlag, value: str) -> bool:
    """Replace a flag's value, in its variable if that is plain text; False where the text does not allow it."""
    line = lines[setting.place.line - 1]
    match = _flag(setting).search(line)
    if match is None or match[3] is None:
        return False
    variable = re.fullmatch(r"[\"']?\$\{?(\w+)\}?[\"']?", match[3])
    if variable and _set_variable(lines[: setting.place.line - 1], lines, variable[1], setting.text, value):
        return True
    lines[setting.place.line - 1] = line[: match.start(3)] + value + line[match.end(3) :]
    return True


def _set_variable(before: Sequence[str], lines: list[str], name: str, old: str, new: str) -> bool:
    pattern = re.compile(rf"((?:^|[\s;]){name}=[\"']?(?:\$\{{\w+:?-)?){re.escape(old)}(?![\w.])")
    numbers = [number for number, line in enumerate(before) if re.search(rf"(?:^|[\s;]){name}=", line)]
    if not numbers or not pattern.search(lines[numbers[-1]]):
        return False
    lines[numbers[-1]] = pattern.sub(lambda match: match[1] + new, lines[numbers[-1]], count=1)
    return True


def _add_flags(lines: list[str], present: Mapping[str, RecipeFlag], added: Mapping[str, str]) -> bool:
    """Add flags or dotted keys after the value of a present one; False without one."""
    words = "".join(
        f" ++{name}={value or 'true'}" if "." in name else f" --{name} {value}".rstrip()
        for name, value in added.items()
    )
    for setting in present.values():
        match = _flag(setting).search(lines[setting.place.line - 1])
        if match is not None and match[3] is not None:
            line = lines[setting.place.line - 1]
            lines[setting.place.line - 1] = line[: match.end(3)] + words + line[match.end(3) :]
            return True
    return False


def _key(setting: RecipeFlag) -> re.Pattern[str]:
    last = re.escape(setting.spelled.rsplit(".", 1)[-1])
    return re.compile(rf"^(\s*[\"']?{last}[\"']?\s*[:=]\s*)({_WORD}?)")


def _set_key(lines: list[str], setting: RecipeFlag, value: str) -> bool:
    line = lines[setting.place.line - 1]
    match = _key(setting).match(line)
    if match is None or not match[2]:
        return False
    comma = "," if match[2].endswith(",") else ""
    form = _like(match[2].rstrip(","), value)
    lines[setting.place.line - 1] = match[1] + form + comma + line[match.end(2) :]
    return True


def _like(old: str, new: str) -> str:
    """Return a value in the form of the old one: quoted, or true and false for 1 and 0."""
    if old[:1] in ("'", '"') and new[:1] not in ("'", '"'):
        return f"{old[0]}{new}{old[0]}"
    if old.lower() in ("true", "false") and new in ("0", "1"):
        return "true" if new == "1" else "false"
    return new


def _add_keys(lines: list[str], present: Mapping[str, RecipeFlag], added: Mapping[str, str]) -> bool:
    """Add keys above one of the same section, in its form; False without one."""
    for name, value in added.items():
        section = name.rpartition(".")[0]
        beside = [setting for other, setting in present.items() if other.rpartition(".")[0] == section]
        anchor = next((setting for setting in beside if _key(setting).match(lines[setting.place.line - 1])), None)
        if anchor is None:
            return False
        line = lines[anchor.place.line - 1]
        start = re.sub(re.escape(anchor.spelled.rsplit(".", 1)[-1]), name.rsplit(".", 1)[-1], line, count=1)
        match = re.match(r"^(\s*[\"']?\w+[\"']?\s*[:=]\s*)", start)
        if match is None:
            return False
        json = re.match(r"\s*\"", line) is not None
        comma = "," if json else ""
        value = f'"{value}"' if json and not re.fullmatch(r"-?[0-9.]+|true|false|\[.*\]", value) else value  # noqa: PLW2901
        # In the same item of the list, so that the other lines keep their numbers.
        lines[anchor.place.line - 1] = f"{match[1]}{value}{comma}\n{line}"
    return True


def _drop(lines: list[str], setting: RecipeFlag, *, shell: bool) -> bool:
    line = lines[setting.place.line - 1]
    match = (_flag(setting).search if shell else _key(setting).match)(line)
    if match is None:
        return False
    if not shell:
        lines[setting.place.line - 1] = ""
        return True
    value = match[3] is not None and (not setting.text or match[3].strip("\"'") != "\\") and setting.text
    end = match.end(3) if value else match.end(1)
    before = line[: match.start()]
    rest = (before if before.strip() else before.rstrip(" ")) + line[end:].lstrip(" ")
    lines[setting.place.line - 1] = "" if rest.strip() == "\\" else rest
    return True


_NEMO = {
    "recompute_granularity": "activations_checkpoint_granularity",
    "recompute_method": "activations_checkpoint_method",
    "recompute_num_layers": "activations_checkpoint_num_layers",
}  # NeMo's names of Megatron's flags, where they differ


def patched(
    results: Iterable[Checked], settings: Mapping[str, str], environment: Mapping[str, str], root: Path | None = None
) -> tuple[Checked, ...]:
    """Return the results with a patch for each change that the recipe's text allows."""
    whole: list[Checked] = []
    for result in results:
        patches = (patch_of(result, change, settings, environment, root) for change in result.changes)
        changes = tuple(replace(change, patch=patch) for change, patch in zip(result.changes, patches, strict=True))
        whole.append(replace(result, changes=changes))
    return tuple(whole)


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
    lines = list(difflib.unified_diff(text.splitlines(keepends=True), changed.splitlines(keepends=True), *names, n=2))
    if not all(_shown(line) for line in lines):
        return ""
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _shown(line: str) -> bool:
    """Whether a line may be printed as it is: without control characters or commands to a GitHub runner."""
    plain_text = line[1:].rstrip("\r\n").replace("\t", " ")
    return plain_text.isprintable() and not plain_text.lstrip().startswith("::") and "##[" not in line


def _changed(text: str, base: Case, case: Case) -> str | None:
    """Return the recipe's text with the settings of another case; None where it does not allow them."""
    recipe = base.recipe
    written = next((pair for pair in registry.writers().items() if recipe.dialect in pair[1].dialects), None)
    shell = recipe.dialect.endswith("-shell")
    if written is None:
        return None
    name, writer = written
    other_names = registry.table(name).aliases
    words = (writer.words(each.scenario, each.layout) for each in (base, case))
    before, after = ({word: text or ("" if shell else "true") for word, text in each} for each in words)
    own = [flag for flag in recipe.flags if flag.place.file == recipe.file]
    own.sort(key=lambda flag: ("micro_batch" not in flag.name, "parallel" not in flag.name))  # batch and degrees first
    present = {flag.name: flag for flag in own}

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


def _nodes(text: str, present: Mapping[str, RecipeFlag], recipe: Recipe) -> RecipeFlag | None:
    """Return the setting of the number of nodes in the recipe; None without a unique one."""
    for name, setting in present.items():
        if name.rsplit(".", 1)[-1] == "num_nodes":
            return setting
    numbered = enumerate(text.splitlines(keepends=True), 1)
    places = [(number, match) for number, line in numbered if (match := _NODES.match(line))]
    if len(places) != 1 or not recipe.dialect.endswith("-shell"):
        return None
    number, match = places[0]
    return RecipeFlag(match[1], str(recipe.nodes), Place(recipe.file, number))


_NODES = re.compile(r"^[^#\n]*?--(nnodes|num_nodes)\b")


def _name(name: str, present: Mapping[str, RecipeFlag], recipe: Recipe, others: tuple[str, ...]) -> str:
    """Return a setting's name in the recipe; `others` are its other names."""
    if recipe.dialect.startswith("nemo"):
        name = _NEMO.get(name, name)
        return next((key for key in present if key.rsplit(".", 1)[-1] == name), f"model.{name}")
    others = ("recompute_granularity", *others) if name == "recompute_activations" else others
    return next((other for other in others if other in present and name not in present), name)


def _asks(text: str, base: Case, case: Case, read: Callable[[], Iterable[Recipe]]) -> bool:
    """Whether the text, read in the recipe's place, asks the question of a case with the same options, and fits."""
    with standing_in(Path(base.recipe.file), text):
        recipes = read()
    options = base.question.said_by(lambda origin: origin.is_user)
    cases = [case_of_recipe(recipe, options) for recipe in recipes if recipe.title == base.recipe.title]
    same = [x for x in cases if isinstance(x, Case) and _question(x) == _question(case)]
    return bool(same) and bool(size(pricing_of(same[0].scenario, same[0].layout)).verdict[0] == FITS)


def _question(case: Case) -> tuple[object, ...]:
    scenario = case.scenario
    # The vocabulary is padded to the layout.
    shape = {name: size for name, size in scenario.model.shape().items() if name != "vocab_size"}
    workload = (scenario.devices, scenario.seq_length, scenario.global_batch_size, scenario.precision)
    return case.layout, scenario.framework, scenario.lora_rank, shape, workload
