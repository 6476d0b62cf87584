"""Alternatives to a ranking: another precision or stack, changes that would make something fit, the fewest nodes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

from simulator.cost.derived import Pricing
from simulator.cost.pricing.estimate import AssumedSwitch, Estimate, Violation
from simulator.cost.pricing.price import Priced, price
from simulator.errors import InputError
from simulator.late import deferred, late_pattern
from simulator.question.frameworks.profile import acts_beside, merges_experts
from simulator.question.frameworks.stacks import (
    ADAPTER_STACK,
    DEFAULT,
    METHOD_FRAMEWORK,
    OFFLOAD_STACK,
    decided_by,
    lacking,
    of_code,
    set_by_stacks,
    suggested,
    usual_rank,
    with_usual_adapters,
)
from simulator.question.frameworks.stacks import framework as framework_profile
from simulator.question.question import SEARCH, Question, usual_workload
from simulator.question.scenario.inputs import MOST_DEVICES, check_count
from simulator.question.scenario.layout import SPLIT, Layout
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.names import clusters_meant, names_in
from simulator.question.units import DAY_SECONDS
from simulator.question.vocabulary import NARROW, Offload, StackName
from simulator.records import NamedTuple, replace
from simulator.search.build import estimates_of, verdict_of
from simulator.search.rank import OpenSearch, Progress, SearchResult, best_of, least_devices
from simulator.search.rules import ACROSS_NODES, RULES
from simulator.search.space import FewestNodes, NodeCount, PricedLayout, Query, Remedy, Space, StackBest, candidates

MOST_NODES = 1024
"""Default limit of a search for nodes."""
_Answer = TypeVar("_Answer")
_AUTO = late_pattern(r"auto(?::([0-9]{1,7}))?")
_IN_A_DOUBLING = 32  # numbers of nodes tried in each doubling above 64


def most_nodes(nodes: object) -> int | None:
    """Return the node limit of `auto` or `auto:256`; None for any other value. Raises InputError."""
    match = _AUTO.fullmatch(nodes) if isinstance(nodes, str) else None
    if match is None:
        return None
    most = int(match[1] or MOST_NODES)
    check_count("nodes auto", most)
    return most


def node_counts(low: int, most: int) -> Iterator[int]:
    """Yield every number of nodes from `low` to 64, above it 32 in each doubling, and `most`."""
    nodes = low
    while nodes < most:
        yield nodes
        step = max(2 ** (nodes.bit_length() - 1) // _IN_A_DOUBLING, 1)
        nodes += step - nodes % step
    if low <= most:
        yield most


def doubled(low: int, most: int) -> Iterator[int]:
    """Yield `low` and its doublings up to `most`."""
    while low <= most:
        yield low
        low *= 2


def fewest_of(rungs: Iterable[int], best: Callable[[int], _Answer | None], below: int = 0) -> _Answer | None:
    """Return the answer of the fewest counts above `below` that has one; None where no rung has.

    Ascending `rungs` are tried, then all counts under the first with an answer: what divides 6 need not divide 4.
    """
    tried: set[int] = set()
    for rung in rungs:
        answer = best(rung)
        if answer is not None:
            fewer = (best(count) for count in node_counts(below + 1, rung - 1) if count not in tried)
            return next((each for each in fewer if each is not None), answer)
        tried.add(rung)
    return None


def on_nodes(query: Query, nodes: int) -> Query:
    """Return the question on a number of whole nodes."""
    scenario = replace(query.scenario, devices=nodes * query.scenario.hardware.devices_per_node)
    return replace(query, scenario=scenario, question=query.question.changed(SEARCH, nodes=nodes))


def fewest_nodes(
    query: Query, most: int, train_tokens: int | None, deadline_days: float | None, progress: Progress | None = None
) -> FewestNodes:
    """Search the fewest nodes, up to `most`, with a recommended layout that trains in time.

    A number is tried even if a smaller one failed, as what divides 28 nodes need not divide 30; with a deadline, those
    that would have to exceed the peak are skipped. Raises InputError for a deadline without tokens, or for several
    kinds of hardware.
    """
    if query.scenario.groups:
        raise InputError(f"hardware {query.scenario.hardware_name}: nodes are searched for one kind of device")
    within = _most_step_seconds(query, train_tokens, deadline_days)
    fitting: int | None = None
    low, counts, nearest, needed = 1, list(node_counts(1, most)), most, least_devices(query)
    for position, nodes in enumerate(counts):
        if progress is not None:
            progress(position, len(counts))
        sized = on_nodes(query, nodes)
        if nodes < low:
            continue
        below = math.inf if fitting is None else within
        best = best_of(sized, below=below) if sized.scenario.devices >= needed else None
        if fitting is None and best is not None:
            fitting, low = nodes, math.ceil(nodes * _peak_ratio(best, within))
        if best is not None and best.step_seconds <= within:
            if progress is not None:
                progress(len(counts), len(counts))
            return FewestNodes(nodes, nodes, fitting, most, deadline_days, tuple(_larger(query, best, most)))
        if best is None and candidates(sized.scenario, sized.space):
            nearest = nodes
    if fitting is not None:  # the largest is the fastest, or close to it
        nearest = next(nodes for nodes in reversed(counts) if best_of(on_nodes(query, nodes)) is not None)
    return FewestNodes(None, nearest, fitting, most, deadline_days)


_SIZES = 5  # numbers of nodes that are shown, the fewest first


def _larger(query: Query, fewest: PricedLayout, most: int) -> Iterator[NodeCount]:
    """Yield the nodes of a layout and the powers of two above, up to `most`, each with its fastest layout that fits."""
    per_node = query.scenario.hardware.devices_per_node
    nodes, best = fewest.layout.devices // per_node, fewest
    for _ in range(_SIZES):
        rate = query.scenario.tokens_per_step / best.step_seconds / (nodes * per_node)
        yield NodeCount(nodes, best.layout, rate)
        nodes = 1 << nodes.bit_length()
        larger = best_of(on_nodes(query, nodes)) if nodes <= most and nodes * per_node <= MOST_DEVICES else None
        if larger is None:
            return
        best = larger


def _most_step_seconds(query: Query, train_tokens: int | None, deadline_days: float | None) -> float:
    """Return the longest step that meets the deadline, in seconds; infinite without one."""
    if deadline_days is None:
        return math.inf
    if train_tokens is None:
        raise InputError("deadline_days needs train_tokens: the days are those of a whole run")
    if not (math.isfinite(deadline_days) and deadline_days > 0):
        raise InputError(f"deadline_days {deadline_days!r}: must be a number above 0")
    check_count("train_tokens", train_tokens, 10**18)
    scenario = query.scenario
    steps = train_tokens / (scenario.global_batch_size * scenario.sample_tokens)
    return deadline_days * DAY_SECONDS / steps


def _peak_ratio(best: PricedLayout, within: float) -> float:
    """Return how many times as many devices at their peak would be in time; 1 if these are."""
    if best.step_seconds <= within:
        return 1.0
    (estimate,) = estimates_of([best], intervals=False)
    return max(best.step_seconds / within * estimate.throughput.mfu, 1.0)


def in_fp8(query: Query, near: Collection[Layout]) -> Estimate | None:
    """Return the best layout in fp8, if the question asks for a wider precision and the device has fp8."""
    scenario = query.scenario
    if scenario.precision in NARROW or any("fp8" not in h.peak_flops_per_second for h in scenario.kinds_of_device):
        return None
    narrow = query.question.changed(SEARCH, precision="fp8")
    return _best(replace(query, scenario=replace(scenario, precision="fp8"), question=narrow), near)


def on_other_stacks(query: Query, near: Collection[Layout]) -> Iterator[StackBest]:
    """Yield the best layout under the framework's defaults if a stack was assumed, else under tuned stacks."""
    scenario, profile = query.scenario, query.scenario.framework
    makers = {device.vendor for device in scenario.kinds_of_device}
    families = {device.family for device in scenario.kinds_of_device}
    tuned = (stack.name for stack in suggested(profile.name, makers, families))
    for name in (DEFAULT,) if profile.stack != DEFAULT else tuned:
        other = replace(scenario, framework=framework_profile(profile.name, query.options, name))
        question = query.question.changed(SEARCH, stack=name)
        yield StackBest(name, _best(replace(query, scenario=other, question=question), near))


