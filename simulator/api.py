"""The two questions: what does this layout cost, and which layouts are best."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, Required, TypedDict, TypeVar, Unpack

from simulator.cluster import cluster
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.violation import Violation
from simulator.errors import InputError, did_you_mean
from simulator.question.frameworks.stacks import DEFAULT, stack_for, stacks_of
from simulator.question.frameworks.stacks import framework as framework_profile
from simulator.question.scenario.complete import NAMES, Question, Wording, asked_layout, devices_taken, resolve
from simulator.question.scenario.layout import BY_NAME, FIELDS, Layout
from simulator.question.scenario.scenario import MOST_DEVICES, MOST_TOKENS, Scenario
from simulator.question.scenario.settings import check_count, check_share
from simulator.question.scenario.typed import LayoutFields
from simulator.question.specs.catalogue import load_model
from simulator.question.vocabulary import FrameworkName, Precision, StackName
from simulator.search.assumed import with_assumed
from simulator.search.build import bare_estimate, bare_estimates, estimate_layout
from simulator.search.exchanges import best_of, exchanges, searched
from simulator.search.rank import MIN_FIT_PROBABILITY, Progress, fastest_of
from simulator.search.result import Counts, Ranking, Remedy, StackBest
from simulator.search.rules import ACROSS_NODES, RULES
from simulator.search.space import Space
from simulator.search.spread import Feasible, spread

P = ParamSpec("P")
R = TypeVar("R")


class WorkloadFields(TypedDict, total=False):
    """What is trained by what, but the model and where; see `scenario_of`."""

    seq_length: int
    global_batch_size: int
    lora_rank: int | None
    num_layers: int | None
    framework: FrameworkName
    options: Mapping[str, str] | None
    stack: StackName | None
    calibration: str | None


class QuestionFields(WorkloadFields, total=False):
    """What is trained on what; see `scenario_of`."""

    model: Required[str]
    hardware: str
    nodes: int | None
    devices: int | None
    precision: Precision


class EstimateFields(QuestionFields, LayoutFields, total=False):
    """What is trained on what, and how."""


def spelled(fields: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of `**fields`: its signature names them, for help and completion, and no other is taken."""

    def named(function: Callable[P, R]) -> Callable[P, R]:
        signature, asked = inspect.signature(function), inspect.signature(question_of).parameters
        told = {name: one for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
        for name, kind in fields.__annotations__.items():
            word = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_text(kind))
            told.setdefault(name, asked.get(name, word))
        required_first = sorted(told.values(), key=lambda one: one.default is not one.empty)
        whole = signature.replace(parameters=required_first)

        @functools.wraps(function)
        def asked_by_name(*args: P.args, **kwargs: P.kwargs) -> R:
            if wrong := next((name for name in kwargs if name not in told), None):
                hint = did_you_mean(wrong, told)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {wrong!r}{hint}")
            try:
                whole.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return function(*args, **kwargs)

        asked_by_name.__dict__["__signature__"] = whole
        return asked_by_name

    return named


def _text(kind: object) -> object:
    """A type as it is written."""
    return getattr(kind, "__forward_arg__", kind)


def question_of(
    *,
    model: str,
    hardware: str = "z2000",
    nodes: int | None = None,
    devices: int | None = None,
    seq_length: int = 8192,
    global_batch_size: int = 1024,
    precision: Precision = "bf16",
    lora_rank: int | None = None,
    num_layers: int | None = None,
    framework: FrameworkName = "megatron",
    options: Mapping[str, str] | None = None,
    stack: StackName | None = None,
    calibration: str | None = None,
) -> Question:
    """A question with its specs read, as in `scenario_of`."""
    for name, value in (("seq_length", seq_length), ("global_batch_size", global_batch_size)):
        check_count(name, value, MOST_TOKENS)
    for name, optional in (
        ("nodes", nodes),
        ("devices", devices),
        ("lora_rank", lora_rank),
        ("num_layers", num_layers),
    ):
        if optional is not None:
            check_count(name, optional)
    machines = cluster(hardware, nodes, devices, calibration)
    model_spec = load_model(model)
    if num_layers is not None:
        model_spec = model_spec.with_layers(num_layers)
    return Question(
        model=model_spec,
        cluster=machines,
        framework=framework_profile(framework, options, stack_for(framework, stack, *machines.stacks)),
        seq_length=seq_length,
        global_batch_size=global_batch_size,
        precision=precision,
        lora_rank=lora_rank,
    )


