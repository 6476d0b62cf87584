"""Spec of hardware: a device, its node and its network, with a booked network (`NAME@network=200Gbit/s@leaf=32`).

A booked network changes links between nodes; those inside a node stay. `specs.catalogue` finds the file of a name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, Literal

from simulator.errors import InputError, PrecisionError, did_you_mean
from simulator.late import late_pattern
from simulator.question.specs.documents import Alias, Frozen, Limits, Name, Sourced, Sources, Text, undefined_sources
from simulator.question.units import (
    GIGA,
    parse_bytes,
    parse_bytes_per_second,
    parse_count,
    parse_flops_per_second,
    parse_seconds,
)
from simulator.question.vocabulary import NARROW, AttentionKernel, ExpertDispatch, StackName
from simulator.records import NamedTuple, replace

BOOKED: Final = late_pattern(r"(?P<name>.+?)@(?P<network>[a-z]+=.*)", re.DOTALL)
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
            allowed = f"each of {', '.join(KEYS)} once at most, such as network=50GB/s"
            raise InputError(f"hardware '{spec.name}@{word[:60]}': write {allowed}{near}")
        stated[key] = value
    where = f"hardware '{spec.name}@{text[:100]}'"
    per_device = spec.links[-1].bandwidth_bytes_per_second
    if "network" in stated:
        per_device = parse_bytes_per_second(stated["network"])
        if per_device <= 0.0:
            raise InputError(f"{where}: network must be more than 0")
    divided = stated.get("oversubscription", "1")
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3})?", divided, re.ASCII) or not 1.0 <= float(divided) <= 100.0:
        raise InputError(f"{where}: oversubscription must be a number from 1 to 100")
    sources = {**spec.sources, _SOURCE: "told with the question"}
    changed = replace(spec, name=f"{spec.name}@{text}", sources=sources)
    if "leaf" in stated:
        nodes = parse_count(stated["leaf"])  # that a layer of switches joins at the full rate
        most = MAXIMUM_DEVICES // changed.devices_per_node
        if not 2 <= nodes <= most:
            raise InputError(f"{where}: leaf must be 2 to {most} nodes")
        span = Count(value=nodes * changed.devices_per_node, source=(_SOURCE,), status="assumed")
        link = DeviceLink(
            name="leaf", topology="leaf", devices=span, bandwidth=_rate(per_device), latency=changed.network.latency
        )
        changed = replace(changed, device_links=(*changed.device_links, link))
    rate = per_device / float(divided) * spec.devices_per_node / spec.network.nics_per_node.value
    return replace(changed, network=replace(spec.network, nic_bandwidth=_rate(rate)))


def _rate(bytes_per_second: float) -> Bandwidth:
    return Bandwidth(value=f"{bytes_per_second / GIGA:.9g} GB/s", source=(_SOURCE,), status="assumed")


MAXIMUM_DEVICES: Final = 2**20
"""Devices that may be joined."""
PEAK_TYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "fp4")
"""Number formats a peak can be given for."""


class _Measure(Sourced):
    """Number with a unit, as written, with its source."""

    value: str
    """Number and unit as written, for example ``3350 GB/s``."""

    parsed: ClassVar[Callable[[str], float]]
    """What reads the value in its base unit."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the text."""
        try:
            if self.amount <= 0:
                yield f"'{self.value}' must be greater than zero"
        except InputError as error:
            yield str(error)

    @cached_property
    def amount(self) -> float:
        """Number in its base unit."""
        return type(self).parsed(self.value)


class MemorySize(_Measure):
    """Amount of memory; base unit bytes."""

    parsed = parse_bytes


class Bandwidth(_Measure):
    """Transfer rate; base unit bytes/s."""

    parsed = parse_bytes_per_second


class ComputeRate(_Measure):
    """Compute rate; base unit FLOP/s, a multiply-add counting as two."""

    parsed = parse_flops_per_second


class Duration(_Measure):
    """Latency; base unit seconds."""

    parsed = parse_seconds


class Count(Sourced):
    """Number of devices or network cards."""

    value: Annotated[int, Limits(ge=1, le=MAXIMUM_DEVICES, strict=True)]


class Share(Sourced):
    """Share of something, above 0 and at most 1."""

    value: Annotated[float, Limits(gt=0, le=1, strict=True)]


