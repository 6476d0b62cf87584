"""Explanation of one layout's memory: its causes, the smallest changes that make it pass, its longest sequence."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, groupby
from types import MappingProxyType
from typing import Any

import numpy as np

from simulator.answers.cases import Case, case_of
from simulator.answers.gates import CheckOutcome, Gates
from simulator.answers.lengths import largest
from simulator.answers.memories import hardware_meant
from simulator.answers.ranking import estimate_of, query_of
from simulator.answers.rules import Mark, findings
from simulator.answers.run import remedy_options
from simulator.cost.derived import pricing_of
from simulator.cost.memory.state import shard_degrees
from simulator.cost.pricing.estimate import Estimate, StageMemory
from simulator.errors import SimulateError
from simulator.question.frameworks.stacks import DEFAULT, METHOD_FRAMEWORK, lacking
from simulator.question.origin import OPTION, Input
from simulator.question.question import SEARCH, Question
from simulator.question.scenario.inputs import MOST_TOKENS
from simulator.question.scenario.layout import default_cut
from simulator.question.scenario.scenario import Scenario
from simulator.question.units import to_gib
from simulator.records import NamedTuple, Record, replace
from simulator.search.alternatives import absent_sizes, methods, remedies
from simulator.search.build import estimate_layout, fitting_estimates, with_intervals
from simulator.search.space import divisors
from simulator.tabular import Tabular

MOST_SHOWN, MOST_WIDER = 5, 2
"""Most sets of changes shown, on the same devices and on more."""
_MOST_JUDGED = 16  # changes of an open run that are priced over all that is open
_LIKELIER = 0.001  # least gain of the probability to fit
_LARGEST_STEP = 4  # number of doublings of a size that are tried, the size itself included


class Change(Record, kw_only=True):
    """A set of changes with which the recipe fits."""

    options: tuple[str, ...]
    """Options as on the command line, such as `--recompute full`."""
    estimate: Estimate
    """Estimate of the recipe with the changes."""
    speed_ratio: float
    """Tokens per second and device, relative to the unchanged recipe as if it fit."""
    case: Case
    """The changed recipe as a question."""
    axes: frozenset[str] = frozenset()
    """Kinds of the changes."""
    patch: str = ""
    """Unified diff that makes the changes; empty unless requested and possible."""

    @property
    def text(self) -> str:
        """The options on one line."""
        return " ".join(self.options)


class _Try(NamedTuple):
    """A candidate: the added options, and the recipe's question with them."""

    options: tuple[str, ...]
    case: Case
    axes: frozenset[str]


def changes_for(case: Case, base: Estimate, marks: frozenset[Mark], gates: Gates) -> tuple[Change, ...]:
    """Return the smallest sets of changes with which the recipe passes: on the same devices, then on more.

    Sets of one change; if none passes, sets of two; else sets of three with full recompute among them; then shorter
    sequences of a tuner; without a recipe, methods that need less (`search.alternatives.methods`) follow. Of each kind
    the fastest, in their order; a tuner's by what they save. More devices are not tried where a single change suffices
    and memory is not what fails.
    """
    start, is_open = _Try((), case, frozenset()), base.open is not None or len(hardware_meant(case.question)) > 1
    tunes, likely = bool(absent_sizes(case.scenario, case.question)), -math.inf
    if base.memory.fits and base.memory.undecided and not gates.broken(base):
        likely = base.memory.fit_probability or 0.0  # where a run decides, what is no likelier is no remedy

    def best(stages: Iterable[Iterable[_Try]], limit: int, smaller: Sequence[Change] = ()) -> list[Change]:
        """Return what passes in the first stage where something does, less than what `smaller` ones do."""
        known = [_first_words(each.options) for each in smaller]
        new = ((x for x in stage if not any(each < _first_words(x.options) for each in known)) for stage in stages)
        fitting = (_fitting(base, marks, gates, _distinct(stage)) for stage in new)
        passing = next(filter(None, (_best(each, limit, gates, likely, is_open=is_open) for each in fitting)), [])
        return sorted(passing, key=lambda x: x.estimate.memory.device_bytes if tunes else -x.speed_ratio)

    singles = list(_single(start, marks))
    alone = best([singles], MOST_SHOWN)
    changes = alone or best(_stages(start, singles, marks), MOST_SHOWN)
    enough = bool(alone) and base.memory.fits and not gates.broken(base)
    wider = [] if case.question.has_groups or enough else _wider(start, marks)
    return (*changes, *best(wider, MOST_WIDER, changes))


