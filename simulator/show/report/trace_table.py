"""A traced stage beside its prediction, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from simulator.lab.trace.result import TraceComparison
from simulator.question.units import to_mib
from simulator.show.report.as_json import dumps, layout_object, mib, significant, told
from simulator.show.report.grid import Style, grid, paragraph, titled
from simulator.show.report.text import amount, devices_text, gib, percent, sharded_layout_text

SCHEMA_VERSION = 1


def trace_table(found: TraceComparison, style: Style, *, quiet: bool = False) -> str:
    """Return the comparison for people; `quiet` leaves out how the trace was made."""
    traced = found.traced
    rows = [[name, gib(counted), gib(predicted)] for name, counted, predicted in found.rows]
    rows.append(["peak", gib(traced.peak_bytes), gib(found.predicted.allocated_bytes)])
    parts = [[name, gib(size)] for name, size in sorted(traced.parts_bytes.items(), key=lambda part: -part[1])]
    tables = [
        titled(_question(found), paragraph(_answer(found), style), style),
        titled(
            "Bytes alive at the peak, GiB", grid(["part", "traced", "predicted"], rows, style, text_columns=[0]), style
        ),
        titled("Traced by category, GiB", grid(["category", "GiB"], parts, style, text_columns=[0]), style),
    ]
    if not quiet:
        tables.append(paragraph(_footer(found), style))
    return "\n\n".join(tables) + "\n"


def trace_object(found: TraceComparison) -> dict[str, Any]:
    """Return the comparison as plain values; sizes in MiB, the difference as a share of the traced peak."""
    traced, predicted = found.traced, found.predicted
    return {
        "schema_version": SCHEMA_VERSION,
        **told(found.estimate, "model", "devices", "precision"),
        "layout": layout_object(found.estimate),
        "stage": traced.stage,
        "layers": predicted.layers,
        "difference": significant(found.difference),
        "traced": {
            "peak_mib": mib(traced.peak_bytes),
            "moment": traced.moment,
            "between_steps_mib": mib(traced.base_bytes),
            "breakdown_mib": {name: mib(size) for name, size in traced.parts_bytes.items()},
            "micro_batches": traced.micro_batches,
            "elapsed_s": significant(traced.seconds),
            "resident_mib": mib(traced.resident_bytes),
            "torch": traced.torch_version,
        },
        "predicted": {
            "peak_mib": mib(predicted.allocated_bytes),
            "moment": predicted.moment,
            "breakdown_mib": {
                name: mib(size) for name, size in predicted.parts_bytes.items() if name != "outside_allocator"
            },
        },
    }


TRACE_REPORTERS: Mapping[str, Callable[[TraceComparison, bool], str]] = MappingProxyType(
    {
        "table": lambda found, quiet: trace_table(found, "table", quiet=quiet),
        "json": lambda found, _quiet: dumps(trace_object(found)) + "\n",
        "markdown": lambda found, quiet: trace_table(found, "markdown", quiet=quiet),
    }
)
"""Text of a comparison, by the format's name."""


def _question(found: TraceComparison) -> str:
    asked = found.estimate
    what = f"{asked.model} on {devices_text(asked.devices)}: {asked.precision}"
    return f"{what}, sequence {asked.seq_length}, global batch {asked.global_batch_size}, torch"


def _answer(found: TraceComparison) -> list[str]:
    layout, traced, predicted = found.estimate.layout, found.traced, found.predicted
    where = f"stage {traced.stage} of {layout.pipeline_parallel} ({predicted.layers} layers)"
    sign = "+" if found.difference >= 0.0 else ""
    counted = f"{gib(traced.peak_bytes)} GiB traced at {traced.moment}"
    priced = f"{gib(predicted.allocated_bytes)} predicted at {predicted.moment} ({sign}{percent(found.difference)} %)"
    return [sharded_layout_text(layout), f"{where}: {counted}, {priced}"]


def _footer(found: TraceComparison) -> list[str]:
    traced = found.traced
    batches = f"{traced.micro_batches} micro batch{'' if traced.micro_batches == 1 else 'es'}"
    trainer = f"This is the reference trainer on torch at ZeRO {found.estimate.layout.zero_stage}"
    taken = f"{amount(traced.seconds)} s and {to_mib(traced.resident_bytes):.0f} MiB of memory"
    return [
        f"{gib(traced.base_bytes)} GiB are alive between steps.",
        f"Traced {batches} in {taken}, torch {traced.torch_version}.",
        f"{trainer}; `simulate estimate` prices Megatron at ZeRO 1 unless told otherwise, which needs another amount.",
        "Tensors only: no workspaces of libraries, no device context, no fragmentation.",
    ]
