"""Words and sentences of a verdict that all of its formats share. Judges nothing, and lays out no table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from simulator.answers.changes import Change
from simulator.answers.gates import FIRM, CheckOutcome
from simulator.cost.pricing.estimate import Estimate
from simulator.recipes.check.verdict import NOT_JUDGED, Changed, Checked
from simulator.show.report.footer import known_text
from simulator.show.report.text import amount, gib, largest_parts, layout_text, margin_text, percent, words


def verdict_line(result: Checked) -> str:
    """Return the verdict with its margin, or the first reason for having none."""
    verdict = words(result.outcome)
    if result.estimate is None or result.outcome == "refused":
        more = f" (and {len(result.reasons) - 1} more)" if len(result.reasons) > 1 else ""
        return f"{verdict}: {_below(result, result.reasons[0])}{more}" if result.reasons else verdict
    memory = result.estimate.memory
    size = f"needs {gib(memory.device_bytes)} of {gib(memory.capacity_bytes)} GiB"
    line = f"{verdict}: {size}, {margin_text(memory.headroom_bytes)}; stage {memory.binding_stage} at {memory.moment}"
    return f"{line}; {'; '.join(result.reasons)}" if result.reasons else line


def _below(result: Checked, text: str) -> str:
    """Return a text with a line alone in place of the result's own file, which stands above."""
    if not text.startswith(f"{result.file}:"):
        return text
    return re.sub(r"^([0-9]+): ?", r"line \1: ", text.removeprefix(f"{result.file}:").lstrip())


def detail_lines(result: Checked, *, sources: bool = False) -> Iterator[str]:
    """Yield the reasons of a verdict, a sentence each; ``sources`` adds where a refusal was read."""
    estimate = result.estimate
    if estimate is not None:
        yield where_text(estimate)
        yield from range_line(result)
    # A refused layout has no figures: no run can have it.
    if estimate is not None and result.outcome != "refused":
        parts = ", ".join(f"{words(name)} {gib(size)}" for name, size in largest_parts(estimate.memory.parts_bytes))
        yield f"stage {estimate.memory.binding_stage} holds, GiB: {parts}"
        yield from _peak_lines(result)
    if not result.remarks or result.outcome in ("fits", "starved", "does_not_fit"):
        yield from (f"why: {_below(result, reason)}" for reason in result.reasons)
    for remark in result.remarks:
        place = _below(result, f"{remark.place.file}:{remark.place.line}: ") if remark.place else ""
        fix = f"; fix: {remark.fix}" if remark.fix else ""
        source = f" ({remark.source})" if sources and remark.source else ""
        yield f"{place}{remark.severity}: {remark.message}{fix} [{remark.rule}]{source}"
    yield from room_line(result)
    yield from change_lines(result)
    if result.outcome == "does_not_fit" and not result.changes:
        yield "would fit: nothing of up to three changes that were tried"


def range_line(result: Checked) -> Iterator[str]:
    """Yield the 90 % intervals of need and step, and how well device, stack and layout are known."""
    estimate = result.estimate
    if estimate is None or result.outcome == "refused":
        return
    memory, step = estimate.memory.interval_bytes, estimate.throughput.interval_seconds
    ranges = "no interval: priced without a calibration"
    if memory is not None and step is not None:
        seconds = f"{amount(step.low)} to {amount(step.high)} s a step"
        ranges = f"90 % intervals: {gib(memory.low)} to {gib(memory.high)} GiB, {seconds}"
    yield f"{ranges}; known: {known_text(estimate)}"


def change_lines(result: Checked) -> Iterator[str]:
    """Yield the changes that help, with the effect of each on the recipe."""
    estimate = result.estimate
    if estimate is None:
        return
    passes = "pass" if estimate.memory.fits else "fit"
    for change in result.changes:
        verb = "may" if change.estimate.memory.undecided else "would"
        yield f"{verb} {passes}: {change_text(change, estimate)}"


def room_line(result: Checked) -> Iterator[str]:
    """Yield the room that the recipe leaves on its devices, where that was asked."""
    room = result.room
    if room is not None:
        sequence = f"sequence of {room.seq_length}" if room.seq_length else "no sequence"
        batch = f"micro batch of {room.micro_batch_size}" if room.micro_batch_size else "no micro batch"
        yield f"largest that fits, all else the same: {sequence}; {batch}"


