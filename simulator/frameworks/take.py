"""Conversion of a run's words into values by target, through the framework's table: for scripts, files and logs alike.

`take` returns values by target, named as in the tables: ``{"layout.tensor_parallel": 2, "model.norm": "rms_norm",
"option.fused_rotary": "false"}``. What no row can say (the pipeline's cut, recompute) a framework's `read` adds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, get_args

from simulator.files import read_words
from simulator.frameworks.arguments import LARGEST_OF_WORKLOAD, OFF, Arguments, largest_of
from simulator.frameworks.flags import ANY_TEXT, Flag, Meaning
from simulator.question.frameworks.profile import switches
from simulator.question.frameworks.stacks import profile_of
from simulator.question.scenario.inputs import LARGEST_COUNT
from simulator.question.scenario.layout import BY_NAME
from simulator.question.specs.model import ModelSpec
from simulator.question.specs.optimizers import OPTIMIZERS, optimizer_of_word, switches_of_word, unpriced_because

Targets = dict[str, Any]
"""Values by target: typed for layouts, models and workloads, text for switches."""
_LARGEST_DEGREE: Final = 2**16
_SWITCHES: Final = {switch.name: switch for switch in switches()}


def take(arguments: Arguments) -> Targets:
    """Return the values that a run's words set. Raises InputError for text that its setting does not allow."""
    targets: Targets = {}
    names, table = arguments.mentioned(), arguments.table
    settable = {target for name in ("", *names) for target in table.targets_of.get(name, ())}
    for target in filter(settable.__contains__, table.meanings):
        pairs = table.meanings[target]
        meaning = pairs[0][1]
        said = [(flag, own) for flag, own in pairs if flag.name in names]
        value = next((x for flag, own in said if (x := _value(arguments, flag, own)) is not None), None)
        texts = [own.otherwise for _, own in pairs if own.otherwise is not None] if value is None else ()
        if texts and setting_of(meaning) not in arguments.incomplete:
            value = _typed(meaning, texts[0])
        if value is not None:
            targets[target] = value
    return targets


