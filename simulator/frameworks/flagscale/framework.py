"""Registration of FlagScale: flags beside Megatron-LM's, and experiments of two files, which `read` joins."""

from dataclasses import replace
from typing import Final

from simulator.frameworks.flagscale.read import is_experiment, read_experiment, read_fragment
from simulator.frameworks.framework import Framework
from simulator.frameworks.nemo.framework import FORM

FRAMEWORK: Final = Framework(
    title="FlagScale",
    profile="megatron",
    tables=("flagscale",),
    extends="megatron",
    order=40,
    files=(
        replace(FORM, order=3, is_own=is_experiment, read=read_experiment),
        replace(FORM, order=4, read=read_fragment),
    ),
)
