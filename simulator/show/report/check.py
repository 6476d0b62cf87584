"""Verdicts on recipes: for people a tally, a row for each recipe, and sentences on those to look at; the forms of CI.

    3 recipes: 1 fits, 1 does not fit; 1 not judged (1 cannot tell); 1 failed
    recipe    verdict       on              GiB
    train.sh  does not fit  8 x h100  161.2

CI reads JUnit XML, SARIF 2.1.0, and workflow commands of GitHub Actions. Names and values come from files: `printable`
leaves nothing in them that a terminal or a CI runner would obey.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from simulator._version import __version__
from simulator.answers.cases import HARDWARE_ASSUMED, NODES_ASSUMED
from simulator.answers.gates import FIRM, OUTCOMES, CheckOutcome, Gates
from simulator.answers.rules import FRAMEWORK_RULES
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import one_line
from simulator.files import read_words
from simulator.question.origin import Origin, Place
from simulator.question.question import GROUPS, Question
from simulator.recipes.check.repository import CHANGED, rule_titles
from simulator.recipes.check.verdict import LEFT_OUT, NOT_JUDGED, OWN_SETTINGS, UNMATCHED, Changed, Checked, Checks
from simulator.records import Record, replace
from simulator.show.report import text as say
from simulator.show.report.estimate import adapters_text, known_text, speed_sentence
from simulator.show.report.presentation import BETWEEN, Column, Presentation, fitting, joined, narrow_line

_MANY = 12  # most recipes of a table with all rows; a longer one has reasons, and rows of failing recipes only
_MOST_REASONS = 20  # most reasons shown, those of most files first
_SHORTEST, _READABLE = 24, 44  # fewest characters of a file's name, and of a reason
_BESIDE_REASONS = 30  # characters of the columns beside reasons and files


def check_table(checks: Checks, shown: Presentation) -> str:
    """Return the verdicts for people: the count of each, a row per recipe, details; of many only what fails."""
    checks, verbosity = printable(checks), shown.verbosity
    many = len(checks.results) > _MANY and verbosity < 1
    failing = tuple(result for result in checks.results if not result.passed and not result.known)
    noted = (each for each in checks.results if any(remark.rule == UNMATCHED for remark in each.remarks))
    results = (*failing, *noted) if many else checks.results
    blocks = [tally(checks.results)]
    if many:
        blocks.append(_reasons(checks.results, shown))
    alone = len(checks.results) == 1 and shown.style == "table" and verbosity == 0
    if results and not alone:
        columns, left_out = fitting(_columns(results, shown), shown.line)
        blocks.append("\n".join([shown.columns(columns), *narrow_line(left_out)]))
    if verbosity < 0:
        lines = [one_line(f"{result.name}: {verdict_line(result)}") for result in failing]
        blocks += [shown.prose(lines)] if lines and not many else []
    else:
        for result in results:
            lines = list(_alone(result, shown) if alone and result.passed else _lines(result, verbosity))
            if lines:
                blocks.append(shown.titled(one_line(result.name), shown.prose(map(one_line, lines))))
    if checks.patches:
        blocks += [_patches(result, shown) for result in checks.results if result.changes]
    if checks.changed is not None:
        lines = [one_line(changed_line(change)) for change in checks.changed] or ["nothing changed"]
        blocks.append(shown.titled("Since the baseline", shown.sentences(lines)))
    return joined(blocks)


def _reasons(results: Sequence[Checked], shown: Presentation) -> str:
    """Return the number of files by verdict and reason, with one file of each."""
    groups: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        groups.setdefault((result.outcome, reason(result)), []).append(result)
    ranked = sorted(groups.items(), key=lambda group: (OUTCOMES.index(group[1][0].outcome), -len(group[1])))
    commonest = sorted(ranked, key=lambda group: -len(group[1]))[:_MOST_REASONS]
    rows = [group for group in ranked if group in commonest]
    rest = (shown.line or 160) - _BESIDE_REASONS
    room = max(rest // 2, min(rest - _SHORTEST, _READABLE))
    named = room >= _READABLE
    most = room if named else max(rest, _SHORTEST)
    reasons = [one_line(why) for (_, why), _ in rows]
    columns = [
        Column("recipes", tuple(str(len(group)) for _, group in rows)),
        Column("verdict", tuple(say.words(outcome) for (outcome, _), _ in rows), is_text=True),
        Column("reason", tuple(r if len(r) <= most else f"{r[: most - 3].rstrip()}..." for r in reasons), is_text=True),
    ]
    if named:
        files = tuple(_tail(one_line(group[0].file), rest - room) for _, group in rows)
        columns.append(Column("such as", files, is_text=True))
    hidden = len(groups) - len(rows)
    more = [f"and {hidden} more reason{'' if hidden == 1 else 's'}; all with -v"] if hidden else []
    return "\n".join([shown.columns(columns), *more])


def _tail(text: str, room: int) -> str:
    return text if len(text) <= room else f"...{text[3 - room :]}"


def _patches(result: Checked, shown: Presentation) -> str:
    """Return every change that helps, the fastest first, as a patch of its own."""
    none = "# no patch: the text gives no hold for it, or an option replaces it; give the options instead"
    blocks = [shown.heading(f"Patches of {result.name}")]
    for change in result.changes:
        costs = f"# {change.text} ({_speed_text(change.speed_ratio)})"
        patch = f"{costs}\n{change.patch.rstrip(chr(10)) or none}"
        blocks.append(f"```diff\n{patch}\n```" if shown.style == "markdown" else patch)
    return "\n".join(blocks)


def _lines(result: Checked, verbosity: int) -> Iterator[str]:
    """Yield the lines on a recipe: all where it did not pass or with more verbosity, else the necessary ones."""
    lines = list(detail_lines(result, sources=verbosity > 0))
    if not result.passed or verbosity > 0 or result.outcome == "starved" or result.without_offload is not None:
        yield verdict_line(result)
        yield from (line for line in lines if not line.startswith("why: "))
    else:
        yield from (where_text(estimate) for estimate in (result.estimate,) if estimate is not None)
        yield from range_line(result)
        yield from room_line(result)
        needed = ("warning: ", *(f"[{rule}]" for rule in (HARDWARE_ASSUMED, NODES_ASSUMED, UNMATCHED)))
        yield from (line for line in lines if any(part in line for part in needed))


def _alone(result: Checked, shown: Presentation) -> Iterator[str]:
    """Yield the lines on a single recipe that passes."""
    yield verdict_line(result)
    if result.estimate is not None:
        yield f"speed: {speed_sentence(result.estimate, shown)}"
    yield from (line for line in _lines(result, 0) if line != verdict_line(result))


HEADERS = ("recipe", "verdict", "GiB", "tokens/s", "usable", "margin", "on", "stage", "step s", "rules")
TEXTS = (0, 1, 6, 9)
"""Columns that hold words."""
_SPARE = (0, 0, 0, 45, 20, 10, 30, 60, 50, 40)
"""Order in which columns are left out where a line is too short, the highest first; 0 stays."""


def _columns(results: Sequence[Checked], shown: Presentation) -> list[Column]:
    """Return the columns, with as much of the names as leaves room for the others: their ends tell files apart."""
    rows = [summary_row(result, colour=shown.colour and shown.style == "table") for result in results]
    cells = enumerate(zip(HEADERS, zip(*rows, strict=True), strict=True))
    names, *figures = [Column(header, column, n in TEXTS, _SPARE[n]) for n, (header, column) in cells]
    if (width := shown.line) is not None:
        room = max(width - sum(column.width + BETWEEN for column in figures), width * 2 // 5, _SHORTEST)
        names = names._replace(cells=tuple(_tail(name, room) for name in names.cells))
    return [names, *figures]


def summary_row(result: Checked, *, colour: bool = False) -> list[str]:
    """Return the row of a recipe."""
    verdict = say.words(result.outcome) + ("" if result.passed or result.outcome != "fits" else ", but fails")
    verdict = say.in_colour(verdict, result.outcome if result.passed else "refused", colour=colour)
    rules = ", ".join(dict.fromkeys(remark.rule for remark in result.remarks if remark.severity == "error"))
    name, estimate = one_line(result.name), result.estimate
    if estimate is None:
        return [name, verdict, *[""] * 7, rules]
    memory, on = estimate.memory, one_line(f"{estimate.devices} x {estimate.hardware}")
    if result.outcome == "refused":
        return [name, verdict, "", "", say.gib(memory.capacity_bytes), "", on, "", "", rules]
    return [
        name,
        verdict,
        say.gib(memory.device_bytes),
        say.grouped(say.cluster_speed(estimate)),
        say.gib(memory.capacity_bytes),
        say.margin_text(memory.headroom_bytes),
        on,
        str(memory.binding_stage),
        say.amount(estimate.throughput.step_seconds),
        rules,
    ]


def verdict_line(result: Checked) -> str:
    """Return the verdict with its margin, or the first reason for having none."""
    verdict = say.words(result.outcome)
    if result.estimate is None or result.outcome == "refused":
        more = f" (and {len(result.reasons) - 1} more)" if len(result.reasons) > 1 else ""
        return f"{verdict}: {_below(result, result.reasons[0])}{more}" if result.reasons else verdict
    memory = result.estimate.memory
    size = f"needs {say.gib(memory.device_bytes)} of {say.gib(memory.capacity_bytes)} GiB"
    line = (
        f"{verdict}: {size}, {say.margin_text(memory.headroom_bytes)}; stage {memory.binding_stage} at {memory.moment}"
    )
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
        yield from say.length_lines(estimate)
        yield from range_line(result)
    # A refused layout has no figures: no run can have it.
    if estimate is not None and result.outcome != "refused":
        parts = say.largest_parts(estimate.memory.parts_bytes)
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
        seconds = f"{say.amount(step.low)} to {say.amount(step.high)} s a step"
        ranges = f"90 % intervals: {say.interval_text(estimate)}; {seconds}"
    yield f"{ranges}; known: {known_text(estimate)}"


def change_lines(result: Checked) -> Iterator[str]:
    """Yield the changes that help, with the effect of each on the recipe."""
    estimate = result.estimate
    if estimate is None:
        return
    passes = "pass" if estimate.memory.fits else "fit"
    for change in result.changes:
        verb = "may" if change.estimate.memory.undecided else "would"
        batch, before = change.estimate.global_batch_size, estimate.global_batch_size
        more = "" if batch == before else f", batch {before} -> {batch}"
        margin = say.margin_text(change.estimate.memory.headroom_bytes)
        yield f"{verb} {passes}: {change.text} ({_speed_text(change.speed_ratio)}, {margin}{more})"


def room_line(result: Checked) -> Iterator[str]:
    """Yield the room that the recipe leaves on its devices, where that was asked."""
    room = result.room
    if room is not None:
        sequence = f"sequence of {room.seq_length}" if room.seq_length else "no sequence"
        batch = f"micro batch of {room.micro_batch_size}" if room.micro_batch_size else "no micro batch"
        yield f"largest that fits, all else the same: {sequence}; {batch}"


def where_text(estimate: Estimate) -> str:
    """Return what was priced on what, on one line."""
    parts = [say.layout_text(estimate.layout), f"seq {estimate.seq_length}", f"batch {estimate.global_batch_size}"]
    parts += ["SP"] if estimate.layout.sequence_parallel else []
    parts.append(f"ZeRO {estimate.layout.zero_stage}")
    parts += [adapters_text(estimate.lora_rank, estimate.question.options)] if estimate.lora_rank else []
    on = f"{estimate.model} on {estimate.devices} x {estimate.hardware}, {estimate.precision}"
    return f"{on}, {' '.join(parts)}"


def _peak_lines(result: Checked) -> Iterator[str]:
    peaks, plain = result.peaks, result.without_offload
    if peaks is None:
        return
    passes, step = peaks.passes, peaks.optimizer_step
    line = f"peaks, GiB: forward and backward {say.gib(passes.device_bytes)} (stage {passes.stage})"
    yield f"{line}, optimizer step {say.gib(step.device_bytes)} (stage {step.stage})"
    if plain is not None:
        need = f"{say.gib(plain.memory.device_bytes)} of {say.gib(plain.memory.capacity_bytes)} GiB"
        margin = say.margin_text(plain.memory.headroom_bytes)
        yield f"without offloading: {say.words(plain.verdict)}, needs {need}, {margin}"


def _speed_text(ratio: float) -> str:
    """Return a ratio of speeds per device as a gain or a loss."""
    if abs(ratio - 1) < 5e-4:
        return "same speed"
    return f"{say.percent(abs(ratio - 1))} % {'faster' if ratio > 1 else 'slower'} per device"


def changed_line(change: Changed) -> str:
    """Return what changed since the baseline, on one line."""
    before, after = change.before, change.after
    if after is None:
        return f"removed: {change.name}: in the baseline only"
    if before is None:
        return f"{say.words(change.kind)}: {change.name}: {say.words(after.outcome)}, not in the baseline"
    text = f"{say.words(change.kind)}: {change.name}: {say.words(before.outcome)}"
    if before.outcome != after.outcome:
        text += f" -> {say.words(after.outcome)}"
    for label, ratio in zip(("memory", "step time"), after.ratios_to(before), strict=True):
        if ratio is not None and abs(ratio - 1) >= 5e-4:
            text += f", {label} {100 * (ratio - 1):+.1f} %"
    return text


_PLURALS = {"fits": "fit", "does_not_fit": "do not fit"}


def tally(results: Sequence[Checked]) -> str:
    """Return the number of recipes by verdict, without one, and failing, on one line."""
    counts = Counter(result.outcome for result in results)

    def counted(outcomes: Iterable[CheckOutcome]) -> str:
        plurals = {outcome: _PLURALS.get(outcome, say.words(outcome)) for outcome in outcomes}
        names = ((counts[o], plural if counts[o] > 1 else say.words(o)) for o, plural in plurals.items() if counts[o])
        return ", ".join(f"{count} {name}" for count, name in names)

    unjudged = sum(counts[outcome] for outcome in NOT_JUDGED)
    passed_over = [result.reasons[0] for result in results if result.outcome == "skipped" and result.reasons]
    left_out, settings = (sum(words in text for text in passed_over) for words in (LEFT_OUT, OWN_SETTINGS))
    recipes, skipped = len(results) - counts["skipped"], counts["skipped"] - left_out - settings
    parts = [counted(FIRM) or "none judged"]
    parts += [f"{unjudged} not judged ({counted(NOT_JUDGED)})"] if unjudged else []
    failed = sum(not result.passed and not result.known for result in results)
    known = sum(result.known for result in results)
    parts.append(f"{failed} failed" + (f", and {known} as in the baseline" if known else ""))
    parts += [f"{skipped} file{'' if skipped == 1 else 's'} skipped: no training"] if skipped else []
    parts += [f"{left_out} left out by .simulate.yaml"] if left_out else []
    return f"{recipes} recipe{'' if recipes == 1 else 's'}: {'; '.join(parts)}"


def reason(result: Checked) -> str:
    """Return the reason of a recipe's verdict: the first clause, without file and lines."""
    if result.outcome in ("fits", "starved", "does_not_fit"):
        return ""
    text = result.reasons[0] if result.reasons else ""
    text = _PLACE.sub("", text.removeprefix(result.file))
    text = _FOLLOWS.split(text, maxsplit=1)[0]
    return _FIGURES.sub("N", text.removeprefix("starts no training: ")).strip()


