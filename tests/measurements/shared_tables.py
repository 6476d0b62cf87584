"""The tables the shipped rows were copied from, where they are at hand, and how their words map to the schema's."""

import csv
import os
from pathlib import Path

from simulator.evidence.measurements.rows import COLUMNS

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("SIMULATE_SHARED") or ROOT.parent / "shared") / "measured"
ANNOTATIONS = (
    "layers_per_virtual_stage_from_script",
    "devices_from_figures",
    "status",
    "evidence",
    "organisation",
    "options_source",
    "filled",
    "tuned",
)
ROWS = {
    "a100-paddlenlp": 4,
    "ascend-mindspeed": 10,
    "b200-megatron": 12,
    "h100-flagperf": 2,
    "z2000-megatron": 54,
}
RECOMPUTE = {"none": "none", "sel": "selective", "selective": "selective", "full": "full", "offload": "none"}
PRECISION = {"bf16": "bf16", "fp8": "fp8", "bf16+fp8": "fp8"}
ZERO_STAGE = {"ddp": "0", "zero1": "1", "zero2": "2"}
SAME_IN_ALL = {
    "model": "model_as_stated",
    "gpus": "devices",
    "seq": "seq_length",
    "mbs": "micro_batch_size",
    "gbs": "global_batch_size",
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "cp": "context_parallel",
}
Z2000 = {
    "layers_per_vstage": "layers_per_virtual_stage",
    "tflops": "tflops_per_device",
    "step_ms": "step_time_ms",
    "mem_mib": "memory_mib",
    "outcome": "outcome",
    "note": "error",
}
PUBLIC = {
    "hardware": "hardware_as_stated",
    "source_ref": "source",
    "ep": "expert_parallel",
    "tflops_per_gpu": "tflops_per_device",
    "tokens_per_s_per_gpu": "tokens_per_second_per_device",
    "step_s": "step_time_s",
    "mem_gib": "memory_gib",
}


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def expected(table: str, row: dict[str, str]) -> dict[str, str]:
    """What a row of the shared table must hold in the shipped one, column by column."""
    names = SAME_IN_ALL | (Z2000 if table == "z2000-megatron" else PUBLIC)
    found = {column: row[name] for name, column in names.items()}
    found["precision"] = PRECISION[row["precision"]]
    found["recompute"] = RECOMPUTE[row["recompute"]]
    found["offload"] = "activations" if row["recompute"] == "offload" else "none"
    if table == "z2000-megatron":
        return found | {"source_notes": "", "step_time_s": "", "memory_gib": "", "tokens_per_second_per_device": ""}
    return found | {
        "zero_stage": ZERO_STAGE[row["dp_mode"]],
        "sequence_parallel": {"0": "false", "1": "true"}[row["sequence_parallel"]],
        "virtual_stages": "" if row["vpp_chunks"] == "1" else row["vpp_chunks"],
        "memory_kind": (row["mem_kind"] or "").split(" ")[0],
        "step_time_ms": "",
        "memory_mib": "",
        "outcome": "ok",
        "error": "",
    }


def measurement(row: dict[str, str]) -> tuple[str, ...]:
    """The cells of a row that are not annotations."""
    return tuple(f"{name}={row[name]}" for name in COLUMNS if name not in ANNOTATIONS and row.get(name))
