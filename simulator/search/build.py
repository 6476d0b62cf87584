"""Estimates of single layouts, made of a priced block as frozen records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeVar

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
from simulator.late import deferred
from simulator.question.arrays import NDArray
from simulator.question.scenario.block import Array
from simulator.question.scenario.layout import Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import unstated_rates
from simulator.question.specs.hardware import ComputeRate
from simulator.question.units import GIGA
from simulator.question.vocabulary import NARROW
from simulator.records import replace
from simulator.search.rules import RULES
from simulator.search.space import PricedLayout

T = TypeVar("T")


def estimate_layout(scenario: Scenario, layout: Layout) -> Estimate:
    """Price one layout, `refused` ones too, with intervals where it is calibrated; its time when that is read."""
    return estimates_of_block(size(pricing_of(scenario, layout)))[0]


def estimates_of_block(priced: Sized) -> list[Estimate]:
    """Return the estimate of each layout of a block."""
    layouts = [priced.block.layout(at) for at in range(len(priced.pricing))]
    return with_intervals(priced.pricing.scenario, _estimates_of(priced, layouts, ruled=True))


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
        of_query = [(at, priced) for at, priced in enumerate(layouts) if priced.query is query]
        if len(of_query) == 1 and (alone := of_query[0][1]).priced is not None:
            bare = _estimates_of(alone.priced, [alone.layout], ruled=False)
        else:
            bare = bare_estimates(query.scenario, [priced.layout for _, priced in of_query])
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
            chosen = np.take(positions, lawful[fits])
            of_fits = _estimates_of(timed(sized.take(fits)), [layouts[at] for at in chosen], ruled=False)
            estimates |= zip(chosen, of_fits, strict=True)
    return estimates


def bare_estimates(scenario: Scenario, layouts: Sequence[Layout], *, ruled: bool = False) -> list[Estimate]:
    """Price layouts in their order, without intervals; unless `ruled`, they are known to break no rule."""
    estimates: dict[int, Estimate] = {}
    for positions, pricing in pricings_of(scenario, layouts):
        of_block = _estimates_of(price(pricing), [layouts[at] for at in positions], ruled=ruled)
        estimates |= zip(positions, of_block, strict=True)
    return [estimates[at] for at in range(len(layouts))]


def _estimates_of(priced: Sized, layouts: Sequence[Layout], *, ruled: bool) -> list[Estimate]:
    """Return the estimates of a block's `layouts`, without intervals; the time of one without it is worked out late."""
    scenario = priced.pricing.scenario
    broken = [(rule, rule.broken(priced.pricing)) for rule in RULES] if ruled else []
    origin, estimates = provenance(scenario), []
    late = cache(lambda: [*_throughput(timed(priced), layouts)])
    untimed = (_late(late, at) for at in range(len(layouts)))
    speeds = _throughput(priced, layouts) if isinstance(priced, Priced) else untimed
    figures = zip(layouts, _memory(priced), speeds, strict=True)
    for index, (layout, memory, throughput) in enumerate(figures):
        violations = tuple(
            Violation(rule.id, rule.message(scenario, layout), rule.fix(scenario, layout))
            for rule, where in broken
            if where[index]
        )
        estimate = Estimate(
            model=scenario.model.name,
            hardware=scenario.hardware_name,
            devices=scenario.devices,
            framework=scenario.framework.name,
            **scenario.workload,
            layout=layout,
            verdict=verdict_of(priced, index, refused=bool(violations)),
            memory=memory,
            throughput=throughput,
            violations=violations,
            provenance=origin,
            stack=scenario.framework.stack,
            lengths=_lengths(scenario, layout.micro_batch_size),
        )
        estimates.append(estimate)
    return estimates


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


