"""Registration of OLMo: how its files and launches are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.olmo.read import is_file, is_launch, read, read_launch, take_words

FRAMEWORK: Final = Framework(
    title="OLMo",
    profile="torch",
    tables=("olmo",),
    launches=(LaunchForm(dialect="olmo-shell", order=40, is_own=is_launch, read=read_launch, take_words=take_words),),
    files=(FileForm(dialect="olmo-yaml", order=20, is_own=is_file, read=read),),
)