def _best(query: Query, near: Collection[Layout]) -> Estimate | None:
    """Return the best layout among the splits of `near`, or of all layouts if none of these is likely to fit."""
    best = best_of(replace(query, space=_among(query.space, near))) if near else None
    best = best or best_of(query)
    return None if best is None else _estimate_of(best)


def _estimate_of(best: PricedLayout) -> Estimate:
    """Return the estimate of what a search found, over what nobody said of its run."""
    (estimate,) = estimates_of([best])
    return estimate if best.query.over_open is None else best.query.over_open.judged(best, estimate)


def _among(space: Space, layouts: Collection[Layout]) -> Space:
    """Return the part of a space whose layouts take each size of their split from one of `layouts`."""
    sizes: dict[str, Any] = {
        size.name: tuple(sorted({getattr(layout, size.name) for layout in layouts})) for size in SPLIT
    }
    # The pipelines of the first layouts are searched first: of the others bounds then leave out more.
    sizes["pipeline_parallel"] = tuple(dict.fromkeys(layout.pipeline_parallel for layout in layouts))
    return replace(space, **sizes)


def reasons(query: Query, searched: SearchResult) -> Iterator[Violation]:
    """Yield each rule's violation by one layout that it dropped."""
    for rule in (*RULES, ACROSS_NODES):
        if rule.id in searched.examples:
            layout = searched.examples[rule.id]
            yield Violation(rule.id, rule.message(query.scenario, layout), rule.fix(query.scenario, layout))


