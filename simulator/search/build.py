"""Estimates of single layouts, made of a priced block as frozen records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from simulator.cost.derived import pricing_of, pricings_of
from simulator.cost.memory.activations import recompute_plan
from simulator.cost.memory.host import host_capacity_bytes, host_memory, uses_host
from simulator.cost.pricing.estimate import (
    ChunkTime,
    Estimate,
    LengthsEstimate,
    MemoryEstimate,
    Provenance,
    StageMemory,
    StageTime,
    ThroughputEstimate,
    Verdict,
    Violation,
)
from simulator.cost.pricing.price import DOES_NOT_FIT, FITS, STARVED, Priced, Sized, price, size, timed
from simulator.cost.schedule.orders import schedule_of
from simulator.cost.timing.products import (
    masked_flops_per_token,
    model_flops_per_token,
    repeated_flops_per_token,
    shared_flops_per_token,
)
from simulator.question.arrays import Matrix
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import unstated_rates
from simulator.question.specs.hardware import ComputeRate
from simulator.question.units import GIGA
from simulator.question.vocabulary import NARROW
from simulator.search.rules import RULES
from simulator.search.space import PricedLayout


def estimate_layout(scenario: Scenario, layout: Layout) -> Estimate:
    """Price one layout, `refused` ones too, with intervals where the scenario has a calibration."""
    return estimate_of_block(price(pricing_of(scenario, layout)))


def estimate_of_block(priced: Priced) -> Estimate:
    """Return the estimate of a block of one layout."""
    return with_intervals(priced.pricing.scenario, _estimates_of(priced, ruled=True))[0]


def with_intervals(scenario: Scenario, estimates: Sequence[Estimate]) -> list[Estimate]:
    """Return the estimates with intervals, coverage and notes from the scenario's calibration, if any."""
    if scenario.calibration is None:
        return list(estimates)
    judged: list[Estimate] = scenario.calibration.judged(scenario, estimates)
    return judged


def bare_estimate(scenario: Scenario, layout: Layout) -> Estimate:
    """Price one layout without intervals."""
    return bare_estimates(scenario, [layout], ruled=True)[0]


def estimates_of(layouts: Sequence[PricedLayout], *, intervals: bool = True) -> list[Estimate]:
    """Return estimates of the layouts that searches selected, in their order; these break no rule."""
    estimates: dict[int, Estimate] = {}
    for query in {id(priced.query): priced.query for priced in layouts}.values():
        of_query = [(at, priced.layout) for at, priced in enumerate(layouts) if priced.query is query]
        bare = bare_estimates(query.scenario, [layout for _, layout in of_query])
        chosen = [replace(estimate, options=query.chosen, question=query.question) for estimate in bare]
        judged = with_intervals(query.scenario, chosen) if intervals else chosen
        estimates |= zip((at for at, _ in of_query), judged, strict=True)
    return [estimates[at] for at in range(len(layouts))]


def fitting_estimates(scenario: Scenario, layouts: Sequence[Layout]) -> dict[int, Estimate]:
    """Return the estimates, without intervals, of the layouts that break no rule and fit, by their position."""
    estimates: dict[int, Estimate] = {}
    for positions, pricing in pricings_of(scenario, layouts):
        lawful = np.flatnonzero(~np.any([rule.broken(pricing) for rule in RULES], axis=0))
        if not len(lawful):
            continue
        sized = size(pricing if len(lawful) == len(pricing) else pricing.take(lawful))
        fits = np.flatnonzero(sized.verdict == FITS)
        if len(fits):
            of_fits = _estimates_of(timed(sized.take(fits)), ruled=False)
            estimates |= zip(np.take(positions, lawful[fits]), of_fits, strict=True)
    return estimates


def bare_estimates(scenario: Scenario, layouts: Sequence[Layout], *, ruled: bool = False) -> list[Estimate]:
    """Price layouts in their order, without intervals; unless `ruled`, they are known to break no rule."""
    estimates: list[Estimate | None] = [None] * len(layouts)
    for positions, pricing in pricings_of(scenario, layouts):
        for position, estimate in zip(positions, _estimates_of(price(pricing), ruled=ruled), strict=True):
            estimates[position] = estimate
    return [estimate for estimate in estimates if estimate is not None]


def _estimates_of(priced: Priced, *, ruled: bool) -> list[Estimate]:
    """Return the estimates of a block's layouts, without intervals."""
    scenario, parts = priced.pricing.scenario, (priced.memory.parts(), priced.step.parts(priced.pricing))
    broken = [(rule, rule.broken(priced.pricing)) for rule in RULES] if ruled else []
    estimates = []
    for index in range(len(priced.pricing)):
        layout = priced.block.layout(index)
        violations = tuple(
            Violation(rule.id, rule.message(scenario, layout), rule.fix(scenario, layout))
            for rule, where in broken
            if where[index]
        )
        estimates.append(_estimate(priced, parts, index, violations))
    return estimates