@spelled(QuestionFields)
def scenario_of(**question: Unpack[QuestionFields]) -> Scenario:
    """The scenario of a question.

    `model` and `hardware` are shipped names or paths, `hardware` also node groups (see `simulator.cluster`); without
    `nodes` and `devices` it is one node. `stack` is None for the named stack of the calibration or of the hardware,
    else the framework's defaults; `options` stand above it. `calibration` is None for the shipped one of the hardware's
    family, `none` for the priors, or a file. Raises InputError for what is wrong and UnsupportedError for what
    cannot be priced.
    """
    return question_of(**question).scenario()


@spelled(EstimateFields)
def estimate(*, layout: Layout | None = None, **asked: Unpack[EstimateFields]) -> Estimate:
    """Price one layout.

    Takes the arguments of `scenario_of`, and a layout: as a value, whose cut may be left out, or as fields of `Layout`
    by name or key (`tensor_parallel=4` or `tp=4`); what is left out then follows from the scenario (see `resolve`).
    Without `nodes` and `devices`, a layout whose `data_parallel` is given says how many devices there are.
    """
    given = {name: value for name, value in asked.items() if name in BY_NAME and value is not None}
    question = {name: value for name, value in asked.items() if name not in BY_NAME}
    if layout is None:
        scenario, chosen = resolved(question, given)
    elif given:
        raise InputError("give a layout or its fields, not both")
    else:
        fields = {field.name: getattr(layout, field.name) for field in FIELDS}
        scenario, chosen = resolve(question_of(**question), fields, filled=False)  # type: ignore[arg-type]  # checked
    return answer(scenario, chosen, question.get("options"))  # type: ignore[arg-type]  # checked above


def resolved(
    question: Mapping[str, Any], given: Mapping[str, Any], words: Wording = NAMES, *, filled: bool = False
) -> tuple[Scenario, Layout]:
    """The scenario and layout of the arguments of `scenario_of` and of fields of a layout. Raises as `resolve` does."""
    fields = asked_layout(given, words)
    asked = dict(question)
    sized = asked.get("nodes") is not None or asked.get("devices") is not None or ":" in asked.get("hardware", "")
    if not sized:
        asked["devices"] = devices_taken(fields)
    return resolve(question_of(**asked), fields, words, filled=filled)


def answer(scenario: Scenario, layout: Layout, options: Mapping[str, str] | None = None) -> Estimate:
    """The estimate of a layout, with a note on each of the given switches that changes nothing."""
    told = with_assumed(scenario, estimate_layout(scenario, layout), options or {})
    return _with_idle_switches(scenario, told, options or {})


def _with_idle_switches(scenario: Scenario, priced: Estimate, options: Mapping[str, str]) -> Estimate:
    """Note the switches that change nothing here: an option is never ignored without a word."""
    idle = []
    for name in options:
        profile = scenario.framework
        usual = replace(profile, **{name: getattr(framework_profile(profile.name, stack=profile.stack), name)})
        other = bare_estimate(replace(scenario, framework=usual), priced.layout)
        if usual != scenario.framework and _figures(other) == _figures(priced):
            idle.append(f"--option {name}: no effect on this model and layout")
    if not idle:
        return priced
    return replace(priced, provenance=replace(priced.provenance, notes=(*idle, *priced.provenance.notes)))


def _figures(priced: Estimate) -> tuple[object, ...]:
    stages = tuple((stage.device_bytes, stage.allocated_bytes) for stage in priced.memory.stages)
    return (stages, priced.throughput.step_seconds)


