"""Choice of the launches that say most about a machine's coefficients: a greedy D-optimal design over a pool.

    >>> pool = candidates(load_hardware("local-cpu"), 2, "bf16", reach("cpu", None, folder))
    >>> [planned.candidate.title for planned in plan(pool, Coefficients(), Effort(launches=2)).launches]
    ['h256x32-l2-s128-gbs2-pp2-full', 'h256x64-l2-s128-gbs4-dp2-zero2']

The pool is every shape and layout that the reference trainer runs in seconds. A launch measures `ln(step time)`, whose
slopes by the logarithms of the coefficients follow from pricing it under coefficient sets a little apart, as the fit
does. The coefficients' priors are the information there is before the first launch. Every next launch is the one that
adds most information, `ln(1 + s' C s / noise²)`, for each second that it takes; on devices that keep bytes beside the
tensors, the memory coefficients' information counts too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from simulator.cost.derived import Pricing
from simulator.cost.memory.peak import memory_by_stage
from simulator.cost.pricing.price import FITS, verdicts
from simulator.cost.stages import usable_bytes
from simulator.cost.timing.step import step_seconds
from simulator.errors import SimulateError
from simulator.evidence.calibration.linear import names_of
from simulator.lab.trainer.job import TrainingJob, refused
from simulator.question.arrays import Matrix, Vector
from simulator.question.coefficients import CoefficientKind, Coefficients, priors, replaced
from simulator.question.frameworks.stacks import profile_of
from simulator.question.scenario.block import block_of
from simulator.question.scenario.layout import Layout, default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_model
from simulator.question.specs.documents import validated
from simulator.question.specs.hardware import HardwareSpec
from simulator.question.specs.model import ModelSpec
from simulator.question.vocabulary import Precision

MOST_CANDIDATES = 800
"""Largest number of candidates that are priced: more are thinned out evenly."""
_PROCESSOR_WIDTHS = (256, 512, 1024)
_ACCELERATOR_WIDTHS = (2048, 4096, 8192)
_DEEPEST = 8
"""Most layers that a probe trains."""
NOISE: dict[CoefficientKind, float] = {"time": 0.04, "memory": 0.01}
"""Expected relative scatter of a short launch."""
KINDS: tuple[CoefficientKind, ...] = ("time", "memory")
STEP = 0.02
"""Relative step of the finite differences."""
PINNED = 0.8
"""Largest share of its standard deviation that a launch leaves of a coefficient which it pins down."""


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
        scenario, layout, model = self.scenario, self.layout, self.scenario.model
        sizes = {"tp": layout.tensor_parallel, "pp": layout.pipeline_parallel, "vp": layout.virtual_stages}
        sizes |= {"dp": layout.data_parallel, "mbs": layout.micro_batch_size}
        words = [f"h{model.hidden_size}x{model.head_dim}", f"l{model.num_hidden_layers}", f"s{scenario.seq_length}"]
        words += [f"gbs{scenario.global_batch_size}", *(f"{name}{size}" for name, size in sizes.items() if size > 1)]
        words += [f"zero{layout.zero_stage}"] * (layout.data_parallel > 1)
        return "-".join([*words, *([layout.recompute] if layout.recompute != "none" else [])])


def candidates(hardware: HardwareSpec, devices: int, precision: Precision, reach: Reach) -> tuple[Candidate, ...]:
    """Return all candidates within reach that the trainer accepts, thinned out to MOST_CANDIDATES."""
    common: dict[str, Any] = {"hardware": hardware, "devices": devices, "precision": precision}
    common["framework"] = profile_of("torch")
    every = [
        Candidate(name, Scenario(model=cut, seq_length=tokens, global_batch_size=sequences, **common), layout)
        for (name, model), layers in product(reach.models, reach.layers)
        for cut in (model.with_layers(layers),)
        for layout, sequences in _layouts(devices, layers, reach)
        for tokens in reach.seq_lengths
    ]
    accepted = [candidate for candidate in every if _runs(candidate)]
    # A stride without a common factor with the sizes above, so that every one of them stays in the pool.
    stride = -(-len(accepted) // MOST_CANDIDATES)
    return tuple(accepted[:: stride | 1])


def _runs(candidate: Candidate) -> bool:
    try:
        return refused(TrainingJob.of(candidate.scenario, candidate.layout)) is None
    except SimulateError:
        return False


def _layouts(devices: int, layers: int, reach: Reach) -> Iterator[tuple[Layout, int]]:
    """Yield layouts of all devices with the sequences of a step."""
    ranks = range(1, devices + 1)
    splits = [(tensor, pipeline) for tensor, pipeline in product(ranks, ranks) if devices % (tensor * pipeline) == 0]
    for tensor, pipeline in splits:
        data = devices // (tensor * pipeline)
        for variant in _variants(layers, tensor, pipeline, data) if pipeline <= layers else ():
            for size, count in product(reach.micro_batch_sizes, reach.micro_batches):
                yield replace(variant, micro_batch_size=size), size * count * data


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


def reach(backend: str, model: str | None, folder: Path) -> Reach:
    """Return the sizes of launches: the user's model cut to a few layers, or shapes of three widths.

    A measured row names a shape by the file that `write_shapes` leaves in `folder`.
    """
    small = backend == "cpu"
    sizes: dict[str, Any] = {
        "layers": (2, 4, _DEEPEST),
        "seq_lengths": (128, 256, 512, 1024) if small else (2048, 4096, 8192, 16384),
    }
    if model is not None:
        spec = load_model(model)
        layers = tuple(count for count in sizes["layers"] if count <= spec.num_hidden_layers)
        return Reach(models=((model, spec),), **sizes | {"layers": layers or (spec.num_hidden_layers,)})
    named = [(str(_file(folder, document)), document) for document in _shapes(backend)]
    return Reach(models=tuple((name, validated(name, ModelSpec, document)) for name, document in named), **sizes)


def write_shapes(backend: str, folder: Path) -> None:
    """Write the specs of the shapes."""
    folder.mkdir(parents=True, exist_ok=True)
    for document in _shapes(backend):
        text = "# A shape that `simulate calibrate --probe` trains.\n" + yaml.safe_dump(document, sort_keys=False)
        _file(folder, document).write_text(text, encoding="utf-8")


def _file(folder: Path, document: Mapping[str, Any]) -> Path:
    return folder / f"{document['name']}.yaml"


def _shapes(backend: str) -> list[dict[str, Any]]:
    """Return dense decoders of three widths, the narrowest with heads of two widths."""
    small = backend == "cpu"
    widths, head, vocabulary = (_PROCESSOR_WIDTHS, 32, 2048) if small else (_ACCELERATOR_WIDTHS, 64, 32000)
    narrow = _shape(widths[0], head, vocabulary)
    return [narrow, *(_shape(width, 2 * head, vocabulary) for width in widths)]


def _shape(width: int, head: int, vocabulary: int) -> dict[str, Any]:
    return {
        "name": f"probe-{width}-{head}",
        "architecture": "llama",
        "num_hidden_layers": 2,
        "hidden_size": width,
        "intermediate_size": width * 11 // 4,
        "num_attention_heads": width // head,
        "num_key_value_heads": max(width // head // 2, 1),
        "head_dim": head,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits of a plan: launches and their time."""

    launches: int = 20
    start_seconds: float = 8.0
    """Time to start the ranks and to end them."""
    steps: int = 8
    """Steps of a launch, warm-up included."""
    longest_seconds: float = 30.0
    """Longest launch."""
    shortest_step_seconds: float = 0.08
    """Shortest step: shorter ones are mostly noise."""
    spread: float = 1.0
    """Factor on the priors' spreads in the fit that the launches are for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Launch of a plan."""

    candidate: Candidate
    step_seconds: float
    """Step time predicted before any launch."""
    launch_seconds: float
    """Expected time of the launch."""
    pins: tuple[str, ...]
    """Coefficients whose uncertainty it reduces markedly, most first, after the launches before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDesign:
    """Launches in order, and the uncertainty that they leave."""

    launches: tuple[Planned, ...]
    """Launches in order."""
    left: dict[str, float]
    """Share of its prior's standard deviation that is left of every fitted coefficient."""

    @property
    def seconds(self) -> float:
        """Expected seconds of all launches."""
        return sum(planned.launch_seconds for planned in self.launches)


