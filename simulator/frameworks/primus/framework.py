"""Primus as a framework: its keys on Megatron-LM are Megatron's flags, so that Megatron's rows decide."""

from typing import Final

from simulator.frameworks.framework import Framework

FRAMEWORK: Final = Framework(title="Primus", profile="megatron", tables=("megatron", "primus"))
