"""Optimizers as data (`optimizers.csv`): state per parameter by class of tensor, and tensors held in a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from simulator.errors import InputError
from simulator.question.specs.documents import rows_of
from simulator.records import Bare

TensorClass = Literal["matrix", "embedding", "vector"]
"""Weights of layers; tables of tokens or positions, and the output layer; norms and biases."""
TENSOR_CLASSES: Final[tuple[TensorClass, ...]] = get_args(TensorClass)


class Optimizer(Bare, kw_only=True):
    """Optimizer: a row of `optimizers.csv`."""

    name: str
    words: frozenset[str]
    """Names that frameworks use, in lower case."""
    moments: Mapping[TensorClass, float]
    """Numbers kept for each parameter, beside a master copy."""
    moment_bytes: float | None
    """Bytes of each; None for those of the switch `optimizer_dtype`."""
    factored: bool
    """Whether a table or matrix keeps an fp32 number for each row and each column."""
    newton_schulz_steps: int
    """Iterations that make a matrix's update orthogonal, which take the whole matrix; 0 for none."""
    gathered_copies: int
    """Copies of gathered 16-bit matrices that a step over evenly sharded ones holds."""
    step_numbers: float | None
    """fp32 numbers that a step makes for each parameter it works on; None for those of `step_temporaries`."""
    by_tensor: bool
    """Whether a step always works on one tensor after another."""
    wide_table: bool
    """Whether a library may keep the input table's moments in 32 bits: bitsandbytes."""
    paged: bool
    """Whether the state lies in memory that moves to the host when the device is full."""
    source: str


def _optimizer(row: Mapping[str, str]) -> Optimizer:
    values: dict[str, Any] = {name: row[name] for name in ("name", "source")}
    values |= {name: float(row[name]) if row[name] else None for name in ("moment_bytes", "step_numbers")}
    values |= {name: row[name] == "yes" for name in ("factored", "by_tensor", "wide_table", "paged")}
    values |= {name: int(row[name] or 0) for name in ("newton_schulz_steps", "gathered_copies")}
    moments = {tensor: float(row[tensor]) for tensor in TENSOR_CLASSES}
    return Optimizer(words=frozenset(row["words"].split()), moments=moments, **values)


OPTIMIZERS: Final[Mapping[str, Optimizer]] = {name: _optimizer(row) for name, row in rows_of("optimizers").items()}
"""All priced optimizers, by name."""


def _plain(word: str) -> str:
    return word.rpartition(".")[2].strip().lower().replace("-", "_")


def optimizer_of_word(word: str) -> Optimizer | None:
    """Return the optimizer that a framework's word means, such as `torch.optim.AdamW`; None for an unknown one."""
    plain = _plain(word)
    return next((each for each in OPTIMIZERS.values() if plain in each.words), None)


def switches_of_word(word: str, framework: str) -> dict[str, str]:
    """Return the switches that a framework's word sets beside the optimizer: its kernels, its types, where it steps.

    Of the Trainer's words one is fused and one is not; LOMO steps in the backward pass (lomo-optim 0.1.1); bitsandbytes
    has 32 bits whatever the weights' type.
    """
    plain = _plain(word)
    switches = {"foreach_optimizer": "true"} if plain == "adamw_torch" else {}
    switches |= {"foreach_optimizer": "false", "step_temporaries": "0"} if "fused" in plain else {}
    switches |= {"step_in_backward": "true"} if plain.endswith("lomo") else {}
    switches |= {"optimizer_dtype": "fp32"} if "32bit" in plain else {}
    return switches if framework == "torch" else {}


_UNPRICED: Final = {
    **dict.fromkeys(("galore", "apollo"), "gradients of low rank are"),
    **dict.fromkeys(("ademamix", "grokadamw", "stable_adamw", "optimi_"), "what it keeps beside Adam's moments is"),
}  # why, by a part of the word: a third moment, or what 16-bit weights round off (torch-optimi, `kahan_sum`)


def unpriced_because(word: str) -> str:
    """Return why the optimizer of a word is not priced; empty where nothing is known against it."""
    plain = word.rpartition(".")[2].lower()
    return next((f"{why} not priced" for part, why in _UNPRICED.items() if part in plain), "")


def optimizer_name(word: str) -> str:
    """Return the name of the optimizer that a framework's word means, or the word where it means none.

    Raises InputError for one that is known and not priced.
    """
    optimizer = OPTIMIZERS.get(_plain(word)) or optimizer_of_word(word)
    if optimizer is None and (why := unpriced_because(word)):
        raise InputError(f"optimizer {word[:40]}: {why}; priced are {', '.join(OPTIMIZERS)}")
    return word if optimizer is None else optimizer.name
