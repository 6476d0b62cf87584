"""Estimates of one layout and rankings of layouts, for Python programs. Holds no formula: `simulator.cost` does."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, Unpack

from simulator.cluster import cluster
from simulator.cost.derived import pricing_of
from simulator.cost.pricing.estimate import Estimate
from simulator.cost.pricing.price import price
from simulator.errors import InputError, did_you_mean
from simulator.question.frameworks.releases import usual_profile
from simulator.question.scenario.complete import NAMES, Wording, asked_layout, devices_taken, resolve
from simulator.question.scenario.inputs import BY_INPUT, DEFAULTS, WORKLOAD, chosen_options
from simulator.question.scenario.layout import BY_NAME, FIELDS, SETTINGS, Layout
from simulator.question.scenario.scenario import Scenario, scenario_on
from simulator.question.scenario.settings import check_count, check_share
from simulator.question.scenario.typed import EstimateFields, QuestionFields, RankFields
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.model import ModelSpec
from simulator.search.assumed import with_switches
from simulator.search.beside import in_fp8, on_other_stacks, reasons, remedies
from simulator.search.build import estimate_of, estimates_of
from simulator.search.fewest import fewest_nodes, most_nodes
from simulator.search.query import MIN_FIT_PROBABILITY, PricedLayout, Query
from simulator.search.rank import Progress, best_of, search, share
from simulator.search.result import Counts, Ranking
from simulator.search.space import Space
from simulator.search.spread import spread
from simulator.search.surer import equal_to_first, surer_than_first

P = ParamSpec("P")
R = TypeVar("R")


def spelled(fields: type, *, over: bool = False) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of `**fields` with a signature and help that name each; other names raise TypeError.

    With `over` they have no defaults, as they replace values from elsewhere.
    """

    def named(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        parameters = {
            name: parameter
            for name, parameter in signature.parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD
        }
        for name, kind in fields.__annotations__.items():
            default = None if over else inspect.Parameter.empty if name == "model" else DEFAULTS.get(name)
            text = _text(kind)
            text = text.removeprefix("Required[")[:-1] if text.startswith("Required[") else text
            word = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=text)
            parameters.setdefault(name, word)
        required_first = sorted(parameters.values(), key=lambda parameter: parameter.default is not parameter.empty)
        whole = signature.replace(parameters=required_first)

        @functools.wraps(function)
        def asked_by_name(*args: P.args, **kwargs: P.kwargs) -> R:
            if wrong := next((name for name in kwargs if name not in parameters), None):
                hint = did_you_mean(wrong, parameters)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {wrong!r}{hint}")
            try:
                whole.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            return function(*args, **kwargs)

        asked_by_name.__dict__["__signature__"] = whole
        if function.__doc__:  # none under `python -OO`
            asked_by_name.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n\n{_described(parameters)}"
        return asked_by_name

    return named


def _described(names: Container[str]) -> str:
    """Return a line of help for each input and each field of a layout among the names."""
    fields = [(", ".join(dict.fromkeys((field.name, field.key))), field) for field in SETTINGS if field.name in names]
    inputs = [(name, setting) for name, setting in BY_INPUT.items() if name in names]
    return "\n".join(f"{name}: {setting.help}" for name, setting in (*inputs, *fields))


def _text(kind: object) -> str:
    """Return a type as source code writes it."""
    return str(getattr(kind, "__forward_arg__", kind))


@spelled(QuestionFields)
def scenario_of(**question: Unpack[QuestionFields]) -> Scenario:
    """Return the scenario of a question.

    `model` and `hardware` are shipped names or paths, `model` also a Hugging Face configuration as a mapping or as an
    object of transformers, `hardware` also node groups (see `simulator.cluster`); without
    `nodes` and `devices` it is one node. `stack` is None for the named stack of the calibration or of the hardware,
    else the framework's defaults; `options` stand above it. `calibration` is None for the shipped one of the hardware's
    family, `none` for the priors, or a file. Raises InputError for what is wrong and UnsupportedError for what
    cannot be priced.
    """
    inputs = {**DEFAULTS, **question}
    for name, value in inputs.items():
        BY_INPUT[name].check(value)
    machines = cluster(inputs["hardware"], inputs["nodes"], inputs["devices"], inputs["calibration"])
    model, layers, framework = model_of(inputs["model"]), inputs["num_layers"], inputs["framework"]
    case = model.name, "" if machines.groups else machines.hardware.name, inputs["precision"]
    options, family = chosen_options(inputs), machines.hardware.family
    profile = usual_profile(framework, options, inputs["stack"], machines.stacks, case, family)
    shape = model if layers is None else model.with_layers(layers)
    return scenario_on(machines, shape, profile, **{setting.name: inputs[setting.name] for setting in WORKLOAD})


