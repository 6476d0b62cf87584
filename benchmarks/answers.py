"""Answers of one checkout to a fixed list of questions, as JSON lines: `python benchmarks/answers.py TABLES`.

`benchmarks.predictions` runs this file once per checkout, with that checkout on the path. It asks through `simulator`'s
public names only, and imports nothing else of either checkout, so that the insides of the two may differ in any way.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import simulator

Question = dict[str, Any]

DENSE_8B = {"model": "llama3.1-8b", "nodes": 2}
DENSE_70B = {"model": "llama3.1-70b", "nodes": 8}
MOE = {"model": "mixtral-8x7b-v0.1", "hardware": "h100-sxm-80g", "nodes": 4, "global_batch_size": 256}
MLA = {"model": "deepseek-v3", "hardware": "h800-sxm-80g", "nodes": 32}

RANKINGS: dict[str, tuple[Question, Question]] = {
    "dense 8B": (DENSE_8B, {}),
    "dense 8B in bf16 on one device, nothing fits": ({"model": "llama3.1-8b", "devices": 1}, {}),
    "dense 70B": (DENSE_70B, {}),
    "dense 405B": ({"model": "llama3.1-405b", "hardware": "h100-sxm-80g", "nodes": 64}, {"tensor_parallel": (8,)}),
    "MoE mixtral": (MOE, {}),
    "MoE qwen3-235b": ({"model": "qwen3-235b-a22b", "hardware": "h100-sxm-80g", "nodes": 16}, {}),
    "MoE, experts unevenly loaded": (MOE | {"options": {"expert_imbalance": "2"}}, {}),
    "MLA with prediction layers": (MLA | {"options": {"mtp": "true"}}, {"micro_batch_size": (1,)}),
    "MLA without prediction layers, fp8": (MLA | {"precision": "fp8"}, {"micro_batch_size": (1,)}),
    "LoRA dense": (DENSE_70B | {"lora_rank": 16}, {}),
    "LoRA MoE": (MOE | {"lora_rank": 8}, {}),
    "mixed cluster": (
        {"model": "llama3.1-8b", "hardware": "h800-sxm-80g:1,bi150-64g:1x8", "global_batch_size": 128},
        {},
    ),
    "paddle": (DENSE_70B | {"framework": "paddle"}, {}),
    "paddle MoE": (MOE | {"framework": "paddle"}, {}),
    "paddle, prediction layers and MLA": (MLA | {"framework": "paddle", "options": {"mtp": "true"}}, {}),
    "torch": (DENSE_70B | {"framework": "torch"}, {}),
    "torch MoE": (MOE | {"framework": "torch"}, {}),
    "torch fp32": (DENSE_8B | {"framework": "torch", "precision": "fp32"}, {}),
    "torch LoRA": (DENSE_8B | {"framework": "torch", "lora_rank": 16}, {}),
    "fp8": (DENSE_70B | {"hardware": "h100-sxm-80g", "precision": "fp8"}, {}),
    "fp32": (DENSE_8B | {"precision": "fp32"}, {}),
    "offload": (DENSE_70B, {"offload": ("optimizer", "optimizer_tensorwise", "activations")}),
    "uneven cut": (DENSE_70B, {"stage_layers": (19, 21, 21, 19)}),
    "uneven cut, MLA": (MLA, {"stage_layers": (7, 8, 8, 8, 8, 8, 8, 6)}),
    "recompute selective": (DENSE_8B, {"recompute": ("selective",)}),
    "recompute attention": (DENSE_70B, {"recompute": ("attention",)}),
    "recompute attention, MLA": (MLA, {"recompute": ("attention",), "micro_batch_size": (1,)}),
    "recompute full, units and leading layers": (
        DENSE_70B,
        {"recompute": ("full",), "recompute_method": ("uniform", "block"), "recompute_layers": (1, 2, 3, 5)},
    ),
    "recompute full, a list of layers": (
        DENSE_8B,
        {"recompute": ("full",), "recompute_layer_list": (0, 1, 2, 7, 30, 31)},
    ),
    "ZeRO 0 to 3": (DENSE_70B | {"framework": "torch"}, {"zero_stage": (0, 1, 2, 3)}),
    "ZeRO 0 to 3, paddle": (
        {"model": "llama-2-13b", "hardware": "a100-sxm-80g", "framework": "paddle"},
        {"zero_stage": (0, 1, 2, 3)},
    ),
    "no sequence parallelism": (DENSE_70B, {"sequence_parallel": (False,), "tensor_parallel": (2, 4, 8)}),
    "unfused attention": (DENSE_8B | {"options": {"flash_attention": "false"}}, {"micro_batch_size": (1, 2)}),
    "context parallelism, all-to-all": (
        DENSE_8B | {"seq_length": 65536, "global_batch_size": 64, "options": {"cp_communication": "all_to_all"}},
        {"context_parallel": (2, 4)},
    ),
    "context parallelism, ring": (
        DENSE_8B | {"seq_length": 65536, "global_batch_size": 64},
        {"context_parallel": (2, 4)},
    ),
}
"""Arguments of `rank`, and those of `Space`, by name of the question."""
TOP = 50

ESTIMATES: dict[str, Question] = {
    "LoRA on a cut of four stages": DENSE_70B
    | {"lora_rank": 16, "tensor_parallel": 4, "stage_layers": (19, 21, 21, 19), "recompute": "selective"},
    "interleaved, block recompute": DENSE_70B
    | {
        "tensor_parallel": 4,
        "pipeline_parallel": 4,
        "virtual_stages": 5,
        "recompute": "full",
        "recompute_method": "block",
        "recompute_layers": 2,
    },
    "recompute list over an uneven cut": DENSE_8B
    | {
        "tensor_parallel": 2,
        "stage_layers": (9, 8, 8, 7),
        "recompute": "full",
        "recompute_method": "list",
        "recompute_layer_list": (0, 8, 9, 10, 31),
    },
    "experts cut both ways": MOE
    | {"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": 4, "expert_tensor_parallel": 2},
    "activations to the host": DENSE_8B | {"tensor_parallel": 4, "offload": "activations", "micro_batch_size": 2},
    "ZeRO 3 with parameters on the host": DENSE_8B
    | {"framework": "paddle", "zero_stage": 3, "options": {"offload_parameters": "true"}},
    "ZeRO over a part of the replicas": DENSE_8B
    | {"framework": "paddle", "tensor_parallel": 2, "options": {"sharding_degree": "4"}},
    "gradients released": DENSE_8B
    | {"framework": "paddle", "pipeline_parallel": 4, "options": {"release_grads": "true"}},
    "refused, heads do not divide": DENSE_8B | {"devices": 24, "nodes": None, "tensor_parallel": 3},
}
"""Arguments of `estimate`, by name of the question."""


def _whole(text: str) -> int | None:
    return int(text) if text else None


def row_question(row: dict[str, str]) -> Question:
    """Arguments of `estimate` for a row of a measured table; raises ValueError where the row asks for no layout."""
    if not row["model"]:
        raise ValueError(f"no spec for model '{row['model_as_stated']}'")
    tensor, pipeline = int(row["tensor_parallel"]), int(row["pipeline_parallel"])
    asked: Question = {name: row[name] for name in ("model", "hardware", "framework", "precision", "recompute")}
    for name in ("seq_length", "global_batch_size", "micro_batch_size", "context_parallel", "expert_parallel"):
        asked[name] = int(row[name])
    for name in ("num_layers", "lora_rank", "expert_tensor_parallel", "recompute_layers"):
        asked[name] = _whole(row[name])
    return asked | {
        "devices": _whole(row["devices_from_figures"]) or int(row["devices"]),
        "options": dict(option.split("=", 1) for option in row["options"].split(";") if option),
        "tensor_parallel": tensor,
        "pipeline_parallel": pipeline,
        "virtual_stages": _virtual_stages(row, pipeline),
        "stage_layers": tuple(int(layers) for layers in row["stage_layers"].split("|") if layers),
        "zero_stage": int(row["zero_stage"] or 1),
        "sequence_parallel": tensor > 1 and row["sequence_parallel"] != "false",
        "recompute_method": row["recompute_method"] or None,
        "offload": row["offload"] or None,
    }


def _virtual_stages(row: dict[str, str], pipeline: int) -> int:
    chunk = _whole(row["layers_per_virtual_stage"]) or _whole(row["layers_per_virtual_stage_from_script"])
    if pipeline == 1:
        return 1
    if row["virtual_stages"] or chunk is None:
        return int(row["virtual_stages"] or 1)
    layers = _whole(row["num_layers"]) or simulator.load_model(row["model"]).num_hidden_layers
    if layers % (pipeline * chunk):
        raise ValueError(f"chunks of {chunk} layers on {pipeline} ranks do not divide {layers} layers")
    return layers // (pipeline * chunk)


def answers(tables: Path) -> Iterator[dict[str, Any]]:
    """One record per question: its name, and `answer`, or `refused` with the reason."""
    for table in sorted(tables.glob("*.csv")):
        with table.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                yield _record(f"row {row['table']} {row['row']}", lambda row=row: _estimate(row_question(row)))
    for name, question in ESTIMATES.items():
        yield _record(f"estimate {name}", lambda question=question: _estimate(question))
    for name, (question, space) in RANKINGS.items():
        yield _record(f"rank {name}", lambda question=question, space=space: _ranking(question, space))


def _record(name: str, ask: Any) -> dict[str, Any]:
    try:
        return {"name": name, "answer": ask()}
    except (simulator.SimulateError, ValueError) as error:
        return {"name": name, "refused": f"{type(error).__name__}: {error}"}


def _estimate(question: Question) -> dict[str, Any]:
    return dataclasses.asdict(simulator.estimate(**question))


def _ranking(question: Question, space: Question) -> dict[str, Any]:
    return dataclasses.asdict(simulator.rank(space=simulator.Space(**space), top=TOP, variants=True, **question))


def main() -> None:
    """Print where the package comes from, then a line per answer."""
    sys.stdout.write(json.dumps({"package": simulator.__file__}) + "\n")
    for record in answers(Path(sys.argv[1])):
        sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
