"""Calibrated estimates: figures moved by measured rows of their family, with ranges by covariance and scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np

from simulator.cost.derived import Pricing, derived, pricings_of
from simulator.cost.memory.activations import activations_in_flight, stage_activations
from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.memory.state import training_state
from simulator.cost.pricing.estimate import (
    Contribution,
    Coverage,
    Estimate,
    Interval,
    MemoryEstimate,
    NextMeasurement,
    ThroughputEstimate,
)
from simulator.cost.pricing.price import Sized
from simulator.cost.stages import usable_bytes
from simulator.cost.timing.step import step_seconds
from simulator.evidence.calibration.store import (
    BEYOND,
    KINDS,
    OTHER_FAMILY,
    PLACE,
    WORST,
    Calibration,
    Distance,
    FittedPart,
    RangeWords,
    Unit,
    coefficients_of,
    difference_unit,
    memory_spread,
    places_beside,
    read_calibration,
    shipped_calibration,
    told_apart,
)
from simulator.late import deferred
from simulator.question.arrays import Index, Matrix, Vector, equal_columns
from simulator.question.coefficients import CoefficientKind, Coefficients, priors, replaced
from simulator.question.scenario.block import LayoutBlock, Mask
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.vocabulary import StackName
from simulator.records import Bare, NamedTuple, field, replace

NORMAL_90 = 1.6448536269514722
"""Standard deviations on each side that hold 90 % of a normal distribution."""


def units_of(kind: CoefficientKind, scenario: Scenario, part: FittedPart) -> Callable[[Layout, float, float], Unit]:
    """Return a function from a layout, its variance of `layout_variances` and its spread to the units."""
    sort = sort_of_prediction(kind, scenario)
    scatter = part.noise_by.get(sort, part.noise)
    distance = None if part.coverage is None else part.coverage.distances(scenario)

    def unit(layout: Layout, variance: float, spread: float) -> Unit:
        return Unit(sort, math.sqrt(variance), scatter, distance(layout) if distance else Distance(), spread=spread)

    return unit


def relative_variances(kind: CoefficientKind, pricing: Pricing, part: FittedPart, at: Index | None = None) -> Vector:
    """Return the relative variance of each prediction by the coefficients' covariance, of a block or some of it."""
    fitted = tuple(part.values.items())
    if kind == "time":
        slopes, outside = _time_slopes(pricing, fitted), None
    else:
        slopes, outside = _memory_slopes(pricing, np.arange(len(pricing)) if at is None else at, fitted)
    variance = np.maximum(np.einsum("ni,ij,nj->n", slopes, part.covariance, slopes), 0.0)
    return np.asarray(variance if outside is None else variance + (UNMEASURED_OUTSIDE * outside) ** 2)


@derived
def _time_slopes(pricing: Pricing, fitted: tuple[tuple[str, float], ...]) -> Matrix:
    """Return the slopes of each logarithmic step time by the coefficients."""
    moved, steps = _moved(pricing, "time", fitted, len(pricing))
    each = np.repeat(np.arange(len(pricing), dtype=np.intp), 1 + len(steps))
    # Every copy has its own coefficients, so no time can be shared. Memory of which it reads has none of them.
    tiled = Pricing(moved, pricing.block.take(each))
    return _slopes(step_seconds(tiled, memory_by_stage(pricing).take(each)).total, steps)


def _memory_slopes(pricing: Pricing, at: Index, fitted: tuple[tuple[str, float], ...]) -> tuple[Matrix, Vector | None]:
    """Return the slopes of the logarithmic need, and the share outside the allocator if only documents give it."""
    moved, steps = _moved(pricing, "memory", fitted, len(at))
    # Coefficients enter behind the state and what a layer saves. Idle blocks fill what a device leaves.
    shared = (training_state, stage_activations, activations_in_flight)
    memory = memory_by_stage(pricing.copies(np.repeat(at, 1 + len(steps)), moved, *shared))
    slopes = _slopes(np.max(memory.need, axis=0), steps)
    if pricing.scenario.hardware.communicator_buffer_bytes is None:
        return slopes, None
    need, outside = (figure[:, :: 1 + len(steps)] for figure in (memory.need, memory.outside.total))
    fullest = (np.argmax(need, axis=0), np.arange(len(at)))
    return slopes, outside[fullest] / need[fullest]


