"""Questions whose figures show which way a switch or a layout's choice goes: blocks of layouts, priced once each.

Between them: dense models, mixtures, latent attention, scans, compressed attention; each framework's engine; with and
without a pipeline; adapters; every precision; short sequences, where the optimizer step decides; no flash kernel; NPUs.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from simulator.cost.derived import Pricing
from simulator.cost.memory.host import host_memory, uses_host
from simulator.cost.pricing.price import price
from simulator.cost.timing.products import model_flops_per_token
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.frameworks.stacks import framework
from simulator.question.scenario.block import LayoutBlock, block_of
from simulator.question.scenario.scenario import Scenario
from simulator.search.build import _recomputed_flops
from tests.scenario.cases import layout_of, load_hardware, load_model

Figure = Literal["device", "state", "saved", "host", "flop", "passes", "seconds"]
"""`device`: bytes that must fit, by pipeline rank. `state`: bytes between two steps, by rank. `saved`: bytes that a
micro batch saves, by kind of rank. `host`: bytes of a node, pinned ones as they are rounded at most. `flop`: of a
token, with what is computed again. `passes`: seconds of a micro batch, by kind of rank; `seconds`: of a step. Where
activations travel to the host their traffic decides, so that these layouts have none."""
FIGURES: tuple[Figure, ...] = get_args(Figure)
Fields = dict[str, Any]


class Question(NamedTuple):
    """A scenario, as its fields by name, and layouts with one pipeline cut."""

    profile: str
    fields: Fields
    layouts: tuple[Fields, ...]
    stack: str = "default"
    model: str = "llama3.1-8b"
    hardware: str = "z2000"
    options: Mapping[str, str] = {}


def fields(**given: Any) -> Fields:
    return given


DENSE = (
    *(fields(zero_stage=stage) for stage in range(4)),
    fields(tensor_parallel=2, sequence_parallel=True),
    fields(tensor_parallel=4),
    fields(context_parallel=2),
    fields(zero_stage=3, tensor_parallel=2, sequence_parallel=True, context_parallel=2),
    fields(recompute="full"),
    fields(recompute="full", zero_stage=3),
    fields(recompute="selective"),
    fields(recompute="operations", zero_stage=3),
    fields(recompute="attention"),
    fields(offload="optimizer"),
    fields(offload="optimizer_tensorwise", zero_stage=3),
    fields(offload="activations"),
    fields(offload="activations", recompute="full"),
)
FEW = tuple(DENSE[at] for at in (0, 1, 3, 4, 6, 8, 13, 15))
EXPERTS = tuple(
    fields(expert_parallel=8) | more
    for more in (
        *(fields(zero_stage=stage) for stage in range(4)),
        fields(tensor_parallel=2, sequence_parallel=True),
        fields(tensor_parallel=2, sequence_parallel=True, expert_parallel=4, expert_tensor_parallel=2),
        fields(context_parallel=2),
        fields(recompute="full", zero_stage=3),
        fields(recompute="selective", recompute_modules=("mla_up_proj", "layernorm", "moe_act")),
        fields(offload="optimizer"),
        fields(offload="activations", zero_stage=3),
    )
)
PIPELINE = (
    *(fields(zero_stage=stage) for stage in (0, 1, 3)),
    fields(tensor_parallel=2, sequence_parallel=True),
    fields(tensor_parallel=2, zero_stage=2),
    fields(recompute="full"),
    fields(recompute="selective"),
    fields(offload="optimizer"),
    fields(micro_batch_size=2),
)
SHORT = (*(fields(zero_stage=stage) for stage in range(4)), fields(tensor_parallel=2))
SIXTEEN = fields(devices=16, global_batch_size=64)


def on(layouts: tuple[Fields, ...], **shape: Any) -> tuple[Fields, ...]:
    """The layouts on a pipeline."""
    return tuple(shape | layout for layout in layouts)


MEGATRON, TORCH, PADDLE = "megatron", "torch", "paddle"
QUESTIONS: dict[str, Question] = {
    "dense": Question(MEGATRON, SIXTEEN, DENSE),
    "units": Question(TORCH, SIXTEEN, DENSE),
    "units, one micro batch": Question(TORCH, SIXTEEN | fields(global_batch_size=16), DENSE, "torchtitan"),
    "deepspeed": Question(TORCH, SIXTEEN, DENSE, "deepspeed"),
    "paddle": Question(PADDLE, SIXTEEN, DENSE),
    "chunks": Question(MEGATRON, SIXTEEN, on(PIPELINE, pipeline_parallel=4, virtual_stages=2)),
    "units in a pipeline": Question(TORCH, SIXTEEN, on(PIPELINE, pipeline_parallel=2)),
    "paddle chunks": Question(
        PADDLE, SIXTEEN | fields(global_batch_size=16), on(PIPELINE, pipeline_parallel=4, virtual_stages=2)
    ),
    "dualpipev": Question(
        MEGATRON, SIXTEEN, on(PIPELINE[:4], pipeline_parallel=4, virtual_stages=2, schedule="dualpipev")
    ),
    "experts": Question(MEGATRON, SIXTEEN, EXPERTS, model="qwen3-30b-a3b"),
    "experts in units": Question(TORCH, SIXTEEN, EXPERTS, model="qwen3-30b-a3b"),
    "latent": Question(
        MEGATRON,
        fields(devices=64, global_batch_size=64),
        on(EXPERTS, pipeline_parallel=4),
        model="deepseek-v3",
        options={"mtp": "true"},
    ),
    "latent deepspeed": Question(TORCH, SIXTEEN, EXPERTS, "deepspeed", "deepseek-v2-lite"),
    "scans": Question(MEGATRON, SIXTEEN, on((*FEW[:3], *FEW[5:]), tensor_parallel=8), model="nemotron-h-56b"),
    "compressed": Question(MEGATRON, SIXTEEN, EXPERTS[:4], model="deepseek-v4-flash"),
    "adapters": Question(MEGATRON, SIXTEEN | fields(lora_rank=16), FEW),
    "adapters in units": Question(TORCH, SIXTEEN | fields(lora_rank=16), FEW),
    "adapters of experts": Question(TORCH, SIXTEEN | fields(lora_rank=16), EXPERTS[:4], model="qwen3-30b-a3b"),
    "fp8": Question(MEGATRON, SIXTEEN | fields(precision="fp8"), FEW),
    "fp8 experts": Question(TORCH, SIXTEEN | fields(precision="fp8"), EXPERTS, model="qwen3-30b-a3b"),
    "fp4": Question(MEGATRON, SIXTEEN | fields(precision="fp4"), FEW, hardware="mi355x"),
    "fp32": Question(MEGATRON, SIXTEEN | fields(precision="fp32"), FEW),
    "short": Question(MEGATRON, fields(devices=2, global_batch_size=64, seq_length=128), SHORT),
    "short units": Question(TORCH, fields(devices=2, global_batch_size=64, seq_length=128), SHORT),
    "unfused": Question(MEGATRON, SIXTEEN | fields(seq_length=1024), FEW, options={"flash_attention": "false"}),
    "npu": Question(MEGATRON, SIXTEEN, FEW, hardware="ascend-910b-64g-8"),
    "short adapters": Question(TORCH, fields(devices=2, global_batch_size=64, seq_length=128, lora_rank=16), SHORT),
    "layer norms": Question(TORCH, SIXTEEN, FEW, model="starcoder2-7b"),
    "adapters of linear mixers": Question(
        TORCH, SIXTEEN | fields(lora_rank=16), (*EXPERTS[:4], EXPERTS[9]), model="qwen3-next-80b-a3b"
    ),
}
WITNESSES = frozenset(
    ("latent", "adapters in units", "fp4", "fp8 experts", "paddle chunks", "short units", "adapters of experts")
)
"""Questions that between them show nearly all that any switch moves, up and down, under each framework: every switch is
asked on them. On the others a sixth of the switches is, as the formulas that a question goes by are those of many."""
SHOWN_BY: dict[str, str] = {
    "offloaded_modules": "paddle",
    "composed_scan": "scans",
    "composed_layer_norm_bytes": "layer norms",
    "autocast": "layer norms",
    "fused_rotary": "compressed",
    "optimizer": "deepspeed",
    "largest_tensor_step": "short",
    "kept_boundaries": "units in a pipeline",
    "communicator_buffer_mib": "npu",
    "quantising_bytes": "short adapters",
    "joint_adapters": "short adapters",
    "shared_adapters": "adapters of linear mixers",
    "splits_last_backward": "dualpipev",
}
"""The question that a switch is asked on besides, as something that it moves stays on all of its own."""


def asked_of(switch: str) -> dict[str, Question]:
    """The questions that a switch is asked on."""
    others = [name for name in QUESTIONS if name not in WITNESSES][crc32(switch.encode()) % 6 :: 6]
    chosen = {*WITNESSES, *others, SHOWN_BY.get(switch)}
    return {name: question for name, question in QUESTIONS.items() if name in chosen}


Figures = dict[Figure, NDArray[np.float64]]


def scenario_of(name: str, options: Mapping[str, str], **changes: Any) -> Scenario:
    asked = QUESTIONS[name]
    profile = framework(asked.profile, {**asked.options, **options}, asked.stack)
    machine = load_hardware(asked.hardware)
    return Scenario(model=load_model(asked.model), hardware=machine, framework=profile, **asked.fields | changes)


@lru_cache(maxsize=64)
def block_of_question(name: str) -> LayoutBlock:
    scenario = scenario_of(name, {})
    return block_of([layout_of(scenario, **layout) for layout in QUESTIONS[name].layouts])


def figures(name: str, options: tuple[tuple[str, str], ...] = ()) -> Figures:
    """A question's figures under switches; the last axis is that of its layouts."""
    return _figures(name, scenario_of(name, dict(options)).framework)


