"""Plan of a purchase: which offered hardware trains a number of tokens in time, and what each choice costs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, fields
from functools import partial
from typing import Any, Literal

from simulator.answers import ranking
from simulator.answers.cases import usual_precision
from simulator.answers.run import SECONDS_PER_HOUR, TrainingRun, estimate_command, run_of
from simulator.cost.operations.sums import total_parameters
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.errors import InputError, UnsupportedError, check_kind
from simulator.evidence.calibration.apply import NORMAL_90, normal_below
from simulator.question.origin import ARGUMENT, Origin
from simulator.question.question import Question
from simulator.question.scenario.inputs import check_count
from simulator.question.scenario.layout import layout_object
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.vocabulary import PRECISIONS, Precision
from simulator.records import Record, replace
from simulator.search.rank import Progress, surer_than_first
from simulator.search.space import MIN_FIT_PROBABILITY, Space
from simulator.tabular import Tabular

BYTES_PER_PARAMETER = 14.0
"""Bytes of a checkpoint per parameter: a 16-bit weight, and the weight and both moments of Adam in fp32."""


class Availability(Record, kw_only=True):
    """Failures of devices, and a run's work beside training."""

    device_mtbf_hours: float = 16_384 * 54 * 24 / 419
    """Mean time between failures of one device, in hours: 419 unexpected interruptions of a job on 16,384 H100 in 54
    days (The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.4 and table 5)."""
    restart_minutes: float = 10.0
    """Time from a failure to the loading of the checkpoint, in minutes: detection and diagnosis took less than that on
    average on more than 10,000 devices (MegaScale, NSDI 2024, arXiv 2402.15627, section 6.3)."""
    checkpoint_bandwidth_per_device: float = 2e12 / 16_384
    """Storage bandwidth of one device of a job, in bytes/s: 2 TB/s sustained for 16,384 devices (The Llama 3 Herd of
    Models, section 3.3.1). A checkpoint is written while the step waits, and read again at the same rate."""
    checkpoint_minutes: float | None = None
    """Training between two checkpoints, in minutes; None is the interval that loses least, `sqrt(2 C M)` for writing
    time C and mean time between failures M of the job (Young 1974)."""
    evaluation_share: float = 100 / 1000 / 3
    """Evaluation, as a share of the time of training steps: Megatron-LM's defaults are 100 forward passes after every
    1,000 steps, and a forward pass is a third of a step."""

    def __post_init__(self) -> None:
        """Raise InputError for a figure out of its range."""
        for limit in fields(self):
            value, may_be_zero = getattr(self, limit.name), limit.name in ("restart_minutes", "evaluation_share")
            if value is None and limit.name == "checkpoint_minutes":
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value < 0 or (value == 0 and not may_be_zero):
                allowed = "0 or more" if may_be_zero else "above 0"
                raise InputError(f"{limit.name} {value!r}: must be a number, {allowed}")


class Goodput(Record, kw_only=True):
    """Shares of a run's time for training and for everything else, which add up to 1."""

    training: float
    """Share of steps that count."""
    checkpoints: float
    """Share of writing checkpoints."""
    evaluation: float
    """Share of evaluation."""
    failures: float
    """Share of restarts, and of steps repeated since the last checkpoint."""
    failures_per_day: float
    """Expected failures of the job per day."""
    checkpoint_seconds: float
    """Seconds to write one checkpoint."""
    interval_seconds: float
    """Seconds of training between two checkpoints."""


def goodput(availability: Availability, devices: int, parameters: float) -> Goodput:
    """Return the goodput of a job on `devices` devices that trains `parameters` parameters (docs/plan.md).

    Raises UnsupportedError where a job fails faster than it recovers.
    """
    mean = availability.device_mtbf_hours * SECONDS_PER_HOUR / devices
    write = parameters * BYTES_PER_PARAMETER / (availability.checkpoint_bandwidth_per_device * devices)
    every = availability.checkpoint_minutes
    interval = math.sqrt(2.0 * write * mean) if every is None else 60.0 * every
    stretched = 1.0 + write / interval + availability.evaluation_share
    failures = (60.0 * availability.restart_minutes + write + interval * stretched / 2.0) / mean
    if failures >= 1.0:
        raise UnsupportedError(
            f"{devices} devices fail every {mean / 60.0:.3g} minutes and need {failures * mean / 60.0:.3g} to recover: "
            "such a run makes no progress (--device-mtbf-hours, --restart-minutes, --checkpoint-minutes)"
        )
    training = (1.0 - failures) / stretched
    return Goodput(
        training=training,
        checkpoints=training * write / interval,
        evaluation=training * availability.evaluation_share,
        failures=failures,
        failures_per_day=24.0 * SECONDS_PER_HOUR / mean,
        checkpoint_seconds=write,
        interval_seconds=interval,
    )


