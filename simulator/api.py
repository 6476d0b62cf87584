"""Functions that a Python program calls: `rank`, `estimate`, `plan`, `check`, `emit` and the others.

Each makes a `Question` of its arguments, or of a file, and hands it to `simulator.answers` or `simulator.recipes`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, ParamSpec, TypeVar, Unpack

from simulator.answers import cases, ranking
from simulator.answers.cases import Case, case_of, case_of_estimate, priceable
from simulator.answers.compare import Comparison
from simulator.answers.compare import compare as compare_cases
from simulator.answers.explain import Explanation
from simulator.answers.explain import explain as explain_case
from simulator.answers.gates import FailingOutcome, Gates
from simulator.answers.plan import Availability, Offer, Plan
from simulator.answers.plan import plan as plan_of
from simulator.answers.run import saved_case, saved_question, saved_search
from simulator.answers.sweep import Sweep, sweep
from simulator.cost.pricing.estimate import Estimate
from simulator.errors import InputError, SimulateError, UnsupportedError, check_kind, did_you_mean, short_line
from simulator.question.origin import ARGUMENT
from simulator.question.question import Question, question_of
from simulator.question.scenario.inputs import BY_INPUT, DEFAULTS, check_count
from simulator.question.scenario.keywords import EstimateFields, OpenFields, QuestionFields, RankFields, SharedFields
from simulator.question.scenario.layout import SETTINGS, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.specs.documents import parse_json
from simulator.question.units import parse_count, to_gib
from simulator.question.vocabulary import Precision
from simulator.recipes.check.judge import check_files, with_bounds
from simulator.recipes.check.verdict import Checks
from simulator.recipes.emit.write import case_of_file, question_to_launch
from simulator.recipes.emit.write import emit as write_recipe
from simulator.records import replace
from simulator.search.rank import Progress
from simulator.search.space import MIN_FIT_PROBABILITY, Ranking, Space
from simulator.tabular import Tabular

_KINDS: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    **dict.fromkeys(("files", "root"), ((str, PathLike), "a path")),
    **dict.fromkeys(("deadline_days", "budget", "min_fit_probability"), ((int, float), "a number")),
    **dict.fromkeys(("precisions", "fail_on"), ((list, tuple, set, frozenset, str), "a list of words")),
    "layout": ((Layout,), "a Layout"),
    "space": ((Space,), "a Space"),
    "target": ((str,), "a word"),
    "availability": ((Availability,), "an Availability"),
    "progress": ((Callable,), "a function"),
    "offers": ((Offer, str), "a list of offers"),
    "settings": ((Mapping,), "a mapping"),
}  # types of arguments that are no inputs of a question, with their words; of lists those of their members
AnyAnswer = Estimate | Ranking | Comparison | Explanation | Plan | Checks | Sweep
"""What `to_json` writes and `from_json` reads."""
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
            required = name == "model" and not over
            default = None if over else inspect.Parameter.empty if required else DEFAULTS.get(name)
            text = str(getattr(kind, "__forward_arg__", kind))
            text = text.removeprefix("Required[")[:-1] if text.startswith("Required[") else text
            word = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=text)
            parameters.setdefault(name, word)
        required_first = sorted(parameters.values(), key=lambda parameter: parameter.default is not parameter.empty)
        whole = signature.replace(parameters=required_first)

        @functools.wraps(function)
        def called_by_name(*args: P.args, **kwargs: P.kwargs) -> R:
            if wrong := next((name for name in kwargs if name not in parameters), None):
                hint = did_you_mean(wrong, parameters)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument {wrong!r}{hint}")
            try:
                whole.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}(): {error}") from None
            for name, value in whole.bind(*args, **kwargs).arguments.items():
                if name in _KINDS and (value is not None or parameters[name].default is not None):
                    for each in value if isinstance(value, list | tuple) and name in ("files", "offers") else (value,):
                        check_kind(name, each, *_KINDS[name])
            return function(*args, **kwargs)

        called_by_name.__dict__["__signature__"] = whole
        if function.__doc__:  # none under `python -OO`
            called_by_name.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n\n{_described(parameters)}"
        return called_by_name

    return named


def _described(names: Container[str]) -> str:
    """Return a line of help for each input and each field of a layout among the names."""
    fields = [(", ".join(dict.fromkeys((field.name, field.key))), field) for field in SETTINGS if field.name in names]
    inputs = [(name, setting) for name, setting in BY_INPUT.items() if name in names]
    return "\n".join(f"{name}: {setting.help}" for name, setting in (*inputs, *fields))


@spelled(QuestionFields)
def scenario_of(**inputs: Unpack[QuestionFields]) -> Scenario:
    """Return the scenario of the arguments of `estimate` without its layout. Raises as `estimate` does."""
    return cases.scenario_of(question_of(inputs))


@spelled(EstimateFields)
def estimate(*, layout: Layout | None = None, **inputs: Unpack[EstimateFields]) -> Estimate:
    """Price one layout.

    `model` and `hardware` are shipped names or paths, `model` also a Hugging Face configuration as a mapping or as an
    object of transformers, `hardware` also node groups (`h800-sxm-80g:1,bi150-64g:1x8`); without `nodes` and `devices`
    it is one node, or what a layout takes whose `data_parallel` is given. `stack` is None for the named stack of the
    calibration or of the hardware, else the framework's defaults; `options` stand above it. `calibration` is None for
    the shipped one of the hardware's family, `none` for the priors, or a file. The layout is a value, whose cut may be
    left out, or fields of `Layout` by name or key (`tensor_parallel=4` or `tp=4`); what is left out follows from the
    scenario, and without one field the fastest layout that is likely to fit is taken. Raises InputError for what is
    wrong and UnsupportedError for what cannot be priced.
    """
    return ranking.estimate_of(priceable(case_of(ranking.with_best_layout(_question(inputs, layout)))))


def _question(inputs: Mapping[str, Any], layout: Layout | None = None) -> Question:
    """Return the question of keyword arguments."""
    question = question_of(inputs)
    if layout is None:
        return question
    if question.layout:
        raise InputError("give a layout or its fields, not both")
    return question.with_layout(layout, ARGUMENT)


@spelled(RankFields)
def rank(
    *,
    space: Space | None = None,
    top: int = 10,
    variants: bool = False,
    progress: Progress | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    train_tokens: float | str | None = None,
    deadline_days: float | None = None,
    **inputs: Unpack[RankFields],
) -> Ranking:
    """Rank the layouts of `space`, fastest first.

    Takes the inputs of `estimate`, and in place of a space fields of `Layout` by name or key, each a value or some
    (`tp=4`, `pipeline_parallel=(2, 4)`).

    Layouts that fit with less than `min_fit_probability` stand apart, as `risky`, where there is a calibration. Without
    `variants` the ranking shows the best of each split (tensor, pipeline, context and expert parallel sizes).

    With `nodes="auto"` it is the ranking of the fewest nodes that have one, up to 1024, with `auto:256` up to 256; with
    `deadline_days` of those whose best layout trains `train_tokens` in time.
    """
    question = question_of(inputs, many=True)
    if question.layout and space is not None:
        raise InputError("give a space or fields of a layout, not both")
    return ranking.rank(
        question,
        space=space,
        top=top,
        variants=variants,
        progress=progress,
        min_fit_probability=min_fit_probability,
        train_tokens=None if train_tokens is None else _tokens(train_tokens),
        deadline_days=deadline_days,
    )


def _tokens(count: Any) -> Any:
    """Return a number of tokens, also of a text such as `1T` or a whole float. Raises InputError."""
    if isinstance(count, float) and count.is_integer():
        return int(count)
    return parse_count(count) if isinstance(count, str) else count


@spelled(SharedFields)
def plan(
    *,
    model: str,
    train_tokens: float | str,
    offers: Sequence[Offer | str],
    deadline_days: float | None = None,
    budget: float | None = None,
    precisions: Sequence[Precision] = (),
    availability: Availability | None = None,
    space: Space | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    progress: Progress | None = None,
    **inputs: Unpack[SharedFields],
) -> Plan:
    """Price the best layout of every offer, number of nodes and precision for a whole training run.

    The run has `train_tokens` tokens; `deadline_days` and `budget` (in the currency of the offers) are its limits. With
    `availability`, days and cost include failures, checkpoints and evaluation. The rest is as in `rank`, without
    hardware, size and precision; `precisions` are by default the usual one of an offer's devices. `progress` is called
    with the number of priced choices and of all. Raises InputError.
    """
    return plan_of(
        question_of({**inputs, "model": model}),
        train_tokens=_tokens(train_tokens),
        offers=offers,
        deadline_days=deadline_days,
        budget=budget,
        precisions=precisions,
        availability=availability,
        space=space,
        min_fit_probability=min_fit_probability,
        progress=progress,
    )


def compare(first: Mapping[str, Any] | Estimate, second: Mapping[str, Any] | Estimate) -> Comparison:
    """Compare two estimates, or the arguments of two, in bytes and seconds.

    The effect of an input is the change of the first question with the value of the second. Raises as `estimate` does,
    and InputError for an estimate of a bare scenario.
    """
    return compare_cases(_side(first), _side(second))


def _side(side: object) -> Case:
    """Return the case of one side of a comparison."""
    if isinstance(side, Estimate):
        return case_of_estimate(side)
    if not isinstance(side, Mapping):
        kind = type(side).__name__
        raise InputError(f"compare takes estimates, or mappings of the arguments of one, not {kind}")
    return priceable(case_of(question_of(side)))


@spelled(OpenFields, over=True)
def check(
    *files: str | PathLike[str],
    settings: Mapping[str, str] | None = None,
    root: str | PathLike[str] | None = None,
    max_memory_fraction: float | None = None,
    min_fit_probability: float | None = None,
    fail_on: Collection[FailingOutcome] = (),
    skip_non_recipes: bool = False,
    **over: Unpack[OpenFields],
) -> Checks:
    """Judge launch scripts and configurations, or folders of them, without running any.

    `settings` are values known only at launch, such as `{"WORLD_SIZE": "4"}`; no file outside `root` is read. A recipe
    passes if it fits, within `max_memory_fraction` of the usable memory and with at least `min_fit_probability`; with
    `fail_on` only those outcomes fail. Arguments of `estimate` replace those of a recipe. An unreadable file is a
    result; raises InputError for a wrong argument.
    """
    if not files:
        raise InputError("name the recipes to judge, or a folder of them")
    gates = Gates(
        max_memory_fraction=max_memory_fraction,
        min_fit_probability=min_fit_probability,
        fail_on=tuple(fail_on) or None,
        skip_non_recipes=skip_non_recipes,
    )
    if not isinstance(over.get("model") or "", str | PathLike):
        raise InputError("model: over a file it is a name or a path")
    folder = Path(root) if root else None
    return _verdicts([fspath(file) for file in files], question_of(over), gates, settings or {}, folder)


def _verdicts(
    files: list[str], question: Question, gates: Gates, settings: Mapping[str, str], root: Path | None = None
) -> Checks:
    results = check_files(files, question, gates, settings, None, root)
    return Checks(results=results, gates=gates, question=question, settings=settings)


@spelled(OpenFields, over=True)
def explain(
    subject: Estimate | str | PathLike[str] | None = None,
    *,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    **question: Unpack[OpenFields],
) -> Explanation:
    """Explain the memory of a layout, with the smallest changes that make it fit.

    `subject` is an estimate, or the path of an answer or a recipe. The arguments of `estimate` define the layout
    without it, and replace values of a file. Raises InputError, or UnsupportedError for what cannot be priced.
    """
    case = _case(subject, question)
    return with_bounds(explain_case(case, min_fit_probability), case)


def from_json(text: str, *, rank: int | None = None) -> AnyAnswer:
    """Return the answer in its JSON, asked again; with `rank` the `rank`-th of its estimates.

    Recipes of verdicts are read again, rows of a sweep stand in its table. Raises InputError for text that holds no
    answer, and where it no longer gives the written figures.
    """
    check_kind("text", text, str, "the JSON of an answer")
    if rank is not None:
        check_count("rank", rank)
    value = parse_json("JSON", text)
    keys = value.keys() if rank is None and isinstance(value, dict) else set()

    def again(number: int) -> Estimate:
        case = saved_case("JSON", text, number, Question(), as_it_stands=True)
        return replace(ranking.estimate_of(case), question=case.question)

    try:
        if (read := next((read for own, read in _READERS if own <= keys), None)) is not None:
            return read(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"JSON: is no answer as `simulate --format json` writes it: {short_line(str(error))}"
        ) from error
    if "longest_sequence" in keys:
        return explain(again(1))
    if {"first", "second"} <= keys:
        return compare_cases(case_of_estimate(again(1)), case_of_estimate(again(2)), tuple(value["names"]))
    return again(rank or 1)


def _ranked(value: Mapping[str, Any]) -> Ranking:
    """Return the ranking of a JSON's question, with the time that it took."""
    question, space, others = saved_search(value)
    answer, seconds = ranking.rank(question, space=space, **others), value["counts"]["elapsed_s"]
    return replace(answer, counts=replace(answer.counts, elapsed_seconds=seconds))


