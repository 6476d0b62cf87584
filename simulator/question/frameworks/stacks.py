"""Named stacks: switches as one source of runs sets them, over a framework's own defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from simulator.errors import InputError, did_you_mean
from simulator.question.frameworks.mindspeed import MINDSPEED
from simulator.question.frameworks.profile import FrameworkProfile, switches
from simulator.question.frameworks.profiles import profile_of
from simulator.question.frameworks.switch_text import switch_value
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
    """Documents that say so."""
    switches: Mapping[str, Any]
    schedules: tuple[ScheduleName, ...] = ()
    """Orders of passes that its pipelines have beside the framework's."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """What its code does in its own way, which no flag of a run chooses."""
    tuned: bool = False
    """Whether it is what a framework's own experts publish for speed: a ranking shows the best layout under it too."""


_OVERLAPS = {"tp_comm_overlap": True, "overlap_grad_reduce": True, "overlap_param_gather": True}

STACKS: tuple[Stack, ...] = (
    Stack(
        name="nvidia-recipes",
        framework="megatron",
        about="NVIDIA's recipes for performance: collectives overlapped, gradients reduced in 16 bits, fused loss",
        source="NVIDIA-NeMo/Megatron-Bridge 0.2: scripts/performance (CommOverlapConfig, grad_reduce_in_fp32=False), "
        "src/megatron/bridge/recipes/llama/llama3.py (cross_entropy_loss_fusion); NVIDIA-NeMo/NeMo: PerfEnvPlugin "
        "(expandable segments)",
        switches=_OVERLAPS | {"expandable_segments": True, "gradient_dtype": "bf16", "fused_cross_entropy": True},
        tuned=True,
    ),
    Stack(
        name="mindspeed-llm",
        framework="megatron",
        about="MindSpeed-LLM's examples on Ascend: data-parallel collectives overlapped, expandable segments",
        source="Ascend/MindSpeed-LLM 2.2: examples/mcore/qwen3/pretrain_qwen3_8b_4K_ptd_A3.sh and its neighbours",
        switches={"overlap_grad_reduce": True, "overlap_param_gather": True, "expandable_segments": True},
        # Ascend/MindSpeed v2.0.0_core_r0.8.0, features_manager/pipeline_parallel/dualpipev_feature.py.
        schedules=("dualpipev",),
        own=MINDSPEED["mindspeed-v2.2"],
    ),
    Stack(
        name="hai-llm",
        framework="megatron",
        about="DeepSeek's own framework as the report on V3 tells it: DualPipe, one copy of a token to a node, 8-bit "
        "blocks, moments in 16 bits",
        source="DeepSeek-V3 Technical Report, arXiv:2412.19437, sections 3.2 and 3.3; no public release",
        switches={
            "expert_dispatch": "deepep",
            "overlap_expert_exchange": True,
            "overlap_grad_reduce": True,
            "overlap_param_gather": True,
            "expandable_segments": True,
            "optimizer_dtype": "bf16",
            "fp8_recipe": "blockwise",
        },
        schedules=("dualpipe",),
    ),
    Stack(
        name="z2000",
        framework="megatron",
        about="what the launch scripts of the Z2000 runs set: collectives overlapped, expandable segments",
        source="the launch scripts behind calibration/measured/z2000-megatron.csv; PAI-Megatron-LM-240718",
        switches=_OVERLAPS | {"expandable_segments": True},
        own={"warm_up_whole_batch": True},
    ),
    Stack(
        name="torchtitan",
        framework="torch",
        about="torchtitan's launcher: expandable segments",
        source="pytorch/torchtitan 0.2: run_train.sh",
        switches={"expandable_segments": True},
        tuned=True,
    ),
)
"""All named stacks; `default`, which changes nothing, is one for every framework beside them."""
DEFAULT: StackName = "default"
_BY_NAME = {stack.name: stack for stack in STACKS}


def stacks_of(framework: str) -> tuple[Stack, ...]:
    """The named stacks of a framework."""
    return tuple(stack for stack in STACKS if stack.framework == framework)


def stack_for(framework: str, asked: str | None, *usual: str | None) -> StackName:
    """The stack of a question: the one asked for, else the first usual one of this framework, else its defaults.

    Raises InputError for an unknown one, or one of another framework.
    """
    allowed = (DEFAULT, *(stack.name for stack in stacks_of(framework)))
    if asked is not None:
        for name in allowed:
            if name == asked:
                return name
        raise InputError(
            f"stack '{asked}'{did_you_mean(asked, list(allowed))}; framework {framework} has: {', '.join(allowed)}"
        )
    return next((name for one in usual for name in allowed if name == one), DEFAULT)


def stack_of_file(name: object) -> StackName | None:
    """A named stack as files hold it; None where they do not. Raises ValueError for another word."""
    found = next((known for known in STACK_NAMES if known == name), None)
    if name is not None and found is None:
        raise ValueError(f"stack {str(name)[:40]!r}: allowed are {', '.join(STACK_NAMES)}")
    return found


def on_stack(profile: FrameworkProfile, name: StackName) -> FrameworkProfile:
    """A profile with the switches of a stack of its framework."""
    if name == DEFAULT:
        return profile
    stack = _BY_NAME[name]
    limits = replace(profile.limits, schedules=(*profile.limits.schedules, *stack.schedules))
    return replace(profile, stack=name, limits=limits, **{**stack.own, **stack.switches})


def framework(name: str, options: Mapping[str, str] | None = None, stack: str | None = None) -> FrameworkProfile:
    """The profile called `name`: its own defaults, a stack's switches over them, and `options` over those.

    Options are text as given on the command line. Raises InputError for an unknown framework, stack, switch or value.
    """
    given: tuple[tuple[str, Any], ...] = tuple((options or {}).items())
    if wrong := next((key for key, text in given if not isinstance(text, str)), None):
        raise InputError(f"option {wrong}: its value is text, as after --option")
    return _framework(name, given, stack)


@lru_cache(maxsize=256)  # changes to a recipe ask for the same few again and again
def _framework(name: str, options: tuple[tuple[str, str], ...], stack: str | None) -> FrameworkProfile:
    return switched(on_stack(profile_of(name), stack_for(name, stack)), dict(options))


def set_by_stacks(framework_name: str) -> Mapping[str, tuple[Any, ...]]:
    """Switches that some stack of a framework sets, with every value that they have in its stacks and defaults."""
    usual = profile_of(framework_name)
    names = dict.fromkeys(switch for stack in stacks_of(framework_name) for switch in stack.switches)
    profiles = (usual, *(on_stack(usual, stack.name) for stack in stacks_of(framework_name)))
    return {name: tuple(dict.fromkeys(getattr(profile, name) for profile in profiles)) for name in names}


def switched(profile: FrameworkProfile, options: Mapping[str, str]) -> FrameworkProfile:
    """A profile with switches replaced by `options` (text as given on the command line).

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
    return replace(profile, **changes)
