"""What stands under a table: the assumptions, and what the numbers rest on."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.pricing.estimate import Estimate
from simulator.report.presentation import Presentation
from simulator.report.text import layout_text, percent, settings_text, teraflops
from simulator.search.result import Ranking

_STATUS_WORDS = {
    "measured": "fitted to measurements of this hardware",
    "interpolated": "interpolated between measurements",
    "analytic": "not calibrated against measurements",
    "assumed": "rests on assumed numbers",
}


def defaults_line(settings: dict[str, object]) -> Iterator[str]:
    """Yield the line on options that were left to their default."""
    text = settings_text(settings)
    if text:
        yield f"Defaults used: {text}."


def provenance_lines(estimate: Estimate, presentation: Presentation) -> Iterator[str]:
    """Yield what the numbers rest on."""
    provenance = estimate.provenance
    meaning = _STATUS_WORDS[provenance.status]
    yield f"Status: {provenance.status}, {meaning} (coefficients: {provenance.calibration})."
    yield (
        "TFLOPS counts model FLOPs with full (non-causal) attention; "
        f"MFU divides it by the dense {estimate.precision} peak."
    )
    if presentation.verbosity > 0:
        yield from (f"Assumed: {note}" for note in provenance.notes)
    elif provenance.notes:
        count = len(provenance.notes)
        yield f"{count} assumption{'s' if count > 1 else ''} behind these numbers: -v lists them."


def fp8_line(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield what fp8 would give, where it was not asked for."""
    precision = str(ranking.query.get("precision", ""))
    if precision == "fp8":
        return
    best = ranking.fp8
    if best is None:
        if presentation.device_has_fp8 is None:
            return
        has_it = "no layout fits in fp8" if presentation.device_has_fp8 else "this device has no fp8"
        yield f"fp8: {has_it}."
        return
    speed = best.throughput
    text = f"fp8: best {layout_text(best.layout)}, {teraflops(speed.flops_per_second_per_device)} TFLOPS/device"
    if ranking.estimates:
        base = ranking.estimates[0].throughput.tokens_per_second_per_device
        gain = speed.tokens_per_second_per_device / base - 1 if base > 0 else 0.0
        text += f", {percent(abs(gain))} % {'faster' if gain >= 0 else 'slower'} than the best in {precision}"
    yield f"{text}."