def _wider(start: _Try, marks: frozenset[Mark]) -> Iterator[Iterable[_Try]]:
    """Yield sets of changes on the fewest devices first: more are tried where nothing passes."""
    sizes = [list(each) for _, each in groupby(_nodes(start), key=lambda tried: tried.case.scenario.devices)]
    yield from sizes
    pairs = []
    for each in sizes:
        pairs.append(list(_further(each, 2, marks)))
        yield pairs[-1]
    for each in pairs:
        yield _further((x for x in each if "recompute" in x.axes), 3, marks)


def _first_words(options: Iterable[str]) -> set[str]:
    """Return each change without the options that follow from it."""
    return {option.split(" --")[0] for option in options}


def _stages(start: _Try, singles: list[_Try], marks: frozenset[Mark]) -> Iterator[Iterable[_Try]]:
    """Yield larger sets of changes on the same devices, each kind if nothing of those before passes."""
    pairs = list(_further(singles, 2, marks))
    yield pairs
    recomputed = (x for x in pairs if "recompute" in x.axes)
    yield _further((x for x in recomputed if x.case.layout.recompute_method == "uniform"), 3, marks)
    case = start.case
    if absent_sizes(case.scenario, case.question):
        parts = (2, 4, 8) if {"seq_length", "lengths"}.isdisjoint(case.question.inputs) else ()
        lengths = [case.scenario.seq_length // part for part in parts]
        shorter = (_with(start, "length", f"--seq-length {each}", {}, {"seq_length": each}) for each in lengths)
        yield from _deepening(list(chain.from_iterable(shorter)), 4, marks)
    elif case.question.recipe is None:
        yield from _deepening(list(_methods(start)), 2, marks)


def _deepening(candidates: list[_Try], most: int, marks: frozenset[Mark]) -> Iterator[list[_Try]]:
    """Yield the candidates, then those with one more change each, up to `most` changes."""
    for changes in range(2, most + 1):
        yield candidates
        candidates = _distinct(_further(candidates, changes, marks))
    yield candidates


def _further(candidates: Iterable[_Try], changes: int, marks: frozenset[Mark]) -> Iterator[_Try]:
    """Yield every candidate with one more change."""
    for first in candidates:
        yield from (second for second in _single(first, marks) if len(second.options) == changes)


def _best(changes: Iterable[Change], limit: int, gates: Gates, likely: float, *, is_open: bool) -> list[Change]:
    """Return the fastest of each kind of change, fastest first; of an open run those that fit whatever is open."""
    fastest: dict[frozenset[str], Change] = {}
    ordered = sorted(changes, key=lambda change: (-change.speed_ratio, change.options))
    if is_open:  # of each kind the fastest, then the leanest
        lean = sorted(ordered, key=lambda change: change.estimate.memory.device_bytes)
        firsts = [{change.axes: change for change in reversed(each)} for each in (ordered, lean)]
        ordered = [each[axes] for axes in dict.fromkeys(x.axes for x in lean) for each in firsts][:_MOST_JUDGED]
    for change in ordered:
        if len(fastest) == limit:
            break
        if change.axes not in fastest:
            bare, case = change.estimate, change.case
            judged = estimate_of(case, in_short="depends") if is_open else with_intervals(case.scenario, [bare])[0]
            chance = math.inf if judged.memory.fit_probability is None else judged.memory.fit_probability
            if (not is_open or passes(judged, gates)) and chance > likely + _LIKELIER:
                fastest[change.axes] = replace(change, estimate=judged)
    return list(fastest.values())


def _distinct(candidates: Iterable[_Try]) -> list[_Try]:
    """Return each set of changes once, in its shortest wording."""
    by_need: dict[Any, _Try] = {}
    for candidate in candidates:
        key = (candidate.case.layout, *_question(candidate.case.scenario))
        by_need[key] = min(by_need.get(key, candidate), candidate, key=lambda tried: len(" ".join(tried.options)))
    return list(by_need.values())


def _question(scenario: Scenario) -> tuple[object, ...]:
    """Return what a change of a scenario may change."""
    batch = scenario.global_batch_size, scenario.seq_length
    return (scenario.framework, scenario.model, scenario.lora_rank, scenario.devices, *batch)


def _fitting(base: Estimate, marks: frozenset[Mark], gates: Gates, candidates: Iterable[_Try]) -> Iterator[Change]:
    for (options, case, axes), bare in _within_memory(candidates):
        if not bare.memory.fits or findings(case.launch(marks), ()):
            continue
        # Intervals are costly: without this gate only shown changes get them.
        estimate = bare if gates.min_fit_probability is None else with_intervals(case.scenario, [bare])[0]
        if not gates.broken(estimate):
            ratio = estimate.throughput.tokens_per_second_per_device / base.throughput.tokens_per_second_per_device
            yield Change(options=options, estimate=estimate, speed_ratio=ratio, case=case, axes=axes)


def _within_memory(candidates: Iterable[_Try]) -> Iterator[tuple[_Try, Estimate]]:
    """Yield the candidates that break no rule and fit, with their estimates; skip those that raise."""
    together: dict[Any, list[_Try]] = {}
    for candidate in candidates:
        together.setdefault(_question(candidate.case.scenario), []).append(candidate)
    for members in together.values():
        try:
            yield from _priced(members)
        except SimulateError:
            for member in members:
                with suppress(SimulateError):
                    yield from _priced([member])


def _priced(members: list[_Try]) -> list[tuple[_Try, Estimate]]:
    """Return the candidates of one question that break no rule and fit, with their estimates."""
    layouts = [member.case.layout for member in members]
    estimates = fitting_estimates(members[0].case.scenario, layouts)
    return [(members[position], estimates[position]) for position in sorted(estimates)]


def _single(start: _Try, marks: frozenset[Mark]) -> Iterator[_Try]:
    """Yield the candidates one change away, on the same devices."""
    scenario, layout = start.case.scenario, start.case.layout
    has_them = scenario.framework.name in _TORCH_ALLOCATOR and scenario.hardware.vendor != "Iluvatar"
    if has_them and not scenario.framework.expandable_segments:
        switch = {"expandable_segments": "true"}
        yield from _with(start, "allocator", "--option expandable_segments=true", {}, switches=switch)
    yield from _recompute(start)
    yield from _offload(start, marks)
    size, question, batch = layout.micro_batch_size, start.case.question, scenario.global_batch_size
    for smaller in reversed(divisors(size, size - 1)):
        option, fields = f"--micro-batch-size {smaller}", {"micro_batch_size": smaller}
        yield from _with(start, "micro_batch", option, fields)
        if question.recipe is not None and question.stated("global_batch_size") is None:  # with more accumulation
            more = f"{option} --global-batch-size {batch}"
            yield from _with(start, "micro_batch", more, fields, {"global_batch_size": batch})
    yield from _sizes(start)
    ranks, model = layout.tensor_parallel * layout.context_parallel * layout.data_parallel, scenario.model
    for experts in divisors(model.num_experts, model.num_experts) if model.is_moe else ():
        if experts > layout.expert_parallel and ranks % (experts * layout.expert_tensor_parallel) == 0:
            yield from _with(start, "experts", f"--ep {experts}", {"expert_parallel": experts})
    for stage in (1, 2, 3) if layout.data_parallel * layout.context_parallel > 1 else ():  # one device shards nothing
        if stage != layout.zero_stage:
            yield from _with(start, "zero", f"--zero-stage {stage}", {"zero_stage": stage})
    yield from _chunks(start)
    if absent_sizes(scenario, start.case.question):
        yield from _methods(start)


def _with(  # noqa: PLR0913  what an option may change
    start: _Try,
    axis: str | tuple[str, ...],
    option: str,
    layout: Mapping[str, Any],
    inputs: Mapping[str, Any] | None = None,
    *,
    switches: Mapping[str, str] | None = None,
) -> Iterator[_Try]:
    """Yield the candidate with one more option, unless that kind of change was made or cannot be priced."""
    axes, lacks = {axis} if isinstance(axis, str) else set(axis), absent_sizes(start.case.scenario, start.case.question)
    if axes & start.axes or any(name in lacks and getattr(start.case.layout, name) == 1 for name in layout):
        return
    change = Question(
        inputs={name: Input(value, OPTION) for name, value in (inputs or {}).items()},
        layout={name: Input(value, OPTION) for name, value in layout.items()},
        switches={name: Input(text, OPTION) for name, text in (switches or {}).items()},
    )
    with suppress(SimulateError):
        case = case_of(change.over(start.case.question), start.case)
        if isinstance(case, Case):
            yield _Try((*start.options, option), case, start.axes | axes)


_TORCH_ALLOCATOR = ("megatron", "torch")  # frameworks that run on PyTorch


def _recompute(start: _Try) -> Iterator[_Try]:
    """Yield full recompute of every layer, or of a share of each chunk's layers."""
    layout = start.case.layout
    if layout.recompute == "full" and layout.recompute_method == "uniform":
        return
    full: dict[str, Any] = {"recompute": "full"}
    yield from _with(start, "recompute", "--recompute full", full)
    if layout.recompute_method != "uniform" or layout.recompute_layers != 1:
        option = "--recompute full --recompute-method uniform --recompute-layers 1"
        yield from _with(start, "recompute", option, full | {"recompute_method": "uniform", "recompute_layers": 1})
    if start.case.scenario.framework.name != "megatron":
        return
    per_chunk = max(max(layout.stage_layers) // layout.virtual_stages, 1)
    for layers in sorted({max(per_chunk * share // 4, 1) for share in (1, 2, 3)} - {per_chunk}):
        option = f"--recompute full --recompute-method block --recompute-layers {layers}"
        yield from _with(start, "recompute", option, full | {"recompute_method": "block", "recompute_layers": layers})


def _offload(start: _Try, marks: frozenset[Mark]) -> Iterator[_Try]:
    """Yield the kinds of offload that the framework has, some only in its later versions."""
    present = start.case.layout.offload
    if present == "activations":
        yield from _with(start, "offload", "--offload none", {"offload": "none"})
    if start.case.question.recipe is None or not _offloads_optimizer(start.case, marks):
        return
    for kind in start.case.scenario.framework.limits.offloads:
        if present != kind and not (kind == "optimizer" and present != "none"):
            yield from _with(start, "offload", f"--offload {kind}", {"offload": kind})


def _offloads_optimizer(case: Case, marks: frozenset[Mark]) -> bool:
    """Whether the launch's framework may have flags to offload the optimizer.

    Megatron: NVIDIA's own from Megatron-core 0.12 on. Paddle: ERNIEKit and PaddleFormers; PaddleNLP 2.8.1 has none.
    """
    launch, vendor = case.launch(marks), case.scenario.hardware.vendor
    if launch.flag(*_OFFLOAD_FLAGS) is not None:
        return True
    if case.scenario.framework.name == "paddle":
        late = launch.flag("tensor-model-parallel-size", "fine-tuning", "stage") is not None
        return late or case.scenario.model.architecture.startswith("ernie")
    return (
        case.recipe.dialect == "megatron-shell" and "megatron-before-0.12" not in marks and vendor not in _OWN_MEGATRON
    )


_OFFLOAD_FLAGS = (
    *("optimizer-cpu-offload", "use-precision-aware-optimizer"),
    *("offload-optim", "tensorwise-offload-optimizer"),
)


_OWN_MEGATRON = ("Huawei", "Iluvatar")  # vendors whose devices run forks of Megatron with flags of their own


def _methods(start: _Try) -> Iterator[_Try]:
    """Yield the methods that need less on the same devices, each a kind of change of its own."""
    case = start.case
    for method in methods(case.scenario, case.question, (case.layout.offload,)):
        brings = {} if method.stack is None else {"stack": method.stack}
        absent = any(getattr(case.layout, size) > 1 for size in lacking(method.stack or DEFAULT))
        if absent or (brings and case.scenario.framework.name != METHOD_FRAMEWORK):
            continue
        layout = {} if method.offload is None else {"offload": method.offload}
        adapters = brings | ({} if method.lora_rank is None else {"lora_rank": method.lora_rank})
        axes = (method.option, "method" if method.offload is None and "--option" not in method.option else "offload")
        yield from _with(start, axes, method.option, layout, adapters, switches=method.switches)


_SIZES = (("tensor_parallel", "--tp"), ("context_parallel", "--cp"), ("pipeline_parallel", "--pp"))


def _sizes(start: _Try) -> Iterator[_Try]:
    """Yield other tensor, context and pipeline parallel sizes on the same devices."""
    layout, scenario = start.case.layout, start.case.scenario
    node = min(hardware.devices_per_node for hardware in scenario.kinds_of_device)
    for field, option in _SIZES:
        size = getattr(layout, field)
        above = (size * 2**n for n in range(1, _LARGEST_STEP) if 2**n <= layout.data_parallel)
        for other in (*above, *divisors(size, size - 1)):
            replica = layout.devices // layout.data_parallel // size * other
            if scenario.devices % replica or (field == "tensor_parallel" and other > node):
                continue
            if field == "pipeline_parallel":
                yield from _pipelines(start, other, scenario.devices // replica)
            else:
                more, fields = _data_parallel(start, scenario.devices // replica)
                yield from _with(start, field, f"{option} {other}{more}", {field: other} | fields)


def _data_parallel(start: _Try, size: int) -> tuple[str, dict[str, Any]]:
    """Return option and field of data parallelism where the user set it; else it follows from the devices."""
    if not start.case.question.by_user("data_parallel"):
        return "", {}
    return f" --dp {size}", {"data_parallel": size}


def _pipelines(
    start: _Try, size: int, data_parallel: int, devices: str = "", inputs: Mapping[str, int] = MappingProxyType({})
) -> Iterator[_Try]:
    """Yield another pipeline size, with the recipe's chunks and without; `devices` asks for others, as `inputs` do."""
    layers = start.case.scenario.model.num_hidden_layers
    if size > layers:
        return
    more, fields = _data_parallel(start, data_parallel)
    fields["pipeline_parallel"] = size
    axes = ("nodes", "pipeline_parallel") if devices else ("pipeline_parallel",)
    option = f"{devices} --pp {size}{more}".lstrip()
    # Megatron needs to know which stages have fewer layers.
    uneven = start.case.scenario.framework.name == "megatron" and layers % size > 0
    if uneven or start.case.question.by_user("stage_layers"):
        fields["stage_layers"] = default_cut(layers, size)
        option += f" --stage-layers {','.join(map(str, fields['stage_layers']))}"
    yield from _with(start, axes, option, fields, inputs)
    if start.case.layout.virtual_stages > 1 and size > 1:
        yield from _with(start, (*axes, "chunks"), f"{option} --vpp 1", fields | {"virtual_stages": 1}, inputs)


def _chunks(start: _Try) -> Iterator[_Try]:
    layout = start.case.layout
    if layout.virtual_stages > 1:
        per_rank = layout.stage_layers[0]
        for count in (1, *divisors(per_rank, per_rank - 1)[1:]):
            if count != layout.virtual_stages:
                yield from _with(start, "chunks", f"--vpp {count}", {"virtual_stages": count})


def _nodes(start: _Try) -> Iterator[_Try]:
    """Yield twice as many devices and more, as more replicas or as a longer pipeline."""
    scenario, layout, question = start.case.scenario, start.case.layout, start.case.question
    per_node = (question.recipe and question.recipe.devices_per_node) or scenario.hardware.devices_per_node
    counted = scenario.devices < per_node if question.recipe else "devices" in question.inputs
    present = scenario.devices if counted else max(scenario.devices // per_node, 1)
    for factor in (2, 4, 8, 16):
        unit, size = "devices" if counted else "nodes", present * factor
        replicas = size * (1 if counted else per_node) * layout.data_parallel // layout.devices
        more, fields = _data_parallel(start, replicas)
        option, inputs = f"--{unit} {size}", {unit: size}
        yield from _with(start, "nodes", f"{option}{more}", fields, inputs)
        yield from _pipelines(start, layout.pipeline_parallel * factor, max(replicas // factor, 1), option, inputs)


_WORTH_TELLING = 0.05  # least share of a device's need of a part that is a cause
_UNEVEN = 1.15  # least ratio of the fullest rank's need to the emptiest's that is a cause


class Explanation(Tabular, Record, kw_only=True):
    """An estimate, why it needs its memory, and what would help."""

    estimate: Estimate
    """Estimate of the layout."""
    causes: tuple[str, ...]
    """Causes of the fullest rank's need, the heaviest part first; one sentence each."""
    changes: tuple[Change, ...]
    """Smallest changes after which a failing layout passes, the fastest first."""
    longest_sequence: int | None
    """Tokens of the longest sequence with which this layout passes; None where none does."""
    largest_micro_batch: int | None = None
    """Sequences of the largest micro batch with which it passes, of those that divide a replica's; None where none."""
    min_fit_probability: float | None = None
    """Least probability to fit that passes; None without a calibration, or if 0 was asked for."""
    outcome: CheckOutcome | None = None
    """Outcome of `check` where bounds of a recipe, such as the longest sample, decide; None where the verdict is it."""
    bounds: tuple[str, ...] = ()
    """Bounds that decide, one sentence each with the need by both readings."""

    @property
    def passes(self) -> bool:
        """Whether the layout fits with the probability that passes."""
        return passes(self.estimate, Gates(min_fit_probability=self.min_fit_probability))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each change that helps: its options, and memory and speed with it."""
        return [
            {
                "options": change.text,
                "device_bytes": change.estimate.memory.device_bytes,
                "fit_probability": change.estimate.memory.fit_probability,
                "step_seconds": change.estimate.throughput.step_seconds,
                "speed_ratio": change.speed_ratio,
            }
            for change in self.changes
        ]

    def __repr__(self) -> str:
        """Return one line: the layout, the number of causes and of changes that help."""
        return f"<Explanation of {self.estimate!r}: {len(self.causes)} causes, {len(self.changes)} changes help>"


def explain(case: Case, min_fit_probability: float) -> Explanation:
    """Explain a case; with a calibration, passing takes a probability to fit of `min_fit_probability`."""
    estimate, scenario, layout = estimate_of(case), case.scenario, case.layout
    known = estimate.memory.fit_probability is not None
    gates = Gates(min_fit_probability=min_fit_probability if known and min_fit_probability > 0 else None)
    unit = math.lcm(2 * layout.context_parallel, layout.tensor_parallel)
    unit *= max(1, 128 // unit)
    lengths, sequences = range(unit, MOST_TOKENS + 1, unit), scenario.global_batch_size // layout.data_parallel
    sizes = divisors(sequences, sequences)
    return Explanation(
        estimate=estimate,
        causes=tuple(causes(case, estimate)),
        changes=() if passes(estimate, gates) else tuple(_changes(case, estimate, gates)),
        longest_sequence=_most(lengths, lambda tokens: replace(case, scenario=scenario.of_length(tokens)), gates),
        largest_micro_batch=_most(
            sizes, lambda size: replace(case, layout=replace(layout, micro_batch_size=size)), gates
        ),
        min_fit_probability=gates.min_fit_probability,
    )


def _changes(case: Case, estimate: Estimate, gates: Gates) -> Iterator[Change]:
    """Yield what would help: changes of a layout that was said, else the remedies of a ranking, with their layout."""
    if not case.question.layout_is_searched:
        yield from changes_for(case, estimate, frozenset(), gates)
        return
    question, speed = case.question.without(SEARCH), estimate.throughput.tokens_per_second_per_device
    every = remedies(query_of(question, min_fit_probability=gates.min_fit_probability or 0.0))
    for remedy in (each for each in every if passes(each.estimate, gates)):
        options = remedy_options(remedy, question, has_experts=case.scenario.model.is_moe)
        ratio = remedy.estimate.throughput.tokens_per_second_per_device / speed
        yield Change(options=options, estimate=remedy.estimate, speed_ratio=ratio, case=case)


def passes(estimate: Estimate, gates: Gates) -> bool:
    """Return whether an estimate fits and breaks no gate."""
    return estimate.verdict == "fits" and not gates.broken(estimate) and not gates.unsaid(estimate)


def causes(case: Case, estimate: Estimate) -> Iterator[str]:
    """Yield causes of the fullest rank's need, the heaviest part first."""
    stages = estimate.memory.stages
    fullest = stages[estimate.memory.binding_stage]
    reasons = {
        "parameters": _parameters,
        "gradients": _gradients,
        "optimizer": _optimizer,
        "activations": _activations,
        "logits": _logits,
    }
    parts = sorted(fullest.parts_bytes.items(), key=lambda part: -part[1])
    for name, size in parts:
        if size >= _WORTH_TELLING * fullest.device_bytes and name in reasons:
            yield from reasons[name](case, fullest, f"{to_gib(size):.1f} GiB")
    emptiest = min(stages, key=lambda stage: stage.device_bytes)
    if fullest.device_bytes > _UNEVEN * emptiest.device_bytes:
        yield (
            f"rank {fullest.stage} needs {to_gib(fullest.device_bytes):.1f} GiB, rank {emptiest.stage} "
            f"{to_gib(emptiest.device_bytes):.1f}: --stage-layers or --vpp moves load"
        )


def _shards(case: Case) -> tuple[int, int]:
    """Return over how many devices ZeRO shards: of weights, and of experts."""
    weights, experts = shard_degrees(pricing_of(case.scenario, case.layout))
    return int(np.max(weights)), int(np.max(experts))


def _parameters(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    layout, model, (shards, of_experts) = case.layout, case.scenario.model, _shards(case)
    if layout.zero_stage >= 3 and shards > 1:
        where = " on the hosts" if case.scenario.framework.offload_parameters else ""
        yield f"ZeRO 3 shards the parameters over {shards} devices{where} and gathers them in turn: {size}"
    elif layout.tensor_parallel * layout.pipeline_parallel == 1:
        yield f"every device holds all parameters: {size}"
    else:
        shared = f"TP {layout.tensor_parallel} and PP {layout.pipeline_parallel}"
        whole = "DP 1" if layout.zero_stage >= 3 else f"ZeRO {layout.zero_stage}"
        yield f"{shared} split the parameters, {whole} does not: {size} for {stage.layers} layers"
    if model.is_moe and layout.expert_parallel == 1:
        split = layout.expert_tensor_parallel
        experts = f"{'all' if split == 1 else f'1/{split} of each of the'} {model.num_experts} experts"
        gathers = layout.zero_stage >= 3 and of_experts > 1
        does = f"gathers {experts} of a layer" if gathers else f"of a stage holds {experts}"
        yield f"EP is 1, so every device {does}"


def _gradients(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    layout, profile = case.layout, case.scenario.framework
    alone = _shards(case)[0] == 1
    if profile.step_in_backward:
        yield f"weights are updated in the backward pass, and gradients of one layer are alive: {size}"
    elif layout.zero_stage < 2 or alone:
        trained = "all" if case.scenario.lora_rank is None else "adapters in all"
        every = f"gradients of {trained} {stage.layers} layers of the stage, in {profile.gradient_dtype}"
        yield f"ZeRO {layout.zero_stage}{' over one device' if layout.zero_stage > 1 else ''} keeps {every}: {size}"
    several = case.scenario.global_batch_size > layout.micro_batch_size * layout.data_parallel > 1
    if layout.zero_stage >= 2 and profile.fully_shard and profile.plain_module > profile.sync_each_batch and several:
        yield f"gradients add up whole until the step, but with --option sync_each_batch=true: {size}"


def _optimizer(case: Case, _stage: StageMemory, size: str) -> Iterator[str]:
    layout = case.layout
    replicas, shards = layout.data_parallel * layout.context_parallel, _shards(case)[0]
    if layout.offload.startswith("optimizer"):
        yield f"--offload {layout.offload} leaves {size} of the optimizer on the device"
    elif replicas == 1:
        yield f"DP is 1, so nothing shards the optimizer: {size}"
    elif layout.zero_stage == 0:
        yield f"ZeRO is 0, so each of {replicas} replicas holds the whole optimizer: {size}"
    else:
        among = f"{shards} of {replicas}" if shards < replicas else f"{replicas}"
        yield f"ZeRO {layout.zero_stage} shards the optimizer over {among} replicas: {size}"


def _activations(case: Case, stage: StageMemory, size: str) -> Iterator[str]:
    layout, scenario = case.layout, case.scenario
    first = layout.pipeline_parallel > 1 and stage.stage == 0
    flying = f" of up to {layout.pipeline_parallel} micro batches in flight" if first else ""
    length = f"{scenario.seq_length // layout.context_parallel} tokens"
    batch = f"micro batches of {layout.micro_batch_size} x {length}"
    if layout.offload == "activations":
        yield f"--offload activations leaves activations{flying} on the device, {batch}: {size}"
    elif layout.recompute == "none":
        yield f"nothing is recomputed, so the activations{flying} stay, {batch}: {size}"
    else:
        yield f"recompute {layout.recompute} leaves activations{flying}, {batch}: {size}"
    if layout.tensor_parallel > 1 and not layout.sequence_parallel:
        yield f"sequence parallelism is off, so each of {layout.tensor_parallel} TP ranks holds the same norms' inputs"


def _logits(case: Case, _stage: StageMemory, size: str) -> Iterator[str]:
    words, profile = f"the logits of {case.scenario.model.vocab_size:,} words", case.scenario.framework
    words += f", split by TP {case.layout.tensor_parallel}" if case.layout.tensor_parallel > 1 else ""
    tokens, mib, chunks = profile.cross_entropy_chunk_tokens, profile.cross_entropy_chunk_mib, profile.loss_chunks
    part = f"at most {mib:,} MiB of fp32" if mib else f"{tokens} tokens"
    at_once = f", {part} at a time" if tokens else f", in {chunks} chunks" if chunks else ""
    yield f"the last stage holds {words}{at_once}: {size}"


def _most(values: Sequence[int], changed: Callable[[int], Case], gates: Gates) -> int | None:
    """Return the last of ascending values with which a case passes; None for none. What is refused does not pass."""

    def fits(count: int) -> bool:
        with suppress(SimulateError):
            case = changed(values[count - 1])
            # What is open only adds needs that may not fit, and costs up to twenty prices.
            alone = estimate_layout(case.scenario, case.layout)
            return passes(alone, gates) and passes(estimate_of(case, in_short="fits"), gates)
        return False

    most = largest(fits, len(values))
    return values[most - 1] if most else None
