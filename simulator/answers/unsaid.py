"""Open switches: what nobody said of a run, and the range of the answer over all values that they may have.

`simulate estimate --model llama3.1-8b --hardware h100 --devices 8 --tp 2` names no stack: whether gradients are reduced
in 16 bits, losses are fused or collectives overlapped is open. The layout is priced with each value that runs of the
framework have (`Practice`), and at four ends: least and most memory, fastest and slowest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np

from simulator.cost.derived import Pricing, pricing_of
from simulator.cost.pricing.estimate import (
    AssumedSwitch,
    Contribution,
    Estimate,
    Interval,
    MemoryEstimate,
    OpenRange,
    OpenSwitch,
    Provenance,
    Verdict,
)
from simulator.cost.pricing.price import Priced, Sized, price, size, timed
from simulator.evidence.calibration.apply import NORMAL_90, normal_below
from simulator.late import deferred
from simulator.question.arrays import Index, Mask
from simulator.question.frameworks.profile import FrameworkProfile, switch_value, switches
from simulator.question.frameworks.stacks import DEFAULT, Practice, decided_by, practice_of, profile_of
from simulator.question.question import SEARCH, Question
from simulator.question.scenario.block import Array
from simulator.question.scenario.scenario import Scenario
from simulator.records import replace
from simulator.search.alternatives import MIN_CHANGE, option_text, suits
from simulator.search.build import estimates_of_block, verdict_of
from simulator.search.space import Query

UNSAID_STACK: Final[Mapping[str, float]] = MappingProxyType({"time": 0.18, "memory": 0.2})
"""Half width, in the logarithm, for software that no switch describes: kernels and releases of another year."""
FIRM_NO, FIRM_YES = 0.05, 0.95
"""Probability to fit below which the most favourable end is a firm no, and above which the answer is a firm yes."""
DOCUMENTED_SHARE: Final = 0.2
"""Share of runs with a value that documents name and that no public recipe could be counted for."""

_Release = FrameworkProfile | None
_Value = tuple[Practice | OpenSwitch, dict[str, Any]]
"""A value that runs may have, and what sets it."""
_FIELDS: Final = {field.name: field for field in switches()}


def over_open(
    question: Question, estimate: Estimate, alone: Pricing, release: _Release = None, *, in_short: str = ""
) -> Estimate:
    """Return an estimate with ranges, probability and verdict over what is open; unchanged where nothing is.

    Open is a stack that leaves switches open, or none that was said or hardware has; a recipe says its switches.
    `alone` is its block of one layout; `release` what a search would assume, whose switches the run may have too.
    `in_short`, what surely does not fit comes as `depends`, without ranges; `fits` leaves them out of what fits too.
    """
    if estimate.verdict == "refused" or not question.inputs or question.recipe is not None:
        return estimate
    scenario = alone.scenario
    brought = question.origin("stack").kind == "nobody" and scenario.framework.stack == scenario.hardware.stack
    if brought and estimate.provenance.stack != "measured":
        return _with_time(estimate)
    if not is_open(question, scenario) or next(_open_values(question, alone, release), None) is None:
        return estimate
    sized = size(alone.watched)
    if in_short and (short := _in_short(question, estimate, sized, release, in_short)) is not estimate:
        return short
    if not (open_switches := tuple(_open_switches(question, base := timed(sized), release))):
        return estimate
    ends = [_end(base, open_switches, figure) for figure in _ENDS]
    # Switches act on each other: an end may lie inside of what one switch does alone.
    needs = [float(each.need_bytes[0]) for each in (base, *ends)]
    needs += [needs[0] + switch.need_bytes for switch in open_switches]
    sizes = [float(each.device_bytes[0]) for each in (base, *ends)]
    sizes += [sizes[0] + switch.memory_bytes for switch in open_switches]
    steps = [float(each.step.total[0]) for each in (base, *ends)]
    steps += [steps[0] / (1.0 + switch.speed_change) for switch in open_switches]
    capacity = estimate.memory.capacity_bytes
    span = OpenRange(
        switches=tuple(sorted(open_switches, key=lambda x: -max(abs(x.speed_change), abs(x.memory_bytes) / capacity))),
        least_bytes=min(needs),
        most_bytes=max(needs),
        least_device_bytes=min(sizes),
        most_device_bytes=max(sizes),
        fastest_seconds=min(steps),
        slowest_seconds=max(steps),
        usual_verdict=verdict_of(base, 0),
    )
    return _judged(replace(estimate, assumed=deferred(lambda: _assumed(estimate, span))), span)


def is_open(question: Question, scenario: Scenario) -> bool:
    """Return whether switches are open: of a stack that leaves some, or of one that nobody said."""
    stack, is_unsaid = scenario.framework.stack, question.origin("stack").kind == "nobody"
    open_stack = (is_unsaid and stack == DEFAULT) or decided_by(stack) is not None
    return open_stack and bool(question.inputs) and question.recipe is None


def _assumed(estimate: Estimate, span: OpenRange) -> tuple[AssumedSwitch, ...]:
    """Return the assumed switches, what changes speed most first: open ones with the value that matters most."""
    firsts = {switch.switch: switch for switch in reversed(span.switches)}
    open_ones = (
        AssumedSwitch(
            switch=switch.switch,
            value=switch.value,
            other=switch.other,
            because=switch.source,
            speed_change=1.0 / (1.0 + switch.speed_change) - 1.0,
            memory_bytes=-switch.memory_bytes,
            verdict=switch.verdict,
        )
        for switch in firsts.values()
        if not switch.others
    )
    every = (*open_ones, *(each for each in estimate.assumed if each.switch not in firsts))
    return tuple(sorted(every, key=lambda each: -abs(each.speed_change)))


_Figure = Callable[[OpenSwitch], float]  # effect of a switch that an end makes as small as it can be
_ENDS: Final[tuple[_Figure, ...]] = (
    lambda switch: switch.need_bytes,
    lambda switch: -switch.need_bytes,
    lambda switch: -switch.speed_change,
    lambda switch: switch.speed_change,
)  # least and most memory, fastest and slowest


def _open_values(question: Question, base: Pricing, release: _Release) -> Iterator[tuple[Practice, dict[str, Any]]]:
    """Yield the values beside the present ones that the layout's run may have, as practice and by name."""
    scenario, profile = base.scenario, base.scenario.framework
    decided = {*question.switches, *(decided_by(profile.stack) or ())}
    practice = practice_of(profile.name, adapters=scenario.lora_rank is not None)
    for each in (*practice, *(() if release is None else _of_release(profile, release))):
        each = _turned(each, profile)  # noqa: PLW2901  of what is present the framework's default is left
        values = _values(profile, {each.switch: each.text, **each.others})
        value, usual = values[each.switch], getattr(profile, each.switch)
        # A choice stays open beside a decided switch that has the value it brings.
        against = any(name in decided and values[name] != getattr(profile, name) for name in each.others)
        against |= each.switch == "dense_masks" and not _may_mask(base).any()
        if each.switch in decided or against or value == usual or not suits(scenario, each.switch, value):
            continue
        kinds = [kind.family not in each.families for kind in scenario.kinds_of_device]
        elsewhere = each.families and scenario.model.architecture not in each.families and any(kinds)
        if not elsewhere:
            yield each, values


