"""Answers to ask again: the command that prices an estimate, its JSON read back; days and cost of a run at its speed.

`{"question": {"inputs": {"model": {"value": "llama3.1-8b", "said_by": "option"}, ...}, ...}` holds every value with who
said it; answers of earlier versions hold the values alone, beside their layout. `show.report.as_json` writes the JSON,
`answers.plan` compares runs on several offers.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from simulator.answers.cases import Case, case_of, priceable, question_model, scenario_of_run
from simulator.answers.memories import hardware_meant
from simulator.cost.pricing.estimate import Estimate, Interval
from simulator.errors import InputError, did_you_mean, not_one_of
from simulator.question.frameworks.stacks import DEFAULT, RECOMPUTES, current_switches, stack_of_file
from simulator.question.origin import NOBODY, Input, Origin, OriginKind
from simulator.question.question import FOLLOWS, GROUPS, Question
from simulator.question.scenario.inputs import BY_INPUT, DEFAULT_WORKLOAD, LISTS
from simulator.question.scenario.layout import BY_NAME, FIELDS, layout_of_object
from simulator.question.specs.documents import finite, parse_json, read_limited
from simulator.question.units import to_mib
from simulator.question.vocabulary import FRAMEWORKS
from simulator.records import Record
from simulator.search.build import bare_estimate
from simulator.search.space import Ranking, Remedy, Space

_BELONGS_TO = {
    "recompute_modules": "selective",
    "recompute_method": "full",
    "recompute_layers": "full",
    "recompute_layer_list": "full",
}  # the mode of recompute that each field refines


def estimate_command(estimate: Estimate, *, has_experts: bool) -> str:
    """Return the command that prices the layout of an estimate; `has_experts` tells whether its model has experts."""
    options = {**estimate.question.options, **estimate.options}
    switches = (word for name, value in options.items() for word in ("--option", f"{name}={value}"))
    return shlex.join([*_shared_options(estimate), *_fields(estimate, has_experts=has_experts), *switches])


def ranking_command(ranking: Ranking) -> str:
    """Return the command that prices the first layout with the switches it is recommended with; empty without one."""
    if not ranking.estimates or not ranking.question.inputs:
        return ""
    return estimate_command(ranking.estimates[0], has_experts=question_model(ranking.question).is_moe)


def remedy_options(remedy: Remedy, question: Question, *, has_experts: bool) -> tuple[str, ...]:
    """Return the options to add to a question without a layout: a change, then the layout and stack of its estimate."""
    estimate = remedy.estimate
    fields = " ".join(_fields(estimate, has_experts=has_experts)).replace(" --", "\n--")
    options = [option for option in fields.split("\n") if f" {option} " not in f" {remedy.change} "]
    options += (f"--option {name}={value}" for name, value in estimate.options.items())
    if estimate.stack != DEFAULT and question.stated("stack") is None and "--stack " not in remedy.change:
        options.append(f"--stack {estimate.stack}")
    return tuple(dict.fromkeys((remedy.change, *options)))


def _shared_options(estimate: Estimate) -> list[str]:
    """Return the options that all layouts of an answer share."""
    question = estimate.question
    hardware = hardware_meant(question)[0] or estimate.hardware
    lengths: dict[str, object] = {"seq_length": estimate.seq_length}
    if estimate.lengths is not None:
        stated = {name: question.stated(name) for name in ("batching", "cutoff", "survive")}
        lengths = {"lengths": estimate.lengths.source} | stated
    is_open = estimate.stack == DEFAULT and question.stated("stack") is None
    inputs = {
        "model": question.stated("model") or estimate.model,
        "hardware": hardware,
        "devices": estimate.devices if ":" not in hardware else None,
        **lengths,
        "global_batch_size": estimate.global_batch_size,
        "precision": estimate.precision,
        "framework": estimate.framework,
        "stack": None if is_open else estimate.stack,
        "lora_rank": estimate.lora_rank,
        **{name: question.stated(name) for name in ("num_layers", "images", "calibration")},
    }
    options = ((f"--{name.replace('_', '-')}", str(value)) for name, value in inputs.items() if value is not None)
    return ["simulate", "estimate", *(word for pair in options for word in pair)]


def _fields(estimate: Estimate, *, has_experts: bool) -> Iterator[str]:
    """Yield the options of fields that differ from an estimate's defaults."""
    layout, always = estimate.layout, {"zero_stage", *RECOMPUTES.get(estimate.stack, ())}
    cut_is_even = len(set(layout.stage_layers)) <= 1 or layout.chunk_layers
    for field in FIELDS:
        value = getattr(layout, field.name)
        plain: Any = None if field.name in always else field.default
        match field.name:
            case "data_parallel":
                continue
            case "stage_layers" if cut_is_even:
                continue
            case "sequence_parallel":
                plain = layout.tensor_parallel > 1
            case "expert_tensor_parallel":
                plain = None if has_experts and layout.tensor_parallel > 1 else 1
            case "recompute_method" | "recompute_layers" if layout.recompute_method == "list":
                continue
        if value == plain or _BELONGS_TO.get(field.name, layout.recompute) != layout.recompute:
            continue
        yield from field.words(value)


