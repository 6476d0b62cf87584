"""Unstated machines of a recipe: they never decide alone that a recipe fails.

A number of nodes or devices is unstated where the recipe omits it, counts it with a command at run time, or takes it
from a variable with a default (`${SLURM_NNODES:-1}`). What fails on the assumed machines is tried on others; if it
passes on some, the answer names their number and gives no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from simulator.evidence.cluster import cluster
from simulator.question.origin import OPTION, Remark
from simulator.question.question import Question
from simulator.question.recipe import Recipe

_LISTED: Final = r"nvidia-smi\s+(?:-L|--list-gpus|--query-gpu=\w+ --format=csv,noheader)\s*\|\s*wc -l"
_TORCH: Final = r"python3?\s+-c\s+[\"']import torch; ?print\(torch\.cuda\.device_count\(\)\)[\"']"
_ON_A_NODE: Final = re.compile(rf"(?:\$\(|`)\s*(?:{_TORCH}|{_LISTED})\s*[)`]")
"""Commands that print the number of devices of the node, as the text of an unknown value."""
_IN_ALL: Final = re.compile(rf"\$\(\s*ds_ssh\s+{_LISTED}\s*\)")
"""The same on every node, after two lines that `ds_ssh` prints and scripts subtract."""
_LINES_BEFORE: Final = 2
COUNTED: Final = "devices-counted"
"""Rule of the remark on a command that is assumed to count the hardware's devices."""
HOSTS: Final = "hosts-assumed"
"""Rule of the remark on a launcher whose file of hosts is missing."""
_COUNTS_MACHINES: Final = re.compile(r"(?i)\w*(?:node|world|slurm|gpus?|devices|nproc|npu|replica|ranks|hosts)\w*")
"""Names of variables that may hold a number of machines."""
_FACTORS: Final = (2, 4, 8, 16, 32, 64, 128)
_MOST_TRIED: Final = 14


def counts(recipes: Iterable[Recipe], devices: int, nodes: int) -> Mapping[str, str]:
    """Return the output of the recipes' commands that count devices, of a node or of all nodes.

    `devices` are those of one node of the hardware, `nodes` the number of nodes asked about.
    """
    names = sorted({unknown.name for recipe in recipes for unknown in recipe.unknowns if unknown.affects})
    each = {name: str(devices) for name in names if _ON_A_NODE.fullmatch(name)}
    return each | {name: str(devices * nodes + _LINES_BEFORE) for name in names if _IN_ALL.fullmatch(name)}


def with_counts(recipes: Iterable[Recipe], values: Mapping[str, str]) -> tuple[Recipe, ...]:
    """Return recipes with a remark on each command that is assumed to print a number."""
    remarks = tuple(
        Remark("devices-counted", "note", f"{name[:80]} is taken to print {text}", fix="--hardware NAME --nodes N")
        for name, text in values.items()
    )
    return tuple(replace(recipe, remarks=(*recipe.remarks, *remarks)) for recipe in recipes)


@dataclass(frozen=True, slots=True)
class Unstated:
    """The numbers of machines that a recipe does not state."""

    nodes: bool
    devices_per_node: bool
    counted: bool = False
    """Whether a command counts them at run time."""
    variable: str = ""
    """Variable whose default is used; empty without one."""

    def __bool__(self) -> bool:
        """Return whether any number is unstated."""
        return self.nodes or self.devices_per_node


Reread = Callable[[Mapping[str, str], Question], Recipe | None]
"""Reads the same launch with other settings, on other machines; None where the file then has no such launch."""


def unstated(recipe: Recipe, options: Question, reread: Reread) -> Unstated:
    """Return which numbers of machines neither recipe nor user state."""
    if options.is_sized:
        return Unstated(nodes=False, devices_per_node=False)
    sized = recipe.layout is not None and "dp" in recipe.places and recipe.nodes is None
    counted = [remark.message for remark in recipe.remarks if remark.rule == COUNTED]
    hosts = any(remark.rule == HOSTS for remark in recipe.remarks) or any("ds_ssh" in command for command in counted)
    missing = Unstated(
        nodes=(recipe.nodes is None and not sized) or hosts,
        devices_per_node=(recipe.devices_per_node is None and not sized) or bool(counted),
        counted=bool(counted),
    )
    return missing if missing.nodes else _defaulted(recipe, options, missing, reread)


def _defaulted(recipe: Recipe, options: Question, missing: Unstated, reread: Reread) -> Unstated:
    """Return `missing` with the numbers that defaults of environment variables decide, nodes first."""
    for name in _defaults(recipe):
        other = reread({name: "3"}, options)
        if other is None:
            continue
        if other.nodes != recipe.nodes:
            missing = replace(missing, nodes=True, variable=name)
        if other.devices_per_node != recipe.devices_per_node:
            missing = replace(missing, devices_per_node=True, variable=missing.variable or name)
    return missing


def _defaults(recipe: Recipe) -> Iterator[str]:
    """Yield the variables assumed to be unset that may hold a number of machines."""
    for remark in recipe.remarks:
        if remark.rule == "assumed-unset":
            yield from (name for name in re.findall(r"\$(\w+)", remark.message) if _COUNTS_MACHINES.fullmatch(name))


def launched_devices(recipe: Recipe, options: Question) -> int:
    """Return the devices that a recipe starts on; by default one node and all of its devices."""
    spec = cluster(options.value("hardware"), None, None, options.stated("calibration")).hardware
    return (recipe.nodes or 1) * (recipe.devices_per_node or spec.devices_per_node)


def other_machines(
    recipe: Recipe, options: Question, missing: Unstated, devices: int
) -> Iterator[tuple[str, Question]]:
    """Yield other machines, as option text and as options: more nodes, fewer devices, fewer nodes.

    `devices` are those on which the recipe fails.
    """
    spec = cluster(options.value("hardware"), None, None, options.stated("calibration")).hardware
    per_node = recipe.devices_per_node or spec.devices_per_node
    nodes = max(devices // per_node, 1)
    if missing.nodes:
        more = (nodes * factor for factor in _FACTORS)
        yield from ((f"--nodes {count}", options.changed(OPTION, nodes=count)) for count in more)
    if missing.devices_per_node:
        fewer = (devices // 2**power for power in range(1, devices.bit_length()) if devices % 2**power == 0)
        yield from ((f"--devices {count}", options.changed(OPTION, devices=count)) for count in fewer)
    if missing.nodes:
        yield from ((f"--nodes {count}", options.changed(OPTION, nodes=count)) for count in _below(nodes))


def _below(nodes: int) -> list[int]:
    return [count for count in range(nodes - 1, 0, -1) if nodes % count == 0][:_MOST_TRIED]


def nodes_remark(elsewhere: str, failure: str, missing: Unstated) -> Remark:
    """Return the remark on a recipe that fails on the assumed machines but may pass on others."""
    unknown = "how many nodes run it" if missing.nodes else "how many devices of a node run it"
    source = (
        f"takes {unknown} from ${missing.variable}, which is not set" if missing.variable else f"does not say {unknown}"
    )
    tells = "--nodes N" if missing.nodes else "--devices N"
    return Remark(
        rule="unknown-nodes",
        severity="error",
        message=f"the recipe {source}: {failure}; {elsewhere}",
        fix=tells if not missing.variable else f"{tells}, or --set {missing.variable}=N",
    )
