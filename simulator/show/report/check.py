"""Verdicts on recipes for people: a tally, a row for each recipe, and sentences on those to look at.

    3 recipes: 1 fits, 1 does not fit; 1 not judged (1 cannot tell); 1 failed
    recipe    verdict       on              GiB
    train.sh  does not fit  8 x h100  161.2

Names and values come from files: `printable` leaves nothing in them that a terminal or a CI runner would obey.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from simulator.cost.pricing.estimate import Estimate
from simulator.errors import one_line
from simulator.recipes.check.baseline import Changed
from simulator.recipes.check.case import HARDWARE_ASSUMED, NODES_ASSUMED
from simulator.recipes.check.verdict import FIRM, NOT_JUDGED, OUTCOMES, Change, Checked, CheckOutcome
from simulator.recipes.recipe import Place, Remark
from simulator.show.answers.program import Checks
from simulator.show.report.estimate import known_text, speed_sentence
from simulator.show.report.presentation import Presentation
from simulator.show.report.tables import (
    Column,
    Style,
    columns_grid,
    filled,
    fitting,
    heading,
    narrow_line,
    paragraph,
    titled,
)
from simulator.show.report.text import amount, gib, in_colour, largest_parts, layout_text, margin_text, percent, words


def check_table(checks: Checks, presentation: Presentation, style: Style) -> str:
    """Return the verdicts for people: the count of each, a row per recipe, and details of those to look at.

    Of more than `MANY`, only reasons and failing recipes; all with more verbosity.
    """
    checks, verbosity = printable(checks), presentation.verbosity
    many = len(checks.results) > MANY and verbosity < 1
    failing = tuple(result for result in checks.results if not result.passed and not result.known)
    results = failing if many else checks.results
    blocks = [tally(checks.results)]
    width = presentation.width if style == "table" else None
    if many:
        blocks.append(_reasons(checks.results, style, width))
    alone = len(checks.results) == 1 and style == "table" and verbosity == 0
    if results and not alone:
        colour = presentation.colour and style == "table"
        columns, left_out = fitting(_with_short_names(_columns(results, colour=colour), width), width)
        blocks.append("\n".join([columns_grid(columns, style), *narrow_line(left_out)]))
    if verbosity >= 0:
        for result in results:
            lines = list(_alone(result, presentation) if alone and result.passed else _shown(result, verbosity))
            if lines:
                sentences = (filled(one_line(line), width) for line in lines)
                blocks.append(titled(one_line(result.name), paragraph(sentences, style), style))
    if checks.patches:
        blocks += [_patches(result, style) for result in checks.results if result.changes]
    if checks.changed is not None:
        lines = [one_line(changed_line(change)) for change in checks.changed] or ["nothing changed"]
        blocks.append(titled("Since the baseline", paragraph(lines, style), style))
    return "\n\n".join(blocks) + "\n"


MANY = 12
"""Most recipes of a table with all rows; a longer one has reasons, and rows of failing recipes only."""
MOST_REASONS = 20
"""Most reasons shown, those of most files first."""
_SHORTEST, _READABLE = 24, 44
"""Fewest characters of a file's name, and of a reason."""


