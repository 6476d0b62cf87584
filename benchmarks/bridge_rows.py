"""NVIDIA's published rows of Megatron-Bridge against predictions, with the release and the configuration said.

    python -m benchmarks.bridge_rows [--all] [--without-model]

Reads `measured/public2/bridge.csv` of the folder that SIMULATE_SHARED names: pretraining rows without FSDP of three
models. A row states sizes; what else the run did is its container's recipe of its model, device and precision. Rows
whose sizes no recipe of their container has are asked as printed and with the recipe's, and stand in no mean. With
`--all` rows of every model and task count, those of `public3` too, as printed. With `--without-model` speed is
predicted by a fit to all measured rows but those of the row's model; fits take minutes.
"""

import csv
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.accuracy.hierarchy import Hierarchy, design, hierarchical, learned
from benchmarks.accuracy.holdouts import RELEARNED
from benchmarks.accuracy.rows import samples
from simulator.answers.cases import case_of, priceable
from simulator.answers.ranking import estimate_of
from simulator.api import scenario_of
from simulator.cost.derived import pricing_of
from simulator.cost.pricing.price import price
from simulator.question.coefficients import priors, replaced
from simulator.question.frameworks.stacks import ReleaseRecipe, release_recipes
from simulator.question.question import question_of
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_model

SHARED: Final = Path(os.environ.get("SIMULATE_SHARED") or "absent")
FILES: Final = tuple(SHARED / "measured" / folder / "bridge.csv" for folder in ("public2", "public3"))
MODELS: Final = {"DeepSeekV3": "deepseek-v3", "Qwen3_30B_a3B": "qwen3-30b-a3b", "LLAMA3_70B": "llama3-70b"}
MORE_MODELS: Final = {
    "GPT OSS 120B": "gpt-oss-120b",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
    "Nemotron_3_Super": str(SHARED / "configs" / "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8"),
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
}
NOT_SHIPPED: Final = {"cuda_graphs": "attention_router", "overlap_expert_exchange": "false"}
"""Switches of Nemotron 3 Super, whose recipes are not shipped (perf_recipes/nemotronh of the same commit)."""
LORA_RANK: Final = 16
"""Of adapters of 70B models (Megatron-Bridge 067f987, recipes/llama)."""
PRECISIONS: Final = {
    "MXFP8": ("fp8", "mxfp8"),
    "FP8": ("fp8", "tensorwise"),
    "NVFP4": ("fp4", ""),
    "BF16": ("bf16", ""),
}
SIZES: Final = {"tp": "tp", "pp": "pp", "cp": "cp", "vp": "vpp", "ep": "ep", "mbs": "micro_batch_size"}
Change = Callable[[Scenario], Scenario]
"""Another scenario to price in the place of one."""


class Row(NamedTuple):
    """A published row as a question."""

    label: str
    question: Mapping[str, Any]
    sizes: Mapping[str, int]
    tokens_per_second_per_device: float
    recipe: ReleaseRecipe | None
    """The container's recipe of the row's model, device, precision and scaling of fp8."""

    @property
    def is_recipe(self) -> bool:
        """Whether the printed sizes are the recipe's; of none, nothing contradicts them."""
        return self.recipe is None or recipe_sizes(self.recipe) == self.sizes

    @property
    def groups(self) -> Iterator[str]:
        """What the row counts for."""
        model, precision = self.question["model"], self.question["precision"]
        yield f"{model} {precision}"
        yield precision
        if load_model(model).is_moe and "h100" not in self.question["hardware"]:
            yield "experts on Blackwell"
        if "lora_rank" in self.question or "SFT" in self.label:
            yield "tuning"
        if "zero_stage" in self.question:
            yield "FSDP"
        yield "all"


class Answer(NamedTuple):
    """A prediction of a row."""

    error: float
    """Predicted tokens per second over the published ones, less 1."""
    verdict: str


def recipe_sizes(recipe: ReleaseRecipe) -> dict[str, int]:
    """Sizes of a recipe by the layout's short names, those of 1 included."""
    return {name: int(recipe.layout.get(name, 1)) for name in SIZES.values()}


def published_rows(*, every: bool = False) -> Iterator[Row]:
    """Rows that are asked: those of three models without FSDP, or every one."""
    for file in FILES if every else FILES[:1]:
        with file.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                usual = row["model"] in MODELS and "Pre-" in row["task"] and row["fsdp"] in ("", "0")
                if every or usual:
                    yield _row(row)


