"""Shell in a job's description, such as `run` of SkyPilot or `command` of MosaicML. Runs nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from simulator.errors import InputError
from simulator.frameworks.documents import Key, keys_of, read_document
from simulator.recipes.readers.recognition import command_line

_COMMANDS: Final = frozenset(["run", "command", "commands", "script", "args", "arguments", "entrypoint"])
"""Last parts of keys that hold shell."""
_HEAD: Final = "setup"
"""Key of preceding commands, which may hold a scheduler's own lines."""
_ENVIRONMENT: Final = frozenset(["envs", "env", "env_variables"])
_DEVICES: Final = re.compile(r"[\w-]+:([1-9]\d{0,3})", re.ASCII)
"""Devices per node: `H100:8`."""


def job_script(path: Path) -> tuple[str, Mapping[str, str]]:
    """Return the shell of a job's description, at its line numbers, and the variables that the job sets.

    The text is empty without any shell. SkyPilot passes a task's nodes and devices as variables (docs,
    running-jobs/environment-variables).
    """
    try:
        keys = keys_of(path, read_document(path))
    except InputError:
        return "", {}
    lines: list[str] = []
    for key in keys:
        text = _shell(key)
        if key.dotted == _HEAD or (key.name in _COMMANDS and command_line(text)):
            lines += [""] * (key.line - len(lines))
            lines += text.split("\n")
    return "\n".join(lines), _variables(keys)


def _shell(key: Key) -> str:
    """Return the shell of a key; for a list the command after `-c`, or one command per line."""
    items = [value.text for value in key.values]
    behind = items.index("-c") + 1 if "-c" in items else 0
    return "\n".join(items[behind : behind + 1] if 0 < behind < len(items) else items)


def _variables(keys: Sequence[Key]) -> dict[str, str]:
    variables = {
        key.name: key.values[0].text
        for key in keys
        if len(key.path) == 2 and key.path[0] in _ENVIRONMENT and len(key.values) == 1
    }
    texts = {key.dotted: key.values[0].text for key in keys if key.values}
    if "resources.accelerators" in texts:
        devices = _DEVICES.fullmatch(texts["resources.accelerators"])
        variables["SKYPILOT_NUM_NODES"] = texts.get("num_nodes", "1")
        if devices is not None:
            variables["SKYPILOT_NUM_GPUS_PER_NODE"] = devices[1]
    return variables