class Ratio(Sourced):
    """One rate over another."""

    value: Annotated[float, Limits(gt=0, le=16, strict=True)]


class PeakFlops(Frozen):
    """Dense matrix-multiplication peak of one device by number format; absent where it has none."""

    fp32: ComputeRate | None = None
    """32-bit floating point, in FLOP/s."""
    tf32: ComputeRate | None = None
    """32-bit inputs rounded to 19 bits, in FLOP/s."""
    bf16: ComputeRate | None = None
    """bfloat16 inputs, in FLOP/s."""
    fp16: ComputeRate | None = None
    """16-bit floating point inputs, in FLOP/s."""
    fp8: ComputeRate | None = None
    """8-bit floating point inputs, in FLOP/s."""
    fp4: ComputeRate | None = None
    """4-bit floating point inputs (NVFP4, MXFP4), in FLOP/s."""


class ProductFlops(Frozen):
    """Rates of large matrix products measured alone, operands in their type already, by number format."""

    bf16: ComputeRate
    """bfloat16 inputs, in FLOP/s."""
    fp8: ComputeRate | None = None
    """8-bit floating point inputs, in FLOP/s."""


USUAL_REACH: Mapping[str, float] = MappingProxyType({"bf16": 0.78, "fp8": 0.72})
"""Share of the peak that large products reach on the usual device: about the median of the shipped specs."""