def _row(row: Mapping[str, str]) -> Row:
    precision, scaling = PRECISIONS[row["precision"]]
    release = row["container"].split()[0]
    question: dict[str, Any] = {
        "model": (MODELS | MORE_MODELS)[row["model"]],
        "hardware": row["system"].removeprefix("DGX-").lower(),
        "devices": _count(row["gpus"]),
        "precision": precision,
        "seq_length": _count(row["seq"]),
        "global_batch_size": _count(row["gbs"]),
        "stack": f"megatron-bridge@{release}",
        "options": {"fp8_recipe": scaling} if scaling else {},
    }
    if row["model"] == "Nemotron_3_Super":
        question["options"] |= NOT_SHIPPED
    if "LoRA" in row["task"]:
        question["lora_rank"] = LORA_RANK
    if row["fsdp"] not in ("", "0"):
        question["zero_stage"] = 3
    sizes = {ours: _count(row[theirs]) for theirs, ours in SIZES.items()}
    task = row["task"].split()[0]
    words = (row["model"], task, row["system"], row["precision"], release, f"MBS {row['mbs']}")
    tokens = float(row["tok_s_gpu"].replace(",", ""))
    return Row(" ".join(words), question, sizes, tokens, _recipe(question))


def _count(text: str) -> int:
    return int(text.replace(",", "")) if text.strip().replace(",", "").isdigit() else 1


def _recipe(question: Mapping[str, Any]) -> ReleaseRecipe | None:
    release = scenario_of(**{key: value for key, value in question.items() if key != "zero_stage"}).framework.release
    return next((each for each in release_recipes(question["stack"]) if each.recipe in release), None)


def _cut(recipe: ReleaseRecipe | None, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Recompute and cut of a recipe, where they are of some sizes."""
    layout = recipe.layout if recipe else {}
    cut: dict[str, Any] = {"recompute": layout["recompute"]} if "recompute" in layout else {}
    if "recompute_modules" in layout:
        cut["recompute_modules"] = tuple(layout["recompute_modules"].split(","))
    for name, parts in (("stage_layers", sizes["pp"]), ("chunk_layers", sizes["pp"] * sizes["vpp"])):
        layers = tuple(int(count) for count in layout.get(name, "").split(",") if count)
        cut |= {name: layers} if len(layers) == parts else {}
    return cut


def answer(row: Row, sizes: Mapping[str, int], change: Change) -> Answer:
    """A row with some sizes, predicted."""
    case = priceable(case_of(question_of({**row.question, **sizes, **_cut(row.recipe, sizes)})))
    scenario, layout, verdict = case.scenario, case.layout, estimate_of(case).verdict
    step = float(price(pricing_of(change(scenario), layout)).step.total[0])
    tokens = scenario.tokens_per_step / step / scenario.devices
    return Answer(tokens / row.tokens_per_second_per_device - 1.0, verdict)


@cache
def fitted() -> Hierarchy:
    """The fit of speed to all measured rows."""
    return hierarchical(design("time", samples()))


@cache
def without_model(model: str) -> Hierarchy:
    """The fit of speed without the rows of a model, whatever its number of layers."""
    rows = np.array([sample.scenario.model.name != model for sample in fitted().design.samples])
    return learned(fitted().restricted(rows), RELEARNED)


def unseen_model(scenario: Scenario) -> Scenario:
    """The scenario with the coefficients of a fit without its model."""
    state = without_model(scenario.model.name)
    bounds = [priors("time")[name] for name in state.design.names]
    values = np.exp(state.point(state.unseen(scenario.hardware.family)))
    values = np.clip(values, [max(bound.low, 1e-12) for bound in bounds], [bound.high for bound in bounds])
    return replace(scenario, coefficients=replaced(scenario.coefficients, "time", state.design.names, values))


def lines(change: Change, *, every: bool = False) -> Iterator[str]:
    """What is printed: rows, then mean error and bias of each model and precision."""
    errors: dict[str, list[float]] = defaultdict(list)
    for row in published_rows(every=every):
        found = answer(row, row.sizes, change)
        text = f"{row.label}: {found.error:+.1%}, {found.verdict}"
        if every or row.is_recipe or row.recipe is None:
            yield text
            for group in row.groups:
                errors[group].append(found.error)
        else:
            sizes = recipe_sizes(row.recipe)
            other = answer(row, sizes, change)
            said = ", ".join(f"{name} {size}" for name, size in sizes.items() if size != row.sizes[name])
            yield f"{text}; not counted, as {row.recipe.recipe} has {said}: {other.error:+.1%}, {other.verdict}"
    for group, found_errors in errors.items():
        mean, bias = statistics.mean(map(abs, found_errors)), statistics.mean(found_errors)
        yield f"{group}: {len(found_errors)} rows, mean error {mean:.1%}, bias {bias:+.1%}"


if __name__ == "__main__":
    flags = sys.argv[1:]
    table = lines(unseen_model if "--without-model" in flags else lambda scenario: scenario, every="--all" in flags)
    sys.stdout.writelines(f"{line}\n" for line in table)
