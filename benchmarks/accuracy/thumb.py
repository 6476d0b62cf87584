"""The rules of thumb that came with the measured runs, checked against the ranking of the same clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Literal

import numpy as np

from simulator.cost.derived import Pricing
from simulator.cost.pricing.price import FITS, price
from simulator.question.coefficients import Coefficients
from simulator.question.frameworks.stacks import framework, stack_for
from simulator.question.scenario.layout import Layout, sizes_text
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware, load_model
from simulator.question.vocabulary import Precision
from simulator.search.rank import walk
from simulator.search.space import Space

HARDWARE = "z2000"
SMALL, LARGE = ("llama3.1-8b", 32), ("llama3.1-70b", 64)
"""Model and devices of the two clusters that the rules speak of."""
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8")


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """One rule of thumb and what the ranking says of it."""

    rule: str
    outcome: Literal["comes out", "in part", "does not come out"]
    findings: tuple[str, ...]
    """One sentence each, with the figures."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """A layout that fits, with its speed."""

    layout: Layout
    tflops_share: float
    """Speed as a share of the fastest layout's."""

    @property
    def replica(self) -> int:
        """Devices of one replica: tensor x pipeline x context parallel sizes."""
        return self.layout.replica

    @property
    def split(self) -> str:
        """The parallel sizes in a word."""
        return sizes_text(self.layout, "tp", "pp", "cp")


def check(coefficients: Coefficients) -> tuple[RuleCheck, ...]:
    """Check all rules under a coefficient set."""

    @cache
    def fitting(model: str, devices: int, precision: Precision) -> tuple[Fitting, ...]:
        return tuple(_fitting(model, devices, precision, coefficients))

    return (_recompute(fitting), _large(fitting), _small(fitting), _order(fitting))


Ranked = Callable[[str, int, Precision], Sequence[Fitting]]


def _fitting(model: str, devices: int, precision: Precision, coefficients: Coefficients) -> list[Fitting]:
    """Every layout that keeps the rules and fits, fastest first."""
    hardware = load_hardware(HARDWARE)
    scenario = Scenario(
        model=load_model(model),
        hardware=hardware,
        framework=framework("megatron", stack=stack_for("megatron", None, hardware.stack)),
        devices=devices,
        precision=precision,
        coefficients=coefficients,
    )
    found = sorted(_priced(scenario), key=lambda entry: entry[0])
    return [Fitting(layout, found[0][0] / seconds) for seconds, layout in found]


def _priced(scenario: Scenario) -> Iterator[tuple[float, Layout]]:
    for judged in walk(scenario, Space()):
        if (sized := judged.sized) is not None and (fits := sized.verdict == FITS).any():
            priced = price(Pricing(scenario, sized.block.take(fits)))
            for index, seconds in enumerate(priced.step.total):
                yield float(seconds), priced.block.layout(index)


def _clusters() -> Iterator[tuple[str, int, Precision]]:
    for (model, devices), precision in product((SMALL, LARGE), PRECISIONS):
        yield model, devices, precision


def _recompute(ranked: Ranked) -> RuleCheck:
    """Where none runs, recomputation is not worth it."""
    findings, never = [], True
    for model, devices, precision in _clusters():
        speeds = {fitting.layout: fitting.tflops_share for fitting in ranked(model, devices, precision)}
        gains = {
            mode: [
                speeds[other] / speed - 1.0
                for layout, speed in speeds.items()
                if layout.recompute == "none" and (other := replace(layout, recompute=mode)) in speeds
            ]
            for mode in ("selective", "full")
        }
        never &= all(gain < 0.0 for found in gains.values() for gain in found)
        costs = ", ".join(f"{mode} {100 * float(np.median(found)):+.1f} %" for mode, found in gains.items() if found)
        first = ranked(model, devices, precision)[0].layout.recompute
        findings.append(
            f"{_cluster(model, devices, precision)}: where `none` fits, speed changes by {costs} (median over "
            f"{len(gains['full'])} layouts); the fastest layout recomputes {first}"
        )
        never &= first == "none"
    rule = "Where `none` runs, `selective` and `full` recomputation are not worth it"
    return RuleCheck(rule, "comes out" if never else "in part", tuple(findings))


