"""A layout's figures are its own, whatever stands beside it in a block: recomputed layers, offload, units, sizes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import MemoryByStage
from simulator.cost.pricing.price import price
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from tests.directions.questions import QUESTIONS, scenario_of
from tests.scenario.cases import layout_of

OPTIONS: dict[str, dict[str, str]] = {
    "dense": {"offloaded_modules": "core_attn", "host_paced_layers": "true"},
    "units": {"expandable_segments": "false", "offload_parameters": "true"},
    "units, one micro batch": {"optimizer": "muon"},
    "units in a pipeline": {"optimizer": "muon"},
    "chunks": {"keep_qkv_output": "false", "delayed_weight_gradients": "true"},
    "paddle chunks": {"release_grads": "true"},
    "experts": {"recomputed_expert_share": "0.5", "cuda_graphs": "layers"},
    "latent": {"offloaded_modules": "core_attn,moe_act", "deferred_head_gradients": "4"},
    "latent deepspeed": {"optimizer": "muon"},
    "short": {"optimizer": "muon"},
    "short units": {"foreach_optimizer": "true"},
}
"""More of what only some layouts do."""
CHUNKS: dict[str, dict[str, Any]] = {
    "chunks": {"chunk_layers": (3, 5, 4, 4, 5, 3, 4, 4)},
    "latent": {"recompute_layer_list": (3, 5, 8)},
    "dense": {"recompute_layer_list": (0, 1, 31)},
}
"""Chunks, and layers that are recomputed where a layout lists them, that all layouts of a block share."""


def mixed(name: str, draw: random.Random) -> Iterator[dict[str, Any]]:
    """The layouts of a question, each with another way to recompute."""
    shape = CHUNKS.get(name, {}) if draw.random() < 0.5 else {}
    for layout in QUESTIONS[name].layouts:
        mode = draw.choice(("none", "selective", "full", "attention", "operations"))
        again: dict[str, Any] = {"recompute": mode}
        if mode == "full":
            again |= {"recompute_method": draw.choice(("uniform", "block")), "recompute_layers": draw.choice((1, 2))}
        if mode == "selective":
            again |= {
                "recompute_modules": draw.choice((("core_attn", "layernorm"), ("mla_up_proj", "moe_act"), ("mlp",)))
            }
        if "recompute_layer_list" in shape and mode in {"full", "selective"}:
            again |= {"recompute_method": "list", "recompute_layers": 1}
        yield {**layout, **shape, **again}


def arrays(value: object, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """The numbers of a figure, by their place in it."""
    if isinstance(value, np.ndarray):
        if np.issubdtype(value.dtype, np.number):
            yield path, value
    elif isinstance(value, MemoryByStage):
        # Which moments there are goes with the block.
        yield from arrays(value.parts(), ".parts")
        yield from arrays([value.need, value.after_step, value.device], ".bytes")
    elif is_dataclass(value) and type(value).__module__.startswith("simulator.cost"):
        for field in fields(value):
            yield from arrays(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple | list):
        for at, one in enumerate(value):
            yield from arrays(one, f"{path}[{at}]")
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from arrays(one, f"{path}[{key}]")


def figures(scenario: Scenario, layouts: list[Layout]) -> dict[tuple[object, str], np.ndarray]:
    """Every figure that the price of these layouts goes by, by formula and arguments, and the step's seconds."""
    pricing = Pricing(scenario, block_of(layouts))
    step = price(pricing).step.parts(pricing)
    found: dict[object, object] = {**pricing.figures, "step": step}
    return {
        (formula, path): array
        for formula, figure in found.items()
        for path, array in arrays(figure)
        if array.ndim and array.shape[-1] == len(layouts)
    }


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_layout_has_its_figures_whatever_stands_beside_it(name: str) -> None:
    draw = random.Random(name)  # noqa: S311  the same layouts every time
    scenario = scenario_of(name, OPTIONS.get(name, {}))
    layouts = list(mixed(name, draw))
    made = [layout_of(scenario, **layout) for layout in layouts]
    together, compared = figures(scenario, made), 0
    for at, layout in enumerate(made):
        for key, alone in figures(scenario, [layout]).items():
            beside = together.get(key)
            if beside is not None and beside.shape[:-1] == alone.shape[:-1]:
                # Sums of many terms are added in another order where a block has more of them.
                assert np.allclose(beside[..., at], alone[..., 0], rtol=1e-9, atol=1e-9, equal_nan=True), (key, layout)
                compared += 1
    assert compared > 80 * len(made)
