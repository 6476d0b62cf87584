"""Write the table of Megatron-Bridge's library recipes, which `run_recipe.py --recipe NAME` starts.

    python -m tools.library_recipes CHECKOUT

CHECKOUT is one of NVIDIA-NeMo/Megatron-Bridge, read without running it. A row has every name that the checkout gives
a recipe, its model on Hugging Face and the keys that a reader takes, as the command line spells them.
"""

import csv
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from simulator.frameworks import registry
from simulator.frameworks.flags import is_harmless, is_irrelevant
from simulator.frameworks.nemo.framework import FORM
from simulator.frameworks.nemo.recipes import PythonRecipe, python_recipes

TABLE = Path(__file__).parents[1] / "simulator/frameworks/megatron_bridge/recipes/067f987.csv"
RECIPES = "src/megatron/bridge/recipes"
_ALIAS = re.compile(r"(\w+_config) as (\w+_config)")
_BUILDER = "_pipeline_model_parallel_layout_builder"
"""Field that makes a cut for another size of the pipeline."""


def words(recipe: PythonRecipe) -> Iterator[str]:
    """Yield `section.key=value` for what a reader takes or must refuse."""
    table = registry.table("nemo", FORM)
    for key in recipe.keys:
        flag = table.get(key.dotted) or table.get(key.name)
        dropped = is_harmless(key.name) or is_irrelevant(key.name) if flag is None else flag.effect == "no_effect"
        if key.name == _BUILDER or (dropped and key.path[0] != "peft" and key.path != ("mixed_precision",)):
            continue
        text = ",".join(value.text for value in key.values)
        if flag is not None and text in ("null", "false") and flag.default in ("", "None", "False"):
            continue
        yield f"{key.dotted}={f'[{text}]' if isinstance(key.content, list | tuple) else text}"


def rows(checkout: Path) -> Iterator[dict[str, str]]:
    """Yield a row a recipe."""
    files = sorted(file for file in (checkout / RECIPES).rglob("*.py") if not file.name.startswith("_"))
    names = defaultdict(set)
    for file in files:
        for function, alias in _ALIAS.findall(file.read_text(encoding="utf-8")):
            names[function].add(alias)
    for file in files:
        for recipe in python_recipes(file):
            if recipe.hub:
                called = " ".join([recipe.name, *sorted(names[recipe.name])])
                yield {"names": called, "model": recipe.hub, "keys": " ".join(words(recipe))}


def main() -> None:
    """Write the table."""
    with TABLE.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ("names", "model", "keys"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
