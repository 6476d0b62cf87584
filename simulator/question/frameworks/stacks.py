"""Stacks: the switches of a framework as one release, or one source of runs, sets them over its defaults.

Old spellings of switches live here too, each with the name that took its place.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from simulator.errors import InputError, did_you_mean
from simulator.files import read_table
from simulator.question.frameworks.profile import FrameworkLimits, FrameworkProfile, switch_value, switches
from simulator.question.specs.stacks import practice_rows, profile_data, release_rows, releases, stack_data
from simulator.question.vocabulary import STACKS as STACK_NAMES
from simulator.question.vocabulary import FrameworkName, ScheduleName, StackName
from simulator.records import Bare, NamedTuple, field, replace

IN_16_BITS: Final = {"parameter_dtype": "bf16", "gradient_dtype": "bf16", "optimizer_dtype": "bf16"}
"""Switches of weights in the compute type, without a master copy: torch makes gradients and moments alike."""


class Stack(Bare, kw_only=True):
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
    lora_rank: int | None = None
    """Rank of its adapters where a run names none; None where its library has the framework's."""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Further switches, as text, of runs that train adapters."""
    narrow: Mapping[str, str] = field(default_factory=dict)
    """Switches, as text, of adapters over a base of 4 bits."""
    tuned: bool = False
    """Whether the framework's experts publish it for speed: a ranking shows the best layout under it too."""
    open: bool | Sequence[str] = False
    """Whether runs on it may set other switches too, or which ones: they stay open where a run is described."""
    lacks: tuple[str, ...] = ()
    """Parallel sizes that its launches, as they are written, lack: a search leaves them at 1 unless they are said."""
    fixed: tuple[str, ...] = ()
    """Switches that its code has in no other way: `--option` cannot change them."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Limits of its own: the highest ZeRO stage and the usual one, whether its recompute can list operations."""
    layout: Mapping[str, Any] = field(default_factory=dict)
    """Recompute, and what it offloads, of its runs that say none."""
    undecided: tuple[str, ...] = ()
    """Switches that it sets and its runs may have otherwise: they stay open."""
    library: bool = False
    """Whether its layers are those of the model's class in transformers."""


def _stack(name: StackName, content: Mapping[str, Any]) -> Stack:
    """Return the stack of a file's content; `release` names the release whose switches its code fixes."""
    values = {key: value for key, value in content.items() if key not in ("order", "release", "table")}
    own = releases()[content["release"]] if "release" in content else content.get("own", {})
    return Stack(name=name, **(values | {"own": own}))


STACKS: tuple[Stack, ...] = tuple(_stack(name, content) for name, content in stack_data().items())
"""All named stacks but `default`, which every framework has and which changes nothing."""
DEFAULT: StackName = "default"
_BY_NAME = {stack.name: stack for stack in STACKS}
RECOMPUTES: Final = {stack.name: stack.layout for stack in STACKS if stack.layout}


@lru_cache(maxsize=16)
def stacks_of(framework: str) -> tuple[Stack, ...]:
    """Return the named stacks of a framework."""
    return tuple(stack for stack in STACKS if stack.framework == framework)


def stack_options(name: str) -> dict[str, str]:
    """Return the switches of a named stack, as options of a question."""
    return {switch: str(value).lower() for switch, value in _BY_NAME[name].switches.items()}


RELEASE = "@"
"""Separator of a stack's name and its release."""


def unreleased(framework: str) -> tuple[Stack, ...]:
    """Return a framework's stacks whose switches are the same for every model and device."""
    return tuple(stack for stack in stacks_of(framework) if RELEASE not in stack.name)


def suggested(framework: str, makers: set[str], families: set[str]) -> tuple[Stack, ...]:
    """Return the stacks published for speed on some devices.

    The newest release for their family; else those for their makers, else those for all devices.
    """
    tuned = [each for each in stacks_of(framework) if each.tuned and (not each.vendors or makers <= set(each.vendors))]
    named = [stack for stack in tuned if stack.families and families <= set(stack.families)]
    if named:
        return (max(named, key=lambda stack: stack.name),)
    general = [stack for stack in tuned if not stack.families]
    return tuple(stack for stack in general if stack.vendors) or tuple(general)