def _moved(
    pricing: Pricing, kind: CoefficientKind, fitted: tuple[tuple[str, float], ...], count: int
) -> tuple[Scenario, Vector]:
    """Return the scenario of `count` layouts, each at the coefficients and with each of them moved, and the steps."""
    known, scenario, names = priors(kind), pricing.scenario, [name for name, _ in fitted]
    steps = np.array([1e-3 * (known[name].high - known[name].low) for name in names])
    centre = np.array([[value] for _, value in fitted])
    values = np.tile(np.hstack([centre, centre + np.diag(steps)]), count)
    return replace(scenario, coefficients=replaced(scenario.coefficients, kind, names, values)), steps


def _slopes(figures: Vector, steps: Vector) -> Matrix:
    figures = figures.reshape(-1, 1 + len(steps))
    return np.asarray(np.log(figures[:, 1:] / figures[:, :1]) / steps)


UNMEASURED_OUTSIDE = 0.5
"""Relative deviation of memory outside the allocator that only documents give: no measured figure was published."""


def sort_of_prediction(kind: CoefficientKind, scenario: Scenario) -> str:
    """Return the sort of a prediction: `dense` or `moe`; of memory `device`, the figure that is estimated."""
    if kind == "memory":
        return "device"
    return "moe" if scenario.model.is_moe else "dense"


def layout_variances(
    kind: CoefficientKind, scenario: Scenario, layouts: Sequence[Layout], part: FittedPart
) -> list[float]:
    """Return `relative_variances` of any layouts, in their order."""
    variances = [0.0] * len(layouts)
    for positions, pricing in pricings_of(scenario, layouts):
        for start in range(0, len(pricing), _AT_ONCE):
            some = np.arange(start, min(start + _AT_ONCE, len(pricing)))
            members = pricing if len(some) == len(pricing) else pricing.take(some)
            for index, variance in zip(some, relative_variances(kind, members, part), strict=True):
                variances[positions[index]] = float(variance)
    return variances


_AT_ONCE = 256
"""Layouts whose copies with moved coefficients are priced together: their arrays stay within tens of megabytes."""


UNFORESEEN = 0.02
"""Probability that a run on a cluster without measured runs needs memory that no formula counts, as when it loads a
model or falls back to another kernel. Of 46 answers to public threads that said less, five failed; threads tell of
failures first."""


def memory_interval(estimate: Estimate, deviation: Callable[[], float], surest: float = 1.0) -> MemoryEstimate:
    """Return the memory estimate with its 90 % interval and the probability, at most `surest`, that it fits."""
    memory = estimate.memory

    def probability() -> float:
        if memory.fits_host is False:  # offloaded bytes are counted, not estimated
            return 0.0
        return min(surest, normal_below(math.log(memory.capacity_bytes / memory.need_bytes) / deviation()))

    interval = deferred(lambda: _interval(memory.device_bytes, deviation()))
    return replace(memory, interval_bytes=interval, surest=surest, fit_probability=deferred(probability))


def time_interval(estimate: Estimate, deviation: Callable[[], float]) -> ThroughputEstimate:
    """Return the throughput estimate with the 90 % interval of the step time."""
    seconds = estimate.throughput.step_seconds
    return replace(estimate.throughput, interval_seconds=deferred(lambda: _interval(seconds, deviation())))


def normal_below(deviations: float) -> float:
    """Return the probability that a normal variable is below its mean plus so many standard deviations."""
    return 0.5 * math.erfc(-deviations / math.sqrt(2.0))


@lru_cache(maxsize=16)
def least_deviations(probability: float) -> float:
    """Return the fewest standard deviations for which `normal_below` is at least `probability`.

    Halved until two numbers stand side by side, so that it decides as `normal_below` does, at a probability of 1 too.
    """
    low, high = -_FAR, _FAR
    while low < (middle := (low + high) / 2.0) < high:
        low, high = (low, middle) if normal_below(middle) >= probability else (middle, high)
    return high


_FAR = 40.0  # standard deviations beyond which a float tells nothing apart


def _interval(value: float, relative: float) -> Interval:
    """Return the 90 % interval, symmetric in the logarithm: a figure is never negative."""
    return Interval(value * math.exp(-NORMAL_90 * relative), value * math.exp(NORMAL_90 * relative))


