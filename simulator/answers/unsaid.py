"""What nobody said of a run, switches and lengths, and the range of the answer over all values that they may have.

`simulate estimate --model llama3.1-8b --hardware h100 --devices 8 --tp 2` names no stack: whether gradients are reduced
in 16 bits, losses are fused or collectives overlapped is open. The layout is priced with each value that runs of the
framework have (`Practice`), and at four ends: least and most memory, fastest and slowest. Of lengths that differ it is
said where a run fails, and how fast it may be if only the longest is known; `measured_lengths` are those of a data set.
`answers.ranking` asks for both; `question.scenario` holds the lengths as a value, `show.report.text` writes them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

from simulator.cost.derived import pricing_of
from simulator.cost.pricing.estimate import Contribution, Estimate, Interval, OpenRange, OpenSwitch, Provenance, Verdict
from simulator.cost.pricing.price import FITS, Priced, size
from simulator.errors import InputError, quoted
from simulator.evidence.calibration.apply import NORMAL_90, normal_below
from simulator.question.frameworks.profile import FrameworkProfile, switch_value, switches
from simulator.question.frameworks.stacks import DEFAULT, Practice, decided_by, practice_of
from simulator.question.question import Question
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.lengths import Lengths
from simulator.question.scenario.scenario import Scenario
from simulator.search.alternatives import MIN_CHANGE, concerns, has_kernels, option_text, switched_anew
from simulator.search.build import estimate_layout, verdict_of
from simulator.tabular import replaced


def with_failing_length(estimate: Estimate, scenario: Scenario, layout: Layout) -> Estimate:
    """Return an estimate with the longest sequence that fits, and its range over what a bound leaves open."""
    about, lengths = estimate.lengths, scenario.lengths
    if about is None or lengths is None:
        return estimate
    longest = longest_that_fits(scenario, layout, lengths.longest if not lengths.packs else lengths.package)
    if longest is not None:
        samples = scenario.global_batch_size * scenario.framework.sequences_per_sample
        about = replace(about, fits_to=longest, failing_steps=lengths.beyond(longest, samples))
    if not lengths.bound:
        return replaced(estimate, lengths=about)
    shortest, speed = (
        estimate_layout(replace(scenario, lengths=lengths.shortest()), layout).throughput,
        estimate.throughput,
    )
    about = replace(
        about,
        shortest_step_seconds=shortest.step_seconds,
        shortest_tokens_per_second_per_device=shortest.tokens_per_second_per_device,
    )
    ends = [each.interval_seconds or Interval(each.step_seconds, each.step_seconds) for each in (shortest, speed)]
    interval = Interval(min(end.low for end in ends), max(end.high for end in ends))
    return replaced(estimate, lengths=about, throughput=replace(speed, interval_seconds=interval))


def longest_that_fits(scenario: Scenario, layout: Layout, most: int) -> int | None:
    """Return the tokens of the longest sequence that fits, 0 for none; None where one of `most` tokens does."""

    def fits(tokens: int) -> bool:
        return bool(size(pricing_of(scenario.of_length(tokens), layout)).verdict[0] == FITS)

    return None if fits(most) else last_that(fits, 0, most)


def last_that(fits: Callable[[int], bool], low: int, high: int) -> int:
    """Return the last number from `low` on that fits, by halving; `high` and what follows it do not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class MeasuredLengths(NamedTuple):
    """Lengths of the samples of a data set, by their characters."""

    histogram: str
    """Lines of length and count, ascending, under a head."""
    remarks: tuple[str, ...]
    """What they are, and how far they may be from tokens."""


def measured_lengths(file: str, field: str, characters_per_token: float) -> MeasuredLengths:
    """Return the lengths of the texts in a field of every line of a file. Raises InputError, with the line."""
    counts: Counter[int] = Counter()
    kinds: Counter[str] = Counter()
    for number, line in _lines(file):
        text = _text(f"{file}:{number}", line, field)
        kinds.update(dict(zip(_CHARACTERS, _by_kind(text), strict=True)))
        counts[max(math.ceil(len(text) / characters_per_token), 1)] += 1
    samples, characters = counts.total(), kinds.total()
    if not samples:
        raise InputError(f"{file}: holds no samples")
    tokens = sum(kinds[name] / usual for name, usual in _CHARACTERS.items())
    usual = characters / tokens if tokens else characters_per_token
    off = max(_LEAST_ERROR, abs(characters_per_token / usual - 1.0))
    lengths = Lengths.read(counts)
    points = ", ".join(f"p{share} {replace(lengths, survive=share / 100.0).fullest(1):,}" for share in (50, 90, 99))
    error = f"of characters / {characters_per_token:g}: ± {100 * off:.0f} %;"
    return MeasuredLengths(
        "length,count\n" + "".join(f"{length},{count}\n" for length, count in sorted(counts.items())),
        (
            f"{samples:,} samples: mean {lengths.segments(1).mean:,.0f}, {points}, longest {lengths.longest:,} tokens",
            f"{error} by its letters, digits and scripts a token has about {usual:.1f} characters (--chars-per-token)",
        ),
    )


