"""Megatron-DeepSpeed: a table of flags beside Megatron-LM's."""

from typing import Final

from simulator.frameworks.framework import Framework

FRAMEWORK: Final = Framework(title="Megatron-DeepSpeed", tables=("megatron_deepspeed",), extends="megatron", order=50)
