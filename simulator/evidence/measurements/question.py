"""Question that a measured row asks of the simulator, and columns of a row from a question."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import yaml

from simulator.cost.timing import products as flops
from simulator.errors import InputError, SimulateError
from simulator.evidence.measurements.rows import LAYOUT_COLUMNS, WORKLOAD_COLUMNS, MeasuredRow
from simulator.question.coefficients import Coefficients
from simulator.question.frameworks.stacks import framework, stack_for
from simulator.question.origin import Input, Origin
from simulator.question.question import Question
from simulator.question.recipe import Recipe
from simulator.question.scenario.complete import NAMES, Wording, resolve
from simulator.question.scenario.inputs import WORKLOAD
from simulator.question.scenario.layout import BY_NAME, SETTINGS, Layout, default_cut
from simulator.question.scenario.scenario import Cluster, Scenario, scenario_on
from simulator.question.specs.catalogue import load_hardware, load_model, models_by_sizes
from simulator.question.specs.documents import plain, validated
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.yaml_text import parse_yaml
from simulator.question.units import TERA
from simulator.records import Record


def case_columns(
    scenario: Scenario, layout: Layout, *, model: str, options: Mapping[str, str], num_layers: int | None
) -> dict[str, Any]:
    """Return the columns of workload and layout, without those that say nothing; `num_layers` if they are cut."""
    profile = scenario.framework
    usual = stack_for(profile.name, None, scenario.hardware.stack)
    cut = default_cut(scenario.model.num_hidden_layers, layout.pipeline_parallel)
    return {
        "model": model,
        "num_layers": num_layers,
        "framework": profile.name,
        "options": tuple(options.items()),
        "stack": None if profile.stack == usual else profile.stack,
        **{name: getattr(scenario, name) for name in ("devices", *WORKLOAD_COLUMNS)},
        **layout_columns(layout, is_moe=scenario.model.is_moe, usual_cut=cut),
    }


def recipe_columns(run: Recipe, devices: int | None, *, is_moe: bool) -> dict[str, Any]:
    """Return the columns that a logged run's words ask for, without its model."""
    columns = {name: getattr(run, name) for name in ("framework", "stack", *WORKLOAD_COLUMNS)} | {"devices": devices}
    layout = run.layout
    if layout is None:
        return columns
    columns |= layout_columns(layout, is_moe=is_moe)
    if run.virtual_stage_layers and layout.virtual_stages == 1:
        columns["layers_per_virtual_stage"] = run.virtual_stage_layers
    return columns


def layout_columns(layout: Layout, *, is_moe: bool, usual_cut: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return the columns of a layout; those that say nothing of the run stay blank."""
    columns: dict[str, Any] = {name: getattr(layout, name) for name in LAYOUT_COLUMNS}
    if not is_moe:
        columns["expert_tensor_parallel"] = None
    if layout.virtual_stages == 1:
        columns["virtual_stages"] = None
    if layout.stage_layers == usual_cut:
        columns["stage_layers"] = ()
    if columns["chunk_layers"]:
        # Chunks determine the layers of the ranks, and the chunks of each.
        columns |= {"stage_layers": (), "virtual_stages": None}
    if layout.recompute_modules == BY_NAME["recompute_modules"].default:
        columns["recompute_modules"] = ()
    if layout.recompute != "full":
        columns |= {"recompute_method": None, "recompute_layers": None}
    return columns


def cut_layers(spec: ModelSpec, layers: int) -> int | None:
    """Return the layers of a model that is cut or extended; None where it has its spec's."""
    return None if layers == spec.num_hidden_layers else layers


INLINE: Final = "{"
"""Beginning of a model that is its own spec, as YAML on one line, instead of a name or path."""
LoggedFields = Mapping[str, Any]
"""Fields of a model's spec that a log states."""
_LOOSE: Final = frozenset({"num_hidden_layers", "vocab_size", "architecture", "max_position_embeddings"})
"""Fields in which a log may differ from the spec of its model: fewer layers, a padded vocabulary, the longest run."""


class Match(Record):
    """Spec that matches a log's model."""

    model: str
    num_layers: int | None
    """Layers of a truncated model, a count; None for all its layers."""
    note: str
    """Note on the choice for readers; empty when there was none."""


def match_shape(where: str, shape: LoggedFields, model: str | None = None, *, vocab_padding: int = 0) -> Match:
    """Return the spec with this shape: `model` if given, else the shipped one, else the shape itself as a spec.

    A spec with more layers and otherwise equal is taken as truncated; `vocab_padding` are rows that the framework may
    have added to the token table. Of a shape that is not logged whole the model is blank. Raises InputError when
    `model` has another shape.
    """
    layers: int = shape["num_hidden_layers"]
    if model is not None:
        spec = model_of(model)
        different = _difference(spec, shape, vocab_padding)
        if different:
            raise InputError(f"{where}: the log's model is not {model[:100]}: {different}")
        return Match(model, cut_layers(spec, layers), "")
    same = [spec for spec in models_by_sizes() if not _difference(spec, shape, vocab_padding)]
    whole = [spec for spec in same if spec.num_hidden_layers == layers]
    if not same:
        own = _own_spec(shape)
        try:
            model_of(own)
        except InputError:
            return Match("", None, f"No shipped model has the logged shape {own}.")
        return Match(own, None, "No shipped model has the logged shape, which stands in the row as a spec of its own.")
    best = whole or same
    others = ", ".join(spec.name for spec in best[1:])
    return Match(best[0].name, cut_layers(best[0], layers), f"Same shape: {others}." if others else "")


def model_of(name: str) -> ModelSpec:
    """Return a model by name, by path, or from its own text. Raises InputError."""
    return validated("model", ModelSpec, parse_yaml("model", name)) if name.startswith(INLINE) else load_model(name)


def spec_text(spec: ModelSpec) -> str:
    """Return a model as its own text, which `model_of` reads back equal."""
    return _text(plain(spec, but=("note", "sources", "provenance", "published")))


def _text(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), default_flow_style=True, sort_keys=False, width=10**9).strip()