_NEARLY: Final = 1.1  # ratio to the narrowest range up to which a smaller run is preferred
_SHOWN: Final = 0.0005  # half-width below which a contribution is not listed


def contributed(
    kind: CoefficientKind, unit: Unit, sizes: Mapping[str, float], scenario: Scenario
) -> list[Contribution]:
    """Return the contributions to a range, the largest first."""
    family, framework, distance = scenario.hardware.family, scenario.framework.name, unit.distance
    sources = round(1.0 / distance.share_of_source) if distance.share_of_source else 0
    because = {
        "coefficients": "rates and overheads that the measured runs leave open",
        "scatter": "how runs of one source scatter around it",
        "sources": f"runs of family {family} are from {sources} source{'' if sources == 1 else 's'}",
        "device": f"no run of family {family} was measured",
        "stack": f"no run of {framework} with these switches on family {family} was measured",
        "nodes": f"{scenario.devices} devices are {distance.doublings:.1f} doublings beyond the runs of {framework}",
        "layout": f"no run of {framework} on family {family} has {', '.join(distance.features)}",
    }
    contributions = [
        Contribution(kind, name, NORMAL_90 * deviation, because[name])
        for name, deviation in unit.deviations(sizes).items()
        if NORMAL_90 * deviation >= _SHOWN
    ]
    return sorted(contributions, key=lambda contribution: -contribution.half_width)


def next_measurement(unit: Unit, sizes: Mapping[str, float], scenario: Scenario) -> NextMeasurement:
    """Return the single measurement that narrows a range most, or a smaller run that narrows it nearly as much."""
    parts = unit.deviations(sizes)
    every = list(_measurements(unit, parts, scenario))
    return next(measurement for measurement in every if measurement.half_width <= _NEARLY * every[-1].half_width)


def _measurements(unit: Unit, parts: Mapping[str, float], scenario: Scenario) -> Iterator[NextMeasurement]:
    """Yield runs with the range that each leaves, the smallest run first and the layout itself last."""
    framework, hardware, beyond = scenario.framework.name, scenario.hardware.name, unit.distance.features
    cluster = ("sources", "device", "stack")
    # One run leaves as much uncertainty of the coefficients as its own scatter hides.
    learned = parts["coefficients"] * parts["scatter"] / max(math.hypot(parts["coefficients"], parts["scatter"]), 1e-12)
    one_node = f"with {framework} on one node of {hardware}"
    yield _after(parts, f"any layout {one_node}", cluster, learned)
    if beyond:
        yield _after(parts, f"a layout that has {', '.join(beyond)}, {one_node}", (*cluster, "layout"), learned)
    yield _after(parts, f"this layout on {scenario.devices} x {hardware}", (*cluster, "nodes", "layout"), learned)


def _after(parts: Mapping[str, float], run: str, without: tuple[str, ...], learned: float) -> NextMeasurement:
    """Return a run with the range that is left without some contributions."""
    remaining = {**parts, **dict.fromkeys(without, 0.0), "coefficients": learned}
    return NextMeasurement(run, NORMAL_90 * math.hypot(*remaining.values()))


_coefficients = lru_cache(maxsize=64)(coefficients_of)  # of parts, which are compared by identity
EVEN = 0.5
"""Probability to fit of a need equal to the capacity."""
_COVERED: tuple[Coverage, ...] = ("measured", "between")