MOST_SIZES = 64
"""Most numbers of nodes in one offer."""
_OFFER = re.compile(
    r"(?P<name>.+?):(?:(?P<low>\d{1,7}):(?P<high>\d{1,7})(?::(?P<step>\d{1,7}))?|(?P<list>\d{1,7}d?(?:,\d{1,7}d?)*))"
    r"(?:@(?P<price>\d{1,9}(?:\.\d{1,6})?))?"
)
_FORM = (
    "NAME:NODES[,NODES...][@PRICE], 72d for devices, or NAME:LOW:HIGH[:STEP][@PRICE], such as h100-sxm-80g:8,16@2.50"
)


class Offer(Record, kw_only=True):
    """Numbers of nodes of one kind of hardware, to book one of."""

    hardware: str
    """Name or path of the hardware."""
    nodes: tuple[int, ...]
    """Numbers of nodes on offer, ascending."""
    price_per_device_hour: float | None = None
    """Price of one device for one hour, in any currency; None is not known."""

    def __post_init__(self) -> None:
        """Raise InputError for an offer that cannot be booked."""
        check_kind(f"offer {self.hardware}: nodes", self.nodes, (list, tuple), "a list of whole numbers")
        for nodes in self.nodes:
            check_count(f"offer {self.hardware}: nodes", nodes)
        if not self.nodes:
            raise InputError(f"offer {self.hardware}: names no number of nodes")
        if len(self.nodes) > MOST_SIZES:
            raise InputError(f"offer {self.hardware}: {len(self.nodes)} numbers of nodes; at most {MOST_SIZES}")
        price = self.price_per_device_hour
        check_kind(f"offer {self.hardware}: price", 0 if price is None else price, (int, float), "a number")
        if price is not None and not (math.isfinite(price) and price >= 0):
            raise InputError(f"offer {self.hardware}: price {price!r} must be 0 or more")