_FIGURES = re.compile(r"(?<![\w.-])[0-9][0-9,]*(?:\.[0-9]+)?(?= %| GiB|,? to | more|[ ,;:]|$)")
"""Numbers of a reason, by which the same reason would be many."""
_PLACE = re.compile(r"^(?::[0-9]+)?: |^line [0-9]+: ")
"""Place in a reason: behind the file, or in front of the missing value."""
_FOLLOWS = re.compile(r"; |: on | \(--|, did you mean| \(and ")
"""Beginning of the rest of a reason: allowed values, and help."""


def printable(checks: Checks) -> Checks:
    """Return the verdicts with every text of a file or its name on one line, without control marks or lone surrogates.

    A runner of GitHub takes a line of any output for a command that begins with two colons, or that holds the older
    mark; no name or value begins a line so, or holds it.
    """
    changed = checks.changed and tuple(replace(c, file=_text(c.file), title=_text(c.title)) for c in checks.changed)
    return replace(checks, results=tuple(map(_printable, checks.results)), changed=changed)


def _text(text: str) -> str:
    return one_line(text).replace("##[", "# #[")


def _name(text: str) -> str:
    """Return a name that may begin a line; one that would be a command gets the folder in front."""
    name = _text(text)
    return f"./{name}" if name.startswith("::") else name


