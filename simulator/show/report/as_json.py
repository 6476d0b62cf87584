"""Answers as JSON: the text of any answer, and an estimate's columns.

`keys.csv` lists the keys of every object in order; a key ends in its unit. Where a value comes from, by example:

    stage_memory,device_mib,,,               the attribute `device_bytes`, in MiB
    stage_memory,breakdown_mib,parts_bytes,, another attribute, or a path: `launch.folder`; `self` for the object
    plan,best,best(),,Position ...           a function of `_FUNCTIONS`, which says the type
    estimate,lengths,,or_left_out,           left out where it is None; `or_null`: null where it is empty

An attribute's object shows the keys of its type, `StageMemory` those of `stage_memory`, or of the object that `form`
names; one without keys shows its fields as they are. Types and meanings of keys are those of the attributes: `schema`
makes JSON Schema, the list of keys, and models that read the JSON back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from simulator._version import __version__
from simulator.answers.gates import OUTCOMES
from simulator.answers.run import TrainingRun, question_object, ranking_command
from simulator.cost.pricing.estimate import Estimate
from simulator.files import read_table
from simulator.question.scenario.inputs import GROUPS
from simulator.question.scenario.layout import FIELDS
from simulator.question.units import TERA
from simulator.records import replace
from simulator.search.space import Ranking
from simulator.show.report.presentation import Presentation
from simulator.show.report.text import dumps, mib, sharded_layout_text, significant, table_csv

ToUnit = Callable[[float], float]
"""Function from a number in base units to the written one."""


class KeyFunction(NamedTuple):
    """Function that a key's value comes from."""

    kind: Any
    """Type of the value."""
    value: Callable[[Any, Presentation], Any]


class JsonKey(NamedTuple):
    """Key of an object."""

    name: str
    source: str
    """Attributes joined by dots, empty for the object itself; or the name of a function."""
    form: str
    """Object that the value is shown as, unit of its numbers, or what is written for nothing; empty as usual."""
    meaning: str
    """What the key means; empty where the attribute says so."""

    @property
    def function(self) -> KeyFunction | None:
        """The function that the value comes from; None for an attribute's."""
        return _FUNCTIONS[self.source[:-2]] if self.source.endswith("()") else None


OR_NULL, OR_LEFT_OUT = "or_null", "or_left_out"
_UNITS: Mapping[str, ToUnit] = {"mib": mib, "base": float}


def _position(choice: str) -> KeyFunction:
    """Return where the position of one of a plan's choices comes from."""

    def position(plan: Any, _: object) -> int | None:
        chosen = getattr(plan, choice)
        return None if chosen is None else plan.choices.index(chosen)

    return KeyFunction(int | None, position)


