"""Answers as JSON: models of the objects of an estimate and of a ranking, and the text of any answer.

A model's fields are its keys, in order, and end in their units. Where a value comes from, by example:

    device_mib: float                                              the attribute `device_bytes`, in MiB
    interval: Annotated[Interval | None, At("interval_seconds")]   another attribute, or a path: `At("launch.folder")`
    runs: Annotated[int, At(_runs, "Launches that ended well.")]   a function of the object, with the key's meaning
    training: TrainingRun | None = None                            left out where it is the default

A dataclass without a model shows its fields as they are. `json_answers` and `json_lab` have models of other answers;
`schema` makes JSON Schema and the list of keys, where a key's meaning is the docstring of its attribute. A model reads
its own JSON back: `EstimateJson.model_validate_json(text)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo

from simulator.answers.run import TrainingRun, question_object, ranking_command
from simulator.cost.pricing.estimate import Estimate, Interval, LengthsEstimate, Provenance, Verdict, Violation
from simulator.question.scenario.inputs import GROUPS
from simulator.question.scenario.layout import FIELDS, Layout
from simulator.question.units import TERA
from simulator.question.vocabulary import Precision, StackName
from simulator.records import replace
from simulator.search.space import Ranking
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import dumps, mib, significant, table_csv

PartSizes = dict[str, float]
"""Sizes by the name of a part."""
ToUnit = Callable[[float], float]
"""Function from a number in base units to the written one."""


class At(NamedTuple):
    """Where the value of a key comes from, if not from the attribute of its name."""

    source: str | Callable[[Any, Presentation], Any] | None = None
    """Attributes joined by dots, empty for the object itself; or a function of the object."""
    meaning: str = ""
    """What the key means; empty where the attribute says so."""
    unit: ToUnit | None = None
    """Unit of the numbers; None for that of the key's name."""
    or_null: bool = False
    """Whether what is empty is null."""


class Shown(BaseModel):
    """Object of the JSON."""

    model_config = ConfigDict(defer_build=True, protected_namespaces=())


VERSION = "Version of these keys; it changes when a key is removed or changes its meaning."


class AnswerJson(Shown):
    schema_version: Annotated[Literal["2"], At(lambda *_: "2", VERSION)]


class MemoryInterval(Shown):
    low_mib: Annotated[float, At("low")]
    high_mib: Annotated[float, At("high")]


class StageMemoryJson(Shown):
    stage: int
    layers: int
    device_mib: float
    reserved_mib: float
    allocated_mib: float
    state_mib: float
    moment: str
    breakdown_mib: Annotated[PartSizes, At("parts_bytes")]


class MemoryEstimateJson(Shown):
    device_mib: float
    reserved_mib: float
    allocated_mib: float
    capacity_mib: float
    headroom_mib: float
    interval: Annotated[MemoryInterval | None, At("interval_bytes")]
    fits: bool
    fit_probability: float | None
    binding_stage: int
    moment: str
    breakdown_mib: Annotated[PartSizes, At("parts_bytes")]
    outside_breakdown_mib: Annotated[PartSizes, At("outside_parts_bytes")]
    stages: list[StageMemoryJson]
    host_bytes_per_node: float
    host_most_mib: float
    host_breakdown_mib: Annotated[PartSizes, At("host_parts_bytes")]
    host_capacity_mib: float | None
    fits_host: bool | None


class StageTimeJson(Shown):
    stage: int
    forward_s: float
    backward_s: float


class ThroughputEstimateJson(Shown):
    step_time_s: Annotated[float, At("step_seconds")]
    tflops_per_device: Annotated[float, At("flops_per_second_per_device")]
    hardware_tflops_per_device: Annotated[float, At("hardware_flops_per_second_per_device")]
    tokens_per_second_per_device: float
    mfu: float
    causal_mfu: float
    bubble_fraction: float
    interval: Annotated[Interval | None, At("interval_seconds")]
    breakdown_s: Annotated[PartSizes, At("parts_seconds")]
    model_flops_per_token: float
    stages: list[StageTimeJson]


class AssumedSwitchJson(Shown):
    switch: str
    value: str
    other: str
    because: str
    speed_change: float
    memory_change_mib: Annotated[float, At("memory_bytes")]
    verdict: Verdict


class OpenSwitchJson(Shown):
    switch: str
    value: str
    other: str
    share: float | None
    source: str
    speed_change: float
    memory_change_mib: Annotated[float, At("memory_bytes")]
    verdict: Verdict
    others: Mapping[str, str]


class OpenRangeJson(Shown):
    switches: list[OpenSwitchJson]
    least_mib: Annotated[float, At("least_device_bytes")]
    most_mib: Annotated[float, At("most_device_bytes")]
    fastest_s: Annotated[float, At("fastest_seconds")]
    slowest_s: Annotated[float, At("slowest_seconds")]
    favourable_probability: float | None