@spelled(QuestionFields)
def rank(
    *,
    space: Space | None = None,
    top: int = 10,
    variants: bool = False,
    progress: Progress | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    **question: Unpack[QuestionFields],
) -> Ranking:
    """Rank the layouts of `space`, fastest first; takes the arguments of `scenario_of`.

    Layouts that fit with less than `min_fit_probability` stand apart, as `risky`; without a calibration nothing tells
    them. Without `variants` the ranking shows the best of each split (tensor, pipeline, context and expert parallel
    sizes).
    """
    started = time.perf_counter()
    space = space or Space()
    check_count("top", top)
    check_share("min_fit_probability", min_fit_probability)
    scenario = scenario_of(**question)
    least = min_fit_probability
    told = question.get("options") or {}
    all_found = searched(scenario, told, space, top=top, variants=variants, progress=progress, least=least)
    found, counted = all_found.asked, all_found.counts
    if not found.evaluated:
        raise InputError(
            f"no layout to search: the parallel sizes given must multiply to a divisor of {scenario.devices} devices, "
            f"with at most {scenario.model.num_hidden_layers} pipeline ranks"
        )
    best = tuple(estimate for _, estimate in all_found.best)
    if best:
        held, first = all_found.best[0]
        best = (_with_idle_switches(held, with_assumed(held, first, told), told), *best[1:])
    nearest = estimate_layout(scenario, found.nearest[0]) if found.nearest and not best else None
    starved = tuple(estimate_layout(scenario, layout) for layout in found.starved)
    remedies = () if best else tuple(_remedies(scenario, space, least))
    near = tuple(estimate.layout for estimate in best[:_NEAR])
    fp8 = _fp8(scenario, told, space, least, near)
    others = tuple(_on_other_stacks(scenario, space, least, told, near))
    return Ranking(
        query=_query(scenario, question, space) | {"min_fit_probability": least},
        defaults=tuple(name for name in _QUESTION if name not in question),
        counts=Counts(
            evaluated=counted.evaluated,
            feasible=counted.feasible,
            rejected=counted.rejected,
            elapsed_seconds=time.perf_counter() - started,
        ),
        estimates=best,
        risky=all_found.risky,
        starved=starved,
        nearest=nearest,
        remedies=remedies,
        reasons=() if best else tuple(_reasons(scenario, found.examples)),
        fp8=fp8,
        stacks=others,
    )


