"""Flags of Megatron-LM and the stacks built on it, for readers of files that stand for them."""

from __future__ import annotations

from typing import Final

from simulator.frameworks.flags import FlagTable, passed_of, read_of
from simulator.frameworks.registry import tables

FRAMEWORKS: Final = tables("megatron")
FLAGS: Final = FlagTable(read_of(*FRAMEWORKS))
PASSED: Final = passed_of(*FRAMEWORKS)
"""Flags that change neither memory nor speed as far as it is modelled."""