class OtherMemoryJson(Shown):
    hardware: str
    verdict: Verdict
    device_mib: Annotated[float, At("memory.device_bytes")]
    capacity_mib: Annotated[float, At("memory.capacity_bytes")]
    fit_probability: Annotated[float | None, At("memory.fit_probability")]


def _layout_keys(path: str) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a layout's fields: sizes, then what is recomputed, then the rest."""
    types = get_type_hints(Layout)
    for field in sorted(FIELDS, key=lambda field: GROUPS.index(field.group)):
        yield field.key, (Annotated[types[field.name], At(path + field.name)], ...)
        if path and field.name == "micro_batch_size":
            yield from (("global_batch_size", (int, ...)), ("seq_length", (int, ...)))


if TYPE_CHECKING:
    LayoutJson = Shown
    EstimateLayoutJson = Shown
else:
    LayoutJson = create_model("LayoutJson", __base__=Shown, **dict(_layout_keys("")))
    EstimateLayoutJson = create_model(
        "EstimateLayoutJson",
        __base__=Shown,
        __doc__="A layout, and the step that it trains.",
        **dict(_layout_keys("layout.")),
        lora_rank=(int | None, ...),
        framework=(str, ...),
    )


_SAID = "Values of the question by group (inputs, model fields, layout, switches), each with who said it and where."
QuestionJson = Annotated[dict[str, Any], At(lambda answer, _: question_object(answer.question), _SAID)]


class EstimateJson(AnswerJson):
    model: str
    hardware: str
    devices: int
    precision: Precision
    verdict: Verdict
    stack: str
    layout: Annotated[EstimateLayoutJson, At("", "A layout, and the step that it trains.")]
    options: dict[str, str]
    memory: MemoryEstimateJson
    throughput: ThroughputEstimateJson
    violations: list[Violation]
    provenance: Provenance
    assumed_switches: Annotated[list[AssumedSwitchJson], At("assumed")]
    open: OpenRangeJson | None
    other_memories: list[OtherMemoryJson]
    question: QuestionJson
    lengths: Annotated[LengthsEstimate | None, At("lengths", "Lengths that differ; with `--lengths` only.")] = None
    training: Annotated[
        TrainingRun | None, At(lambda e, shown: shown.run_of(e), "The whole run; with `--train-tokens` only.")
    ] = None


class CountsJson(Shown):
    evaluated: int
    feasible: int
    rejected: dict[str, int]
    elapsed_s: float


class RemedyJson(Shown):
    change: str
    estimate: EstimateJson


class StackBestJson(Shown):
    stack: StackName
    estimate: EstimateJson | None


class NodeCountJson(Shown):
    nodes: int
    layout: LayoutJson
    tokens_per_second_per_device: float


class FewestNodesJson(Shown):
    nodes: int | None
    ranked_nodes: int
    fitting_nodes: int | None
    most_nodes: int
    deadline_days: float | None
    counts: list[NodeCountJson]
    knee: Annotated[
        int | None, At(lambda f, _: f.knee and f.knee.nodes, "Fewest of `counts` whose tokens cost nearly the least.")
    ]


class RankingJson(AnswerJson):
    query: dict[str, Any]
    question: QuestionJson
    defaults: list[str]
    counts: CountsJson
    estimates: list[EstimateJson]
    risky: list[EstimateJson]
    starved: list[EstimateJson]
    nearest: EstimateJson | None
    remedies: list[RemedyJson]
    reasons: list[Violation]
    fp8: EstimateJson | None
    equal: list[int]
    surer: int | None
    stacks: list[StackBestJson]
    fewest: FewestNodesJson | None
    command: Annotated[str, At(lambda ranking, _: ranking_command(ranking), "Command that prices the first layout.")]


class _Key(NamedTuple):
    """Key of an object, ready to be read."""

    name: str
    read: Callable[[Any, Presentation], Any]
    unit: ToUnit
    model: type[Shown] | None
    or_null: bool
    default: object


def json_object(model: type[Shown], value: object, presentation: Presentation) -> dict[str, Any]:
    """Return an object of an answer, in the types that JSON has, by its model."""
    members = {}
    for key in _keys(model):
        member = _in_unit(key.read(value, presentation), key.unit, key.model, presentation)
        if member is not key.default:
            members[key.name] = None if key.or_null and not member else member
    return members


@cache
def _keys(model: type[Shown]) -> tuple[_Key, ...]:
    return tuple(
        _Key(name, _reader(at.source), at.unit or _unit(name), model_in(field.annotation), at.or_null, field.default)
        for name, field in model.model_fields.items()
        for at in (at_of(name, field),)
    )


def at_of(name: str, field: FieldInfo) -> At:
    """Return where the value of a key comes from."""
    at = next((known for known in field.metadata if isinstance(known, At)), At())
    if at.source is not None:
        return at
    ends = (("_mib", "_bytes"), ("_s", "_seconds"))
    return at._replace(source=next((name.removesuffix(end) + unit for end, unit in ends if name.endswith(end)), name))