def _large(ranked: Ranked) -> RuleCheck:
    """70B wants TP x PP x CP = 64, small TP, PP 8."""
    model, devices = LARGE
    findings, met, smaller = [], [], dict[str, None]()
    for precision in PRECISIONS:
        found = ranked(model, devices, precision)
        smaller |= dict.fromkeys(f.split for f in found[:10] if f.replica < devices)
        best, filling = found[0], [f for f in found if f.replica == devices]
        whole = filling[0]
        tensors = {size: next((f for f in filling if f.layout.tensor_parallel == size), None) for size in (2, 4, 8)}
        pipelines = {size: next((f for f in filling if f.layout.pipeline_parallel == size), None) for size in (4, 8)}
        by_tensor = ", ".join(f"TP {size} {f.tflops_share:.3f}" for size, f in tensors.items() if f)
        by_pipeline = ", ".join(f"PP {size} {f.tflops_share:.3f}" for size, f in pipelines.items() if f)
        met += [
            best.replica == devices,
            whole.layout.tensor_parallel < 8,
            best.layout.tensor_parallel < 8,
            whole.layout.pipeline_parallel == 8,
        ]
        findings.append(
            f"{_cluster(model, devices, precision)}: the fastest is {best.split} (product {best.replica}); with "
            f"product {devices} it is {whole.split}, {100 * (1 - whole.tflops_share):.1f} % slower. Fastest with "
            f"product {devices}, as shares of the fastest of all: {by_tensor}; {by_pipeline}"
        )
    if not all(met):
        findings.append(
            "Why not in full: behind the rule stand runs with TP 2 and 4 that always interleaved with 80/PP/4 layers "
            "in a chunk, which costs memory. With product 4, 8 and 16 (tp2) they ran out of it and with 32 (tp4 pp8 "
            f"cp1) they starved, and so they do in this model. What it puts first ({', '.join(smaller)}) was never "
            "run: smaller replicas exchange less and wait for fewer stages"
        )
        findings.append(
            "Measured in fp8 with product 64 and PP 8: TP 2 603.6, TP 4 630.8, TP 8 593.3 TFLOPS; there, too, TP 4 is "
            "the fastest. TP 8 rests on that one run"
        )
    return RuleCheck(
        "70B on 8 nodes wants TP x PP x CP = 64, small TP, PP 8",
        "comes out" if all(met) else "in part" if any(met) else "does not come out",
        tuple(findings),
    )


def _small(ranked: Ranked) -> RuleCheck:
    """An 8B model fits four devices."""
    model, devices = SMALL
    holds = {n: bool(ranked(model, n, precision)) for precision in PRECISIONS for n in (1, 2, 4)}
    smallest = min((n for n, fits in holds.items() if fits), default=0)
    kept = ", ".join(f"{n}: {'fits' if fits else 'does not fit'}" for n, fits in holds.items())
    findings = [f"Devices that hold one replica, nothing shared with others: {kept}"]
    for precision in PRECISIONS:
        found = ranked(model, devices, precision)
        four = next(f for f in found if f.replica == 4)
        findings.append(
            f"{_cluster(model, devices, precision)}: with product 4 the fastest is {four.split}, "
            f"{100 * (1 - four.tflops_share):.1f} % behind the fastest of all, {found[0].split} (product "
            f"{found[0].replica}), which fits because {found[0].layout.data_parallel} replicas share the optimizer "
            "state"
        )
    return RuleCheck(
        "An 8B model fits four devices, TP x PP x CP = 4",
        "comes out" if smallest == 4 else "in part" if holds[4] else "does not come out",
        tuple(findings),
    )


def _order(ranked: Ranked) -> RuleCheck:
    """Tune TP, PP, CP first: they change most; the micro batch last."""
    axes = {
        "the split (TP, PP, CP together)": ("tensor_parallel", "pipeline_parallel", "context_parallel"),
        "TP": ("tensor_parallel",),
        "PP": ("pipeline_parallel",),
        "CP": ("context_parallel",),
        "micro batch": ("micro_batch_size",),
        "chunks": ("virtual_stages",),
    }
    findings, split_first = [], True
    for model, devices, precision in _clusters():
        found = ranked(model, devices, precision)
        spreads = {name: _spread(found, fields) for name, fields in axes.items()}
        split_first &= spreads["the split (TP, PP, CP together)"] > spreads["micro batch"]
        told = ", ".join(f"{name} {100 * spread:.1f} %" for name, spread in spreads.items())
        findings.append(f"{_cluster(model, devices, precision)}: {told}")
    findings.append(
        "Each figure is how much slower the slowest choice is than the fastest, the rest of the layout held, as the "
        "median over the layouts that fit"
    )
    rule = "Tune TP, PP and CP first, which change the speed most, and the micro batch last"
    return RuleCheck(rule, "comes out" if split_first else "does not come out", tuple(findings))


def _spread(found: Sequence[Fitting], axis: tuple[str, ...]) -> float:
    """Median loss from the fastest to the slowest choice of an axis, the others held."""
    groups: dict[tuple[object, ...], list[float]] = {}
    names = ("tensor_parallel", "pipeline_parallel", "context_parallel", "micro_batch_size", "virtual_stages")
    for fitting in found:
        key = (fitting.layout.recompute, *(getattr(fitting.layout, name) for name in names if name not in axis))
        groups.setdefault(key, []).append(fitting.tflops_share)
    losses = [1.0 - min(group) / max(group) for group in groups.values() if len(group) > 1]
    return float(np.median(losses)) if losses else 0.0


def _cluster(model: str, devices: int, precision: Precision) -> str:
    return f"{model} on {devices} devices in {precision}"