def _place(place: Place | None) -> Place | None:
    return place and replace(place, file=_name(place.file))


def _printable(result: Checked) -> Checked:
    remarks = (
        replace(remark, message=_text(remark.message), fix=_text(remark.fix), place=_place(remark.place))
        for remark in result.remarks
    )
    return replace(
        result,
        file=_name(result.file),
        title=_text(result.title),
        reasons=tuple(map(_text, result.reasons)),
        remarks=tuple(remarks),
        blame=_place(result.blame),
        estimate=result.estimate and replace(result.estimate, model=_name(result.estimate.model)),
    )


def origins_text(results: Sequence[Checked]) -> str:
    """Return each value of each recipe with who said it, and what is missing with what would tell it."""
    blocks: list[str] = []
    for result in printable(Checks(results=tuple(results), gates=Gates())).results:
        if result.outcome == "skipped":
            continue
        case = result.case
        question = Question() if case is None else case.question
        stated = [(name, said) for group in GROUPS for name, said in getattr(question, group).items()]
        rows = [(name, one_line(str(said.value)), _said_by(said.origin)) for name, said in stated]
        columns = [Column(head, tuple(row[n] for row in rows), is_text=True) for n, head in enumerate(_ORIGINS)]
        table = Presentation().columns(columns) if rows else ""
        missing = [f"not known: {_below(result, reason)}" for reason in result.reasons if case is None]
        heading_line = f"{one_line(result.name)}: {say.words(result.outcome)}"
        blocks.append("\n".join(line for line in (heading_line, table, *map(one_line, missing)) if line))
    return "\n\n".join(blocks) + "\n"