def parse_offer(text: str) -> Offer:
    """Return the offer in a text such as `h100-sxm-80g:8,16@2.50` or `ascend-910b-64g-8:4:64@1.20`.

    `72d` is a number of devices, such as a rack of NVL72. `LOW:HIGH` doubles from LOW to HIGH, with HIGH itself;
    `LOW:HIGH:STEP` counts up. Raises InputError.
    """
    match = _OFFER.fullmatch(text.strip())
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    if match is None:
        raise InputError(f"offer '{shown}': write {_FORM}")
    price = None if match["price"] is None else float(match["price"])
    if match["list"] is not None:
        nodes = tuple(sorted({_nodes_of(match["name"], size) for size in match["list"].split(",")}))
        return Offer(hardware=match["name"], nodes=nodes, price_per_device_hour=price)
    low, high, step = int(match["low"]), int(match["high"]), int(match["step"] or 0)
    if low < 1 or low > high or match["step"] == "0":
        raise InputError(f"offer '{shown}': LOW must be from 1 to HIGH, STEP from 1")
    if step and (high - low) // step >= MOST_SIZES:
        raise InputError(f"offer '{shown}': names more than {MOST_SIZES} numbers of nodes")
    counted = range(low, high + 1, step) if step else (low * 2**power for power in range((high // low).bit_length()))
    sizes = {size for size in counted if size <= high} | (set() if step else {high})
    return Offer(hardware=match["name"], nodes=tuple(sorted(sizes)), price_per_device_hour=price)


def _nodes_of(name: str, size: str) -> int:
    """Return a number of nodes, or the nodes of a number of devices (`72d`: a rack of NVL72). Raises InputError."""
    if not size.endswith("d"):
        return int(size)
    devices, per_node = int(size[:-1]), load_hardware(name).devices_per_node
    if devices % per_node:
        raise InputError(f"offer {name}:{size}: {devices} devices are not whole nodes of {per_node}")
    return devices // per_node


LimitAnswer = Literal["yes", "maybe", "no"]
_SIZES = ("tp", "pp", "cp", "ep", "etp", "dp", "vpp", "micro_batch_size", "recompute", "zero_stage")
"""Columns of a row that hold the layout."""
_ORDER: tuple[LimitAnswer, ...] = ("yes", "maybe", "no")


_ABOUT, _FAR_LESS = 0.05, 0.7  # share by which costs count as the same, and share of the days that is far less


class LimitCheck(Record):
    """Whether a limit is kept."""

    answer: LimitAnswer
    """`yes` where the whole 90 % interval is below the limit, `no` where none of it is, else `maybe`."""
    probability: float | None
    """Probability that the figure is below the limit; None without an interval or a price."""


class Choice(Record, kw_only=True):
    """Number of nodes of an offer in one precision, with its best layout."""

    offer: int
    """Position of its offer, from 0."""
    hardware: str
    """Name of the hardware."""
    nodes: int
    """Number of nodes to book."""
    devices: int
    """Devices of all nodes."""
    precision: Precision
    """Type of the matrix products."""
    estimate: Estimate | None
    """Estimate of the fastest layout that is likely enough to fit; None where none is."""
    reason: str | None
    """Why no layout is likely enough to fit; None where one is."""
    run: TrainingRun | None = None
    goodput: Goodput | None = None
    """Goodput; None where failures, checkpoints and evaluation are left out."""
    in_time: LimitCheck | None = None
    """Check of the deadline; None without one."""
    in_budget: LimitCheck | None = None
    """Check of the budget; None without one."""
    pareto: bool = False
    """Whether no other choice is as fast and as cheap, and better in one."""

    @property
    def measured(self) -> bool:
        """Whether runs of its framework on its device family were measured."""
        known = None if self.estimate is None else self.estimate.provenance
        return known is not None and "never" not in (known.device, known.stack)

    @property
    def limits(self) -> tuple[LimitCheck, ...]:
        """Checks of the limits that were set."""
        return tuple(check for check in (self.in_time, self.in_budget) if check is not None)

    @property
    def verdict(self) -> LimitAnswer:
        """Worse answer of both limits; `no` where nothing fits, `maybe` at best where an unsaid memory decides that."""
        unsure = self.estimate is not None and self.estimate.other_memory
        answers = ("maybe" if unsure else "yes", *(check.answer for check in self.limits))
        return "no" if self.run is None else max(answers, key=_ORDER.index)

    @property
    def probability(self) -> float:
        """Probability to keep both limits: the smaller one, as days and cost follow from one step time."""
        plain = {"yes": 1.0, "maybe": 0.5, "no": 0.0}
        return min((plain[k.answer] if k.probability is None else k.probability for k in self.limits), default=1.0)


class OfferPriced(Offer, kw_only=True):
    """An offer with the positions of its best choices."""

    best: int | None
    """Position in `choices` of its choice to book; None for none."""
    least_nodes_in_time: int | None
    """Position in `choices` of its fewest nodes that are in time; None for none."""


class Plan(Tabular, Record, kw_only=True):
    """Plan of a training run: every choice, offer by offer."""

    model: str
    """Name of the model."""
    train_tokens: int
    """Tokens of the whole run."""
    deadline_days: float | None
    """Limit of the run in days; None for no limit."""
    budget: float | None
    """Limit of its cost, in the currency of the offers; None for no limit."""
    offers: tuple[Offer, ...]
    availability: Availability | None
    """Failures and work beside training; None where only training steps count."""
    min_fit_probability: float
    """Least probability to fit of a recommended layout."""
    choices: tuple[Choice, ...]
    """Offers in the order given, within one by nodes, then by precision."""
    question: Question = field(default_factory=Question, repr=False, compare=False)
    """Values that all choices share, with who said each."""

    @property
    def priced(self) -> tuple[Choice, ...]:
        """Choices that have a layout."""
        return tuple(choice for choice in self.choices if choice.run is not None)

    @property
    def best(self) -> Choice | None:
        """Choice to book: the cheapest that keeps the limits, or without prices the fastest.

        If none surely keeps them, the most likely to; if none may, the one that misses by least. An unmeasured choice
        precedes a measured one only if it keeps the limits more surely or its whole range is better.
        """
        first, measured = self.first, self.best_measured
        if first is None or measured is None or first.measured:
            return first
        surer = _ORDER.index(first.verdict) < _ORDER.index(measured.verdict)
        return first if surer or self._whole_range_better(first, measured) else measured

    @property
    def first(self) -> Choice | None:
        """Best choice by its figures alone, measured or not."""
        return min(self.priced, key=self._preference, default=None)

    @property
    def best_measured(self) -> Choice | None:
        """Best choice of those that were measured."""
        return min((choice for choice in self.priced if choice.measured), key=self._preference, default=None)

    @property
    def sooner(self) -> Choice | None:
        """Fastest choice that costs about as much as the one to book and takes far less time; None for none."""
        best = self.best
        if best is None or not math.isfinite(_cost(best)):
            return None
        near = [
            choice
            for choice in self.priced
            if _cost(choice) <= (1.0 + _ABOUT) * _cost(best)
            and _days(choice) <= _FAR_LESS * _days(best)
            and choice.measured >= best.measured
            and _ORDER.index(choice.verdict) <= _ORDER.index(best.verdict)
        ]
        return min(near, key=_days, default=None)

    @property
    def equal(self) -> tuple[Choice, ...]:
        """Best choices of other offers and precisions that may cost as little as the one to book, cheapest first.

        Without prices: that may take as few days. Their limits are kept as surely, and the 90 % range of the ratio of
        both figures holds 1. An unmeasured choice is none beside a measured one.
        """
        best = self.best
        best_range = None if best is None else _figure_interval(best)
        if best is None or best_range is None:
            return ()
        near: dict[tuple[int, str], Choice] = {}
        for choice in sorted(self.priced, key=self._preference):
            near.setdefault((choice.offer, choice.precision), choice)
        return tuple(
            choice
            for key, choice in near.items()
            if key != (best.offer, best.precision)
            and choice.measured >= best.measured
            and math.isfinite(_cost(choice)) is math.isfinite(_cost(best))
            and _ORDER.index(choice.verdict) <= _ORDER.index(best.verdict)
            and (interval := _figure_interval(choice)) is not None
            and math.log(_figure(choice) / _figure(best)) <= interval.half_width_of_ratio(best_range)
        )

    @property
    def surer(self) -> Choice | None:
        """Choice among `equal` whose cost has a smaller upper end than the one to book, or that is likelier to fit."""
        choices = [choice for choice in (self.best, *self.equal) if choice is not None]
        estimates = [choice.estimate for choice in choices if choice.estimate is not None]
        ends = [interval.high for choice in choices if (interval := _figure_interval(choice)) is not None]
        position = surer_than_first(estimates, range(1, len(choices)), ends.__getitem__)
        return None if position is None else choices[position]

    def _whole_range_better(self, choice: Choice, other: Choice) -> bool:
        """Return whether a choice's whole range beats the other's: of cost where both have it, else of days."""
        if choice.run is None or other.run is None:
            return False
        runs = (choice.run, other.run)
        costs, days = [run.cost_interval for run in runs], [run.days_interval for run in runs]
        worst, best = days if None in costs else costs
        return worst is not None and best is not None and worst.high < best.low

    def best_of(self, offer: int) -> Choice | None:
        """Return the choice to book of one offer."""
        return min((choice for choice in self.priced if choice.offer == offer), key=self._preference, default=None)

    def least_nodes(self, offer: int) -> Choice | None:
        """Return the fewest nodes of an offer whose predicted days meet the deadline."""
        limit = -math.inf if self.deadline_days is None else self.deadline_days
        meets = [choice for choice in self.priced if choice.offer == offer and _days(choice) <= limit]
        return min(meets, key=lambda choice: (choice.nodes, _days(choice)), default=None)

    @property
    def offers_priced(self) -> tuple[OfferPriced, ...]:
        """Every offer with the positions in `choices` of its best choices."""
        return tuple(
            OfferPriced(
                **vars(offer),
                best=self._position(self.best_of(number)),
                least_nodes_in_time=self._position(self.least_nodes(number)),
            )
            for number, offer in enumerate(self.offers)
        )

    def _position(self, choice: Choice | None) -> int | None:
        return None if choice is None else self.choices.index(choice)

    def __repr__(self) -> str:
        """Return one line: the question, the number of choices, the one to book."""
        best = self.best
        run = None if best is None else best.run
        text = "nothing can train it"
        if best is not None and run is not None:
            text = f"best {best.nodes} x {best.hardware}, {best.precision}, {run.days:.3g} days, {best.verdict}"
        return f"<Plan {self.model}, {self.train_tokens:.4g} tokens: {len(self.choices)} choices, {text}>"

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each choice: days and cost with their intervals, and the limits."""
        return [_row(choice) for choice in self.choices]

    def command(self, choice: Choice) -> str:
        """Return the command that prices the layout of a choice; empty where it has none."""
        if choice.estimate is None:
            return ""
        return estimate_command(choice.estimate, has_experts=load_model(self.model).is_moe)

    def _preference(self, choice: Choice) -> tuple[float, ...]:
        doubt = -choice.probability if choice.verdict == "maybe" else 0.0
        limits = ((_days(choice), self.deadline_days), (_cost(choice), self.budget))
        shares = (figure / limit for figure, limit in limits if limit is not None)
        missed = 0.0 if choice.verdict != "no" else max(shares, default=0.0)
        return _ORDER.index(choice.verdict), doubt, missed, _cost(choice), _days(choice)


def plan(  # noqa: PLR0913  what a plan may be asked for
    question: Question,
    *,
    train_tokens: int,
    offers: Sequence[Offer | str],
    deadline_days: float | None = None,
    budget: float | None = None,
    precisions: Sequence[Precision] = (),
    availability: Availability | None = None,
    space: Space | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    progress: Progress | None = None,
    origin: Origin = ARGUMENT,
) -> Plan:
    """Price the best layout of every offer, number of nodes and precision for a whole training run.

    The question has no hardware, size or precision: the offers and `precisions`, by default the usual one of each
    offer's devices, say them, by `origin`. `progress` is called with the number of priced choices and of all; see
    `simulator.plan`. Raises InputError.
    """
    for name in ("hardware", "nodes", "devices", "precision"):
        if name in question.inputs:
            raise InputError(f"{name}: a plan takes it from its offers" if name != "precision" else "use precisions")
    _check(train_tokens, deadline_days, budget, precisions)
    known = tuple(parse_offer(offer) if isinstance(offer, str) else offer for offer in offers)
    if not known:
        raise InputError("a plan needs at least one offer")
    if budget is not None and all(offer.price_per_device_hour is None for offer in known):
        raise InputError("a budget needs the price of an offer, such as h100-sxm-80g:8,16@2.50")
    model = question.value("model")
    parameters = float(total_parameters(load_model(model)))
    fastest = partial(ranking.fastest, space=space, min_fit_probability=min_fit_probability)
    total = sum(len(offer.nodes) for offer in known) * (len(dict.fromkeys(precisions)) or 1)
    planned = Plan(
        model=model,
        train_tokens=train_tokens,
        deadline_days=deadline_days,
        budget=budget,
        offers=known,
        availability=availability,
        min_fit_probability=min_fit_probability,
        choices=(),
        question=question,
    )
    choices: list[Choice] = []
    for choice in _choices(known, precisions, lambda offered: fastest(question.changed(origin, **offered))):
        choices.append(_limited(choice, planned, parameters))
        if progress is not None:
            progress(len(choices), total)
    return replace(planned, choices=tuple(replace(each, pareto=_on_front(each, choices)) for each in choices))


def _check(tokens: int, deadline: float | None, budget: float | None, precisions: Sequence[Precision]) -> None:
    check_count("train_tokens", tokens, 10**18)
    for name, value in (("deadline_days", deadline), ("budget", budget)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{name} {value!r}: must be a number above 0")
    wrong = [precision for precision in precisions if precision not in PRECISIONS]
    if wrong:
        raise InputError(f"precisions {list(precisions)}: allowed are {', '.join(PRECISIONS)}")


def _choices(
    offers: Sequence[Offer], precisions: Sequence[Precision], search: Callable[[dict[str, Any]], ranking.Fastest]
) -> Iterator[Choice]:
    """Yield every choice with its layout, which `search` finds for what an offer says, without the run."""
    for position, offer in enumerate(offers):
        hardware = load_hardware(offer.hardware)
        for nodes in offer.nodes:
            for precision in dict.fromkeys(precisions or (usual_precision([hardware]),)):
                offered = {"hardware": offer.hardware, "nodes": nodes, "precision": precision}
                estimate, reason = _fastest(partial(search, offered))
                yield Choice(
                    offer=position,
                    hardware=hardware.name,
                    nodes=nodes,
                    devices=nodes * hardware.devices_per_node,
                    precision=precision,
                    estimate=estimate,
                    reason=reason,
                )


def _fastest(search: Callable[[], ranking.Fastest]) -> tuple[Estimate | None, str | None]:
    """Return the estimate of a choice, or why it has none. Raises InputError for a wrong question."""
    try:
        layouts = search()
    except UnsupportedError as error:
        return None, str(error)
    if layouts.recommended is not None:
        return layouts.recommended, None
    nearest = layouts.nearest
    if nearest is None or nearest.other_memory:
        return None, "no layout keeps the rules" if nearest is None else nearest.provenance.cautions[0]
    memory, reason = nearest.memory, "nothing fits; the nearest needs"
    if memory.fits and memory.fits_host is False:
        share = 100 * memory.host_bytes_per_node / (memory.host_capacity_bytes or 1.0)
        return None, f"{reason} {share:.0f} % of the host's memory"
    if memory.fits and memory.fit_probability is not None:
        reason = "nothing is likely enough to fit; the fastest that may does with"
        return None, f"{reason} {100 * memory.fit_probability:.0f} %"
    return None, f"{reason} {100 * memory.device_bytes / memory.capacity_bytes:.0f} % of the memory"


def _limited(choice: Choice, plan: Plan, parameters: float) -> Choice:
    """Return the choice with its run and the checks of its limits; `plan` has those, and no choices yet."""
    if choice.estimate is None:
        return choice
    availability, deadline, budget = plan.availability, plan.deadline_days, plan.budget
    try:
        share = None if availability is None else goodput(availability, choice.devices, parameters)
    except UnsupportedError as error:
        return replace(choice, estimate=None, reason=str(error))
    training = 1.0 if share is None else share.training
    run = run_of(choice.estimate, plan.train_tokens, plan.offers[choice.offer].price_per_device_hour, training)
    return replace(
        choice,
        run=run,
        goodput=share,
        in_time=None if deadline is None else limit_check(run.days, run.days_interval, deadline),
        in_budget=None if budget is None else limit_check(run.cost, run.cost_interval, budget),
    )


def limit_check(figure: float | None, interval: Interval | None, limit: float) -> LimitCheck:
    """Return whether a figure is below a limit, `maybe` without one; its logarithm is normal with this `interval`."""
    if figure is None:
        return LimitCheck("maybe", None)
    if interval is None or interval.high <= interval.low:
        return LimitCheck("yes" if figure <= limit else "no", None)
    deviation = math.log(interval.high / interval.low) / (2.0 * NORMAL_90)
    middle = math.log(interval.low * interval.high) / 2.0
    probability = normal_below((math.log(limit) - middle) / deviation)
    if interval.high <= limit:
        return LimitCheck("yes", probability)
    return LimitCheck("no" if interval.low > limit else "maybe", probability)


def _days(choice: Choice) -> float:
    return math.inf if choice.run is None else choice.run.days


def _cost(choice: Choice) -> float:
    return math.inf if choice.run is None or choice.run.cost is None else choice.run.cost


def _figure(choice: Choice) -> float:
    """Return the cost of a choice, without a price its days."""
    cost = _cost(choice)
    return cost if math.isfinite(cost) else _days(choice)


def _figure_interval(choice: Choice) -> Interval | None:
    """Return the 90 % interval of the cost, without a price of the days."""
    run = choice.run
    return None if run is None else run.days_interval if run.cost is None else run.cost_interval


def _on_front(choice: Choice, choices: Sequence[Choice]) -> bool:
    """Return whether no other choice is as fast and as cheap, and better in one."""
    mine = _days(choice), _cost(choice)
    others = ((_days(other), _cost(other)) for other in choices if other.run is not None)
    return choice.run is not None and not any(
        days <= mine[0] and cost <= mine[1] and (days, cost) != mine for days, cost in others
    )


def _row(choice: Choice) -> dict[str, Any]:
    run = choice.run
    days, cost = (None, None) if run is None else (run.days_interval, run.cost_interval)
    return {
        **{name: getattr(choice, name) for name in ("hardware", "nodes", "devices", "precision", "verdict", "pareto")},
        "reason": choice.reason,
        "days": None if run is None else run.days,
        "days_low": None if days is None else days.low,
        "days_high": None if days is None else days.high,
        "cost": None if run is None else run.cost,
        "cost_low": None if cost is None else cost.low,
        "cost_high": None if cost is None else cost.high,
        "in_time": None if choice.in_time is None else choice.in_time.answer,
        "in_budget": None if choice.in_budget is None else choice.in_budget.answer,
        "goodput": None if choice.goodput is None else choice.goodput.training,
        "step_seconds": None if choice.estimate is None else choice.estimate.throughput.step_seconds,
        "fit_probability": None if choice.estimate is None else choice.estimate.memory.fit_probability,
        **dict.fromkeys(_SIZES),
        **({} if choice.estimate is None else {name: layout_object(choice.estimate.layout)[name] for name in _SIZES}),
    }
