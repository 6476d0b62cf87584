"""Versions of Megatron's core, recognised by the path of its code, and the behaviour of older ones. Runs nothing."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from simulator.frameworks.arguments import Arguments
from simulator.frameworks.flags import table_of
from simulator.frameworks.launch import LaunchCommand
from simulator.question.recipe import Recipe

_CORE: Final = re.compile(r"(?<![A-Za-z0-9])core[-_]([rv])0\.([0-9]{1,2})(?:\.([0-9]{1,2}))?(?![0-9])", re.ASCII)
"""Names of Megatron-LM's branches and tags: core_r0.8.0, core_v0.12.1."""
_TIP: Final = 99
"""PATCH of a branch, which is at least its last release."""
_SNAPSHOT: Final = re.compile(r"/(?:PAI-)?Megatron-LM-(23\.04|[0-9]{6})(?![\w.-])", re.ASCII)
_MINORS: Final = (
    *((1, "23.04 230512"), (4, "231007 231221 240126"), (6, "240322 240405"), (8, "240612"), (9, "240718")),
    *((10, "241113"), (11, "250213"), (12, "250217 250310 250314 250328"), (14, "250624"), (15, "250908")),
)
_SNAPSHOTS: Final[Mapping[str, int]] = MappingProxyType({name: n for n, names in _MINORS for name in names.split()})
"""Core 0.MINOR (megatron/core/package_info.py) in Pai-Megatron-Patch's folders of Megatron-LM, by snapshot.

Commits are those of its submodules (alibaba/Pai-Megatron-Patch a098ca5 and its history). 240718 is the fork's up to
September 2025 (jerryli1981/PAI-Megatron-LM-240718 8dfa137), for which its scripts were written.
"""
_WHOLE_BATCH_UNTIL: Final = 9
"""Last core with it: pipeline_parallel/schedules.py of core_v0.9.0, line 664; removed before 0.10
(NVIDIA/Megatron-LM 4295be1)."""
_PROBABILITIES_SINCE: Final = (12, 1)
"""First core with `permuted_probs` in transformer/moe/experts.py: core_v0.12.1, not core_v0.12.0."""
_CONNECTIONS_SINCE: Final = 12
"""First core that refuses one connection to a device, see `_remark_connections`."""


def core_of(launch: LaunchCommand) -> tuple[int, int] | None:
    """Return (MINOR, PATCH) of a launch's megatron-core, by the paths that Python searches; None if unknown."""
    paths = [launch.script.text]
    if "PYTHONPATH" in launch.environment:
        paths += launch.environment["PYTHONPATH"].text.split(":")
    for path in paths:
        if core := _CORE.search(path):
            return int(core[2]), _TIP if core[1] == "r" else int(core[3] or 0)
        if (snapshot := _SNAPSHOT.search(path)) and snapshot[1] in _SNAPSHOTS:
            return _SNAPSHOTS[snapshot[1]], 0
    return None


def _needed(arguments: Arguments) -> int:
    """Return the MINOR of the oldest core that has the flags of a launch."""
    own = table_of("megatron")
    releases = [_CORE.match(own[name].first) for name in arguments.entries if name in own]
    return max((int(core[2]) for core in releases if core), default=0)


def with_core(arguments: Arguments, run: Recipe, launch: LaunchCommand | None) -> Recipe:
    """Return the run with the behaviour of an older core; MindSpeed's releases have their own."""
    if launch is None or run.stack is not None:
        return run
    core = core_of(launch)
    _remark_connections(arguments, launch, core)
    if core is None:
        return run
    older = {"warm_up_whole_batch": "true"} if core[0] <= _WHOLE_BATCH_UNTIL else {}
    if arguments.has("num-experts") and core < _PROBABILITIES_SINCE:
        older["probabilities_in_experts"] = "false"
    return dataclasses.replace(run, options={**run.options, **older})


def _remark_connections(arguments: Arguments, launch: LaunchCommand, core: tuple[int, int] | None) -> None:
    """Remark FSDP with one connection to a device, which cores from 0.12 on refuse.

    Megatron-LM core_v0.12.0, megatron/training/arguments.py:527 and 567; cores 0.10 and 0.11 only warn.
    """
    number = launch.environment.get("CUDA_DEVICE_MAX_CONNECTIONS")
    names = ("use-torch-fsdp2", "use-megatron-fsdp")
    if number is None or not number.known or number.text != "1" or not arguments.has(*names):
        return
    if (_needed(arguments) if core is None else core[0]) >= _CONNECTIONS_SINCE:
        message, fix = "CUDA_DEVICE_MAX_CONNECTIONS is 1", "unset CUDA_DEVICE_MAX_CONNECTIONS"
        arguments.remark("one-connection", "error", message, *names, fix=fix)