@dataclass(frozen=True, slots=True)
class _Priced:
    candidate: Candidate
    seconds: float
    slopes: dict[CoefficientKind, Vector]
    """Slopes of the logarithm of the kind's figure by those of the coefficients."""


def plan(candidates: Sequence[Candidate], base: Coefficients, effort: Effort) -> ProbeDesign:
    """Return the chosen launches; candidates that do not fit, or last too long or too short, are passed over."""
    moved = {kind: names_of(kind, base, every=True) for kind in KINDS}
    names = {kind: listed for kind, listed in moved.items() if listed}
    kinds = tuple(names)
    priced = [launch for candidate in candidates if (launch := _priced(candidate, base, names, effort)) is not None]
    known = {kind: effort.spread**2 * _prior_covariance(kind, names[kind]) for kind in kinds}
    before = {kind: np.sqrt(np.diag(known[kind])) for kind in kinds}
    chosen: list[Planned] = []
    while priced and len(chosen) < effort.launches:
        gains = [_gain(launch, known) / _launch_seconds(launch.seconds, effort) for launch in priced]
        best = priced.pop(int(np.argmax(gains)))
        after = {kind: _updated(known[kind], best.slopes[kind], NOISE[kind]) for kind in kinds}
        chosen.append(
            Planned(
                candidate=best.candidate,
                step_seconds=best.seconds,
                launch_seconds=_launch_seconds(best.seconds, effort),
                pins=tuple(_pinned(names, known, after)),
            )
        )
        known = after
    left = {
        name: float(deviation)
        for kind in kinds
        for name, deviation in zip(names[kind], np.sqrt(np.diag(known[kind])) / before[kind], strict=True)
    }
    return ProbeDesign(launches=tuple(chosen), left=left)


