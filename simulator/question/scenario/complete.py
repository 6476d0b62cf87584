"""Completion of a layout: fields that were left out are derived from the others, contradictions refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.scenario.inputs import InputSetting, check_count
from simulator.question.scenario.layout import (
    BY_NAME,
    FIELDS,
    Layout,
    balanced_chunks,
    default_cut,
    model_chunks,
    pipeline_shape,
    rank_layers,
)
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec
from simulator.records import Bare, replace


class Wording(Bare, kw_only=True):
    """Names of settings in error messages: keywords of the API, keys of a file or options."""

    spell: Callable[[InputSetting], str]
    where: str = ""
    """Prefix of the message."""
    refusal: Callable[..., InputError] = lambda message, *_keys: InputError(message)
    """Constructor of the error from a message and the keys at fault, most important first."""

    def __call__(self, key: str) -> str:
        """Return the user's name for a setting."""
        return self.spell(BY_NAME[key])

    def refused(self, message: str, *keys: str) -> InputError:
        """Return the error with a message, prefixed by `where`."""
        return self.refusal(self.where + message, *keys)


NAMES = Wording(spell=lambda setting: setting.name)
KEYS = Wording(spell=lambda setting: setting.key)
OPTIONS = Wording(spell=lambda setting: setting.option)


