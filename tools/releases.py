"""What a release of a stack sets for a model, a device and a precision, out of a checkout, into its data files.

    git -C ~/Megatron-Bridge checkout v0.6.0
    python -m tools.releases ~/Megatron-Bridge --release 26.08 --version v0.6.0
    python -m tools.releases ~/Primus --stack primus --release 26.5.1 --version v26.5.1

Recipes are read, not run, by the same readers and tables as every other recipe; Megatron-Bridge's are Python functions
that return a configuration (`simulator.frameworks.nemo.recipes`). `releases/26.08.csv` of its folder holds a row for
each of those whose model and device are shipped, each value with the line that sets it;
`stacks/megatron-bridge@26.08.yaml` what most of those that train from scratch set, which is taken where no recipe is of
the question's model, device and precision.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from simulator.errors import SimulateError
from simulator.frameworks import models, registry
from simulator.frameworks.arguments import Arguments, finished
from simulator.frameworks.nemo.framework import FORM
from simulator.frameworks.nemo.recipes import PythonRecipe, is_python_recipe, python_recipes, read_python
from simulator.frameworks.values import reading_within
from simulator.question.frameworks.profile import switch_value, switches
from simulator.question.origin import Place
from simulator.question.recipe import Recipe
from simulator.question.scenario.layout import FIELDS
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.names import shipped_name
from simulator.question.vocabulary import PRECISIONS
from simulator.recipes.readers.read import read_recipe
from tools.performance_scripts import variants

FOLDER = Path(__file__).resolve().parents[1] / "simulator" / "frameworks"
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


class Source(NamedTuple):
    """Where a stack keeps its recipes."""

    repository: str
    folder: str
    """Folder of `simulator/frameworks`."""
    about: str
    """Of the release `{}`."""
    recipes: tuple[str, ...]
    """Files, as patterns."""
    framework: str = "megatron"
    devices: tuple[tuple[str, str], ...] = (("", ""),)
    """Device by a part of a file's name, the first that is there; an empty one for any."""
    more: Mapping[str, Any] = MappingProxyType({"tuned": False})
    """Further keys of the stack's file."""


BRIDGE = "megatron-bridge"
SOURCES: Mapping[str, Source] = {
    BRIDGE: Source(
        "NVIDIA-NeMo/Megatron-Bridge",
        "megatron_bridge",
        "NVIDIA's performance recipes in the NeMo {} container",
        (
            "src/megatron/bridge/perf_recipes/**/*.py",
            "scripts/performance/configs/**/*_pretrain.py",
            "scripts/performance/configs/**/*_finetune.py",
        ),
        more={"tuned": True, "vendors": ["NVIDIA"], "families": ["blackwell"]},
    ),
    "mindspeed-llm": Source(
        "Ascend/MindSpeed-LLM",
        "mindspeed",
        "pretraining examples of MindSpeed-LLM {}",
        ("examples/mcore/*/pretrain_*.sh",),
        devices=(("_A3", "ascend-910c"), ("", "ascend-910b-64g-8")),
        more={"tuned": False, "vendors": ["Huawei"], "schedules": ["dualpipev"], "release": "mindspeed-v26"},
    ),
    "nemo": Source(
        "NVIDIA/NeMo-Framework-Launcher",
        "nemo",
        "training configurations of NeMo's launcher {}",
        ("launcher_scripts/conf/training/*/*.yaml",),
        more={"tuned": False, "vendors": ["NVIDIA"]},
    ),
    "primus": Source(
        "AMD-AGI/Primus",
        "primus",
        "pretraining examples of Primus {} on Megatron-LM",
        ("examples/megatron/configs/*/*-pretrain.yaml",),
        devices=tuple((f"/{name.upper()}/", name) for name in ("mi300x", "mi325x", "mi355x")),
        more={"tuned": False, "vendors": ["AMD"]},
    ),
    "torchtitan": Source(
        "pytorch/torchtitan",
        "torchtitan",
        "training configurations of torchtitan {}, under its launcher",
        ("torchtitan/models/*/train_configs/*.toml",),
        framework="torch",
        # run_train.sh, the launcher.
        more={"tuned": False, "all": {"expandable_segments": True}},
    ),
}
"""Stacks by name; `all` of `more` is what their launchers set for every recipe."""
_LAYOUT_SHARES = ("recomputed_", "swapped_")
"""Starts of switches that say how many layers of a recipe's own layout do something."""
_SWITCHES = {switch.name: switch for switch in switches()}
_ASIDE = ("_large_scale", "_dev_config", "_vl_")
"""Recipes that stand in for another one, by parts of their names."""
_PRECISION = re.compile(r"-(?:BF16|FP8)\b.*")
_UNREAD = ("not-modelled", "unknown-flag")
"""Rules of what is not read."""


