"""Named stacks: switches as one source of runs sets them, over a framework's own defaults.

Each stands in a file of its framework's folder, `simulator/frameworks/*/stacks/NAME.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.profiles import profile_of
from simulator.question.frameworks.switch_text import switch_value
from simulator.question.specs.stacks import releases, stack_data
from simulator.question.vocabulary import STACKS as STACK_NAMES
from simulator.question.vocabulary import FrameworkName, ScheduleName, StackName


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Switches that somebody's runs set, and where that is documented."""

    name: StackName
    framework: FrameworkName
    about: str
    """Whose runs, one phrase."""
    source: str
    """Documents of these switches."""
    switches: Mapping[str, Any]
    schedules: tuple[ScheduleName, ...] = ()
    """Pipeline schedules beside the framework's."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Switches that its code fixes and no flag of a run sets."""
    vendors: tuple[str, ...] = ()
    """Makers whose devices it is written for; empty for all."""
    families: tuple[str, ...] = ()
    """Families of devices that it is shown for; empty for those that no other stack names."""
    tuned: bool = False
    """Whether the framework's experts publish it for speed: a ranking shows the best layout under it too."""


def _stack(name: StackName, content: Mapping[str, Any]) -> Stack:
    """Return the stack of a file's content; `release` names the release whose switches its code fixes."""
    values = {key: value for key, value in content.items() if key not in ("order", "release", "table")}
    own = releases()[content["release"]] if "release" in content else content.get("own", {})
    return Stack(name=name, **(values | {"own": own}))


STACKS: tuple[Stack, ...] = tuple(_stack(name, content) for name, content in stack_data().items())
"""All named stacks but `default`, which every framework has and which changes nothing."""
DEFAULT: StackName = "default"
_BY_NAME = {stack.name: stack for stack in STACKS}


@lru_cache(maxsize=16)
def stacks_of(framework: str) -> tuple[Stack, ...]:
    """Return the named stacks of a framework."""
    return tuple(stack for stack in STACKS if stack.framework == framework)


RELEASE = "@"
"""Separator of a stack's name and its release."""


def unreleased(framework: str) -> tuple[Stack, ...]:
    """Return a framework's stacks whose switches are the same for every model and device."""
    return tuple(stack for stack in stacks_of(framework) if RELEASE not in stack.name)


def suggested(framework: str, makers: set[str], families: set[str]) -> tuple[Stack, ...]:
    """Return the stacks published for speed on some devices: the newest release for their family, else the general."""
    tuned = [each for each in stacks_of(framework) if each.tuned and (not each.vendors or makers <= set(each.vendors))]
    named = [stack for stack in tuned if stack.families and families <= set(stack.families)]
    if named:
        return (max(named, key=lambda stack: stack.name),)
    return tuple(stack for stack in tuned if not stack.families)


def stack_for(framework: str, named: str | None, *usual: str | None) -> StackName:
    """Return the stack of a question: the named one, else the first usual one of this framework, else `default`.

    Raises InputError for an unknown one, or one of another framework.
    """
    allowed = (DEFAULT, *(stack.name for stack in stacks_of(framework)))
    if named is not None:
        for name in allowed:
            if name == named:
                return name
        raise InputError(
            f"stack '{named}'{did_you_mean(named, list(allowed))}; framework {framework} has: "
            + ", ".join((DEFAULT, *sorted(allowed[1:])))
        )
    return next((name for known in usual for name in allowed if name == known), DEFAULT)


def stack_of_file(name: object) -> StackName | None:
    """Return the stack that a file names; None without a name. Raises ValueError for an unknown one."""
    stack = next((known for known in STACK_NAMES if known == name), None)
    if name is not None and stack is None:
        raise ValueError(f"stack {str(name)[:40]!r}: allowed are {', '.join(STACK_NAMES)}")
    return stack


def on_stack(profile: FrameworkProfile, name: StackName) -> FrameworkProfile:
    """Return a profile with the switches of a stack of its framework."""
    if name == DEFAULT:
        return profile
    stack = _BY_NAME[name]
    limits = replace(profile.limits, schedules=(*profile.limits.schedules, *stack.schedules))
    return replace(profile, stack=name, limits=limits, **{**stack.own, **stack.switches})


def framework(name: str, options: Mapping[str, str] | None = None, stack: str | None = None) -> FrameworkProfile:
    """Return the profile called `name`: its own defaults, a stack's switches over them, `options` over those.

    Options are text as given on the command line. Raises InputError for an unknown framework, stack, switch or value.
    """
    settings: tuple[tuple[str, Any], ...] = tuple((options or {}).items())
    if wrong := next((key for key, text in settings if not isinstance(text, str)), None):
        raise InputError(f"option {wrong}: its value is text, as after --option")
    return _framework(name, settings, stack)


@lru_cache(maxsize=256)  # changes to a recipe need the same few profiles repeatedly
def _framework(name: str, options: tuple[tuple[str, str], ...], stack: str | None) -> FrameworkProfile:
    chosen = switched(on_stack(profile_of(name), stack_for(name, stack)), dict(options))
    return replace(chosen, stated=frozenset(name for name, _ in options)) if RELEASE in chosen.stack else chosen


def set_by_stacks(framework_name: str) -> Mapping[str, tuple[Any, ...]]:
    """Return the switches that a framework's stacks set, each with its values in those stacks and the defaults."""
    usual = profile_of(framework_name)
    names = dict.fromkeys(switch for stack in unreleased(framework_name) for switch in stack.switches)
    profiles = (usual, *(on_stack(usual, stack.name) for stack in unreleased(framework_name)))
    return {name: tuple(dict.fromkeys(getattr(profile, name) for profile in profiles)) for name in names}


def switched(profile: FrameworkProfile, options: Mapping[str, str]) -> FrameworkProfile:
    """Return the profile with switches replaced by `options`, text as on the command line.

    Raises InputError for an unknown switch or value.
    """
    known = {f.name: f for f in switches()}
    changes: dict[str, Any] = {}
    for key, text in options.items():
        if key not in known:
            raise InputError(
                f"--option {key}: unknown switch{did_you_mean(key, list(known))}; `simulate frameworks` lists them"
            )
        changes[key] = switch_value(known[key], text, getattr(profile, key))
    offered = profile.limits.optimizers
    if (optimizer := changes.get("optimizer", offered[0])) not in offered:
        raise InputError(f"optimizer {optimizer}: framework {profile.name} has {', '.join(offered)}")
    return replace(profile, **changes)