def remedies(query: Query, *, lawful: bool = True) -> Iterator[Remedy]:
    """Yield the single changes that make something fit, each with its fastest layout; for a tuner else pairs.

    Where no layout of the question is `lawful`, fewer nodes and a larger batch are tried in place of more devices.
    """
    alone = dict(_changes(query, lawful=lawful))
    singles = list(_fastest(alone.items()))
    if not singles and absent_sizes(query.scenario, query.question):
        changes = ((each.option, each.of(query)) for each in methods(query.scenario, query.question, ()))
        pairs = {
            frozenset((first, second)): (f"{first}{' and ' * second.startswith(_FREE) or ' '}{second}", changed)
            for first, other in changes
            for second, changed in _changes(other)
            if second in alone or not second.startswith(_FREE)
        }
        singles = sorted(_fastest(pairs.values()), key=lambda x: x.estimate.memory.device_bytes)[:_MOST_PAIRS]
    yield from singles


_FREE = "free choice of"
_MOST_PAIRS = 5  # pairs of changes that a ranking proposes


def _fastest(changes: Iterable[tuple[str, OpenSearch]]) -> Iterator[Remedy]:
    bests = ((change, search.fastest) for change, search in changes)
    yield from (Remedy(change, _estimate_of(best)) for change, best in bests if best is not None)


def launchable(query: Query) -> Query:
    """Return the question with sizes of 1, if it names none, that launches of its stack cannot have."""
    absent = absent_sizes(query.scenario, query.question)
    sizes: dict[str, Any] = {name: getattr(query.space, name) or (1,) for name in absent}
    return replace(query, space=replace(query.space, **sizes))


_WITH_SIZES = ("torchtitan", "automodel", "primus", "nanotron")  # what reads torch's files that have parallel sizes


def absent_sizes(scenario: Scenario, question: Question) -> frozenset[str]:
    """Return the sizes that launches lack: of a trainer's file or a method of tuning, where no stack is named."""
    profile, recipe = scenario.framework, question.recipe
    tunes = scenario.lora_rank is not None or "lora_rank" in question.inputs
    tunes = tunes or profile.optimizer != profile.limits.optimizers[0]
    if recipe is not None:
        tunes = recipe.dialect.partition("-")[0] not in _WITH_SIZES
    tunes = tunes and profile.stack == DEFAULT and profile.name == METHOD_FRAMEWORK
    return frozenset(lacking(ADAPTER_STACK if tunes else profile.stack))


def _passing(query: Query) -> OpenSearch | None:
    """Return the search of a question; None where nothing fits."""
    search = OpenSearch(query)
    return search if search.fits else None


