"""A launch as the rules of a framework see it, and what such a rule is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.recipes.recipe import GivenFlag, Recipe

MEGATRON = "Megatron-core 0.5 and later"
"""Where most rules of Megatron were read."""
MEGATRON_ARGUMENTS = "Megatron-LM core_r0.12.0, megatron/training/arguments.py"
MEGATRON_CONFIG = "Megatron-LM core_r0.12.0, megatron/core/transformer/transformer_config.py"
"""Files that most of them stand in; a rule adds the line."""
Mark = Literal["llama3.1-example", "megatron-240718", "megatron-before-0.12"]
"""What a recipe's text shows of the code it starts."""


@dataclass(frozen=True, kw_only=True)
class LaunchFacts:
    """What a rule looks at."""

    scenario: Scenario
    layout: Layout
    recipe: Recipe | None = None
    marks: frozenset[Mark] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Settings that the user put over the recipe's, by their names in `Layout` and `Scenario`."""

    def flag(self, *names: str) -> GivenFlag | None:
        """A flag of the recipe, by the first of these names that it gives."""
        plain = (name.replace("-", "_") for name in names)
        return next((self._flags[name] for name in plain if name in self._flags), None)

    @cached_property
    def _flags(self) -> Mapping[str, GivenFlag]:
        return {flag.name: flag for flag in self.recipe.flags} if self.recipe else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkRule:
    """One refusal of one framework."""

    id: str
    framework: str
    versions: str
    """Where it holds, as far as it was read or met."""
    source: str
    """Repository, version, file and line of the check, or the measured rows that met it."""
    about: str
    says: str
    """What the user would meet: the framework's own message, with `...` where it names numbers."""
    fix: Callable[[LaunchFacts], str]
    layout_rule: str = ""
    """Id of the layout rule that decides; empty where `broken` does."""
    broken: Callable[[LaunchFacts], bool] = lambda _: False
    blame: tuple[str, ...] = ()
    """Settings at fault, by option name, or flags with `--`; the first that the recipe gives a line is shown."""
    flag: Callable[[LaunchFacts], GivenFlag | None] = lambda _: None
    """The flag at fault, where only the launch tells which."""
    remark: str = ""
    """Id of what the recipe's reader remarks, where it decides."""
    breach: Callable[[LaunchFacts], str] = lambda _: ""
    """The numbers of a launch that break it; empty where the flag at fault says enough beside `about`."""


megatron_rule = partial(FrameworkRule, framework="megatron", versions=MEGATRON)
"""A rule of Megatron's, of the versions that most were read in unless others are named."""


def says(text: str) -> Callable[[LaunchFacts], str]:
    """A fix that is the same for every launch."""
    return lambda _: text