class DeviceLink(Frozen):
    """Level of links between devices, as the file describes it."""

    name: Name
    """Name of the level, for example ``nvlink``."""
    topology: Literal["switch", "mesh", "pcie", "leaf"]
    """Wiring: any pair at full rate, one direct link per pair, a PCIe tree, or a layer of network switches."""
    devices: Count
    """Consecutive devices that share this level; those of several nodes where it joins nodes."""
    bandwidth: Bandwidth
    """Rate from one device to all its peers at once, one direction, in bytes/s."""
    pair_bandwidth: Bandwidth | None = None
    """Rate of a single pair, one direction, in bytes/s; required for a mesh, optional for a PCIe tree."""
    latency: Duration
    """Time of a small message, in seconds."""

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the rate of a pair."""
        if self.topology != "pcie" and (self.topology == "mesh") != (self.pair_bandwidth is not None):
            yield "pair_bandwidth is given for topology 'mesh', may be for 'pcie', and for no other"
        elif self.pair_bandwidth is not None and self.pair_bandwidth.amount > self.bandwidth.amount:
            yield "pair_bandwidth must not exceed bandwidth"


class Network(Frozen):
    """Links between nodes, as the file describes them."""

    name: Name
    """Name of the network, for example ``infiniband``."""
    nics_per_node: Count
    """Network ports one node uses for training traffic."""
    nic_bandwidth: Bandwidth
    """Rate of one port, one direction, in bytes/s."""
    latency: Duration
    """Time of a small message, in seconds."""


class LinkLevel(NamedTuple):
    """Level of links, in base units."""

    name: str
    topology: Literal["switch", "mesh", "pcie", "leaf", "network"]
    """Wiring; ``network`` is the level that joins everything."""
    devices: int | None
    """Consecutive devices that share the level; None for the network, which joins all."""
    bandwidth_bytes_per_second: float
    """Rate from one device to all its peers at once, one direction, in bytes/s."""
    pair_bandwidth_bytes_per_second: float
    """Rate of a single pair, one direction, in bytes/s; less than the bandwidth in a mesh."""
    latency_seconds: float
    """Time of a small message, in seconds."""
    measured: bool = False
    """Whether the bandwidth was reached by collectives, and is not a nominal rate."""


class HardwareSpec(Frozen):
    """Node of equal devices, with its links to others.

    Read from ``hardware_specs/<name>.yaml`` or a file of the same form. Every
    number names its sources and how well it is known.
    """

    name: Name
    title: Text
    """Full name for readers."""
    aliases: tuple[Alias, ...] = ()
    """Other names that vendors and clouds give it."""
    vendor: Text
    """Maker of the device."""
    family: Name
    """Family whose calibration applies, for example ``hopper``."""
    note: Text = ""
    sources: Sources
    """Key to document; every number refers to these keys."""
    devices: Count
    """Devices in one node; the file's key is ``devices_per_node``."""
    memory_capacity: MemorySize
    """Memory of one device as its driver lists it."""
    usable_memory: MemorySize
    """Memory of one device a framework can get."""
    memory_bandwidth: Bandwidth
    """Peak rate of one device's own memory."""
    peak_flops: PeakFlops
    """Dense peaks of one device."""
    product_flops: ProductFlops | None = None
    """Rates that large matrix products reach on the device; None where no public measurement of them was read."""
    communicator_buffer: MemorySize | None = None
    """Memory of one group of its collective library, where that is documented; then nothing else outside PyTorch's
    allocator is taken from measurements of other platforms."""
    context_memory: MemorySize | None = None
    """Memory of a process of PyTorch beside its allocator, alone on the device; None where nothing was read of it."""
    host_bandwidth: Bandwidth
    """Rate between one device and its host, one direction."""
    host_memory: MemorySize | None = None
    """Memory of the host of one node, all processors together; None where no document states it."""
    device_links: Annotated[tuple[DeviceLink, ...], Limits(max_length=8)] = ()
    """Levels of links between devices, innermost first."""
    network: Network
    """Links between nodes."""
    processors: Count | None = None
    """Processors of one device that each work on a tile of a matrix product (SMs, cube cores); None is not known."""
    product_tile: Count | None = None
    """Outputs of a matrix product that one processor works on at a time, a count; None is not known."""
    earlier_kernels: Share | None = None
    """Share of the peak within reach of kernels that use the instructions of the generation before; None is all."""
    fp8_attention: Ratio | None = None
    """Rate of the device's own attention kernel in 8 bits over that in 16, both passes; None counts as equal."""
    caching_allocator: bool = True
    """Whether freed memory of this device stays with the framework's allocator; a processor's is given back."""
    attention_kernel: AttentionKernel | None = None
    """Default attention kernel of stacks on this device; None leaves it to the stack."""
    stack: StackName | None = None
    """Named stack of the cluster's own runs, assumed by default; None is the framework's defaults."""
    expert_kernels: tuple[ExpertDispatch, ...] = ()
    """Ways of sending tokens to experts with kernels for this device, beside collectives."""

    @classmethod
    def key(cls, name: str) -> str:
        """Return the key of a field in files."""
        return "devices_per_node" if name == "devices" else name

    def __hash__(self) -> int:
        """Hash by name, so that derived values can be cached."""
        return hash(self.name)

    def problems(self) -> Iterator[str]:
        """Yield the contradictions between fields."""
        if not self.peak_flops_per_second:
            yield f"peak_flops needs at least one of {', '.join(PEAK_TYPES)}"
        if self.usable_memory.amount > self.memory_capacity.amount:
            yield f"usable_memory {self.usable_memory.value} exceeds memory_capacity {self.memory_capacity.value}"
        spans = [link.devices.value for link in self.device_links]
        for inner, outer in pairwise(spans):
            if outer <= inner or outer % inner:
                yield f"device_links: {outer} devices must be a larger multiple of the {inner} inside"
        node = self.devices_per_node
        for span in spans:
            if max(span, node) % min(span, node):
                yield f"device_links: {span} devices must be a part or a multiple of the {node} of a node"
        if node > 1 and (not spans or spans[-1] < node):
            yield f"device_links must join all {node} devices of a node"
        yield from undefined_sources(self, self.sources)

    @property
    def devices_per_node(self) -> int:
        """Devices in one node, a count."""
        return self.devices.value

    @property
    def memory_capacity_bytes(self) -> float:
        """Memory of one device as its driver lists it, in bytes."""
        return self.memory_capacity.amount

    @property
    def usable_memory_bytes(self) -> float:
        """Memory of one device a framework can get, in bytes."""
        return self.usable_memory.amount

    @property
    def memory_bandwidth_bytes_per_second(self) -> float:
        """Peak rate of one device's own memory, in bytes/s."""
        return self.memory_bandwidth.amount

    @property
    def communicator_buffer_bytes(self) -> float | None:
        """Memory of one group of the collective library; None where it is a part of the measured context."""
        return None if self.communicator_buffer is None else self.communicator_buffer.amount

    @property
    def host_bandwidth_bytes_per_second(self) -> float:
        """Rate between one device and its host, one direction, in bytes/s."""
        return self.host_bandwidth.amount

    @cached_property
    def peak_flops_per_second(self) -> Mapping[str, float]:
        """Dense peak of one device by precision, in FLOP/s; a precision it lacks is absent."""
        peaks = {key: getattr(self.peak_flops, key) for key in PEAK_TYPES}
        return MappingProxyType({key: rate.amount for key, rate in peaks.items() if rate is not None})

    def peak(self, precision: str) -> float:
        """Return the dense peak for ``precision`` in FLOP/s; PrecisionError where there is none."""
        peaks = self.peak_flops_per_second
        if precision not in peaks:
            usual = next(each for each in ("bf16", "fp16", *peaks) if each in peaks)
            which = f"it has: {', '.join(peaks)} (--precision {usual})"
            raise PrecisionError(f"hardware '{self.name}' has no {precision} peak; {which}")
        return peaks[precision]

    def reach(self, precision: str) -> float:
        """Return the share of the peak that large products reach, over the usual share; 1 where not measured.

        16-bit types are alike; 4-bit products are as near as 8-bit ones, whose share of the rate they have too. Where
        fp8 was not measured, it is as near as 16-bit types are.
        """
        if self.product_flops is None:
            return 1.0
        narrow = self.product_flops.fp8
        if precision in NARROW and narrow is not None:
            return narrow.amount / self.peak("fp8") / USUAL_REACH["fp8"]
        return self.product_flops.bf16.amount / self.peak("bf16") / USUAL_REACH["bf16"]

    @cached_property
    def links(self) -> tuple[LinkLevel, ...]:
        """All levels of links, innermost first; the network comes last."""
        return tuple(self._levels([link.devices.value for link in self.device_links]))

    def links_of(self, devices: int) -> tuple[LinkLevel, ...]:
        """Return the levels of links as a job of `devices` devices uses them, innermost first, the network last."""
        if devices not in self._links_by_devices:
            spans = [self._used_span(link, devices) for link in self.device_links]
            self._links_by_devices[devices] = tuple(self._levels(spans))
        return self._links_by_devices[devices]

    @cached_property
    def _links_by_devices(self) -> dict[int, tuple[LinkLevel, ...]]:
        return {}

    def joined_devices(self, devices: int) -> int:
        """Return how many devices of a job reach each other without the network: at least those of a node."""
        inner = (level.devices for level in self.links_of(devices) if level.topology not in ("leaf", "network"))
        return max([self.devices_per_node, *(span for span in inner if span is not None)])

    def _used_span(self, link: DeviceLink, devices: int) -> int:
        """Return the consecutive devices of a job inside one level.

        Where links join the nodes of a rack, launchers give a job equal parts of as few racks as they can, in whole
        nodes: of 18 trays of an NVL72 rack, 16 for 64 trays (Megatron-Bridge 067f987,
        scripts/performance/utils/executors.py, `--segment`).
        """
        span, node = link.devices.value, self.devices_per_node
        if span <= node or link.topology == "leaf":
            return span
        nodes = max(devices // node, 1)
        return node * max(part for part in range(1, span // node + 1) if nodes % part == 0)

    def _levels(self, spans: Sequence[int]) -> Iterator[LinkLevel]:
        """Yield the levels in base units, with the devices that each spans; the network comes last."""
        for link, span in zip(self.device_links, spans, strict=True):
            pair = link.bandwidth if link.pair_bandwidth is None else link.pair_bandwidth
            yield LinkLevel(
                name=link.name,
                topology=link.topology,
                devices=span,
                bandwidth_bytes_per_second=link.bandwidth.amount,
                pair_bandwidth_bytes_per_second=pair.amount,
                latency_seconds=link.latency.amount,
                measured=link.bandwidth.status == "measured",
            )
        share = self.network.nics_per_node.value * self.network.nic_bandwidth.amount / self.devices_per_node
        yield LinkLevel(
            name=self.network.name,
            topology="network",
            devices=None,
            bandwidth_bytes_per_second=share,
            pair_bandwidth_bytes_per_second=share,
            latency_seconds=self.network.latency.amount,
            measured=self.network.nic_bandwidth.status == "measured",
        )