@lru_cache(maxsize=8192)
def _figures(name: str, profile: FrameworkProfile) -> Figures:
    """By all switches, named or not: of two values of a switch the profile has one already."""
    scenario = replace(scenario_of(name, {}), framework=profile)
    return figures_of(Pricing(scenario, block_of_question(name)))


def figures_of(pricing: Pricing) -> Figures:
    priced, count, scenario = price(pricing), len(pricing), pricing.scenario
    host = np.zeros(count)
    if uses_host(pricing):
        held = host_memory(pricing, priced.memory)
        host = np.broadcast_to(held.total + held.pinned, (count,))
    activations, model, block = priced.memory.activations, model_flops_per_token(scenario), pricing.block
    again = _recomputed_flops(priced, [block.layout(index) for index in range(count)])
    return {
        "device": priced.memory.need,
        "state": priced.memory.after_step,
        "saved": activations.one_micro_batch + np.broadcast_to(activations.embedded, activations.one_micro_batch.shape),
        "host": host,
        "flop": model + again,
        "passes": priced.step.work.forward + priced.step.work.backward,
        "seconds": np.where(activations.offloaded, np.nan, priced.step.total),
    }


Sign = Literal["+", "-"]


def signs(before: Figures, after: Figures) -> dict[Figure, dict[Sign, set[int]]]:
    """The layouts of which a figure grew, and fell, by more than rounding."""
    found: dict[Figure, dict[Sign, set[int]]] = {}
    for figure in FIGURES:
        change, least = after[figure] - before[figure], 1e-9 * np.abs(before[figure])
        found[figure] = {
            "+": set(np.argwhere(change > least)[:, -1].tolist()),
            "-": set(np.argwhere(change < -least)[:, -1].tolist()),
        }
    return found
