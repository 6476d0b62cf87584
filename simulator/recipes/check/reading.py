"""Reading of recipe files with the user's settings, repeated as often as a question needs. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType

from simulator.errors import SimulateError
from simulator.evidence.cluster import cluster
from simulator.question.question import Question
from simulator.question.recipe import Recipe
from simulator.recipes.check.machines import Reread, counts, with_counts

NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How recipe files are read."""

    options: Question
    """The user's options, which replace what files say."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Values for what files leave to the run (`--set NAME=VALUE`)."""
    environment: Mapping[str, str] | None = None
    """Variables that scripts may see; None for none."""
    root: Path | None = None
    """Folder that reading must stay in; None for the repository of each file."""

    def recipes(
        self, file: str, more: Mapping[str, str] = NOTHING, machines: Question | None = None
    ) -> tuple[Recipe, ...]:
        """Return the launches of a file; commands that count devices print those of `machines`, by default the user's.

        The settings override `more`.
        """
        from simulator.recipes.readers.read import read_recipe  # noqa: PLC0415  brings a parser

        machines = machines or self.options
        recipes = read_recipe(file, {**more, **self.settings}, self.environment, self.root)
        spec = cluster(machines.value("hardware"), None, None, machines.stated("calibration")).hardware
        devices = min(machines.stated("devices") or spec.devices_per_node, spec.devices_per_node)
        values = counts(recipes, devices, machines.stated("nodes") or 1)
        if not values:
            return recipes
        known = {**more, **self.settings, **values}
        return with_counts(read_recipe(file, known, self.environment, self.root), values)

    def launches(self, file: str) -> Iterator[tuple[Recipe, Reread]]:
        """Yield each launch of a file with a function that reads it again. Raises as a reader does."""
        recipes = self.recipes(file)
        for number, recipe in enumerate(recipes):
            yield recipe, partial(self._again, file, number, len(recipes))

    def _again(self, file: str, number: int, count: int, more: Mapping[str, str], machines: Question) -> Recipe | None:
        """Return one launch of a file read with other values; None where the file then has more or fewer launches."""
        with suppress(SimulateError):
            recipes = self.recipes(file, more, machines)
            return recipes[number] if len(recipes) == count else None
        return None
