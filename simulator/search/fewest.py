"""Search for the fewest nodes on which a layout fits or meets a deadline (`--nodes auto`).

`search.rank` searches one number of nodes; `answers.ranking` asks for this.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from simulator.errors import InputError
from simulator.question.question import SEARCH
from simulator.question.scenario.inputs import MOST_DEVICES, check_count
from simulator.question.units import DAY_SECONDS
from simulator.search.build import estimates_of
from simulator.search.query import FewestNodes, NodeCount, PricedLayout, Query
from simulator.search.rank import Progress, best_of
from simulator.search.space import candidates

MOST_NODES = 1024
"""Default limit of a search for nodes."""
_Answer = TypeVar("_Answer")
_AUTO = re.compile(r"auto(?::([0-9]{1,7}))?")
_IN_A_DOUBLING = 32
"""Numbers of nodes tried in each doubling above 64."""


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
    """Return the answer of the fewest of all counts above `below` that has one; None where no rung has.

    Ascending `rungs` are tried first, then all counts under the first of them with an answer: what divides 6 devices
    need not divide 4.
    """
    for rung in rungs:
        answer = best(rung)
        if answer is not None:
            fewer = (best(count) for count in node_counts(below + 1, rung - 1))
            return next((each for each in fewer if each is not None), answer)
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
    low, counts, nearest = 1, list(node_counts(1, most)), most
    for position, nodes in enumerate(counts):
        if progress is not None:
            progress(position, len(counts))
        sized = on_nodes(query, nodes)
        if nodes < low:
            continue
        best = best_of(sized, below=math.inf if fitting is None else within)
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


_SIZES = 5
"""Numbers of nodes that are shown, the fewest first."""


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
