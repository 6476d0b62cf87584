"""Primus' folder: a table of keys, most of them Megatron-LM's flags, and which files are its own."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.primus.read import is_primus, read_primus

FRAMEWORK: Final = Framework(
    title="Primus",
    profile="megatron",
    tables=("megatron", "primus"),
    files=(FileForm(dialect="primus-yaml", order=1, is_own=is_primus, read=read_primus),),
)