def _memory(priced: Sized) -> Iterator[MemoryEstimate]:
    """Yield the memory of each layout of a block; its parts and ranks are put together when they are read."""
    memory, binding = priced.memory, priced.binding_stage
    kinds, group = priced.pricing.scenario.kinds_of_device, memory.contents.group[memory.contents.kind]

    def on_worst(figure: Any) -> NDArray[Any]:
        return np.broadcast_to(figure, memory.device.shape)[binding, np.arange(len(binding))]

    figures = (memory.device, memory.reserved, memory.allocated, memory.moment)
    of_worst = zip(binding.tolist(), *(on_worst(figure).tolist() for figure in figures), strict=True)
    parts = cache(lambda: _named({name: on_worst(size) for name, size in memory.parts().items()}))
    outside = cache(lambda: _named({name: on_worst(getattr(memory.outside, name)) for name in _OUTSIDE}))
    stages = cache(lambda: [*_stages(priced)])
    capacity, on_host = host_capacity_bytes(priced.pricing), uses_host(priced.pricing)
    for at, (rank, device, reserved, allocated, moment) in enumerate(of_worst):
        yield MemoryEstimate(
            device_bytes=device,
            reserved_bytes=reserved,
            allocated_bytes=allocated,
            capacity_bytes=kinds[group[rank]].usable_memory_bytes,
            interval_bytes=None,
            fit_probability=None,
            binding_stage=rank,
            moment=memory.moments[moment].name,
            parts_bytes=_late(parts, at),
            outside_parts_bytes=_late(outside, at),
            stages=_late(stages, at),
            host_capacity_bytes=capacity,
            **(_on_host(priced, at) if on_host else {}),
        )


def _named(figures: Mapping[str, Array]) -> list[dict[str, float]]:
    """Return figures by name, each of shape (n,), for each layout."""
    columns = (figure.tolist() for figure in figures.values())
    return [dict(zip(figures, values, strict=True)) for values in zip(*columns, strict=True)]


def _late(of_each: Callable[[], Sequence[T]], at: int) -> T:
    """Return what stands for a figure of one layout until it is read."""
    return deferred(lambda: of_each()[at])


def _stages(priced: Sized) -> Iterator[tuple[StageMemory, ...]]:
    """Yield the memory of every rank of each layout of a block."""
    memory, kinds = priced.memory, priced.pricing.scenario.kinds_of_device
    of_kind = [(kind.name, kind.usable_memory_bytes) for kind in kinds]
    hardware = [of_kind[group] for group in memory.contents.group[memory.contents.kind]]
    parts, moments = memory.parts(), [moment.name for moment in memory.moments]
    figures = (memory.device, memory.reserved, memory.allocated, memory.after_step, memory.moment)
    for by_stage in zip(*(figure.T.tolist() for figure in (*figures, np.array([*parts.values()]))), strict=True):
        yield tuple(
            StageMemory(
                stage=stage,
                layers=layers,
                device_bytes=device,
                reserved_bytes=reserved,
                allocated_bytes=allocated,
                moment=moments[moment],
                parts_bytes=dict(zip(parts, sizes, strict=True)),
                state_bytes=state,
                hardware=name,
                capacity_bytes=capacity,
            )
            for stage, (layers, (name, capacity), device, reserved, allocated, state, moment, sizes) in enumerate(
                zip(priced.block.stage_layers, hardware, *by_stage, strict=True)
            )
        )


def _on_host(priced: Sized, at: int) -> dict[str, Any]:
    """Return the host fields of the memory estimate, where something is offloaded."""
    host = host_memory(priced.pricing, priced.memory)
    parts = {name: float(size[at]) for name, size in host.parts.items() if size[at] > 0.0}
    return {
        "host_bytes_per_node": sum(parts.values()),
        "host_parts_bytes": parts,
        "host_pinned_bytes": float(host.pinned[at]),
    }


_OUTSIDE: Final = ("context", "communicators", "user_buffers", "ring_buffers", "fragmentation", "cached", "streams")
"""What stands outside the allocator, by part."""