SECONDS_PER_HOUR = 3600.0
_HOURS_PER_DAY = 24.0


class TrainingRun(Record, kw_only=True):
    """Duration and cost of a whole training run with one layout."""

    tokens: int
    """Tokens of the run."""
    days: float
    """Days of the run."""
    device_hours: float
    """Hours of the run times its devices."""
    cost: float | None
    """Cost of the run, in the currency of the price; None without a price."""
    days_interval: Interval | None = None
    """90 % interval of the days, from that of the step time; None without a calibration."""
    cost_interval: Interval | None = None
    """90 % interval of the cost; None without a calibration or a price."""


def run_of(estimate: Estimate, tokens: int, price_per_device_hour: float | None, goodput: float = 1.0) -> TrainingRun:
    """Return the whole run at the estimate's speed; `goodput` is the share of the time that trains."""
    speed = estimate.throughput
    hours = tokens / (speed.tokens_per_second_per_device * estimate.devices * goodput) / SECONDS_PER_HOUR
    days = hours / _HOURS_PER_DAY
    cost = None if price_per_device_hour is None else hours * estimate.devices * price_per_device_hour
    return TrainingRun(
        tokens=tokens,
        days=days,
        device_hours=hours * estimate.devices,
        cost=cost,
        days_interval=_scaled(estimate, days),
        cost_interval=None if cost is None else _scaled(estimate, cost),
    )


def _scaled(estimate: Estimate, figure: float) -> Interval | None:
    """Return the 90 % interval of a figure proportional to the step time."""
    step, seconds = estimate.throughput.interval_seconds, estimate.throughput.step_seconds
    return None if step is None else Interval(figure * step.low / seconds, figure * step.high / seconds)


MOST_BYTES = 100_000_000
"""Largest file of answers that is read, in bytes."""
_MOST = 10**15  # largest count in such a file
_SAME = 0.005  # largest relative difference between a file's figures and its layout's for them to be the same question


def question_object(question: Question) -> dict[str, Any]:
    """Return a question as plain values: each with who said it, and where."""
    groups = {name: getattr(question, name) for name in GROUPS}
    shown: dict[str, Any] = {
        name: {BY_NAME[key].key if name == "layout" else key: _input_object(stated) for key, stated in group.items()}
        for name, group in groups.items()
    }
    if question.recipe is not None:
        shown["recipe"] = {"file": question.recipe.file, "title": question.recipe.title}
    return shown


def _input_object(stated: Input) -> dict[str, Any]:
    value = stated.value
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    plain = list(value) if isinstance(value, tuple) else value
    shown = {"value": plain, "said_by": stated.origin.kind}
    return shown | ({"where": stated.origin.where} if stated.origin.where else {})