def _changes(query: Query, *, lawful: bool = True) -> Iterator[tuple[str, OpenSearch]]:
    """Yield the single changes of a question by their option, with what searches it then."""
    space, absent = query.space, absent_sizes(query.scenario, query.question) - set(query.question.layout)
    for axis in dataclasses.fields(space):
        if getattr(space, axis.name) != axis.default and axis.name not in absent:
            free: dict[str, Any] = {axis.name: axis.default}
            yield f"{_FREE} {axis.name}", OpenSearch(replace(query, space=replace(space, **free)))
    for method in methods(query.scenario, query.question, query.space.offload or ()):
        yield method.option, OpenSearch(method.of(query))
    for other in clusters_meant(str(query.question.stated("hardware") or ""))[1:]:
        named = query.question.changed(SEARCH, hardware=other)
        with_it = replace(query, scenario=with_memory(query.scenario, other), question=named)
        yield f"--hardware {other}", OpenSearch(with_it)
    if query.scenario.groups:
        return
    if {"seq_length", "lengths"}.isdisjoint(query.question.inputs):  # the longest part that fits
        parts = (_with(query, seq_length=query.scenario.seq_length // part) for part in (2, 4, 8))
        for shorter in islice(filter(None, map(_passing, parts)), 1):
            yield f"--seq-length {shorter.query.scenario.seq_length}", shorter
    if not lawful:
        yield from _lawful_sizes(query)
    elif (larger := _on_more_devices(query)) is not None:
        yield _size_text(larger.query, query), larger


def with_memory(scenario: Scenario, cluster: str) -> Scenario:
    """Return a scenario on devices with the memory of those that another text for its cluster names."""
    others = [load_hardware(name) for name in names_in(cluster)]
    smallest = [min(others, key=lambda other: other.usable_memory_bytes)]
    kinds = [
        replace(kind, usable_memory=other.usable_memory, memory_capacity=other.memory_capacity)
        for kind, other in zip(scenario.kinds_of_device, others if scenario.groups else smallest, strict=True)
    ]
    groups = tuple(map(lambda group, kind: replace(group, hardware=kind), scenario.groups, kinds))
    return replace(scenario, hardware=kinds[0], groups=groups)


def _with(query: Query, **inputs: Any) -> Query:
    """Return the question with other inputs, which its scenario has by the same names."""
    scenario = replace(query.scenario, **inputs)
    return replace(query, scenario=scenario, question=query.question.changed(SEARCH, **inputs))


def _size_text(sized: Query, query: Query) -> str:
    """Return the option that gives the devices of `sized`, in the unit of the question."""
    devices, per_node = sized.scenario.devices, sized.scenario.hardware.devices_per_node
    whole = devices % per_node == 0 and "devices" not in query.question.inputs
    return f"--nodes {devices // per_node}" if whole else f"--devices {devices}"


def _lawful_sizes(query: Query) -> Iterator[tuple[str, OpenSearch]]:
    """Yield the largest smaller power of two of nodes where something fits, and a batch that the devices divide."""
    scenario = query.scenario
    powers = [*doubled(1, scenario.devices // scenario.hardware.devices_per_node - 1)]
    smaller = (on_nodes(query, nodes) for nodes in reversed(powers))
    for fewer in islice(filter(None, map(_passing, smaller)), 1):
        yield _size_text(fewer.query, query), fewer
    batch = math.ceil(scenario.global_batch_size / scenario.devices) * scenario.devices
    if batch > scenario.global_batch_size:
        yield f"--global-batch-size {batch}", OpenSearch(_with(query, global_batch_size=batch))


_RANK = 16  # rank of the adapters that are proposed
_CHUNKS = "cross_entropy_chunk_tokens"  # as Liger's fused loss


class MethodChange(NamedTuple):
    """A way to need less on the same devices: offload, a smaller optimizer, adapters."""

    option: str
    """Options that ask for it, such as `--method qlora`."""
    offload: Offload | None = None
    switches: Mapping[str, str] = MappingProxyType({})
    lora_rank: int | None = None
    """Rank of adapters that it trains; None for the question's."""
    stack: StackName | None = None
    """Stack of torch that it brings, where nobody said one; None for the question's."""

    def of(self, query: Query) -> Query:
        """Return the question with it."""
        if self.stack is not None:
            profile = framework_profile(METHOD_FRAMEWORK, query.options, self.stack)
            question = query.question.changed(SEARCH, framework=METHOD_FRAMEWORK, stack=self.stack)
            query = launchable(replace(query, scenario=replace(query.scenario, framework=profile), question=question))
        if self.offload is not None:
            return replace(query, space=replace(query.space, offload=(self.offload,)))
        rank = query.scenario.lora_rank if self.lora_rank is None else self.lora_rank
        return with_adapters(query, rank, self.switches)


def methods(scenario: Scenario, question: Question, offloads: Collection[str]) -> Iterator[MethodChange]:
    """Yield the methods that the framework has, those that train all weights first; `offloads` are in use already.

    Where nobody said a framework or a switch of it, adapters may be trained by the stack that a method brings. A stack
    of torch whose launches have every parallel size trains all weights, as it is.
    """
    profile, tunes = scenario.framework, bool(absent_sizes(scenario, question))
    is_torch, is_said = profile.name == METHOD_FRAMEWORK, profile.stack != DEFAULT and not profile.stack_assumed
    is_said |= question.recipe is not None
    if is_torch and is_said and not tunes:
        return
    yield from _of_tuner(scenario, question) if tunes else ()
    # Where a framework has no offload of the whole state, both words mean the same.
    kinds: tuple[Offload, ...] = ("optimizer", "optimizer_tensorwise")
    named = OFFLOAD_STACK if is_torch and not is_said else None
    brings = "" if named is None else f"--stack {named} "
    for offload in kinds if "optimizer" in profile.limits.offloads else kinds[:1]:
        if offload not in offloads and (not is_torch or (named or profile.stack) == OFFLOAD_STACK):
            yield MethodChange(f"{brings}--offload {offload}", offload, stack=named)
    offered = "adamw_8bit" in profile.limits.optimizers
    full = scenario.lora_rank is None
    if full and offered and profile.optimizer == "adamw" and "optimizer" not in question.options:
        yield MethodChange("--optimizer adamw_8bit", switches={"optimizer": "adamw_8bit"})
    if not full or scenario.model.hidden_size < _RANK:
        return
    if profile.name != METHOD_FRAMEWORK:
        if profile.limits.trains_adapters:
            yield MethodChange(f"--lora-rank {_RANK}", lora_rank=_RANK)
            return
        if question.options or not {"framework", "stack"}.isdisjoint(question.inputs):
            return
    other = None if is_torch and is_said else ADAPTER_STACK
    rank, brings = usual_rank(METHOD_FRAMEWORK, other or profile.stack), "" if other is None else f"--stack {other} "
    yield MethodChange(f"{brings}--method lora", lora_rank=rank, stack=other)
    yield MethodChange(f"{brings}--method qlora", switches={"quantised_base": "true"}, lora_rank=rank, stack=other)


def _of_tuner(scenario: Scenario, question: Question) -> Iterator[MethodChange]:
    profile = scenario.framework
    decided = {*question.options, *(decided_by(profile.stack) or ())}
    if not (profile.cross_entropy_chunk_tokens or profile.loss_chunks or _CHUNKS in decided):
        yield MethodChange(f"--option {_CHUNKS}=2048", switches={_CHUNKS: "2048"})
    if scenario.lora_rank is not None and not profile.quantised_base and "quantised_base" not in question.options:
        yield MethodChange("--method qlora", switches={"quantised_base": "true"})
    if scenario.frozen_in_fp32 and not question.by_user("frozen_dtype"):
        yield MethodChange("--option frozen_dtype=compute", switches={"frozen_dtype": "compute"})
    several = scenario.devices > 1 and profile.plain_module and profile.fully_shard
    if several and not profile.sync_each_batch and "sync_each_batch" not in question.options:
        yield MethodChange("--option sync_each_batch=true", switches={"sync_each_batch": "true"})


def with_adapters(query: Query, rank: int | None, switches: Mapping[str, str]) -> Query:
    """Return the question with adapters of a rank, None for its own, and with further switches.

    A stack that was assumed has recipes for all weights alone, and torch's for AdamW alone.
    """
    scenario, profile = query.scenario, query.scenario.framework
    question, stack = query.question.with_switches(switches, SEARCH), profile.stack
    if profile.stack_assumed and (rank is not None or profile.name == METHOD_FRAMEWORK):
        stack = DEFAULT
    if rank is not None:
        workload = {"lora_rank": rank, **usual_workload(question, scenario.model, tunes=True)}
        scenario, question = replace(scenario, **workload), question.changed(SEARCH, lora_rank=rank)
    options = {**query.options, **switches}
    if scenario.lora_rank is not None:
        options = with_usual_adapters(profile.name, stack, options)
    profile = framework_profile(profile.name, options, stack)
    return launchable(replace(query, scenario=replace(scenario, framework=profile), question=question))


def _on_more_devices(query: Query) -> OpenSearch | None:
    """Return the search on the fewest further devices of the node, else whole nodes; None if nothing passes there.

    Up to 64 times as many nodes are tried, 8 times for a tuner.
    """
    per_node, devices = query.scenario.hardware.devices_per_node, query.scenario.devices
    nodes = devices // per_node
    larger = 8 if absent_sizes(query.scenario, query.question) else 64
    most = min(max(nodes, 1) * larger, MOST_DEVICES // per_node)

    part = fewest_of(doubled(devices * 2, per_node - 1), lambda count: _passing(_with(query, devices=count)), devices)
    return part or fewest_of(doubled(max(nodes, 1) * 2, most), lambda count: _passing(on_nodes(query, count)), nodes)


MIN_CHANGE = 0.005
"""Smallest relative change of speed, or of memory over capacity, at which a switch matters."""


def with_switches(estimate: Estimate, options: Collection[str], alone: Pricing) -> Estimate:
    """Return the estimate of a layout `alone` with the effects of its assumed switches.

    `assumed` has unset switches with another value that moves speed, memory or verdict.
    """

    def assumed() -> tuple[AssumedSwitch, ...]:
        every = _assumed(price(alone.watched), estimate, options)
        return tuple(sorted(every, key=lambda switch: -abs(switch.speed_change)))

    return replace(estimate, assumed=deferred(assumed))


def _assumed(base: Priced, estimate: Estimate, options: Collection[str]) -> Iterator[AssumedSwitch]:
    """Yield the unset switches that move speed, memory or verdict."""
    if estimate.verdict == "refused":
        return
    scenario, profile = base.pricing.scenario, base.pricing.scenario.framework
    because = f"{profile.version}'s default" if profile.stack == DEFAULT else f"stack {profile.stack}"
    for name, values in set_by_stacks(profile.name).items():
        value = getattr(profile, name)
        other = next((tried for tried in values if tried != value), None)
        if name in options or other is None or name in of_code(profile.stack) or not suits(scenario, name, other):
            continue
        changed = price(base.pricing.switched({name: other}))
        refused = any(rule.broken(changed.pricing).any() for rule in RULES)
        verdict = verdict_of(changed, 0, refused=refused)
        speed = float(changed.step.total[0] / base.step.total[0]) - 1.0
        memory = float(base.device_bytes[0] - changed.device_bytes[0])
        share = abs(memory) / estimate.memory.capacity_bytes
        if verdict == "refused" or (max(abs(speed), share) < MIN_CHANGE and verdict == verdict_of(base, 0)):
            continue
        yield AssumedSwitch(
            switch=name,
            value=option_text(value),
            other=option_text(other),
            because=because,
            speed_change=speed,
            memory_bytes=memory,
            verdict=verdict,
        )


def suits(scenario: Scenario, name: str, value: object) -> bool:
    """Return whether a switch applies to model and precision, and library and devices have what its value needs.

    Exchanges of experts other than NCCL's need kernels; overlapped ones are searched with such kernels only
    (`Query.alternatives`), and proposed likewise. Overlapped tensor parallelism uses TransformerEngine's user buffers,
    written in CUDA.
    """
    kinds, needs = scenario.kinds_of_device, acts_beside()[name]
    if ("experts" in needs and not scenario.model.is_moe) or ("fp8" in needs and scenario.precision not in NARROW):
        return False
    decomposed = scenario.model.is_moe and scenario.framework.decomposed_adapters == "apart"
    if decomposed and merges_experts(replace(scenario.framework, **{name: value})):  # which no `Scenario` has
        return False
    if name == "attention_kernel" and str(value).startswith("flash"):  # they take 16 bits and fewer
        return scenario.precision != "fp32" and not any(device.family in _BEFORE_AMPERE for device in kinds)
    if name == "tp_comm_overlap" and value:
        return all(device.family in _WITH_USER_BUFFERS for device in kinds)
    if name == "expert_dispatch":
        return value in ("alltoall", "allgather") or all(value in device.expert_kernels for device in kinds)
    return name != "overlap_expert_exchange" or not value or all(device.expert_kernels for device in kinds)


_BEFORE_AMPERE = ("volta", "turing")  # device families that flash-attention 2.8 has no kernels for
_WITH_USER_BUFFERS = ("ampere", "hopper", "blackwell")  # device families with CUDA and a fast link inside a node


def option_text(value: Any) -> str:
    """Return a value as `--option` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
