"""Pool of launches that a probe chooses from: all shapes and layouts that the reference trainer runs in seconds.

Chooses nothing; `plan` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.errors import SimulateError
from simulator.lab.trainer.job import TrainingJob
from simulator.lab.trainer.limits import refused
from simulator.question.frameworks.profiles import profile_of
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import Precision

MOST_CANDIDATES = 800
"""Largest number of candidates that are priced: more are thinned out evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Values of each size that candidates combine."""

    models: tuple[tuple[str, ModelSpec], ...]
    """Shapes, each with the name or path that a measured row gives it."""
    layers: tuple[int, ...]
    seq_lengths: tuple[int, ...]
    micro_batch_sizes: tuple[int, ...] = (1, 2, 4)
    micro_batches: tuple[int, ...] = (2, 4, 8)
    """Micro batches per replica."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Possible launch."""

    model: str
    """Name or path of the model spec."""
    scenario: Scenario
    """Scenario with the model cut to the layers that are trained."""
    layout: Layout

    @property
    def title(self) -> str:
        """Launch in a few words."""
        scenario, layout = self.scenario, self.layout
        sizes = {
            "tp": layout.tensor_parallel,
            "pp": layout.pipeline_parallel,
            "vp": layout.virtual_stages,
            "dp": layout.data_parallel,
            "mbs": layout.micro_batch_size,
        }
        return "-".join(
            [
                f"h{scenario.model.hidden_size}x{scenario.model.head_dim}",
                f"l{scenario.model.num_hidden_layers}",
                f"s{scenario.seq_length}",
                f"gbs{scenario.global_batch_size}",
                *(f"{name}{size}" for name, size in sizes.items() if size > 1),
                *([f"zero{layout.zero_stage}"] if layout.data_parallel > 1 else []),
                *([layout.recompute] if layout.recompute != "none" else []),
            ]
        )


def candidates(hardware: HardwareSpec, devices: int, precision: Precision, reach: Reach) -> tuple[Candidate, ...]:
    """Return all candidates within reach that the trainer accepts, thinned out to MOST_CANDIDATES."""
    layouts = [
        Candidate(name, scenario, layout)
        for name, model in reach.models
        for layers in reach.layers
        for layout, sequences in _layouts(devices, layers, reach)
        for scenario in _scenarios(model.with_layers(layers), hardware, devices, precision, reach, sequences)
        if _runs(scenario, layout)
    ]
    # A stride without a common factor with the sizes above, so that every one of them stays in the pool.
    every = -(-len(layouts) // MOST_CANDIDATES)
    return tuple(layouts[:: every | 1])


def _layouts(devices: int, layers: int, reach: Reach) -> Iterator[tuple[Layout, int]]:
    """Yield layouts of all devices with the sequences of a step."""
    for tensor, pipeline in _splits(devices):
        data = devices // (tensor * pipeline)
        if pipeline > layers:
            continue
        for variant in _variants(layers, tensor, pipeline, data):
            for size in reach.micro_batch_sizes:
                for count in reach.micro_batches:
                    yield replace(variant, micro_batch_size=size), size * count * data


def _splits(devices: int) -> Iterator[tuple[int, int]]:
    for tensor in range(1, devices + 1):
        for pipeline in range(1, devices // tensor + 1):
            if devices % (tensor * pipeline) == 0:
                yield tensor, pipeline


def _variants(layers: int, tensor: int, pipeline: int, data: int) -> Iterator[Layout]:
    plain = Layout(
        tensor_parallel=tensor,
        pipeline_parallel=pipeline,
        data_parallel=data,
        sequence_parallel=tensor > 1,
        stage_layers=default_cut(layers, pipeline),
    )
    yield plain
    yield replace(plain, recompute="full")
    yield replace(plain, recompute="selective")
    if data > 1:
        yield from (replace(plain, zero_stage=stage) for stage in (0, 2, 3))
    if pipeline > 1:
        yield replace(plain, virtual_stages=2)


def _scenarios(  # noqa: PLR0913, PLR0917  the parts of a scenario
    model: ModelSpec, hardware: HardwareSpec, devices: int, precision: Precision, reach: Reach, sequences: int
) -> Iterator[Scenario]:
    for tokens in reach.seq_lengths:
        yield Scenario(
            model=model,
            hardware=hardware,
            devices=devices,
            seq_length=tokens,
            global_batch_size=sequences,
            precision=precision,
            framework=profile_of("torch"),
        )


def _runs(scenario: Scenario, layout: Layout) -> bool:
    try:
        return refused(TrainingJob.of(scenario, layout)) is None
    except SimulateError:
        return False