def _reasons(results: Sequence[Checked], style: Style, width: int | None) -> str:
    """Return the number of files by verdict and reason, with one file of each."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        groups.setdefault((result.outcome, reason(result)), []).append(result)
    ranked = sorted(groups.items(), key=lambda group: (OUTCOMES.index(group[1][0].outcome), -len(group[1])))
    shown = sorted(ranked, key=lambda group: -len(group[1]))[:MOST_REASONS]
    rows = [group for group in ranked if group in shown]
    rest = (width or 160) - _FIXED
    room = max(rest // 2, min(rest - _SHORTEST, _READABLE))
    named = room >= _READABLE
    reasons = tuple(_cut(one_line(why), room if named else max(rest, _SHORTEST)) for (_, why), _ in rows)
    columns = [
        Column("recipes", tuple(str(len(group)) for _, group in rows)),
        Column("verdict", tuple(words(outcome) for (outcome, _), _ in rows), is_text=True),
        Column("reason", reasons, is_text=True),
    ]
    if named:
        files = tuple(_tail(one_line(group[0].file), rest - room) for _, group in rows)
        columns.append(Column("such as", files, is_text=True))
    hidden = len(groups) - len(rows)
    more = [f"and {hidden} more reason{'' if hidden == 1 else 's'}; all with -v"] if hidden else []
    return "\n".join([columns_grid(columns, style), *more])


_FIXED = 30
"""Characters of the other columns, and between columns."""


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 3].rstrip()}..."


def _tail(text: str, room: int) -> str:
    return text if len(text) <= room else f"...{text[3 - room :]}"


def _patches(result: Checked, style: Style) -> str:
    """Return every change that helps, the fastest first, as a patch of its own."""
    blocks = [heading(f"Patches of {result.name}", style)]
    for change in result.changes:
        patch = (
            change.patch.rstrip("\n")
            or "# no patch: the text gives no hold for it, or an option replaces it; give the options instead"
        )
        costs = f"# {change.text} ({speed_text(change.speed_ratio)})"
        blocks.append(f"```diff\n{costs}\n{patch}\n```" if style == "markdown" else f"{costs}\n{patch}")
    return "\n".join(blocks)


def _shown(result: Checked, verbosity: int) -> Iterator[str]:
    """Yield the lines on a recipe: all where it did not pass or with more verbosity, else the necessary ones."""
    lines = list(detail_lines(result, sources=verbosity > 0))
    full = not result.passed or verbosity > 0 or result.outcome == "starved" or result.without_offload is not None
    if full:
        yield verdict_line(result)
        yield from (line for line in lines if not line.startswith("why: "))
    else:
        yield from (where_text(estimate) for estimate in (result.estimate,) if estimate is not None)
        yield from range_line(result)
        yield from room_line(result)
        shown = ("warning: ", *(f"[{rule}]" for rule in (HARDWARE_ASSUMED, NODES_ASSUMED)))
        yield from (line for line in lines if any(part in line for part in shown))


def _alone(result: Checked, presentation: Presentation) -> Iterator[str]:
    """Yield the lines on a single recipe that passes."""
    yield verdict_line(result)
    if result.estimate is not None:
        yield f"speed: {speed_sentence(result.estimate, presentation)}"
    yield from (line for line in _shown(result, 0) if line != verdict_line(result))


HEADERS = ("recipe", "verdict", "on", "GiB", "usable", "margin", "stage", "step s", "rules")
TEXTS = (0, 1, 2, 8)
"""Columns that hold words."""
_SPARE = (0, 0, 30, 0, 20, 10, 60, 50, 40)
"""Order in which columns are left out where a line is too short, the highest first; 0 stays."""


def _columns(results: Sequence[Checked], *, colour: bool) -> list[Column]:
    cells = zip(*(_row(result, colour=colour) for result in results), strict=True)
    return [
        Column(header, tuple(column), is_text=number in TEXTS, spare=_SPARE[number])
        for number, (header, column) in enumerate(zip(HEADERS, cells, strict=True))
    ]


def _with_short_names(columns: Sequence[Column], width: int | None) -> list[Column]:
    """Return the columns with as much of the names as leaves room for the others: their ends tell files apart."""
    names, *figures = columns
    if width is None:
        return [names, *figures]
    room = max(width - sum(column.width + _BETWEEN for column in figures), width * 2 // 5, _SHORTEST)
    return [names._replace(cells=tuple(_tail(name, room) for name in names.cells)), *figures]


_BETWEEN = 2
"""Spaces between columns."""


def summary_rows(results: Sequence[Checked]) -> list[list[str]]:
    """Return a row for each recipe."""
    return [_row(result, colour=False) for result in results]


def _row(result: Checked, *, colour: bool) -> list[str]:
    verdict = words(result.outcome) + ("" if result.passed or result.outcome != "fits" else ", but fails")
    verdict = in_colour(verdict, result.outcome if result.passed else "refused", colour=colour)
    rules = ", ".join(dict.fromkeys(remark.rule for remark in result.remarks if remark.severity == "error"))
    name, estimate = one_line(result.name), result.estimate
    if estimate is None:
        return [name, verdict, "", "", "", "", "", "", rules]
    memory, on = estimate.memory, one_line(f"{estimate.devices} x {estimate.hardware}")
    if result.outcome == "refused":
        return [name, verdict, on, "", gib(memory.capacity_bytes), "", "", "", rules]
    return [
        name,
        verdict,
        on,
        gib(memory.device_bytes),
        gib(memory.capacity_bytes),
        margin_text(memory.headroom_bytes),
        str(memory.binding_stage),
        amount(estimate.throughput.step_seconds),
        rules,
    ]


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


def printable(checks: Checks) -> Checks:
    """Return the verdicts with every text of a file or its name on one line, without control marks or lone surrogates.

    A runner of GitHub takes a line of any output for a command that begins with two colons, or that holds the older
    mark; no name or value begins a line so, or holds it.
    """
    changed = checks.changed and tuple(_changed(change) for change in checks.changed)
    return replace(checks, results=tuple(_result(result) for result in checks.results), changed=changed)


def _text(text: str) -> str:
    return one_line(text).replace("##[", "# #[")


def _name(text: str) -> str:
    """Return a name that may begin a line; one that would be a command gets the folder in front."""
    shown = _text(text)
    return f"./{shown}" if shown.startswith("::") else shown


def _place(place: Place | None) -> Place | None:
    return None if place is None else replace(place, file=_name(place.file))


def _remark(remark: Remark) -> Remark:
    return replace(remark, message=_text(remark.message), fix=_text(remark.fix), place=_place(remark.place))


def _result(result: Checked) -> Checked:
    estimate = result.estimate
    return replace(
        result,
        file=_name(result.file),
        title=_text(result.title),
        reasons=tuple(_text(reason) for reason in result.reasons),
        remarks=tuple(_remark(remark) for remark in result.remarks),
        blame=_place(result.blame),
        estimate=None if estimate is None else replace(estimate, model=_name(estimate.model)),
    )


def _changed(change: Changed) -> Changed:
    return replace(change, file=_text(change.file), title=_text(change.title))
