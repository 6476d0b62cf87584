"""Registration of Primus: experiments on Megatron-LM and on torchtitan. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.primus.read import is_primus, read_megatron, read_torchtitan

FRAMEWORK: Final = Framework(
    title="Primus",
    profile="megatron",
    tables=("megatron", "primus"),
    files=(
        FileForm(dialect="primus-yaml", order=1, is_own=is_primus, read=read_megatron),
        FileForm(dialect="primus-yaml", order=2, is_own=is_primus, read=read_torchtitan, tables=("torchtitan",)),
    ),
)