def saved_case(file: str, text: str | None, rank: int, options: Question, *, as_it_stands: bool = False) -> Case:
    """Return the case of an answer in a file, or of the `rank`-th of its answers; `text` is the content of stdin.

    `options` replace the file's values; `as_it_stands` leaves open what the question does not say. Raises InputError,
    also where the layout no longer gives the figures of the file: it was then priced with something that the file does
    not name.
    """
    value = parse_json(file, read_limited(Path(file), MOST_BYTES) if text is None else text)
    chosen, outer = _chosen(file, value, rank)
    try:
        framework = str(chosen["layout"]["framework"])
        written = chosen.get("question") or {}
        # Of one of a search or a recipe the layout was said by nobody.
        alone = "recipe" not in written and BY_NAME["data_parallel"].key in written.get("layout", {})
        question = saved_question(chosen) if as_it_stands and alone else _question(chosen, outer)
        stated = finite(chosen["memory"]["device_mib"], 0, _MOST), finite(chosen["throughput"]["step_time_s"], 0, _MOST)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise InputError(f"{file}: is no estimate of `simulate --format json`: {error}") from error
    if framework not in FRAMEWORKS:
        raise InputError(f"{file}: framework '{framework[:60]}'{not_one_of(framework, FRAMEWORKS)}")
    case = priceable(case_of(options.over(question)))
    if options == Question():
        _compare(file, case, stated)
    return case


def saved_question(value: Mapping[str, Any]) -> Question:
    """Return the question of an answer as it stands there. Raises KeyError, TypeError, ValueError or AttributeError."""
    settings = (BY_INPUT, None, BY_NAME, None)
    groups: dict[str, Any] = {
        name: _inputs(value["question"][name], known) for name, known in zip(GROUPS, settings, strict=True)
    }
    return Question(**groups)


def saved_search(value: Mapping[str, Any]) -> tuple[Question, Space | None, dict[str, Any]]:
    """Return question, space and other arguments of a ranking. Raises as `saved_question` for content that is none."""
    question, space = saved_question(value), value["query"]["space"]
    axes: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in space.items()}
    probability, top = finite(value["query"]["min_fit_probability"], 0, _MOST), max(len(value["estimates"]), 1)
    return question, None if question.layout else Space(**axes), {"min_fit_probability": probability, "top": top}


def is_answer(path: str) -> bool:
    """Whether a file holds an answer with a layout."""
    try:
        value = parse_json(path, read_limited(Path(path), MOST_BYTES))
        return "layout" in _chosen(path, value, 1)[0]
    except (InputError, KeyError, IndexError, TypeError):
        return False


def _question(value: Mapping[str, Any], outer: Mapping[str, Any]) -> Question:
    """Return the question of an estimate, as far as it is written; `outer` is the answer that it is a part of."""
    written = value.get("question") or outer.get("question") or {}
    query = outer.get("query") if isinstance(outer.get("query"), dict) else {}
    inputs = _earlier_inputs(value) | _inputs(written.get("inputs", {}), BY_INPUT)
    if written and "model" not in written["inputs"]:
        del inputs["model"]
    sizes = [inputs.pop(name) for name in ("nodes", "devices") if name in inputs]
    said_size = sizes[0].origin if sizes else FOLLOWS
    hardware = str(inputs["hardware"].value)
    if ":" not in hardware and "," not in hardware:
        inputs["devices"] = Input(_count(value["devices"]), said_size)
    said = _inputs(written.get("layout", {}), BY_NAME)
    layout = layout_of_object({name: _sound(setting) for name, setting in value["layout"].items()})
    options = {**(query or {}).get("options", {}), **(value.get("options") or {})}
    texts = {str(name): str(text) for name, text in options.items()}
    switches = {name: Input(text, NOBODY) for name, text in current_switches(texts).items()}
    return Question(
        inputs=inputs,
        model_fields=_inputs(written.get("model_fields", {})),
        layout={
            field.name: Input(getattr(layout, field.name), said[field.name].origin if field.name in said else FOLLOWS)
            for field in FIELDS
            if field.kind not in LISTS or getattr(layout, field.name)
        },
        switches=switches | _inputs(written.get("switches", {})),
    )