def part(targets: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the values of one kind of target, by field name."""
    start = f"{kind}."
    return {target.removeprefix(start): value for target, value in targets.items() if target.startswith(start)}


def places_of(layers: Collection[str]) -> str:
    """Return the value of `adapter_targets` for layers of these names; empty with others."""
    known = read_words("adapters")
    named = {place for name in layers for place in known.get(name, "").split("+")}
    return "" if "" in named else "+".join(place for place in dict.fromkeys(known.values()) if place in named)


def setting_of(meaning: Meaning) -> str:
    """Return the name under which places and unknowns of a target are noted, for layouts the field's short name."""
    return BY_NAME[meaning.name].key if meaning.kind == "layout" else meaning.name


def _value(arguments: Arguments, flag: Flag, meaning: Meaning) -> Any:
    """Return the value that one flag sets; None where it is absent, unknown or sets nothing."""
    option = setting_of(meaning)
    text = arguments.text(option, flag.name)
    if text is None:
        return None
    kind = type_of(meaning)
    values, switched = meaning.values, flag.kind in ("switch", "optional")
    if values.keys() == {ANY_TEXT}:
        on = arguments.switch(option, flag.name) if switched else text.lower() not in OFF
        return _typed(meaning, values[ANY_TEXT]) if on else None
    if switched and values.keys() == {"true", "false"}:
        text = str(arguments.switch(option, flag.name)).lower()
    mapped = _mapped(arguments, flag, meaning, text) if values else ANY_TEXT
    if mapped != ANY_TEXT:
        return _typed(meaning, mapped) if mapped else None
    if kind is int:
        low, high = _range(meaning)
        return _text_of(meaning, arguments.integer(option, flag.name, low=low, high=high))
    if kind is bool:
        return _text_of(meaning, arguments.switch(option, flag.name))
    return arguments.share(option, flag.name) if kind is float else text


def _mapped(arguments: Arguments, flag: Flag, meaning: Meaning, text: str) -> str | None:
    """Return the value that a meaning lists for a text; without one None, and a remark if there is no default."""
    plain = text.strip("\"'").lower()
    for listed, value in meaning.values.items():
        if listed == plain or (_number(listed) == _number(plain) is not None):
            return value
    if ANY_TEXT not in meaning.values and meaning.otherwise is None:
        entry = arguments.entry(flag.name)
        spelled = entry.spelled if entry is not None else flag.name
        allowed = ", ".join(meaning.values)
        arguments.remark("unknown-value", "error", f"{spelled} {text[:40]}: allowed are {allowed}", flag.name)
    return meaning.values.get(ANY_TEXT)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def type_of(meaning: Meaning) -> type:
    """Return the type of a target's value: `bool`, `int`, `float` or `str`."""
    if meaning.kind == "layout":
        return type(BY_NAME[meaning.name].default)
    if meaning.kind == "option":
        return type(_SWITCHES[meaning.name].default)
    if meaning.kind == "workload":
        return int if meaning.name in LARGEST_OF_WORKLOAD else str
    return _plain_type(ModelSpec.field_types()[meaning.name])


def _plain_type(annotation: Any) -> type:
    """Return `bool` or `int` where an annotation or a member of it is one of them, else `str`."""
    if annotation in (bool, int):
        return annotation  # type: ignore[no-any-return]  # one of the two
    return next((kind for kind in map(_plain_type, get_args(annotation)) if kind is not str), str)


def _range(meaning: Meaning) -> tuple[int, int]:
    """Return the smallest and the largest count of a target."""
    if meaning.kind == "layout":
        return BY_NAME[meaning.name].low, min(BY_NAME[meaning.name].high, _LARGEST_DEGREE)
    if meaning.kind == "option":
        about = _SWITCHES[meaning.name].metadata
        return about["low"], about["high"]
    return int(meaning.kind == "workload"), largest_of(meaning.name) or LARGEST_COUNT


def _typed(meaning: Meaning, text: str) -> Any:
    """Return a text of a table as a value of the target; switches stay text."""
    kind = type_of(meaning)
    if meaning.kind == "option":
        return text
    return text == "true" if kind is bool else kind(text)


def _text_of(meaning: Meaning, value: Any) -> Any:
    """Return a value as its target stores it: switches as text."""
    return str(value).lower() if meaning.kind == "option" and value is not None else value


_USUAL: Final = "adamw"


def read_optimizer(  # noqa: PLR0913  one per fact of a word
    arguments: Arguments,
    name: str,
    framework: str,
    *,
    default: str | None = None,
    own: Mapping[str, str] | None = None,
    bound: bool = False,
) -> dict[str, str]:
    """Return the switches that a word sets; none for AdamW of the framework's usual kernels.

    name : flag or key that holds the word
    framework : framework whose profile lists the optimizers that it offers
    default : word of a recipe without one
    own : optimizers by words that mean another one, or nothing, in other frameworks
    bound : whether AdamW keeps the most state of all, so that others may be priced as it
    """
    word = arguments.text("optimizer", name) or default
    if not word:
        return {}
    plain = word.rpartition(".")[2].lower()
    if why := unpriced_because(word):
        arguments.not_modelled(f"optimizer {word[:40]}: {why}", name)
        return {}
    named = ({"sgd": _sgd(arguments)} if framework == "torch" else {}) | dict(own or {})
    optimizer = OPTIMIZERS[named[plain]] if named.get(plain) else optimizer_of_word(word)
    if optimizer is None or optimizer.name not in profile_of(framework).limits.optimizers:
        if bound:
            message = f"optimizer {word[:40]} is priced as AdamW, which keeps more than others"
            arguments.remark("upper-bound", "warning", message, name, bound="state")
            return {}
        offered = ", ".join(profile_of(framework).limits.optimizers)
        arguments.not_modelled(f"optimizer {word[:60]} is not priced; priced are {offered}", name)
        return {}
    named_one = {} if optimizer.name == _USUAL else {"optimizer": optimizer.name}
    return switches_of_word(word, framework) | named_one


def _sgd(arguments: Arguments) -> str:
    """Return which SGD of torch a recipe means: one with state where a key `momentum` of any section sets one."""
    set_here = (entries[-1] for name, entries in arguments.entries.items() if name.rpartition(".")[2] == "momentum")
    return "sgd_momentum" if any(not entry.is_off for entry in set_here) else "sgd"
