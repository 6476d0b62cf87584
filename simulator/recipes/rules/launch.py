"""A launch as a framework's rules see it: question, flags, marks of its code, by the names that rules may use.

States no rule: each framework's are in its `rules.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.recipes.recipe import Recipe, RecipeFlag

Mark = Literal["llama3.1-example", "megatron-240718", "megatron-before-0.12"]
"""A sign in a recipe's text of the code that it starts."""


@dataclass(frozen=True, kw_only=True)
class LaunchFacts:
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

        `layout.X`, `model.X`, `workload.X`, `option.X` (a switch), `asked.X` (whether the recipe itself turns a switch
        on), `flag.X` (its text, None where it is absent), `mark.X`, `replaced.X`, and properties as `recipe.X`.
        """
        kind, _, name = subject.partition(".")
        match kind:
            case "flag":
                flag = self.flag(name)
                return None if flag is None else flag.text
            case "asked":
                asked = self.recipe.options.get(name, "") if self.recipe else ""
                return asked.lower() in ("true", "1", "on", "yes")
            case "mark":
                return name in self.marks
            case "replaced":
                return name in self.replaced
            case "recipe":
                return getattr(self, name)
            case _:
                owners = {"layout": self.layout, "model": self.scenario.model, "option": self.scenario.framework}
                return getattr(owners.get(kind, self.scenario), name)

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