def stack_for(framework: str, named: str | None, *usual: str | None) -> StackName:
    """Return the stack of a question: the named one, else the first usual one, else `default`. Raises InputError."""
    allowed = (DEFAULT, *(stack.name for stack in stacks_of(framework)))
    if named is None:
        return next((name for known in usual for name in allowed if name == known), DEFAULT)
    if (stack := next((name for name in allowed if name == named), None)) is not None:
        return stack
    names = ", ".join((DEFAULT, *sorted(allowed[1:])))
    if named in _BY_NAME:
        whose = _BY_NAME[named].framework
        raise InputError(
            f"stack '{named}' is of framework {whose}: --framework {whose}, or one of {names} for {framework}"
        )
    raise InputError(f"stack '{named}'{did_you_mean(named, list(allowed))}; framework {framework} has: {names}")


def framework_of(stack: str) -> FrameworkName | None:
    """Return the framework of a named stack; None for `default`, which all have, and for an unknown one."""
    return _BY_NAME[stack].framework if stack in _BY_NAME else None


def decided_by(stack: StackName) -> frozenset[str] | None:
    """Return the switches that a stack decides where it leaves others open; None where it decides all."""
    named = _BY_NAME.get(stack)
    if named is None or not named.open:
        return None
    every = {*named.own, *named.switches, *named.adapters} if named.open is True else _SWITCHES.keys() - set(named.open)
    return frozenset(every - set(named.undecided))


def of_code(stack: StackName) -> frozenset[str]:
    """Return the switches that a stack's code fixes."""
    return frozenset(_BY_NAME[stack].own if stack in _BY_NAME else ())


def lacking(stack: StackName) -> tuple[str, ...]:
    """Return the parallel sizes that launches on a stack do not have."""
    return _BY_NAME[stack].lacks if stack in _BY_NAME else ()


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
    limits = replace(profile.limits, schedules=(*profile.limits.schedules, *stack.schedules), **stack.limits)
    return replace(profile, stack=name, limits=limits, **{**stack.own, **stack.switches})


def framework(name: str, options: Mapping[str, str] | None = None, stack: str | None = None) -> FrameworkProfile:
    """Return the profile `name` with a stack's switches, and `options` as text over those. Raises InputError."""
    settings: tuple[tuple[str, Any], ...] = tuple((options or {}).items())
    if wrong := next((key for key, text in settings if not isinstance(text, str)), None):
        raise InputError(f"option {wrong}: its value is text, as after --option")
    return _framework(name, settings, stack)


@lru_cache(maxsize=256)  # changes to a recipe need the same few profiles repeatedly
def _framework(name: str, options: tuple[tuple[str, str], ...], stack: str | None) -> FrameworkProfile:
    usual = on_stack(profile_of(name), stack_for(name, stack))
    chosen = switched(usual, dict(options))
    for switch in () if usual.stack == DEFAULT else _BY_NAME[usual.stack].fixed:
        value, only = (str(getattr(profile, switch)).lower() for profile in (chosen, usual))
        if value != only:
            raise InputError(
                f"--option {switch}={value}: stack '{usual.stack}' has {switch}={only} alone; leave one of both out"
            )
    return replace(chosen, stated=frozenset(name for name, _ in options)) if RELEASE in chosen.stack else chosen


def set_by_stacks(framework_name: str) -> Mapping[str, tuple[Any, ...]]:
    """Return the switches that a framework's stacks set, each with its values in those stacks and the defaults."""
    usual = profile_of(framework_name)
    names = dict.fromkeys(switch for stack in unreleased(framework_name) for switch in stack.switches)
    profiles = (usual, *(on_stack(usual, stack.name) for stack in unreleased(framework_name)))
    return {name: tuple(dict.fromkeys(getattr(profile, name) for profile in profiles)) for name in names}


def switched(profile: FrameworkProfile, options: Mapping[str, str]) -> FrameworkProfile:
    """Return the profile with switches replaced by `options`, text as on the command line. Raises InputError."""
    changes: dict[str, Any] = {}
    for key, text in options.items():
        if key not in _SWITCHES:
            raise InputError(
                f"--option {key}: unknown switch{did_you_mean(key, list(_SWITCHES))}; `simulate frameworks` lists them"
            )
        changes[key] = switch_value(_SWITCHES[key], text, getattr(profile, key))
    offered = profile.limits.optimizers
    if (optimizer := changes.get("optimizer", offered[0])) not in offered:
        raise InputError(f"optimizer {optimizer}: framework {profile.name} has {', '.join(offered)}")
    return replace(profile, **changes)


_SWITCHES: Final = {field.name: field for field in switches()}
_RECIPE: Final = "fp8_recipe"
_BLOCKS: Final = ("blackwell",)  # families whose own fp8 scales blocks of 32 numbers