def _estimate(
    priced: Priced, parts: tuple[Mapping[str, Matrix], Mapping[str, Matrix]], index: int, broken: tuple[Violation, ...]
) -> Estimate:
    """Return the estimate of one layout; `parts` are of memory, by rank and layout, and of the step, by layout."""
    scenario = priced.pricing.scenario
    return Estimate(
        model=scenario.model.name,
        hardware=scenario.hardware_name,
        devices=scenario.devices,
        framework=scenario.framework.name,
        **scenario.workload,
        layout=priced.block.layout(index),
        verdict=verdict_of(priced, index, refused=bool(broken)),
        memory=_memory(priced, parts[0], index),
        throughput=_throughput(priced, parts[1], index),
        violations=broken,
        provenance=provenance(scenario),
        stack=scenario.framework.stack,
        lengths=_lengths(scenario, int(priced.block.micro_batch_size[index])),
    )


def _lengths(scenario: Scenario, micro_batch_size: int) -> LengthsEstimate | None:
    lengths = scenario.lengths
    if lengths is None:
        return None
    return LengthsEstimate(
        source=lengths.source or lengths.to_dict(),
        batching=lengths.batching,
        sample_tokens=lengths.segments(1).mean,
        padding=1.0 - lengths.sample_tokens / lengths.sequence(micro_batch_size),
        priced_tokens=scenario.seq_length,
        survive=lengths.survive,
    )


def verdict_of(priced: Sized, index: int, *, refused: bool = False) -> Verdict:
    """Return the verdict on one layout of a block."""
    if refused:
        return "refused"
    code = int(priced.verdict[index])
    return "does_not_fit" if code == DOES_NOT_FIT else "starved" if code == STARVED else "fits"


def _memory(priced: Priced, parts: Mapping[str, Matrix], at: int) -> MemoryEstimate:
    memory, kinds = priced.memory, priced.pricing.scenario.kinds_of_device
    hardware = [kinds[group] for group in memory.contents.group[memory.contents.kind]]
    stages = tuple(
        StageMemory(
            stage=stage,
            layers=priced.block.stage_layers[stage],
            device_bytes=float(memory.device[stage, at]),
            reserved_bytes=float(memory.reserved[stage, at]),
            allocated_bytes=float(memory.allocated[stage, at]),
            moment=memory.moment_name(stage, at),
            parts_bytes={name: float(value[stage, at]) for name, value in parts.items()},
            state_bytes=float(memory.after_step[stage, at]),
            hardware=hardware[stage].name,
            capacity_bytes=hardware[stage].usable_memory_bytes,
        )
        for stage in range(priced.block.pipeline_parallel)
    )
    binding = int(priced.binding_stage[at])
    worst = stages[binding]
    return MemoryEstimate(
        device_bytes=worst.device_bytes,
        reserved_bytes=worst.reserved_bytes,
        allocated_bytes=worst.allocated_bytes,
        capacity_bytes=worst.capacity_bytes,
        interval_bytes=None,
        fit_probability=None,
        binding_stage=binding,
        moment=worst.moment,
        parts_bytes=worst.parts_bytes,
        outside_parts_bytes=_outside(priced, binding, at),
        stages=stages,
        host_capacity_bytes=host_capacity_bytes(priced.pricing),
        **_on_host(priced, at),
    )


def _on_host(priced: Priced, at: int) -> dict[str, Any]:
    """Return the host fields of the memory estimate; empty where nothing is offloaded."""
    if not uses_host(priced.pricing):
        return {}
    host = host_memory(priced.pricing, priced.memory)
    parts = {name: float(size[at]) for name, size in host.parts.items() if size[at] > 0.0}
    return {
        "host_bytes_per_node": sum(parts.values()),
        "host_parts_bytes": parts,
        "host_pinned_bytes": float(host.pinned[at]),
    }


def _outside(priced: Priced, stage: int, at: int) -> Mapping[str, float]:
    outside = priced.memory.outside
    return {
        "context": float(outside.context[at]),
        "communicators": float(outside.communicators[at]),
        "user_buffers": float(outside.user_buffers[at]),
        "ring_buffers": float(outside.ring_buffers[at]),
        "fragmentation": float(outside.fragmentation[stage, at]),
        "cached": float(np.broadcast_to(outside.cached, outside.fragmentation.shape)[stage, at]),
        "streams": float(np.broadcast_to(outside.streams, outside.fragmentation.shape)[stage, at]),
    }


def _throughput(priced: Priced, parts: Mapping[str, Matrix], at: int) -> ThroughputEstimate:
    scenario, step = priced.pricing.scenario, priced.step
    seconds = float(step.total[at])
    tokens_rate = scenario.tokens_per_step / seconds / scenario.devices
    flops = model_flops_per_token(scenario)
    pace = float(step.pipeline.micro_batches[at] * step.pipeline.pace_seconds[at])
    return ThroughputEstimate(
        step_seconds=seconds,
        flops_per_second_per_device=flops * tokens_rate,
        hardware_flops_per_second_per_device=(flops + _recomputed_flops(priced, at)) * tokens_rate,
        tokens_per_second_per_device=tokens_rate,
        mfu=flops * tokens_rate / _mean_peak(scenario),
        causal_mfu=(flops - masked_flops_per_token(scenario)) * tokens_rate / _mean_peak(scenario),
        bubble_fraction=float(step.pipeline.fill[at]) / (pace + float(step.pipeline.fill[at])),
        interval_seconds=None,
        parts_seconds={name: float(value[at]) for name, value in parts.items()},
        model_flops_per_token=flops,
        schedule=schedule_of(priced.pricing),
        stages=tuple(
            StageTime(
                stage=stage,
                forward_seconds=float(step.work.forward[kind, at]),
                backward_seconds=float(step.work.backward[kind, at]),
                chunk_seconds=tuple(
                    ChunkTime(*(float(seconds[kind, at]) for seconds in (chunk.forward, chunk.backward, chunk.weights)))
                    for chunk in step.work.by_chunk
                ),
            )
            for stage, kind in enumerate(priced.memory.contents.kind)
        ),
    )


