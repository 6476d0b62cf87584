"""Registration of MindSpeed: the flags that MindSpeed and MindSpeed-LLM add to Megatron-LM's."""

from typing import Final

from simulator.frameworks.framework import Extension, Framework
from simulator.frameworks.mindspeed.special import extended

FRAMEWORK: Final = Framework(
    title="MindSpeed and MindSpeed-LLM",
    profile="megatron",
    tables=("mindspeed",),
    extends="megatron",
    order=20,
    extension=Extension(extend=extended),
)