_CHARACTERS: Final = {"letters": 4.4, "digits": 1.6, "marks": 1.8, "wide": 1.4, "others": 2.2}
"""Characters a token of tokenizers with 100,000 to 200,000 entries: Latin letters and spaces, digits, punctuation,
scripts of East Asia, other scripts."""
_LEAST_ERROR: Final = 0.15
"""Least relative error of a length that is told by characters."""
_KINDS: Final = (r"[A-Za-z\s]", r"[0-9]", r"[!-/:-@\[-`{-~]", r"[\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef]")


def _by_kind(text: str) -> list[int]:
    counts = [len(re.findall(kind, text)) for kind in _KINDS]
    return [*counts, len(text) - sum(counts)]


def _lines(file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that hold something, with their numbers. Raises InputError."""
    try:
        with Path(file).open(encoding="utf-8-sig") as stream:
            yield from ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _text(place: str, line: str, field: str) -> str:
    """Return the text of a sample: of the field, or of all messages in it. Raises InputError."""
    try:
        sample = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place}: no JSON: {error}") from error
    if not isinstance(sample, dict) or field not in sample:
        fields = ", ".join(map(str, list(sample)[:8])) if isinstance(sample, dict) else "none"
        raise InputError(f"{place}: has no field {quoted(field)}; its fields: {fields} (--field NAME)")
    value = sample[field]
    if isinstance(value, list):
        parts = [part.get("content", part.get("value", "")) if isinstance(part, dict) else part for part in value]
        value = "\n".join(part for part in parts if isinstance(part, str))
    if not isinstance(value, str):
        raise InputError(f"{place}: field {quoted(field)} holds no text")
    return value


SPAN_SHARE: Final = 0.85
"""Part of the way to an end that joins a 90 % range on its side; with it and `UNSAID_STACK` 90 % of rows asked plainly
lie inside, sources left out (`python -m benchmarks.accuracy --plain`)."""
UNSAID_STACK: Final[Mapping[str, float]] = MappingProxyType({"time": 0.18, "memory": 0.1})
"""Half width, in the logarithm, for software that no switch describes: kernels and releases of another year."""
FIRM_NO, FIRM_YES = 0.05, 0.95
"""Probability to fit below which the most favourable end is a firm no, and above which the answer is a firm yes."""
DOCUMENTED_SHARE: Final = 0.2
"""Share of runs with a value that documents name and that no public recipe could be counted for."""

_FIELDS: Final = {field.name: field for field in switches()}


def is_open(question: Question, priced: Priced) -> bool:
    """Return whether a run's stack is open: one that leaves switches open, or none that was said or hardware has."""
    stack = priced.pricing.scenario.framework.stack
    return _is_unsaid(question, priced, DEFAULT) or (_is_described(question) and decided_by(stack) is not None)


def _is_unsaid(question: Question, priced: Priced, stack: str | None) -> bool:
    """Return whether a run has this stack though nobody said it."""
    present = priced.pricing.scenario.framework.stack
    return _is_described(question) and present == stack and question.origin("stack").kind == "nobody"


def _is_described(question: Question) -> bool:
    """Return whether inputs describe the run, and no recipe that says its switches."""
    return bool(question.inputs) and question.recipe is None


def over_open(
    question: Question, estimate: Estimate, base: Priced, release: FrameworkProfile | None = None
) -> Estimate:
    """Return an estimate with ranges, probability and verdict over what is open; unchanged where nothing is.

    `base` is its block of one layout; `release` the release that a search would assume, whose switches the run may
    have too. A refused layout stays refused. A stack that hardware brings decides its switches; its release is open
    where no measured run has them.
    """
    if estimate.verdict == "refused":
        return estimate
    of_hardware = _is_unsaid(question, base, base.pricing.scenario.hardware.stack)
    if of_hardware and estimate.provenance.stack != "measured":
        return _with_time(estimate)
    if not is_open(question, base):
        return estimate
    open_switches = tuple(_open_switches(question, base, release))
    if not open_switches:
        return estimate
    ends = [_end(base, open_switches, figure) for figure in _ENDS]
    # Switches act on each other: an end may lie inside of what one switch does alone.
    needs = [float(each.need_bytes[0]) for each in (base, *ends)]
    needs += [needs[0] + switch.memory_bytes for switch in open_switches]
    steps = [float(each.step.total[0]) for each in (base, *ends)]
    steps += [steps[0] / (1.0 + switch.speed_change) for switch in open_switches]
    span = OpenRange(
        switches=tuple(sorted(open_switches, key=_worth(estimate), reverse=True)),
        least_bytes=min(needs),
        most_bytes=max(needs),
        fastest_seconds=min(steps),
        slowest_seconds=max(steps),
        usual_verdict=verdict_of(base, 0),
    )
    return _judged(estimate, span)


_Figure = Callable[[OpenSwitch], float]
"""Effect of a switch that an end makes as small as it can be."""
_ENDS: Final[tuple[_Figure, ...]] = (
    lambda switch: switch.memory_bytes,
    lambda switch: -switch.memory_bytes,
    lambda switch: -switch.speed_change,
    lambda switch: switch.speed_change,
)
"""Least and most memory, fastest and slowest."""


def _worth(estimate: Estimate) -> _Figure:
    """Return the key that sorts switches by what they move: speed, or memory over capacity."""
    capacity = estimate.memory.capacity_bytes
    return lambda switch: max(abs(switch.speed_change), abs(switch.memory_bytes) / capacity)


def _open_switches(question: Question, base: Priced, release: FrameworkProfile | None) -> Iterator[OpenSwitch]:
    """Yield the values beside the present ones that move speed or memory of the layout."""
    scenario, profile = base.pricing.scenario, base.pricing.scenario.framework
    decided = {*question.switches, *(decided_by(profile.stack) or ())}
    practice = practice_of(profile.name, adapters=scenario.lora_rank is not None)
    for each in (*practice, *_of_release(profile, release)):
        values = _values(profile, {each.switch: each.text, **each.others})
        value, usual = values[each.switch], getattr(profile, each.switch)
        # A choice stays open beside a decided switch that has the value it brings.
        against = any(name in decided and values[name] != getattr(profile, name) for name in each.others)
        if each.switch in decided or against or value == usual or not concerns(scenario, each.switch):
            continue
        elsewhere = each.families and any(kind.family not in each.families for kind in scenario.kinds_of_device)
        if elsewhere or not has_kernels(scenario, each.switch, value):
            continue
        changed = switched_anew(base, values)
        speed = float(base.step.total[0] / changed.step.total[0]) - 1.0
        memory = float(changed.need_bytes[0] - base.need_bytes[0])
        if max(abs(speed), abs(memory) / float(base.need_bytes[0])) >= MIN_CHANGE:
            yield _open_switch(each, option_text(usual), speed, memory, changed)


def _values(profile: FrameworkProfile, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return values of switches by name, from their texts."""
    return {name: switch_value(_FIELDS[name], text, getattr(profile, name)) for name, text in texts.items()}


def _of_release(profile: FrameworkProfile, release: FrameworkProfile | None) -> Iterator[Practice]:
    """Yield the values of a release that nobody named, beside those of the profile."""
    if release is None:
        return
    known = {(each.switch, each.text) for each in practice_of(profile.name)}
    for name in _FIELDS:
        text = option_text(getattr(release, name))
        if getattr(profile, name) != getattr(release, name) and text and (name, text) not in known:
            yield Practice(name, text, None, (), f"recipes of {release.stack}")


def _open_switch(practice: Practice, usual: str, speed: float, memory: float, changed: Priced) -> OpenSwitch:
    return OpenSwitch(
        switch=practice.switch,
        value=usual,
        other=practice.text,
        share=practice.share,
        source=practice.source,
        speed_change=speed,
        memory_bytes=memory,
        verdict=verdict_of(changed, 0),
        others=dict(practice.others),
    )


def _end(base: Priced, open_switches: tuple[OpenSwitch, ...], figure: _Figure) -> Priced:
    """Return the layout with every switch at the value of its smallest figure, today's value being 0."""
    best: dict[str, OpenSwitch] = {}
    for switch in open_switches:
        if figure(switch) < min(0.0, figure(best[switch.switch]) if switch.switch in best else 0.0):
            best[switch.switch] = switch
    if not best:
        return base
    profile = base.pricing.scenario.framework
    texts = {
        name: text for switch in best.values() for name, text in ((switch.switch, switch.other), *switch.others.items())
    }
    return switched_anew(base, _values(profile, texts))


def _judged(estimate: Estimate, span: OpenRange) -> Estimate:
    """Return the estimate with its ranges joined with the span, and its verdict over what is open."""
    memory, speed = estimate.memory, estimate.throughput
    if memory.interval_bytes is None or memory.fit_probability is None or speed.interval_seconds is None:
        return replaced(estimate, open=span, verdict=_verdict_of_ends(estimate, span))
    step = speed.step_seconds
    estimate = _with_time(estimate, math.log(step / span.fastest_seconds), math.log(span.slowest_seconds / step))
    own = math.log(memory.interval_bytes.high / memory.device_bytes)
    low = _half_width("memory", own, math.log(memory.need_bytes / span.least_bytes))
    high = _half_width("memory", own, math.log(span.most_bytes / memory.need_bytes))
    probability, verdict = _fitting(estimate, span, own)
    return replaced(
        estimate,
        open=span,
        verdict=verdict,
        provenance=_contributed(estimate.provenance, "memory", math.sqrt((0.5 * (low + high)) ** 2 - own**2)),
        memory=replace(
            memory,
            interval_bytes=Interval(memory.device_bytes * math.exp(-low), memory.device_bytes * math.exp(high)),
            fit_probability=probability,
        ),
    )


def _with_time(estimate: Estimate, sooner: float = 0.0, later: float = 0.0) -> Estimate:
    """Return the estimate with its range of time joined with the way to either end, in the logarithm."""
    speed = estimate.throughput
    if speed.interval_seconds is None:
        return estimate
    step = speed.step_seconds
    own = math.log(speed.interval_seconds.high / step)
    low, high = (_half_width("time", own, span) for span in (sooner, later))
    return replaced(
        estimate,
        provenance=_contributed(estimate.provenance, "time", math.sqrt((0.5 * (low + high)) ** 2 - own**2)),
        throughput=replace(speed, interval_seconds=Interval(step * math.exp(-low), step * math.exp(high))),
    )


def _contributed(provenance: Provenance, figure: Literal["memory", "time"], half_width: float) -> Provenance:
    """Return a provenance with what nobody said as a further contribution to a range."""
    unsaid = Contribution(figure, "unsaid", half_width, "switches and releases that nobody said")
    parts = sorted((*provenance.contributions, unsaid), key=lambda part: (part.figure, -part.half_width))
    return replace(provenance, contributions=tuple(parts))


def _fitting(estimate: Estimate, span: OpenRange, own: float) -> tuple[float, Verdict]:
    """Return the probability to fit over the shares of what is open, and the verdict; `own` as of `_half_width`."""
    memory = estimate.memory
    if memory.fits_host is False:  # offloaded bytes are counted, not estimated
        return 0.0, "does_not_fit"
    room = math.log(memory.capacity_bytes / memory.need_bytes)
    shares, moved = _moves(memory.need_bytes, span)
    deviation = math.hypot(own, UNSAID_STACK["memory"]) / NORMAL_90
    probability = sum(
        share * normal_below((room - change) / deviation) for share, change in zip(shares, moved, strict=True)
    )
    probability = min(probability, memory.surest)
    favourable = room + math.log(memory.need_bytes / span.least_bytes)
    if max(probability, normal_below(favourable * NORMAL_90 / own)) < FIRM_NO:
        return probability, "does_not_fit"
    if probability < FIRM_YES:
        return probability, "depends"
    return probability, "starved" if estimate.verdict == "starved" else "fits"


def _verdict_of_ends(estimate: Estimate, span: OpenRange) -> Verdict:
    """Return the verdict without a calibration: firm where both ends say the same."""
    capacity = estimate.memory.capacity_bytes
    if estimate.verdict == "does_not_fit":
        return "does_not_fit" if span.least_bytes > capacity else "depends"
    return estimate.verdict if span.most_bytes <= capacity else "depends"


def _moves(need_bytes: float, span: OpenRange) -> tuple[list[float], list[float]]:
    """Return what the logarithm of the need over today's may be, first the share of each case.

    A case is a value of every switch; switches are independent, and together move no further than the span.
    """
    lowest, highest = (math.log(end / need_bytes) for end in (span.least_bytes, span.most_bytes))
    cases = {0.0: 1.0}
    for name in span.names:
        values = [switch for switch in span.switches if switch.switch == name]
        shares = [DOCUMENTED_SHARE if switch.share is None else switch.share for switch in values]
        moved = [math.log1p(switch.memory_bytes / need_bytes) for switch in values]
        options = [(max(1.0 - sum(shares), 0.0), 0.0), *zip(shares, moved, strict=True)]
        longer: defaultdict[float, float] = defaultdict(float)
        for change, weight in cases.items():
            for share, step in options:
                longer[round(min(max(change + step, lowest), highest), _DIGITS)] += weight * share
        cases = longer
    whole = sum(cases.values())
    return [weight / whole for weight in cases.values()], list(cases)


_DIGITS: Final = 3
"""Digits of a logarithm that tell cases apart: a thousandth of the need."""


def _half_width(figure: str, own: float, span: float) -> float:
    """Return the half of a 90 % range, in the logarithm: the fit's own joined with a share of the way to an end."""
    return math.hypot(own, SPAN_SHARE * span, UNSAID_STACK[figure])