class Applied(NamedTuple):
    """Calibrations of memory and time figures; None leaves the priors."""

    memory: Calibration | None
    time: Calibration | None

    def part(self, kind: CoefficientKind) -> FittedPart | None:
        """Return the fitted coefficients of one kind."""
        calibration = self.calibration(kind)
        return None if calibration is None else calibration.part(kind)

    def coefficients(self) -> Coefficients:
        """Return the set that the formulas take."""
        return _coefficients((self.part("memory"), self.part("time")), self.name)

    @property
    def name(self) -> str:
        """Name in the provenance."""
        if self.memory is None and self.time is None:
            return "priors"
        if self.memory is self.time and self.time is not None:
            return self.time.name
        memory, time = (c.name if c else "priors" for c in (self.memory, self.time))
        return f"memory: {memory}; time: {time}"

    @property
    def stack(self) -> StackName | None:
        """Named stack that the rows ran; None where the calibration names none."""
        return next((part.stack for part in (self.time, self.memory) if part is not None and part.stack), None)

    def judged(self, scenario: Scenario, estimates: Sequence[Estimate]) -> list[Estimate]:
        """Return estimates with intervals, the probability that they fit, and the origin of their numbers."""
        layouts = [estimate.layout for estimate in estimates]
        variances = cache(partial(layout_variances, scenario=scenario, layouts=layouts))

        def variance(at: int, kind: CoefficientKind, part: FittedPart) -> float:
            return variances(kind, part=part)[at]

        return [with_calibration(scenario, each, self, partial(variance, at)) for at, each in enumerate(estimates)]

    def difference_half_widths(self, alternatives: Sequence[tuple[Scenario, Layout]]) -> list[float]:
        """Return half the 90 % range of each step time over the first's, in the logarithm; 0 without a calibration."""
        part = self.part("time")
        if part is None or self.time is None:
            return [0.0] * len(alternatives)
        part = _serving(self.time, part, "time", covered=True)
        slopes = np.zeros((len(alternatives), len(part.names)))
        for scenario in {id(distinct): distinct for distinct, _ in alternatives}.values():
            of_scenario = np.array([at for at, (other, _) in enumerate(alternatives) if other is scenario])
            for positions, pricing in pricings_of(scenario, (alternatives[at][1] for at in of_scenario)):
                slopes[of_scenario[positions]] = _time_slopes(pricing, tuple(part.values.items()))
        apart = slopes - slopes[0]
        variances = np.einsum("ni,ij,nj->n", apart, part.covariance, apart)
        sort = sort_of_prediction("time", alternatives[0][0])
        scatter = part.noise_by.get(sort, part.noise)
        units = (difference_unit(float(variance), scatter, scatter) for variance in variances)
        return [0.0, *(NORMAL_90 * unit.deviation(part.sizes) for unit in list(units)[1:])]

    def calibration(self, kind: CoefficientKind) -> Calibration | None:
        """Return the calibration of one kind of figure."""
        return self.memory if kind == "memory" else self.time

    def likely_to_fit(self, scenario: Scenario, priced: Sized, index: Index, probability: float) -> Mask:
        """Return which layouts at `index` fit with at least `probability`; all where memory has no calibration."""
        if self.memory is None or self.memory.memory is None or not len(index):
            return np.ones(len(index), dtype=np.bool_)
        part = self.memory.memory
        capacity = usable_bytes(scenario, priced.memory.contents)[priced.binding_stage[index], 0]
        margins = np.log(capacity / priced.need_bytes[index])
        moved = memory_spread(priced.memory.state_share(priced.binding_stage[index], index))
        spread = _spreads(self.memory, scenario).of(priced.block, index)
        deviations = np.where(probability <= spread.surest, least_deviations(probability), np.inf)
        beyond = spread.beyond * moved

        def likely(at: Index, variances: Vector) -> Mask:
            by_rows = np.hypot(spread.size[at] * np.sqrt(variances), spread.scatter[at])
            return np.asarray(margins[at] / np.hypot(by_rows, beyond[at]) >= deviations[at])

        # More variance brings a probability nearer to a half: the rest alone rules out most unlikely layouts.
        every = np.arange(len(index))
        result = likely(every, np.zeros(len(index))) | (probability <= EVEN)
        if len(left := every[result]):
            result[left] = likely(left, relative_variances("memory", priced.pricing, part, index[left]))
        return result


class _Spread(NamedTuple):
    """Deviations of predicted memory needs, shape (n,)."""

    size: Vector
    """Factor on the deviation by the coefficients' covariance."""
    scatter: Vector
    """Relative deviation by the rows' scatter."""
    beyond: Vector
    """Relative deviation beyond the rows, of memory that is all uncertain."""
    surest: Vector
    """Highest probability to fit."""


