"""Primus' folder: a table of keys, most of them Megatron-LM's flags. `recipes.readers.primus` reads its files."""

from typing import Final

from simulator.frameworks.framework import Framework

FRAMEWORK: Final = Framework(title="Primus", profile="megatron", tables=("megatron", "primus"))