def _throughput(priced: Priced, layouts: Sequence[Layout]) -> Iterator[ThroughputEstimate]:
    """Yield the speed of each layout of a block; its parts and ranks are put together when they are read."""
    scenario, step = priced.pricing.scenario, priced.step
    flops, masked = model_flops_per_token(scenario), masked_flops_per_token(scenario)
    machines = [(each.devices, each.hardware) for each in scenario.groups] or [(scenario.devices, scenario.hardware)]
    peak = sum(devices * hardware.peak(scenario.precision) for devices, hardware in machines) / scenario.devices
    again = _recomputed_flops(priced, layouts).tolist()
    fill = step.pipeline.fill.tolist()
    pace = (step.pipeline.micro_batches * step.pipeline.pace_seconds).tolist()
    parts, stages = cache(lambda: _named(step.parts(priced.pricing))), cache(lambda: [*_stage_times(priced)])
    for at, seconds in enumerate(step.total.tolist()):
        tokens_rate = scenario.tokens_per_step / seconds / scenario.devices
        yield ThroughputEstimate(
            step_seconds=seconds,
            flops_per_second_per_device=flops * tokens_rate,
            hardware_flops_per_second_per_device=(flops + again[at]) * tokens_rate,
            tokens_per_second_per_device=tokens_rate,
            mfu=flops * tokens_rate / peak,
            causal_mfu=(flops - masked) * tokens_rate / peak,
            bubble_fraction=fill[at] / (pace[at] + fill[at]),
            interval_seconds=None,
            parts_seconds=_late(parts, at),
            model_flops_per_token=flops,
            schedule=schedule_of(priced.pricing),
            stages=_late(stages, at),
        )


def _stage_times(priced: Priced) -> Iterator[tuple[StageTime, ...]]:
    """Yield the work of every rank of each layout of a block."""
    work, kinds = priced.step.work, priced.memory.contents.kind.tolist()
    passes = [figure.T.tolist() for figure in (work.forward, work.backward)]
    chunks = [[figure.T.tolist() for figure in (each.forward, each.backward, each.weights)] for each in work.by_chunk]
    for at in range(len(priced.pricing)):
        yield tuple(
            StageTime(
                stage=stage,
                forward_seconds=passes[0][at][kind],
                backward_seconds=passes[1][at][kind],
                chunk_seconds=tuple(ChunkTime(*(figure[at][kind] for figure in chunk)) for chunk in chunks),
            )
            for stage, kind in enumerate(kinds)
        )


def _recomputed_flops(priced: Priced, layouts: Sequence[Layout]) -> Array:
    """Return the FLOP per token that recompute adds to each layout, by the convention of model FLOP."""
    scenario, contents = priced.pricing.scenario, priced.pricing.contents
    layers, flops = contents.over_ranks(contents.layers), np.zeros(len(layouts))
    full = (recompute_plan(priced.pricing).on_rank * contents.ranks[:, :1]).sum(axis=1)
    recomputes = [(layout.recompute, layout.recompute_modules) for layout in layouts]
    listed = np.array([layout.recompute_method == "list" for layout in layouts])
    for index, kind in enumerate(contents.layer_kinds):
        flops += full[index] * repeated_flops_per_token(scenario, kind, "full", ())
        flops += layers[index] * shared_flops_per_token(scenario, kind)
        each = {
            (mode, modules): 0.0 if mode == "full" else repeated_flops_per_token(scenario, kind, mode, modules)
            for mode, modules in dict.fromkeys(recomputes)
        }
        shares = np.where(listed, contents.listed_shares[index], 1.0)
        flops += shares * layers[index] * np.array([each[mode] for mode in recomputes])
    return flops


def provenance(scenario: Scenario) -> Provenance:
    """Return the provenance of a scenario's numbers."""
    notes, profile = list[str](), scenario.framework
    if scenario.precision in NARROW:
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
        targets = scenario.framework.adapter_targets.translate({ord("_"): " ", ord("+"): " "})
        notes.append(f"adapters on {targets} linear layers; model FLOPs count no gradients of frozen weights")
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
        if unstated := " or ".join(unstated_rates(device)):
            yield f"no {unstated} of {device.name}, as other {device.family} files have: it counts as the usual device"


def _assumed_peaks(scenario: Scenario) -> Iterator[str]:
    for device in scenario.kinds_of_device:
        peak: ComputeRate | None = getattr(device.peak_flops, scenario.precision)
        if peak is not None and peak.status == "assumed":
            note = f" ({peak.note.rstrip('.')})" if peak.note else ""
            yield f"{peak.value} of {device.name}{note}"