class _Spreads(Bare):
    """Deviations of the predicted memory needs of a question's layouts."""

    calibration: Calibration
    scenario: Scenario
    known: dict[tuple[float, ...], tuple[float, ...]] = field(default_factory=dict)
    """Figures of `_Spread` computed so far, by place beside measured runs."""

    def of(self, block: LayoutBlock, index: Index) -> _Spread:
        """Return the spreads of the layouts at an index; those of one place have one."""
        columns = (getattr(block, name) for name in PLACE)
        rows = [each[index] if isinstance(each, np.ndarray) else np.full(len(index), each) for each in columns]
        places = self._told_apart(np.array(rows, dtype=np.float64))
        first, place = equal_columns(places)
        spreads = [self._of_place(tuple(places[:, at].tolist()), block, index[at]) for at in first]
        return _Spread(*np.array(spreads)[place].T)

    def _of_place(self, place: tuple[float, ...], block: LayoutBlock, at: int) -> tuple[float, ...]:
        """Return the spread of a place, from a layout in it."""
        if place not in self.known:
            layout = block.layout(int(at))
            where = self._words(layout)
            part, unit_of = self._served[where.worst in _COVERED]
            unit = unit_of(layout, 0.0, 1.0)
            unit = unit if where.stack in _COVERED else _beyond_stack(unit)
            _, scatter, *beyond = unit.deviations(part.sizes).values()
            size = part.sizes.get(unit.key("coefficients"), 1.0)
            self.known[place] = (size, scatter, math.hypot(*beyond), _surest(self.calibration, where))
        return self.known[place]

    @cached_property
    def _told_apart(self) -> Callable[[Matrix], Matrix]:
        """What tells places apart."""
        return told_apart(self.calibration.range, self.scenario)

    @cached_property
    def _words(self) -> Callable[[Layout], RangeWords]:
        """Where layouts lie beside the rows."""
        return _words_of(self.calibration, "memory", self.scenario)

    @cached_property
    def _served(self) -> dict[bool, tuple[FittedPart, Callable[[Layout, float, float], Unit]]]:
        """What serves layouts, covered by rows or not, with the function of their units."""
        assert self.calibration.memory is not None  # noqa: S101  asked only where there is one
        memory = self.calibration.memory
        parts = [_serving(self.calibration, memory, "memory", covered=covered) for covered in (False, True)]
        return {bool(covered): (part, units_of("memory", self.scenario, part)) for covered, part in enumerate(parts)}


_spreads = lru_cache(maxsize=16)(_Spreads)


def applied(family: str, choice: str | None = None, cluster: str | None = None) -> Applied:
    """Return the calibrations for a hardware family, or for the `cluster` where its spec has one of its own.

    `choice` is None for the shipped ones, `none` for the priors, or the path of a calibration file. A kind that a file
    has no coefficients of comes from what ships for the cluster, the family, and else from what all families say.
    """
    if choice == "none":
        return Applied(None, None)
    # Another network between the same devices keeps the coefficients that were fitted to them.
    names = [name for name in ((cluster or "").partition("@")[0], family, OTHER_FAMILY) if name]
    own = [read_calibration(Path(choice))] if choice else []

    def nearest(kind: CoefficientKind) -> Calibration | None:
        # Files after the first that has the kind are not read.
        return next(
            (
                calibration
                for calibration in chain(own, map(shipped_calibration, names))
                if calibration and calibration.part(kind)
            ),
            None,
        )

    return Applied(nearest("memory"), nearest("time"))


def with_calibration(
    scenario: Scenario, estimate: Estimate, used: Applied, variance: Callable[[CoefficientKind, FittedPart], float]
) -> Estimate:
    """Return one estimate as `Applied.judged` does, with ranges that are computed when they are read.

    `variance` is that of `layout_variances`.
    """
    result, notes = estimate, list[Callable[[], list[str]]]()
    words: list[RangeWords] = []
    ranges: dict[CoefficientKind, _Range] = {}
    known = {kind: calibration for kind in KINDS if (calibration := used.calibration(kind)) is not None}
    for kind, calibration in known.items():
        if (part := used.part(kind)) is None:
            continue
        where = _words_of(calibration, kind, scenario)(estimate.layout)
        serving = _serving(calibration, part, kind, covered=where.worst in _COVERED)
        of_kind = ranges[kind] = _Range(kind, scenario, estimate, serving, where, partial(variance, kind, part))
        if kind == "memory":
            result = replace(result, memory=memory_interval(result, of_kind.deviation, _surest(calibration, where)))
        else:
            result = replace(result, throughput=deferred(partial(time_interval, estimate, of_kind.deviation)))
        notes.append(partial(_notes, kind, scenario, estimate, calibration, where))
        if not part.known:  # else nothing was fitted, and there is no range of memory; the words are those of the speed
            words.append(where)
    if not words:
        return replace(result, provenance=replace(result.provenance, calibration=used.name))
    worst = RangeWords(*(max(column, key=WORST.index) for column in zip(*words, strict=True)))

    def contributions() -> tuple[Contribution, ...]:
        parts = (contributed(kind, each.unit, each.serving.sizes, scenario) for kind, each in ranges.items())
        return tuple(part for of_kind in parts for part in of_kind)

    def measurement() -> NextMeasurement | None:
        time = ranges.get("time")
        return None if time is None else next_measurement(time.unit, time.serving.sizes, scenario)

    provenance = replace(
        result.provenance,
        calibration=used.name,
        status=worst.worst,
        notes=deferred(lambda: tuple(dict.fromkeys(chain(estimate.provenance.notes, *(each() for each in notes))))),
        **worst._asdict(),
        contributions=deferred(contributions),
        next_measurement=deferred(measurement),
    )
    return replace(result, provenance=provenance)