class Row(NamedTuple):
    """One recipe in this project's words."""

    name: str
    place: Place
    run: Recipe
    hardware: str
    devices: int | None
    precision: str

    @property
    def trains_all(self) -> bool:
        """Whether it trains every weight, from scratch."""
        return "_peft_" not in self.name and "_sft_" not in self.name

    @property
    def is_moe(self) -> bool:
        """Whether its model has experts."""
        return load_model(self.run.model or "").is_moe

    def switches(self) -> dict[str, str]:
        """Switches that say something of its model and precision."""
        idle = {"experts": not self.is_moe, "fp8": self.precision == "bf16"}
        said = {name: text for name, text in self.run.options.items() if not name.startswith(_LAYOUT_SHARES)}
        return {name: text for name, text in said.items() if not idle.get(_SWITCHES[name].metadata["of"], False)}

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


def rows(checkout: Path, source: Source) -> Iterator[Row]:
    """The recipes of a checkout whose model and device are shipped."""
    for pattern in source.recipes:
        for file in sorted(checkout.glob(pattern)):
            if source is SOURCES[BRIDGE]:
                yield from python_rows(file)
            else:
                yield from file_rows(file, checkout, source)


def python_rows(file: Path) -> Iterator[Row]:
    """The recipes of a Python file of Megatron-Bridge."""
    text = file.read_text(encoding="utf-8")
    read = python_recipes if is_python_recipe(text) else variants if "config_variant" in text else None
    for recipe in read(file) if read else ():
        if not any(part in recipe.name for part in _ASIDE) and (row := row_of(recipe, file)):
            yield row


def file_rows(file: Path, checkout: Path, source: Source) -> Iterator[Row]:
    """The recipes of a script or a configuration file that are read as a whole."""
    name = f"/{file.relative_to(checkout).as_posix()}"
    hardware = next((device for part, device in source.devices if part in name), None)
    try:
        recipes = read_recipe(file) if hardware is not None else ()
    except SimulateError:
        return
    for run in recipes:
        unread = any(remark.severity == "error" and remark.rule in _UNREAD for remark in run.remarks)
        if not unread and run.model and not run.model_fields and run.layout and run.precision in PRECISIONS:
            count = run.nodes * run.devices_per_node if run.nodes and run.devices_per_node else None
            title = f"{file.parent.name}/{file.stem}"
            named = replace(run, model=_named(file.stem, run.model))
            yield Row(title, Place(str(file), 1), named, hardware or "", count, run.precision or "")


def _named(stem: str, model: str) -> str:
    """The model that a file's name means, where it has the sizes of the one that was read; else that one."""
    other, _ = models.by_name(_PRECISION.sub("", stem.removeprefix("pretrain_")))
    sizes = [
        (each.num_hidden_layers, each.hidden_size, each.intermediate_size)
        for each in map(load_model, (model, other or model))
    ]
    return other if other and sizes[0] == sizes[1] else model