def _counts(checks: Any, _: object) -> dict[str, int]:
    outcomes, passed = [result.outcome for result in checks.results], sum(each.passed for each in checks.results)
    ended = {"recipes": len(outcomes), "passed": passed, "failed": len(outcomes) - passed}
    return ended | {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


def _tensors(stage: Any, _: object) -> dict[str, float]:
    return {name: size for name, size in stage.parts_bytes.items() if name != "outside_allocator"}


_FUNCTIONS: Mapping[str, KeyFunction] = {
    "version": KeyFunction(Literal["2"], lambda *_: "2"),
    "trace_version": KeyFunction(Literal[1], lambda *_: 1),
    "tool_version": KeyFunction(str, lambda *_: __version__),
    "question": KeyFunction(dict[str, Any], lambda answer, _: question_object(answer.question)),
    "training": KeyFunction(TrainingRun | None, lambda estimate, shown: shown.run_of(estimate)),
    "knee": KeyFunction(int | None, lambda fewest, _: fewest.knee and fewest.knee.nodes),
    "command": KeyFunction(str, lambda ranking, _: ranking_command(ranking)),
    **{choice: _position(choice) for choice in ("best", "best_measured", "surer", "sooner")},
    "equal": KeyFunction(list[int], lambda plan, _: [*map(plan.choices.index, plan.equal)]),
    "counts": KeyFunction(dict[str, int], _counts),
    "tensors": KeyFunction(dict[str, float], _tensors),
    "runs": KeyFunction(int, lambda compared, _: len(compared.ran)),
    "layout_line": KeyFunction(str, lambda refused, _: sharded_layout_text(refused.layout)),
    "stored_file": KeyFunction(str | None, lambda learned, _: learned.path if learned.stored else None),
    "rates_measured": KeyFunction(bool, lambda ready, _: ready.measured is not None),
    "interrupted": KeyFunction(bool, lambda probed, _: bool(probed.campaign.interrupted_by)),
}


@cache
def objects() -> Mapping[str, tuple[JsonKey, ...]]:
    """Return the keys of each object by its name; a key without a name says what its object is."""
    objects: dict[str, tuple[JsonKey, ...]] = {}
    for row in read_table(__file__, "keys"):
        name, source = row["key"], row["source"].removeprefix("self")
        if not row["source"]:
            ends = (("_mib", "_bytes"), ("_s", "_seconds"))
            source = next((name.removesuffix(end) + unit for end, unit in ends if name.endswith(end)), name)
        key = JsonKey(name, source, row["form"], row["meaning"])
        objects[row["object"]] = (*objects.get(row["object"], ()), key)
    for name, path in (("layout", ""), ("estimate_layout", "layout.")):
        objects[name] = (*objects.get(name, ()), *_layout_keys(path))
    return objects


def _layout_keys(path: str) -> Iterator[JsonKey]:
    """Yield the keys of a layout's fields: sizes, then what is recomputed, then the rest; with a path, of its step."""
    for field in sorted(FIELDS, key=lambda field: GROUPS.index(field.group)):
        yield JsonKey(field.key, path + field.name, "", "")
        if path and field.name == "micro_batch_size":
            yield from (JsonKey(name, name, "", "") for name in ("global_batch_size", "seq_length"))
    yield from (JsonKey(name, name, "", "") for name in ("lora_rank", "framework") if path)


@cache
def object_of(type_name: str, form: str) -> str:
    """Return the name of the object that a type is shown as; empty where its fields are shown."""
    name = form if form in objects() else re.sub(r"(?<!^)(?=[A-Z])", "_", type_name).lower()
    return name if name in objects() else ""


def unit_of(key: JsonKey) -> ToUnit:
    """Return what turns a number of a key into its unit."""
    usual = (lambda rate: significant(rate / TERA)) if "tflops" in key.name else significant
    return _UNITS.get(key.form, mib if "_mib" in key.name else usual)


def json_object(name: str, value: object, presentation: Presentation) -> dict[str, Any]:
    """Return an object of an answer, in the types that JSON has, by its keys."""
    members = {}
    for key, read, unit in _readers(name):
        member = _in_unit(read(value, presentation), unit, key.form, presentation)
        if member is not None or key.form != OR_LEFT_OUT:
            members[key.name] = None if key.form == OR_NULL and not member else member
    return members


@cache
def _readers(name: str) -> tuple[tuple[JsonKey, Callable[[Any, Presentation], Any], ToUnit], ...]:
    return tuple((key, _reader(key), unit_of(key)) for key in objects()[name] if key.name)


def _reader(key: JsonKey) -> Callable[[Any, Presentation], Any]:
    if key.function is not None:
        return key.function.value
    first, _, rest = key.source.partition(".")
    if not first:
        return lambda value, _: value
    before, after = attrgetter(first), attrgetter(rest) if rest else None
    if after is None:
        return lambda value, _: before(value)
    return lambda value, _: None if (inner := before(value)) is None else after(inner)


def _in_unit(value: Any, unit: ToUnit, form: str | None, presentation: Presentation) -> Any:  # noqa: PLR0911  one per kind of value
    """Return a value in the types that JSON has; anything unknown as text. No `form` shows objects as they are."""
    if isinstance(value, float) or (isinstance(value, int) and unit is mib and not isinstance(value, bool)):
        return unit(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): _in_unit(inner, unit, form, presentation) for name, inner in value.items()}
    if is_dataclass(value) or hasattr(value, "_fields"):
        if form is not None and (name := object_of(type(value).__name__, form)):
            return json_object(name, value, presentation)
        names = [field.name for field in fields(value)]
        return {name: _in_unit(getattr(value, name), unit, None, presentation) for name in names}
    if isinstance(value, list | tuple):
        return [_in_unit(inner, unit, form, presentation) for inner in value]
    return str(value)


def plain(value: object) -> Any:
    """Return a value in the types that JSON has, numbers in base units; anything unknown as text."""
    return _in_unit(value, significant, None, Presentation())


def json_text(name: str, answer: object, presentation: Presentation) -> str:
    """Return an answer as JSON text by the keys of its object."""
    return dumps(json_object(name, answer, presentation)) + "\n"


def ranking_json(ranking: Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield a ranking as JSON text, its estimates one at a time: together they take gigabytes."""
    if not ranking.estimates:
        yield json_text("ranking", ranking, presentation)
        return
    members = json_object("ranking", replace(ranking, estimates=()), presentation)
    around = dumps(members | {"command": ranking_command(ranking)})
    before, after = around.split('\n  "estimates": []', 1)
    yield f'{before}\n  "estimates": ['
    for number, estimate in enumerate(ranking.estimates):
        text = dumps(json_object("estimate", estimate, presentation)).replace("\n", "\n    ")
        yield f"{',' if number else ''}\n    {text}"
    yield f"\n  ]{after}\n"


def json_lines(answer: Estimate | Ranking, presentation: Presentation) -> Iterator[str]:
    """Yield an estimate, or those of a ranking, each as one line of JSON."""
    for estimate in answer.estimates if isinstance(answer, Ranking) else (answer,):
        yield dumps(json_object("estimate", estimate, presentation), indent=None) + "\n"


def estimates_csv(answer: Estimate | Ranking, presentation: Presentation) -> str:
    """Return an estimate, or those of a ranking, as rows; parts that only some have are empty in the others."""
    estimates = answer.estimates if isinstance(answer, Ranking) else (answer,)
    rows = [
        {"rank": rank, **_row(json_object("estimate", estimate, presentation))}
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
