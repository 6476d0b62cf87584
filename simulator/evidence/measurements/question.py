"""Question of a measured row, and devices and speed that its figures imply."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from simulator.cost.timing import flops
from simulator.errors import InputError, SimulateError
from simulator.evidence.measurements.row import WORKLOAD_COLUMNS, MeasuredRow
from simulator.evidence.measurements.shapes import model_of
from simulator.question.coefficients import Coefficients
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.frameworks.stacks import framework, stack_for
from simulator.question.origin import Input, Origin
from simulator.question.question import Question
from simulator.question.scenario.complete import NAMES, Wording, resolve
from simulator.question.scenario.inputs import WORKLOAD
from simulator.question.scenario.layout import SETTINGS, Layout
from simulator.question.scenario.scenario import Cluster, Scenario, scenario_on
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.model import ModelSpec
from simulator.question.units import TERA
from simulator.question.vocabulary import StackName


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
    """Return the scenario of a row's question, and its layout with its cut.

    Raises InputError when the row's layout is none, with the row's name.
    """
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


@lru_cache(maxsize=256)
def _profile(name: str, options: tuple[tuple[str, str], ...], stack: StackName) -> FrameworkProfile:
    return framework(name, dict(options), stack)


def _scenario_of(row: MeasuredRow, stated: Question, coefficients: Coefficients) -> Scenario:
    if not row.model:
        raise InputError(f"{row.key}: no spec for model '{row.model_as_stated}'; name one in column model")
    try:
        hardware, framework = _hardware(stated.value("hardware")), stated.value("framework")
        stack = stack_for(framework, stated.stated("stack"), hardware.stack)
        return scenario_on(
            Cluster(hardware=hardware, devices=stated.value("devices"), coefficients=coefficients),
            _model(stated.value("model"), stated.stated("num_layers")),
            _profile(framework, tuple(stated.options.items()), stack),
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