_ORIGINS = ("setting", "value", "said by")


def _said_by(origin: Origin) -> str:
    if origin.kind in ("framework", "stack", "hardware") and origin.where:
        return f"{one_line(origin.where)}'s default"
    return one_line(origin.where) or read_words("origins").get(origin.kind, origin.kind)


SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def check_junit(checks: Checks, _shown: Presentation) -> str:
    """Return a test suite with one case per recipe."""
    results = printable(checks).results
    failing = [result for result in results if not result.passed and not result.known]
    failures = sum(result.outcome not in NOT_JUDGED for result in failing)
    errors = len(failing) - failures
    counts = {"tests": str(len(results)), "failures": str(failures), "errors": str(errors)}
    skipped = sum(_is_skipped(result) for result in results)
    root = ET.Element("testsuites", {"name": "simulate check", **counts})
    suite = ET.SubElement(root, "testsuite", {"name": "simulate check", **counts, "skipped": str(skipped)})
    for result in results:
        # Jenkins' schema has no attributes for file and line: they are in the text.
        names = {"classname": _xml(result.dialect or "recipe"), "name": _xml(result.name)}
        case = ET.SubElement(suite, "testcase", names)
        place = [] if result.blame is None else [f"at {result.blame.file}:{result.blame.line}"]
        details = _xml("\n".join([*place, *detail_lines(result)]))
        if not result.passed and not result.known:
            kind = "error" if result.outcome in NOT_JUDGED else "failure"
            attributes = {"message": _xml(verdict_line(result)), "type": result.outcome}
            ET.SubElement(case, kind, attributes).text = details
        elif _is_skipped(result):
            ET.SubElement(case, "skipped", {"message": _xml(verdict_line(result))})
        else:
            ET.SubElement(case, "system-out").text = details
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _is_skipped(result: Checked) -> bool:
    """Tell whether a passing recipe has no verdict."""
    return (result.passed or result.known) and result.outcome not in FIRM