def row_of(recipe: PythonRecipe, file: Path) -> Row | None:
    """The row of a recipe; None for one of a model or device that is not shipped, or of Megatron's FSDP."""
    arguments = Arguments(str(file), registry.table("nemo", FORM))
    run = finished(arguments, read_python(arguments, recipe))
    hardware = shipped_name("hardware", recipe.device)
    sharded = any(key.name == "use_megatron_fsdp" and key.content is True for key in recipe.keys)
    if sharded or run.model is None or hardware is None or run.layout is None or run.precision is None:
        return None
    narrow = any(key.name == "fp4" and key.values and key.values[0].text != "null" for key in recipe.keys)
    precision = "fp4" if narrow else run.precision
    return Row(recipe.name, recipe.place, run, hardware, recipe.devices, precision)


class Places:
    """Files that values were set in, by number, beside those of other releases; a recipe's own file has none."""

    def __init__(self, checkout: Path, table: Path) -> None:
        self.checkout = checkout
        known = csv.DictReader(table.read_text(encoding="utf-8").splitlines()) if table.exists() else ()
        self.numbers = {row["file"]: int(row["number"]) for row in known}

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

    def joined(self, values: Mapping[str, str], run: Recipe, own: str) -> str:
        """`name=value@line`, by blanks."""
        return " ".join(f"{name}={value}{self.text(run.places.get(name), own)}" for name, value in values.items())


def common(found: list[Row]) -> dict[str, Any]:
    """Switches that most recipes that train from scratch set alike."""
    whole = [row.switches() for row in found if row.trains_all]
    shares = Counter(pair for options in whole for pair in options.items())
    most = {name: value for (name, value), count in shares.items() if 2 * count > len(whole)}
    return {name: switch_value(_SWITCHES[name], value, _SWITCHES[name].default) for name, value in sorted(most.items())}


def lines_of(found: list[Row], places: Places) -> Iterator[tuple[object, ...]]:
    """The rows of the table, by its columns."""
    for row in found:
        own = places.path(row.place)
        yield (
            row.name,
            row.run.model,
            "yes" if row.is_moe else "no",
            row.hardware,
            row.devices or "",
            row.precision,
            row.run.global_batch_size or "",
            f"{own}:{row.place.line}",
            places.joined(row.settings(), row.run, own),
            places.joined(row.switches(), row.run, own),
        )


def write(checkout: Path, stack: str, release: str, version: str) -> int:
    """Write both files; the number of recipes."""
    source = SOURCES[stack]
    with reading_within(checkout, {}):
        found = list(rows(checkout, source))
    folder = FOLDER / source.folder
    places = Places(checkout, folder / "releases" / "files.csv")
    lines = list(lines_of(found, places))
    for name in ("releases", "stacks"):
        (folder / name).mkdir(exist_ok=True)
    for name, head, content in (
        (f"{release}.csv", COLUMNS, lines),
        ("files.csv", ("number", "file"), [(number, path) for path, number in places.numbers.items()]),
    ):
        if content:
            with (folder / "releases" / name).open("w", newline="", encoding="utf-8") as stream:
                csv.writer(stream, lineterminator="\n").writerows((head, *content))
    more = dict(source.more)
    about = f"{source.about.format(release)}, by model, device and precision"
    content = {
        "framework": source.framework,
        "about": about,
        "source": f"{source.repository} {version}: recipes whose lines stand in releases/{release}.csv",
        "order": 11 if stack == BRIDGE else 70,
        "switches": common(found) | more.pop("all", {}),
        **more,
        "table": f"{release}.csv",
    }
    text = yaml.safe_dump(content, sort_keys=False, width=200)
    (folder / "stacks" / f"{stack}@{release}.yaml").write_text(text, encoding="utf-8")
    return len(found)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--stack", choices=SOURCES, default=BRIDGE)
    parser.add_argument("--release", required=True, help="its name, such as 26.08 of a container")
    parser.add_argument("--version", required=True, help="the tag of the checkout, such as v0.6.0")
    options = parser.parse_args()
    count = write(options.checkout, options.stack, options.release, options.version)
    sys.stderr.write(f"{count} recipes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
