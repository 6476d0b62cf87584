"""What a measured row asks of the simulator, and what its own figures imply."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from simulator.cost.timing import flops
from simulator.errors import InputError, SimulateError
from simulator.evidence.measurements.row import MeasuredRow
from simulator.question.coefficients import Coefficients
from simulator.question.frameworks.profile import FrameworkProfile, framework
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec

_TERA: Final = 10**12


def question(row: MeasuredRow, coefficients: Coefficients | None = None) -> tuple[Scenario, Layout]:
    """Return what the simulator prices for a row: the scenario, and the layout with its cut.

    Devices are those the row's figures imply where that is annotated, else the stated ones; model chunks come from
    the table, else from the annotation. Raises InputError when the row's layout is none, with the row's name.
    """
    scenario = _scenario(row, coefficients or Coefficients())
    return scenario, _layout(row, scenario)


def flops_per_token(row: MeasuredRow) -> float:
    """Return the model FLOPs of one token by which TFLOP/s are counted. Raises InputError without a model spec."""
    return flops.model_flops_per_token(_scenario(row, Coefficients()))


def figures_devices(row: MeasuredRow) -> float | None:
    """Return the devices that the row's own figures imply, not rounded.

    From TFLOP/s and step time, or tokens per second and step time: work per step / time / rate. None when the row
    lacks either. A value away from `row.devices` means that a figure, or the number of devices, is not what it says.
    """
    step = row.step_seconds
    if step is None:
        return None
    if row.tflops_per_device is not None:
        return flops_per_token(row) * row.tokens_per_step / step / (row.tflops_per_device * _TERA)
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
        return row.tflops_per_device * _TERA / flops_per_token(row)
    return None


def measured_tflops_per_device(row: MeasuredRow) -> float | None:
    """Return TFLOP/s per device: as given, or derived from tokens/s or the step time; None without a speed."""
    if row.tflops_per_device is not None:
        return row.tflops_per_device
    tokens = measured_tokens_per_second_per_device(row)
    return None if tokens is None else tokens * flops_per_token(row) / _TERA


@lru_cache(maxsize=256)
def _model(name: str, layers: int | None) -> ModelSpec:
    spec = load_model(name)
    return spec if layers is None else spec.with_layers(layers)


@lru_cache(maxsize=64)
def _hardware(name: str) -> HardwareSpec:
    return load_hardware(name)


@lru_cache(maxsize=256)
def _profile(name: str, options: tuple[tuple[str, str], ...]) -> FrameworkProfile:
    return framework(name, dict(options))


def _scenario(row: MeasuredRow, coefficients: Coefficients) -> Scenario:
    if not row.model:
        raise InputError(f"{row.key}: no spec for model '{row.model_as_stated}'; name one in column model")
    try:
        return Scenario(
            model=_model(row.model, row.num_layers),
            hardware=_hardware(row.hardware),
            devices=row.run_devices,
            seq_length=row.seq_length,
            global_batch_size=row.global_batch_size,
            precision=row.precision,
            lora_rank=row.lora_rank,
            framework=_profile(row.framework, row.options),
            coefficients=coefficients,
        )
    except SimulateError as error:
        raise type(error)(f"{row.key}: {error}") from error


def _layout(row: MeasuredRow, scenario: Scenario) -> Layout:
    layers, pipeline = scenario.model.num_hidden_layers, row.pipeline_parallel
    replica = row.tensor_parallel * pipeline * row.context_parallel
    if scenario.devices % replica:
        raise InputError(
            f"{row.key}: tensor x pipeline x context parallel {replica} does not divide {scenario.devices} devices"
        )
    if pipeline > layers:
        raise InputError(f"{row.key}: pipeline_parallel {pipeline} exceeds the model's {layers} layers")
    if row.stage_layers and sum(row.stage_layers) != layers:
        raise InputError(f"{row.key}: stage_layers add up to {sum(row.stage_layers)}, not to the model's {layers}")
    return Layout(
        tensor_parallel=row.tensor_parallel,
        pipeline_parallel=pipeline,
        context_parallel=row.context_parallel,
        expert_parallel=row.expert_parallel,
        expert_tensor_parallel=row.expert_tensor_parallel or 1,
        data_parallel=scenario.devices // replica,
        virtual_stages=_virtual_stages(row, layers),
        micro_batch_size=row.micro_batch_size,
        sequence_parallel=row.tensor_parallel > 1 and row.sequence_parallel is not False,
        zero_stage=1 if row.zero_stage is None else row.zero_stage,
        recompute=row.recompute,
        recompute_method=row.recompute_method or "uniform",
        recompute_layers=row.recompute_layers or 1,
        offload=row.offload,
        stage_layers=row.stage_layers or default_cut(layers, pipeline),
    )


def _virtual_stages(row: MeasuredRow, layers: int) -> int:
    """Return model chunks per pipeline rank; one pipeline rank is never interleaved, whatever its row says."""
    if row.pipeline_parallel == 1:
        return 1
    if row.virtual_stages is not None:
        return row.virtual_stages
    chunk = row.layers_per_virtual_stage or row.layers_per_virtual_stage_from_script
    if chunk is None:
        return 1
    if layers % (row.pipeline_parallel * chunk):
        raise InputError(
            f"{row.key}: layers_per_virtual_stage {chunk} x pipeline_parallel {row.pipeline_parallel} does not divide "
            f"the model's {layers} layers"
        )
    return layers // (row.pipeline_parallel * chunk)