def _xml(text: str) -> str:
    """Replace characters that XML cannot hold."""
    return "".join(
        mark if mark in "\t\n\r" or 0x20 <= ord(mark) < 0xD800 or ord(mark) >= 0xE000 else "?" for mark in text
    )


def check_sarif(checks: Checks, _shown: Presentation) -> str:
    """Return the failures and warnings as SARIF."""
    results = [item for result in printable(checks).results for item in _sarif_results(result)]
    ids = dict.fromkeys(item["ruleId"] for item in results)
    rules = [_sarif_rule(rule) for rule in ids]
    for item in results:
        item["ruleIndex"] = list(ids).index(item["ruleId"])
    driver = {"name": "simulate", "version": __version__, "semanticVersion": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return say.dumps({"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}) + "\n"


_PAGE = "docs/check.md"
_PARTS = ("what-frameworks-refuse", "verdicts")


def _sarif_rule(rule: str) -> dict[str, Any]:
    """Return a rule with what it is about, and where the documentation says more."""
    name = "".join(word.capitalize() for word in rule.replace("_", "-").split("-"))
    known = next((known for known in FRAMEWORK_RULES if known.id == rule), None)
    text = rule_text(rule)
    page = f"{_PAGE}#{_PARTS[known is None]}"
    source = "" if known is None else f" Fix: {known.fix}. Source: {known.source}."
    return {
        "id": rule,
        "name": name,
        "shortDescription": {"text": text},
        "fullDescription": {"text": f"{text[:1].upper()}{text[1:]}."},
        "help": {"text": f"{text}.{source} More: {page}", "markdown": f"{text}.{source} More: `{page}`"},
    }


def _sarif_results(result: Checked) -> Iterator[dict[str, Any]]:
    """Yield what a person must act on: the errors of a recipe that fails, or that its verdict is open, by a warning.

    A failure without a rule of its own is the verdict's; what passes with a verdict yields nothing but changed
    settings.
    """
    fails = not result.passed and not result.known
    is_open = result.outcome in NOT_JUDGED and not result.known
    level = "error" if fails and not is_open else "warning"
    errors = [remark for remark in result.remarks if remark.severity == "error"] if fails or is_open else []
    for remark in errors[:1] if is_open else errors:
        text = remark.message + (f" Fix: {remark.fix}" if remark.fix else "")
        yield _sarif(remark.rule, level, text, remark.place or Place(result.file, 1), result)
    if (fails or is_open) and not errors:
        text = "\n".join([verdict_line(result), *change_lines(result)])
        yield _sarif(result.outcome.replace("_", "-"), level, text, result.blame or Place(result.file, 1), result)
    for remark in result.remarks:
        if remark.rule == CHANGED:
            yield _sarif(remark.rule, "warning", remark.message, remark.place or Place(result.file, 1), result)


def _sarif(rule: str, level: str, text: str, place: Place, result: Checked) -> dict[str, Any]:
    file = _within(place.file)
    location = {
        "artifactLocation": {"uri": quote(file, errors="surrogateescape"), "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": max(place.line, 1)},
    }
    # Neither lines nor figures, which change with every edit: the same finding stays the same.
    same = "\0".join([rule, file, _within(result.file), result.title, _FIGURE.sub("", text.partition("\n")[0])])
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"simulateCheck/v1": sha256(same.encode("utf-8", "surrogatepass")).hexdigest()[:32]},
    }


_FIGURE = re.compile(r"[0-9][0-9.,]*")


def _within(file: str) -> str:
    """Return a path without steps up and down, from the working folder where that is above it."""
    if "\0" in file:
        return file
    path = os.path.normpath(file)
    beside = os.path.relpath(path) if os.path.isabs(path) else path  # noqa: PTH117  text alone
    return (path if beside.startswith("..") else beside).replace("\\", "/")


MOST_ANNOTATIONS = 10
"""Most annotations of a kind that GitHub shows for a step."""
MOST_NAMES = 50
"""Most files that an annotation names."""
MOST_SUMMARY_BYTES = 1_000_000
"""Largest summary of a step: GitHub refuses one above 1 MiB."""


class _Annotation(Record):
    kind: str
    file: str
    line: int
    title: str
    message: str
    group: str
    """Common part of annotations that are shown as one: the reason for a verdict, the rule of a warning."""

    def command(self, more: Collection[str] = ()) -> str:
        """Return the workflow command; `more` are the other files of the group."""
        place = f"file={_property(_within(self.file))},line={self.line}," if self.file else ""
        text = f"{self.message}\nso in {_names_text(more)}" if more else self.message
        return f"::{self.kind} {place}title={_property(self.title)}::{_data(text)}"


def check_github(checks: Checks, _shown: Presentation) -> str:
    """Return the tally and the annotations, at most ten of a kind: each failure, and each reason for anything else."""
    results = printable(checks).results
    lines = [tally(results)]
    annotations = [item for result in results for item in _annotations(result)]
    for kind in ("error", "warning", "notice"):
        groups: dict[str, list[_Annotation]] = {}
        for item in annotations:
            if item.kind == kind:
                groups.setdefault(item.group, []).append(item)
        ordered = sorted(groups.values(), key=lambda group: -len(group))
        shown = ordered if len(ordered) <= MOST_ANNOTATIONS else ordered[: MOST_ANNOTATIONS - 1]
        for first, *others in shown:
            lines.append(first.command(dict.fromkeys(item.file for item in others if item.file != first.file)))
        if hidden := [item for group in ordered[len(shown) :] for item in group]:
            names = list(dict.fromkeys(item.file for item in hidden))
            lines.append(_Annotation(kind, "", 1, f"{len(hidden)} more", f"also: {_names_text(names)}", "").command())
    return "\n".join(lines) + "\n"


def _names_text(names: Collection[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more files" if len(names) > MOST_NAMES else ""
    return f"{', '.join(list(names)[:MOST_NAMES])}{more}"


def github_summary(checks: Checks, shown: Presentation) -> str:
    """Return the job summary as Markdown, cut to GitHub's limit."""
    text = f"## Recipes\n\n{check_table(checks, replace(shown, style='markdown'))}\n"
    data = text.encode()
    if len(data) <= MOST_SUMMARY_BYTES:
        return text
    return data[:MOST_SUMMARY_BYTES].decode("utf-8", "ignore").rpartition("\n")[0] + "\n\n(cut)\n"


def _annotations(result: Checked) -> Iterator[_Annotation]:
    """Yield the annotations of one recipe: a failure, a warning, or that it was not judged."""
    failed = not result.passed and not result.known
    if failed or result.outcome == "starved" or result.outcome in NOT_JUDGED:
        place = result.blame or Place(result.file, 1)
        text = [verdict_line(result), *change_lines(result)]
        text += [f"fix: {remark.fix}" for remark in result.remarks if remark.severity == "error" and remark.fix]
        kind = "error" if failed else "notice" if result.outcome in NOT_JUDGED else "warning"
        title = f"simulate check: {result.outcome.replace('_', ' ')}"
        why = reason(result) if kind == "notice" else f"{place.file}:{place.line}: {text[0]}"
        group = f"{result.outcome}: {why}"
        yield _Annotation(kind, place.file, place.line, title, "\n".join(text), group)
    for remark in result.remarks:
        if remark.severity == "warning" and remark.place is not None:
            message = remark.message + (f"\nfix: {remark.fix}" if remark.fix else "")
            alone = f": {remark.place}" if remark.rule == CHANGED else ""
            group = f"{remark.rule}{alone}"
            yield _Annotation("warning", remark.place.file, remark.place.line, remark.rule, message, group)


def _data(text: str) -> str:
    """Escape a message: percent signs and line ends."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property, with the separators of properties."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def rule_text(rule: str) -> str:
    """Return the subject of a rule; the rule's name as words where it is in no list."""
    return rule_titles().get(rule) or f"a remark of the recipe's reader: {rule.replace('-', ' ')}"
