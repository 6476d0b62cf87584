"""Registration of GPT-NeoX: how its files are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.neox.read import is_neox, read_neox

FRAMEWORK: Final = Framework(
    title="GPT-NeoX",
    profile="megatron",
    tables=("neox",),
    files=(
        FileForm(dialect="neox-yaml", order=40, is_own=is_neox, read=read_neox, complete=False, in_words_of="megatron"),
    ),
)
