"""Training stacks as data: what the folders of `simulator/frameworks` say of profiles, named stacks and releases.

Files are read here and typed in `simulator.question.frameworks`, so that formulas know no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from simulator.question.specs.documents import read_yaml
from simulator.question.vocabulary import FRAMEWORK_FOLDER, FRAMEWORKS

_PROFILE: Final = "profile.yaml"
_STACKS: Final = "*/stacks/*.yaml"
_RELEASES: Final = "*/releases.yaml"


def _tuples(value: Any) -> Any:
    """A value with tuples for its lists."""
    if isinstance(value, list):
        return tuple(map(_tuples, value))
    return {key: _tuples(item) for key, item in value.items()} if isinstance(value, dict) else value


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = _tuples(read_yaml(file))
    return content


def profile_data() -> Mapping[str, Mapping[str, Any]]:
    """Version, limits and switches of every profile, by its name."""
    return {name: _read(FRAMEWORK_FOLDER / name / _PROFILE) for name in FRAMEWORKS}


def stack_data() -> Mapping[str, Mapping[str, Any]]:
    """Every named stack by its name, in the order in which they are listed."""
    files = {file.stem: _read(file) for file in FRAMEWORK_FOLDER.glob(_STACKS)}
    return dict(sorted(files.items(), key=lambda item: item[1]["order"]))


@cache
def releases() -> Mapping[str, Mapping[str, Any]]:
    """Switches of the releases of stacks, by name, the oldest of each stack first."""
    by_name: dict[str, Mapping[str, Any]] = {}
    for file in sorted(FRAMEWORK_FOLDER.glob(_RELEASES)):
        content = _read(file)
        by_name |= {name: {**content["all"], **own} for name, own in content["releases"].items()}
    return by_name
