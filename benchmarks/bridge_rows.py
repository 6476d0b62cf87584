"""NVIDIA's published rows of Megatron-Bridge against predictions, with the release and the configuration said.

    python -m benchmarks.bridge_rows

Reads `measured/public2/bridge.csv` of the folder that SIMULATE_SHARED names: pretraining rows without FSDP whose model
is shipped. A row states sizes; what else the run did is the release's recipe of its model, device and precision.
"""

import csv
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import simulator
from simulator.api import scenario_of
from simulator.question.frameworks.releases import release_recipes

FILE: Final = Path(os.environ.get("SIMULATE_SHARED") or "absent") / "measured" / "public2" / "bridge.csv"
MODELS: Final = {"DeepSeekV3": "deepseek-v3", "Qwen3_30B_a3B": "qwen3-30b-a3b", "LLAMA3_70B": "llama3-70b"}
PRECISIONS: Final = {
    "MXFP8": ("fp8", "mxfp8"),
    "FP8": ("fp8", "tensorwise"),
    "NVFP4": ("fp4", ""),
    "BF16": ("bf16", ""),
}
SIZES: Final = {"tp": "tp", "pp": "pp", "cp": "cp", "vp": "vpp", "ep": "ep", "mbs": "micro_batch_size"}


class Answer(NamedTuple):
    """A row with its prediction."""

    label: str
    model: str
    precision: str
    family: str
    error: float
    """Predicted tokens per second over the published ones, less 1."""
    verdict: str


def _count(text: str) -> int:
    return int(text.replace(",", "")) if text.strip().replace(",", "").isdigit() else 1


def _recipe_layout(question: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Recompute and cut of the release's recipe, where they are of the row's sizes."""
    release = scenario_of(**question).framework.release
    recipe = next((each for each in release_recipes(question["stack"]) if each.recipe in release), None)
    layout = recipe.layout if recipe else {}
    found: dict[str, Any] = {"recompute": layout["recompute"]} if "recompute" in layout else {}
    if "recompute_modules" in layout:
        found["recompute_modules"] = tuple(layout["recompute_modules"].split(","))
    for name, parts in (("stage_layers", sizes["pp"]), ("chunk_layers", sizes["pp"] * sizes["vpp"])):
        cut = tuple(int(count) for count in layout.get(name, "").split(",") if count)
        found |= {name: cut} if len(cut) == parts else {}
    return found


def answers() -> Iterator[Answer]:
    """Every row with its prediction."""
    with FILE.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["model"] in MODELS and "Pre-" in row["task"]]
    for row in rows:
        if row["fsdp"] not in ("", "0"):
            continue
        precision, scaling = PRECISIONS[row["precision"]]
        hardware = row["system"].removeprefix("DGX-").lower()
        release = ".".join(row["container"].split()[0].split(".")[:3])
        # Patches of a container have their release's recipes.
        release = release if release == "26.02.01" else {"26.02": "26.02.01"}.get(release[:5], release[:5])
        question: dict[str, Any] = {
            "model": MODELS[row["model"]],
            "hardware": hardware,
            "devices": _count(row["gpus"]),
            "precision": precision,
            "seq_length": _count(row["seq"]),
            "global_batch_size": _count(row["gbs"]),
            "stack": f"megatron-bridge@{release}",
            "options": {"fp8_recipe": scaling} if scaling else {},
        }
        sizes = {ours: _count(row[theirs]) for theirs, ours in SIZES.items()}
        estimate = simulator.estimate(**question, **sizes, **_recipe_layout(question, sizes))
        tokens = estimate.throughput.tokens_per_second_per_device
        words = (row["model"], row["system"], row["precision"], row["container"].split()[0], f"MBS {row['mbs']}")
        family = "hopper" if "h100" in hardware else "blackwell"
        error = tokens / float(row["tok_s_gpu"].replace(",", "")) - 1.0
        yield Answer(" ".join(words), question["model"], precision, family, error, estimate.verdict)


def lines() -> Iterator[str]:
    """What is printed: rows, then mean error and bias of each model and precision."""
    groups: dict[str, list[float]] = defaultdict(list)
    for answer in answers():
        yield f"{answer.label}: {answer.error:+.1%}, {answer.verdict}"
        experts = simulator.load_model(answer.model).is_moe and answer.family == "blackwell"
        for group in (
            f"{answer.model} {answer.precision}",
            answer.precision,
            *(["experts on Blackwell"] * experts),
            "all",
        ):
            groups[group].append(answer.error)
    for group, errors in groups.items():
        mean, bias = statistics.mean(map(abs, errors)), statistics.mean(errors)
        yield f"{group}: {len(errors)} rows, mean error {mean:.1%}, bias {bias:+.1%}"


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
