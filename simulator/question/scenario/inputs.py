"""Inputs of a question (model, cluster, workload): name, option, bounds, search axis and column of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from simulator.errors import InputError, did_you_mean
from simulator.question.vocabulary import (
    BATCHINGS,
    FRAMEWORKS,
    METHODS,
    OPTIMIZERS,
    PRECISIONS,
    STACKS,
    Precision,
    framework_hint,
)
from simulator.records import NamedTuple, Record

LARGEST_COUNT = 2**24

SettingGroup = Literal["size", "recompute", "other"]
"""Part of a layout that a field belongs to; answers list the parts in this order."""
GROUPS: tuple[SettingGroup, ...] = get_args(SettingGroup)
SettingKind = Literal[
    "count",
    "number",
    "flag",
    "word",
    "words",
    "layers",
    "model",
    "hardware",
    "switches",
    "file",
    "share",
    "lengths",
    "images",
]
"""`count`: a whole number from 1. `number`: one of a few numbers. `flag`: on or off. `word`: one of a few words.
`words`: some of a few words, each once, in their order. `layers`: a list of whole numbers. `model`, `hardware`: the
name of a spec, or a path. `switches`: a framework's switches by name. `file`: a path. `share`: a number from 0 to 1.
`lengths`: those of samples. `images`: those of a sequence."""
REQUIRED: Final = object()
"""Default of a required input."""
LISTS: tuple[SettingKind, ...] = ("words", "layers")
"""Kinds whose value is a list; a search takes one list, or tries its own."""


class InputSetting(NamedTuple):
    """Input of a question: a field of its layout or workload, or another."""

    name: str
    """Keyword of the API, key of a sweep."""
    key: str
    """Short name: key of JSON, column of CSV, keyword of the API, option."""
    kind: SettingKind
    default: Any
    """Default; None where leaving it out is a value of its own."""
    help: str
    """Help text of the command line."""
    label: str = ""
    """Label before the value in a text."""
    choices: tuple[Any, ...] = ()
    """All allowed values of a number or word."""
    named_choices: tuple[Any, ...] = ()
    """Choices that a user may name; the others follow from another field."""
    low: int = 1
    high: int = 2**20
    """Range that the command line takes."""
    of_tokens: bool = False
    """Whether it counts tokens or sequences, of which 8k are 8192."""
    searchable: bool = False
    """Whether a ranking may search it, with a text such as `auto` instead of a number."""
    group: SettingGroup = "other"
    split: bool = False
    """Whether it is one of the sizes by which a ranking groups layouts to show the best of each."""
    per_block: bool = False
    """Whether all layouts of a block share it; the others are columns, one number per layout."""
    of_work: bool = True
    """Whether the work of one layer depends on it; layouts that differ in other fields only share figures of layers."""
    searched: tuple[Any, ...] = ()
    """Values that a search tries by default; without any, the value follows from the scenario or is the default."""
    search: str = ""
    """`searched` in words."""

    @property
    def option(self) -> str:
        """Option of the command line."""
        return "--" + self.key.replace("_", "-")

    def words(self, value: Any) -> tuple[str, ...]:
        """Return a value as words of the command line."""
        if self.kind == "flag":
            return (self.option if value else self.option.replace("--", "--no-", 1),)
        return self.option, ",".join(map(str, value)) if self.kind in LISTS else str(value)

    def check(self, value: object) -> None:
        """Raise InputError, naming the field, for a value that is not allowed."""
        kind = self.kind
        if kind == "count" and type(value) is int and 1 <= value <= LARGEST_COUNT:
            return  # most values of most layouts
        if value is None and self.default is None:
            return
        if kind == "count":
            check_count(self.name, value, max(self.high, LARGEST_COUNT))
        elif kind == "flag":
            check_choice(self.name, value, (False, True))
        elif kind == "words":
            for word in value if isinstance(value, tuple) else (value,):
                check_choice(self.name, word, self.choices)
        elif kind == "share":
            check_share(self.name, value)
        elif self.choices:
            check_choice(self.name, value, self.choices)

    def encoded(self, value: Any) -> float:
        """Return the value as a column's number: a word as its index into the choices, words as a sum of bits."""
        if self.kind == "words":
            return float(sum(2 ** self.choices.index(word) for word in value))
        return float(self.choices.index(value) if self.kind == "word" else value)

    def decoded(self, number: float) -> Any:
        """Return the value that a column's number encodes."""
        if self.kind == "word":
            return self.choices[int(number)]
        if self.kind == "words":
            return tuple(word for index, word in enumerate(self.choices) if int(number) >> index & 1)
        return bool(number) if self.kind == "flag" else int(number)


def input_field(default: Any, help: str, **about: Any) -> Any:  # noqa: A002  the word that click has for it
    """Return a dataclass field with `InputSetting` values as metadata; name, key and kind follow by default."""
    return dataclasses.field(default=default, metadata={"help": help, **about})