def _difference(spec: ModelSpec, shape: LoggedFields, vocab_padding: int) -> str:
    """Return the first field in which they differ, or an empty text; fewer layers are no difference."""
    if shape["num_hidden_layers"] > spec.num_hidden_layers:
        return f"num_hidden_layers {shape['num_hidden_layers']}, not {spec.num_hidden_layers}"
    idle = {"intermediate_size"} if spec.is_moe and not spec.num_dense_layers else set()
    idle |= {"num_key_value_heads", "head_dim"} if spec.attention == "mla" else set()
    for name in ModelSpec.field_types():
        logged, known = shape.get(name), getattr(spec, name)
        if name not in _LOOSE | idle and logged is not None and logged != known:
            return f"{name} {logged}, not {known}"
    if (rows := shape.get("vocab_size")) is not None:
        slack = max(vocab_padding, spec.vocab_size // 100)
        if abs(rows - spec.vocab_size) > slack:
            return f"vocab_size {rows}, not {spec.vocab_size} within {slack}"
    return ""


def _own_spec(shape: LoggedFields) -> str:
    """Return the shape as a mapping on one line, in YAML, without fields that the log lacks."""
    name = f"logged-{shape['num_hidden_layers']}x{shape['hidden_size']}"
    usual = {"tie_word_embeddings": False, "head_dim": max(shape["hidden_size"] // shape["num_attention_heads"], 1)}
    family = "mixtral" if shape.get("num_experts") else "gpt2" if shape.get("gated") is False else "llama"
    stated = {field: value for field, value in shape.items() if value is not None}
    values = {"architecture": family} | usual | stated
    fields = {
        field: list(values[field]) if isinstance(values[field], tuple) else values[field]
        for field in ModelSpec.field_types()
        if field in values and values[field] != getattr(ModelSpec, field, None)
    }
    return _text({"name": name, **fields})


def row_question(row: MeasuredRow) -> Question:
    """Return the question that a row's run answers; each value was said by the row's table.

    Blank columns mean the plain run: ZeRO 1, one chunk a rank. Devices are those the row's figures imply where that is
    annotated, else the stated ones; model chunks come from the table, else from the annotation.
    """
    origin = Origin("file", row.key)
    stated = {name: getattr(row, name) for name in ("model", "hardware", "num_layers", "framework", "stack")}
    stated |= {"devices": row.run_devices, **{name: getattr(row, name) for name in WORKLOAD_COLUMNS}}
    layout = {name: value for name, value in _layout_settings(row).items() if value not in (None, ())}
    return Question(
        inputs={name: Input(value, origin) for name, value in stated.items() if value is not None},
        layout={name: Input(value, origin) for name, value in layout.items()},
        switches={name: Input(text, origin) for name, text in row.options},
    )


def question(row: MeasuredRow, coefficients: Coefficients | None = None) -> tuple[Scenario, Layout]:
    """Return the scenario of a row's question, and its layout with its cut. Raises InputError with the row's name."""
    stated = row_question(row)
    scenario = _scenario_of(row, stated, coefficients or Coefficients())
    layers = scenario.model.num_hidden_layers
    if row.stage_layers and sum(row.stage_layers) != layers:
        raise InputError(f"{row.key}: stage_layers add up to {sum(row.stage_layers)}, not to the model's {layers}")
    try:
        return resolve(scenario, stated.layout_values, Wording(spell=NAMES.spell, where=f"{row.key}: "))
    except SimulateError as error:
        raise _named(row, error) from error


def flops_per_token(row: MeasuredRow) -> float:
    """Return the model FLOPs of one token by which TFLOP/s are counted. Raises InputError without a model spec."""
    return flops.model_flops_per_token(_scenario_of(row, row_question(row), Coefficients()))


def figures_devices(row: MeasuredRow) -> float | None:
    """Return the devices that the row's own figures imply, not rounded.

    From TFLOP/s and step time, or tokens per second and step time: work per step / time / rate. None when the row
    lacks either. A value away from `row.devices` means that a figure, or the number of devices, is not what it says.
    """
    step = row.step_seconds
    if step is None:
        return None
    if row.tflops_per_device is not None:
        return flops_per_token(row) * row.tokens_per_step / step / (row.tflops_per_device * TERA)
    if row.tokens_per_second_per_device is not None:
        return row.tokens_per_step / step / row.tokens_per_second_per_device
    return None


def measured_tokens_per_second_per_device(row: MeasuredRow) -> float | None:
    """Return tokens/s per device: as given, or derived from the step time or from TFLOP/s; None without a speed."""
    if row.tokens_per_second_per_device is not None:
        return row.tokens_per_second_per_device
    if row.step_seconds is not None:
        return row.tokens_per_step / row.step_seconds / row.run_devices
    if row.tflops_per_device is not None:
        return row.tflops_per_device * TERA / flops_per_token(row)
    return None


def measured_tflops_per_device(row: MeasuredRow) -> float | None:
    """Return TFLOP/s per device: as given, or derived from tokens/s or the step time; None without a speed."""
    if row.tflops_per_device is not None:
        return row.tflops_per_device
    tokens = measured_tokens_per_second_per_device(row)
    return None if tokens is None else tokens * flops_per_token(row) / TERA


@lru_cache(maxsize=256)
def _model(name: str, layers: int | None) -> ModelSpec:
    spec = model_of(name)
    return spec if layers is None else spec.with_layers(layers)


_hardware = lru_cache(maxsize=64)(load_hardware)


def _scenario_of(row: MeasuredRow, stated: Question, coefficients: Coefficients) -> Scenario:
    if not row.model:
        raise InputError(f"{row.key}: no spec for model '{row.model_as_stated}'; name one in column model")
    try:
        hardware, name = _hardware(stated.value("hardware")), stated.value("framework")
        return scenario_on(
            Cluster(hardware=hardware, devices=stated.value("devices"), coefficients=coefficients),
            _model(stated.value("model"), stated.stated("num_layers")),
            framework(name, stated.options, stack_for(name, stated.stated("stack"), hardware.stack)),
            **{setting.name: stated.value(setting.name) for setting in WORKLOAD},
        )
    except SimulateError as error:
        raise _named(row, error) from error


def _named(row: MeasuredRow, error: SimulateError) -> SimulateError:
    """Return the error with the row's name in front."""
    text = str(error)
    return error if text.startswith(f"{row.key}: ") else type(error)(f"{row.key}: {text}")


def _layout_settings(row: MeasuredRow) -> dict[str, Any]:
    """Return the layout settings of a row; blank columns mean the plain run: ZeRO 1, one chunk a rank."""
    columns = {setting.name: getattr(row, setting.name, None) for setting in SETTINGS}
    columns["expert_tensor_parallel"] = row.expert_tensor_parallel or 1
    columns["zero_stage"] = 1 if row.zero_stage is None else row.zero_stage
    columns["sequence_parallel"] = row.tensor_parallel > 1 and row.sequence_parallel is not False
    if columns["layers_per_virtual_stage"] is None and row.virtual_stages is None:
        columns["layers_per_virtual_stage"] = row.layers_per_virtual_stage_from_script
    if row.pipeline_parallel == 1:
        # One pipeline rank is never interleaved, whatever its row says.
        columns |= {"virtual_stages": None, "layers_per_virtual_stage": None}
    return columns