class ReleaseCase(NamedTuple):
    """Case on which the switches of a release depend."""

    model: str
    is_moe: bool
    hardware: str
    family: str
    precision: str
    devices: int
    adapters: bool
    """Whether LoRA is trained."""


class ReleaseRecipe(Bare, kw_only=True):
    """Recipe of a release, in this project's words."""

    recipe: str
    """Function that builds it."""
    model: str
    is_moe: bool
    hardware: str
    devices: int
    precision: str
    global_batch_size: int | None
    source: str
    """File and line of the function."""
    layout: Mapping[str, str]
    """Layout fields that differ from the usual ones, as text by key."""
    switches: Mapping[str, str]
    lines: Mapping[str, str]
    """File and line of each value that one line sets."""

    @property
    def trains_adapters(self) -> bool:
        """Whether it trains adapters alone."""
        return any(word in self.recipe for word in ("_peft_", "_lora_"))

    @property
    def tunes(self) -> bool:
        """Whether it fine-tunes a trained model."""
        return self.trains_adapters or "_sft_" in self.recipe


_AS_WRITTEN: Final = ("recipe", "model", "hardware", "precision", "layout", "switches", "lines")


@lru_cache(maxsize=16)
def release_recipes(stack: str) -> tuple[ReleaseRecipe, ...]:
    """Return the recipes of a release; none for a stack that is no release."""
    return tuple(
        ReleaseRecipe(
            is_moe=row["experts"] == "yes",
            devices=int(row["devices"] or 0),
            global_batch_size=int(row["global_batch_size"]) if row["global_batch_size"] else None,
            source=row["file"],
            **{name: row[name] for name in _AS_WRITTEN},
        )
        for row in release_rows(stack)
    )


def _of_case(recipes: Collection[ReleaseRecipe], case: tuple[str, str, str]) -> list[ReleaseRecipe]:
    """Return the recipes for a model, device and precision; a recipe that names no device is for any."""
    model, hardware, precision = case
    alike = (each for each in recipes if (each.model, each.precision) == (model, precision))
    return [each for each in alike if each.hardware in (hardware, "")]


def usual_profile(  # noqa: PLR0913, PLR0917  what a question says of its stack
    name: str,
    options: Mapping[str, str],
    named: str | None,
    usual: Collection[str],
    case: tuple[str, str, str, str, str],
    devices: tuple[str, str],
    *,
    recommended: bool = False,
    adapters: bool = False,
) -> FrameworkProfile:
    """Return the profile of a question: on the `named` stack, else on the framework's first `usual` one.

    Else on the newest release for `devices`, their maker and family, where it has a recipe of this `case`: model,
    device and precision; a layout that is `recommended` has what is published for speed there, recipe or not. Runs that
    train `adapters`, or on a family of devices, have the switches of most such runs that their stack leaves open.
    Raises InputError for a base of 4 bits without adapters: nothing would be trained.
    """
    stack = stack_for(name, named, *usual)
    there = (each for each in practice_of(name) if devices[1] in each.families and (each.share or 0.0) > 1.0 / 2.0)
    own: StackName = "transformers" if "dense_masks" in options else stack
    options = {**library_options(own, *case[3:], devices[1]), **{each.switch: each.text for each in there}, **options}
    if adapters:
        options = with_usual_adapters(name, stack, options)
    elif options.get("quantised_base") == "true":
        raise InputError("--option quantised_base=true: needs adapters over the base: --method qlora or --lora-rank N")
    if named is None and stack == DEFAULT:
        maker, family = devices
        for tuned in suggested(name, {maker}, {family}):
            if recommended or _of_case(release_recipes(tuned.name), case[:3]):
                whose = f"stack {tuned.name}, good practice there (--stack default for none)"
                profile = framework(name, options, tuned.name)
                return replace(profile, stack_assumed=True, release=whose, release_source=tuned.source)
    return framework(name, options, stack)