def _launch_seconds(step: float, effort: Effort) -> float:
    return effort.start_seconds + effort.steps * step


def _priced(
    candidate: Candidate, base: Coefficients, moved: dict[CoefficientKind, tuple[str, ...]], effort: Effort
) -> _Priced | None:
    """Return step time and slopes of a candidate; None where it does not fit or lasts too long or too short."""
    scenario, block = candidate.scenario, block_of([candidate.layout])
    figures: dict[CoefficientKind, Vector] = {}
    for kind, names in moved.items():
        values = np.array([float(getattr(getattr(base, kind), name)) for name in names])
        # One column for `base`, and two for each coefficient, a step to either side.
        sides = np.exp(STEP * np.hstack([np.zeros((len(names), 1)), np.eye(len(names)), -np.eye(len(names))]))
        sets = replace(scenario, coefficients=replaced(base, kind, names, values[:, None] * sides))
        several = Pricing(sets, block.take(np.zeros(sides.shape[1], dtype=np.intp)))
        memory = memory_by_stage(several)
        if kind == "memory":
            figures[kind] = np.asarray(np.max(memory.device, axis=0))
            continue
        figures[kind] = step_seconds(several, memory).total
        fullness = np.max(memory.need[:, :1] / usable_bytes(scenario, memory.contents), axis=0)
        if verdicts(scenario, fullness)[0] != FITS:
            return None
    seconds = float(figures["time"][0])
    if seconds < effort.shortest_step_seconds or _launch_seconds(seconds, effort) > effort.longest_seconds:
        return None
    return _Priced(candidate, seconds, {kind: _slopes(figure) for kind, figure in figures.items()})


def _slopes(figures: Vector) -> Vector:
    count = (len(figures) - 1) // 2
    return np.asarray(np.log(figures[1 : count + 1] / figures[count + 1 :]) / (2.0 * STEP))


def _prior_covariance(kind: CoefficientKind, names: Sequence[str]) -> Matrix:
    known = priors(kind)
    return np.diag([known[name].spread ** 2 for name in names])


def _gain(launch: _Priced, known: dict[CoefficientKind, Matrix]) -> float:
    return sum(
        float(np.log1p(slopes @ known[kind] @ slopes / NOISE[kind] ** 2)) for kind, slopes in launch.slopes.items()
    )


def _updated(covariance: Matrix, slopes: Vector, noise: float) -> Matrix:
    """Return the covariance after one more launch (Sherman and Morrison)."""
    reach = covariance @ slopes
    return np.asarray(covariance - np.outer(reach, reach) / (noise**2 + slopes @ reach))


def _pinned(
    names: dict[CoefficientKind, tuple[str, ...]],
    before: dict[CoefficientKind, Matrix],
    after: dict[CoefficientKind, Matrix],
) -> list[str]:
    deviations = [
        (float(np.sqrt(after[kind][i, i] / before[kind][i, i])), name)
        for kind, listed in names.items()
        for i, name in enumerate(listed)
    ]
    return [name for left, name in sorted(deviations) if left <= PINNED]
