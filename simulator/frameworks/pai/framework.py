"""Registration of Pai-Megatron-Patch: a table of flags beside Megatron-LM's, which `megatron.read` takes."""

from typing import Final

from simulator.frameworks.framework import Framework

FRAMEWORK: Final = Framework(title="Pai-Megatron-Patch", profile="megatron", extends="megatron", order=30)
