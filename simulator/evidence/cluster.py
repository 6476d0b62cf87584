"""Clusters named in text, as in `--hardware h800-sxm-80g:1,bi150-64g:1x8`: one kind of device, or groups of nodes."""

from __future__ import annotations

from simulator.errors import InputError, quoted
from simulator.evidence.calibration.apply import applied
from simulator.late import late_pattern
from simulator.question.scenario.scenario import Cluster, NodeGroup
from simulator.question.specs.catalogue import load_hardware
from simulator.question.specs.hardware import HardwareSpec

_GROUP = late_pattern(r"(?P<name>.+?):(?P<nodes>\d{1,7})(?:x(?P<devices>\d{1,5}))?")


def cluster(
    hardware: str, nodes: int | str | None = None, devices: int | None = None, calibration: str | None = None
) -> Cluster:
    """Return the cluster that `hardware` names: a spec, or `NAME:NODES[xDEVICES]` several times with commas.

    `h800-sxm-80g:1,bi150-64g:1x8` is one node of each, of the second 8 devices. Without `nodes` and `devices` a single
    kind is one node. Raises InputError for an unknown name or a wrong size.
    """
    if isinstance(nodes, str):
        raise InputError(f"nodes {quoted(nodes)}: only a ranking searches them; write a whole number")
    if nodes is not None and devices is not None:
        raise InputError("give nodes or devices, not both")
    parts = hardware.split(",")
    if len(parts) == 1 and not _GROUP.fullmatch(hardware):
        spec = load_hardware(hardware)
        size = devices if devices is not None else (1 if nodes is None else nodes) * spec.devices_per_node
        return _calibrated(spec, size, (), calibration)
    if nodes is not None or devices is not None:
        raise InputError(f"hardware '{hardware}': node groups give their own sizes; leave out nodes and devices")
    groups = tuple(_group(part, calibration) for part in parts)
    total = sum(group.devices for group in groups)
    first = groups[0].hardware
    uniform = len({group.hardware.name for group in groups}) == 1
    return _calibrated(first, total, () if uniform else groups, calibration)


def _calibrated(spec: HardwareSpec, devices: int, groups: tuple[NodeGroup, ...], calibration: str | None) -> Cluster:
    used = applied(spec.family, calibration, spec.name)
    return Cluster(
        hardware=spec,
        devices=devices,
        groups=groups,
        coefficients=used.coefficients(),
        calibration=used,
        stacks=tuple(name for name in (used.stack, spec.stack) if name is not None),
    )


def device_kinds(hardware: str) -> tuple[HardwareSpec, ...]:
    """Return the kinds of device that a cluster's text names. Raises InputError as `cluster` does."""
    machines = cluster(hardware)
    return tuple(group.hardware for group in machines.groups) or (machines.hardware,)


def _group(text: str, calibration: str | None) -> NodeGroup:
    matched = _GROUP.fullmatch(text.strip())
    if matched is None:
        raise InputError(f"hardware group '{text}': write NAME:NODES or NAME:NODESxDEVICES, such as bi150-64g:1x8")
    spec = load_hardware(matched["name"])
    per_node = spec.devices_per_node if matched["devices"] is None else int(matched["devices"])
    if not 1 <= per_node <= spec.devices_per_node or int(matched["nodes"]) < 1:
        raise InputError(f"hardware group '{text}': from 1 node, and 1 to {spec.devices_per_node} devices of a node")
    return NodeGroup(
        spec, int(matched["nodes"]) * per_node, applied(spec.family, calibration, spec.name).coefficients()
    )