def _may_mask(pricing: Pricing) -> Mask:
    """Return in which layouts sequences may be padded, or samples in them have borders, shape (n,) (M41)."""
    lengths, several = pricing.scenario.lengths, pricing.block.micro_batch_size > 1.0
    if lengths is None or not lengths.packs:
        return several
    return np.full(len(pricing), lengths.batching != "packed_across")


def _open_switches(question: Question, base: Priced, release: _Release) -> Iterator[OpenSwitch]:
    """Yield the open values that move speed or memory of the layout."""
    for each, values in _open_values(question, base.pricing, release):
        changed = price(base.pricing.switched(values))
        speed = float(base.step.total[0] / changed.step.total[0]) - 1.0
        need = float(changed.need_bytes[0] - base.need_bytes[0])
        if max(abs(speed), abs(need) / float(base.need_bytes[0])) >= MIN_CHANGE:
            memory = float(changed.device_bytes[0] - base.device_bytes[0])
            yield OpenSwitch(
                switch=each.switch,
                value=option_text(getattr(base.pricing.scenario.framework, each.switch)),
                other=each.text,
                share=each.share,
                source=each.source,
                speed_change=speed,
                memory_bytes=memory,
                need_bytes=need,
                verdict=verdict_of(changed, 0),
                others=dict(each.others),
            )


