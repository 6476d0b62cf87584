"""Inputs of a list of operations: model and stack, never the layout."""

from __future__ import annotations

from typing import NamedTuple

from simulator.question.frameworks.profile import FrameworkProfile
from simulator.question.frameworks.stacks import MEGATRON
from simulator.question.scenario.scenario import Scenario
from simulator.question.specs.model import ModelSpec


class Conditions(NamedTuple):
    """A model as one stack trains it."""

    model: ModelSpec
    framework: FrameworkProfile = MEGATRON
    precision: str = "bf16"
    """Compute type of the matrix products."""
    lora_rank: int | None = None
    """Rank of the adapters; None trains the weights."""


def conditions_of(scenario: Scenario) -> Conditions:
    """Return the conditions on which the operations of a scenario's layers depend."""
    return Conditions(scenario.model, scenario.framework, scenario.precision, scenario.lora_rank)
