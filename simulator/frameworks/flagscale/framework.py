"""FlagScale's folder: a table of flags beside Megatron-LM's, whose reader takes them."""

from typing import Final

from simulator.frameworks.framework import Framework

FRAMEWORK: Final = Framework(title="FlagScale", profile="megatron", tables=("flagscale",), extends="megatron", order=40)