def _planned(value: Mapping[str, Any]) -> Plan:
    """Return the plan of a JSON's offers and limits."""
    offers = [
        Offer(
            hardware=each["hardware"], nodes=tuple(each["nodes"]), price_per_device_hour=each["price_per_device_hour"]
        )
        for each in value["offers"]
    ]
    limits = {name: value[name] for name in ("train_tokens", "deadline_days", "budget", "min_fit_probability")}
    by_offer = [{c["precision"]: None for c in value["choices"] if c["offer"] == at} for at in range(len(offers))]
    precisions = tuple(by_offer[0]) if all(each == by_offer[0] for each in by_offer) else ()
    known = value["availability"]
    availability = None if known is None else Availability(**known)
    plan = plan_of(saved_question(value), offers=offers, precisions=precisions, availability=availability, **limits)
    return _unchanged(plan, value)


def _checked(value: Mapping[str, Any]) -> Checks:
    """Return the verdicts on a JSON's files."""
    gates: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in value["gates"].items()
    }
    files = dict.fromkeys(result["file"] for result in value["results"])
    return _unchanged(_verdicts(list(files), saved_question(value), Gates(**gates), value["settings"]), value)


def _swept(value: Mapping[str, Any]) -> Sweep:
    """Return the end of a sweep, whose rows stand in its table."""
    known = {name: value[name] for name in ("questions", "priced", "missing", "without_effect") if name in value}
    table = value["table"] and Path(value["table"])
    return Sweep(**known, outcomes=dict(value["outcomes"]), table=table, elapsed_seconds=value["elapsed_s"])


