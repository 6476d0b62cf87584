"""Masks of layouts that break a rule about their pipeline, from inputs alone. `rules` has the messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.operations.extents import micro_batches
from simulator.cost.schedule.registry import schedule_of
from simulator.question.arrays import Mask
from simulator.question.scenario.layout import BY_NAME, ROUND, Layout, model_chunks, rank_layers
from simulator.question.scenario.scenario import Scenario


def mask(condition: Any) -> Mask:
    """Return a condition over layouts as a typed array (numpy's stubs lose the type of comparisons)."""
    return np.asarray(condition, dtype=np.bool_)


def every(pricing: Pricing, *, broken: bool) -> Mask:
    """Return the same value for every layout of a block."""
    return np.full(len(pricing), broken)


def cut(pricing: Pricing) -> Mask:
    """Return whether a rank lacks a layer or the cut does not add up."""
    scenario, block = pricing.scenario, pricing.block
    layers = block.stage_layers
    total, listed = scenario.model.num_hidden_layers, block.chunk_layers
    if listed and (
        len(listed) != block.pipeline_parallel * block.first_virtual_stages
        or rank_layers(listed, block.pipeline_parallel, block.schedule) != layers
    ):
        return every(pricing, broken=True)
    fewest = 0 if listed and scenario.framework.limits.unequal_chunks else 1
    return every(
        pricing,
        broken=len(layers) != block.pipeline_parallel or sum(layers) != total or min(layers, default=0) < fewest,
    )


def node_groups(pricing: Pricing) -> Mask:
    """Return whether a pipeline rank has devices of several kinds: speed and memory of a rank must be uniform."""
    scenario, block = pricing.scenario, pricing.block
    if len(scenario.groups) < 2:
        return every(pricing, broken=False)
    p = block.pipeline_parallel
    ends, end = [], 0
    for group in scenario.groups:
        end += group.devices
        ends.append(end)
    straddles = scenario.devices % p != 0 or any(e % (scenario.devices // p) for e in ends)
    return every(pricing, broken=straddles)


def virtual_stages(pricing: Pricing) -> Mask:
    """Return the layouts with virtual stages but no pipeline, or layers or micro batches that do not divide."""
    block = pricing.block
    several = block.virtual_stages > 1.0
    if not several.any():
        return every(pricing, broken=False)
    if block.pipeline_parallel < 2 or not _divides(pricing):
        return mask(several)
    if block.shape == "there_and_back":
        return every(pricing, broken=False)
    return mask(several & (micro_batches(pricing) % block.pipeline_parallel != 0))


def _divides(pricing: Pricing) -> bool:
    """Return whether every rank has its virtual stages, of equal layers unless the framework has unequal ones."""
    scenario, block = pricing.scenario, pricing.block
    if pricing.chunks_alike:
        return True
    chunks = model_chunks(block.stage_layers, block.first_virtual_stages, block.chunk_layers, block.schedule)
    sizes = {layers for of_rank in chunks for _, layers in of_rank}
    return len(chunks[0]) == block.first_virtual_stages and (
        len(sizes) == 1 or scenario.framework.limits.unequal_chunks
    )


def schedule(pricing: Pricing) -> Mask:
    """Return the layouts whose framework, ranks, chunks or micro batches do not match their schedule."""
    scenario, block = pricing.scenario, pricing.block
    p, name = block.pipeline_parallel, block.schedule
    if name == BY_NAME["schedule"].default:
        return every(pricing, broken=False)
    shape = block.shape
    if name not in scenario.framework.limits.schedules or p == 1 or (shape == "round" and name not in ROUND):
        return every(pricing, broken=True)
    m = micro_batches(pricing)
    odd = (m % 2 != 0) & (shape == "both_ends")
    return mask((m < schedule_of(pricing).min_micro_batches(p)) | odd)


def refused_schedule(scenario: Scenario, layout: Layout) -> str:
    """Return why a schedule is refused."""
    profile, name = scenario.framework, layout.schedule
    if name not in profile.limits.schedules:
        stack = "" if profile.stack == "default" else f" ({profile.stack})"
        return f"schedule {name}: {profile.name}{stack} has {', '.join(profile.limits.schedules)}"
    count = scenario.global_batch_size / (layout.micro_batch_size * layout.data_parallel)
    needs = {
        "zb_v": "2 virtual stages",
        "dualpipev": "2 virtual stages and micro batches of twice the pipeline ranks",
        "dualpipe": "an even number of ranks without virtual stages, and of micro batches, twice the ranks or more",
    }.get(name, "no more")
    return (
        f"schedule {name} needs 2 pipeline ranks and {needs}; the layout has pipeline parallel "
        f"{layout.pipeline_parallel}, virtual stages {layout.virtual_stages}, {count:g} micro batches"
    )


def two_stages(pricing: Pricing) -> Mask:
    """Return the layouts that interleave chunks on two ranks without overlapped sends."""
    scenario, block = pricing.scenario, pricing.block
    profile = scenario.framework
    allowed = profile.overlap_p2p or profile.limits.interleaving_of_two_stages_without_overlap
    return mask((block.virtual_stages > 1.0) & (not allowed and block.pipeline_parallel == 2))


def expert_overlap(pricing: Pricing) -> Mask:
    """Return the layouts without another micro batch's compute to hide the exchange: one chunk, or full recompute."""
    scenario, block = pricing.scenario, pricing.block
    if not (scenario.framework.overlap_expert_exchange and scenario.model.is_moe):
        return every(pricing, broken=False)
    alone = (block.chunks == 1.0) & (block.pipeline_parallel > 1)
    return mask((block.expert_parallel > 1) & (alone | pricing.recomputes("full")))
