"""Framework profiles, each with its framework's own defaults; `stacks` holds what runs set over them.

Each stands in its framework's folder, `simulator/frameworks/NAME/profile.yaml`, with the source of every value.
"""

from __future__ import annotations

from simulator.errors import InputError, did_you_mean
from simulator.question.frameworks.limits import FrameworkLimits
from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.specs.stacks import profile_data

PROFILES: dict[str, FrameworkProfile] = {
    name: FrameworkProfile(
        name=name, version=content["version"], limits=FrameworkLimits(**content["limits"]), **content["switches"]
    )
    for name, content in profile_data().items()
}
MEGATRON = PROFILES["megatron"]
"""Framework of a question that names none."""


def profile_of(name: str) -> FrameworkProfile:
    """Return the profile called `name` with the framework's own defaults. Raises InputError for an unknown one."""
    if name not in PROFILES:
        raise InputError(
            f"unknown framework '{name}'{did_you_mean(name, list(PROFILES))}; allowed: {', '.join(PROFILES)}"
        )
    return PROFILES[name]