def model_in(annotation: Any) -> type[Shown] | None:
    """Return the model of the objects in a type of value; None where it holds none."""
    if isinstance(annotation, type) and issubclass(annotation, Shown):
        return annotation
    return next(filter(None, map(model_in, get_args(annotation))), None)


def _reader(source: str | Callable[[Any, Presentation], Any] | None) -> Callable[[Any, Presentation], Any]:
    if callable(source):
        return source
    first, _, rest = (source or "").partition(".")
    if not first:
        return lambda value, _: value
    before, after = attrgetter(first), attrgetter(rest) if rest else None
    if after is None:
        return lambda value, _: before(value)
    return lambda value, _: None if (inner := before(value)) is None else after(inner)


def _unit(key: str) -> ToUnit:
    return mib if "_mib" in key else (lambda rate: significant(rate / TERA)) if "tflops" in key else significant


def _in_unit(value: Any, unit: ToUnit, model: type[Shown] | None, presentation: Presentation) -> Any:  # noqa: PLR0911  one per kind of value
    """Return a value in the types that JSON has; anything unknown as text."""
    if isinstance(value, float) or (isinstance(value, int) and unit is mib and not isinstance(value, bool)):
        return unit(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): _in_unit(inner, unit, model, presentation) for name, inner in value.items()}
    if is_dataclass(value) or hasattr(value, "_fields"):
        if model is not None:
            return json_object(model, value, presentation)
        names = [field.name for field in fields(value)]
        return {name: _in_unit(getattr(value, name), unit, None, presentation) for name in names}
    if isinstance(value, list | tuple):
        return [_in_unit(inner, unit, model, presentation) for inner in value]
    return str(value)


def plain(value: object) -> Any:
    """Return a value in the types that JSON has, numbers in base units; anything unknown as text."""
    return _in_unit(value, significant, None, Presentation())


def json_text(model: type[Shown], answer: object, presentation: Presentation) -> str:
    """Return an answer as JSON text by its model."""
    return dumps(json_object(model, answer, presentation)) + "\n"


def ranking_json(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield a ranking as JSON text, its estimates one at a time: together they take gigabytes."""
    if not ranking.estimates:
        yield json_text(RankingJson, ranking, presentation)
        return
    members = json_object(RankingJson, replace(ranking, estimates=()), presentation)
    around = dumps(members | {"command": ranking_command(ranking)})
    before, after = around.split('\n  "estimates": []', 1)
    yield f'{before}\n  "estimates": ['
    for number, estimate in enumerate(ranking.estimates):
        text = dumps(json_object(EstimateJson, estimate, presentation)).replace("\n", "\n    ")
        yield f"{',' if number else ''}\n    {text}"
    yield f"\n  ]{after}\n"


def json_lines(answer: Estimate | Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield an estimate, or those of a ranking, each as one line of JSON."""
    for estimate in answer.estimates if isinstance(answer, Ranking) else (answer,):
        yield dumps(json_object(EstimateJson, estimate, presentation), indent=None) + "\n"


def estimates_csv(answer: Estimate | Ranking, presentation: Presentation) -> str:
    """Return an estimate, or those of a ranking, as rows; parts that only some have are empty in the others."""
    estimates = answer.estimates if isinstance(answer, Ranking) else (answer,)
    rows = [
        {"rank": rank, **_row(json_object(EstimateJson, estimate, presentation))}
        for rank, estimate in enumerate(estimates, start=1)
    ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return table_csv(columns or _EMPTY_COLUMNS, ([row.get(name) for name in columns] for row in rows))


_EMPTY_COLUMNS = ("rank", "model", "hardware", "devices", "precision", "verdict")  # header of a table without rows


def _row(answer: Mapping[str, Any]) -> dict[str, Any]:
    memory, speed = answer["memory"], answer["throughput"]
    row = {name: answer[name] for name in ("model", "hardware", "devices", "precision", "verdict")}
    row |= answer["layout"]
    row |= {
        name: memory[name] for name in ("device_mib", "reserved_mib", "allocated_mib", "capacity_mib", "headroom_mib")
    }
    row |= {f"device_{end}_mib": (memory["interval"] or {}).get(f"{end}_mib") for end in ("low", "high")}
    row |= {name: memory[name] for name in ("fits", "fit_probability", "binding_stage", "moment")}
    row |= {f"{name}_mib": size for name, size in memory["breakdown_mib"].items()}
    row |= {name: value for name, value in speed.items() if not isinstance(value, dict | list) and name != "interval"}
    row |= {f"step_time_{end}_s": (speed["interval"] or {}).get(end) for end in ("low", "high")}
    row |= {f"{name}_s": seconds for name, seconds in speed["breakdown_s"].items()}
    row |= {f"training_{name}": value for name, value in answer.get("training", {}).items()}
    row["violations"] = [broken["rule"] for broken in answer["violations"]]
    row |= {name: answer["provenance"][name] for name in ("calibration", "status")}
    row["notes"] = "; ".join(answer["provenance"]["notes"])
    return row