def where_text(estimate: Estimate) -> str:
    """Return what was priced on what, on one line."""
    parts = [layout_text(estimate.layout), f"seq {estimate.seq_length}", f"batch {estimate.global_batch_size}"]
    parts += ["SP"] if estimate.layout.sequence_parallel else []
    parts.append(f"ZeRO {estimate.layout.zero_stage}")
    parts += [f"LoRA {estimate.lora_rank}"] if estimate.lora_rank else []
    on = f"{estimate.model} on {estimate.devices} x {estimate.hardware}, {estimate.precision}"
    return f"{on}, {' '.join(parts)}"


def _peak_lines(result: Checked) -> Iterator[str]:
    peaks, plain = result.peaks, result.without_offload
    if peaks is None:
        return
    passes, step = peaks.passes, peaks.optimizer_step
    line = f"peaks, GiB: forward and backward {gib(passes.device_bytes)} (stage {passes.stage})"
    yield f"{line}, optimizer step {gib(step.device_bytes)} (stage {step.stage})"
    if plain is not None:
        memory = plain.memory
        need = f"{gib(memory.device_bytes)} of {gib(memory.capacity_bytes)} GiB, {margin_text(memory.headroom_bytes)}"
        yield f"without offloading: {words(plain.verdict)}, needs {need}"


def change_text(change: Change, base: Estimate) -> str:
    """Return a change with its cost and its less obvious consequences."""
    batch = change.estimate.global_batch_size
    more = "" if batch == base.global_batch_size else f", batch {base.global_batch_size} -> {batch}"
    margin = margin_text(change.estimate.memory.headroom_bytes)
    return f"{change.text} ({speed_text(change.speed_ratio)}, {margin}{more})"


def speed_text(ratio: float) -> str:
    """Return a ratio of speeds per device as a gain or a loss."""
    if abs(ratio - 1) < 5e-4:
        return "same speed"
    return f"{percent(abs(ratio - 1))} % {'faster' if ratio > 1 else 'slower'} per device"


def changed_line(change: Changed) -> str:
    """Return what changed since the baseline, on one line."""
    before, after = change.before, change.after
    if after is None:
        return f"removed: {change.name}: in the baseline only"
    if before is None:
        return f"{words(change.kind)}: {change.name}: {words(after.outcome)}, not in the baseline"
    text = f"{words(change.kind)}: {change.name}: {words(before.outcome)}"
    if before.outcome != after.outcome:
        text += f" -> {words(after.outcome)}"
    for label, ratio in (("memory", change.memory_ratio), ("step time", change.time_ratio)):
        if ratio is not None and abs(ratio - 1) >= 5e-4:
            text += f", {label} {100 * (ratio - 1):+.1f} %"
    return text


_PLURALS = {"fits": "fit", "does_not_fit": "do not fit"}


def tally(results: Sequence[Checked]) -> str:
    """Return the number of recipes by verdict, without one, and failing, on one line."""

    def shown(outcomes: Iterable[CheckOutcome]) -> str:
        counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in outcomes}
        return ", ".join(
            f"{count} {_PLURALS.get(outcome, words(outcome)) if count > 1 else words(outcome)}"
            for outcome, count in counts.items()
            if count
        )

    unjudged = sum(result.outcome in NOT_JUDGED for result in results)
    skipped = sum(result.outcome == "skipped" for result in results)
    recipes = len(results) - skipped
    parts = [shown(FIRM) or "none judged"]
    parts += [f"{unjudged} not judged ({shown(NOT_JUDGED)})"] if unjudged else []
    failed = sum(not result.passed and not result.known for result in results)
    known = sum(result.known for result in results)
    parts.append(f"{failed} failed" + (f", and {known} as in the baseline" if known else ""))
    parts += [f"{skipped} file{'' if skipped == 1 else 's'} skipped: no training"] if skipped else []
    return f"{recipes} recipe{'' if recipes == 1 else 's'}: {'; '.join(parts)}"


def reason(result: Checked) -> str:
    """Return the reason of a recipe's verdict: the first clause, without file and lines."""
    if result.outcome in ("fits", "starved", "does_not_fit"):
        return ""
    text = result.reasons[0] if result.reasons else ""
    text = _PLACE.sub("", text.removeprefix(result.file))
    text = _FOLLOWS.split(text, maxsplit=1)[0]
    return text.removeprefix("starts no training: ").strip()


_PLACE = re.compile(r"^(?::[0-9]+)?: |^line [0-9]+: ")
"""Place in a reason: behind the file, or in front of the missing value."""
_FOLLOWS = re.compile(r"; |: on | \(--|, did you mean| \(and ")
"""Beginning of the rest of a reason: allowed values, and help."""