def with_release(profile: FrameworkProfile, case: ReleaseCase) -> FrameworkProfile:
    """Return a release's profile with the switches it sets for one case; those that the question names stay.

    Recipes whose FSDP takes the place of the framework's own sharding count only where the question has it.
    """
    if profile.case == case or not release_recipes(profile.stack):
        return profile
    chosen = {name: getattr(profile, name) for name in profile.stated}
    usual = framework(profile.name, stack=profile.stack)
    # Else TransformerEngine 2.16's default (`get_default_fp8_recipe`, quantization.py).
    fp8_recipe = chosen.get(_RECIPE) or ("mxfp8" if case.family in _BLOCKS else "delayed")
    wholly = chosen.get("fully_shard", usual.fully_shard) and not usual.fully_shard
    every = release_recipes(profile.stack)
    recipes = [each for each in every if ("fully_shard" in each.switches) == wholly]
    left_out = "" if len(recipes) == len(every) or wholly else " without FSDP"
    alike = _of_case(recipes, (case.model, case.hardware, case.precision))
    alike = [each for each in alike if each.trains_adapters == case.adapters]
    # Preferred are recipes that scale fp8 alike, then those that train from scratch on as many devices.
    alike = [each for each in alike if each.switches.get(_RECIPE, fp8_recipe) == fp8_recipe] or alike
    recipe = min(alike, key=lambda each: (each.tunes, abs(each.devices - case.devices), each.recipe), default=None)
    values, whose = (recipe.switches, recipe.recipe) if recipe else _usual(recipes, case, fp8_recipe, left_out)
    typed = {name: switch_value(_SWITCHES[name], text, getattr(usual, name)) for name, text in values.items()}
    where = f" ({recipe.source})" if recipe else ""
    marks: dict[str, Any] = {"stated": profile.stated, "stack_assumed": profile.stack_assumed}
    changed = replace(usual, **{**typed, **chosen}, **marks, case=case, release_source=f"{whose}{where}")
    scaled = f", fp8 by {changed.fp8_recipe}" if case.precision == "fp8" else ""
    assumed = " (assumed; --stack default for none)" if profile.stack_assumed else ""
    return replace(changed, release=f"{profile.stack}{assumed}: {whose}{scaled}")


def _usual(
    recipes: Collection[ReleaseRecipe], case: ReleaseCase, fp8_recipe: str, left_out: str
) -> tuple[Mapping[str, str], str]:
    """Return the switches of more than half of the nearest recipes, and their description with what was `left_out`.

    Of fp8 recipes, those that scale as `fp8_recipe` count.
    """
    alike = [recipe for recipe in recipes if recipe.is_moe == case.is_moe]
    alike = [recipe for recipe in alike if case.adapters or not recipe.tunes] or alike
    if case.precision == "fp8":
        alike = [recipe for recipe in alike if recipe.switches.get(_RECIPE, fp8_recipe) == fp8_recipe] or alike
    same = [recipe for recipe in alike if recipe.precision == case.precision]
    here = [recipe for recipe in same if recipe.hardware in (case.hardware, "")]
    where = case.hardware if here else "any device" if same else "any device and precision"
    pool = here or same or alike
    kind = "mixtures of experts" if case.is_moe else "dense models"
    none = f"no recipe{left_out} for {case.model} on {case.hardware} in {case.precision}"
    shares = Counter(pair for recipe in pool for pair in recipe.switches.items())
    most = {name: text for (name, text), count in shares.items() if 2 * count > len(pool)}
    return most, f"{none}; as most of its {len(pool)} for {kind}, {where}"


class Practice(NamedTuple):
    """A value of a switch that runs of a framework have though their description does not say it."""

    switch: str
    text: str
    """Value as `--option` takes it."""
    share: float | None
    """Part of public repositories whose recipes set it; None where a document alone says that runs have it."""
    families: tuple[str, ...]
    """Families of devices on which runs have it; empty for all."""
    source: str
    others: Mapping[str, str] = MappingProxyType({})
    """Further switches, with their values, that the same runs set: one choice."""


_LEAST_SHARE: Final = 0.05  # part of repositories below which a value is not counted as practice


@lru_cache(maxsize=16)
def practice_of(framework: str, *, adapters: bool = False) -> tuple[Practice, ...]:
    """Return the values of switches beside the defaults that runs of a framework have (`specs/practice.csv`).

    Runs that train `adapters` have rows of their own, in place of all runs' for the same switches. Shares were
    counted in November 2026 over 1,558 launches of public recipes, one vote for each repository.
    """
    rows = [row for row in practice_rows() if row["framework"] == framework and (adapters or row["method"] != "lora")]
    counted = {name for row in rows if row["method"] for name in (row["switch"], *_others(row))}
    rows = [row for row in rows if row["method"] or row["switch"] not in counted]
    values = (
        Practice(
            switch=row["switch"],
            text=row["value"],
            share=float(row["share"]) if row["share"] else None,
            families=tuple(row["families"].split()),
            source=row["source"],
            others=_others(row),
        )
        for row in rows
    )
    return tuple(each for each in values if each.share is None or each.share >= _LEAST_SHARE)


