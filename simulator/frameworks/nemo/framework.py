"""NeMo and Megatron-Bridge as a framework: their configuration files."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework
from simulator.frameworks.nemo.read import is_nemo, read_nemo

FORM: Final = FileForm(
    dialect="nemo-yaml", order=30, is_own=is_nemo, read=read_nemo, complete=False, in_words_of="megatron"
)
FRAMEWORK: Final = Framework(title="NeMo", profile="megatron", tables=("nemo", "bridge"), files=(FORM,))