def named(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by name, from names or keys; drop None and empty lists. Raises InputError."""
    fields: dict[str, Any] = {}
    for name, value in answers.items():
        setting = BY_NAME.get(name)
        if setting is None:
            allowed = ", ".join(dict.fromkeys(field.name for field in BY_NAME.values()))
            raise InputError(f"layout: unknown field '{name}'{did_you_mean(name, BY_NAME)}; allowed: {allowed}")
        if value is None or value == ():
            continue
        if setting.name in fields:
            raise InputError(f"{setting.name} and {setting.key} are the same: give one")
        fields[setting.name] = value
    return fields


_ONLY_WITH: Mapping[str, tuple[str, ...]] = {
    "full": ("recompute_method", "recompute_layers", "recompute_layer_list"),
    "selective": ("recompute_modules",),
}  # fields that belong to one recompute mode


def layout_fields(answers: Mapping[str, Any], words: Wording = NAMES, *, many: bool = False) -> dict[str, Any]:
    """Return the layout fields that a user asks for, by name, with those they imply.

    `many`: values are sets to search. Raises InputError for a field stated twice and for contradictions.
    """
    fields = named(answers)
    chunks, cut = fields.get("virtual_stages"), fields.get("stage_layers", ())
    if chunks is not None and "layers_per_virtual_stage" in fields:
        raise words.refused(f"{words('vpp')} and {words('layers_per_virtual_stage')} exclude each other: give one")
    if cut and "pipeline_parallel" in fields:
        _check_cut(cut, _values(fields["pipeline_parallel"]), words)
    if fields.get("chunk_layers"):
        _check_chunks(fields, words)
    if len(set(cut)) > 1 and "layers_per_virtual_stage" in fields:
        raise words.refused(
            f"{words('layers_per_virtual_stage')}: chunks of equal layers need an even cut, and "
            f"{words('stage_layers')} {_layers_text(cut)} is uneven; leave out one"
        )
    for mode in _ONLY_WITH:  # details of one mode are refused beside another, and imply their own without any
        details = [name for name in _ONLY_WITH[mode] if name in fields]
        if details and mode not in _values(fields.setdefault("recompute", (mode,) if many else mode)):
            raise words.refused(f"{words(details[0])} needs {words('recompute')} {mode}")
        if "recompute_layer_list" in fields:
            for name in details[:-1]:
                if fields[name] != "list":
                    raise words.refused(
                        f"{words('recompute_layer_list')} and {words(name)} exclude each other: give one"
                    )
            fields["recompute_method"] = ("list",) if many else "list"
    return fields


def _layers_text(layers: tuple[int, ...]) -> str:
    return ",".join(map(str, layers[:16])) + ("..." if len(layers) > 16 else "")


def _check_chunks(fields: dict[str, Any], words: Wording) -> None:
    """Refuse a `chunk_layers` list that contradicts pipeline size, virtual stages or cut."""
    chunks, cut = fields["chunk_layers"], fields.get("stage_layers", ())
    if "layers_per_virtual_stage" in fields:
        raise words.refused(
            f"{words('layers_per_virtual_stage')} and {words('chunk_layers')} exclude each other: give one"
        )
    pipelines = _values(fields.get("pipeline_parallel")) or ((len(cut),) if cut else ())
    per_rank = _values(fields.get("virtual_stages"))
    if len(pipelines) > 1 or len(per_rank) > 1 or not (pipelines or per_rank):
        raise words.refused(f"{words('chunk_layers')} needs one {words('pp')} (or {words('vpp')})", "chunk_layers")
    pipeline = pipelines[0] if pipelines else max(len(chunks) // per_rank[0], 1)
    if len(chunks) % pipeline or (per_rank and pipeline * per_rank[0] != len(chunks)):
        text = f"{words('pp')} {pipeline}" + (f" x {words('vpp')} {per_rank[0]}" if per_rank else "")
        raise words.refused(
            f"{words('chunk_layers')} names {len(chunks)} chunks, not a number for {text}", "chunk_layers"
        )
    ranks = rank_layers(chunks, pipeline, fields.get("schedule", BY_NAME["schedule"].default)) if cut else ()
    if cut != ranks:
        raise words.refused(
            f"{words('chunk_layers')} puts {_layers_text(ranks)} layers on the ranks, "
            f"{words('stage_layers')} {_layers_text(cut)}; leave out one",
            "chunk_layers",
        )


def _values(value: Any) -> tuple[Any, ...]:
    """Return a value as a tuple; None is empty."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _check_cut(cut: tuple[int, ...], pipelines: Iterable[int], words: Wording) -> None:
    sizes = tuple(pipelines)
    if len(cut) not in sizes:
        text = ",".join(map(str, sizes[:8]))
        raise words.refused(f"{words('stage_layers')} names {len(cut)} stages, {words('pp')} is {text}", "stage_layers")


def devices_taken(answers: Mapping[str, Any]) -> int | None:
    """Return the devices of a layout with `data_parallel`; None without it, where it follows from the devices."""
    fields = named(answers)
    pipeline = fields.get("pipeline_parallel") or len(fields.get("stage_layers", ())) or 1
    if "data_parallel" not in fields:
        return None
    sizes = (fields.get(name, 1) for name in ("tensor_parallel", "context_parallel", "data_parallel"))
    product = pipeline
    for size in sizes:
        product *= size
    return int(product)


def resolve(
    scenario: Scenario,
    fields: Mapping[str, Any],
    words: Wording = NAMES,
    *,
    filled: bool = True,
    accumulation_steps: int | None = None,
) -> tuple[Scenario, Layout]:
    """Return the scenario and its layout, from layout fields by name or key.

    Left out, data parallel fills the devices, sequence parallelism is on beside tensor parallelism, the ZeRO stage is
    the framework's usual one, and the layers get the default cut. A cut without a pipeline size gives it. With
    `accumulation_steps`, micro batches of a replica per optimizer step, the global batch follows. Raises InputError for
    what no layout has and, if `filled`, for sizes that do not fill the devices; else a rule judges them.
    """
    layout = _completed(named(fields), scenario, words, filled=filled)
    if accumulation_steps is None:
        return scenario, layout
    batch = layout.micro_batch_size * accumulation_steps * layout.data_parallel
    return replace(scenario, global_batch_size=batch), layout


def _chunks(fields: dict[str, Any], words: Wording) -> int | None:
    """Fill in ranks and chunks that lists of layers and the schedule imply; return the layers per virtual stage."""
    chunk: int | None = fields.pop("layers_per_virtual_stage", None)
    schedule = fields.get("schedule", BY_NAME["schedule"].default)
    BY_NAME["schedule"].check(schedule)
    listed = tuple(fields.get("chunk_layers", ()))
    if listed:
        _check_chunks(fields, words)
        if "pipeline_parallel" not in fields:
            fields["pipeline_parallel"] = len(fields.get("stage_layers", ())) or len(listed) // fields["virtual_stages"]
        fields["virtual_stages"] = len(listed) // fields["pipeline_parallel"]
        fields["stage_layers"] = rank_layers(listed, fields["pipeline_parallel"], schedule)
    cut = tuple(fields.get("stage_layers", ()))
    if cut:
        fields.setdefault("pipeline_parallel", len(cut))
    if chunk is None and pipeline_shape(schedule, 2, 2) == "there_and_back":
        fields.setdefault("virtual_stages", 2)
    return chunk


def _completed(fields: dict[str, Any], scenario: Scenario, words: Wording, *, filled: bool) -> Layout:
    model, devices = scenario.model, scenario.devices
    layers, chunk = model.num_hidden_layers, _chunks(fields, words)
    listed, cut = tuple(fields.get("chunk_layers", ())), tuple(fields.get("stage_layers", ()))
    replica = 1
    for name in _REPLICA:
        check_count(name, fields.setdefault(name, 1))
        replica *= fields[name]
    if filled:
        sizes = " x ".join(f"{words(name)} {fields[name]}" for name in _REPLICA)
        keys = tuple(field.key for field in FIELDS if field.name in _REPLICA)
        if devices % replica:
            raise words.refused(f"{sizes} = {replica} does not divide the {devices} devices", *keys)
        data = fields.get("data_parallel")
        if data is not None and data * replica != devices:
            message = f"{sizes} x {words('dp')} {data} takes {data * replica} devices; there are {devices}"
            raise words.refused(message, "dp", *keys)
    pipeline = fields["pipeline_parallel"]
    if pipeline > layers and not cut:
        raise words.refused(f"{words('pp')} {pipeline} is more than the {layers} layers of {model.name}", "pp")
    if cut:
        _check_cut(cut, (pipeline,), words)
    if chunk is not None:
        if layers % (pipeline * chunk):
            text = f"{words('layers_per_virtual_stage')} {chunk} x {words('pp')} {pipeline}"
            raise words.refused(f"{text} does not divide the model's {layers} layers")
        fields["virtual_stages"] = layers // (pipeline * chunk)
    fields.setdefault("data_parallel", max(devices // replica, 1))
    split = model.is_moe and scenario.framework.limits.splits_experts_as_layers
    fields.setdefault("expert_tensor_parallel", fields["tensor_parallel"] if split else 1)
    fields.setdefault("sequence_parallel", fields["tensor_parallel"] > 1)
    fields.setdefault("zero_stage", scenario.framework.zero_stage_on(devices))
    return Layout(**(fields | _cut(scenario, fields, listed, cut)))


def _cut(
    scenario: Scenario, fields: Mapping[str, Any], listed: tuple[int, ...], cut: tuple[int, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the layers per stage, and per chunk where chunks are unequal."""
    pipeline, chunks = fields["pipeline_parallel"], fields.get("virtual_stages", 1)
    schedule = fields.get("schedule", BY_NAME["schedule"].default)
    if not listed and not cut:
        listed = default_chunks(scenario.model, scenario.framework, pipeline, chunks)
        cut = rank_layers(listed, pipeline, schedule) or default_cut(scenario.model.num_hidden_layers, pipeline)
    if (
        listed
        and min(cut) > 0
        and model_chunks(cut, chunks, (), schedule) == model_chunks(cut, chunks, listed, schedule)
    ):
        listed = ()
    return {"stage_layers": cut, "chunk_layers": listed}


_MOST_CHUNKS = 512  # largest number of chunks of a pipeline that has unequal chunks by default


def default_chunks(model: ModelSpec, framework: FrameworkProfile, pipeline: int, chunks: int) -> tuple[int, ...]:
    """Return the layers per chunk where equal chunks do not divide and the framework builds others; else ()."""
    layers, count = model.num_hidden_layers, pipeline * chunks
    predicted = model.num_nextn_predict_layers if framework.mtp else 0
    possible = pipeline > 1 and chunks > 1 and framework.limits.unequal_chunks and count <= layers + 2 + predicted
    return balanced_chunks(layers, predicted, count) if possible and layers % count and count <= _MOST_CHUNKS else ()


_REPLICA = ("tensor_parallel", "pipeline_parallel", "context_parallel")
