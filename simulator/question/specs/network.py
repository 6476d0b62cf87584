"""Network of a booked cluster in place of a hardware spec's: `NAME@network=200Gbit/s@leaf=32@oversubscription=2`.

Changes links between nodes alone; those inside a node stay.
"""

from __future__ import annotations

import re
from typing import Final

from simulator.errors import InputError, did_you_mean
from simulator.question.specs.hardware import Bandwidth, Count, DeviceLink, HardwareSpec
from simulator.question.units import GIGA, parse_bytes_per_second, parse_count

BOOKED: Final = re.compile(r"(?P<name>.+?)@(?P<network>[a-z]+=.*)", re.DOTALL)
"""Pattern of a spec's name or path, `@`, and its network."""
KEYS: Final = ("network", "oversubscription", "leaf")
_SOURCE: Final = "question"


def with_network(spec: HardwareSpec, text: str) -> HardwareSpec:
    """Return the spec with another network, from `KEY=VALUE` joined by `@`.

    `network` is the rate of one device between nodes, one direction. `leaf` is how many nodes reach each other at that
    rate, through one layer of switches: the nodes of a pod where every device has a rail of its own, else those of one
    switch. `oversubscription` is what the layers above divide it by; without a `leaf` all nodes share them. Raises
    InputError naming the word.
    """
    stated: dict[str, str] = {}
    for word in text.split("@"):
        key, _, value = word.partition("=")
        if key not in KEYS or key in stated:
            near = did_you_mean(key, list(KEYS))
            raise InputError(f"hardware '{spec.name}@{word[:60]}': write each of {', '.join(KEYS)} once at most{near}")
        stated[key] = value
    where = f"hardware '{spec.name}@{text[:100]}'"
    per_device = spec.links[-1].bandwidth_bytes_per_second
    if "network" in stated:
        per_device = parse_bytes_per_second(stated["network"])
    divided = _factor(where, stated.get("oversubscription", "1"))
    named = {"name": f"{spec.name}@{text}", "sources": {**spec.sources, _SOURCE: "told with the question"}}
    changed = spec.model_copy(update=named)
    if "leaf" in stated:
        changed = _leaf(changed, where, parse_count(stated["leaf"]), per_device)
    rate = per_device / divided * spec.devices_per_node / spec.nics_per_node
    network = spec.network.model_copy(update={"nic_bandwidth": _rate(rate)})
    return changed.model_copy(update={"network": network})


def _leaf(spec: HardwareSpec, where: str, nodes: int, per_device: float) -> HardwareSpec:
    """Return the spec with a layer of switches that joins `nodes` nodes at the full rate."""
    if nodes < 2:
        raise InputError(f"{where}: leaf must be 2 nodes at least")
    span = Count(value=nodes * spec.devices_per_node, source=(_SOURCE,), status="assumed")
    link = DeviceLink(
        name="leaf", topology="leaf", devices=span, bandwidth=_rate(per_device), latency=spec.network.latency
    )
    return spec.model_copy(update={"device_links": (*spec.device_links, link)})


def _rate(bytes_per_second: float) -> Bandwidth:
    return Bandwidth(value=f"{bytes_per_second / GIGA:.9g} GB/s", source=(_SOURCE,), status="assumed")


def _factor(where: str, text: str) -> float:
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", text, re.ASCII) or not 1.0 <= float(text) <= 100.0:
        raise InputError(f"{where}: oversubscription must be a number from 1 to 100")
    return float(text)