A = TypeVar("A", bound=Tabular)


def _unchanged(answer: A, value: Mapping[str, Any]) -> A:
    """Return an answer that gives the same JSON. Raises InputError."""
    now, changing = parse_json("JSON", answer.to_json()), {"tool_version": ""}
    if {**now, **changing} != {**value, **changing}:
        differs = next((name for name in now if now[name] != value.get(name)), "")
        raise InputError(f"JSON: its question gives another answer now ('{differs}'): files, specs or options changed")
    return answer


_READERS: Final[tuple[tuple[set[str], Callable[[Mapping[str, Any]], AnyAnswer]], ...]] = (
    ({"estimates"}, _ranked),
    ({"choices", "offers"}, _planned),
    ({"results", "gates"}, _checked),
    ({"outcomes", "table"}, _swept),
)  # readers of answers that hold several, by keys that they alone have


@spelled(OpenFields, over=True)
def emit(
    subject: Estimate | str | PathLike[str] | None = None,
    *,
    target: str | None = None,
    force: bool = False,
    **question: Unpack[OpenFields],
) -> str:
    """Write the recipe that launches a layout: a script or a configuration, as text.

    `subject` and the arguments of `estimate` as in `explain`; `target` is one of the kinds of `simulate emit
    --framework`, by default that of the framework that the layout is priced for. Raises UnsupportedError for what the
    framework has no words for, and unless `force` for a layout that does not fit.
    """
    if subject is None:
        launched, target = question_to_launch(question_of(question), target)
        case = priceable(case_of(launched))
    else:
        case = _case(subject, question)
    text = write_recipe(case, target)
    estimate = ranking.estimate_of(case)
    memory = estimate.memory
    if not (memory.fits or estimate.verdict == "depends" or force):
        need = f"{to_gib(memory.device_bytes):.1f} of {to_gib(memory.capacity_bytes):.1f} GiB"
        raise UnsupportedError(f"the layout does not fit: it needs {need}; force=True writes it all the same")
    return text


def _case(subject: object, question: Mapping[str, Any]) -> Case:
    if isinstance(subject, str | PathLike):
        if not isinstance(question.get("model") or "", str | PathLike):
            raise InputError("model: over a file it is a name or a path")
        return case_of_file(fspath(subject), question_of(question))
    if subject is None:
        return priceable(case_of(ranking.with_best_layout(question_of(question))))
    if question:
        raise InputError("give an estimate or the arguments of one, not both")
    if isinstance(subject, Estimate):
        return case_of_estimate(subject)
    kind = type(subject).__name__
    raise InputError(f"takes an estimate, a file, or the arguments of an estimate, not {kind}")