def _mean_peak(scenario: Scenario) -> float:
    """Return the dense peak at the training precision, averaged over the devices of a mixed cluster."""
    if not scenario.groups:
        return scenario.hardware.peak(scenario.precision)
    total = sum(group.devices * group.hardware.peak(scenario.precision) for group in scenario.groups)
    return total / scenario.devices


def _recomputed_flops(priced: Priced, at: int) -> float:
    """Return the FLOP per token that recompute adds, by the convention of model FLOP."""
    scenario, contents = priced.pricing.scenario, priced.pricing.contents
    layout = priced.block.layout(at)
    layers, on_rank = contents.over_ranks(contents.layers), recompute_plan(priced.pricing).on_rank
    full = contents.over_ranks(np.broadcast_to(on_rank, (*on_rank.shape[:-1], len(priced.block)))[..., at : at + 1])
    flops = 0.0
    for index, kind in enumerate(contents.layer_kinds):
        flops += float(full[index]) * repeated_flops_per_token(scenario, kind, "full", ())
        flops += float(layers[index]) * shared_flops_per_token(scenario, kind)
        if layout.recompute != "full":
            share = contents.listed_shares[index] if layout.recompute_method == "list" else 1.0
            again = repeated_flops_per_token(scenario, kind, layout.recompute, layout.recompute_modules)
            flops += float(share * layers[index]) * again
    return flops


def provenance(scenario: Scenario) -> Provenance:
    """Return the provenance of a scenario's numbers."""
    notes: list[str] = []
    if scenario.precision in NARROW:
        profile = scenario.framework
        narrow_parts = {"attention": profile.fp8_attention, "the output layer": profile.fp8_output_layer}
        wide = " and ".join(part for part, narrow in narrow_parts.items() if not narrow)
        notes.append(
            f"MFU divides by the dense {scenario.precision} peak" + (f"; {wide} run in 16 bit" if wide else "")
        )
    if scenario.precision == "fp32":
        notes.append("fp32 runs at the fp32 peak with the efficiencies of 16-bit training; tf32 is not assumed")
    if scenario.model.num_nextn_predict_layers and not scenario.framework.mtp:
        notes.append("the model's multi-token-prediction layers are left out; --option mtp=true trains them")
    if scenario.model.note:
        notes.append(f"{scenario.model.name}: {scenario.model.note}")
    if scenario.lora_rank is not None:
        notes.append("adapters on every linear layer; model FLOPs count no gradients of frozen weights")
    profile = scenario.framework
    if profile.release:
        notes.append(f"switches of {profile.stack}: {profile.release_source}")
    return Provenance(
        scenario.coefficients.name,
        "never",
        tuple(notes),
        assumed_peak="; ".join(_assumed_peaks(scenario)),
        cautions=tuple(_cautions(scenario)),
        release=profile.release,
    )


def _cautions(scenario: Scenario) -> Iterator[str]:
    """Yield what a reader of the first lines must know of the model."""
    model, longest = scenario.model, scenario.model.longest_sequence
    if longest is not None and scenario.seq_length > longest:
        yield f"{model.name} was trained for sequences of up to {longest:,} tokens; {scenario.seq_length:,} are priced"
    if (images := scenario.images) is not None and model.encoder is not None:
        encoder = f"{(model.encoder.parameters + model.encoder.projector_parameters) / GIGA:.2f}B"
        trained = {"projector": "frozen but for its projector"}.get(images.trained, images.trained)
        taken = f"{scenario.image_tokens:,} of the {scenario.seq_length:,} tokens of a sequence"
        yield f"{images.shown} take {taken}; their encoder of {encoder} parameters is {trained}"
    elif model.text_part:
        yield f"the text part of {model.name} alone is priced, not what reads images, sound or video"
    for device in scenario.kinds_of_device:
        if unstated := " and no ".join(unstated_rates(device)):
            yield f"no {unstated} of {device.name}, as other {device.family} files have: it counts as the usual device"


def _assumed_peaks(scenario: Scenario) -> Iterator[str]:
    for device in scenario.kinds_of_device:
        peak: ComputeRate | None = getattr(device.peak_flops, scenario.precision)
        if peak is not None and peak.status == "assumed":
            note = f" ({peak.note.rstrip('.')})" if peak.note else ""
            yield f"{peak.value} of {device.name}{note}"
