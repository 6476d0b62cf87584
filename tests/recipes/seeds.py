"""The launch scripts of the user's documents, cut out where the documents are at hand."""

import os
import re
import textwrap
from pathlib import Path

import pytest

from simulator.question.recipe import Recipe
from simulator.recipes.readers.read import read_recipe

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"
FOLDER = Path(os.environ.get("SIMULATE_SHARED") or ROOT.parent / "shared") / "seeds"
_BLOCK = re.compile(r"^[ ]*```[^\n]*\n(.*?)^[ ]*```", re.MULTILINE | re.DOTALL)
_STARTS = ("torchrun $", "paddle.distributed.launch")


def scripts(number: str) -> list[str]:
    """Scripts of one document that start training, in order; skips the test where the document is not at hand."""
    found = sorted(FOLDER.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip(f"needs the document {number} in {FOLDER.name}/ of the shared folder (SIMULATE_SHARED)")
    text = found[0].read_text(encoding="utf-8")
    blocks = (textwrap.dedent(block) for block in _BLOCK.findall(text))
    return [block for block in blocks if any(start in block for start in _STARTS)]


def read_script_of(number: str, which: int, folder: Path, **settings: str) -> Recipe:
    """The only recipe of a document's script, unmodified."""
    file = folder / f"{number}-{which}.sh"
    file.write_text(scripts(number)[which], encoding="utf-8")
    (recipe,) = read_recipe(file, {name.removeprefix("p"): value for name, value in settings.items()})
    return recipe


def rules(recipe: Recipe) -> set[str]:
    return {remark.rule for remark in recipe.remarks}


def about(recipe: Recipe, rule: str) -> list[str]:
    return [remark.message for remark in recipe.remarks if remark.rule == rule]
