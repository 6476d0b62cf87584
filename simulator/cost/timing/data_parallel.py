"""Seconds of reducing gradients and gathering parameters over replicas that the passes do not hide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.cost.derived import Pricing, of_sizes
from simulator.cost.dtypes import element_bytes, gathered_narrow, parameter_bytes, reduced_bytes
from simulator.cost.memory.state import (
    ByClass,
    device_parameters,
    linear_by_class,
    local_count,
    model_totals,
    shard_degrees,
)
from simulator.cost.operations.sums import micro_batches
from simulator.cost.timing.collectives import RankGroup, expert_shard_group, gather_seconds, shard_group
from simulator.question.arrays import Mask
from simulator.question.scenario.block import Array, KindArray
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import GIB
from simulator.records import NamedTuple

_FORWARD_SHARE = 1.0 / 3.0  # share of the forward pass in a micro batch's work: half of the backward pass
_REDUCES_OFTEN, _GATHERS_ALWAYS = 2, 3
"""ZeRO stages from which every micro batch reduces its gradients, and every pass gathers its parameters."""
_BUCKET_PARAMETERS = 4e7
"""Parameters that Megatron gathers or reduces at once (core_v0.16.1, distributed_data_parallel.py)."""


class Exchange(NamedTuple):
    """Seconds of one gather or reduction, by kind of rank, shape (kinds, n)."""

    seconds: KindArray
    """All parameters of the rank."""
    end: KindArray
    """The first part gathered, or the last reduced: no work is left to hide it."""


def on_own_devices(pricing: Pricing, figure: Callable[[Scenario], Array | float]) -> KindArray:
    """Return a figure for each kind of rank on its own devices; shape (kinds, n) or (kinds, 1) (T26)."""
    by_group = [np.atleast_2d(figure(member.scenario)) for member in pricing.members]
    return np.concatenate([by_group[group] for group in pricing.contents.group]) if len(by_group) > 1 else by_group[0]


@of_sizes
def shard_seconds_per_byte(pricing: Pricing) -> ByClass:
    """Return the seconds per byte over ranks with the same parameters, and over ranks with the same experts."""
    degrees = shard_degrees(pricing)
    return ByClass(
        _seconds_per_byte(pricing, shard_group(pricing.block, degrees.dense)),
        _seconds_per_byte(pricing, expert_shard_group(pricing.block, degrees.routed)),
    )


def data_parallel_seconds(pricing: Pricing, forward: KindArray, backward: KindArray) -> Array:
    """Return the seconds that gradient reduction and parameter gathering add to a step, shape (n,) (T20).

    Overlapped exchanges hide behind the passes of their own rank, `forward` and `backward` seconds of shape (kinds, n).
    """
    scenario, block, batches = pricing.scenario, pricing.block, micro_batches(pricing)
    always, often = block.zero_stage >= _GATHERS_ALWAYS, block.zero_stage >= _REDUCES_OFTEN
    own, ranks, chunks = forward + backward, block.pipeline_parallel, block.virtual_stages
    # An exchange hides under passes of the rank itself, and of the slowest rank, whose pace all follow.
    of_own, of_pace = (1.0, 0.0) if block.schedule != "1f1b" else (1.0 / chunks, ranks * (chunks - 1.0) / chunks)
    share = np.where(often, scenario.coefficients.time.shard_exposed, scenario.coefficients.time.data_exposed)
    pace = own.max(axis=0)
    beside_forward = np.where(always, forward, of_own * forward + of_pace * _FORWARD_SHARE * pace)
    beside_backward = np.where(often, backward, of_own * backward + of_pace * (1.0 - _FORWARD_SHARE) * pace)
    gather, reduction = _gather(pricing), _reduction(pricing)
    overlaps, nothing = scenario.framework, np.zeros_like(own)
    first = _exposed(share, gather, beside_forward) if overlaps.overlap_param_gather else gather.seconds
    regathered = np.where(always, gather.seconds, 0.0)
    hidden = regathered if overlaps.overlap_param_gather else nothing
    hidden = hidden + (reduction.seconds if overlaps.overlap_grad_reduce else nothing)
    end = reduction.end if overlaps.overlap_grad_reduce else nothing
    last = _exposed(share, Exchange(hidden, end), beside_backward) + (regathered + reduction.seconds - hidden)
    each_step = np.where(always, 0.0, first) + np.where(often, 0.0, last)
    # Where parameters are sent so, a rank starts a broadcast of each other rank's share, in turn.
    others, sent = shard_degrees(pricing).dense - 1.0, overlaps.zero_broadcasts & (block.zero_stage >= 1) & ~always
    broadcasts = np.where(sent, scenario.coefficients.time.broadcast_seconds * others, 0.0)
    alone: Array = (each_step + _exchange_overhead(pricing) + broadcasts).max(axis=0)
    if not often.any():  # nothing is exchanged with each micro batch
        return alone
    each_batch = np.where(always, first, 0.0) + np.where(often, last, 0.0)
    waits = (batches * (own + each_batch)).max(axis=0) - batches * pace
    added: Array = waits + alone
    return added


def _exposed(share: Array, exchange: Exchange, beside: KindArray) -> KindArray:
    """Return the exposed part of an exchange: its end and a share of the rest, at least what outlasts the work."""
    end = np.minimum(exchange.end, exchange.seconds)
    exposed: Array = np.maximum(end + share * (exchange.seconds - end), exchange.seconds - beside)
    return exposed


@of_sizes
def _gather(pricing: Pricing) -> Exchange:
    """Return one gather of 16-bit parameters: under ZeRO 3 of all, below of the trained ones, under ZeRO 0 none."""
    scenario, tabled = pricing.scenario, pricing.scenario.trains("embedding")
    always, sharded = pricing.block.zero_stage >= _GATHERS_ALWAYS, pricing.block.zero_stage >= 1
    weights = device_parameters(pricing)
    trained = device_parameters(pricing, "trained")
    gathered_dense = np.where(always, weights.dense, trained.dense)
    gathered_routed = np.where(always, weights.routed, trained.routed)
    dense, routed = shard_seconds_per_byte(pricing)
    seconds = element_bytes(scenario) * (dense * gathered_dense + routed * gathered_routed)
    if gathered_narrow(scenario) and scenario.lora_rank is None:
        linear = linear_by_class(pricing)
        # fp8 gathers one byte per linear parameter, not two.
        seconds = seconds - dense * linear.dense - routed * linear.routed
    end = element_bytes(scenario) * dense * _end(pricing, gathered_dense, with_table=always | tabled)
    return Exchange(np.where(sharded, seconds, 0.0), end)


@of_sizes
def _reduction(pricing: Pricing) -> Exchange:
    """Return one reduction of all gradients, in the type that they are reduced in."""
    scenario, block = pricing.scenario, pricing.block
    trained = device_parameters(pricing, "trained")
    # An all-reduce is a reduction and a gather; broadcast parameters need all gradients (InternEvo 00a2a34,
    # solver/optimizer/hybrid_zero_optim.py: `reduce_rank` is none, and `reduce_tensor` then an all-reduce).
    whole = (block.zero_stage == 0) | (scenario.framework.zero_broadcasts & (block.zero_stage == 1))
    each = reduced_bytes(scenario) * (scenario.coefficients.time.reduce_slowdown + whole)
    dense, routed = shard_seconds_per_byte(pricing)
    seconds = each * (dense * trained.dense + routed * trained.routed)
    if scenario.framework.sharding_degree or scenario.framework.sharding_replicas > 1:
        seconds = seconds + reduced_bytes(scenario) * _between_shard_groups(pricing, trained)
    return Exchange(seconds, each * dense * _end(pricing, trained.dense, with_table=scenario.trains("embedding")))


def _end(pricing: Pricing, dense: KindArray, *, with_table: Mask | bool) -> KindArray:
    """Return the parameters at the end of an exchange (T20), of the table none where adapters alone are exchanged."""
    table = with_table * pricing.contents.embeddings * local_count(pricing, model_totals(pricing.scenario).embedding)
    unit: Array | float = _BUCKET_PARAMETERS
    if pricing.scenario.framework.fully_shard:
        unit = np.maximum.reduce([local_count(pricing, layer) for layer in model_totals(pricing.scenario).layers])
    return np.minimum(np.maximum(table, unit), dense)


@of_sizes
def _exchange_overhead(pricing: Pricing) -> KindArray:
    """Return the fixed seconds of a step's exchanges of parameters and gradients, layer by layer."""
    scenario, block, contents = pricing.scenario, pricing.block, pricing.contents
    batches, stage = micro_batches(pricing), block.zero_stage
    exchanges = np.where(stage >= _REDUCES_OFTEN, batches, 1.0)
    exchanges = exchanges + np.where(stage >= _GATHERS_ALWAYS, 2.0 * batches, stage >= 1)
    exchanged = contents.num_layers + contents.embeddings + contents.heads
    # Parameters stored in another type than the compute type are gathered even from a single rank.
    cast = scenario.framework.fully_shard and parameter_bytes(scenario) != element_bytes(scenario)
    each = np.where((block.replicas > 1.0) | cast, exchanges, 0.0)
    per_exchange = on_own_devices(pricing, lambda member: member.coefficients.time.shard_overhead_seconds)
    return exchanged * each * per_exchange


def _between_shard_groups(pricing: Pricing, trained: ByClass) -> KindArray:
    """Return the seconds per byte of a gradient to sum shards over several sharding groups, by scatter and gather."""
    block = pricing.block
    degrees = shard_degrees(pricing)
    across = RankGroup(block.replicas / degrees.dense, block.tensor_parallel * degrees.dense)
    experts = RankGroup(block.expert_replicas / degrees.routed, block.expert_ranks * degrees.routed)
    dense = _seconds_per_byte(pricing, across) * trained.dense / degrees.dense
    routed = _seconds_per_byte(pricing, experts) * trained.routed / degrees.routed
    return np.where(block.zero_stage >= 1, 2.0 * (dense + routed), 0.0)


def _seconds_per_byte(pricing: Pricing, group: RankGroup) -> KindArray:
    """Return the seconds per byte of a gather or scatter over a group, for each kind of rank."""
    gibibyte = np.full_like(group.size, 2.0**30)
    return on_own_devices(pricing, lambda member: gather_seconds(member, group, gibibyte) / GIB)
