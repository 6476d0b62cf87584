"""Registration of Megatron-DeepSpeed: a table of flags beside Megatron-LM's, and DeepSpeed's engine."""

from typing import Final

from simulator.frameworks.framework import Extension, Framework
from simulator.frameworks.megatron_deepspeed.special import extended, prepare

FRAMEWORK: Final = Framework(
    title="Megatron-DeepSpeed",
    profile="megatron",
    tables=("megatron_deepspeed",),
    extends="megatron",
    order=50,
    extension=Extension(prepare=prepare, extend=extended),
)