def _in_short(question: Question, estimate: Estimate, base: Sized, release: _Release, which: str) -> Estimate:
    """Return what `_chances` tell without ends in time, for which memory alone is priced; else the estimate."""
    (chance,) = _chances(question, base, [estimate.memory], release)
    if chance is not None and chance < FIRM_YES:
        return replace(estimate, verdict="depends")
    if chance is not None and which == estimate.verdict == "fits":
        return replace(estimate, memory=replace(estimate.memory, fit_probability=chance))
    return estimate


def likely_over_open(query: Query, sized: Sized, index: Index) -> Mask | None:
    """Return which layouts fit with the requested probability over what is open; None where nothing is."""
    question = query.question.with_switches(query.chosen, SEARCH)
    if not is_open(question, query.scenario) or next(_open_values(question, sized.pricing, None), None) is None:
        return None
    pricing = pricing_of(query.scenario, *map(sized.block.layout, index))
    memories = [estimate.memory for estimate in estimates_of_block(size(pricing))]
    chances = zip(_chances(question, size(pricing.watched), memories, None), memories, strict=True)
    every = [memory.fit_probability if chance is None else chance for chance, memory in chances]
    return np.array([chance is None or chance >= query.min_fit_probability for chance in every], dtype=np.bool_)


def _chances(
    question: Question, block: Sized, memories: Sequence[MemoryEstimate], release: _Release
) -> Iterator[float | None]:
    """Yield the probability of each layout of a block to fit over what is open, by its memory alone.

    None where nothing is open, or no calibration tells. Values that move time alone leave it less sure too.
    """
    values = [*_open_values(question, block.pricing, release)]
    moved = [np.log(size(block.pricing.switched(each)).need_bytes / block.need_bytes) for _, each in values]
    masked = _may_mask(block.pricing)
    moved = [move * (masked | (each.switch != "dense_masks")) for (each, _), move in zip(values, moved, strict=True)]
    ends = [_furthest(block, values, [sign * move for move in moved]) for sign in (1.0, -1.0) if moved]
    for at, memory in enumerate(memories):
        each_moves = ((each, float(move[at])) for (each, _), move in zip(values, moved, strict=True))
        moves = [(each.switch, each.share, move) for each, move in each_moves if abs(math.expm1(move)) >= MIN_CHANGE]
        if not values or memory.interval_bytes is None or memory.fits_host is False:
            yield None
            continue
        reach = (*(move for _, _, move in moves), *(float(end[at]) for end in ends))
        own = math.log(memory.interval_bytes.high / memory.device_bytes)
        yield _probability(memory, own, _moves(moves, min(0.0, *reach), max(0.0, *reach)))


def _furthest(block: Sized, values: Sequence[_Value], figures: Sequence[Array]) -> Array:
    """Return how far each layout's need moves, in the logarithm, with every switch at its smallest figure below 0."""
    furthest = np.zeros(len(block.pricing))
    for at, together in _together(values, np.array(figures)):
        furthest[at] = np.log(size(block.pricing.switched(together)).need_bytes / block.need_bytes)[at]
    return furthest


def _together(values: Sequence[_Value], figures: Array) -> Iterator[tuple[Index, dict[str, Any]]]:
    """Yield what sets every switch to its smallest figure below 0, shape (values, n), with the layouts it is of."""
    chosen, names = np.zeros(figures.shape, dtype=np.bool_), [each.switch for each, _ in values]
    for name in dict.fromkeys(names):
        rows = np.flatnonzero([each == name for each in names])
        best = rows[figures[rows].argmin(axis=0)], np.arange(figures.shape[1])
        chosen[best] = figures[best] < 0.0
    for column in np.unique(chosen, axis=1).T:
        at = np.flatnonzero((chosen == column[:, None]).all(axis=0))
        yield at, {name: x for (_, each), on in zip(values, column, strict=True) if on for name, x in each.items()}


def _probability(memory: MemoryEstimate, own: float, moves: Mapping[float, float]) -> float:
    """Return the probability to fit over what is open; `own` as of `_half_widths`."""
    room = math.log(memory.capacity_bytes / memory.need_bytes)
    probability = _below(room, moves, math.hypot(own, UNSAID_STACK["memory"]) / NORMAL_90)
    return min(probability, memory.surest)


