"""What a release of Megatron-Bridge sets for a model, a device and a precision, out of a checkout, into its data files.

    git -C ~/Megatron-Bridge checkout v0.6.0
    python -m tools.releases ~/Megatron-Bridge --release 26.08 --version v0.6.0

Performance recipes are Python functions that return a configuration; they are read, not run (`simulator.frameworks.nemo
.recipes`), by the same tables as every other recipe. `releases/26.08.csv` holds a row for each of those whose model and
device are shipped, each value with the line that sets it; `stacks/megatron-bridge@26.08.yaml` what most of those that
train from scratch set, which is taken where no recipe is of the question's model, device and precision.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from simulator.frameworks import registry
from simulator.frameworks.arguments import Arguments
from simulator.frameworks.home import staying
from simulator.frameworks.nemo.framework import FORM
from simulator.frameworks.nemo.recipes import PythonRecipe, is_python_recipe, python_recipes, read_python, variants
from simulator.frameworks.remarks import Place
from simulator.frameworks.run import AskedRun, finished
from simulator.question.frameworks.profile import switches
from simulator.question.scenario.layout import FIELDS
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.names import shipped_name

FOLDER = Path(__file__).resolve().parents[1] / "simulator" / "frameworks" / "megatron_bridge"
COLUMNS = (
    "recipe",
    "model",
    "experts",
    "hardware",
    "devices",
    "precision",
    "global_batch_size",
    "file",
    "layout",
    "switches",
)
RECIPES = (
    "src/megatron/bridge/perf_recipes/**/*.py",
    "scripts/performance/configs/**/*_pretrain.py",
    "scripts/performance/configs/**/*_finetune.py",
)
_OF = {switch.name: switch.metadata["of"] for switch in switches()}
_ASIDE = ("_large_scale", "_dev_config")
"""Recipes that stand in for another one, by parts of their names."""


class Row(NamedTuple):
    """One recipe in this project's words."""

    recipe: PythonRecipe
    run: AskedRun
    hardware: str
    precision: str

    @property
    def trains_all(self) -> bool:
        """Whether it trains every weight, from scratch."""
        return "_pretrain_" in self.recipe.name

    @property
    def is_moe(self) -> bool:
        """Whether its model has experts."""
        return load_model(self.run.model or "").is_moe

    def switches(self) -> dict[str, str]:
        """Switches that say something of its model and precision."""
        idle = {"experts": not self.is_moe, "fp8": self.precision == "bf16"}
        return {name: text for name, text in self.run.options.items() if not idle.get(_OF[name], False)}

    def settings(self) -> dict[str, str]:
        """Fields of the layout that are not the usual ones, by their short names."""
        aside = "stage_layers" if self.run.layout and self.run.layout.chunk_layers else ""
        fields = (field for field in FIELDS if field.key not in ("dp", aside))
        values = ((field, getattr(self.run.layout, field.name)) for field in fields)
        return {field.key: text_of(value) for field, value in values if value != field.default}


def text_of(value: Any) -> str:
    """A value without blanks."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def rows(checkout: Path) -> Iterator[Row]:
    """The recipes of a checkout whose model and device are shipped."""
    for pattern in RECIPES:
        for file in sorted(checkout.glob(pattern)):
            text = file.read_text(encoding="utf-8")
            read = python_recipes if is_python_recipe(text) else variants if "config_variant" in text else None
            for recipe in read(file) if read else ():
                if not any(part in recipe.name for part in _ASIDE) and (row := row_of(recipe, file)):
                    yield row


def row_of(recipe: PythonRecipe, file: Path) -> Row | None:
    """The row of a recipe; None for one of a model or device that is not shipped, or of Megatron's FSDP."""
    arguments = Arguments(str(file), registry.table("nemo", FORM))
    run = finished(arguments, read_python(arguments, recipe))
    hardware = shipped_name("hardware", recipe.device)
    sharded = any(key.name == "use_megatron_fsdp" and key.content is True for key in recipe.keys)
    if sharded or run.model is None or hardware is None or run.layout is None or run.precision is None:
        return None
    narrow = any(key.name == "fp4" and key.values and key.values[0].text != "null" for key in recipe.keys)
    return Row(recipe, run, hardware, "fp4" if narrow else run.precision)


class Places:
    """Files that values were set in, by number; those of a recipe's own file have none."""

    def __init__(self, checkout: Path) -> None:
        self.checkout = checkout
        self.numbers: dict[str, int] = {}

    def path(self, place: Place) -> str:
        """The file within the checkout."""
        return Path(place.file).resolve().relative_to(self.checkout.resolve()).as_posix()

    def text(self, place: Place | None, own: str) -> str:
        """`@line`, or `@number:line` of another file; nothing of a value that no line sets."""
        if place is None:
            return ""
        path = self.path(place)
        if path == own:
            return f"@{place.line}"
        return f"@{self.numbers.setdefault(path, len(self.numbers) + 1)}:{place.line}"

    def joined(self, values: Mapping[str, str], run: AskedRun, own: str) -> str:
        """`name=value@line`, by blanks."""
        return " ".join(f"{name}={value}{self.text(run.places.get(name), own)}" for name, value in values.items())


def common(found: list[Row]) -> dict[str, Any]:
    """Switches that most recipes that train from scratch set alike."""
    whole = [row.switches() for row in found if row.trains_all]
    shares = Counter(pair for options in whole for pair in options.items())
    most = {name: value for (name, value), count in shares.items() if 2 * count > len(whole)}
    return {name: {"true": True, "false": False}.get(value, value) for name, value in sorted(most.items())}


def write(checkout: Path, release: str, version: str) -> int:
    """Write both files; the number of recipes."""
    with staying(checkout, {}):
        found = list(rows(checkout))
    places = Places(checkout)
    lines = []
    for row in found:
        own = places.path(row.recipe.place)
        lines.append(
            (
                row.recipe.name,
                row.run.model,
                "yes" if row.is_moe else "no",
                row.hardware,
                row.recipe.devices or "",
                row.precision,
                row.run.global_batch_size or "",
                f"{own}:{row.recipe.place.line}",
                places.joined(row.settings(), row.run, own),
                places.joined(row.switches(), row.run, own),
            )
        )
    for name, head, content in (
        (f"{release}.csv", COLUMNS, lines),
        (f"{release}.files.csv", ("number", "file"), [(number, path) for path, number in places.numbers.items()]),
    ):
        with (FOLDER / "releases" / name).open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, lineterminator="\n").writerows((head, *content))
    where = f"NVIDIA-NeMo/Megatron-Bridge {version}"
    stack = {
        "framework": "megatron",
        "about": f"NVIDIA's performance recipes in the NeMo {release} container, by model, device and precision",
        "source": f"{where}: performance recipes, whose lines stand in releases/{release}.csv",
        "order": 11,
        "tuned": True,
        "vendors": ["NVIDIA"],
        "families": ["blackwell"],
        "table": f"{release}.csv",
        "switches": common(found),
    }
    text = yaml.safe_dump(stack, sort_keys=False, width=200)
    (FOLDER / "stacks" / f"megatron-bridge@{release}.yaml").write_text(text, encoding="utf-8")
    return len(lines)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--release", required=True, help="the container, such as 26.08")
    parser.add_argument("--version", required=True, help="the tag of the checkout, such as v0.6.0")
    options = parser.parse_args()
    count = write(options.checkout, options.release, options.version)
    sys.stderr.write(f"{count} recipes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