def model_of(model: Any) -> ModelSpec:
    """Return the model of a name, a path, or a Hugging Face configuration: a mapping, or an object with `to_dict`.

    Raises InputError, or UnsupportedError for a configuration of unknown make.
    """
    if isinstance(model, str):
        return load_model(model)
    values = model.to_dict() if hasattr(model, "to_dict") else model
    if not isinstance(values, Mapping):
        raise InputError(f"model {str(model)[:60]!r}: must be a name, a path, or a Hugging Face configuration")
    from simulator.question.specs.huggingface import model_of_config  # noqa: PLC0415  start-up time

    name = str(values.get("_name_or_path") or values.get("name") or "").rpartition("/")[2]
    return model_of_config(values, "model", name or "own-model")


@spelled(EstimateFields)
def estimate(*, layout: Layout | None = None, **inputs: Unpack[EstimateFields]) -> Estimate:
    """Price one layout.

    Takes the arguments of `scenario_of`, and a layout: as a value, whose cut may be left out, or as fields of `Layout`
    by name or key (`tensor_parallel=4` or `tp=4`); what is left out then follows from the scenario (see `resolve`).
    Without `nodes` and `devices`, a layout whose `data_parallel` is given says how many devices there are.
    """
    layout_fields = {name: value for name, value in inputs.items() if name in BY_NAME and value is not None}
    question = {name: value for name, value in inputs.items() if name not in BY_NAME}
    if layout is None:
        scenario, chosen = resolved(question, layout_fields)
    elif layout_fields:
        raise InputError("give a layout or its fields, not both")
    else:
        fields = {field.name: getattr(layout, field.name) for field in FIELDS}
        scenario, chosen = resolve(scenario_of(**question), fields, filled=False)  # type: ignore[arg-type]  # checked
    return answer(scenario, chosen, chosen_options(question))


def resolved(
    question: Mapping[str, Any], layout_fields: Mapping[str, Any], words: Wording = NAMES, *, filled: bool = False
) -> tuple[Scenario, Layout]:
    """Return the scenario and layout of the arguments of `estimate`. Raises as `scenario_of` and `resolve` do."""
    fields = asked_layout(layout_fields, words)
    inputs = dict(question)
    sized = inputs.get("nodes") is not None or inputs.get("devices") is not None or ":" in inputs.get("hardware", "")
    if not sized:
        inputs["devices"] = devices_taken(fields)
    return resolve(scenario_of(**inputs), fields, words, filled=filled)


def answer(scenario: Scenario, layout: Layout, options: Mapping[str, str] | None = None) -> Estimate:
    """Return the estimate of a layout with the worth of its assumed switches; `options` are those of the question."""
    priced = price(pricing_of(scenario, layout))
    return with_switches(scenario, estimate_of(priced), options or {}, priced)


@spelled(RankFields)
def rank(
    *,
    space: Space | None = None,
    top: int = 10,
    variants: bool = False,
    progress: Progress | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    train_tokens: int | None = None,
    deadline_days: float | None = None,
    **inputs: Unpack[RankFields],
) -> Ranking:
    """Rank the layouts of `space`, fastest first.

    Takes the arguments of `scenario_of`, and in place of a space fields of `Layout` by name or key, each a value or
    some (`tp=4`, `pipeline_parallel=(2, 4)`).

    Layouts that fit with less than `min_fit_probability` stand apart, as `risky`, where there is a calibration. Without
    `variants` the ranking shows the best of each split (tensor, pipeline, context and expert parallel sizes).

    With `nodes="auto"` it is the ranking of the fewest nodes that have one, up to 1024, with `auto:256` up to 256; with
    `deadline_days` of those whose best layout trains `train_tokens` in time.
    """
    check_count("top", top)
    question, space = _searched(inputs, space)
    fewest = None
    if (most := most_nodes(question.get("nodes"))) is not None:
        small = _query({**question, "nodes": 1}, space, min_fit_probability)
        fewest = fewest_nodes(small, most, train_tokens, deadline_days, progress)
        question, progress = {**question, "nodes": fewest.ranked_nodes}, None
    elif deadline_days is not None:
        raise InputError('deadline_days needs nodes="auto"; a plan compares offers')
    query = _query(question, space, min_fit_probability)
    return dataclasses.replace(_ranked(query, question, top, progress, variants=variants), fewest=fewest)