def _turned(practice: Practice, profile: FrameworkProfile) -> Practice:
    """Return a value as it is, or the framework's default with the rest where most runs and the profile have it."""
    texts = {practice.switch: practice.text, **practice.others}
    present = all(option_text(getattr(profile, name)) == text for name, text in texts.items())
    if practice.share is None or not present:
        return practice
    default = profile_of(profile.name)
    others = {name: option_text(getattr(default, name)) for name in practice.others}
    text = option_text(getattr(default, practice.switch))
    return practice._replace(text=text, share=1.0 - practice.share, others=others)


def _values(profile: FrameworkProfile, texts: Mapping[str, str]) -> dict[str, Any]:
    """Return values of switches by name, from their texts."""
    return {name: switch_value(_FIELDS[name], text, getattr(profile, name)) for name, text in texts.items()}


def _of_release(profile: FrameworkProfile, release: FrameworkProfile) -> Iterator[Practice]:
    """Yield the values of a release that nobody named, beside those of the profile."""
    known = {(each.switch, each.text) for each in practice_of(profile.name)}
    for name in _FIELDS:
        text = option_text(getattr(release, name))
        if getattr(profile, name) != getattr(release, name) and text and (name, text) not in known:
            yield Practice(name, text, None, (), f"recipes of {release.stack}")


def _end(base: Priced, open_switches: tuple[OpenSwitch, ...], figure: _Figure) -> Priced:
    """Return the layout with every switch at the value of its smallest figure, today's value being 0."""
    values = [(x, _values(base.pricing.scenario.framework, {x.switch: x.other, **x.others})) for x in open_switches]
    ((_, together),) = _together(values, np.array([[figure(each)] for each in open_switches]))
    return price(base.pricing.switched(together)) if together else base


def _judged(estimate: Estimate, span: OpenRange) -> Estimate:
    """Return the estimate with its ranges and verdict over what is open."""
    memory, speed = estimate.memory, estimate.throughput
    if memory.interval_bytes is None or memory.fit_probability is None or vars(speed)["interval_seconds"] is None:
        # Without a calibration it is firm where both ends say the same.
        fits_all, fits_none = span.most_bytes <= memory.capacity_bytes, span.least_bytes > memory.capacity_bytes
        is_firm = fits_none if estimate.verdict == "does_not_fit" else fits_all
        return replace(estimate, open=span, verdict=estimate.verdict if is_firm else "depends")
    estimate = _with_time(estimate, span)
    own = math.log(memory.interval_bytes.high / memory.device_bytes)
    moves = _moves_of(span, "memory", memory.need_bytes)
    probability, verdict = _fitting(estimate, span, own, moves)
    span = replace(span, favourable_probability=_favourable(estimate, span, own))
    interval, known = _widened("memory", memory.device_bytes, lambda: (own, moves), estimate.provenance)
    memory = replace(memory, interval_bytes=interval, fit_probability=probability)
    return replace(estimate, open=span, verdict=verdict, provenance=known, memory=memory)


def _with_time(estimate: Estimate, span: OpenRange | None = None) -> Estimate:
    """Return the estimate with its range of time over what is open; without a span, over the software's release."""
    speed = estimate.throughput
    if vars(speed)["interval_seconds"] is None:  # whether it is known, without working it out
        return estimate
    step = speed.step_seconds

    def own_and_moves() -> tuple[float, Mapping[float, float]]:
        own = math.log(speed.interval_seconds.high / step)  # type: ignore[union-attr]  # as it is known
        return own, _UNMOVED if span is None else _moves_of(span, "time", step)

    interval, known = _widened("time", step, own_and_moves, estimate.provenance)
    return replace(estimate, provenance=known, throughput=replace(speed, interval_seconds=interval))


def _widened(
    figure: _Kind, value: float, own_and_moves: Callable[[], tuple[float, Mapping[float, float]]], known: Provenance
) -> tuple[Interval, Provenance]:
    """Return the range of a figure over what is open, and the provenance with it as a contribution, when read."""
    widths = cache(lambda: _half_widths(figure, *own_and_moves()))

    def contributions() -> tuple[Contribution, ...]:
        half_width = math.sqrt((0.5 * sum(widths())) ** 2 - own_and_moves()[0] ** 2)
        unsaid = Contribution(figure, "unsaid", half_width, "switches and releases that nobody said")
        return tuple(sorted((*known.contributions, unsaid), key=lambda part: (part.figure, -part.half_width)))

    interval = deferred(lambda: Interval(value * math.exp(-widths()[0]), value * math.exp(widths()[1])))
    return interval, replace(known, contributions=deferred(contributions))


