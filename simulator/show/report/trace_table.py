"""Traced stage beside its prediction, as a table. Traces nothing."""

from __future__ import annotations

from simulator.lab.trace.tracing import TraceComparison
from simulator.question.units import to_mib
from simulator.show.report.grid import Style, grid, paragraph, titled
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import amount, devices_text, gib, percent, sharded_layout_text


def trace_table(comparison: TraceComparison, presentation: Presentation, style: Style) -> str:
    """Return the comparison for people."""
    traced = comparison.traced
    rows = [[name, gib(counted), gib(predicted)] for name, counted, predicted in comparison.rows]
    rows.append(["peak", gib(traced.peak_bytes), gib(comparison.predicted.allocated_bytes)])
    parts = [[name, gib(size)] for name, size in sorted(traced.parts_bytes.items(), key=lambda part: -part[1])]
    tables = [
        titled(_question(comparison), paragraph(_answer(comparison), style), style),
        titled(
            "Bytes alive at the peak, GiB", grid(["part", "traced", "predicted"], rows, style, text_columns=[0]), style
        ),
        titled("Traced by category, GiB", grid(["category", "GiB"], parts, style, text_columns=[0]), style),
    ]
    if presentation.verbosity >= 0:
        tables.append(paragraph(_footer(comparison), style))
    return "\n\n".join(tables) + "\n"


def _question(comparison: TraceComparison) -> str:
    asked = comparison.estimate
    subject = f"{asked.model} on {devices_text(asked.devices)}: {asked.precision}"
    return f"{subject}, sequence {asked.seq_length}, global batch {asked.global_batch_size}, torch"


def _answer(comparison: TraceComparison) -> list[str]:
    layout, traced, predicted = comparison.estimate.layout, comparison.traced, comparison.predicted
    where = f"stage {traced.stage} of {layout.pipeline_parallel} ({predicted.layers} layers)"
    sign = "+" if comparison.difference >= 0.0 else ""
    counted = f"{gib(traced.peak_bytes)} GiB traced at {traced.moment}"
    priced = (
        f"{gib(predicted.allocated_bytes)} predicted at {predicted.moment} ({sign}{percent(comparison.difference)} %)"
    )
    return [sharded_layout_text(layout), f"{where}: {counted}, {priced}"]


def _footer(comparison: TraceComparison) -> list[str]:
    traced = comparison.traced
    batches = f"{traced.micro_batches} micro batch{'' if traced.micro_batches == 1 else 'es'}"
    trainer = f"This is the reference trainer on torch at ZeRO {comparison.estimate.layout.zero_stage}"
    taken = f"{amount(traced.seconds)} s and {to_mib(traced.resident_bytes):.0f} MiB of memory"
    return [
        f"{gib(traced.base_bytes)} GiB are alive between steps.",
        f"Traced {batches} in {taken}, torch {traced.torch_version}.",
        f"{trainer}; `simulate estimate` prices Megatron at ZeRO 1 unless told otherwise, which needs another amount.",
        "Tensors only: no workspaces of libraries, no device context, no fragmentation.",
    ]