def with_usual_adapters(framework: str, stack: StackName, options: Mapping[str, str]) -> dict[str, str]:
    """Return switches, as text, of a run that trains adapters over those that such runs have.

    What goes with a value in such runs goes where the run has another.
    """
    usual = usual_with_adapters(framework, stack, narrow=options.get("quantised_base") == "true")
    rows = (row for row in practice_rows() if options.get(row["switch"], row["value"]) != row["value"])
    without = {name for row in rows if usual.get(row["switch"]) == row["value"] for name in _others(row)}
    return {**{name: text for name, text in usual.items() if name not in without}, **options}


@lru_cache(maxsize=16)
def usual_with_adapters(framework: str, stack: StackName, *, narrow: bool = False) -> Mapping[str, str]:
    """Return the switches, as text, of runs with adapters: the stack's own, else those that more than half set.

    Of the latter none that are set beside one that the stack decides.
    """
    if stack in _BY_NAME and (own := {**_BY_NAME[stack].adapters, **(_BY_NAME[stack].narrow if narrow else {})}):
        return own
    rows = (row for row in practice_rows() if (row["framework"], row["method"]) == (framework, "lora"))
    decided = frozenset() if stack == DEFAULT else decided_by(stack) or frozenset(_SWITCHES)
    texts = [{row["switch"]: row["value"], **_others(row)} for row in rows if float(row["share"] or 0.0) > 1.0 / 2.0]
    return MappingProxyType({name: text for each in texts if decided.isdisjoint(each) for name, text in each.items()})


def _others(row: Mapping[str, str]) -> dict[str, str]:
    return dict(pair.split("=") for pair in row["others"].split())


@lru_cache(maxsize=256)
def library_options(stack: StackName, *traits: str) -> Mapping[str, str]:
    """Return the switches, as text, of a family or activation where a stack has transformers' own layers (M3)."""
    rows = read_table(__file__, "library") if stack in _BY_NAME and _BY_NAME[stack].library else ()
    return {name: text for row in rows if {*traits} & {*row["traits"].split()} for name, text in _others(row).items()}


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


METHOD_FRAMEWORK: Final[FrameworkName] = "torch"
"""Framework of who names a method of fine-tuning and no framework: its libraries have all of them."""


ADAPTER_STACK: Final[StackName] = "trl"
"""Stack of who trains adapters under that framework and names none: the library with all methods."""


OFFLOAD_STACK: Final[StackName] = "deepspeed"
"""Stack under that framework whose optimizer may stand on the host."""


def usual_rank(framework: str, stack: str | None) -> int:
    """Return the rank of adapters where a run names none."""
    named = _BY_NAME.get(stack or DEFAULT)
    if named is not None and named.lora_rank is not None:
        return named.lora_rank
    return PROFILES[framework].limits.lora_rank if framework in PROFILES else FrameworkLimits().lora_rank


class OldSwitch(NamedTuple):
    """An old spelling of a switch."""

    texts: Mapping[str, str]
    """Values of `name` by the old value, in lower case; empty where it has no effect any more."""
    name: str
    """Switch that holds the meaning now."""
    until: str
    """First version without the old spelling."""


OLD_SWITCHES: Final[Mapping[str, OldSwitch]] = {
    "fused_collectives": OldSwitch({}, "tp_comm_overlap", "0.7"),
    "position_bias_tables": OldSwitch({"true": "1", "false": "0"}, "position_bias_tables", "0.7"),
}
"""Old spellings by the name that they had."""


def current_switches(options: Mapping[str, str]) -> dict[str, str]:
    """Return switches in today's spelling; each old one is warned of (FutureWarning) in one line."""
    current: dict[str, str] = {}
    for name, text in options.items():
        old = OLD_SWITCHES.get(name)
        if old is None or (old.texts and text.lower() not in old.texts):
            current[name] = text
            continue
        meaning = f"{old.name}={old.texts[text.lower()]}" if old.texts else old.name
        verb = "is now" if old.texts else "has no effect any more; see"
        message = f"--option {name}={text[:40]} {verb} {meaning}; the old spelling ends with version {old.until}"
        warnings.warn(message, FutureWarning, stacklevel=2)
        if old.texts:
            current[old.name] = old.texts[text.lower()]
    return current