def _ranked(query: Query, question: QuestionFields, top: int, progress: Progress | None, *, variants: bool) -> Ranking:
    """Return the ranking of a question with remedies, reasons and alternatives."""
    started = time.perf_counter()
    searched = search(query, top=top, variants=variants, progress=share(progress, 0, 2))
    if not searched.evaluated:
        raise InputError(
            f"no layout to search: the parallel sizes given must multiply to a divisor of {query.scenario.devices} "
            f"devices, with at most {query.scenario.model.num_hidden_layers} pipeline ranks"
        )
    shown = (searched.fastest, searched.risky, searched.starved)
    of_each = iter(estimates_of([layout for layouts in shown for layout in layouts]))
    best, risky, starved = ([next(of_each) for _ in layouts] for layouts in shown)
    if best:
        best[0] = with_switches(searched.fastest[0].query.scenario, best[0], query.options)
    near = [estimate.layout for estimate in best[:_NEAR]]
    equal = equal_to_first(searched.fastest)
    beside = share(progress, 1, 2)
    fp8 = in_fp8(query, near)
    if beside is not None:
        beside(1, 2)
    stacks = tuple(on_other_stacks(query, near))
    if beside is not None:
        beside(2, 2)
    return Ranking(
        query=_inputs(query, question["model"] if isinstance(question["model"], str) else query.scenario.model.name),
        defaults=tuple(name for name in DEFAULTS if name not in (*question, "devices")),
        estimates=tuple(best),
        risky=tuple(risky),
        starved=tuple(starved),
        nearest=estimates_of(searched.nearest)[0] if searched.nearest and not best else None,
        remedies=() if best else tuple(remedies(query)),
        reasons=() if best else tuple(reasons(query, searched)),
        equal=equal,
        surer=surer_than_first(best, equal),
        fp8=fp8,
        stacks=stacks,
        counts=Counts(
            evaluated=searched.evaluated,
            feasible=searched.feasible,
            rejected=searched.rejected,
            elapsed_seconds=time.perf_counter() - started,
        ),
    )


_NEAR = 3
"""Number of best layouts to try first in fp8 and on other stacks."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """Fastest layout of a question."""

    recommended: Estimate | None
    """Fastest estimate that is likely enough to fit; None where none is."""
    nearest: Estimate | None
    """Without a recommended one: the fastest that may fit, else the smallest need; None where all break rules."""


@spelled(QuestionFields)
def fastest(
    *,
    space: Space | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    **question: Unpack[QuestionFields],
) -> Fastest:
    """Return the first layout of `rank`, which takes the same arguments, without the rest of the ranking."""
    query = _query(question, space, min_fit_probability)
    best = best_of(query)
    if best is not None:
        return Fastest(estimates_of([best])[0], None)
    searched = search(query, top=1)
    nearest = (*searched.risky, *searched.starved, *searched.nearest)[:1]
    return Fastest(None, estimates_of(nearest)[0] if nearest else None)


@dataclass(frozen=True, slots=True)
class FeasibleLayouts:
    """Layouts that fit."""

    estimates: tuple[Estimate, ...]
    """Estimates without intervals, at most as many as asked for."""
    others: tuple[PricedLayout, ...]
    """Further layouts, with speed and memory alone."""


@spelled(QuestionFields)
def feasible(
    *, space: Space | None = None, most: int = 1000, drawn: int = 100_000, **question: Unpack[QuestionFields]
) -> FeasibleLayouts:
    """Return the layouts that `rank` counts as fitting, up to `most` of them as estimates.

    Beyond `drawn` layouts for one way of exchanging experts, `spread` selects from them.
    """
    check_count("most", most)
    alternatives = _query(question, space, 0.0).alternatives()
    spreads = [spread(alternative, max(most // len(alternatives), 1), drawn) for alternative in alternatives]
    return FeasibleLayouts(
        tuple(estimate for detailed, _ in spreads for estimate in estimates_of(detailed, intervals=False)),
        tuple(priced for _, others in spreads for priced in others),
    )


def _searched(inputs: Mapping[str, Any], space: Space | None) -> tuple[QuestionFields, Space | None]:
    """Return the question among the inputs, and the space, given or of fields of a layout."""
    layout = {name: value for name, value in inputs.items() if name in BY_NAME and value is not None}
    question: Any = {name: value for name, value in inputs.items() if name not in BY_NAME}
    if layout and space is not None:
        raise InputError("give a space or fields of a layout, not both")
    return question, space_of(layout) if layout else space


def space_of(layout: Mapping[str, Any], words: Wording = NAMES) -> Space:
    """Return the space that fields of a layout leave, by name or key, each one value or several."""
    some = {name: tuple(value) if isinstance(value, _SOME) else (value,) for name, value in layout.items()}
    return Space(**asked_layout(some, words, many=True))


_SOME = (list, tuple, range, set, frozenset)


def _query(question: QuestionFields, space: Space | None, min_fit_probability: float) -> Query:
    check_share("min_fit_probability", min_fit_probability)
    return Query(
        scenario=scenario_of(**question),
        space=space or Space(),
        options=chosen_options(question),
        min_fit_probability=min_fit_probability,
    )


def _inputs(query: Query, model: str) -> dict[str, object]:
    """Return every input with its value after defaults."""
    scenario, space = query.scenario, query.space
    return {
        "model": model,
        "hardware": scenario.hardware_name,
        "nodes": scenario.nodes,
        "devices": scenario.devices,
        **scenario.workload,
        "num_layers": scenario.model.num_hidden_layers,
        "framework": scenario.framework.name,
        "optimizer": scenario.framework.optimizer,
        "options": dict(query.options),
        "stack": scenario.framework.stack,
        "calibration": scenario.coefficients.name,
        "space": {f.name: getattr(space, f.name) for f in dataclasses.fields(space) if getattr(space, f.name)},
        "min_fit_probability": query.min_fit_probability,
    }
