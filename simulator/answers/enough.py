"""The fewest devices of every kind that hold a training, by method: the plan to which nothing is offered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from simulator.answers.cases import question_model
from simulator.answers.ranking import query_of
from simulator.errors import InputError, UnsupportedError
from simulator.question.frameworks.stacks import ADAPTER_STACK, METHOD_FRAMEWORK, usual_rank
from simulator.question.frameworks.stacks import framework as framework_profile
from simulator.question.question import SEARCH, Question, usual_workload
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.names import hardware_names
from simulator.question.vocabulary import TuningMethod
from simulator.search.alternatives import doubled, fewest_of, with_adapters
from simulator.search.rank import Progress, best_of
from simulator.search.space import MIN_FIT_PROBABILITY, PricedLayout, Query, Space

_METHODS: Final[tuple[TuningMethod, ...]] = ("qlora", "lora", "full")
"""All weights last: they never take fewer devices than adapters."""
_MOST_NODES: Final = 64


class Enough(NamedTuple):
    """The fewest devices of a kind on which a method of training fits."""

    hardware: str
    method: TuningMethod
    devices: int
    """Devices of one node, or of whole nodes."""
    layout: PricedLayout
    """Fastest layout there."""

    @property
    def seconds_per_sample(self) -> float:
        """Time that a sequence takes on all these devices."""
        return self.layout.step_seconds / self.layout.query.scenario.global_batch_size


def enough(
    question: Question,
    *,
    space: Space | None = None,
    min_fit_probability: float = MIN_FIT_PROBABILITY,
    progress: Progress | None = None,
) -> Iterator[Enough]:
    """Yield the fewest devices of every kind in the catalogue, for each method that fits on at most 64 nodes.

    Layouts are those of `space`, with at least this probability to fit. The question has neither hardware nor a number
    of devices or nodes. Raises InputError for what is wrong in it.
    """
    if sized := [name for name in ("hardware", "nodes", "devices", "lora_rank") if name in question.inputs]:
        name = {"lora_rank": "method"}.get(sized[0], sized[0])
        raise InputError(f"{name}: every kind of hardware and method is tried; leave it out, or give --offer")
    if not {"framework", "stack"} & set(question.inputs):
        question = question.changed(SEARCH, framework=METHOD_FRAMEWORK, stack=ADAPTER_STACK)
    profile = framework_profile(question.value("framework"), question.options, question.stated("stack"))
    if profile.limits.trains_adapters:  # every method has one workload
        question = question.changed(SEARCH, **usual_workload(question, question_model(question), tunes=True))
    ask = partial(query_of, space=space, min_fit_probability=min_fit_probability)
    names = [name for name in hardware_names() if name != "local-cpu"]
    for position, name in enumerate(names):
        if progress is not None:
            progress(position, len(names))
        adapters = 1
        for method in _METHODS:
            kind = question.changed(SEARCH, hardware=name)
            held = _fewest(kind, ask, method, adapters if method == "full" else 1)
            if held is not None:
                adapters = held.devices
                yield held


def _fewest(question: Question, ask: Callable[[Question], Query], method: TuningMethod, low: int) -> Enough | None:
    """Return the fewest devices from `low` on by the search that `ask` makes; None if refused or if none fits."""
    hardware = load_hardware(question.value("hardware"))

    def held(devices: int) -> Enough | None:
        query = ask(question.changed(SEARCH, devices=devices))
        if method != "full":
            profile = query.scenario.framework
            if not profile.limits.trains_adapters:
                raise UnsupportedError(f"{profile.name}: trains no adapters")
            switches = {"quantised_base": "true"} if method == "qlora" else {}
            query = with_adapters(query, usual_rank(profile.name, profile.stack), switches)
        best = best_of(query)
        return None if best is None else Enough(hardware.name, method, devices, best)

    node = hardware.devices_per_node
    rungs = [count for count in (*doubled(1, node - 1), node) if count >= low]
    try:
        part = fewest_of(rungs, held, low - 1)
        return part or fewest_of(doubled(2, _MOST_NODES), lambda nodes: held(nodes * node), max(low // node, 1))
    except UnsupportedError:
        return None
