"""Inputs of a question beside its layout, one table. Reads no file, and fills in no default that another input decides.

`--seq-length 4096`, `simulate.rank(seq_length=4096)`, `seq_length: [4096, 8192]` of a sweep, `"seq_length": 4096` in
JSON and the column `seq_length` of a measured row are one field here. Options, signatures, checks and files follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import InputError
from simulator.question.scenario.settings import REQUIRED, InputSetting, input_field, settings_of
from simulator.question.vocabulary import FRAMEWORKS, OPTIMIZERS, PRECISIONS, STACKS, Precision

MOST_DEVICES = 2**24
"""Largest cluster priced."""
MOST_TOKENS = 2**27
"""Longest sequence and largest global batch priced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Workload of one optimizer step, the same in all layouts of a question."""

    seq_length: int = input_field(8192, "Tokens in a sequence; 8k is 8192.", high=MOST_TOKENS, of_tokens=True)
    """Tokens per sequence."""
    global_batch_size: int = input_field(1024, "Sequences in a step.", high=MOST_TOKENS, of_tokens=True)
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
_CALIBRATION = "Own coefficients, or none for the priors; by default those shipped for the hardware."
INPUTS: tuple[InputSetting, ...] = (
    InputSetting("model", "model", "model", REQUIRED, "Shipped model, own YAML, or Hugging Face config.json."),
    InputSetting("hardware", "hardware", "hardware", "z2000", "Shipped hardware or own YAML."),
    InputSetting(
        "nodes", "nodes", "count", None, "Nodes; one where neither nodes nor devices are given.", searchable=True
    ),
    InputSetting("devices", "devices", "count", None, "Devices, instead of nodes.", high=MOST_DEVICES),
    *WORKLOAD,
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
DEFAULT_WORKLOAD: Mapping[str, Any] = {setting.name: setting.default for setting in WORKLOAD}
BY_INPUT: Mapping[str, InputSetting] = {setting.name: setting for setting in INPUTS}


def chosen_options(question: Mapping[str, Any]) -> dict[str, str]:
    """Return the switches of a question, its optimizer included. Raises InputError for two optimizers."""
    options, optimizer = dict(question.get("options") or {}), question.get("optimizer")
    if optimizer is not None and options.setdefault("optimizer", optimizer) != optimizer:
        raise InputError(f"optimizer: given as '{optimizer}' and, among the switches, as '{options['optimizer']}'")
    return options
