"""Switches that a release of a stack sets for one model, device and precision, or in most of its recipes.

`megatron-bridge@26.08` is NVIDIA's performance recipes of that container. DeepSeek-V3 in fp8 on GB300 has a recipe of
its own there; a model without one gets what most recipes of that device and precision set, with a note.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.stacks import DEFAULT, framework, stack_for, suggested
from simulator.question.frameworks.switch_text import switch_value
from simulator.question.specs.stacks import release_rows

_SWITCHES: Final = {field.name: field for field in switches()}
_RECIPE: Final = "fp8_recipe"
_BLOCKS: Final = ("blackwell",)
"""Families whose own fp8 scales blocks of 32 numbers."""


class ReleaseCase(NamedTuple):
    """Case on which the switches of a release depend."""

    model: str
    is_moe: bool
    hardware: str
    family: str
    precision: str
    devices: int
    adapters: bool
    """Whether LoRA is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRecipe:
    """Recipe of a release, in this project's words."""

    recipe: str
    """Function that builds it."""
    model: str
    is_moe: bool
    hardware: str
    devices: int
    precision: str
    global_batch_size: int | None
    source: str
    """File and line of the function."""
    layout: Mapping[str, str]
    """Layout fields that differ from the usual ones, as text by key."""
    switches: Mapping[str, str]
    lines: Mapping[str, str]
    """File and line of each value that one line sets."""

    @property
    def trains_adapters(self) -> bool:
        """Whether it trains adapters alone."""
        return any(word in self.recipe for word in ("_peft_", "_lora_"))

    @property
    def tunes(self) -> bool:
        """Whether it fine-tunes a trained model."""
        return self.trains_adapters or "_sft_" in self.recipe


@lru_cache(maxsize=16)
def release_recipes(stack: str) -> tuple[ReleaseRecipe, ...]:
    """Return the recipes of a release; none for a stack that is no release."""
    return tuple(_recipe(row) for row in release_rows(stack))


def _recipe(row: Mapping[str, Any]) -> ReleaseRecipe:
    lines = row["lines"]
    return ReleaseRecipe(
        recipe=row["recipe"],
        model=row["model"],
        is_moe=row["experts"] == "yes",
        hardware=row["hardware"],
        devices=int(row["devices"] or 0),
        precision=row["precision"],
        global_batch_size=int(row["global_batch_size"]) if row["global_batch_size"] else None,
        source=row["file"],
        layout=row["layout"],
        switches=row["switches"],
        lines=lines,
    )


def _recipes_of(stack: str, case: tuple[str, str, str]) -> list[ReleaseRecipe]:
    """Return a release's recipes for a model, device and precision; a recipe that names no device is for any."""
    model, hardware, precision = case
    alike = (each for each in release_recipes(stack) if (each.model, each.precision) == (model, precision))
    return [each for each in alike if each.hardware in (hardware, "")]


def recipe_of_case(stack: str, case: ReleaseCase, fp8_recipe: str) -> ReleaseRecipe | None:
    """Return the recipe of a model, device and precision with the nearest number of devices; None without one.

    Preferred are recipes that scale fp8 as `fp8_recipe`, then those that train from scratch.
    """
    alike = _recipes_of(stack, (case.model, case.hardware, case.precision))
    recipes = [recipe for recipe in alike if recipe.trains_adapters == case.adapters]
    scaled = [recipe for recipe in recipes if recipe.switches.get(_RECIPE, fp8_recipe) == fp8_recipe] or recipes
    return min(scaled, key=lambda each: (each.tunes, abs(each.devices - case.devices), each.recipe), default=None)


def usual_profile(  # noqa: PLR0913, PLR0917  what a question says of its stack
    name: str,
    options: Mapping[str, str],
    named: str | None,
    usual: Collection[str],
    case: tuple[str, str, str],
    family: str,
) -> FrameworkProfile:
    """Return the profile of a question: on the `named` stack, else on the framework's first `usual` one.

    Else on the newest release for the family of devices, where it has a recipe of this `case`: model, device and
    precision. Nobody books such devices to run the framework's bare defaults on them.
    """
    stack = stack_for(name, named, *usual)
    if named is None and stack == DEFAULT:
        for newest in suggested(name, set(), {family}):
            if _recipes_of(newest.name, case):
                return replace(framework(name, options, newest.name), stack_assumed=True)
    return framework(name, options, stack)


def usual_fp8_recipe(family: str) -> str:
    """Return TransformerEngine 2.16's default scaling of fp8 (`get_default_fp8_recipe`, quantization.py)."""
    return "mxfp8" if family in _BLOCKS else "delayed"


def with_release(profile: FrameworkProfile, case: ReleaseCase) -> FrameworkProfile:
    """Return a release's profile with the switches it sets for one case; those that the question names stay."""
    if profile.case == case or not release_recipes(profile.stack):
        return profile
    chosen = {name: getattr(profile, name) for name in profile.stated}
    usual = framework(profile.name, stack=profile.stack)
    fp8_recipe = chosen.get(_RECIPE) or usual_fp8_recipe(case.family)
    recipe = recipe_of_case(profile.stack, case, fp8_recipe)
    values, whose = (recipe.switches, recipe.recipe) if recipe else _usual(profile.stack, case, fp8_recipe)
    typed = {name: switch_value(_SWITCHES[name], text, getattr(usual, name)) for name, text in values.items()}
    where = f" ({recipe.source})" if recipe else ""
    marks: dict[str, Any] = {"stated": profile.stated, "stack_assumed": profile.stack_assumed}
    changed = replace(usual, **{**typed, **chosen}, **marks, case=case, release_source=f"{whose}{where}")
    scaled = f", fp8 by {changed.fp8_recipe}" if case.precision == "fp8" else ""
    assumed = " (assumed; --stack default for none)" if profile.stack_assumed else ""
    return replace(changed, release=f"{profile.stack}{assumed}: {whose}{scaled}")


def _usual(stack: str, case: ReleaseCase, fp8_recipe: str) -> tuple[Mapping[str, str], str]:
    """Return the switches of more than half of the nearest recipes, and their description.

    Of fp8 recipes, those that scale as `fp8_recipe` count.
    """
    alike = [recipe for recipe in release_recipes(stack) if recipe.is_moe == case.is_moe]
    alike = [recipe for recipe in alike if case.adapters or not recipe.tunes] or alike
    if case.precision == "fp8":
        alike = [recipe for recipe in alike if recipe.switches.get(_RECIPE, fp8_recipe) == fp8_recipe] or alike
    same = [recipe for recipe in alike if recipe.precision == case.precision]
    here = [recipe for recipe in same if recipe.hardware in (case.hardware, "")]
    where = case.hardware if here else "any device" if same else "any device and precision"
    pool = here or same or alike
    kind = "mixtures of experts" if case.is_moe else "dense models"
    whose = f"no recipe for {case.model} on {case.hardware} in {case.precision}; as most of its {len(pool)} for {kind}"
    return _most(pool), f"{whose}, {where}"


def _most(pool: Collection[ReleaseRecipe]) -> dict[str, str]:
    """Return the switches that more than half of some recipes share."""
    shares = Counter(pair for recipe in pool for pair in recipe.switches.items())
    return {name: text for (name, text), count in shares.items() if 2 * count > len(pool)}
