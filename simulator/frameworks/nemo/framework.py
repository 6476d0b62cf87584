"""Registration of NeMo and Megatron-Bridge: how their files and logs are recognised, and who reads and writes them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, RecipeWriter
from simulator.frameworks.nemo.read import STEP_LOG, is_nemo, read_nemo
from simulator.frameworks.nemo.write import bridge_config, bridge_words

FORM: Final = FileForm("nemo-yaml", 30, is_nemo, read_nemo, complete=False, refers=False, in_words_of="megatron")
FRAMEWORK: Final = Framework(
    title="NeMo",
    profile="megatron",
    tables=("nemo", "bridge"),
    files=(FORM,),
    step_log=STEP_LOG,
    writer=RecipeWriter(text=bridge_config, words=bridge_words, dialects=(), is_usual=False),
)