def _earlier_inputs(value: Mapping[str, Any]) -> dict[str, Input]:
    """Return the inputs that stand beside an estimate's figures, of which nothing says who said them."""
    layout = value["layout"]
    stated = {**layout, **value}
    cut = tuple(_count(layers) for layers in layout["stage_layers"])
    workload = {
        name: _sound(stated[name] if usual is not None else stated.get(name))
        for name, usual in DEFAULT_WORKLOAD.items()
    }
    values = {
        "model": str(value["model"]),
        "hardware": str(value["hardware"]),
        "framework": str(layout["framework"]),
        "stack": stack_of_file(value.get("stack")),
        "num_layers": sum(cut),
        **workload,
    }
    # The stack of an answer that held whatever it may be was said by nobody; that of a recommendation follows.
    origins = {"stack": NOBODY if value.get("open") else FOLLOWS}
    return {name: Input(each, origins.get(name, NOBODY)) for name, each in values.items() if each is not None}


def _inputs(written: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> dict[str, Input]:
    """Return a group of inputs; of those with `settings` by name, checked. Raises ValueError for other content."""
    inputs: dict[str, Input] = {}
    for name, stated in dict(written).items():
        kind = stated.get("said_by")
        if kind not in get_args(OriginKind):
            near = did_you_mean(str(kind), get_args(OriginKind))
            raise ValueError(f"question: {name}: said_by '{kind}'{near}; allowed: {', '.join(get_args(OriginKind))}")
        if settings is not None and name not in settings:
            raise ValueError(f"question: unknown input '{name}'{did_you_mean(name, settings)}")
        value = stated["value"]
        setting = None if settings is None else settings[name]
        value = tuple(value) if isinstance(value, list) else value
        inputs[name if setting is None else setting.name] = Input(value, Origin(kind, str(stated.get("where", ""))))
    return inputs


def _count(value: object) -> int:
    """Return a whole number of a file. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{str(value)[:40]!r} is no whole number")
    if not 0 <= value <= _MOST:
        raise ValueError(f"a count must be from 0 to {_MOST}")
    return value


def _sound(value: object) -> Any:
    """Return a layout's setting: a count, word, bool, None, or list of counts or words.

    Raises TypeError or ValueError.
    """
    if value is None or isinstance(value, str | bool):
        return value
    return [_sound(item) for item in value] if isinstance(value, list) else _count(value)


def _compare(file: str, case: Case, stated: tuple[float, float]) -> None:
    estimate = bare_estimate(scenario_of_run(case), case.layout)
    figures = to_mib(estimate.memory.device_bytes), estimate.throughput.step_seconds
    for unit, before, now in zip(("MiB", "s"), stated, figures, strict=True):
        if abs(now - before) > _SAME * before:
            raise InputError(
                f"{file}: says {before:.6g} {unit}, its layout gives {now:.6g}: it was priced with other options or "
                "coefficients; repeat them (--option NAME=VALUE, --calibration FILE)"
            )


def _chosen(file: str, value: Any, rank: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the `rank`-th estimate of an answer, and the answer that holds it."""
    if not isinstance(value, dict):
        raise InputError(f"{file}: must hold an estimate or a ranking, as --format json writes them")
    if "layout" in value:
        if rank != 1:
            raise InputError(f"--rank {rank}: {file} holds one estimate, not a ranking")
        return value, {}
    estimates = list(_estimates(file, value))
    if rank > len(estimates):
        kind = "ranks" if "estimates" in value else "holds"
        raise InputError(f"--rank {rank}: {file} {kind} {len(estimates)} layouts")
    return estimates[rank - 1], value


def _estimates(file: str, value: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the estimates of a ranking, plan, explanation, comparison or check, in its order."""
    if "estimate" in value:
        yield value["estimate"]
        return
    if {"first", "second"} <= value.keys():
        yield from (value["first"], value["second"])
        return
    listed = next((value[name] for name in ("estimates", "choices", "results") if name in value), None)
    if listed is None:
        raise InputError(f"{file}: is no estimate of `simulate --format json`: 'layout' is missing")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise InputError(f"{file}: estimates: must be a list of objects")
    if "estimates" in value:
        yield from listed
        return
    best = value.get("best")
    order = [best, *(at for at in range(len(listed)) if at != best)] if isinstance(best, int) else range(len(listed))
    yield from (listed[at]["estimate"] for at in order if 0 <= at < len(listed) and listed[at].get("estimate"))