def settings_of(kind: type, rows: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[InputSetting, ...]:
    """Return the settings of a dataclass, in order: each field is an `input_field`, or has a row that says as much."""
    return tuple(
        InputSetting(
            **{
                "name": field.name,
                "key": field.name,
                "kind": _kind(field.default, about),
                "default": field.default,
                "named_choices": about.get("choices", ()),
                **about,
            }
        )
        for field in dataclasses.fields(kind)
        for about in (field.metadata if rows is None else rows[field.name],)
    )


def _kind(default: object, about: Any) -> SettingKind:
    if isinstance(default, bool):
        return "flag"
    if isinstance(default, str):
        return "word"
    if isinstance(default, tuple):
        return "layers"
    return "number" if about.get("choices") else "count"


def check_count(name: str, value: object, largest: int = LARGEST_COUNT) -> None:
    """Raise InputError unless `value` is a whole number from 1 to `largest`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
        raise InputError(f"{name} {value!r}: must be a whole number from 1 to {largest}")


def check_share(name: str, value: object) -> None:
    """Raise InputError unless `value` is a number from 0 to 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value <= 1.0:
        raise InputError(f"{name} {value!r}: must be a number from 0 to 1")


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise InputError unless `value` is one of `choices`."""
    if value not in choices:
        allowed = [str(choice) for choice in choices]
        near = (framework_hint(str(value)) if name == "framework" else "") or did_you_mean(str(value), allowed)
        raise InputError(f"{name} {value!r}{f'{near};' if near else ':'} allowed are {', '.join(allowed)}")


_LENGTH = "Tokens in a sequence; 8k is 8192. By default no longer than the model's longest; 2048 for fine-tuning."
_BATCH = "Sequences in a step; by default 64 for fine-tuning: with a method or adapters."
MOST_DEVICES = 2**24
"""Largest cluster priced."""
MOST_TOKENS = 2**27
"""Longest sequence and largest global batch priced."""


class Workload(Record, kw_only=True):
    """Workload of one optimizer step, the same in all layouts of a question."""

    seq_length: int = input_field(8192, _LENGTH, high=MOST_TOKENS, of_tokens=True)
    """Tokens per sequence."""
    global_batch_size: int = input_field(1024, _BATCH, high=MOST_TOKENS, of_tokens=True)
    """Sequences per optimizer step over all replicas."""
    precision: Precision = input_field("bf16", "Type of matrix products.", choices=PRECISIONS)
    """Compute type of the matrix products. Weights stay 16 bit under fp8; under fp32 everything is fp32."""
    lora_rank: int | None = input_field(None, "Train adapters of this rank, not the weights.", high=2**16)
    """Rank of the adapters trained on every linear layer instead of the weights; None trains everything."""

    @property
    def workload(self) -> dict[str, Any]:
        """Workload fields by name."""
        return {setting.name: getattr(self, setting.name) for setting in WORKLOAD}


WORKLOAD = settings_of(Workload)
_STACK = (
    "Named set of switches under --option; by default that of the hardware's own runs, if its spec names one, else "
    "`default`: what the framework's arguments default to."
)
_OPTIONS = "Switch of the framework; repeatable. `simulate frameworks` lists them."
_OPTIMIZER = "What updates parameters; by default that of the stack, else adamw."
_METHOD = "What is trained: all weights, adapters of the library's usual rank, or those over a base of 4 bits."
_CALIBRATION = "Own coefficients, or none for the priors; by default those shipped for the hardware."
_LENGTHS = "Lengths of samples, instead: a file, or p50=900,p90=3k,max=16k; max alone leaves the rest open."
_BATCHING = "With --lengths: how samples become sequences; packed_across attends over their borders."
_CUTOFF = "With --lengths: tokens at which samples are cut, or of a packed sequence; by default the longest."
_SURVIVE = "With --lengths: share of steps whose fullest micro batch must fit."
_IMAGES = "Images of a sequence, such as 4x1024x768, their encoder frozen; @projector or @trained behind."
INPUTS: tuple[InputSetting, ...] = (
    InputSetting("model", "model", "model", REQUIRED, "Shipped model, own YAML, or Hugging Face config.json."),
    InputSetting("hardware", "hardware", "hardware", "z2000", "Shipped hardware or own YAML."),
    InputSetting(
        "nodes", "nodes", "count", None, "Nodes; one where neither nodes nor devices are given.", searchable=True
    ),
    InputSetting("devices", "devices", "count", None, "Devices, instead of nodes.", high=MOST_DEVICES),
    *WORKLOAD,
    InputSetting("lengths", "lengths", "lengths", None, _LENGTHS),
    InputSetting("batching", "batching", "word", "padded", _BATCHING, choices=BATCHINGS),
    InputSetting("cutoff", "cutoff", "count", None, _CUTOFF, high=MOST_TOKENS, of_tokens=True),
    InputSetting("survive", "survive", "share", 0.999, _SURVIVE),
    InputSetting("images", "images", "images", None, _IMAGES),
    InputSetting("method", "method", "word", None, _METHOD, choices=METHODS),
    InputSetting(
        "num_layers", "num_layers", "count", None, "Cut or extend the model to this many layers.", high=10_000
    ),
    InputSetting("framework", "framework", "word", "megatron", "What trains the model.", choices=FRAMEWORKS),
    InputSetting("stack", "stack", "word", None, _STACK, choices=STACKS),
    InputSetting("optimizer", "optimizer", "word", None, _OPTIMIZER, choices=OPTIMIZERS),
    InputSetting("options", "option", "switches", None, _OPTIONS),
    InputSetting("calibration", "calibration", "file", None, _CALIBRATION),
)
"""Every input of a question, in the order that a help lists them."""
DEFAULTS: Mapping[str, Any] = {setting.name: setting.default for setting in INPUTS if setting.default is not REQUIRED}
TUNING_WORKLOAD: Mapping[str, int] = {"seq_length": 2048, "global_batch_size": 64}
"""Workload of fine-tuning that nobody said: LLaMA-Factory's `cutoff_len`, and eight samples on each of eight devices,
the batch of transformers' Trainer."""
DEFAULT_WORKLOAD: Mapping[str, Any] = {setting.name: setting.default for setting in WORKLOAD}
BY_INPUT: Mapping[str, InputSetting] = {setting.name: setting for setting in INPUTS}