def _fitting(estimate: Estimate, span: OpenRange, own: float, moves: Mapping[float, float]) -> tuple[float, Verdict]:
    """Return the probability to fit over the shares of what is open, and the verdict; `own` as of `_half_widths`."""
    memory = estimate.memory
    if memory.fits_host is False:  # offloaded bytes are counted, not estimated
        return 0.0, "does_not_fit"
    probability = _probability(memory, own, moves)
    if max(probability, _favourable(estimate, span, own)) < FIRM_NO:
        return probability, "does_not_fit"
    if probability < FIRM_YES:
        return probability, "depends"
    return probability, "starved" if estimate.verdict == "starved" else "fits"


def _favourable(estimate: Estimate, span: OpenRange, own: float) -> float:
    """Return the probability to fit at the most favourable end; `own` as of `_half_widths`."""
    return normal_below(math.log(estimate.memory.capacity_bytes / span.least_bytes) * NORMAL_90 / own)


def _moves_of(span: OpenRange, figure: _Kind, today: float) -> Mapping[float, float]:
    """Return `_moves` of a figure over today's, bytes or seconds: together no further than its ends."""
    ends = (span.least_bytes, span.most_bytes) if figure == "memory" else (span.fastest_seconds, span.slowest_seconds)
    moved = (each.need_bytes / today if figure == "memory" else each.speed_change for each in span.switches)
    sign = 1.0 if figure == "memory" else -1.0
    moves = [(x.switch, x.share, sign * math.log1p(move)) for x, move in zip(span.switches, moved, strict=True)]
    return _moves(moves, *(math.log(end / today) for end in ends))


def _moves(moved: Sequence[_Move], low: float, high: float) -> Mapping[float, float]:
    """Return the share of each value, in the logarithm between two ends, that a figure over today's may have.

    A case is a value of every switch; switches are independent.
    """
    cases = _UNMOVED
    for name in dict.fromkeys(switch for switch, _, _ in moved):
        values = [(share, move) for switch, share, move in moved if switch == name]
        known = [(DOCUMENTED_SHARE if share is None else share, move) for share, move in values]
        options = [(max(1.0 - sum(share for share, _ in known), 0.0), 0.0), *known]
        longer: defaultdict[float, float] = defaultdict(float)
        for change, weight in cases.items():
            for share, step in options:
                longer[round(min(max(change + step, low), high), _DIGITS)] += weight * share
        cases = longer
    whole = sum(cases.values())
    return {change: weight / whole for change, weight in cases.items()}


_Move = tuple[str, float | None, float]
"""A value of a switch by the switch's name, with its share of the runs and its move in the logarithm."""
_Kind = Literal["memory", "time"]
_UNMOVED: Final[Mapping[float, float]] = MappingProxyType({0.0: 1.0})
_DIGITS: Final = 3  # digits of a logarithm that tell cases apart: a thousandth of the figure
_TAIL: Final = 0.05  # probability on either side of a 90 % range


def _below(change: float, moves: Mapping[float, float], deviation: float) -> float:
    """Return the probability that a figure moves by less than `change`, its own error of `deviation` included."""
    return sum(share * normal_below((change - moved) / deviation) for moved, share in moves.items())


def _half_widths(figure: str, own: float, moves: Mapping[float, float]) -> tuple[float, float]:
    """Return how far a 90 % range reaches below and above a figure, in the logarithm; `own` is half the fit's range."""
    half = math.hypot(own, UNSAID_STACK[figure])
    lowest, highest = min(moves) - 2.0 * half, max(moves) + 2.0 * half
    ends = []
    for probability in (_TAIL, 1.0 - _TAIL):
        low, high = lowest, highest
        while high - low > _CLOSE:
            middle = 0.5 * (low + high)
            low, high = (middle, high) if _below(middle, moves, half / NORMAL_90) < probability else (low, middle)
        ends.append(low)
    return max(half, -ends[0]), max(half, ends[1])


_CLOSE: Final = 0.001  # difference of a logarithm that a range leaves undecided
