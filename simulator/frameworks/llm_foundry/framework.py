"""Registration of llm-foundry: how its files and launches are recognised. `read` interprets them."""

from typing import Final

from simulator.frameworks.framework import FileForm, Framework, LaunchForm
from simulator.frameworks.llm_foundry.read import cluster, is_file, is_launch, read, read_launch, take_words

FRAMEWORK: Final = Framework(
    title="llm-foundry",
    profile="torch",
    tables=("llm_foundry",),
    launches=(
        LaunchForm(
            dialect="composer-shell",
            order=10,
            is_own=is_launch,
            read=read_launch,
            take_words=take_words,
            cluster=cluster,
        ),
    ),
    files=(FileForm(dialect="llm-foundry-yaml", order=20, is_own=is_file, read=read),),
)
