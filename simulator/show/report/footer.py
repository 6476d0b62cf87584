"""Lines under a table: assumptions, and sources of the numbers. Computes no figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.cost.pricing.estimate import Estimate
from simulator.question.frameworks.profiles import PROFILES, profile_of
from simulator.question.frameworks.stacks import DEFAULT
from simulator.question.scenario.layout import MICRO_BATCH_SIZES
from simulator.question.units import GIB, to_gib
from simulator.question.vocabulary import NARROW
from simulator.search.assumed import MIN_CHANGE
from simulator.search.result import Ranking
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import layout_text, percent, settings_text, teraflops


def defaults_line(settings: dict[str, object]) -> Iterator[str]:
    """Yield the line on options that were left to their default."""
    text = settings_text(settings)
    if text:
        yield f"Defaults used: {text}."


def space_lines(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield the axes of the search with default values, and the layouts that were therefore not tried."""
    asked = ranking.query.get("space")
    space: Mapping[str, object] = asked if isinstance(asked, Mapping) else {}
    limits = PROFILES[str(ranking.query.get("framework"))].limits
    searched: list[tuple[str, str, str]] = [
        ("zero_stage", f"--zero-stage {limits.default_zero_stage}", "other --zero-stage"),
        ("offload", "--offload none", "--offload"),
        ("micro_batch_size", f"--micro-batch-size {','.join(map(str, MICRO_BATCH_SIZES))}", "other --micro-batch-size"),
        ("sequence_parallel", "sequence parallelism where TP is above 1", "--no-sequence-parallel"),
    ]
    if ranking.query.get("nodes") != 1:
        searched.append(("tensor_parallel_across_nodes", "TP within a node", "--allow-tp-across-nodes"))
    plain = [(value, other) for axis, value, other in searched if axis not in space]
    lines = [", ".join(value for value, _ in plain)] if plain else []
    if not presentation.variants and ranking.estimates:
        lines.append("best of each TP/PP/CP/EP/ETP split (--variants lists all)")
    if lines:
        yield f"Search defaults: {'; '.join(lines)}."
    if plain:
        yield f"Not searched unless asked: {', '.join(other for _, other in plain)}."


def status_line(estimate: Estimate) -> str:
    """Return the question's place beside the measured runs, and the source of its coefficients."""
    return f"Known: {known_text(estimate)} ({estimate.provenance.calibration})."


def known_text(estimate: Estimate) -> str:
    """Return how well device, stack and layout are known."""
    known = estimate.provenance
    return f"device {known.device}, stack {known.stack}, layout {known.layout}"


def provenance_lines(estimate: Estimate, presentation: Presentation) -> Iterator[str]:
    """Yield the sources of the numbers."""
    provenance = estimate.provenance
    yield status_line(estimate)
    yield (
        "TFLOPS counts model FLOPs with full (non-causal) attention; "
        f"MFU divides it by the dense {estimate.precision} peak."
    )
    yield from peak_line(estimate)
    if presentation.verbosity > 0:
        yield from (f"Assumed: {note}" for note in provenance.notes)
    elif provenance.notes:
        yield assumptions_line(len(provenance.notes))


def peak_line(estimate: Estimate) -> Iterator[str]:
    """Yield the line on a peak that no document states."""
    peak = estimate.provenance.assumed_peak
    if peak:
        yield f"Assumed {estimate.precision} peak: {peak.rstrip('.')}."


def assumptions_line(count: int) -> str:
    """Return the line that stands for assumptions which are not listed."""
    return f"{count} assumption{'s' if count > 1 else ''} behind these numbers: -v lists them."


def stack_name(stack: str, framework: str) -> str:
    """Return the source of a stack's switches, in words."""
    return f"the defaults of {profile_of(framework).version}" if stack == DEFAULT else f"stack {stack}"


def assumed_lines(estimate: Estimate) -> Iterator[str]:
    """Yield the source of the switches, and the effect of the assumed ones that matter."""
    whose = stack_name(estimate.stack, estimate.framework)
    yield f"Switches: {whose} (--stack, --option; `simulate frameworks {estimate.framework}`)."
    for switch in estimate.assumed:
        worth = (
            [f"{100.0 * switch.other_speed_change:+.1f} % tokens/s"] if abs(switch.speed_change) >= MIN_CHANGE else []
        )
        if abs(switch.memory_bytes) >= LEAST_SHOWN_BYTES:
            worth.append(f"{-to_gib(switch.memory_bytes):+.2f} GiB")
        if switch.verdict != estimate.verdict:
            worth.append(VERDICTS[switch.verdict])
        assumed = f"Assumed {switch.switch} {_SWITCHED.get(switch.value, switch.value)}"
        yield f"{assumed}; with --option {switch.switch}={switch.other}: {', '.join(worth)}."


VERDICTS = {"fits": "fits", "starved": "is starved", "does_not_fit": "does not fit", "refused": "is refused"}
"""Words of each verdict."""
LEAST_SHOWN_BYTES = 0.005 * GIB
"""Smallest memory that does not round to 0, in bytes."""
_SWITCHED = {"true": "on", "false": "off"}


def stack_lines(ranking: Ranking) -> Iterator[str]:
    """Yield the best layout under other named stacks."""
    for stack in ranking.stacks:
        name = stack_name(stack.stack, str(ranking.query.get("framework")))
        if stack.estimate is None:
            yield f"With {name}: nothing is likely enough to fit."
            continue
        speed = stack.estimate.throughput
        text = f"{layout_text(stack.estimate.layout)}, {teraflops(speed.flops_per_second_per_device)} TFLOPS/device"
        if ranking.estimates:
            base = ranking.estimates[0].throughput.tokens_per_second_per_device
            text += f", {100.0 * (speed.tokens_per_second_per_device / base - 1.0):+.1f} %"
        yield f"With {name} (--stack {stack.stack}): best {text}."


def fp8_line(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield the gain of fp8, where the question has another precision."""
    precision = str(ranking.query.get("precision", ""))
    if precision in NARROW:
        return
    best = ranking.fp8
    if best is None:
        if presentation.device_has_fp8 is None or (presentation.device_has_fp8 and not ranking.estimates):
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
    if best.provenance.assumed_peak:
        text += f"; its peak is assumed: {best.provenance.assumed_peak.rstrip('.')}"
    yield f"{text}."