_NEAR = 3
"""Best layouts of a question that are tried first in its other forms."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """The fastest layout of a question."""

    recommended: Estimate | None
    """Likely enough to fit."""
    nearest: Estimate | None
    """Where none is: the fastest that may fit, else the one that needs least; None where no layout keeps the rules."""


@spelled(QuestionFields)
def fastest(
    *,
    space: Space | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    **question: Unpack[QuestionFields],
) -> Fastest:
    """The first layout of `rank`, which takes the same arguments, without what a ranking tells beside it."""
    check_share("min_fit_probability", min_fit_probability)
    scenario = scenario_of(**question)
    told = question.get("options") or {}
    best = best_of(scenario, told, space or Space(), least=min_fit_probability)
    if best:
        return Fastest(best[1], None)
    found = searched(scenario, told, space or Space(), top=1, least=min_fit_probability)
    if found.risky:
        return Fastest(None, found.risky[0])
    chosen = found.asked.starved or found.asked.nearest
    return Fastest(None, estimate_layout(scenario, chosen[0]) if chosen else None)


@dataclass(frozen=True, slots=True)
class FeasibleLayouts:
    """Layouts that fit."""

    estimates: tuple[Estimate, ...]
    """Plain estimates, without intervals."""
    others: tuple[tuple[Feasible, Mapping[str, str]], ...]
    """Those beyond, by their speed and memory alone, each with the switches that were chosen beside it."""


@spelled(QuestionFields)
def feasible(
    *, space: Space | None = None, most: int = 1000, drawn: int = 100_000, **question: Unpack[QuestionFields]
) -> FeasibleLayouts:
    """Every layout that `rank` counts as fitting, of which up to `most` as estimates.

    Of more than `drawn` for one way of exchanging experts there is a choice: that of `spread`.
    """
    check_count("most", most)
    ways = exchanges(scenario_of(**question), question.get("options") or {})
    estimates: list[Estimate] = []
    others: list[tuple[Feasible, Mapping[str, str]]] = []
    for way in ways:
        found = spread(way.scenario, space or Space(), max(most // len(ways), 1), drawn)
        detailed = bare_estimates(way.scenario, [one.layout for one in found if one.chosen])
        estimates += [replace(one, options=way.options) for one in detailed]
        others += [(one, way.options) for one in found if not one.chosen]
    return FeasibleLayouts(tuple(estimates), tuple(others))


def _reasons(scenario: Scenario, examples: Mapping[str, Layout]) -> Iterator[Violation]:
    """What each rule says of one layout that it dropped."""
    for rule in (*RULES, ACROSS_NODES):
        if rule.id in examples:
            layout = examples[rule.id]
            yield Violation(rule.id, rule.message(scenario, layout), rule.fix(scenario, layout))


_QUESTION = (
    "hardware",
    "nodes",
    "seq_length",
    "global_batch_size",
    "precision",
    "lora_rank",
    "num_layers",
    "framework",
    "options",
    "stack",
    "calibration",
)


def _query(scenario: Scenario, question: Mapping[str, Any], space: Space) -> dict[str, object]:
    """Every input with its value after defaults."""
    values: dict[str, object] = {
        "model": question["model"],
        "hardware": scenario.hardware_name,
        "nodes": scenario.nodes,
        "devices": scenario.devices,
        "seq_length": scenario.seq_length,
        "global_batch_size": scenario.global_batch_size,
        "precision": scenario.precision,
        "lora_rank": scenario.lora_rank,
        "num_layers": scenario.model.num_hidden_layers,
        "framework": scenario.framework.name,
        "options": dict(question.get("options") or {}),
        "stack": scenario.framework.stack,
        "calibration": scenario.coefficients.name,
    }
    narrowed = {f.name: getattr(space, f.name) for f in dataclasses.fields(space) if getattr(space, f.name)}
    return values | {"space": narrowed}


def _fp8(
    scenario: Scenario, told: Collection[str], space: Space, least: float, near: Collection[Layout]
) -> Estimate | None:
    """The best layout in fp8, where something else was asked for and the device has it."""
    if scenario.precision == "fp8" or any("fp8" not in h.peak_flops_per_second for h in scenario.kinds_of_device):
        return None
    narrow = replace(scenario, precision="fp8")
    found = best_of(narrow, told, space, least=least, near=near)
    return found[1] if found else None


def _on_other_stacks(
    scenario: Scenario, space: Space, least: float, options: Mapping[str, str], near: Collection[Layout]
) -> Iterator[StackBest]:
    """The best layout under the framework's defaults, where a stack was assumed, else under what is tuned for it."""
    profile = scenario.framework
    tuned = (stack.name for stack in stacks_of(profile.name) if stack.tuned)
    for name in (DEFAULT,) if profile.stack != DEFAULT else tuned:
        other = replace(scenario, framework=framework_profile(profile.name, options, name))
        found = best_of(other, options, space, least=least, near=near)
        yield StackBest(name, found[1] if found else None)


def _remedies(scenario: Scenario, space: Space, least: float) -> Iterator[Remedy]:
    """Changes after which something fits, each with its fastest layout; single changes only."""
    for change, other, wider in _changes(scenario, space, least):
        for layout in fastest_of(other, wider, least=least):
            yield Remedy(change, estimate_layout(other, layout))


def _changes(scenario: Scenario, space: Space, least: float) -> Iterator[tuple[str, Scenario, Space]]:
    for axis in dataclasses.fields(space):
        if getattr(space, axis.name) != axis.default:
            free: dict[str, Any] = {axis.name: axis.default}
            yield f"free choice of {axis.name}", scenario, replace(space, **free)
    for offload in ("optimizer", "optimizer_tensorwise"):
        if offload not in (space.offload or ()):
            yield f"--offload {offload}", scenario, replace(space, offload=(offload,))
    if not scenario.groups:
        more = _enough_nodes(scenario, space, least)
        if more is not None:
            yield f"--nodes {more.nodes}", more, space


def _enough_nodes(scenario: Scenario, space: Space, least: float) -> Scenario | None:
    """The smallest cluster of whole nodes, up to 64 times as large, on which something fits; None if none does."""
    per_node = scenario.hardware.devices_per_node

    def fits(nodes: int) -> bool:
        return bool(fastest_of(replace(scenario, devices=nodes * per_node), space, least=least))

    low = scenario.devices // per_node
    high = low
    for _ in range(6):
        high = max(2 * high, 1)
        if high * per_node > MOST_DEVICES:
            return None
        if fits(high):
            break
        low = high
    else:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return replace(scenario, devices=high * per_node)