class _Range(Bare):
    """What the range of one figure of an estimate is made of."""

    kind: CoefficientKind
    scenario: Scenario
    estimate: Estimate
    serving: FittedPart
    where: RangeWords
    variance: Callable[[], float]

    @cached_property
    def unit(self) -> Unit:
        """Units of its contributions."""
        spread = float(memory_spread(self.estimate.memory.state_share)) if self.kind == "memory" else 1.0
        unit = units_of(self.kind, self.scenario, self.serving)(self.estimate.layout, self.variance(), spread)
        return unit if self.where.stack in _COVERED else _beyond_stack(unit)

    def deviation(self) -> float:
        """Return the relative deviation."""
        return self.unit.deviation(self.serving.sizes)


@lru_cache(maxsize=64)
def _serving(calibration: Calibration, part: FittedPart, kind: CoefficientKind, *, covered: bool) -> FittedPart:
    """Return a part with its family's sizes of contributions beyond its own rows, and scatter beyond its own range."""
    family = shipped_calibration(calibration.family) or shipped_calibration(OTHER_FAMILY)
    others = None if family is None else family.part(kind)
    if others is None or part.sizes or part.known:
        return part
    sizes = {name: size for name, size in others.sizes.items() if name in BEYOND}
    both = [fitted.coverage for fitted in (part, others) if fitted.coverage is not None]
    result = replace(part, sizes=sizes, coverage=both[0] | both[-1] if both else None)
    if covered or part.noise_by:
        return result
    scatter = {sort: noise * others.sizes.get(f"scatter {sort}", 1.0) for sort, noise in others.noise_by.items()}
    return replace(result, noise_by={sort: max(part.noise, noise) for sort, noise in scatter.items()})


def _surest(calibration: Calibration, where: RangeWords) -> float:
    """Return the highest probability to fit: 1 by a cluster's own runs alone, where its layouts have no new feature."""
    return 1.0 if len(calibration.tables) == 1 and where.worst != "never" else 1.0 - UNFORESEEN


def _beyond_stack(unit: Unit) -> Unit:
    """Return the units of a prediction with a switch that no run had, as for a framework that no run had."""
    return unit._replace(distance=unit.distance._replace(stack=True))


def _words_of(calibration: Calibration, kind: CoefficientKind, scenario: Scenario) -> Callable[[Layout], RangeWords]:
    """Return a function from layouts to where they lie; figures that need no rows count as measured."""
    part = calibration.part(kind)
    if part is None or part.known:
        return lambda _: RangeWords("measured", "measured", "measured")
    return places_beside(calibration.range, part.coverage, calibration.family, scenario)


def _notes(
    kind: CoefficientKind, scenario: Scenario, estimate: Estimate, calibration: Calibration, where: RangeWords
) -> list[str]:
    """Return a note on known figures, a family without rows or a layout outside the range; none where it is covered."""
    if (part := calibration.part(kind)) is not None and part.known:
        return [f"{kind}: {part.known}"]
    if where.device == "never":
        family = scenario.hardware.family
        figure = "speed" if kind == "time" else kind
        text = f"{figure}: no measured run of family {family}; coefficients as shares of this device's peaks"
        return [f"{text} from the families that have some, and the range as wide as families left out are missed"]
    if where.worst not in _COVERED:
        reasons = "; ".join(calibration.range.outside(scenario, estimate.layout))
        return [f"outside the calibrated range: {reasons}"] if reasons else []
    return []
